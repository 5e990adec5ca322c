//! **Purpose.** The report of an experiment as one page: plots, tables, the machine, and the
//! command that runs the same again. The page loads nothing; its only link is to the JSON beside
//! it.
//!
//! **Model.** Every element is closed, as in XML, so that a test can check the structure. The plots
//! and the tables are made from the report that the JSON has.

use std::fmt::Write as _;

use serde_json::Value;

use fourscore_lab::alloc::PredictedCell;

use crate::lab::curves::{AtThreads, Curve, Curves, legend_line};
use crate::lab::plot::{Group, Plot, Point, Series, escaped, figure, legend_marker};
use crate::lab::report::{Cell, Report};

const STYLE: &str = include_str!("page.css");

/// The page.
pub(super) fn render(report: &Report) -> String {
    let name = escaped(&report.experiment);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>fourscore lab: {name}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{name}</h1>\n<p>{}{}.</p>\n<p>Each thread: {}.{}</p>\n",
        escaped(&capitalized(&report.about)),
        match report.source.as_str() {
            "" => String::new(),
            source => format!(", after <cite>{}</cite>", escaped(source)),
        },
        escaped(&report.load),
        report.scenario.as_deref().map_or_else(String::new, |name| {
            format!(" File system in memory: {}.", escaped(name))
        }),
    );
    page.push_str(
        "<p class=\"dim\">Sides ran in turns. A figure is the median of its rounds, the line \
         through it reaches from the slowest round to the fastest.",
    );
    page.push_str(match report.published.is_empty() {
        true => "</p>\n",
        false => {
            " Published figures are of other machines: compare directions and ratios, not \
             speeds.</p>\n"
        }
    });
    page.push_str(&legend(report));
    page.push_str("<h2>Plots</h2>\n<div class=\"plots\">\n");
    let beside = match report.published.is_empty() {
        true => "Beside the first side",
        false => "Beside the first side, measured and published",
    };
    for (caption, plot) in [("Speed", speed_plot(report)), (beside, ratio_plot(report))] {
        let _ = write!(
            page,
            "<figure>\n<figcaption>{caption}</figcaption>\n{}</figure>\n",
            plot.to_svg()
        );
    }
    page.push_str("</div>\n<h2>Measured</h2>\n");
    page.push_str(&measured_table(report));
    if !report.missing.is_empty() {
        page.push_str("<h2>Left out on this machine</h2>\n");
        page.push_str(&missing_table(report));
    }
    if !report.published.is_empty() {
        page.push_str("<h2>Published</h2>\n");
        page.push_str(&published_table(report));
    }
    if !report.predicted.is_empty() {
        page.push_str(&predicted_part(report));
    }
    page.push_str(
        "<h2>Further figures</h2>\n<p class=\"dim\">Of the round with the median; \
                   <i>each</i> is for an operation.</p>\n",
    );
    page.push_str(&facts_table(report));
    if let Some(table) = profile_table(report) {
        page.push_str(
            "<h2>Where the time goes</h2>\n<p class=\"dim\">Share of the time of all threads, in \
             the round with the median; time in a section inside of another one is the inner \
             one's. From a sample of the operations.</p>\n",
        );
        page.push_str(&table);
    }
    let _ = write!(
        page,
        "<h2>Machine</h2>\n{}<h2>Again</h2>\n<pre>{}</pre>\n\
         <p>All figures, those of each round included: <a href=\"report.json\">report.json</a>, \
         <a href=\"report.csv\">report.csv</a>.</p>\n</main>\n</body>\n</html>\n",
        machine_table(&report.machine),
        escaped(&report.command),
    );
    page
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters
        .next()
        .map(|first| first.to_uppercase().collect::<String>());
    first.unwrap_or_default() + letters.as_str()
}

/// The style of a side.
fn series(report: &Report, side: &str) -> Series {
    let sides = report.sides();
    Series::Measured(sides.iter().position(|name| *name == side).unwrap_or(0))
}

fn legend(report: &Report) -> String {
    let mut text = "<ul class=\"legend\">\n".to_owned();
    let all = report.runs.iter().flat_map(|cell| &cell.sides);
    let mut seen = Vec::new();
    for side in all {
        if seen.contains(&&side.side) {
            continue;
        }
        seen.push(&side.side);
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "<li>{}<b>{}</b> {}</li>",
            legend_marker(series(report, &side.side)),
            escaped(&side.side),
            escaped(&side.about)
        );
    }
    if !report.published.is_empty() {
        let _ = writeln!(
            text,
            "<li>{}<b>published</b> with the change, beside the figure before it</li>",
            legend_marker(Series::Published)
        );
    }
    text.push_str("</ul>\n");
    text
}

/// A group of points for each cell.
fn groups(report: &Report, point: impl Fn(&Cell, usize) -> Option<[f64; 3]>) -> Vec<Group> {
    let group = |cell: &Cell| Group {
        label: cell.name(),
        points: {
            let sides = cell.sides.iter().enumerate();
            let points = sides.filter_map(|(nr, side)| {
                let [value, low, high] = point(cell, nr)?;
                Some(Point {
                    series: series(report, &side.side),
                    name: side.side.clone(),
                    value,
                    low,
                    high,
                })
            });
            points.collect()
        },
    };
    report.runs.iter().map(group).collect()
}

fn speed_plot(report: &Report) -> Plot {
    let speeds = |cell: &Cell, nr: usize| {
        let side = cell.sides.get(nr)?;
        let (low, high) = side.range();
        Some([side.operations_per_second, low, high])
    };
    Plot {
        axis: "operations/s, all threads together (logarithmic)".to_owned(),
        about: "Operations per second of each side".to_owned(),
        reference: None,
        groups: groups(report, speeds),
    }
}

fn ratio_plot(report: &Report) -> Plot {
    let ratios = |cell: &Cell, nr: usize| {
        let ratio = cell.ratio(cell.sides.get(nr)?)?;
        Some([ratio.median, ratio.min, ratio.max])
    };
    let mut groups = groups(report, ratios);
    groups.extend(report.published.iter().map(|row| Group {
        label: format!("{}, {}", row.what, row.unit),
        points: vec![Point {
            series: Series::Published,
            name: "published".to_owned(),
            value: row.ratio,
            low: row.ratio,
            high: row.ratio,
        }],
    }));
    Plot {
        axis: "times the first side (logarithmic)".to_owned(),
        about: match report.published.is_empty() {
            true => "Each side by the first one",
            false => {
                "Each side by the first one, and the published figures by those before the change"
            }
        }
        .to_owned(),
        reference: Some(1.0),
        groups,
    }
}

/// A table that can be moved sideways where it is wider than the page.
fn table(columns: &[&str], rows: &str) -> String {
    let head = columns
        .iter()
        .map(|name| format!("<th>{}</th>", escaped(name)));
    let head: String = head.collect();
    format!(
        "<div class=\"wide\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n\
         </table></div>\n"
    )
}

fn measured_table(report: &Report) -> String {
    let mut rows = String::new();
    for cell in &report.runs {
        for (nr, side) in cell.sides.iter().enumerate() {
            let (least, most) = side.range();
            let spread = match side.samples.len() {
                // One round has none.
                0 | 1 => "-".to_owned(),
                _ => format!("{} to {}", figure(least), figure(most)),
            };
            let ratio = cell.ratio(side).map_or("-".to_owned(), |ratio| {
                let [median, min, max] = [ratio.median, ratio.min, ratio.max].map(figure);
                match min == max {
                    true => median,
                    false => format!("{median} ({min} to {max})"),
                }
            });
            let (class, name) = match nr {
                0 => (" class=\"first\"", escaped(&cell.name())),
                _ => ("", String::new()),
            };
            // Writing into a String cannot fail.
            let _ = writeln!(
                rows,
                "<tr{class}><td>{name}</td><td class=\"text\">{}</td><td>{}</td>\
                 <td>{spread}</td><td>{ratio}</td><td>{}</td></tr>",
                escaped(&side.side),
                figure(side.operations_per_second),
                side.samples.len(),
            );
        }
    }
    let columns = [
        "",
        "side",
        "operations/s",
        "spread",
        "times the first",
        "rounds",
    ];
    table(&columns, &rows)
}

fn published_table(report: &Report) -> String {
    let mut rows = String::new();
    for row in &report.published {
        // Writing into a String cannot fail.
        let _ = writeln!(
            rows,
            "<tr><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&row.what),
            escaped(&row.unit),
            figure(row.base),
            figure(row.patched),
            figure(row.ratio),
        );
    }
    table(&["", "unit", "before", "with the change", "times"], &rows)
}

/// The predicted cells: curves beside the published ones, and a table.
fn predicted_part(report: &Report) -> String {
    let mut text = "<h2>Predicted for other machines</h2>\n\
                    <p class=\"dim\">A model of a machine gives what is dashed: nothing of it was \
                    measured there, and not all directions agree with what was published. The \
                    vertical axes have how many times as fast it is as before the change, as \
                    published or as predicted.</p>\n"
        .to_owned();
    text.push_str("<ul class=\"legend\">\n");
    for (curve, about) in [
        (published_curve(&[]), "with the change"),
        (patched_curve(report, &[]), "with the change"),
        (ours_curve(report, &[]), "the defaults of fourscore"),
    ] {
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "<li>{}<b>{}</b> {about}</li>",
            legend_line(curve.series, curve.is_predicted),
            curve.name
        );
    }
    text.push_str("</ul>\n<div class=\"plots\">\n");
    let is_same = |a: &PredictedCell, b: &PredictedCell| a.machine == b.machine && a.what == b.what;
    for cells in report.predicted.chunk_by(is_same) {
        let heading = format!("{}, {}", cells[0].machine, cells[0].what);
        let curves = Curves {
            about: format!("Gains on {heading}, published and predicted"),
            reference: 1.0,
            curves: vec![
                published_curve(cells),
                patched_curve(report, cells),
                ours_curve(report, cells),
            ],
        };
        let _ = write!(
            text,
            "<figure>\n<figcaption>{}</figcaption>\n{}</figure>\n",
            escaped(&heading),
            curves.to_svg()
        );
    }
    text.push_str("</div>\n");
    text.push_str(&predicted_table(report));
    text
}

fn curve(cells: &[PredictedCell], value: impl Fn(&PredictedCell) -> f64) -> Vec<AtThreads> {
    let at = |cell: &PredictedCell| AtThreads {
        threads: cell.threads,
        value: value(cell),
    };
    cells.iter().map(at).collect()
}

fn published_curve(cells: &[PredictedCell]) -> Curve {
    Curve {
        series: Series::Published,
        name: "published",
        is_predicted: false,
        values: curve(cells, |cell| cell.published_patched / cell.published_base),
    }
}

fn patched_curve(report: &Report, cells: &[PredictedCell]) -> Curve {
    Curve {
        series: series(report, "patched"),
        name: "predicted",
        is_predicted: true,
        values: curve(cells, |cell| cell.patched / cell.base),
    }
}

fn ours_curve(report: &Report, cells: &[PredictedCell]) -> Curve {
    Curve {
        series: series(report, "ours"),
        name: "ours, predicted",
        is_predicted: true,
        values: curve(cells, |cell| cell.ours / cell.base),
    }
}

fn predicted_table(report: &Report) -> String {
    let rows = report.predicted.iter().map(|cell| {
        let fitted = if cell.is_fitted { "yes" } else { "" };
        format!(
            "<tr><td>{}, {}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{fitted}</td></tr>\n",
            escaped(&cell.machine),
            escaped(&cell.what),
            cell.threads,
            figure(cell.published_patched / cell.published_base),
            figure(cell.patched / cell.base),
            figure(cell.ours / cell.base),
            figure(cell.ours),
        )
    });
    let columns = [
        "",
        "threads",
        "published, times",
        "predicted, times",
        "ours, predicted, times",
        "ours, predicted, operations/s",
        "model fitted here",
    ];
    table(&columns, &rows.collect::<String>())
}

fn missing_table(report: &Report) -> String {
    let rows = report.missing.iter().map(|missing| {
        format!(
            "<tr><td>{}</td><td class=\"text\">{}</td></tr>\n",
            escaped(&missing.side),
            escaped(&missing.why)
        )
    });
    table(&["side", "what is missing"], &rows.collect::<String>())
}

fn facts_table(report: &Report) -> String {
    let mut names: Vec<&str> = Vec::new();
    for side in report.runs.iter().flat_map(|cell| &cell.sides) {
        for name in side.facts.keys() {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    let mut rows = String::new();
    for cell in &report.runs {
        for (nr, side) in cell.sides.iter().enumerate() {
            let (class, name) = match nr {
                0 => (" class=\"first\"", escaped(&cell.name())),
                _ => ("", String::new()),
            };
            let facts = names.iter().map(|name| {
                let value = side.facts.get(*name).copied();
                format!("<td>{}</td>", value.map_or("-".to_owned(), figure))
            });
            let facts: String = facts.collect();
            // Writing into a String cannot fail.
            let _ = writeln!(
                rows,
                "<tr{class}><td>{name}</td><td class=\"text\">{}</td>{facts}</tr>",
                escaped(&side.side)
            );
        }
    }
    let columns: Vec<&str> = ["", "side"].into_iter().chain(names).collect();
    table(&columns, &rows)
}

/// The shares of the sections; `None` if no side has a profile.
fn profile_table(report: &Report) -> Option<String> {
    let profiles = report.runs.iter().flat_map(|cell| &cell.sides);
    let first = profiles.filter_map(|side| side.profile.as_ref()).next()?;
    let names = first.rows.iter().map(|row| row.name.as_str());
    let columns: Vec<&str> = ["", "side"].into_iter().chain(names).collect();
    let mut rows = String::new();
    for cell in &report.runs {
        let profiled = cell.sides.iter().filter(|side| side.profile.is_some());
        for (nr, side) in profiled.enumerate() {
            let (class, name) = match nr {
                0 => (" class=\"first\"", escaped(&cell.name())),
                _ => ("", String::new()),
            };
            let shares = side.profile.iter().flat_map(|profile| &profile.rows);
            let shares = shares.map(|row| format!("<td>{:.1}\u{202f}%</td>", row.share * 100.0));
            let shares: String = shares.collect();
            // Writing into a String cannot fail.
            let _ = writeln!(
                rows,
                "<tr{class}><td>{name}</td><td class=\"text\">{}</td>{shares}</tr>",
                escaped(&side.side)
            );
        }
    }
    Some(table(&columns, &rows))
}

/// The facts of the machine that are known.
fn machine_table(machine: &Value) -> String {
    let names = [
        ("cpu_model", "processor"),
        ("cores", "cores"),
        ("virtual_machine", "virtual machine"),
        ("memory_bytes", "memory"),
        ("kernel", "kernel"),
        ("governor", "frequency governor"),
        ("git_revision", "commit"),
        ("date", "date"),
    ];
    let mut rows = String::new();
    for (key, name) in names {
        let value = match &machine[key] {
            Value::Null => continue,
            Value::String(text) => text.clone(),
            Value::Bool(is_so) => if *is_so { "yes" } else { "no" }.to_owned(),
            Value::Number(number) if key == "memory_bytes" => {
                format!("{} MiB", number.as_u64().unwrap_or(0) >> 20)
            }
            other => other.to_string(),
        };
        // Writing into a String cannot fail.
        let _ = writeln!(
            rows,
            "<tr><td>{name}</td><td class=\"text\">{}</td></tr>",
            escaped(&value)
        );
    }
    table(&["fact", ""], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::report::tests::sample;

    #[test]
    fn each_series_has_as_many_points_as_the_data_in_both_plots() {
        let report = sample();
        let page = render(&report);
        let points = |name: &str| page.matches(&format!("data-series=\"{name}\"")).count();
        for side in ["base", "patched, a", "ours"] {
            assert_eq!(points(side), 2 * report.runs.len(), "{side}");
        }
        assert_eq!(points("published"), report.published.len());
        let curves = |name: &str| page.matches(&format!("data-curve=\"{name}\"")).count();
        for name in ["published", "predicted", "ours, predicted"] {
            assert_eq!(curves(name), 1, "one for each machine and file system");
        }
    }

    #[test]
    fn what_is_predicted_is_named_so_wherever_it_is_shown() {
        let mut report = sample();
        let page = render(&report);
        assert!(page.contains("<b>predicted</b> with the change"));
        assert!(page.contains("<figcaption>A &lt;machine&gt;, 1 GB</figcaption>"));
        assert!(
            page.contains("<td>8</td><td>1.5</td><td>1.2</td><td>2</td><td>20</td><td>yes</td>")
        );
        report.predicted.clear();
        assert!(!render(&report).contains("redicted"));
    }

    #[test]
    fn what_was_left_out_is_named_and_nothing_is_said_of_figures_that_do_not_exist() {
        let mut report = sample();
        assert!(!render(&report).contains("Left out"));
        report.published.clear();
        report.predicted.clear();
        report.missing = vec![crate::lab::report::MissingSide {
            side: "xfs".to_owned(),
            why: "mkfs.xfs is <not> installed".to_owned(),
        }];
        let page = render(&report);
        assert!(!page.contains("ublished"), "{page}");
        assert!(page.contains("<h2>Left out on this machine</h2>"));
        assert!(page.contains("<td>xfs</td><td class=\"text\">mkfs.xfs is &lt;not&gt; installed"));
    }

    #[test]
    fn text_is_escaped_and_nothing_is_outside() {
        let page = render(&sample());
        assert!(page.contains("what &quot;ours&quot; is &lt;here&gt; &amp; there"));
        assert!(page.contains("A &lt;CPU&gt;"));
        assert!(page.contains("<h1>s9-test</h1>\n<p>What it costs, after"));
        for outside in ["://", "src=", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn a_profile_is_a_table_of_shares() {
        let mut report = sample();
        assert!(!render(&report).contains("Where the time goes"));
        let mut totals = fourscore::profile::Totals {
            rest: std::time::Duration::from_millis(1),
            ..Default::default()
        };
        totals.sections[0].time = std::time::Duration::from_millis(3);
        let profile = fourscore_lab::Profile::of(&totals, std::time::Duration::from_millis(8));
        report.runs[1].sides[2].profile = Some(profile);
        let page = render(&report);
        assert!(page.contains("<h2>Where the time goes</h2>"));
        assert!(page.contains("<th>group lock wait</th>"));
        assert!(page.contains(
            "<td>large, 2 threads</td><td class=\"text\">ours</td><td>75.0\u{202f}%</td><td>0.0"
        ));
    }

    #[test]
    fn tables_have_the_spread_and_the_published_ratio() {
        let page = render(&sample());
        assert!(page.contains("<td>22</td><td>20 to 25</td><td>2 (2 to 2.08)</td><td>3</td>"));
        assert!(page.contains("<td>100</td><td>250</td><td>2.5</td>"));
        assert!(page.contains("<th>records</th>"));
    }
}

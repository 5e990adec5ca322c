//! **Purpose.** Plots as inline SVG: values with their spread on a logarithmic axis, a row for
//! each.
//!
//! **Model.** A plot has groups of rows, one below the other, each with a label above its points:
//! labels of any length are readable on a phone. The drawing is 400 units wide and scales with the
//! page. Colours and fonts are those of the page's style, by class: `s0`, `s1`, ... for measured
//! series, `pub` for published figures. Each point is a group with the name of its series in
//! `data-series`.

use std::fmt::Write as _;

const WIDTH: f64 = 400.0;
/// Free space beside the axis, for half of a label.
const MARGIN: f64 = 18.0;
const LABEL_HEIGHT: f64 = 17.0;
/// Of each further line of a label.
const LINE_HEIGHT: f64 = 13.0;
/// Letters that fit into a line, in a wide font.
const LINE_LETTERS: usize = 54;
const ROW_HEIGHT: f64 = 12.0;
/// Above the first group: the labels of the axis.
const TOP: f64 = 18.0;
/// Below the last group: the labels of the axis and its title.
const BOTTOM: f64 = 36.0;
/// Half the size of a marker.
const MARKER: f64 = 3.6;
/// Series with markers and colours of their own.
const STYLES: usize = 6;
/// About how many labels an axis has at most.
const MOST_TICKS: usize = 7;

/// A plot.
pub(super) struct Plot {
    /// What the axis shows, with its unit.
    pub(super) axis: String,
    /// What the plot shows, for readers without images.
    pub(super) about: String,
    /// A value with a line of its own.
    pub(super) reference: Option<f64>,
    pub(super) groups: Vec<Group>,
}

/// Rows with a common label.
pub(super) struct Group {
    pub(super) label: String,
    pub(super) points: Vec<Point>,
}

/// A value with its spread.
pub(super) struct Point {
    pub(super) series: Series,
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// Which style a point has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Series {
    Measured(usize),
    Published,
}

impl Series {
    pub(super) fn class(self) -> String {
        match self {
            Self::Measured(nr) => format!("s{}", nr % STYLES),
            Self::Published => "pub".to_owned(),
        }
    }

    /// The marker of the series around a point, as a path.
    pub(super) fn marker(self, x: f64, y: f64) -> String {
        let r = MARKER;
        let (left, right, up, down) = (x - r, x + r, y - r, y + r);
        match self {
            Self::Measured(nr) => match nr % STYLES {
                0 => format!(
                    "M{left:.1} {y:.1}a{r} {r} 0 1 0 {0:.1} 0a{r} {r} 0 1 0 -{0:.1} 0Z",
                    2.0 * r
                ),
                1 => format!("M{left:.1} {up:.1}H{right:.1}V{down:.1}H{left:.1}Z"),
                2 => format!("M{x:.1} {up:.1}L{right:.1} {down:.1}H{left:.1}Z"),
                3 => format!("M{x:.1} {down:.1}L{right:.1} {up:.1}H{left:.1}Z"),
                4 => format!("M{left:.1} {up:.1}L{right:.1} {y:.1}L{left:.1} {down:.1}Z"),
                _ => format!("M{right:.1} {up:.1}L{left:.1} {y:.1}L{right:.1} {down:.1}Z"),
            },
            Self::Published => {
                let r = r + 0.8;
                format!(
                    "M{x:.1} {:.1}L{:.1} {y:.1}L{x:.1} {:.1}L{:.1} {y:.1}Z",
                    y - r,
                    x + r,
                    y + r,
                    x - r
                )
            }
        }
    }
}

/// The marker of a series alone, for a legend.
pub(super) fn legend_marker(series: Series) -> String {
    let (class, path) = (series.class(), series.marker(6.0, 6.0));
    format!(
        "<svg class=\"key\" viewBox=\"0 0 12 12\" aria-hidden=\"true\"><path class=\"{class}\" \
         d=\"{path}\"/></svg>"
    )
}

/// The axis of a plot: from value to place.
pub(super) struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// An axis for all points, or for 1 to 10 if there are none.
    fn of(plot: &Plot) -> Self {
        let points = plot.groups.iter().flat_map(|group| &group.points);
        let values = points.flat_map(|point| [point.low, point.value, point.high]);
        Self::over(values.chain(plot.reference))
    }

    /// An axis for these values, or for 1 to 10 if none is a positive number.
    pub(super) fn over(values: impl Iterator<Item = f64>) -> Self {
        let values = values.filter(|value| value.is_finite() && *value > 0.0);
        let bounds = (f64::INFINITY, 0_f64);
        let (low, high) = values.fold(bounds, |(low, high), value| {
            (low.min(value), high.max(value))
        });
        if high <= 0.0 {
            return Self {
                low: 1.0,
                high: 10.0,
            };
        }
        // A little free space on both sides; more if all values are equal.
        let space = (high / low).powf(0.05).max(1.02);
        Self {
            low: low / space,
            high: high * space,
        }
    }

    /// The place of a value; one that is not a number is at the low end.
    fn place(&self, value: f64) -> f64 {
        MARGIN + self.share(value) * (WIDTH - 2.0 * MARGIN)
    }

    /// The place of a value on the axis, from 0 to 1.
    pub(super) fn share(&self, value: f64) -> f64 {
        let value = match value.is_nan() {
            true => self.low,
            false => value.clamp(self.low, self.high),
        };
        (value / self.low).ln() / (self.high / self.low).ln()
    }

    /// The values with labels.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let ratio = self.high / self.low;
        if ratio < 4.0 {
            return self.even_ticks();
        }
        let ticks = |digits: &[f64], step: i32| -> Vec<f64> {
            let powers = (-12..=15).filter(|power| power % step == 0);
            let powers = powers.map(|power| 10_f64.powi(power));
            let all = powers.flat_map(|power| digits.iter().map(move |digit| digit * power));
            all.filter(|tick| (self.low..=self.high).contains(tick))
                .collect()
        };
        let choices: [(&[f64], i32); 6] = [
            (&[1.0, 2.0, 5.0], 1),
            (&[1.0, 3.0], 1),
            (&[1.0], 1),
            (&[1.0], 2),
            (&[1.0], 3),
            (&[1.0], 4),
        ];
        let mut fitting = choices
            .into_iter()
            .map(|(digits, step)| ticks(digits, step));
        let found = fitting.find(|ticks| (2..=MOST_TICKS).contains(&ticks.len()));
        found.unwrap_or_else(|| vec![self.low, self.high])
    }

    /// Values at even distances, for a short axis.
    fn even_ticks(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let digits = [1.0, 2.0, 5.0, 10.0];
        let step = digits.map(|digit| digit * power);
        let step = step
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let first = (self.low / step).ceil() * step;
        let ticks = (0_u8..20).map(|nr| first + f64::from(nr) * step);
        ticks.take_while(|tick| *tick <= self.high).collect()
    }
}

impl Plot {
    /// The plot as an element.
    pub(super) fn to_svg(&self) -> String {
        let axis = Axis::of(self);
        let rows: usize = self.groups.iter().map(|group| group.points.len()).sum();
        let labels: f64 = self.groups.iter().map(Group::label_height).sum();
        let bottom = TOP + labels + rows as f64 * ROW_HEIGHT + 6.0;
        let height = bottom + BOTTOM;
        let mut svg = format!(
            "<svg class=\"plot\" role=\"img\" viewBox=\"0 0 {WIDTH} {height:.0}\">\
             <title>{}</title>\n",
            escaped(&self.about)
        );
        self.draw_axis(&axis, bottom, &mut svg);
        let mut y = TOP;
        for group in &self.groups {
            for (nr, line) in group.lines().iter().enumerate() {
                // Writing into a String cannot fail.
                let _ = writeln!(
                    svg,
                    "<text class=\"label\" x=\"2\" y=\"{:.1}\">{}</text>",
                    y + LABEL_HEIGHT - 4.0 + nr as f64 * LINE_HEIGHT,
                    escaped(line)
                );
            }
            y += group.label_height();
            for point in &group.points {
                point.draw(&axis, y + ROW_HEIGHT / 2.0, &mut svg);
                y += ROW_HEIGHT;
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn draw_axis(&self, axis: &Axis, bottom: f64, svg: &mut String) {
        for tick in axis.ticks() {
            let x = axis.place(tick);
            let label = short(tick);
            // Writing into a String cannot fail.
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom:.1}\"/>\
                 <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>\
                 <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>",
                TOP - 5.0,
                bottom + 13.0
            );
        }
        if let Some(reference) = self.reference {
            let x = axis.place(reference);
            let _ = writeln!(
                svg,
                "<path class=\"reference\" d=\"M{x:.1} {TOP}V{bottom:.1}\"/>"
            );
        }
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{MARGIN} {bottom:.1}H{:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - MARGIN,
            WIDTH / 2.0,
            bottom + 29.0,
            escaped(&self.axis)
        );
    }
}

impl Group {
    /// The label in lines that fit.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![String::new()];
        for word in self.label.split(' ') {
            let last = lines.last_mut().filter(|last| {
                last.is_empty() || last.chars().count() + word.chars().count() < LINE_LETTERS
            });
            match last {
                Some(last) if last.is_empty() => last.push_str(word),
                Some(last) => {
                    last.push(' ');
                    last.push_str(word);
                }
                None => lines.push(word.to_owned()),
            }
        }
        lines
    }

    fn label_height(&self) -> f64 {
        LABEL_HEIGHT + (self.lines().len() - 1) as f64 * LINE_HEIGHT
    }
}

impl Point {
    fn draw(&self, axis: &Axis, y: f64, svg: &mut String) {
        let (x, low, high) = (
            axis.place(self.value),
            axis.place(self.low),
            axis.place(self.high),
        );
        let spread = match self.low < self.high {
            true => format!(" ({} to {})", figure(self.low), figure(self.high)),
            false => String::new(),
        };
        let name = escaped(&self.name);
        // Writing into a String cannot fail.
        let _ = write!(
            svg,
            "<g class=\"{}\" data-series=\"{name}\"><title>{name}: {}{spread}</title>",
            self.series.class(),
            figure(self.value)
        );
        if self.low < self.high {
            let _ = write!(
                svg,
                "<path class=\"spread\" d=\"M{low:.1} {y:.1}H{high:.1}M{low:.1} {:.1}v5M{high:.1} \
                 {:.1}v5\"/>",
                y - 2.5,
                y - 2.5
            );
        }
        let _ = writeln!(svg, "<path d=\"{}\"/></g>", self.series.marker(x, y));
    }
}

/// A number with at most four digits that matter.
pub(super) fn figure(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "-".to_owned(),
        size if size >= 1000.0 => {
            let digits = format!("{value:.0}");
            let (sign, digits) = digits.split_at(usize::from(value < 0.0));
            let mut text = sign.to_owned();
            for (nr, digit) in digits.chars().enumerate() {
                // A narrow space that does not break, between thousands.
                if nr > 0 && (digits.len() - nr).is_multiple_of(3) {
                    text.push('\u{202f}');
                }
                text.push(digit);
            }
            text
        }
        size if size >= 100.0 => trimmed(format!("{value:.1}")),
        size if size >= 1.0 => trimmed(format!("{value:.2}")),
        _ => trimmed(format!("{value:.3}")),
    }
}

/// A number as it was published, without what binary fractions add.
pub(super) fn published(value: f64) -> String {
    trimmed(format!("{value:.3}"))
}

/// A label of an axis.
pub(super) fn short(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let unit = units.into_iter().find(|(size, _)| value >= *size);
    let (size, unit) = unit.unwrap_or((1.0, ""));
    trimmed(format!("{:.3}", value / size)) + unit
}

/// Without zeros at the end.
fn trimmed(text: String) -> String {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Text for elements and attributes.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            letter if letter.is_control() => safe.push(' '),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(values: &[f64]) -> Plot {
        let point = |(nr, &value): (usize, &f64)| Point {
            series: Series::Measured(nr),
            name: format!("s<{nr}>"),
            value,
            low: value * 0.9,
            high: value * 1.1,
        };
        Plot {
            axis: "operations/s".to_owned(),
            about: "values".to_owned(),
            reference: Some(1.0),
            groups: vec![Group {
                label: "all".to_owned(),
                points: values.iter().enumerate().map(point).collect(),
            }],
        }
    }

    #[test]
    fn axes_have_a_few_labels_whatever_the_values_are() {
        for values in [
            vec![1.0],
            vec![0.97, 1.02],
            vec![3.0, 9.0],
            vec![0.5, 200.0],
            vec![1e-3, 1e9],
            vec![],
            vec![f64::NAN, 0.0, 5.0],
        ] {
            let plot = plot(&values);
            let axis = Axis::of(&plot);
            let ticks = axis.ticks();
            assert!((2..=8).contains(&ticks.len()), "{values:?}: {ticks:?}");
            let places: Vec<f64> = ticks.iter().map(|&tick| axis.place(tick)).collect();
            assert!(places.is_sorted(), "{places:?}");
            assert!(places.iter().all(|x| (0.0..=WIDTH).contains(x)));
            assert!(!plot.to_svg().contains("NaN"));
        }
    }

    #[test]
    fn long_labels_have_several_lines() {
        let mut plot = plot(&[1.0]);
        let short = plot.to_svg();
        plot.groups[0].label = "word ".repeat(30).trim().to_owned();
        let lines = plot.groups[0].lines();
        assert_eq!(lines.len(), 3);
        assert!(
            lines
                .iter()
                .all(|line| line.chars().count() <= LINE_LETTERS)
        );
        assert_eq!(lines.join(" "), plot.groups[0].label);
        let labels = |svg: &str| svg.matches("class=\"label\"").count();
        assert_eq!((labels(&short), labels(&plot.to_svg())), (1, 3));
    }

    #[test]
    fn each_value_is_a_point_of_its_series() {
        let svg = plot(&[2.0, 4.0]).to_svg();
        assert_eq!(svg.matches("data-series=\"s&lt;0&gt;\"").count(), 1);
        assert_eq!(svg.matches("class=\"spread\"").count(), 2);
        assert!(
            svg.contains("<title>s&lt;1&gt;: 4 (3.6 to 4.4)</title>"),
            "{svg}"
        );
        // Larger values are further to the right.
        let axis = Axis::of(&plot(&[2.0, 4.0]));
        assert!(axis.place(2.0) < axis.place(4.0));
    }

    #[test]
    fn numbers_are_short() {
        let figures = [0.5, 1.0, 12.345, 123.45, 1_234_567.0, -1234.0].map(figure);
        let narrow = '\u{202f}';
        let expected = [
            "0.5".to_owned(),
            "1".to_owned(),
            "12.35".to_owned(),
            "123.5".to_owned(),
            format!("1{narrow}234{narrow}567"),
            format!("-1{narrow}234"),
        ];
        assert_eq!(figures, expected);
        let labels = [0.98, 1.0, 1500.0, 2e6].map(short);
        assert_eq!(labels, ["0.98", "1", "1.5k", "2M"]);
    }
}

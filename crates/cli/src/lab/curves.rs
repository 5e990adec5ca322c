//! **Purpose.** Curves over numbers of threads as inline SVG: what was published, drawn through,
//! and what was predicted, dashed.
//!
//! **Model.** Both axes are logarithmic, so that a doubling of threads and a gain by a factor have
//! a length each. The drawing is 400 units wide, as the other plots are, and has the same classes.
//! A curve has a marker for each value, so that curves differ without colours.

use std::fmt::Write as _;

use crate::lab::plot::{Axis, Series, escaped, figure, short};

const WIDTH: f64 = 400.0;
const LEFT: f64 = 34.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const HEIGHT: f64 = 120.0;
/// The labels of the axis of threads and its title.
const BOTTOM: f64 = 32.0;

/// Curves with common axes.
pub(super) struct Curves {
    /// What the vertical axis shows, for readers without images.
    pub(super) about: String,
    /// A value with a line of its own.
    pub(super) reference: f64,
    pub(super) curves: Vec<Curve>,
}

/// Values over numbers of threads.
pub(super) struct Curve {
    pub(super) series: Series,
    pub(super) name: &'static str,
    pub(super) is_predicted: bool,
    pub(super) values: Vec<AtThreads>,
}

/// A value with a number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AtThreads {
    pub(super) threads: u32,
    pub(super) value: f64,
}

/// The line and the marker of a curve alone, for a legend.
pub(super) fn legend_line(series: Series, is_predicted: bool) -> String {
    let (class, marker) = (series.class(), series.marker(14.0, 6.0));
    let (line, hollow) = styles(is_predicted);
    format!(
        "<svg class=\"line\" viewBox=\"0 0 28 12\" aria-hidden=\"true\"><g class=\"{class}\">\
         <path class=\"{line}\" d=\"M0 6H28\"/><path{hollow} d=\"{marker}\"/></g></svg>"
    )
}

/// The class of the line, and the attribute of the markers.
fn styles(is_predicted: bool) -> (&'static str, &'static str) {
    match is_predicted {
        true => ("curve dashed", " class=\"hollow\""),
        false => ("curve", ""),
    }
}

impl Curves {
    fn values(&self) -> impl Iterator<Item = AtThreads> {
        self.curves
            .iter()
            .flat_map(|curve| curve.values.iter().copied())
    }

    /// The plot as an element.
    pub(super) fn to_svg(&self) -> String {
        let threads = Axis::over(self.values().map(|at| at.threads.into()));
        let values = self.values().map(|at| at.value);
        let values = Axis::over(values.chain([self.reference]));
        let x = |count: u32| LEFT + threads.share(count.into()) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| TOP + (1.0 - values.share(value)) * HEIGHT;
        let mut svg = format!(
            "<svg class=\"plot\" role=\"img\" viewBox=\"0 0 {WIDTH} {:.0}\"><title>{}</title>\n",
            TOP + HEIGHT + BOTTOM,
            escaped(&self.about)
        );
        for tick in values.ticks() {
            // Writing into a String cannot fail.
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {0:.1}H{1:.1}\"/>\
                 <text class=\"tick end\" x=\"{2:.1}\" y=\"{3:.1}\">{4}</text>",
                y(tick),
                WIDTH - RIGHT,
                LEFT - 5.0,
                y(tick) + 3.5,
                short(tick)
            );
        }
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {0:.1}H{1:.1}\"/>",
            y(self.reference),
            WIDTH - RIGHT
        );
        self.draw_threads(x, &mut svg);
        for curve in &self.curves {
            curve.draw(x, y, &mut svg);
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// The axis of threads has the numbers that there are.
    fn draw_threads(&self, x: impl Fn(u32) -> f64, svg: &mut String) {
        let mut counts: Vec<u32> = self.values().map(|at| at.threads).collect();
        counts.sort_unstable();
        counts.dedup();
        for count in counts {
            // Writing into a String cannot fail.
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">{count}</text>",
                x(count),
                TOP + HEIGHT + 13.0
            );
        }
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {0:.1}H{1:.1}\"/>\
             <text class=\"tick\" x=\"{2:.1}\" y=\"{3:.1}\">threads</text>",
            TOP + HEIGHT,
            WIDTH - RIGHT,
            WIDTH / 2.0,
            TOP + HEIGHT + 27.0
        );
    }
}

impl Curve {
    fn draw(&self, x: impl Fn(u32) -> f64, y: impl Fn(f64) -> f64, svg: &mut String) {
        let places = self
            .values
            .iter()
            .map(|at| (x(at.threads), y(at.value), at));
        let places: Vec<_> = places.collect();
        let (line, hollow) = styles(self.is_predicted);
        let name = escaped(self.name);
        let path: Vec<String> = places
            .iter()
            .map(|(x, y, _)| format!("{x:.1} {y:.1}"))
            .collect();
        // Writing into a String cannot fail.
        let _ = writeln!(
            svg,
            "<g class=\"{}\" data-curve=\"{name}\"><path class=\"{line}\" d=\"M{}\"/>",
            self.series.class(),
            path.join("L")
        );
        for (x, y, at) in places {
            let _ = writeln!(
                svg,
                "<path{hollow} d=\"{}\"><title>{name}, {} threads: {}</title></path>",
                self.series.marker(x, y),
                at.threads,
                figure(at.value)
            );
        }
        svg.push_str("</g>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(is_predicted: bool) -> Curve {
        let at = |threads: u32| AtThreads {
            threads,
            value: 1.0 + f64::from(threads),
        };
        Curve {
            series: Series::Measured(2),
            name: "a & b",
            is_predicted,
            values: [1, 8, 128].map(at).to_vec(),
        }
    }

    #[test]
    fn what_is_predicted_is_dashed_and_what_was_published_is_not() {
        let svg = Curves {
            about: "gains".to_owned(),
            reference: 1.0,
            curves: vec![curve(false), curve(true)],
        }
        .to_svg();
        assert_eq!(svg.matches("data-curve=\"a &amp; b\"").count(), 2);
        assert_eq!(svg.matches("class=\"curve dashed\"").count(), 1);
        assert_eq!(svg.matches("class=\"curve\"").count(), 1);
        assert_eq!(svg.matches("class=\"hollow\"").count(), 3);
        assert!(
            svg.contains("<title>a &amp; b, 8 threads: 9</title>"),
            "{svg}"
        );
        // Each number of threads has one label.
        assert_eq!(svg.matches(">128</text>").count(), 1);
        assert!(!svg.contains("NaN"));
        assert!(legend_line(Series::Published, true).contains("dashed"));
        assert!(!legend_line(Series::Published, false).contains("dashed"));
    }
}

//! **Purpose.** The plot of the README: how many times as fast as other programs, as bars on a
//! logarithmic axis. Readable on a light and on a dark page.

use std::fmt::Write;

use super::promises::Comparison;

const WIDTH: f64 = 840.0;
/// Where the axis begins and ends; what is left of it is for names, right of it for figures.
const AXIS: (f64, f64) = (400.0, 780.0);
const ROW: f64 = 26.0;
const TOP: f64 = 40.0;
/// The powers of two at the ends of the axis.
const LOWEST: i32 = -2;
const HIGHEST: i32 = 5;

const STYLE: &str = "\
text { font: 13px system-ui, sans-serif; fill: #24292f }
.beside { fill: #57606a; font-size: 11px }
.tick { stroke: #d0d7de }
.one { stroke: #57606a }
.faster { fill: #1a7f64 }
.slower { fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.beside { fill: #9198a1 }
.tick { stroke: #3d444d }
.one { stroke: #9198a1 }
.faster { fill: #3fb68b }
.slower { fill: #e0823d }
}
";

/// The plot.
pub(super) fn svg(comparisons: &[Comparison]) -> String {
    let bottom = TOP + ROW * comparisons.len() as f64;
    let height = bottom + 16.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"How many times as fast as other programs\">\n<style>\n{STYLE}</style>\n"
    );
    for power in LOWEST..=HIGHEST {
        let times = 2_f64.powi(power);
        let (x, class) = (position(times), if power == 0 { "one" } else { "tick" });
        // Writing into a String cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"18\" text-anchor=\"middle\">{times}×</text>\n\
             <line class=\"{class}\" x1=\"{x:.1}\" y1=\"26\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>"
        );
    }
    for (index, one) in comparisons.iter().enumerate() {
        bar(&mut svg, one, TOP + ROW * index as f64);
    }
    svg.push_str("</svg>\n");
    svg
}

/// One row: the task and the other program, the bar from 1 on, the figure.
fn bar(svg: &mut String, one: &Comparison, y: f64) {
    let (start, end) = (position(1.0), position(one.times));
    let (left, width) = (start.min(end), (end - start).abs());
    let class = if one.times >= 1.0 { "faster" } else { "slower" };
    let (names, base) = (AXIS.0 - 14.0, y + 14.0);
    let figure = start.max(end) + 6.0;
    let (task, beside, times) = (one.task, one.beside, one.times);
    // Writing into a String cannot fail.
    let _ = writeln!(
        svg,
        "<text x=\"{names}\" y=\"{base}\" text-anchor=\"end\">{task} \
         <tspan class=\"beside\">{beside}</tspan></text>\n\
         <rect class=\"{class}\" x=\"{left:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"14\" \
         rx=\"2\"/>\n\
         <text x=\"{figure:.1}\" y=\"{base}\">{times:.2}</text>",
        top = y + 3.0
    );
}

/// Where a factor stands on the axis.
fn position(times: f64) -> f64 {
    let span = f64::from(HIGHEST - LOWEST);
    let share = ((times.log2() - f64::from(LOWEST)) / span).clamp(0.0, 1.0);
    AXIS.0 + share * (AXIS.1 - AXIS.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_begin_at_one_and_stay_on_the_axis() {
        assert!((position(0.25) - AXIS.0).abs() < 0.01);
        assert!((position(32.0) - AXIS.1).abs() < 0.01);
        assert!((position(1e9) - AXIS.1).abs() < 0.01);
        assert!(position(0.5) < position(1.0) && position(1.0) < position(2.0));
    }
}

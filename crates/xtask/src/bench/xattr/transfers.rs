//! **Purpose.** Cache lines that move between virtual cores which set, change and remove distinct
//! attributes, from the test that counts them.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use super::promises::Promise;
use crate::run::cargo;
use crate::workspace::Workspace;

/// The numbers of virtual cores.
const CORES: [u32; 3] = [2, 80, 192];
/// How many times as many lines move on the most cores as on two, where half of the lines are still
/// at the core that needs them; and what chance may add.
const MOST_TIMES: f64 = 2.2;
const CHANCE: f64 = 0.15;

/// Lines per operation.
pub(super) struct Transfers {
    rows: Vec<Row>,
}

#[derive(Debug, PartialEq)]
struct Row {
    /// What is done, and how equal attributes are looked for.
    what: String,
    /// By number of cores.
    moved: [f64; 3],
}

/// Runs the test that counts them.
pub(super) fn count(workspace: &Workspace) -> Result<Transfers> {
    println!("transfers between virtual cores");
    let mut command = cargo(workspace);
    command.args(["test", "--quiet", "--package", "fourscore"]);
    command.args(["--features", "count", "--test", "count_xattr"]);
    let output = command.args(["--", "--nocapture"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!(
            "{command:?}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let rows = parse(&text);
    if rows.is_empty() {
        bail!("{command:?} has printed no transfers");
    }
    Ok(Transfers { rows })
}

/// Collects lines such as `transfers: set, bypassed, 80 cores: 1.250`.
fn parse(text: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for line in text.lines() {
        let parts = line.strip_prefix("transfers: ");
        let Some((what, moved)) = parts.and_then(|line| line.rsplit_once(" cores: ")) else {
            continue;
        };
        let Some((what, cores)) = what.rsplit_once(", ") else {
            continue;
        };
        let column = CORES.iter().position(|of| of.to_string() == cores);
        let (Some(column), Ok(moved)) = (column, moved.parse()) else {
            continue;
        };
        let row = match rows.iter_mut().position(|row| row.what == what) {
            Some(at) => &mut rows[at],
            None => {
                rows.push(Row {
                    what: what.to_owned(),
                    moved: [f64::NAN; 3],
                });
                let last = rows.len() - 1;
                &mut rows[last]
            }
        };
        row.moved[column] = moved;
    }
    rows
}

impl Transfers {
    pub(super) fn to_markdown(&self) -> String {
        let mut text = String::from(
            "\n## Transfers\n\nCache lines that move between virtual cores in an operation on \
             distinct values, each core with files of its own: while lookups are bypassed, and \
             while a core looks.\n\n| operation | 2 cores | 80 cores | 192 cores |\n\
             |---|---:|---:|---:|\n",
        );
        for Row { what, moved } in &self.rows {
            let [two, some, many] = moved;
            // Writing into a String cannot fail.
            let _ = writeln!(text, "| {what} | {two:.2} | {some:.2} | {many:.2} |");
        }
        text
    }

    pub(super) fn promise(&self) -> Promise {
        let is_flat = |row: &Row| {
            let [two, some, many] = row.moved;
            let most = MOST_TIMES * two + CHANCE;
            some <= most && many <= most
        };
        let figures = self.rows.iter().map(|row| {
            let [two, _, many] = row.moved;
            format!("{two:.2} -> {many:.2} ({})", row.what)
        });
        Promise {
            what:
                "lines moved per operation on distinct values, from 2 to 192 cores: flat (on two \
                   cores half of the lines are where they are needed)"
                    .to_owned(),
            figure: figures.collect::<Vec<_>>().join("; "),
            met: !self.rows.is_empty() && self.rows.iter().all(is_flat),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(moved: [f64; 3]) -> Transfers {
        let what = "set, looking".to_owned();
        Transfers {
            rows: vec![Row { what, moved }],
        }
    }

    #[test]
    fn lines_of_the_test_become_rows() {
        let text = "running 1 test\ntransfers: set, looking, 2 cores: 0.500\n   1.0 all\n\
                    transfers: set, looking, 80 cores: 0.750\n\
                    transfers: set, looking, 192 cores: 1.000\ntransfers: odd\n";
        assert_eq!(parse(text), of([0.5, 0.75, 1.0]).rows);
    }

    #[test]
    fn the_promise_is_met_if_no_row_grows() {
        assert!(of([0.5, 1.0, 1.0]).promise().met);
        assert!(!of([0.5, 1.0, 2.0]).promise().met);
        assert!(!of([0.5, f64::NAN, 1.0]).promise().met);
        assert!(!Transfers { rows: Vec::new() }.promise().met);
    }
}

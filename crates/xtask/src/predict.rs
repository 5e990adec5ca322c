//! **Purpose.** Builds the predictor, a program of the crate `lab` in the counting build, and runs
//! it.
//!
//! **Model.** What it prints is Markdown, and the same for each run; `--record` puts it between the
//! marks of docs/results/predictor.md, and its cells into the table that reports of `fourscore lab`
//! are made with.

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::run::{cargo, run as run_command};
use crate::workspace::Workspace;

const RECORD: &str = "docs/results/predictor.md";
const BEGIN: &str = "<!-- predict -->\n";
const END: &str = "<!-- end predict -->";
/// The cells for `fourscore lab`, which cannot predict itself: that takes the counting build.
const VALUES: &str = "crates/lab/src/alloc/predicted.csv";
const VALUES_HEAD: &str = "source;machine;what;threads;published base;published patched;\
                           base;patched;ours;fitted\n";

#[derive(Args)]
pub(crate) struct Options {
    /// Only tables whose heading contains this
    #[arg(long, value_name = "TEXT", conflicts_with = "record")]
    table: Option<String>,
    /// Fits the models of machines instead, and prints what it finds
    #[arg(long, conflicts_with = "record")]
    fit: bool,
    /// Replaces the tables in docs/results/predictor.md
    #[arg(long)]
    record: bool,
}

/// Runs the verb.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let package = ["build", "--release", "--package", "fourscore-lab"];
    let program = ["--features", "count", "--bin", "predict"];
    run_command(cargo(workspace).args(package).args(program))?;
    let mut command = workspace.program(&workspace.target().join("release/predict"));
    if let Some(table) = &options.table {
        command.args(["--table", table]);
    }
    if options.fit {
        command.arg("--fit");
    }
    if !options.record {
        return run_command(&mut command);
    }
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("the predictor failed ({})", output.status);
    }
    let path = workspace.path(RECORD);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let tables = String::from_utf8(output.stdout)?;
    std::fs::write(&path, replaced(&text, &tables)?)?;
    std::fs::write(workspace.path(VALUES), values(&tables)?)?;
    println!("recorded in {} and {VALUES}", path.display());
    Ok(())
}

/// The cells of the tables as values that semicolons separate.
fn values(tables: &str) -> Result<String> {
    let (mut text, mut heading) = (VALUES_HEAD.to_owned(), None);
    for line in tables.lines() {
        if let Some(of) = line.strip_prefix("### ") {
            let parts = of.split_once(": ").and_then(|(source, rest)| {
                let (machine, what) = rest.split_once(", ")?;
                Some(format!("{source};{machine};{what}"))
            });
            heading = parts;
            continue;
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let is_row = cells[0].parse::<u32>().is_ok();
        let Some(heading) = heading.as_ref().filter(|_| is_row) else {
            continue;
        };
        let [
            threads,
            base,
            patched,
            _,
            own_base,
            own_patched,
            _,
            _,
            direction,
            _,
            ours,
        ] = cells[..]
        else {
            bail!("a row of another form: {line}");
        };
        let fitted = if direction == "fitted" { "yes" } else { "no" };
        text.push_str(&format!(
            "{heading};{threads};{base};{patched};{own_base};{own_patched};{ours};{fitted}\n"
        ));
    }
    Ok(text)
}

/// The page with other tables between the marks.
fn replaced(page: &str, tables: &str) -> Result<String> {
    let missing = || format!("{RECORD} has no marks");
    let (before, rest) = page.split_once(BEGIN).with_context(missing)?;
    let (_, after) = rest.split_once(END).with_context(missing)?;
    Ok(format!("{before}{BEGIN}{tables}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_replaced_between_the_marks_only() {
        let page = format!("head\n{BEGIN}old\n{END}\ntail\n");
        let new = replaced(&page, "new\n").expect("marks");
        assert_eq!(new, format!("head\n{BEGIN}new\n{END}\ntail\n"));
        assert!(replaced("no marks", "new").is_err());
    }

    #[test]
    fn the_values_are_those_of_the_recorded_tables() {
        let workspace = Workspace::locate().expect("the workspace");
        let page = std::fs::read_to_string(workspace.path(RECORD)).expect("the record");
        let (_, tables) = page.split_once(BEGIN).expect("marks");
        let recorded = std::fs::read_to_string(workspace.path(VALUES)).expect("values");
        assert_eq!(values(tables).expect("tables"), recorded);
        assert!(values("### S1: M, a\n| 1 | 2 |\n").is_err());
    }
}

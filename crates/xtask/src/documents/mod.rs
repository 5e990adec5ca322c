//! **Purpose.** The parts of documents that follow from sources and records, so that nothing is
//! said twice: the lock order, the tables of promises, the plot of the README.
//!
//! **Model.** A generated part of a page stands between two marks, `<!-- NAME: begin (..) -->` and
//! `<!-- NAME: end -->`. `cargo xtask documents` writes all of them, and so does
//! `cargo xtask bench NAME --record` after a new record. A test compares.
//!
//! | module | responsibility |
//! |---|---|
//! | [`records`] | the tables of docs/results |
//! | [`promises`] | docs/PERFORMANCE.md: what is promised, what was measured |
//! | [`plot`] | docs/speed.svg |
//! | [`lock_order`] | docs/internals/write-path.md: the order of locks |

mod lock_order;
mod plot;
mod promises;
mod records;

use std::fs;

use anyhow::{Context, Result};

use crate::workspace::Workspace;
use records::Records;

/// Writes every generated part.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    for (path, text) in generated(workspace)? {
        let path = workspace.path(path);
        fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}

/// The path and the whole text of each file that has a generated part.
fn generated(workspace: &Workspace) -> Result<Vec<(&'static str, String)>> {
    let page = |path: &str| {
        fs::read_to_string(workspace.path(path)).with_context(|| format!("{path} cannot be read"))
    };
    let records = Records::read(&workspace.path("docs/results"))?;
    let comparisons = promises::comparisons(&records)?;
    let performance = page("docs/PERFORMANCE.md")?;
    let performance = replaced(
        &performance,
        "comparisons",
        &promises::comparison_table(&comparisons),
    )?;
    let performance = replaced(
        &performance,
        "promises",
        &promises::promise_tables(&records)?,
    )?;
    let write_path = replaced(
        &page("docs/internals/write-path.md")?,
        "lock order",
        &lock_order::list(workspace)?,
    )?;
    Ok(vec![
        ("docs/PERFORMANCE.md", performance),
        ("docs/internals/write-path.md", write_path),
        ("docs/speed.svg", plot::svg(&comparisons)),
    ])
}

/// A page with another text between the marks of a part.
fn replaced(page: &str, part: &str, text: &str) -> Result<String> {
    let missing = || format!("no mark of the part {part:?}");
    let begin = page
        .find(&format!("<!-- {part}: begin"))
        .with_context(missing)?;
    let (before, rest) = page.split_at(begin);
    let (mark, rest) = rest.split_once('\n').with_context(missing)?;
    let end = rest
        .find(&format!("<!-- {part}: end -->"))
        .with_context(missing)?;
    let (_, after) = rest.split_at(end);
    Ok(format!("{before}{mark}\n{text}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_parts_of_documents_are_those_of_sources_and_records() {
        let workspace = Workspace::locate().expect("it was compiled from there");
        for (path, expected) in generated(&workspace).expect("everything is there") {
            let found = fs::read_to_string(workspace.path(path)).unwrap_or_default();
            assert!(
                found == expected,
                "{path} differs: run `cargo xtask documents`"
            );
        }
    }

    #[test]
    fn a_part_is_replaced_between_its_marks() {
        let page = "a\n<!-- x: begin (how) -->\nold\n<!-- x: end -->\nb\n";
        let new = replaced(page, "x", "new\n").expect("it has the part");
        assert_eq!(new, "a\n<!-- x: begin (how) -->\nnew\n<!-- x: end -->\nb\n");
        assert!(replaced(page, "y", "").is_err());
    }
}

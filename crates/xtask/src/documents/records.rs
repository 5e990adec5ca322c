//! **Purpose.** The tables of the records in docs/results, found again by heading and row.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// All records, by the name of the measurement.
pub(super) struct Records(BTreeMap<String, Vec<Table>>);

/// A table and the heading that it stands below.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Table {
    heading: String,
    /// The cells of each row, the row of column names first.
    rows: Vec<Vec<String>>,
}

impl Records {
    /// Reads what `cargo xtask bench --record` wrote to the documents of a folder.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let mut records = BTreeMap::new();
        for entry in fs::read_dir(folder).with_context(|| format!("{}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                continue;
            }
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(&path)?;
            if let Some((_, after)) = text.split_once(&format!("<!-- bench {name} -->\n")) {
                let end = format!("<!-- end {name} -->");
                let (record, _) = after.split_once(&end).with_context(|| end.clone())?;
                records.insert(name.into_owned(), tables(record));
            }
        }
        Ok(Self(records))
    }

    /// The tables of one measurement.
    pub(super) fn of(&self, name: &str) -> Result<&[Table]> {
        let tables = self.0.get(name).map(Vec::as_slice);
        tables.with_context(|| format!("docs/results has no record of {name}"))
    }
}

impl Table {
    /// Whether the heading begins with these words.
    pub(super) fn is_below(&self, heading: &str) -> bool {
        self.heading.starts_with(heading)
    }

    /// The rows behind the names of the columns.
    pub(super) fn rows(&self) -> &[Vec<String>] {
        self.rows.get(1..).unwrap_or_default()
    }

    /// Which column has a name.
    pub(super) fn column(&self, name: &str) -> Option<usize> {
        self.rows.first()?.iter().position(|column| column == name)
    }
}

/// The tables of a Markdown text.
fn tables(text: &str) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let (mut heading, mut is_inside) = ("", false);
    for line in text.lines() {
        let Some(cells) = line
            .strip_prefix("| ")
            .and_then(|line| line.strip_suffix(" |"))
        else {
            heading = line.strip_prefix("### ").unwrap_or(heading);
            // The line below the names of the columns begins with `|-`.
            is_inside &= line.starts_with("|-");
            continue;
        };
        let cells = cells.split(" | ").map(|cell| cell.trim().to_owned());
        if !is_inside {
            tables.push(Table {
                heading: heading.to_owned(),
                rows: Vec::new(),
            });
            is_inside = true;
        }
        if let Some(table) = tables.last_mut() {
            table.rows.push(cells.collect());
        }
    }
    tables
}

/// The number that a figure begins with, times in seconds: `2.7 us (p50 0.8 us)` is 0.0000027.
pub(super) fn number(figure: &str) -> Option<f64> {
    let mut words = figure.split_whitespace();
    let number: f64 = words.next()?.trim_matches('*').parse().ok()?;
    let unit = match words.next() {
        Some("ns") => 1e-9,
        Some("us") => 1e-6,
        Some("ms") => 1e-3,
        _ => 1.0,
    };
    Some(number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_found_with_their_headings() {
        let text = "m\n\n### one\n\n| a | b |\n|---|---:|\n| x | 1 |\n\n### two\n\n| c |\n|---|\n";
        let found = tables(text);
        assert_eq!(found.len(), 2);
        assert!(found[0].is_below("one") && found[1].is_below("two"));
        assert_eq!(found[0].rows(), [["x", "1"]]);
        assert_eq!(found[0].column("b"), Some(1));
        assert!(found[1].rows().is_empty());
    }

    #[test]
    fn figures_begin_with_a_number_and_a_unit() {
        let is = |figure, expected: f64| {
            (number(figure).expect("a number") - expected).abs() < expected / 1e9
        };
        assert!(is("2.7 us (p50 0.8 us)", 2.7e-6) && is("3.10 (2.35 to 4.52)", 3.1));
        assert_eq!(number("none asked for"), None);
    }
}

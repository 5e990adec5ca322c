//! **Purpose.** The counts, as numbers for assertions and as a table for people.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;

use super::lines::{Site, Tally};

/// The cost of a number of operations.
#[derive(Clone, Debug)]
pub struct Report {
    cores: usize,
    operations: usize,
    rows: Vec<Row>,
}

/// The accesses to shared lines by one place in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// `file:line` of the access, after the label of the memory if it has one.
    pub name: String,
    /// Accesses that leave copies of other cores valid.
    pub reads: u64,
    /// Accesses that invalidate the copies of all other cores.
    pub writes: u64,
    /// How many of them had to get the line from another core.
    pub transfers: u64,
    /// The write by another core that made the last of these transfers necessary.
    pub after: Option<String>,
}

/// Averages over the operations of a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerOperation {
    /// Lines that moved between cores.
    pub transfers: f64,
    /// Writes to shared locations.
    pub writes: f64,
    /// Reads of shared locations.
    pub reads: f64,
}

impl Report {
    /// The costliest rows come first.
    pub(super) fn new(cores: usize, operations: usize, tallies: BTreeMap<Site, Tally>) -> Self {
        let mut rows: Vec<_> = tallies
            .into_iter()
            .map(|(site, tally)| row(site, tally))
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse((row.transfers, row.writes, row.reads)));
        Self {
            cores,
            operations,
            rows,
        }
    }

    /// All rows, the costliest first.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The number of operations that the counts belong to.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.operations
    }

    /// The number of transfers, the sum of all rows.
    #[must_use]
    pub fn transfers(&self) -> u64 {
        self.rows.iter().map(|row| row.transfers).sum()
    }

    /// The average number of lines an operation moves between cores: the figure that must not grow
    /// with the number of cores.
    #[must_use]
    pub fn transfers_per_op(&self) -> f64 {
        self.per_operation().transfers
    }

    /// The averages.
    #[must_use]
    pub fn per_operation(&self) -> PerOperation {
        PerOperation {
            transfers: self.average(self.transfers()),
            writes: self.average(self.rows.iter().map(|row| row.writes).sum()),
            reads: self.average(self.rows.iter().map(|row| row.reads).sum()),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "an average for people")]
    fn average(&self, sum: u64) -> f64 {
        sum as f64 / self.operations.max(1) as f64
    }
}

fn row(site: Site, tally: Tally) -> Row {
    let place = place(site.location);
    Row {
        name: site
            .label
            .map_or_else(|| place.clone(), |label| format!("{label} @ {place}")),
        reads: tally.reads,
        writes: tally.writes,
        transfers: tally.transfers,
        after: tally.after.map(self::place),
    }
}

fn place(location: &Location<'_>) -> String {
    format!("{}:{}", location.file(), location.line())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} virtual cores, {} operations; per operation:",
            self.cores, self.operations
        )?;
        writeln!(
            f,
            "{:>10} {:>9} {:>9}  location",
            "transfers", "writes", "reads"
        )?;
        let all = self.per_operation();
        writeln!(
            f,
            "{:>10.3} {:>9.3} {:>9.3}  all",
            all.transfers, all.writes, all.reads
        )?;
        for row in &self.rows {
            let [transfers, writes, reads] =
                [row.transfers, row.writes, row.reads].map(|sum| self.average(sum));
            write!(
                f,
                "{transfers:>10.3} {writes:>9.3} {reads:>9.3}  {}",
                row.name
            )?;
            if let Some(after) = &row.after {
                write!(f, ", after a write at {after}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

//! **Purpose.** The cells that were predicted for machines with many cores, beside the published
//! ones, for reports.
//!
//! **Not here.** The prediction, which takes the counting build: `cargo xtask predict --record`
//! writes the values that are read here, and docs/results/predictor.md, which says how far they can
//! be believed.
//!
//! **Invariants.** None of these rates was measured on the machines that they are for.

use serde::{Deserialize, Serialize};

/// A cell: rates of all threads together in operations per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedCell {
    /// The machine.
    pub machine: String,
    /// The file system, or the setting.
    pub what: String,
    /// Threads.
    pub threads: u32,
    /// What was published for the state before the change.
    pub published_base: f64,
    /// What was published with the change.
    pub published_patched: f64,
    /// What is predicted for the state before the change.
    pub base: f64,
    /// What is predicted with the change.
    pub patched: f64,
    /// What is predicted for the defaults of fourscore.
    pub ours: f64,
    /// Whether the model of the machine was fitted on the cell.
    pub is_fitted: bool,
}

const VALUES: &str = include_str!("predicted.csv");

impl PredictedCell {
    /// The cells of a publication, by its short name, in the order of its tables.
    #[must_use]
    pub fn of(source: &str) -> Vec<Self> {
        let lines = VALUES.lines().filter_map(|line| line.split_once(';'));
        let of_source = lines.filter(|(name, _)| *name == source);
        of_source
            .filter_map(|(_, rest)| Self::parse(rest))
            .collect()
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(';');
        let mut field = || fields.next();
        let number = |text: Option<&str>| text?.parse::<f64>().ok();
        Some(Self {
            machine: field()?.to_owned(),
            what: field()?.to_owned(),
            threads: field()?.parse().ok()?,
            published_base: number(field())?,
            published_patched: number(field())?,
            base: number(field())?,
            patched: number(field())?,
            ours: number(field())?,
            is_fitted: field()? == "yes",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_cell() {
        let (s1, s4) = (PredictedCell::of("S1"), PredictedCell::of("S4"));
        assert_eq!(s1.len() + s4.len(), VALUES.lines().count() - 1);
        assert!(s1.len() > s4.len() && !s4.is_empty());
        let all = || s1.iter().chain(&s4);
        assert!(all().all(|cell| cell.base > 0.0 && cell.ours > 0.0));
        assert!(all().any(|cell| cell.is_fitted) && all().any(|cell| !cell.is_fitted));
        assert!(PredictedCell::of("S9").is_empty());
    }
}

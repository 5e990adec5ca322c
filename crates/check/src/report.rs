//! **Purpose.** Collects the findings of all threads, and reports them in a fixed order.
//!
//! **Invariants.** Memory is bounded: at most a given number of findings of each code is kept, the
//! others are counted. Which are kept does not depend on the number of threads: each thread works
//! in the order of objects and keeps its first findings, so the first of all are among them.

use std::collections::BTreeMap;

use crate::finding::{Finding, Pass, Severity};

/// Findings of one thread.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    kept: Vec<Finding>,
    counts: BTreeMap<&'static str, u64>,
    limit: u64,
    /// All that were pushed, also those that were not kept.
    pushed: u64,
}

impl Findings {
    /// No findings; at most `limit` of each code are kept.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// The most findings that are kept of each code.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn push(&mut self, finding: Finding) {
        let count = self.counts.entry(finding.invariant().code).or_default();
        *count += 1;
        self.pushed += 1;
        if *count <= self.limit {
            self.kept.push(finding);
        }
    }

    /// The number of findings, also of those that are not kept.
    pub(crate) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The findings that are kept.
    pub(crate) fn kept(&self) -> &[Finding] {
        &self.kept
    }

    /// Adds the findings of another thread.
    pub(crate) fn merge(&mut self, other: Self) {
        match self.kept.is_empty() {
            true => self.kept = other.kept,
            false => self.kept.extend(other.kept),
        }
        self.pushed += other.pushed;
        for (code, count) in other.counts {
            *self.counts.entry(code).or_default() += count;
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    findings: Vec<Finding>,
    counts: BTreeMap<&'static str, u64>,
    tally: Tally,
}

/// Counts of the objects that were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Inodes in use.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names, `.` and `..` included.
    pub entries: u64,
    /// Blocks in use (clusters times their ratio).
    pub blocks: u64,
}

impl Report {
    pub(crate) fn new(findings: Findings, tally: Tally) -> Self {
        let Findings {
            kept,
            counts,
            limit,
            ..
        } = findings;
        let mut keyed: Vec<_> = kept
            .into_iter()
            .map(|finding| {
                let row = finding.invariant();
                (
                    (row.pass, row.code, finding.subject(), finding.to_string()),
                    finding,
                )
            })
            .collect();
        keyed.sort_by(|a, b| a.0.cmp(&b.0));
        let mut kept_of_code: BTreeMap<&'static str, u64> = BTreeMap::new();
        keyed.retain(|((_, code, ..), _)| {
            let count = kept_of_code.entry(code).or_default();
            *count += 1;
            *count <= limit
        });
        keyed.sort_by(|(a, _), (b, _)| (a.0, a.2, a.1, &a.3).cmp(&(b.0, b.2, b.1, &b.3)));
        Self {
            findings: keyed.into_iter().map(|(_, finding)| finding).collect(),
            counts,
            tally,
        }
    }

    /// The findings by pass and object; of each code at most the number that the options give.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The number of violations of each invariant, by code.
    #[must_use]
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// Counts of the objects that were checked.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Whether no invariant is broken. Notes and warnings do not count.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.worst() != Some(Severity::Error)
    }

    /// The passes with errors.
    pub fn failed_passes(&self) -> impl Iterator<Item = Pass> {
        let mut passes: Vec<_> = Finding::CODES
            .iter()
            .filter(|row| row.severity == Severity::Error && self.counts.contains_key(row.code))
            .map(|row| row.pass)
            .collect();
        passes.dedup();
        passes.into_iter()
    }

    /// The highest severity found.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        let broken = |row: &&crate::Invariant| self.counts.contains_key(row.code);
        let rows = Finding::CODES.iter().filter(broken);
        rows.map(|row| row.severity).max()
    }
}

#[cfg(test)]
mod tests {
    use fourscore_ondisk::InodeNr;

    use super::*;

    fn lost(nr: u32) -> Finding {
        Finding::DirEmpty { inode: InodeNr(nr) }
    }

    #[test]
    fn the_first_findings_of_all_threads_are_kept() {
        let mut all = Findings::new(2);
        for thread in [[5, 9, 11], [1, 6, 7]] {
            let mut findings = Findings::new(2);
            for nr in thread {
                findings.push(lost(nr));
            }
            all.merge(findings);
        }
        let report = Report::new(all, Tally::default());
        assert_eq!(report.findings(), [lost(1), lost(5)]);
        assert_eq!(report.counts()["dir-empty"], 6);
        assert!(!report.is_clean());
        assert_eq!(report.failed_passes().collect::<Vec<_>>(), [Pass::One]);
    }

    #[test]
    fn notes_leave_a_file_system_clean() {
        let mut findings = Findings::new(9);
        findings.push(Finding::Orphan { inode: InodeNr(12) });
        let report = Report::new(findings, Tally::default());
        assert!(report.is_clean() && report.worst() == Some(Severity::Note));
    }
}

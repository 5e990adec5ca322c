//! **Purpose.** What rules report.

use std::fmt;

#[cfg(test)]
use super::source::Source;

/// A place that violates a rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// The name of the rule.
    pub(super) rule: &'static str,
    /// The line, from 1.
    pub(super) line: usize,
    /// What was found, and what to do.
    pub(super) what: String,
}

impl Finding {
    /// A finding of a rule.
    pub(super) fn new(rule: &'static str, line: usize, what: impl fmt::Display) -> Self {
        Self {
            rule,
            line,
            what: what.to_string(),
        }
    }
}

/// Runs one rule on a snippet that stands at `path`; for the tests of the rules.
#[cfg(test)]
pub(super) fn findings_of(
    rule: fn(&Source, &mut Vec<Finding>),
    path: &str,
    text: &str,
) -> Vec<usize> {
    let mut found = Vec::new();
    rule(&Source::new(path, text), &mut found);
    found.into_iter().map(|finding| finding.line).collect()
}

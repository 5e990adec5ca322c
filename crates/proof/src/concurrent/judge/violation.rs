//! **Purpose.** A call with an impossible result, with the calls that explain why.

use std::collections::BTreeSet;
use std::fmt;

use super::super::call::Event;

/// A call with an impossible result.
#[derive(Clone, Debug)]
pub(in crate::concurrent) struct Violation {
    what: String,
    call: Option<Event>,
    /// Calls on the same object that overlap it.
    overlapping: Vec<Event>,
    /// The last calls on the same object that ended before it began.
    before: Vec<Event>,
}

/// The number of earlier calls that are shown.
const SHOWN: usize = 8;

impl Violation {
    /// A violation of one call alone.
    pub(super) fn new(events: &[Event], index: usize, what: String) -> Box<Self> {
        Self::among(events, index, what, &BTreeSet::new())
    }

    /// A violation with the calls `about` the same object that overlap it or came shortly before.
    pub(super) fn among(
        events: &[Event],
        index: usize,
        what: String,
        about: &BTreeSet<usize>,
    ) -> Box<Self> {
        let call = &events[index];
        let others = about.iter().filter(|&&other| other != index);
        let others: Vec<_> = others.map(|&other| &events[other]).collect();
        let overlapping = others.iter().filter(|other| other.overlaps(call));
        let before = others.iter().filter(|other| other.end < call.begin);
        let mut before: Vec<_> = before.collect();
        before.sort_unstable_by_key(|other| other.end);
        let from = before.len().saturating_sub(SHOWN);
        Box::new(Self {
            what,
            call: Some(call.clone()),
            overlapping: overlapping.map(|&event| event.clone()).collect(),
            before: before[from..].iter().map(|&&event| event.clone()).collect(),
        })
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(call) = &self.call {
            write!(f, "\n  call    {call}")?;
        }
        for event in &self.overlapping {
            write!(f, "\n  during  {event}")?;
        }
        for event in &self.before {
            write!(f, "\n  before  {event}")?;
        }
        Ok(())
    }
}

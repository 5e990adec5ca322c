//! **Purpose.** Judges a round: decides whether the results of all calls together are possible.
//!
//! | module | responsibility |
//! |---|---|
//! | `errors` | the errors that a call may return on a healthy file system |
//! | `linear` | whether calls on one object are linearizable |
//! | `names` | names of directories: created, removed, found, listed |
//! | `content` | data that was read from files |
//! | `registers` | sizes and attributes of files |

mod content;
mod errors;
mod linear;
mod names;
mod registers;

use std::collections::BTreeSet;
use std::fmt;

use super::call::Event;

/// Linux's numbers of the errors that the rules name.
pub(super) mod errno {
    pub(crate) const NOENT: i32 = 2;
    pub(crate) const NOMEM: i32 = 12;
    pub(crate) const EXIST: i32 = 17;
    pub(crate) const NOTDIR: i32 = 20;
    pub(crate) const ISDIR: i32 = 21;
    pub(crate) const INVAL: i32 = 22;
    pub(crate) const NOSPC: i32 = 28;
    pub(crate) const NOTEMPTY: i32 = 39;
    pub(crate) const NODATA: i32 = 61;
    pub(crate) const OPNOTSUPP: i32 = 95;
}

/// Facts about a round other than its calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Context {
    /// Directories that are never removed or moved.
    pub(super) permanent: BTreeSet<u64>,
    /// Whether inodes get several names.
    pub(super) has_links: bool,
    /// The number of inodes that are certainly free at the begin.
    pub(super) free_inodes: usize,
    /// Whether the caches may be too small for all threads at once.
    pub(super) tiny_caches: bool,
    /// Whether a size that is read while a call changes it proves nothing.
    pub(super) kernel_keeps_sizes: bool,
    /// Whether files have indirect blocks: ranges are then not preallocated or moved.
    pub(super) pointers: bool,
}

impl Context {
    /// Whether a directory exists during the whole round.
    pub(super) fn is_permanent(&self, dir: u64) -> bool {
        self.permanent.contains(&dir)
    }
}

/// A call with an impossible result.
#[derive(Clone, Debug)]
pub(super) struct Violation {
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
    fn new(events: &[Event], index: usize, what: String) -> Box<Self> {
        Self::among(events, index, what, &BTreeSet::new())
    }

    /// A violation with the calls `about` the same object that overlap it or came shortly before.
    fn among(events: &[Event], index: usize, what: String, about: &BTreeSet<usize>) -> Box<Self> {
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

/// Judges the calls of a round, in the order of their begins.
///
/// # Errors
/// The first call with an impossible result.
pub(super) fn judge(context: &Context, events: &[Event]) -> Result<(), Box<Violation>> {
    errors::judge(context, events)?;
    content::judge(events)?;
    names::judge(context, events)?;
    registers::judge(context, events)
}

#[cfg(test)]
mod tests;

//! **Purpose.** Judging a round: whether what all calls were answered can have been.
//!
//! | module | responsibility |
//! |---|---|
//! | `errors` | which errors a call may be answered with on a healthy file system |
//! | `linear` | whether calls about one object can have happened one after the other |
//! | `names` | names of directories: made, gone, found, listed |
//! | `content` | what was read of a file |
//! | `registers` | sizes and attributes of files |

mod content;
mod errors;
mod linear;
mod names;
mod registers;

use std::collections::BTreeSet;
use std::fmt;

use super::call::{Event, Time};

/// Linux's numbers of the errors that mean something here.
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

/// What the judge knows of a round beside its calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Context {
    /// Directories that nobody removes or moves.
    pub(super) lasting: BTreeSet<u64>,
    /// Whether inodes get second names.
    pub(super) has_links: bool,
    /// So many inodes can be made before there may be none left.
    pub(super) free_inodes: usize,
    /// Whether the caches may be too small for what all threads do at once.
    pub(super) tiny_caches: bool,
    /// Whether sizes that are seen while a call changes them mean nothing.
    pub(super) kernel_keeps_sizes: bool,
    /// Whether files are mapped by pointers: ranges are then not preallocated or moved.
    pub(super) pointers: bool,
}

impl Context {
    /// Whether a directory is there all the time.
    pub(super) fn lasts(&self, dir: u64) -> bool {
        self.lasting.contains(&dir)
    }
}

/// A call that was answered what it cannot have been answered.
#[derive(Clone, Debug)]
pub(super) struct Wrong {
    what: String,
    call: Option<Event>,
    /// Calls about the same object that ran at the same time.
    beside: Vec<Event>,
    /// The last calls about the same object that ended before it began.
    before: Vec<Event>,
}

/// So many calls are shown that ended before.
const SHOWN: usize = 8;

impl Wrong {
    fn new(events: &[Event], index: usize, what: String) -> Box<Self> {
        Self::among(events, index, what, &BTreeSet::new())
    }

    /// Of the calls `about` the same object those are shown that tell how it came.
    fn among(events: &[Event], index: usize, what: String, about: &BTreeSet<usize>) -> Box<Self> {
        let call = &events[index];
        let others = about.iter().filter(|&&other| other != index);
        let others: Vec<_> = others.map(|&other| &events[other]).collect();
        let beside = others.iter().filter(|other| other.overlaps(call));
        let before = others.iter().filter(|other| other.end < call.begin);
        let mut before: Vec<_> = before.collect();
        before.sort_unstable_by_key(|other| other.end);
        let from = before.len().saturating_sub(SHOWN);
        Box::new(Self {
            what,
            call: Some(call.clone()),
            beside: beside.map(|&event| event.clone()).collect(),
            before: before[from..].iter().map(|&&event| event.clone()).collect(),
        })
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(call) = &self.call {
            write!(f, "\n  call    {call}")?;
        }
        for event in &self.beside {
            write!(f, "\n  beside  {event}")?;
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
/// One that was answered what it cannot have been answered.
pub(super) fn judge(context: &Context, events: &[Event]) -> Result<(), Box<Wrong>> {
    errors::judge(context, events)?;
    content::judge(events)?;
    names::judge(context, events)?;
    registers::judge(context, events)
}

/// Before everything and behind everything.
const ALWAYS: (Time, Time) = (0, Time::MAX);

#[cfg(test)]
mod tests;

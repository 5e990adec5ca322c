//! **Purpose.** Judges a round: decides whether the results of all calls together are possible.
//!
//! | module | responsibility |
//! |---|---|
//! | `context` | facts about a round other than its calls |
//! | `violation` | a call with an impossible result, for a report |
//! | `errors` | the errors that a call may return on a healthy file system |
//! | `linear` | whether calls on one object are linearizable |
//! | `names` | names of directories: created, removed, found, listed |
//! | `content` | data that was read from files |
//! | `registers` | sizes and attributes of files |
//! | `space` | the size of the file system, and how full it is |

mod content;
mod context;
mod errors;
mod linear;
mod names;
mod registers;
mod space;
mod violation;

use super::call::Event;
pub(super) use context::{Context, Size, errno};
pub(super) use space::final_blocks;
use violation::Violation;

/// Judges the calls of a round, in the order of their begins.
///
/// # Errors
/// The first call with an impossible result.
pub(super) fn judge(context: &Context, events: &[Event]) -> Result<(), Box<Violation>> {
    errors::judge(context, events)?;
    content::judge(context, events)?;
    names::judge(context, events)?;
    registers::judge(context, events)?;
    space::judge(context, events)
}

#[cfg(test)]
mod tests;

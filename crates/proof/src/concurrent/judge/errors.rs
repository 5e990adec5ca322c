//! **Purpose.** The errors that a call may return on a healthy file system.
//!
//! **Model.** By the time a call reaches the inode of a name, it may be of another type or removed,
//! so most calls on names may fail. No call may report that the file system is corrupted, that the
//! device failed, or that the file system is read-only.

use super::super::call::{Call, Event, Outcome};
use super::context::{Context, errno};
use super::space::Growths;
use super::violation::Violation;

/// Judges the errors of a round.
///
/// # Errors
/// The first error that is not allowed.
pub(super) fn judge(context: &Context, events: &[Event]) -> Result<(), Box<Violation>> {
    let mut made = 0;
    let growths = Growths::of(context, events);
    let spacious = growths.spacious();
    for (index, event) in events.iter().enumerate() {
        made += usize::from(matches!(event.call, Call::Make(..) | Call::Open(_)));
        let inodes_may_be_short = made > context.free_inodes;
        let Outcome::Failed(failure) = &event.outcome else {
            continue;
        };
        if failure.errno == errno::NOSPC && is_making(event.call) && inodes_may_be_short {
            continue;
        }
        if failure.errno == errno::NOSPC && event.begin < spacious && takes_space(event.call) {
            continue;
        }
        if matches!(event.call, Call::GrowFs(_)) && growths.may_fail(index, failure.errno) {
            continue;
        }
        if !may_fail(context, event.call, failure.errno) {
            let what = format!(
                "error {} on a healthy file system: {}",
                failure.errno, failure.text
            );
            return Err(Violation::new(events, index, what));
        }
    }
    Ok(())
}

/// Whether a call may need another block.
fn takes_space(call: Call) -> bool {
    is_making(call)
        || matches!(
            call,
            Call::Link(..)
                | Call::Rename { .. }
                | Call::Exchange(..)
                | Call::Write { .. }
                | Call::Append { .. }
                | Call::Truncate { .. }
                | Call::Change { .. }
                | Call::Copy { .. }
                | Call::RemoveXattr(..)
        )
}

/// Whether a call creates an inode.
fn is_making(call: Call) -> bool {
    matches!(call, Call::Make(..) | Call::Open(_))
}

fn may_fail(context: &Context, call: Call, number: i32) -> bool {
    use errno::{EXIST, INVAL, ISDIR, NODATA, NOENT, NOSPC, NOTDIR, NOTEMPTY};
    match call {
        Call::Make(..) => matches!(number, EXIST | NOENT | NOTDIR),
        Call::Link(..) => matches!(number, EXIST | NOENT | NOTDIR),
        Call::Unlink(_) => matches!(number, NOENT | NOTDIR | ISDIR),
        Call::Rmdir(_) => matches!(number, NOENT | NOTDIR | NOTEMPTY),
        Call::Rename { replaces, .. } => match number {
            EXIST => !replaces,
            _ => matches!(number, NOENT | NOTDIR | ISDIR | NOTEMPTY | INVAL),
        },
        Call::Exchange(..) => matches!(number, NOENT | NOTDIR | NOTEMPTY | INVAL),
        Call::Lookup(at) => match number {
            NOTDIR => !context.is_permanent(at.dir),
            _ => number == NOENT,
        },
        Call::Resolve(_) => number == NOENT,
        Call::List(dir) => !context.is_permanent(dir) && matches!(number, NOENT | NOTDIR),
        Call::StatNumber(nr) => !context.is_permanent(nr) && number == NOENT,
        Call::Change { what, .. } => match number {
            // A range that is collapsed or inserted must lie within the file.
            INVAL => what.moves(),
            errno::OPNOTSUPP => context.pointers,
            _ => false,
        },
        Call::GetXattr(..) | Call::RemoveXattr(..) => number == NODATA,
        Call::SetXattr(..) => number == NOSPC,
        _ => false,
    }
}

//! **Purpose.** Which errors a call may be answered with on a healthy file system.
//!
//! **Model.** What names lead to may be of another type, or gone, by the time a call comes to it,
//! so most calls about names may be refused. No call may be told that what is on the device is
//! broken, that the device failed, or that nothing is written any more.

use super::super::call::{Call, Event, Outcome};
use super::{Context, Wrong, errno};

/// Judges the errors of a round.
///
/// # Errors
/// The first that must not be.
pub(super) fn judge(context: &Context, events: &[Event]) -> Result<(), Box<Wrong>> {
    let mut made = 0;
    for (index, event) in events.iter().enumerate() {
        made += usize::from(matches!(event.call, Call::Make(..) | Call::Open(_)));
        let inodes_may_be_short = made > context.free_inodes;
        let Outcome::Failed(failure) = &event.outcome else {
            continue;
        };
        if failure.errno == errno::NOSPC && is_making(event.call) && inodes_may_be_short {
            continue;
        }
        if !may_fail(context, event.call, failure.errno) {
            let what = format!(
                "error {} on a healthy file system: {}",
                failure.errno, failure.text
            );
            return Err(Wrong::new(events, index, what));
        }
    }
    Ok(())
}

/// Whether a call makes an inode.
fn is_making(call: Call) -> bool {
    matches!(call, Call::Make(..) | Call::Open(_))
}

fn may_fail(context: &Context, call: Call, number: i32) -> bool {
    use errno::{EXIST, INVAL, ISDIR, NODATA, NOENT, NOMEM, NOSPC, NOTDIR, NOTEMPTY};
    if number == NOMEM {
        return context.tiny_caches;
    }
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
            NOTDIR => !context.lasts(at.dir),
            _ => number == NOENT,
        },
        Call::Resolve(_) => number == NOENT,
        Call::List(dir) => !context.lasts(dir) && matches!(number, NOENT | NOTDIR),
        Call::StatNumber(nr) => !context.lasts(nr) && number == NOENT,
        Call::Change { what, .. } => match number {
            // A range to be moved has to lie inside of the file.
            INVAL => what.moves(),
            errno::OPNOTSUPP => context.pointers,
            _ => false,
        },
        Call::GetXattr(..) | Call::RemoveXattr(..) => number == NODATA,
        Call::SetXattr(..) => number == NOSPC,
        _ => false,
    }
}

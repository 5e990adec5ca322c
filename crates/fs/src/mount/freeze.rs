//! **Purpose.** Freezing: the file system stands still and its device holds all of it, so that a
//! copy of the device needs no recovery, until it is thawed.
//!
//! **Model.** Whoever changes something is *inside* while he does: a plan from its beginning to its
//! end, with the data that is written for it. Freezing lets nobody in any more, waits until all are
//! out, commits, brings everything to its place and says on the device that nothing is left to be
//! recovered. Who wants in meanwhile waits.
//!
//! ```text
//! thawed -> freezing: nobody comes in, all leave -> frozen -> thawed
//! ```
//!
//! **Invariants.** *Nobody is inside while it is frozen.* Coming in and freezing are the two sides
//! of Dekker's protocol: each writes its own word, then reads the other's, with a full fence
//! between. So at least one sees the other.
//!
//! **Locking.** Coming in and leaving write a word of this core and read one that is written by
//! freezing alone. Who waits inside of nothing holds locks of inodes while he waits, as in Linux;
//! nobody comes in twice, since he would wait for himself.
//!
//! **Crash safety.** While it is frozen the device holds a file system that was left clean, but for
//! open files without names, which are on record.
//!
//! **References.** fsfreeze(8); ioctl `FIFREEZE`, `FITHAW`.

use crate::Result;
use crate::inode::lazy_times;
use crate::mount::errors;
use crate::mount::freezer::Rest;
use crate::mount::mark::{self, Mounted};
use crate::mount::state::Mount;

/// See [`Fs::freeze`](crate::Fs::freeze).
pub(crate) fn freeze(mount: &Mount) -> Result<()> {
    errors::noting(mount, stand_still(mount))
}

fn stand_still(mount: &Mount) -> Result<()> {
    lazy_times::write_times(mount)?;
    mount.freezer().close()?;
    match settle(mount) {
        Ok(()) => {
            mount.freezer().set_frozen();
            Ok(())
        }
        Err(error) => {
            mount.rest_mmp(Rest::Ends);
            mount.freezer().open();
            Err(error)
        }
    }
}

/// Brings everything to its place, and says so on the device.
fn settle(mount: &Mount) -> Result<()> {
    mount.journal().quiesce()?;
    mount.rest_mmp(Rest::Begins);
    let left = Mounted::left_behind(mount.orphans());
    mark::mark(
        &*mount.core.device,
        mount.core.superblock(),
        left,
        Some(mount.free_on_disk()),
    )?;
    Ok(mount.core.device.flush()?)
}

/// See [`Fs::thaw`](crate::Fs::thaw).
pub(crate) fn thaw(mount: &Mount) -> Result<()> {
    mount.freezer().begin_thaw()?;
    if let Err(error) = mark::mark(
        &*mount.core.device,
        mount.core.superblock(),
        Mounted::Again,
        None,
    ) {
        mount.freezer().set_frozen();
        return Err(error);
    }
    mount.rest_mmp(Rest::Ends);
    mount.freezer().open();
    Ok(())
}

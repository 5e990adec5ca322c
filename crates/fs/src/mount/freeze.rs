//! **Purpose.** Freezing: until it is thawed the file system does not change and its device holds
//! all of it, so that a copy of the device needs no recovery.
//!
//! **Model.** A thread is *inside* while it changes something: during a plan from its beginning to
//! its end, and during the write of the plan's data. Freezing admits no thread any more, waits
//! until all threads have left, commits, checkpoints everything and marks the device as clean.
//! Threads that want to enter meanwhile wait.
//!
//! ```text
//! thawed -> freezing: no operation enters, all leave -> frozen -> thawed
//! ```
//!
//! **Invariants.** *No thread is inside while the file system is frozen.* Entering and freezing are
//! the two sides of Dekker's protocol: each writes its own word, then reads the other's, all in one
//! total order. So at least one sees the other.
//!
//! **Locking.** Entering and leaving write a word of this core and read one that only freezing
//! writes. A thread that waits to enter may hold locks of inodes, as in Linux. No thread enters
//! twice, since it would wait for itself.
//!
//! **Crash safety.** While it is frozen the device holds a file system that was cleanly unmounted,
//! except for open files without names, which are on the orphan list.
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

/// Checkpoints everything, and marks the device as clean.
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

//! **Purpose.** Gives back the space that is preallocated for one file when writing it has ended.
//!
//! **Model.** The allocator claims as much as a file is likely to need, in memory only. As long as
//! a file is open this keeps it in one piece; afterwards it would split the free space for nothing.
//! Linux gives it back when the last writer closes the file, too.
//!
//! **Locking.** The inode's lock guards the preallocation.

use fourscore_ondisk::InodeNr;

use crate::Result;
use crate::inode::cache;
use crate::inode::cell::Changing;
use crate::mount::state::Mount;

/// Gives back what is preallocated for the file whose state this is.
pub(crate) fn give_back(mount: &Mount, locked: &Changing) {
    if let Some(file) = &locked.prealloc {
        mount.allocator().discard(file);
    }
}

/// See [`Fs::end_writing`](crate::Fs::end_writing).
pub(crate) fn end_writing(mount: &Mount, inode: InodeNr) -> Result<()> {
    let pinned = cache::pin_inode(&mount.core, inode)?;
    // A thread that holds the lock is most likely writing.
    if let Some(locked) = pinned.try_lock() {
        give_back(mount, &locked);
    }
    Ok(())
}

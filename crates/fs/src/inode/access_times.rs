//! **Purpose.** Times of the last access: when one is due, and noting it.
//!
//! **Not here.** Who reads. Reading writes nothing, so that readers do not meet; a server that
//! speaks for programs says afterwards what was read ([`Fs::accessed`]).
//!
//! **Model.** With [`AccessTimes::Relative`] an access is noted if none was since the last change,
//! or for a day: enough to tell whether a file was read since it was written, and seldom a write.
//!
//! **Locking.** The inode's lock, if a time is due; none otherwise.
//!
//! **References.** mount(8), `relatime`.

use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{InodeNr, Timestamp};
use fourscore_sync::epoch;

use crate::inode::cache::CachedInode;
use crate::mount::writer::now;
use crate::txn::apply::Show;
use crate::txn::plan::Plan;
use crate::{FileType, Fs, Result};

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;

/// When accesses are noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// The first after each change, and one a day.
    #[default]
    Relative,
    /// Each.
    Strict,
    /// None.
    Never,
}

impl AccessTimes {
    fn is_due(self, inode: &CachedInode, now: Timestamp) -> bool {
        let on_disk = inode.on_disk();
        let atime = on_disk.atime();
        if self == Self::Never || inode.has(InodeFlags::NOATIME_FL) || atime == now {
            return false;
        }
        self == Self::Strict
            || atime <= on_disk.mtime()
            || atime <= on_disk.ctime()
            || now.seconds().saturating_sub(atime.seconds()) >= SECONDS_PER_DAY
    }
}

impl Fs {
    /// Says that the content of `inode` was read: its time of last access becomes now, if the mount
    /// and the inode want that. Costs a look at the inode if not.
    ///
    /// # Errors
    /// `NotFound`, `ReadOnly`, `Io`.
    pub fn accessed(&self, inode: InodeNr) -> Result<()> {
        self.noting(self.change_access_time(inode))
    }

    fn change_access_time(&self, inode: InodeNr) -> Result<()> {
        let writer = self.writer()?;
        let now = now();
        let is_due = |inode: &CachedInode| {
            let skipped = writer.skips_directories() && inode.file_type() == FileType::Directory;
            !skipped && writer.access_times().is_due(inode, now)
        };
        if !is_due(self.inode(inode, &epoch::pin())?) {
            return Ok(());
        }
        let pinned = self.pin_inode(inode)?;
        let locked = pinned.lock();
        if !is_due(pinned.version(&epoch::pin())?) {
            return Ok(());
        }
        let mut plan = Plan::new(self, writer);
        let slot = plan.slot(inode)?;
        plan.edit(slot, |inode| inode.set_atime(now))?;
        // To read is not to change: `i_version` stays.
        let version = CachedInode::new(plan.inode(slot)?, self)?;
        // The slot of a directory is changed by several at once, who start from what it holds.
        if let Some(times) = writer.lazy_times()
            && version.file_type() != FileType::Directory
        {
            drop(plan);
            return self.publish_times(times, (&pinned, &locked), version);
        }
        plan.carry_out_showing(&[&locked.last], Show::of(&[&pinned]), || {
            pinned.publish(Some(version));
        })?;
        Ok(())
    }
}

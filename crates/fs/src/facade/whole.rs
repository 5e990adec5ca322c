//! **Purpose.** The file system as a whole: opening, mounting, statistics, maintenance.

use fourscore_block::BlockDevice;
use fourscore_journal::JournalStats;
use fourscore_mballoc::Tunables;
use fourscore_mballoc::stats::Tally;
use fourscore_ondisk::group::GroupDesc;
use fourscore_ondisk::{GroupNr, InodeNr};
use fourscore_sync::Arc;
use fourscore_sync::rank::Waits;

use crate::group::descriptor::{self, Bitmap};
use crate::inode::orphan_list;
use crate::mount::options::MountOptions;
use crate::mount::statfs::{self, StatFs};
use crate::mount::trim::{self, Trim};
use crate::mount::{freeze, open, read_write, superblock};
use crate::txn::order;
use crate::{Error, Fs, OpenOptions, Result};

impl Fs {
    /// Opens the file system on `device` for reading. Fields of the superblock that are wrong and
    /// that reading does not depend on do not keep it from that
    /// ([`Superblock::faults`](fourscore_ondisk::superblock::Superblock::faults)).
    ///
    /// # Errors
    /// `Refused` for what is not ext2, ext3 or ext4, or has features that forbid reading;
    /// `Corrupt` for a superblock or a journal that breaks the format, and for a device shorter
    /// than the file system; `JournalNotGiven` if the journal is dirty and on a device that was
    /// not given, and `MountOption` if a device was given for a journal that is not on one; `Io`.
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Arc<Self>> {
        let core = Arc::new(open::open(device, options)?);
        Ok(Arc::new(Self { core, mount: None }))
    }

    /// Opens the file system on `device` for reading and writing. A dirty journal is replayed
    /// first. Nothing else may write to the device meanwhile.
    ///
    /// A file system without a journal is written as well. What is durable and what is not is the
    /// same; but after a crash it has to be checked (`e2fsck`) before it is mounted again.
    ///
    /// # Errors
    /// As [`Fs::open`]; `ReadOnly` for a file system with a feature that is read but not written,
    /// which is named, and for one without a journal that has to be checked first; `InUse` if
    /// another host has it mounted (feature `mmp`). If the last host did not unmount it, this
    /// waits for some twenty seconds to see whether that host still writes.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "as `open`: the file system keeps it"
    )]
    pub fn mount(device: Arc<dyn BlockDevice>, options: &MountOptions) -> Result<Arc<Self>> {
        let mount = read_write::mount(&device, options)?;
        let core = Arc::clone(&mount.core);
        Ok(Arc::new(Self {
            core,
            mount: Some(mount),
        }))
    }

    /// Ends writing: everything is brought to its place, and the journal, if there is one, is left
    /// empty.
    ///
    /// # Errors
    /// `InvalidArgument` while somebody else holds the file system; `Io` if the device fails; the
    /// image is left to be recovered then.
    pub fn unmount(self: Arc<Self>) -> Result<()> {
        let fs = Arc::try_unwrap(self)
            .map_err(|_| Error::InvalidArgument("the file system is in use"))?;
        fs.mount.map_or(Ok(()), read_write::unmount)
    }

    /// The allocator's tunables, which can be changed while the file system is mounted: a change
    /// counts for every request that begins after it.
    ///
    /// # Errors
    /// `ReadOnly` for a file system that was opened for reading.
    pub fn tunables(&self) -> Result<&Tunables> {
        Ok(self.writable()?.allocator().tunables())
    }

    /// How many groups have their buddy in memory; see [`MountOptions::buddy_bytes`].
    ///
    /// # Errors
    /// `ReadOnly` for a file system that was opened for reading.
    pub fn groups_loaded(&self) -> Result<u32> {
        let absent = self.writable()?.allocator().absent_groups();
        Ok(self.geometry().groups().saturating_sub(absent))
    }

    /// What the journal did since the mount.
    ///
    /// # Errors
    /// `ReadOnly` for a file system that was opened for reading.
    pub fn journal_stats(&self) -> Result<JournalStats> {
        Ok(self.writable()?.journal().stats())
    }

    /// The allocator's figures so far, under the names of `mb_stats`.
    ///
    /// # Errors
    /// `ReadOnly` for a file system that was opened for reading.
    pub fn mb_stats(&self) -> Result<Tally> {
        Ok(self.writable()?.allocator().mb_stats())
    }

    /// How many plans were begun anew so far, because a block that they change had left the cache
    /// when they were carried out, or because a new transaction had begun. No operation begins
    /// anew more than 64 times.
    ///
    /// # Errors
    /// `ReadOnly` for a file system that was opened for reading.
    pub fn plans_begun_anew(&self) -> Result<u64> {
        Ok(self.writable()?.retries.sum())
    }

    /// How often and how long locks of each kind were waited for, by their names: in this process,
    /// of all its file systems together. Who does not wait is not counted.
    pub fn lock_waits() -> impl Iterator<Item = (&'static str, Waits)> {
        order::ALL
            .into_iter()
            .map(|rank| (rank.name(), rank.waits()))
    }

    /// Returns the inodes on the orphan list: the chain from its head on, then the orphan file.
    ///
    /// # Errors
    /// `Corrupt` for a chain that forms a loop, and for an orphan file that breaks the format or is
    /// longer than 8 MiB.
    pub fn orphans(&self) -> Result<Vec<InodeNr>> {
        match &self.mount {
            Some(mount) => Ok(mount
                .orphans()
                .all()
                .into_iter()
                .map(|(nr, _)| nr)
                .collect()),
            None => orphan_list::orphans(&self.core),
        }
    }

    /// The descriptor of a group.
    ///
    /// # Errors
    /// `InvalidArgument` for a group the file system does not have; `Corrupt` for a descriptor
    /// whose checksum or content is wrong.
    pub fn group(&self, group: GroupNr) -> Result<GroupDesc> {
        descriptor::desc(&self.core, group)
    }

    /// Which clusters of a group are in use.
    ///
    /// # Errors
    /// `Corrupt` if the bitmap's checksum is wrong.
    pub fn block_bitmap(&self, group: GroupNr) -> Result<Bitmap> {
        descriptor::block_bitmap(&self.core, group)
    }

    /// Which inodes of a group are in use.
    ///
    /// # Errors
    /// `Corrupt` if the bitmap's checksum is wrong.
    pub fn inode_bitmap(&self, group: GroupNr) -> Result<Bitmap> {
        descriptor::inode_bitmap(&self.core, group)
    }

    /// Freezes the file system (`FIFREEZE`): when this returns, everything is durable and in its
    /// place, and a copy of the device mounts without recovery. Whoever changes something waits
    /// until [`Fs::thaw`]; who reads does not.
    ///
    /// # Errors
    /// `Busy` if it is frozen already; `Io`, and then it is not frozen; `ReadOnly`.
    pub fn freeze(&self) -> Result<()> {
        freeze::freeze(self.writable()?)
    }

    /// Thaws the file system (`FITHAW`).
    ///
    /// # Errors
    /// `InvalidArgument` if it is not frozen; `Io`, and then it still is; `ReadOnly`.
    pub fn thaw(&self) -> Result<()> {
        freeze::thaw(self.writable()?)
    }

    /// How full the file system is: as it is now if it is mounted for writing; else every group
    /// descriptor is read.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn statfs(&self) -> Result<StatFs> {
        statfs::statfs(&self.core)
    }

    /// The name of the volume as it is now, in bytes that are no text for certain.
    ///
    /// # Errors
    /// Those of the device.
    pub fn label(&self) -> Result<Vec<u8>> {
        superblock::label(&self.core)
    }

    /// Names the volume (`FS_IOC_SETFSLABEL`), in the primary superblock. Durable after the next
    /// [`Fs::sync`].
    ///
    /// # Errors
    /// `InvalidArgument` for more than 16 bytes, or a zero among them; `ReadOnly`.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        superblock::set_label(self.writable()?, label)
    }

    /// Tells the device which blocks of a range are free (`FITRIM`), and returns how many bytes
    /// that were. What was told before, and was not used since, is not told again; a group counts
    /// as told only when all of it was.
    ///
    /// Others go on meanwhile. Of a file system that is all but full they may be told that there
    /// is no space while the last of it is being trimmed.
    ///
    /// # Errors
    /// `InvalidArgument` for a range behind the end or of less than a block, and for a least length
    /// that no group has; `Unsupported` if the device does not give space back; `Io`, `ReadOnly`.
    pub fn trim(&self, what: &Trim) -> Result<u64> {
        trim::trim(self.writable()?, what)
    }
}

//! **Purpose.** The file system as a whole: opening, mounting, maintenance.
//!
//! **Not here.** The work itself: most calls pass the core or the mount to a module of `mount`.
//! Statistics ([`crate::facade::stats`]).
//!
//! **Invariants.** Calls that need a read-write mount fail with `ReadOnly` if the file system was
//! opened for reading.

use fourscore_block::BlockDevice;
use fourscore_mballoc::Tunables;
use fourscore_ondisk::group::GroupDesc;
use fourscore_ondisk::{GroupNr, InodeNr};
use fourscore_sync::Arc;
use fourscore_sync::rank::Waits;
use uuid::Uuid;

use crate::group::descriptor::{self, Bitmap};
use crate::inode::orphan_list;
use crate::mount::options::MountOptions;
use crate::mount::statfs::{self, StatFs};
use crate::mount::trim::{self, Trim};
use crate::mount::tune;
use crate::mount::{freeze, open, read_write, superblock};
use crate::txn::order;
use crate::{Error, Fs, OpenOptions, Result};

impl Fs {
    /// Opens the file system on `device` for reading. Wrong fields of the superblock on which
    /// reading does not depend do not prevent that
    /// ([`Superblock::faults`](fourscore_ondisk::superblock::Superblock::faults)).
    ///
    /// # Errors
    /// `Refused` for a device without ext2, ext3 or ext4, or with features that forbid reading;
    /// `Corrupt` for a superblock or a journal that breaks the format, and for a device shorter
    /// than the file system; `JournalNotGiven` if the journal is dirty and on a device that was not
    /// given, and `MountOption` if a device was given for a journal that is not on one; `Io`.
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Arc<Self>> {
        let core = Arc::new(open::open(device, options)?);
        Ok(Arc::new(Self { core, mount: None }))
    }

    /// Opens the file system on `device` for reading and writing. A dirty journal is replayed
    /// first. Nothing else may write to the device meanwhile.
    ///
    /// A file system without a journal can be written, too. Its calls give the same guarantees of
    /// durability; but after a crash it has to be checked (`e2fsck`) before it is mounted again.
    ///
    /// # Errors
    /// As [`Fs::open`]; `ReadOnly` for a file system with a feature that is read but not written,
    /// which is named, and for one without a journal that has to be checked first; `InUse` if
    /// another host has it mounted (feature `mmp`). If the last host did not unmount it, this waits
    /// for some twenty seconds to find out whether that host still writes.
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

    /// Unmounts a read-write mount: writes all changes to their home locations, and leaves the
    /// journal, if there is one, empty.
    ///
    /// # Errors
    /// `InvalidArgument` while there is another reference to the file system; `Io` if the device
    /// fails: then the image needs recovery.
    pub fn unmount(self: Arc<Self>) -> Result<()> {
        let fs = Arc::try_unwrap(self)
            .map_err(|_| Error::InvalidArgument("the file system is in use"))?;
        fs.mount.map_or(Ok(()), read_write::unmount)
    }

    /// Returns the allocator's tunables, which can be changed while the file system is mounted: a
    /// change applies to every request that begins after it.
    ///
    /// # Errors
    /// `ReadOnly` for a file system that was opened for reading.
    pub fn tunables(&self) -> Result<&Tunables> {
        Ok(self.writable()?.allocator().tunables())
    }

    /// Sets a tunable by name: one of [`Fs::tunables`], or `inode_readahead_blks`, the number of
    /// blocks of an inode table that are read together (0 or a power of two).
    ///
    /// # Errors
    /// `Tunable` for an unknown name and for a value out of bounds; `InvalidArgument` for another
    /// value that the tunable cannot have; `ReadOnly` for a tunable of the allocator in a file
    /// system that was opened for reading.
    pub fn tune(&self, name: &str, value: u32) -> Result<()> {
        let tunables = self.tunables().ok();
        tune::set(tunables, &self.core.inode_readahead, name, value)
    }

    /// Returns the values of all tunables, by name.
    #[must_use]
    pub fn tunable_values(&self) -> Vec<(&'static str, u32)> {
        tune::values(self.tunables().ok(), &self.core.inode_readahead)
    }

    /// Returns how often and how long threads waited for locks of each kind, with the names of the
    /// kinds: in this process, for all its file systems together. A lock that is taken without
    /// waiting is not counted.
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

    /// Returns the descriptor of a group.
    ///
    /// # Errors
    /// `InvalidArgument` for a group that the file system does not have; `Corrupt` for a descriptor
    /// whose checksum or content is wrong.
    pub fn group(&self, group: GroupNr) -> Result<GroupDesc> {
        descriptor::desc(&self.core, group)
    }

    /// Returns which clusters of a group are in use.
    ///
    /// # Errors
    /// `Corrupt` if the bitmap's checksum is wrong.
    pub fn block_bitmap(&self, group: GroupNr) -> Result<Bitmap> {
        descriptor::block_bitmap(&self.core, group)
    }

    /// Returns which inodes of a group are in use.
    ///
    /// # Errors
    /// `Corrupt` if the bitmap's checksum is wrong.
    pub fn inode_bitmap(&self, group: GroupNr) -> Result<Bitmap> {
        descriptor::inode_bitmap(&self.core, group)
    }

    /// Freezes the file system (`FIFREEZE`): when this returns, all changes are durable and in
    /// their home locations, and a copy of the device mounts without recovery. Calls that change
    /// something wait until [`Fs::thaw`]; calls that read do not.
    ///
    /// # Errors
    /// `Busy` if it is frozen already; `Io`, in which case it is not frozen; `ReadOnly`.
    pub fn freeze(&self) -> Result<()> {
        freeze::freeze(self.writable()?)
    }

    /// Thaws the file system (`FITHAW`).
    ///
    /// # Errors
    /// `InvalidArgument` if it is not frozen; `Io`, in which case it stays frozen; `ReadOnly`.
    pub fn thaw(&self) -> Result<()> {
        freeze::thaw(self.writable()?)
    }

    /// Returns how full the file system is. If it is mounted for writing, the figures are those of
    /// now; otherwise every group descriptor is read.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn statfs(&self) -> Result<StatFs> {
        statfs::statfs(&self.core)
    }

    /// Returns the current name of the volume, as bytes that need not be text.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn label(&self) -> Result<Vec<u8>> {
        superblock::label(&self.core)
    }

    /// Sets the name of the volume (`FS_IOC_SETFSLABEL`), in the primary superblock. Durable after
    /// the next [`Fs::sync`].
    ///
    /// # Errors
    /// `InvalidArgument` for more than 16 bytes, or a zero byte among them; `ReadOnly`.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        superblock::set_label(self.writable()?, label)
    }

    /// Sets the UUID (`EXT4_IOC_SETFSUUID`), in the primary superblock. Durable after the next
    /// [`Fs::sync`]; [`Fs::superblock`] has it after the next mount.
    ///
    /// With `metadata_csum` this sets the feature `metadata_csum_seed`, without which all checksums
    /// would depend on the UUID; Linux knows it since 4.4.
    ///
    /// # Errors
    /// `Unsupported` for a file system whose checksums depend on the UUID otherwise (`uninit_bg`
    /// without `metadata_csum`), or whose hashes of values do (`ea_inode` without a stored seed),
    /// or with the feature `stable_inodes`; `ReadOnly`.
    pub fn set_uuid(&self, uuid: Uuid) -> Result<()> {
        superblock::set_uuid(self.writable()?, uuid)
    }

    /// Discards the free blocks of a range (`FITRIM`), and returns how many bytes were discarded.
    /// Blocks that were discarded before, and were not used since, are not discarded again; a group
    /// counts as discarded only when all its free blocks were.
    ///
    /// Other operations continue meanwhile. If the file system is almost full, they may fail with
    /// `NoSpace` while the last free space is being discarded.
    ///
    /// # Errors
    /// `InvalidArgument` for a range after the end or shorter than a block, and for a minimum
    /// length that no group has; `Unsupported` if the device does not support discard; `Io`,
    /// `ReadOnly`.
    pub fn trim(&self, what: &Trim) -> Result<u64> {
        trim::trim(self.writable()?, what)
    }
}

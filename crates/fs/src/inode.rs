//! **Purpose.** Inodes in memory: decoded once, checked once, read by everyone.
//!
//! **Model.** An inode is named by its number and lives in the inode cache. Loading it reads the
//! descriptor of its group and one block of the inode table, verifies the checksum, decides once
//! how its content is laid out, and checks the root of its map. What follows asks only the result.
//!
//! **Locking.** A hit writes nothing. A miss takes the cache shard's lock to insert, never across
//! the read of the table.

use fourscore_ondisk::checksum::InodeSeed;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inode::{DeviceNr, FileMode, FileType, Inode, InodeFlags};
use fourscore_ondisk::time::Timestamp;
use fourscore_ondisk::xattr::Xattrs;
use fourscore_ondisk::{Corrupt, InodeNr, blockmap, extent};
use fourscore_sync::Arc;
use fourscore_sync::epoch::{self, Guard};

use crate::fast_commit::{InodeChange, InodePatch};
use crate::{Error, Fs, Result};

/// How the content of an inode is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// An extent tree with its root in `i_block`.
    Extents,
    /// Direct and indirect pointers in `i_block`.
    BlockMap,
    /// In `i_block`, going on in the attribute `system.data`.
    Inline,
    /// A symbolic link whose target is in `i_block`.
    FastSymlink,
    /// Nothing: devices, pipes, sockets.
    Nothing,
}

/// A decoded inode.
#[derive(Debug)]
pub(crate) struct CachedInode {
    inode: Inode,
    file_type: FileType,
    layout: Layout,
    seed: Option<InodeSeed>,
}

impl CachedInode {
    /// Decides the layout of `inode` and checks the root of its map.
    fn new(inode: Inode, fs: &Fs) -> Result<Self> {
        let nr = inode.number();
        // A free inode has no type; one that was deleted keeps it, without a link.
        let file_type = inode.file_type().ok_or(Error::NotFound)?;
        if inode.links_count() == 0 && inode.dtime() != 0 {
            return Err(Error::NotFound);
        }
        let layout = layout(&inode, file_type, fs);
        let physical = fs.data_blocks();
        match layout {
            Layout::Extents => extent::check_root(inode.i_block(), &physical)
                .map_err(|error| Corrupt::from(error).in_inode(nr))?,
            Layout::BlockMap => blockmap::check_root(inode.i_block(), &physical)
                .map_err(|error| Corrupt::from(error).in_inode(nr))?,
            Layout::Inline | Layout::FastSymlink | Layout::Nothing => {}
        }
        let seed = fs
            .superblock()
            .has_metadata_csum()
            .then(|| inode.checksum_seed());
        Ok(Self {
            inode,
            file_type,
            layout,
            seed,
        })
    }

    /// The inode as it is on disk.
    pub(crate) fn on_disk(&self) -> &Inode {
        &self.inode
    }

    pub(crate) fn nr(&self) -> InodeNr {
        self.inode.number()
    }

    pub(crate) fn file_type(&self) -> FileType {
        self.file_type
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// The seed of the checksums of its blocks; `None` without `metadata_csum`.
    pub(crate) fn seed(&self) -> Option<InodeSeed> {
        self.seed
    }

    /// The size of its content.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.inode.size_bytes()
    }

    /// The root of its map, or its content or target.
    pub(crate) fn i_block(&self) -> &[u8] {
        self.inode.i_block()
    }

    /// Whether its content is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.has(InodeFlags::ENCRYPT_FL)
    }

    pub(crate) fn has(&self, flag: InodeFlags) -> bool {
        self.inode.flags().contains(flag)
    }

    /// Bytes of heap and inline memory, for the cache's budget.
    fn weight_bytes(&self) -> usize {
        size_of::<Self>() + self.inode.raw_tail().len()
    }
}

fn layout(inode: &Inode, file_type: FileType, fs: &Fs) -> Layout {
    match file_type {
        FileType::Regular | FileType::Directory | FileType::Symlink => {}
        _ => return Layout::Nothing,
    }
    let flags = inode.flags();
    let inline_data = fs
        .superblock()
        .features()
        .incompat
        .contains(Incompat::INLINE_DATA);
    if inline_data && flags.contains(InodeFlags::INLINE_DATA_FL) {
        Layout::Inline
    } else if file_type == FileType::Symlink && has_no_data_blocks(inode, fs) {
        Layout::FastSymlink
    } else if flags.contains(InodeFlags::EXTENTS_FL) {
        Layout::Extents
    } else {
        Layout::BlockMap
    }
}

/// Whether all the space an inode takes is its xattr block. That, not its size, tells a fast
/// symbolic link: a short one may have been written as a slow one.
fn has_no_data_blocks(inode: &Inode, fs: &Fs) -> bool {
    let cluster_sectors = (fs.geometry().cluster_size_bytes() / 512) as u64;
    let xattr_sectors = inode.file_acl().map_or(0, |_| cluster_sectors);
    inode.sectors() <= xattr_sectors
}

/// What is known of an inode without looking at its content: `stat`, and what ext4 adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its number.
    pub inode: InodeNr,
    /// Its type.
    pub file_type: FileType,
    /// Type and permissions.
    pub mode: FileMode,
    /// The user that owns it.
    pub uid: u32,
    /// The group that owns it.
    pub gid: u32,
    /// The project it counts for; 0 without the feature `project`.
    pub project_id: u32,
    /// Names that lead to it; 1 in a directory may mean "too many to count".
    pub links: u16,
    /// The size of its content.
    pub size_bytes: u64,
    /// The space it takes, in units of 512 bytes.
    pub sectors: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation; `None` where the inode has no room for it.
    pub crtime: Option<Timestamp>,
    /// The device number of a device node.
    pub device: Option<DeviceNr>,
    /// Flags, as `lsattr` shows them.
    pub flags: InodeFlags,
    /// Tells lives of the same number apart.
    pub generation: u32,
    /// `i_version`: changes whenever the inode does.
    pub version: u64,
}

/// What a scan learns of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// What is known of it.
    pub stat: Stat,
    /// Whether it may have extended attributes.
    pub has_xattrs: bool,
}

impl Fs {
    /// What is known of `inode`.
    ///
    /// # Errors
    /// `NotFound` if no such inode is in use.
    pub fn stat(&self, inode: InodeNr) -> Result<Stat> {
        let guard = epoch::pin();
        self.stat_of(self.inode(inode, &guard)?, &guard)
    }

    /// As [`Fs::stat`], for whoever asks for many inodes once, such as a walk of the whole tree:
    /// the inode does not enter the cache, which costs more than decoding it. Also tells whether
    /// it is worth asking for extended attributes.
    ///
    /// # Errors
    /// As [`Fs::stat`].
    pub fn scan(&self, inode: InodeNr) -> Result<Scanned> {
        let guard = epoch::pin();
        let loaded;
        let inode = match self.inodes.get(&inode, &guard) {
            Some(cached) => cached,
            None => {
                loaded = self.uncached_inode(inode)?;
                &loaded
            }
        };
        let area = inode.on_disk().xattr_area().unwrap_or_default();
        let has_xattrs = inode.on_disk().file_acl().is_some()
            || Xattrs::in_inode(area).entries().next().is_some();
        let stat = self.stat_of(inode, &guard)?;
        Ok(Scanned { stat, has_xattrs })
    }

    /// Inode `nr` for a scan that will not come back to it.
    pub(crate) fn uncached_inode(&self, nr: InodeNr) -> Result<CachedInode> {
        CachedInode::new(self.load_inode(nr)?, self)
    }

    fn stat_of(&self, cached: &CachedInode, guard: &Guard) -> Result<Stat> {
        let on_disk = cached.on_disk();
        Ok(Stat {
            inode: cached.nr(),
            file_type: cached.file_type(),
            mode: on_disk.mode(),
            uid: on_disk.uid(),
            gid: on_disk.gid(),
            project_id: on_disk.project_id(),
            links: on_disk.links_count(),
            size_bytes: self.shown_size(cached, guard)?,
            sectors: on_disk.sectors(),
            atime: on_disk.atime(),
            mtime: on_disk.mtime(),
            ctime: on_disk.ctime(),
            crtime: on_disk.crtime(),
            device: on_disk.device(),
            flags: on_disk.flags(),
            generation: on_disk.generation().0,
            version: on_disk.version(),
        })
    }

    /// The size that users see: of an encrypted symbolic link that of its target as it is shown
    /// without the key, as in Linux.
    fn shown_size(&self, inode: &CachedInode, guard: &Guard) -> Result<u64> {
        if inode.file_type() == FileType::Symlink && inode.is_encrypted() {
            return Ok(self.link_target(inode, guard)?.len() as u64);
        }
        Ok(inode.size_bytes())
    }

    /// The inode with this number, from the cache or the disk; it lives as long as the guard.
    pub(crate) fn inode<'g>(&self, nr: InodeNr, guard: &'g Guard) -> Result<&'g CachedInode> {
        loop {
            if let Some(cached) = self.inodes.get(&nr, guard) {
                return Ok(cached);
            }
            self.inodes.get_or_try_load(&nr, || {
                let cached = self.uncached_inode(nr)?;
                let weight_bytes = cached.weight_bytes();
                Ok::<_, Error>((Arc::new(cached), weight_bytes))
            })?;
            // Found by the next turn, unless the cache was so short of room that it left again.
        }
    }

    /// Inode `nr` as fast commits left it, or from its table.
    pub(crate) fn load_inode(&self, nr: InodeNr) -> Result<Inode> {
        match self.inode_change(nr) {
            None => self.inode_on_disk(nr, None),
            Some(InodeChange::Patched(patch)) => self.inode_on_disk(nr, Some(patch)),
            Some(InodeChange::Deleted) => Err(Error::NotFound),
        }
    }

    /// Reads inode `nr` from its table, and changes it as `patch` says.
    fn inode_on_disk(&self, nr: InodeNr, patch: Option<&InodePatch>) -> Result<Inode> {
        let (group, index) = self.geometry().inode_group(nr).ok_or(Error::NotFound)?;
        let desc = self.group(group)?;
        let place = self.geometry().inode_place(desc.inode_table(), index);
        let guard = epoch::pin();
        let block = self.inode_table_block(&desc, place.block, &guard)?;
        let bytes = block.get(place.offset_bytes..).unwrap_or_default();
        let inode = match patch {
            None => Inode::parse(bytes, nr, self.superblock()),
            Some(patch) => patch
                .apply(bytes, nr, self.superblock())
                .and_then(|bytes| Inode::parse(&bytes, nr, self.superblock())),
        };
        Ok(inode.map_err(|error| Corrupt::from(error).in_inode(nr).in_block(place.block))?)
    }
}

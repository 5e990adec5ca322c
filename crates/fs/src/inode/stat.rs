//! **Purpose.** Returns the attributes of an inode without reading its data: `stat`.
//!
//! **Not here.** Extended attributes (`crate::xattr::get`).
//!
//! **Locking.** None as a rule; see `crate::inode::consistent`. A scan reads inodes that are not in
//! the cache without inserting them.

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::{DeviceNr, FileMode, FileType, InodeFlags};
use fourscore_ondisk::time::Timestamp;
use fourscore_ondisk::xattr::Xattrs;
use fourscore_sync::epoch;

use crate::Result;
use crate::core::Core;
use crate::file::symlink;
use crate::guard::{Guard, with_guard};
use crate::inode::cached::CachedInode;
use crate::inode::{cache, consistent};

/// The attributes of an inode: those of `stat`, and those that ext4 adds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
    /// The project to which its space is charged; 0 without the feature `project`.
    pub project_id: u32,
    /// The number of its names; 1 for a directory may mean "too many to count".
    pub links: u16,
    /// The size of its data, in bytes.
    pub size_bytes: u64,
    /// The space it uses, in units of 512 bytes.
    pub sectors: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation; `None` where the inode has no space for it.
    pub crtime: Option<Timestamp>,
    /// The device number of a device node.
    pub device: Option<DeviceNr>,
    /// Flags, as `lsattr` shows them.
    pub flags: InodeFlags,
    /// The generation: differs between inodes that have had the same number.
    pub generation: u32,
    /// `i_version`: changes whenever the inode does. One case is excepted: data that overwrites
    /// data within the clock tick that the inode already has as its time of change does not change
    /// `i_version`, as in Linux when the value is not queried in between.
    pub version: u64,
}

/// Attributes of an inode, as a scan returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scanned {
    /// Its attributes.
    pub stat: Stat,
    /// Whether it may have extended attributes.
    pub has_xattrs: bool,
}

/// See [`Fs::stat`](crate::Fs::stat).
pub(crate) fn stat(core: &Core, inode: InodeNr) -> Result<Stat> {
    let found = with_guard(core, |guard| {
        let found = cache::inode(core, inode, guard)?;
        // The size of an encrypted link is that of the target, which may be in a block.
        let is_one_object = found.file_type() != FileType::Symlink || !found.is_encrypted();
        is_one_object
            .then(|| stat_of(core, found, guard))
            .transpose()
    })?;
    match found {
        Some(found) => Ok(found),
        None => {
            consistent::read_consistent(core, inode, |inode, guard| stat_of(core, inode, guard))
        }
    }
}

/// See [`Fs::scan`](crate::Fs::scan).
pub(crate) fn scan(core: &Core, inode: InodeNr) -> Result<Scanned> {
    let is_cached = core.inodes.get(&inode, &epoch::pin()).is_some();
    if !is_cached {
        let uncached = cache::uncached_inode(core, inode)?;
        return with_guard(core, |guard| scanned(core, &uncached, guard));
    }
    with_guard(core, |guard| {
        scanned(core, cache::any_inode(core, inode, guard)?, guard)
    })
}

fn scanned(core: &Core, inode: &CachedInode, guard: &Guard) -> Result<Scanned> {
    let inode = inode.not_a_value()?;
    let area = inode.on_disk().xattr_area().unwrap_or_default();
    let has_xattrs =
        inode.on_disk().file_acl().is_some() || Xattrs::in_inode(area).entries().next().is_some();
    let stat = stat_of(core, inode, guard)?;
    Ok(Scanned { stat, has_xattrs })
}

fn stat_of(core: &Core, cached: &CachedInode, guard: &Guard) -> Result<Stat> {
    let on_disk = cached.on_disk();
    Ok(Stat {
        inode: cached.nr(),
        file_type: cached.file_type(),
        mode: on_disk.mode(),
        uid: on_disk.uid(),
        gid: on_disk.gid(),
        project_id: on_disk.project_id(),
        links: on_disk.links_count(),
        size_bytes: shown_size(core, cached, guard)?,
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

/// Returns the size that users see. For an encrypted symbolic link this is the size of the target
/// as it is listed without the key, as in Linux.
fn shown_size(core: &Core, inode: &CachedInode, guard: &Guard) -> Result<u64> {
    if inode.file_type() == FileType::Symlink && inode.is_encrypted() {
        return Ok(symlink::link_target(core, inode, guard)?.len() as u64);
    }
    Ok(inode.size_bytes())
}

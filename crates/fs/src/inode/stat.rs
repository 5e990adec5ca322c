//! **Purpose.** What is known of an inode without looking at its content: `stat`.

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::{DeviceNr, FileMode, FileType, InodeFlags};
use fourscore_ondisk::time::Timestamp;
use fourscore_ondisk::xattr::Xattrs;
use fourscore_sync::epoch::{self, Guard};

use crate::Result;
use crate::core::Core;
use crate::file::symlink;
use crate::inode::cached::CachedInode;
use crate::inode::{cache, consistent};

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
    /// `i_version`: changes whenever the inode does. Content that is written over content, at the
    /// tick of the clock at which the inode says that it was changed, does not change it, as in
    /// Linux for who does not ask in between.
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

/// See [`Fs::stat`](crate::Fs::stat).
pub(crate) fn stat(core: &Core, inode: InodeNr) -> Result<Stat> {
    let guard = epoch::pin();
    let found = cache::inode(core, inode, &guard)?;
    if found.file_type() == FileType::Symlink && found.is_encrypted() {
        // Its size is that of its target, which may be in a block.
        drop(guard);
        return consistent::read_consistent(core, inode, |inode, guard| {
            stat_of(core, inode, guard)
        });
    }
    stat_of(core, found, &guard)
}

/// See [`Fs::scan`](crate::Fs::scan).
pub(crate) fn scan(core: &Core, inode: InodeNr) -> Result<Scanned> {
    let guard = epoch::pin();
    let loaded;
    let inode = match core.inodes.get(&inode, &guard) {
        Some(cell) => cell.version(&guard)?,
        None => {
            loaded = cache::uncached_inode(core, inode)?;
            &loaded
        }
    };
    let inode = inode.not_a_value()?;
    let area = inode.on_disk().xattr_area().unwrap_or_default();
    let has_xattrs =
        inode.on_disk().file_acl().is_some() || Xattrs::in_inode(area).entries().next().is_some();
    let stat = stat_of(core, inode, &guard)?;
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

/// The size that users see: of an encrypted symbolic link that of its target as it is shown
/// without the key, as in Linux.
fn shown_size(core: &Core, inode: &CachedInode, guard: &Guard) -> Result<u64> {
    if inode.file_type() == FileType::Symlink && inode.is_encrypted() {
        return Ok(symlink::link_target(core, inode, guard)?.len() as u64);
    }
    Ok(inode.size_bytes())
}

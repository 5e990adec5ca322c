//! **Purpose.** Plans a new inode with its first name and applies that plan; checks that all
//! changes of names share.
//!
//! **Not here.** The entry of the name in its directory (`dir::entries`).
//!
//! **Invariants.** An inode that is open from the beginning is in memory and locked before another
//! thread can find it on disk.
//!
//! **Locking.** The caller holds the lock of the directory, exclusive or shared.

use fourscore_block::Structure;
use fourscore_mballoc::Kinship;
use fourscore_ondisk::dirent::EntryType;
use fourscore_ondisk::inode::{
    DeviceNr, FAST_SYMLINK_MAX_BYTES, FileMode, FileType, InodeFlags, NewInode,
};
use fourscore_ondisk::{InodeNr, LogicalBlock};

use crate::core::Core;
use crate::dir::changed::{ChangedDir, tag};
use crate::dir::touch::{self, LINKS_MAX};
use crate::dir::{entries, inline_names, structure};
use crate::file::inline_change::{self, Written};
use crate::guard::with_guard;
use crate::inode::alloc::{self, Want};
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::cell::{Changing, Pinned};
use crate::inode::last_change::LastChange;
use crate::inode::{cache, flags, immutable, orphan_plan};
use crate::map::form::MapForm;
use crate::map::update;
use crate::mount::clock::now;
use crate::mount::state::Mount;
use crate::txn::apply::Publication;
use crate::txn::plan::{NewContent, Plan};
use crate::txn::slot::{self, Slot};
use crate::xattr::acl;
use crate::{Error, Result};

/// The attributes of a new inode. The library has no current user and no umask of its own.
///
/// ```
/// use fourscore::NewAttributes;
///
/// const FILE: NewAttributes = NewAttributes::owned_by(1000, 1000);
/// const DIRECTORY: NewAttributes = FILE.permissions(0o777).umask(0o022);
/// assert_eq!(FILE.permissions, 0o644);
/// assert_eq!(NewAttributes::default().uid, 0);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NewAttributes {
    /// Permissions, set-id bits and the sticky bit: 0o7777 at most.
    pub permissions: u16,
    /// The permissions to leave out, unless the directory has a default list: 0o777 at most.
    pub umask: u16,
    /// The user that owns it.
    pub uid: u32,
    /// The group that owns it, unless the directory gives its own (`S_ISGID`, mount option
    /// `grpid`).
    pub gid: u32,
}

impl NewAttributes {
    /// Returns the attributes of a file that all users may read, and the user `uid` may write:
    /// permissions 0o644, without a umask. `gid` is the owning group.
    #[must_use]
    pub const fn owned_by(uid: u32, gid: u32) -> Self {
        Self {
            permissions: 0o644,
            umask: 0,
            uid,
            gid,
        }
    }

    /// Sets permissions, set-id bits and the sticky bit: 0o7777 at most. A directory needs the
    /// permission to execute for its names to be found, as in 0o755.
    #[must_use]
    pub const fn permissions(mut self, permissions: u16) -> Self {
        self.permissions = permissions;
        self
    }

    /// Sets the permissions to leave out, unless the directory has a default list: 0o777 at most.
    #[must_use]
    pub const fn umask(mut self, umask: u16) -> Self {
        self.umask = umask;
        self
    }
}

impl Default for NewAttributes {
    /// Returns [`NewAttributes::owned_by`] root.
    fn default() -> Self {
        Self::owned_by(0, 0)
    }
}

/// The kind of inode to make.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind<'a> {
    File,
    /// A file that gets its name later, or never.
    Unnamed,
    Directory,
    Symlink(&'a [u8]),
    Device(FileType, DeviceNr),
    /// A fifo or a socket.
    Endpoint(FileType),
}

/// Whether the new inode is open from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    Yes,
    No,
}

/// The new inode and, if it is open, the pin that keeps it in memory.
pub(crate) type Made = (InodeNr, Option<Pinned>);

impl Kind<'_> {
    pub(crate) fn file_type(self) -> FileType {
        match self {
            Self::File | Self::Unnamed => FileType::Regular,
            Self::Directory => FileType::Directory,
            Self::Symlink(_) => FileType::Symlink,
            Self::Device(kind, _) | Self::Endpoint(kind) => kind,
        }
    }

    /// The number of names that refer to it at first; a directory has one in itself.
    fn links(self) -> u16 {
        match self {
            Self::Unnamed => 0,
            Self::Directory => 2,
            _ => 1,
        }
    }
}

/// Applies a plan that creates the inode of `slot` with a name in a directory. `publication` and
/// `publish` make the change visible. `last` is the directory's, and notes the transaction.
pub(crate) fn apply_creating(
    core: &Core,
    plan: Plan<'_>,
    slot: Slot,
    opening: Opening,
    last: &LastChange,
    publication: Publication<'_>,
    publish: impl FnOnce(),
) -> Result<Made> {
    let pinned = match opening {
        Opening::No => {
            plan.apply_publishing(&[last], publication, publish)?;
            None
        }
        Opening::Yes => {
            let inode = CachedInode::new(slot::decoded(&plan, slot)?, core.superblock())?;
            let last = Some(last);
            Some(apply_opening(
                core,
                plan,
                inode,
                last,
                publication,
                publish,
                |_| (),
            )?)
        }
    };
    Ok((slot.nr, pinned))
}

/// Applies a plan that makes `inode`, and opens it: it is in memory, locked, before another thread
/// can find it on disk. `note` may change the state that its lock guards.
pub(crate) fn apply_opening(
    core: &Core,
    mut plan: Plan<'_>,
    inode: CachedInode,
    last: Option<&LastChange>,
    publication: Publication<'_>,
    publish: impl FnOnce(),
    note: impl FnOnce(&mut Changing),
) -> Result<Pinned> {
    let nr = inode.nr();
    let pinned = Pinned::unseen(inode, &core.lives);
    let mut locked = pinned.lock_unseen();
    cache::enter_pinned(core, nr, &pinned);
    let own = [&locked.last, &locked.last_data];
    let all = [own[0], own[1], last.unwrap_or(own[0])];
    if let Err(error) = plan.try_to_apply(&all, publication, publish) {
        // The plan frees the number after this. Until then no other thread can make an inode with
        // that number, and find the cell of this one, which was never made.
        pinned.publish(None);
        cache::drop_pinned(core, nr, &pinned);
        return Err(error);
    }
    locked.open();
    note(&mut locked);
    drop(locked);
    Ok(pinned)
}

/// Plans a new inode in the directory `parent`, without its name.
pub(crate) fn plan_inode(
    mount: &Mount,
    plan: &mut Plan<'_>,
    parent: &CachedInode,
    new: &NewAttributes,
    kind: Kind<'_>,
) -> Result<Slot> {
    let (group, _) = mount
        .core
        .geometry()
        .inode_group(parent.nr())
        .ok_or(Error::NotFound)?;
    let is_directory = matches!(kind, Kind::Directory);
    let want = if !is_directory {
        Want::File
    } else if parent.nr() == InodeNr::ROOT || parent.has(InodeFlags::TOPDIR_FL) {
        Want::Directory(Kinship::TopLevel(group.0))
    } else {
        Want::Directory(Kinship::Below)
    };
    let claim = alloc::claim(mount, group, want)?;
    let nr = claim.nr;
    plan.use_inode(claim)?;
    let slot = slot::slot(plan, nr)?;
    let generation = slot::next_generation(plan, slot);
    let (permissions, umask) = (new.permissions & 0o7777, new.umask);
    let inherited = with_guard(&mount.core, |guard| {
        acl::inherit(
            &mount.core,
            parent,
            kind.file_type(),
            permissions,
            umask,
            guard,
        )
    })?;
    let (mut permissions, mut gid) = (inherited.permissions, new.gid);
    let is_set_gid = parent.on_disk().mode().0 & 0o2000 != 0;
    if is_set_gid || mount.gives_group() {
        gid = parent.on_disk().gid();
    }
    // A mount that gives the group to everything needs no mark on what is below, as in Linux.
    if is_set_gid && is_directory && !mount.gives_group() {
        permissions |= 0o2000;
    }
    let mode = FileMode(type_bits(kind.file_type()) | permissions);
    let content = match kind {
        Kind::Symlink(target) if target.len() <= FAST_SYMLINK_MAX_BYTES => NewContent::InInode,
        Kind::Device(..) | Kind::Endpoint(_) => NewContent::InInode,
        Kind::File | Kind::Unnamed | Kind::Directory | Kind::Symlink(_) => {
            NewContent::mapped(MapForm::of_new(mount.core.superblock()))
        }
    };
    let (mut flags, project_id) = flags::inherited(parent, kind.file_type());
    if content == NewContent::Tree {
        flags |= InodeFlags::EXTENTS_FL;
    }
    let made = NewInode {
        mode,
        uid: new.uid,
        gid,
        generation,
        links: kind.links(),
        flags,
        project_id,
        now: now(),
    };
    slot::init(plan, slot, &made, content)?;
    // Before data that may be stored beside them in the inode, as in Linux.
    acl::store_inherited(plan, slot, &inherited)?;
    plan_content(&mount.core, plan, slot, parent.nr(), kind)?;
    slot::end(plan, slot)?;
    Ok(slot)
}

/// Plans the initial data of a new inode: symlink target, device number, directory entries.
pub(crate) fn plan_content(
    core: &Core,
    plan: &mut Plan<'_>,
    slot: Slot,
    parent: InodeNr,
    kind: Kind<'_>,
) -> Result<()> {
    match kind {
        Kind::Symlink(target) if target.len() <= FAST_SYMLINK_MAX_BYTES => {
            let set = slot::edit(plan, slot, |inode| {
                inode.set_fast_symlink(target)?;
                inode.set_size_bytes(target.len() as u64)
            })?;
            set.map_err(|_| Error::NameTooLong)?;
        }
        Kind::Device(_, device) => {
            let set = slot::edit(plan, slot, |inode| inode.set_device(device))?;
            set.map_err(|_| Error::InvalidArgument("no such device number"))?;
        }
        Kind::Symlink(target) => plan_long_symlink(plan, slot, target)?,
        Kind::Directory => {
            if inline_change::has_inline_data(core)
                && inline_names::init_inline_dir(plan, slot, parent)? == Written::Inside
            {
                return Ok(());
            }
            let inode = slot::version(plan, slot)?;
            let mut changed = ChangedDir::new(core, &inode, slot)?;
            entries::init_directory(plan, &mut changed, parent)?;
        }
        Kind::File | Kind::Unnamed | Kind::Endpoint(_) => {}
    }
    Ok(())
}

pub(crate) fn plan_long_symlink(plan: &mut Plan<'_>, slot: Slot, target: &[u8]) -> Result<()> {
    let inode = slot::version(plan, slot)?;
    let tag = tag(Structure::Symlink, &inode);
    let (_, region) = update::new_block(plan, &inode, slot, LogicalBlock(0), tag)?;
    plan.bytes_mut(region)[..target.len()].copy_from_slice(target);
    let sized = slot::edit(plan, slot, |inode| {
        inode.set_size_bytes(target.len() as u64)
    })?;
    sized.map_err(|_| Error::NameTooLong)
}

/// Plans the new inode of a changed directory: its times, and `links` more names that refer to it.
pub(crate) fn touch_dir(
    core: &Core,
    plan: &mut Plan<'_>,
    dir: &CachedInode,
    slot: Slot,
    links: i32,
) -> Result<CachedInode> {
    let now = now();
    let count = touch::links_after(core.superblock(), dir.on_disk().links_count(), links);
    slot::edit(plan, slot, |inode| {
        inode.set_mtime(now);
        inode.set_ctime(now);
        inode.set_links_count(count);
    })?;
    slot::version(plan, slot)
}

/// Refuses a further subdirectory if the count of `parent` is at its limit. As in Linux, only a
/// directory with an index stops counting there.
pub(crate) fn check_subdirectory(core: &Core, parent: &CachedInode) -> Result<()> {
    let links = parent.on_disk().links_count();
    let stops_counting =
        touch::has_dir_nlink(core.superblock()) && structure::is_indexed(core, parent);
    if links >= LINKS_MAX && !stops_counting {
        return Err(Error::TooManyLinks);
    }
    Ok(())
}

/// Returns the directory, if names in it can be changed.
pub(crate) fn directory_to_change(pinned: &Pinned) -> Result<CachedInode> {
    pinned.copy_if(|dir| {
        if dir.file_type() != FileType::Directory {
            return Err(Error::NotADirectory);
        }
        if dir.on_disk().links_count() == 0 {
            return Err(Error::NotFound);
        }
        if !matches!(
            dir.layout(),
            Layout::Extents | Layout::BlockMap | Layout::Inline
        ) {
            return Err(Error::Unsupported(format!(
                "inode {}: a directory that has no blocks is not changed",
                dir.nr()
            )));
        }
        if dir.has(InodeFlags::IMMUTABLE_FL) {
            return Err(Error::NotPermitted);
        }
        Ok(())
    })
}

/// Plans that an inode has one more name, and removes it from the orphan list if it had none.
pub(crate) fn gain_name(
    plan: &mut Plan<'_>,
    target: &CachedInode,
    locked: &Changing,
) -> Result<CachedInode> {
    let links = target.on_disk().links_count();
    let slot = slot::slot(plan, target.nr())?;
    slot::edit(plan, slot, |inode| {
        inode.set_links_count(links + 1);
        inode.set_ctime(now());
    })?;
    if let (0, Some(place)) = (links, locked.orphan) {
        orphan_plan::remove_orphan(plan, slot, place)?;
    }
    slot::version(plan, slot)
}

/// Refuses a further name for an inode that has lost its last one, or cannot have another in `dir`.
pub(crate) fn check_link(dir: &CachedInode, target: &CachedInode, locked: &Changing) -> Result<()> {
    let links = target.on_disk().links_count();
    if links == 0 && !locked.is_linkable {
        return Err(Error::NotFound);
    }
    immutable::check_changeable(target)?;
    immutable::check_project(dir, target)?;
    if links >= LINKS_MAX {
        return Err(Error::TooManyLinks);
    }
    Ok(())
}

/// Refuses to make names in a directory whose names are encrypted.
pub(crate) fn check_key(dir: &CachedInode) -> Result<()> {
    if dir.is_encrypted() {
        return Err(Error::NoKey { inode: dir.nr() });
    }
    Ok(())
}

pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX_BYTES {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Error::InvalidArgument("not a name"));
    }
    Ok(())
}

/// Returns the type byte of an entry for an inode of this type.
pub(crate) fn entry_type(file_type: FileType) -> EntryType {
    match file_type {
        FileType::Regular => EntryType::Regular,
        FileType::Directory => EntryType::Directory,
        FileType::CharDevice => EntryType::CharDevice,
        FileType::BlockDevice => EntryType::BlockDevice,
        FileType::Fifo => EntryType::Fifo,
        FileType::Socket => EntryType::Socket,
        FileType::Symlink => EntryType::Symlink,
    }
}

/// Returns the type bits of a mode.
pub(crate) fn type_bits(file_type: FileType) -> u16 {
    match file_type {
        FileType::Fifo => 0o010_000,
        FileType::CharDevice => 0o020_000,
        FileType::Directory => 0o040_000,
        FileType::BlockDevice => 0o060_000,
        FileType::Regular => 0o100_000,
        FileType::Symlink => 0o120_000,
        FileType::Socket => 0o140_000,
    }
}

/// The longest name.
pub(crate) const NAME_MAX_BYTES: usize = 255;

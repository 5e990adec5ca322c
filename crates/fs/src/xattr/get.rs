//! **Purpose.** Reads extended attributes as users see them: full names, whole values, ACLs in the
//! form of the system calls.
//!
//! **Model.** An inode's attributes are those inside it followed by those of its xattr block. The
//! value of each is beside its entry or is the data of an inode of its own.
//!
//! **Invariants.** A value is at most [`MAX_VALUE_BYTES`], the limit of the system calls. So the
//! size of all attributes of one inode is bounded by the number of entries that fit in a block.
//!
//! **Locking.** None as a rule; see [`crate::inode::consistent`].
//!
//! **References.** xattr(7), acl(5).

use std::ops::{ControlFlow, Range};

use fourscore_block::Structure;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::xattr::{self, EaInode, Entry, NameIndex, Value, Xattrs};
use fourscore_ondisk::{Corrupt, InodeNr, acl};

use crate::core::Core;
use crate::file::read;
use crate::group::descriptor;
use crate::guard::Guard;
use crate::inode::cached::CachedInode;
use crate::inode::{cache, consistent};
use crate::xattr::{format, offer};
use crate::{Error, Result, metadata};

/// The largest value that Linux accepts in `getxattr` and `setxattr`.
pub const MAX_VALUE_BYTES: usize = 1 << 16;
/// The longest name, including the prefix, that Linux accepts.
pub(crate) const MAX_NAME_BYTES: usize = 255;

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// The whole name, such as `user.comment` or `system.posix_acl_access`.
    pub name: Vec<u8>,
    /// The value. ACLs are in the form of the system calls (version 2), not the one on disk.
    pub value: Vec<u8>,
}

/// The place of an inode's attributes on the device, in bytes, as FIEMAP reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrPlace {
    /// Inside the inode; there may be more in a block. FIEMAP reports this part only, as data that
    /// is inline and not aligned.
    InInode(Range<u64>),
    /// In a block.
    InBlock(Range<u64>),
}

/// See [`Fs::xattr_place`](crate::Fs::xattr_place).
pub(crate) fn xattr_place(core: &Core, inode: InodeNr) -> Result<Option<XattrPlace>> {
    let inode = cache::inode_copy(core, inode)?;
    let inode = inode.on_disk();
    let block_size = core.geometry().block_size();
    if let Some(area) = inode.xattr_area()
        && area.starts_with(&xattr::MAGIC.to_le_bytes())
    {
        let (group, index) = core
            .geometry()
            .inode_group(inode.number())
            .ok_or(Error::NotFound)?;
        let table = descriptor::desc(core, group)?.inode_table();
        let place = core.geometry().inode_place(table, index);
        let start = block_size.offset(place.block) + place.offset_bytes as u64;
        let end = start + core.geometry().inode_size_bytes() as u64;
        return Ok(Some(XattrPlace::InInode(end - area.len() as u64..end)));
    }
    let block = inode.file_acl().map(|block| {
        let start = block_size.offset(block);
        XattrPlace::InBlock(start..start + block_size.bytes() as u64)
    });
    Ok(block)
}

/// See [`Fs::xattrs`](crate::Fs::xattrs).
pub(crate) fn xattrs(core: &Core, inode: InodeNr) -> Result<Vec<Xattr>> {
    consistent::read_consistent(core, inode, |inode, guard| {
        let mut xattrs = Vec::new();
        visit_xattrs(core, inode, guard, |entry| {
            if let Some(prefix) = shown_prefix(entry.index) {
                let name = [prefix.as_bytes(), entry.name].concat();
                xattrs.push(Xattr {
                    name,
                    value: xattr_value(core, inode, entry, guard)?,
                });
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(xattrs)
    })
}

/// See [`Fs::xattr`](crate::Fs::xattr).
pub(crate) fn xattr(core: &Core, inode: InodeNr, name: &[u8]) -> Result<Vec<u8>> {
    let (index, rest) = settable(name)?;
    let value = consistent::read_consistent(core, inode, |inode, guard| {
        find_xattr(core, inode, index, rest, guard, |entry| {
            xattr_value(core, inode, entry, guard)
        })
    })?;
    value.ok_or(Error::NoAttribute)
}

/// Returns the value of an attribute as it is stored. For the holder of the inode's lock, or inside
/// [`consistent::read_consistent`].
pub(crate) fn stored_xattr(
    core: &Core,
    inode: &CachedInode,
    index: NameIndex,
    name: &[u8],
    guard: &Guard,
) -> Result<Option<Vec<u8>>> {
    find_xattr(core, inode, index, name, guard, |entry| {
        stored_value(core, inode, entry, guard)
    })
}

fn find_xattr<T>(
    core: &Core,
    inode: &CachedInode,
    index: NameIndex,
    name: &[u8],
    guard: &Guard,
    read: impl Fn(&Entry<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let mut found = None;
    visit_xattrs(core, inode, guard, |entry| {
        if entry.index != index || entry.name != name {
            return Ok(ControlFlow::Continue(()));
        }
        found = Some(read(entry)?);
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

/// Calls `visit` for each attribute, including hidden ones.
fn visit_xattrs(
    core: &Core,
    inode: &CachedInode,
    guard: &Guard,
    mut visit: impl FnMut(&Entry<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let place = |error: xattr::XattrError| Corrupt::from(error).in_inode(inode.nr());
    if let Some(area) = inode.on_disk().xattr_area() {
        xattr::check_in_inode(area, format::ea_inodes(core)).map_err(place)?;
        for entry in Xattrs::in_inode(area).entries() {
            if visit(&entry.map_err(place)?)?.is_break() {
                return Ok(());
            }
        }
    }
    if let Some(block) = inode.on_disk().file_acl() {
        let bytes = xattr_block(core, inode, block, guard)?;
        for entry in Xattrs::in_block(bytes).map_err(place)?.entries() {
            if visit(&entry.map_err(place)?)?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Returns the xattr block of `inode`, verified. Blocks are shared, so the check refers to no
/// inode.
fn xattr_block<'g>(
    core: &Core,
    inode: &CachedInode,
    block: fourscore_ondisk::PhysBlock,
    guard: &'g Guard,
) -> Result<&'g [u8]> {
    if !core.geometry().data_blocks().contains(&block) {
        let error = RelationError::XattrBlock {
            found: block,
            blocks: core.geometry().data_blocks(),
        };
        return Err(Corrupt::from(error).in_inode(inode.nr()).into());
    }
    let mut is_loaded = false;
    let bytes = metadata::metadata(core, block, Structure::Xattrs, InodeNr(0), guard, |bytes| {
        is_loaded = true;
        check_xattr_block(core, block, bytes).map_err(|corrupt| corrupt.in_inode(inode.nr()))
    })?;
    if is_loaded {
        offer::offer_block(core, inode.nr(), block);
    }
    Ok(bytes)
}

/// Checks a block of attributes, and that the number of inodes that use it is a possible one.
pub(crate) fn check_xattr_block(
    core: &Core,
    block: fourscore_ondisk::PhysBlock,
    bytes: &[u8],
) -> std::result::Result<(), Corrupt> {
    let sb = core.superblock();
    let seed = sb.has_metadata_csum().then(|| sb.checksum_seed());
    xattr::check_block(bytes, block, format::ea_inodes(core), seed)?;
    xattr::users(bytes)?;
    Ok(())
}

/// Returns the value of an attribute of `inode` as the system calls return it.
fn xattr_value(
    core: &Core,
    inode: &CachedInode,
    entry: &Entry<'_>,
    guard: &Guard,
) -> Result<Vec<u8>> {
    let value = stored_value(core, inode, entry, guard)?;
    if matches!(
        entry.index,
        NameIndex::POSIX_ACL_ACCESS | NameIndex::POSIX_ACL_DEFAULT
    ) {
        return Ok(acl::disk_to_xattr(&value)
            .map_err(|error| Corrupt::from(error).in_inode(inode.nr()))?);
    }
    Ok(value)
}

fn stored_value(
    core: &Core,
    inode: &CachedInode,
    entry: &Entry<'_>,
    guard: &Guard,
) -> Result<Vec<u8>> {
    match entry.value {
        Value::Inline(value) => Ok(value.to_vec()),
        Value::Inode {
            inode: holder,
            bytes,
        } => {
            let value = ea_inode_value(core, holder, bytes, Some(inode), guard).map_err(
                |error| match error {
                    Error::Corrupt(corrupt) => corrupt.in_inode(inode.nr()).into(),
                    other => other,
                },
            )?;
            offer::offer_value(core, holder);
            Ok(value)
        }
    }
}

/// Returns the value of `bytes` bytes that is the data of inode `holder`. Its checksum must be
/// right, unless Lustre has made it for `owner`: it stores the number and the generation of its
/// only user where Linux has the time of creation.
pub(crate) fn ea_inode_value(
    core: &Core,
    holder: InodeNr,
    bytes: u32,
    owner: Option<&CachedInode>,
    guard: &Guard,
) -> Result<Vec<u8>> {
    let wrong = |error: RelationError| Error::from(Corrupt::from(error).in_inode(holder));
    let inode = cache::any_inode(core, holder, guard)?;
    let size_bytes = inode.size_bytes();
    if !inode.has(InodeFlags::EA_INODE_FL) {
        return Err(wrong(RelationError::NotAnEaInode));
    }
    let len = bytes as usize;
    if size_bytes != u64::from(bytes) || len > MAX_VALUE_BYTES {
        let most = MAX_VALUE_BYTES;
        return Err(wrong(RelationError::EaInodeSize {
            found: size_bytes,
            entry: bytes,
            most,
        }));
    }
    let mut value = vec![0; len];
    read::read_pinned(core, inode, &mut value, guard)?;
    let facts = EaInode::of(inode.on_disk().raw());
    let computed = EaInode::hash_of(&value, core.superblock().checksum_seed());
    let is_lustre = |owner: &CachedInode| {
        let generation = |inode: &CachedInode| inode.on_disk().raw().i_generation;
        facts.lustre_parent == owner.nr() && generation(inode) == generation(owner)
    };
    if facts.value_hash != computed && !owner.is_some_and(is_lustre) {
        let (found, expected) = (facts.value_hash, computed);
        return Err(wrong(RelationError::EaInodeHash { found, expected }));
    }
    Ok(value)
}

/// Splits the full name of an attribute that is visible to users into namespace and rest.
///
/// # Errors
/// `Unsupported` for another namespace; `InvalidArgument` for a prefix with nothing behind it.
pub(crate) fn settable(name: &[u8]) -> Result<(NameIndex, &[u8])> {
    if matches!(name, b"user." | b"trusted." | b"security." | b"gnu.") {
        return Err(Error::InvalidArgument("an attribute's name is its prefix"));
    }
    NameIndex::split(name)
        .filter(|(index, _)| shown_prefix(*index).is_some())
        .ok_or_else(|| Error::Unsupported("no such attribute namespace".into()))
}

/// Returns the prefix of names that users can list; `None` for attributes internal to the file
/// system.
fn shown_prefix(index: NameIndex) -> Option<&'static str> {
    match index {
        NameIndex::USER
        | NameIndex::TRUSTED
        | NameIndex::SECURITY
        | NameIndex::HURD
        | NameIndex::POSIX_ACL_ACCESS
        | NameIndex::POSIX_ACL_DEFAULT => index.prefix(),
        _ => None,
    }
}

//! **Purpose.** Plans changes of the names in a directory: add, remove, redirect.
//!
//! **Not here.** Whether a name may be added or removed ([`crate::dir::create`]), and the bytes of
//! blocks (`fourscore_ondisk::dirent`, `htree`).
//!
//! **Model.** A name goes into the leaf that its hash maps to or, in a directory without an index,
//! into the first block with space. A full leaf is split. The new leaf is entered into the index,
//! which may grow. A directory of one block becomes indexed when it is full. Names in an inline
//! directory are changed inside of the inode ([`crate::file::inline_change`]).
//!
//! **Locking.** The caller holds the directory's lock exclusively, so that no other thread changes
//! its blocks.

use fourscore_ondisk::dirent::write::NewEntry;
use fourscore_ondisk::dirent::{DirentError, Dots, EntryType};
use fourscore_ondisk::dirhash::{HashAlgorithm, NameHasher};
use fourscore_ondisk::features::Compat;
use fourscore_ondisk::htree::edit::{self, Child, NewNode, Step, StepMut};
use fourscore_ondisk::htree::split::LeafSplit;
use fourscore_ondisk::htree::{self, Index};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{InodeNr, LogicalBlock};

use crate::core::Core;
use crate::dir::changed::{ChangedDir, Place};
use crate::dir::structure::{self, DirBlock};
use crate::dir::wanted::Wanted;
use crate::dir::{blocks, departure, grow, inline_names, leaf_search, names};
use crate::guard::{Guard, with_guard};
use crate::inode::cached::CachedInode;
use crate::txn::fast_commit::note::{Room, Space};
use crate::txn::fast_commit::reason::Reason;
use crate::txn::plan::{Plan, RegionId};
use crate::txn::slot;
use crate::{Error, Result};

/// An index block on the way to a leaf, and the entry taken in it.
#[derive(Clone, Copy, Debug)]
struct PathStep {
    place: Place,
    position: usize,
}

/// Whether a directory holds nothing but `.` and `..`.
pub(crate) fn is_empty_dir(core: &Core, dir: &CachedInode) -> Result<bool> {
    let mut is_empty = true;
    blocks::visit_stored(core, dir, &mut |entry| {
        is_empty &= entry.is_dots();
        is_empty
    })?;
    Ok(is_empty)
}

/// Refuses a name that cannot be folded, if the directory's encoding is strict.
fn check_encoding(core: &Core, dir: &CachedInode, name: &[u8]) -> Result<()> {
    match names::wanted(core, dir, name) {
        Wanted::Impossible => Err(Error::InvalidArgument("the name is not UTF-8")),
        Wanted::Exact(_) | Wanted::Folded(_) | Wanted::NoKey(_) => Ok(()),
    }
}

/// Returns the place of block `at` of a directory that the caller has locked.
fn place(core: &Core, dir: &CachedInode, at: LogicalBlock) -> Result<Place> {
    let block = with_guard(core, |guard| structure::dir_place(core, dir, at, guard))?;
    Ok(Place { at, block })
}

fn dir_block(
    plan: &mut Plan<'_>,
    dir: &ChangedDir<'_>,
    place: Place,
    what: DirBlock,
) -> Result<RegionId> {
    let core = &*plan.mount.core;
    plan.block(place.block, dir.tag(what), |bytes| {
        structure::check_bytes(core, dir.inode, &dir.format, what, bytes)
    })
}

/// Adds a name that the directory does not have.
pub(crate) fn add_name(
    plan: &mut Plan<'_>,
    dir: &mut ChangedDir<'_>,
    new: &NewEntry<'_>,
) -> Result<()> {
    if dir.inode.has(InodeFlags::CASEFOLD_FL) {
        check_encoding(&plan.mount.core, dir.inode, new.name())?;
    }
    if new.kind == EntryType::Directory {
        plan.taint(new.inode, Reason::Directory);
    }
    if dir.is_inline() {
        plan.taint(dir.inode.nr(), Reason::Names);
        return match inline_names::add_inline(plan, dir, new)? {
            None => Ok(()),
            Some(moved_out) => {
                let mut dir = ChangedDir::new(&plan.mount.core, &moved_out, dir.slot)?;
                add_name(plan, &mut dir, new)
            }
        };
    }
    if structure::is_indexed(&plan.mount.core, dir.inode) {
        return add_indexed(plan, dir, new);
    }
    if dir.inode.has(InodeFlags::INDEX_FL) {
        // The feature was cleared. Once it is set again, the index must not be used: it would lack
        // this name.
        slot::edit(plan, dir.slot, |inode| {
            inode.set_flags(inode.flags() - InodeFlags::INDEX_FL);
        })?;
    }
    let needed = dir.format.needed_bytes(new.name());
    let is_noted = plan.is_noted();
    for at in 0..dir.end.0 {
        let place = place(&plan.mount.core, dir.inode, LogicalBlock(at))?;
        let (core, format) = (&*plan.mount.core, &dir.format);
        let find_space = |bytes: &[u8]| {
            let Some(room) = format.room(bytes, needed)? else {
                return Ok(None);
            };
            let noted = match is_noted {
                true => Room::of(Space::All, format, bytes, new.name())?,
                false => Room::none(),
            };
            Ok(Some((room, noted)))
        };
        let vacancy = match plan.planned(place.block) {
            Some(region) => find_space(plan.bytes(region)),
            None => with_guard(core, |guard| {
                leaf_search::look_at_leaf(core, dir.inode, format, place.block, guard, find_space)
            })?,
        };
        if let Some((vacancy, room)) = vacancy.map_err(|error: DirentError| dir.broken(error))? {
            plan.note_added(dir.inode, new.name(), new.inode, room);
            let region = dir_block(plan, dir, place, DirBlock::Leaf)?;
            let done = dir.format.insert_into(plan.bytes_mut(region), vacancy, new);
            return done.map(drop).map_err(|error| dir.broken(error));
        }
    }
    grow_linear(plan, dir, new)
}

/// Adds a name to a directory without an index that has no space for it.
fn grow_linear(plan: &mut Plan<'_>, dir: &mut ChangedDir<'_>, new: &NewEntry<'_>) -> Result<()> {
    plan.note_added(dir.inode, new.name(), new.inode, Room::none());
    let core = &*plan.mount.core;
    let has_index = core
        .superblock()
        .features()
        .compat
        .contains(Compat::DIR_INDEX);
    let default = HashAlgorithm::from_disk(core.superblock().def_hash_version());
    let hasher = default.and_then(|algorithm| structure::hasher(core, algorithm));
    if let (Some(algorithm), Some(hasher), true, LogicalBlock(1)) =
        (default, hasher, has_index, dir.end)
    {
        let first = place(core, dir.inode, LogicalBlock(0))?;
        let root = dir_block(plan, dir, first, DirBlock::Leaf)?;
        let (leaf_place, leaf) = grow::append_block(plan, dir, DirBlock::Leaf)?;
        let [root_bytes, leaf_bytes] = plan.disjoint_mut([root, leaf]);
        edit::make_indexed(&dir.format, root_bytes, leaf_bytes, algorithm)
            .map_err(|error| dir.broken(error))?;
        plan.set_tag(root, dir.tag(DirBlock::Root));
        slot::edit(plan, dir.slot, |inode| {
            inode.set_flags(inode.flags() | InodeFlags::INDEX_FL);
        })?;
        let step = PathStep {
            place: first,
            position: 0,
        };
        return add_splitting(plan, dir, new, &hasher, &[step], leaf_place);
    }
    let (_, region) = grow::append_block(plan, dir, DirBlock::Leaf)?;
    dir.format.init_leaf(plan.bytes_mut(region));
    let inserted = dir.format.insert(plan.bytes_mut(region), new);
    inserted.map(drop).map_err(|error| dir.broken(error))
}

fn add_indexed(plan: &mut Plan<'_>, dir: &mut ChangedDir<'_>, new: &NewEntry<'_>) -> Result<()> {
    let (hasher, path, leaf) = index_path(plan, dir, new.name())?;
    let region = dir_block(plan, dir, leaf, DirBlock::Leaf)?;
    if plan.is_noted() {
        let space = Space::Leaf(leaf.block);
        let room = Room::of(space, &dir.format, plan.bytes(region), new.name());
        let room = room.map_err(|error| dir.broken(error))?;
        plan.note_added(dir.inode, new.name(), new.inode, room);
    }
    let inserted = dir.format.insert(plan.bytes_mut(region), new);
    if inserted.map_err(|error| dir.broken(error))?.is_some() {
        return Ok(());
    }
    add_splitting(plan, dir, new, &hasher, &path, leaf)
}

/// Returns the path through the index to the first leaf that the hash of `name` maps to.
fn index_path(
    plan: &Plan<'_>,
    dir: &ChangedDir<'_>,
    name: &[u8],
) -> Result<(NameHasher, Vec<PathStep>, Place)> {
    with_guard(&plan.mount.core, |guard| {
        index_path_pinned(plan, dir, name, guard)
    })
}

fn index_path_pinned(
    plan: &Plan<'_>,
    dir: &ChangedDir<'_>,
    name: &[u8],
    guard: &Guard,
) -> Result<(NameHasher, Vec<PathStep>, Place)> {
    let (core, inode) = (&*plan.mount.core, dir.inode);
    let wanted = names::wanted(core, inode, name);
    let place = |at| {
        let block = structure::dir_place(core, inode, at, guard)?;
        Ok::<_, Error>(Place { at, block })
    };
    let first = place(LogicalBlock(0))?;
    let root =
        structure::check_dir_block(core, inode, &dir.format, first.block, DirBlock::Root, guard)?;
    let info = htree::root_info(root).map_err(|error| dir.broken(error))?;
    let no_hash = || Error::Unsupported("the directory's hash function is not known".into());
    let hasher = structure::hasher(core, info.algorithm).ok_or_else(no_hash)?;
    let input = wanted.hash_input().ok_or_else(no_hash)?;
    let hash = hasher.hash(input).hash;
    let mut index = Index::root(root).map_err(|error| dir.broken(error))?;
    let mut here = first;
    let mut path = Vec::with_capacity(3);
    loop {
        let position = index.search(hash);
        path.push(PathStep {
            place: here,
            position,
        });
        let below = index.block(position).unwrap_or(LogicalBlock(0));
        here = place(below)?;
        if path.len() > usize::from(info.indirect_levels) {
            return Ok((hasher, path, here));
        }
        let node = structure::check_dir_block(
            core,
            inode,
            &dir.format,
            here.block,
            DirBlock::Node,
            guard,
        )?;
        index = Index::node(node).map_err(|error| dir.broken(error))?;
    }
}

/// Splits the full `leaf` at the end of `path`, and adds the name to its half.
fn add_splitting(
    plan: &mut Plan<'_>,
    dir: &mut ChangedDir<'_>,
    new: &NewEntry<'_>,
    hasher: &NameHasher,
    path: &[PathStep],
    leaf: Place,
) -> Result<()> {
    plan.raise_sequence();
    let old = dir_block(plan, dir, leaf, DirBlock::Leaf)?;
    let wanted_hash = |core: &Core, name: &[u8]| {
        let wanted = names::wanted(core, dir.inode, name);
        hasher.hash(wanted.hash_input().unwrap_or(name)).hash
    };
    let core = &*plan.mount.core;
    let mut split = LeafSplit::default();
    split
        .plan(&dir.format, plan.bytes(old), |entry| {
            wanted_hash(core, entry.name)
        })
        .map_err(|error| dir.broken(error))?;
    let hash = wanted_hash(core, new.name());
    let mut regions = Vec::with_capacity(path.len());
    for (level, step) in path.iter().enumerate() {
        let what = if level == 0 {
            DirBlock::Root
        } else {
            DirBlock::Node
        };
        regions.push(dir_block(plan, dir, step.place, what)?);
    }
    let growth = {
        let mut steps = Vec::with_capacity(path.len());
        for (level, (step, &region)) in path.iter().zip(&regions).enumerate() {
            let bytes = plan.bytes(region);
            let index = if level == 0 {
                Index::root(bytes)
            } else {
                Index::node(bytes)
            };
            steps.push(Step {
                index: index.map_err(|error| dir.broken(error))?,
                position: step.position,
            });
        }
        let growth = edit::growth(&steps, split.hash(), structure::index_levels(core));
        growth
            .map_err(|error| dir.broken(error))?
            .ok_or(Error::NoSpace)?
    };
    let (new_place, fresh) = grow::append_block(plan, dir, DirBlock::Leaf)?;
    let mut nodes = Vec::with_capacity(growth.new_nodes);
    for _ in 0..growth.new_nodes {
        nodes.push(grow::append_block(plan, dir, DirBlock::Node)?);
    }
    let [old_bytes, new_bytes] = plan.disjoint_mut([old, fresh]);
    split.apply(&dir.format, old_bytes, new_bytes);
    let child = Child {
        hash: split.hash(),
        block: new_place.at,
    };
    enter_leaf(plan, dir, path, &regions, child, &nodes)?;
    let half = if split.moves(hash) { fresh } else { old };
    let inserted = dir.format.insert(plan.bytes_mut(half), new);
    match inserted.map_err(|error| dir.broken(error))? {
        Some(_) => Ok(()),
        None => Err(Error::NoSpace),
    }
}

/// Enters a new leaf into the index blocks of `path`.
fn enter_leaf(
    plan: &mut Plan<'_>,
    dir: &ChangedDir<'_>,
    path: &[PathStep],
    regions: &[RegionId],
    leaf: Child,
    nodes: &[(Place, RegionId)],
) -> Result<()> {
    let wanted: Vec<RegionId> = regions
        .iter()
        .copied()
        .chain(nodes.iter().map(|&(_, region)| region))
        .collect();
    let twice = RelationError::DirectoryBlockTwice { found: leaf.block };
    let all = plan.all_mut(&wanted).ok_or_else(|| dir.broken(twice))?;
    let mut bytes = all.into_iter();
    let mut steps: Vec<StepMut<'_>> = path
        .iter()
        .zip(bytes.by_ref())
        .map(|(step, block)| StepMut {
            block,
            position: step.position,
        })
        .collect();
    let mut nodes: Vec<NewNode<'_>> = nodes
        .iter()
        .zip(bytes)
        .map(|(&(place, _), block)| NewNode {
            at: place.at,
            block,
        })
        .collect();
    edit::add_leaf(&dir.format, &mut steps, leaf, &mut nodes).map_err(|error| dir.broken(error))
}

/// Returns the block of the entry of `name`, and the offset of the entry in it in bytes.
fn find_entry(plan: &Plan<'_>, dir: &ChangedDir<'_>, name: &[u8]) -> Result<(Place, usize)> {
    let core = &*plan.mount.core;
    let wanted = names::wanted(core, dir.inode, name);
    let indexed = structure::is_indexed(core, dir.inode);
    let start = if indexed && wanted.hash_input().is_some() {
        let (_, _, leaf) = index_path(plan, dir, name)?;
        Some(leaf)
    } else {
        None
    };
    let find_in_leaf = |leaf: Place| {
        let find = |bytes: &[u8]| {
            let entry = wanted.find_in(&dir.format, bytes)?;
            Ok(entry.map(|entry| (leaf, entry.at)))
        };
        let found = with_guard(core, |guard| {
            leaf_search::look_at_leaf(core, dir.inode, &dir.format, leaf.block, guard, find)
        })?;
        found.map_err(|error: DirentError| dir.broken(error))
    };
    // First the leaf that the hash maps to; then, for names whose hashes are equal or were computed
    // by other rules, all others.
    if let Some(leaf) = start
        && let Some(found) = find_in_leaf(leaf)?
    {
        return Ok(found);
    }
    let is_plain = !dir.inode.has(InodeFlags::INDEX_FL);
    for at in 0..dir.end.0 {
        let place = place(core, dir.inode, LogicalBlock(at))?;
        let (at, block) = (place.at, place.block);
        let is_leaf = is_plain
            || with_guard(core, |guard| {
                let bytes = blocks::listed_bytes(core, dir.inode, &dir.format, at, block, guard)?;
                Ok(bytes.is_some())
            })?;
        if is_leaf && let Some(found) = find_in_leaf(place)? {
            return Ok(found);
        }
    }
    Err(Error::NotFound)
}

/// Removes a name.
pub(crate) fn remove_name(plan: &mut Plan<'_>, dir: &ChangedDir<'_>, name: &[u8]) -> Result<()> {
    if dir.is_inline() {
        plan.taint(dir.inode.nr(), Reason::Names);
        return inline_names::remove_inline(plan, dir, name);
    }
    let (place, at) = find_entry(plan, dir, name)?;
    let region = dir_block(plan, dir, place, DirBlock::Leaf)?;
    lose_name(plan, dir.inode.nr(), name)?;
    let removed = dir.format.remove(plan.bytes_mut(region), at);
    let removed = removed.map_err(|error| dir.broken(error))?;
    let space = match structure::is_indexed(&plan.mount.core, dir.inode) {
        true => Space::Leaf(place.block),
        false => Space::All,
    };
    plan.note_removed(dir.inode, name, space, &removed);
    Ok(())
}

/// Makes a name refer to another inode.
pub(crate) fn redirect_name(
    plan: &mut Plan<'_>,
    dir: &ChangedDir<'_>,
    name: &[u8],
    inode: InodeNr,
    kind: EntryType,
) -> Result<()> {
    plan.taint(inode, Reason::CrossRename);
    if dir.is_inline() {
        plan.taint(dir.inode.nr(), Reason::Names);
        return inline_names::redirect_inline(plan, dir, name, inode, kind);
    }
    let (place, at) = find_entry(plan, dir, name)?;
    let region = dir_block(plan, dir, place, DirBlock::Leaf)?;
    lose_name(plan, dir.inode.nr(), name)?;
    let redirected = dir.format.redirect(plan.bytes_mut(region), at, inode, kind);
    let before = redirected.map_err(|error| dir.broken(error))?;
    plan.note_redirected(dir.inode, name, before);
    Ok(())
}

/// Makes `..` of a directory refer to another parent.
pub(crate) fn set_parent(plan: &mut Plan<'_>, dir: &ChangedDir<'_>, parent: InodeNr) -> Result<()> {
    plan.taint(dir.inode.nr(), Reason::Directory);
    if dir.is_inline() {
        return inline_names::set_inline_parent(plan, dir, parent);
    }
    let first = place(&plan.mount.core, dir.inode, LogicalBlock(0))?;
    let what = if structure::is_indexed(&plan.mount.core, dir.inode) {
        DirBlock::Root
    } else {
        DirBlock::Leaf
    };
    let region = dir_block(plan, dir, first, what)?;
    let set = dir.format.set_parent(plan.bytes_mut(region), parent);
    set.map_err(|error| dir.broken(error))
}

/// Initializes the first block of a new directory.
pub(crate) fn init_directory(
    plan: &mut Plan<'_>,
    dir: &mut ChangedDir<'_>,
    parent: InodeNr,
) -> Result<()> {
    let (_, region) = grow::append_block(plan, dir, DirBlock::Leaf)?;
    let dots = Dots {
        own: dir.inode.nr(),
        parent,
    };
    dir.format.init_directory(plan.bytes_mut(region), &dots);
    Ok(())
}

/// Notes the departure of `name`, which will be removed or refer to another inode. Its directory
/// has blocks.
pub(crate) fn lose_name(plan: &mut Plan<'_>, dir: InodeNr, name: &[u8]) -> Result<()> {
    let departure = departure::departure(&plan.mount.core, dir, name)?;
    plan.add_departure(departure);
    Ok(())
}

//! **Purpose.** Changing the names in a directory, as part of a plan.
//!
//! **Not here.** Whether a name may be added or removed ([`crate::dir::create`]), and the bytes of blocks
//! (`fourscore_ondisk::dirent`, `htree`).
//!
//! **Model.** A name goes into the leaf that its hash leads to, or in a directory without an index
//! into the first block with room. A full leaf is divided; the new one is entered into the index,
//! which may grow. A directory of one block becomes indexed when it is full. Names that are
//! inside of the inode are changed there ([`crate::file::inline_change`]).
//!
//! **Locking.** The directory's lock is held, so that its blocks change for nobody else.

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::dirent::write::NewEntry;
use fourscore_ondisk::dirent::{DirFormat, DirentError, Dots, EntryType};
use fourscore_ondisk::dirhash::{HashAlgorithm, NameHasher};
use fourscore_ondisk::features::Compat;
use fourscore_ondisk::htree::edit::{self, Child, NewNode, Step, StepMut};
use fourscore_ondisk::htree::split::LeafSplit;
use fourscore_ondisk::htree::{self, Index};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, InodeSeed, LogicalBlock, PhysBlock};
use fourscore_sync::epoch::{self, Guard};

use crate::dir::find::DirBlock;
use crate::dir::names::Wanted;
use crate::inode::cache::{CachedInode, Layout};
use crate::txn::plan::{Plan, RegionId};
use crate::txn::slot::Slot;
use crate::{Error, Fs, Result};

/// A block of a directory.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: LogicalBlock,
    block: PhysBlock,
}

/// An index block on the way to a leaf, and the entry taken in it.
#[derive(Clone, Copy, Debug)]
struct PathStep {
    place: Place,
    position: usize,
}

/// A directory whose names are changed.
#[derive(Debug)]
pub(crate) struct ChangedDir<'d> {
    pub(crate) inode: &'d CachedInode,
    pub(crate) slot: Slot,
    format: DirFormat,
    /// Its length with what the plan adds.
    end: LogicalBlock,
}

impl<'d> ChangedDir<'d> {
    pub(crate) fn new(fs: &Fs, inode: &'d CachedInode, slot: Slot) -> Result<Self> {
        Ok(Self {
            inode,
            slot,
            format: fs.dir_format(inode),
            end: fs.size_in_blocks(inode)?,
        })
    }

    pub(crate) fn format(&self) -> &DirFormat {
        &self.format
    }

    /// Whether its names are inside of its inode.
    fn is_inline(&self) -> bool {
        self.inode.layout() == Layout::Inline
    }

    fn tag(&self, what: DirBlock) -> VerifiedAs {
        let structure = match what {
            DirBlock::Leaf => Structure::DirectoryLeaf,
            DirBlock::Root | DirBlock::Node => Structure::DirectoryIndex,
        };
        tag(structure, self.inode)
    }

    fn broken(&self, error: impl Into<Corrupt>) -> Error {
        Error::Corrupt(error.into().in_inode(self.inode.nr()))
    }
}

/// The tag of a block of `inode`, with the seed of its checksums.
pub(crate) fn tag(structure: Structure, inode: &CachedInode) -> VerifiedAs {
    let seed = inode.seed().unwrap_or(InodeSeed::from_value(0));
    VerifiedAs::new(structure, inode.nr()).seeded(seed)
}

impl Fs {
    /// Whether a directory holds nothing but `.` and `..`.
    pub(crate) fn is_empty_dir(&self, dir: &CachedInode, guard: &Guard) -> Result<bool> {
        let mut is_empty = true;
        self.visit_stored(dir, guard, &mut |entry| {
            is_empty &= entry.is_dots();
            is_empty
        })?;
        Ok(is_empty)
    }

    /// Refuses a name that cannot be folded, where that is not allowed.
    fn check_encoding(&self, dir: &CachedInode, name: &[u8]) -> Result<()> {
        match self.wanted(dir, name) {
            Wanted::Impossible => Err(Error::InvalidArgument("the name is not UTF-8")),
            Wanted::Exact(_) | Wanted::Folded(_) | Wanted::NoKey(_) => Ok(()),
        }
    }

    fn place(&self, dir: &CachedInode, at: LogicalBlock, guard: &Guard) -> Result<Place> {
        let block = self.dir_place(dir, at, guard)?;
        Ok(Place { at, block })
    }
}

impl Plan<'_> {
    fn dir_block(
        &mut self,
        dir: &ChangedDir<'_>,
        place: Place,
        what: DirBlock,
    ) -> Result<RegionId> {
        let fs = self.fs();
        self.block(place.block, dir.tag(what), |bytes| {
            fs.check_bytes(dir.inode, &dir.format, what, bytes)
        })
    }

    /// Adds a name that the directory does not have.
    pub(crate) fn add_name(&mut self, dir: &mut ChangedDir<'_>, new: &NewEntry<'_>) -> Result<()> {
        if dir.inode.has(InodeFlags::CASEFOLD_FL) {
            self.fs().check_encoding(dir.inode, new.name())?;
        }
        if dir.is_inline() {
            return self.add_inline(dir, new);
        }
        if self.fs().is_indexed(dir.inode) {
            return self.add_indexed(dir, new);
        }
        if dir.inode.has(InodeFlags::INDEX_FL) {
            // The feature is gone; who brings it back must not follow an index without this name.
            self.edit(dir.slot, |inode| {
                inode.set_flags(inode.flags() - InodeFlags::INDEX_FL);
            })?;
        }
        let needed = dir.format.needed_bytes(new.name());
        let guard = epoch::pin();
        for at in 0..dir.end.0 {
            let place = self.fs().place(dir.inode, LogicalBlock(at), &guard)?;
            let (fs, format) = (self.fs(), &dir.format);
            let room = |bytes: &[u8]| format.room(bytes, needed);
            let room = match self.planned(place.block) {
                Some(region) => room(self.bytes(region)),
                None => fs.look_at_leaf(dir.inode, format, place.block, &guard, room)?,
            };
            if let Some(room) = room.map_err(|error| dir.broken(error))? {
                let region = self.dir_block(dir, place, DirBlock::Leaf)?;
                let done = dir.format.insert_into(self.bytes_mut(region), room, new);
                return done.map(drop).map_err(|error| dir.broken(error));
            }
        }
        drop(guard);
        self.grow_linear(dir, new)
    }

    /// Adds a name to a directory without an index in which there is no room.
    fn grow_linear(&mut self, dir: &mut ChangedDir<'_>, new: &NewEntry<'_>) -> Result<()> {
        let fs = self.fs();
        let has_index = fs
            .superblock()
            .features()
            .compat
            .contains(Compat::DIR_INDEX);
        let default = HashAlgorithm::from_disk(fs.superblock().def_hash_version());
        let hasher = default.and_then(|algorithm| fs.hasher(algorithm));
        if let (Some(algorithm), Some(hasher), true, LogicalBlock(1)) =
            (default, hasher, has_index, dir.end)
        {
            let guard = epoch::pin();
            let first = fs.place(dir.inode, LogicalBlock(0), &guard)?;
            let root = self.dir_block(dir, first, DirBlock::Leaf)?;
            let (leaf_place, leaf) = self.append_block(dir, DirBlock::Leaf)?;
            let [root_bytes, leaf_bytes] = self.disjoint_mut([root, leaf]);
            edit::make_indexed(&dir.format, root_bytes, leaf_bytes, algorithm)
                .map_err(|error| dir.broken(error))?;
            self.set_tag(root, dir.tag(DirBlock::Root));
            self.edit(dir.slot, |inode| {
                inode.set_flags(inode.flags() | InodeFlags::INDEX_FL);
            })?;
            let step = PathStep {
                place: first,
                position: 0,
            };
            return self.add_splitting(dir, new, &hasher, &[step], leaf_place);
        }
        let (_, region) = self.append_block(dir, DirBlock::Leaf)?;
        dir.format.init_leaf(self.bytes_mut(region));
        let inserted = dir.format.insert(self.bytes_mut(region), new);
        inserted.map(drop).map_err(|error| dir.broken(error))
    }

    fn add_indexed(&mut self, dir: &mut ChangedDir<'_>, new: &NewEntry<'_>) -> Result<()> {
        let guard = epoch::pin();
        let (hasher, path, leaf) = self.index_path(dir, new.name(), &guard)?;
        let region = self.dir_block(dir, leaf, DirBlock::Leaf)?;
        let inserted = dir.format.insert(self.bytes_mut(region), new);
        if inserted.map_err(|error| dir.broken(error))?.is_some() {
            return Ok(());
        }
        self.add_splitting(dir, new, &hasher, &path, leaf)
    }

    /// The way to the leaf to which the hash of `name` leads first.
    fn index_path(
        &self,
        dir: &ChangedDir<'_>,
        name: &[u8],
        guard: &Guard,
    ) -> Result<(NameHasher, Vec<PathStep>, Place)> {
        let (fs, inode) = (self.fs(), dir.inode);
        let wanted = fs.wanted(inode, name);
        let first = fs.place(inode, LogicalBlock(0), guard)?;
        let root = fs.check_dir_block(inode, &dir.format, first.block, DirBlock::Root, guard)?;
        let info = htree::root_info(root).map_err(|error| dir.broken(error))?;
        let no_hash = || Error::Unsupported("the directory's hash function is not known".into());
        let hasher = fs.hasher(info.algorithm).ok_or_else(no_hash)?;
        let input = wanted.hash_input().ok_or_else(no_hash)?;
        let hash = hasher.hash(input).hash;
        let mut index = Index::root(root).map_err(|error| dir.broken(error))?;
        let mut place = first;
        let mut path = Vec::with_capacity(3);
        loop {
            let position = index.search(hash);
            path.push(PathStep { place, position });
            let below = index.block(position).unwrap_or(LogicalBlock(0));
            place = fs.place(inode, below, guard)?;
            if path.len() > usize::from(info.indirect_levels) {
                return Ok((hasher, path, place));
            }
            let node =
                fs.check_dir_block(inode, &dir.format, place.block, DirBlock::Node, guard)?;
            index = Index::node(node).map_err(|error| dir.broken(error))?;
        }
    }

    /// Divides the full `leaf` at the end of `path`, and adds the name to its half.
    fn add_splitting(
        &mut self,
        dir: &mut ChangedDir<'_>,
        new: &NewEntry<'_>,
        hasher: &NameHasher,
        path: &[PathStep],
        leaf: Place,
    ) -> Result<()> {
        self.raise_sequence();
        let old = self.dir_block(dir, leaf, DirBlock::Leaf)?;
        let wanted_hash = |fs: &Fs, name: &[u8]| {
            let wanted = fs.wanted(dir.inode, name);
            hasher.hash(wanted.hash_input().unwrap_or(name)).hash
        };
        let fs = self.fs();
        let mut split = LeafSplit::default();
        split
            .plan(&dir.format, self.bytes(old), |entry| {
                wanted_hash(fs, entry.name)
            })
            .map_err(|error| dir.broken(error))?;
        let hash = wanted_hash(fs, new.name());
        let mut regions = Vec::with_capacity(path.len());
        for (level, step) in path.iter().enumerate() {
            let what = if level == 0 {
                DirBlock::Root
            } else {
                DirBlock::Node
            };
            regions.push(self.dir_block(dir, step.place, what)?);
        }
        let growth = {
            let mut steps = Vec::with_capacity(path.len());
            for (level, (step, &region)) in path.iter().zip(&regions).enumerate() {
                let bytes = self.bytes(region);
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
            let growth = edit::growth(&steps, split.hash(), fs.index_levels());
            growth
                .map_err(|error| dir.broken(error))?
                .ok_or(Error::NoSpace)?
        };
        let (new_place, fresh) = self.append_block(dir, DirBlock::Leaf)?;
        let mut nodes = Vec::with_capacity(growth.new_nodes);
        for _ in 0..growth.new_nodes {
            nodes.push(self.append_block(dir, DirBlock::Node)?);
        }
        let [old_bytes, new_bytes] = self.disjoint_mut([old, fresh]);
        split.carry_out(&dir.format, old_bytes, new_bytes);
        let child = Child {
            hash: split.hash(),
            block: new_place.at,
        };
        self.enter_leaf(dir, path, &regions, child, &nodes)?;
        let half = if split.moves(hash) { fresh } else { old };
        let inserted = dir.format.insert(self.bytes_mut(half), new);
        match inserted.map_err(|error| dir.broken(error))? {
            Some(_) => Ok(()),
            None => Err(Error::NoSpace),
        }
    }

    /// Enters a new leaf into the index blocks of `path`.
    fn enter_leaf(
        &mut self,
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
        let all = self.all_mut(&wanted).ok_or_else(|| dir.broken(twice))?;
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

    /// Adds a block at the directory's end, all zeroes so far.
    fn append_block(
        &mut self,
        dir: &mut ChangedDir<'_>,
        what: DirBlock,
    ) -> Result<(Place, RegionId)> {
        let at = dir.end;
        let (block, region) = self.new_block(dir.inode, dir.slot, at, dir.tag(what))?;
        dir.end = LogicalBlock(at.0 + 1);
        let size = u64::from(dir.end.0) << self.fs().geometry().block_size().bits();
        let sized = self.edit(dir.slot, |inode| inode.set_size_bytes(size))?;
        sized.map_err(|_| Error::FileTooLarge)?;
        Ok((Place { at, block }, region))
    }

    /// Adds a block of entries at the directory's end.
    pub(crate) fn append_leaf(&mut self, dir: &mut ChangedDir<'_>, block: &[u8]) -> Result<()> {
        let (_, region) = self.append_block(dir, DirBlock::Leaf)?;
        self.bytes_mut(region).copy_from_slice(block);
        Ok(())
    }

    /// Finds the block and the byte at which the entry of `name` lies.
    fn find_entry(&self, dir: &ChangedDir<'_>, name: &[u8]) -> Result<(Place, usize)> {
        let guard = epoch::pin();
        let fs = self.fs();
        let wanted = fs.wanted(dir.inode, name);
        let indexed = fs.is_indexed(dir.inode);
        let start = if indexed && wanted.hash_input().is_some() {
            let (_, _, leaf) = self.index_path(dir, name, &guard)?;
            Some(leaf)
        } else {
            None
        };
        let find_in_leaf = |leaf: Place| {
            let found = fs.look_at_leaf(dir.inode, &dir.format, leaf.block, &guard, |bytes| {
                let entry = wanted.find_in(&dir.format, bytes)?;
                Ok(entry.map(|entry| (leaf, entry.at)))
            })?;
            found.map_err(|error: DirentError| dir.broken(error))
        };
        // The leaf that the hash leads to first; then, for names whose hashes are equal or were
        // computed by other rules, all others.
        if let Some(leaf) = start
            && let Some(found) = find_in_leaf(leaf)?
        {
            return Ok(found);
        }
        let is_plain = !dir.inode.has(InodeFlags::INDEX_FL);
        for at in 0..dir.end.0 {
            let place = fs.place(dir.inode, LogicalBlock(at), &guard)?;
            let at = (place.at, place.block);
            let is_leaf = is_plain
                || fs
                    .listed_bytes(dir.inode, &dir.format, at, &guard)?
                    .is_some();
            if is_leaf && let Some(found) = find_in_leaf(place)? {
                return Ok(found);
            }
        }
        Err(Error::NotFound)
    }

    /// Removes a name.
    pub(crate) fn remove_name(&mut self, dir: &ChangedDir<'_>, name: &[u8]) -> Result<()> {
        if dir.is_inline() {
            return self.remove_inline(dir, name);
        }
        let (place, at) = self.find_entry(dir, name)?;
        let region = self.dir_block(dir, place, DirBlock::Leaf)?;
        self.lose_name(dir.inode.nr(), name)?;
        let removed = dir.format.remove(self.bytes_mut(region), at);
        removed.map_err(|error| dir.broken(error))
    }

    /// Lets a name lead to another inode.
    pub(crate) fn redirect_name(
        &mut self,
        dir: &ChangedDir<'_>,
        name: &[u8],
        inode: InodeNr,
        kind: EntryType,
    ) -> Result<()> {
        if dir.is_inline() {
            return self.redirect_inline(dir, name, (inode, kind));
        }
        let (place, at) = self.find_entry(dir, name)?;
        let region = self.dir_block(dir, place, DirBlock::Leaf)?;
        self.lose_name(dir.inode.nr(), name)?;
        let redirected = dir.format.redirect(self.bytes_mut(region), at, inode, kind);
        redirected.map_err(|error| dir.broken(error))
    }

    /// Lets `..` of a directory lead to another parent.
    pub(crate) fn set_parent(&mut self, dir: &ChangedDir<'_>, parent: InodeNr) -> Result<()> {
        if dir.is_inline() {
            return self.set_inline_parent(dir, parent);
        }
        let guard = epoch::pin();
        let first = self.fs().place(dir.inode, LogicalBlock(0), &guard)?;
        let what = if self.fs().is_indexed(dir.inode) {
            DirBlock::Root
        } else {
            DirBlock::Leaf
        };
        let region = self.dir_block(dir, first, what)?;
        let set = dir.format.set_parent(self.bytes_mut(region), parent);
        set.map_err(|error| dir.broken(error))
    }

    /// Makes the first block of a new directory.
    pub(crate) fn init_directory(
        &mut self,
        dir: &mut ChangedDir<'_>,
        parent: InodeNr,
    ) -> Result<()> {
        let (_, region) = self.append_block(dir, DirBlock::Leaf)?;
        let dots = Dots {
            own: dir.inode.nr(),
            parent,
        };
        dir.format.init_directory(self.bytes_mut(region), &dots);
        Ok(())
    }
}

//! **Purpose.** Gives directories that lost their hash index in a repair a new one.
//!
//! **Model.** When nothing is left to repair, the names of such a directory are sorted by hash and
//! written to new blocks, whatever is kept in the old ones, and its map is built of the new ones:
//!
//! ```text
//!   block 0: root | index blocks below it, if there are too many leaves | leaves in order of hash
//! ```
//!
//! So a crash while the repair is written leaves the old blocks, which are valid without an index,
//! or the new ones. The caller checks the result as a whole, and gives it up if anything is found.
//!
//! **Not here.** Directories whose names are encrypted or ignore case, file systems with clusters,
//! and directories that need a third level of index blocks: they stay without an index.

use fourscore_ondisk::dirent::write::{LeafWriter, NewEntry};
use fourscore_ondisk::dirent::{DirFormat, Dots, NameForm};
use fourscore_ondisk::dirhash::{HashAlgorithm, NameHash, NameHasher};
use fourscore_ondisk::extent::{Extent, ExtentState};
use fourscore_ondisk::features::Compat;
use fourscore_ondisk::htree::edit::{Child, IndexMut, init_node, init_root};
use fourscore_ondisk::htree::{self, RootInfo};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{InodeNr, LogicalBlock};

use super::editor::{Editor, Left, Patch};
use super::map::push_block;
use super::salvage::{self, Saved};

/// A name with its hash.
struct Hashed {
    hash: NameHash,
    saved: Saved,
}

/// The blocks of an index and its leaves, in the order of the directory.
type Blocks = Vec<Vec<u8>>;

impl Editor<'_> {
    /// Gives a directory an index. Returns whether it has got one: it does not need one, or cannot
    /// have it.
    pub(super) fn index(&self, dir: InodeNr) -> Patch<bool> {
        self.index_as(dir, &self.format_of(dir)?)
    }

    /// As [`index`](Self::index), with blocks of another format than the directory has now.
    pub(super) fn index_as(&self, dir: InodeNr, format: &DirFormat) -> Patch<bool> {
        let other = InodeFlags::INLINE_DATA_FL
            | InodeFlags::INDEX_FL
            | InodeFlags::CASEFOLD_FL
            | InodeFlags::ENCRYPT_FL;
        let is_plain = self.with_inode(dir, |inode| {
            inode.is_directory() && !inode.flags().intersects(other)
        })?;
        let has_clusters = self.volume.geometry().blocks_per_cluster_log() > 0;
        if !is_plain || has_clusters || !self.volume.compat(Compat::DIR_INDEX) {
            return Ok(false);
        }
        let sb = &self.volume.sb;
        let Some(algorithm) = HashAlgorithm::from_disk(sb.def_hash_version()) else {
            return Ok(false);
        };
        let hasher = NameHasher::seeded(algorithm, sb.hash_sign(), sb.hash_seed());
        let old = self.blocks_of(dir)?;
        let (Some(hasher), [first, _, ..], NameForm::Plain) = (hasher, &old[..], format.names)
        else {
            return Ok(false);
        };
        let text = |error: &dyn std::fmt::Display| Left(format!("its index: {error}"));
        let dots = format.dots(&first.bytes).map_err(|error| text(&error))?;
        let all = old
            .iter()
            .flat_map(|block| salvage::entries(format, &block.bytes))
            .filter(|saved| !saved.is_dots());
        let mut entries: Vec<Hashed> = all
            .map(|saved| Hashed {
                hash: hasher.hash(&saved.name),
                saved,
            })
            .collect();
        entries.sort_by_key(|entry| entry.hash);
        let index = Index {
            format,
            block_bytes: self.volume.block_bytes(),
            algorithm,
        };
        let Some(blocks) = index.build(&dots, &entries).map_err(|error| text(&error))? else {
            return Ok(false);
        };
        self.replace_blocks(dir, &blocks)?;
        Ok(true)
    }

    /// Writes a directory of these blocks to new places.
    fn replace_blocks(&self, dir: InodeNr, blocks: &Blocks) -> Patch {
        let mut extents: Vec<Extent> = Vec::new();
        for (logical, bytes) in (0..).zip(blocks) {
            let place = self.take_cluster()?;
            self.write_block(place, bytes)?;
            push_block(&mut extents, logical, place.0, ExtentState::Written);
        }
        self.write_map(dir, &extents)?;
        self.set_size(dir, blocks.len() as u64 * self.volume.block_bytes() as u64)?;
        self.edit_base(dir, |base| {
            base.i_flags = (base.i_flags.get() | InodeFlags::INDEX_FL.bits()).into();
        })
    }
}

/// How an index is built.
struct Index<'a> {
    format: &'a DirFormat,
    block_bytes: usize,
    algorithm: HashAlgorithm,
}

impl Index<'_> {
    /// The blocks of a directory with these entries, which are in the order of their hashes; `None`
    /// if it would need a third level, or a name fits nowhere.
    fn build(&self, dots: &Dots, entries: &[Hashed]) -> Result<Option<Blocks>, htree::HtreeError> {
        let Some((leaves, keys)) = self.leaves(entries) else {
            return Ok(None);
        };
        let root_limit = htree::root_limit(self.format, self.block_bytes);
        let node_limit = htree::node_limit(self.format, self.block_bytes).max(1);
        let nodes = match keys.len() <= root_limit {
            true => 0,
            false => keys.len().div_ceil(node_limit),
        };
        if nodes > root_limit {
            return Ok(None);
        }
        let info = RootInfo {
            algorithm: self.algorithm,
            indirect_levels: u8::from(nodes > 0),
        };
        let mut root = vec![0; self.block_bytes];
        init_root(self.format, &mut root, dots, info, logical(1))?;
        let mut blocks = vec![root];
        let first_leaf = 1 + nodes;
        let mut below = keys.clone();
        if nodes > 0 {
            below.clear();
            for (part, first) in keys
                .chunks(node_limit)
                .zip((first_leaf..).step_by(node_limit))
            {
                let mut node = vec![0; self.block_bytes];
                init_node(self.format, &mut node, logical(first))?;
                push_all(IndexMut::node(&mut node)?, part, first)?;
                self.seal(&mut node, htree::seal_node)?;
                below.extend(part.first());
                blocks.push(node);
            }
        }
        if let Some(root) = blocks.first_mut() {
            push_all(IndexMut::root(root)?, &below, 1)?;
            self.seal(root, htree::seal_root)?;
        }
        blocks.extend(leaves);
        Ok(Some(blocks))
    }

    /// The leaves, and the key of each: its lowest hash, with the lowest bit set if the leaf before
    /// has names with that hash too. There is one leaf at least. `None` if a name fits into none.
    fn leaves(&self, entries: &[Hashed]) -> Option<(Blocks, Vec<u32>)> {
        let room = self.format.room_bytes(self.block_bytes);
        let (mut leaves, mut keys) = (Vec::new(), Vec::new());
        let (mut rest, mut before) = (entries, None);
        loop {
            let mut left = room;
            let fits = |entry: &&Hashed| {
                let needed = self.format.needed_bytes(&entry.saved.name);
                let fits = needed <= left;
                left = left.saturating_sub(needed);
                fits
            };
            let (now, later) = rest.split_at(rest.iter().take_while(fits).count());
            let mut block = vec![0; self.block_bytes];
            let mut writer = LeafWriter::new(self.format, &mut block);
            for Hashed { saved, .. } in now {
                let new = NewEntry::new(saved.inode, &saved.name, saved.kind)?;
                if !writer.append(&new) {
                    return None;
                }
            }
            writer.finish();
            if let Some(seed) = self.format.seed {
                // A leaf has space for its checksum.
                let _ = DirFormat::seal(&mut block, seed);
            }
            let lowest = now.first().map_or(0, |entry| entry.hash.hash);
            keys.push(lowest | u32::from(before == Some(lowest)));
            before = now.last().map(|entry| entry.hash.hash);
            leaves.push(block);
            if later.is_empty() {
                return Some((leaves, keys));
            }
            if now.is_empty() {
                return None;
            }
            rest = later;
        }
    }

    fn seal(
        &self,
        block: &mut [u8],
        how: fn(&mut [u8], fourscore_ondisk::InodeSeed) -> Result<(), htree::HtreeError>,
    ) -> Result<(), htree::HtreeError> {
        self.format.seed.map_or(Ok(()), |seed| how(block, seed))
    }
}

/// Adds the entries of an index block but the first, which it has.
fn push_all(mut index: IndexMut<'_>, keys: &[u32], first: usize) -> Result<(), htree::HtreeError> {
    for (block, &hash) in (first..).zip(keys).skip(1) {
        index.push(Child {
            hash,
            block: logical(block),
        })?;
    }
    Ok(())
}

fn logical(block: usize) -> LogicalBlock {
    LogicalBlock(u32::try_from(block).unwrap_or(u32::MAX))
}

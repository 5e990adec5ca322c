//! **Purpose.** Patches of the tree of directories: a root, `..`, lost+found, and names for what
//! has none.

use fourscore_ondisk::dirent::Dots;
use fourscore_ondisk::dirent::write::NewEntry;
use fourscore_ondisk::extent::{self, Extent, ExtentState};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::htree;
use fourscore_ondisk::inode::{FileMode, FileType, InodeFlags, InodeMut, NewInode, RawInode};
use fourscore_ondisk::time::Timestamp;
use fourscore_ondisk::{InodeGeneration, InodeNr, LogicalBlock, PhysBlock};
use zerocopy::FromBytes;

use super::editor::{Editor, Left, Patch};
use super::salvage::{self, Saved};
use crate::finding::Finding;
use crate::inode::InodeView;

const LOST_AND_FOUND: &[u8] = b"lost+found";

impl Editor<'_> {
    /// Makes inode `nr` a directory with nothing but `.` and `..`.
    fn make_directory(&self, nr: InodeNr, parent: InodeNr, permissions: u16) -> Patch {
        let volume = self.volume;
        let place = self.take_cluster()?;
        let mut bytes = vec![0; volume.geometry().inode_size_bytes()];
        let extents = volume.incompat(Incompat::EXTENTS);
        let flags = if extents {
            InodeFlags::EXTENTS_FL
        } else {
            InodeFlags::empty()
        };
        let new = NewInode {
            mode: FileMode::new(FileType::Directory, permissions),
            uid: 0,
            gid: 0,
            generation: InodeGeneration(self.now),
            links: 2,
            flags,
            project_id: 0,
            now: Timestamp::from_inode(self.now, None),
        };
        let mut inode = InodeMut::init(&mut bytes, &volume.sb, &new)
            .map_err(|error| Left(error.to_string()))?;
        if extents {
            extent::init_root(inode.i_block_mut());
        }
        self.write_inode(nr, &mut bytes)?;
        let first = Extent {
            logical: LogicalBlock(0),
            physical: place,
            blocks: 1,
            state: ExtentState::Written,
        };
        self.write_map(nr, &[first])?;
        self.set_size(nr, volume.block_bytes() as u64)?;
        let sectors = volume.geometry().cluster_size_bytes() as u64 / 512;
        self.set_blocks(nr, sectors)?;
        let format = self.format_of(nr)?;
        let mut block = vec![0; volume.block_bytes()];
        format.init_directory(&mut block, &Dots { own: nr, parent });
        self.write_dir_block(&format, place, &mut block)
    }

    /// Makes an empty root. What was in it goes to lost+found.
    pub(super) fn make_root(&self) -> Patch {
        self.lost_and_found.set(None);
        self.make_directory(InodeNr::ROOT, InodeNr::ROOT, 0o755)
    }

    /// The directory for what has no name; made if there is none. It is looked for once in a round.
    pub(super) fn lost_and_found(&self) -> Patch<InodeNr> {
        if let Some(known) = self.lost_and_found.get() {
            return Ok(known);
        }
        let found = self.find_or_make_lost_and_found()?;
        self.lost_and_found.set(Some(found));
        Ok(found)
    }

    fn find_or_make_lost_and_found(&self) -> Patch<InodeNr> {
        let format = self.format_of(InodeNr::ROOT)?;
        let is_inline =
            self.with_inode(InodeNr::ROOT, |inode| inode.has(InodeFlags::INLINE_DATA_FL))?;
        if is_inline {
            return Err(Left::because(
                "the root is inside its inode and has no lost+found",
            ));
        }
        for block in self.blocks_of(InodeNr::ROOT)? {
            let entries = salvage::entries(&format, &block.bytes);
            let found = entries.iter().find(|saved| saved.name == LOST_AND_FOUND);
            let Some(found) = found else {
                continue;
            };
            let is_usable = self.with_inode(found.inode, |inode| {
                let other = InodeFlags::INLINE_DATA_FL | InodeFlags::ENCRYPT_FL;
                inode.is_directory() && !inode.flags().intersects(other)
            })?;
            return match is_usable {
                true => Ok(found.inode),
                false => Err(Left::because(
                    "/lost+found is no directory that can be used",
                )),
            };
        }
        let nr = self.take_inode()?;
        self.make_directory(nr, InodeNr::ROOT, 0o700)?;
        self.add_name(InodeNr::ROOT, LOST_AND_FOUND, nr)?;
        Ok(nr)
    }

    /// Gives an inode the name `#NUMBER` in lost+found.
    pub(super) fn reconnect(&self, nr: InodeNr) -> Patch {
        let lost = self.lost_and_found()?;
        if lost == nr {
            return Err(Left::because("it is lost+found itself"));
        }
        self.add_name(lost, format!("#{}", nr.0).as_bytes(), nr)?;
        if self.state.directories.contains(nr.0.into()) {
            self.set_dotdot(nr, lost)?;
        }
        Ok(())
    }

    /// Adds a name to a directory.
    fn add_name(&self, dir: InodeNr, name: &[u8], inode: InodeNr) -> Patch {
        let saved = Saved {
            inode,
            name: name.to_vec(),
            kind: self.type_of(inode),
            hash: None,
            is_guess: false,
        };
        self.add_saved(dir, &saved)
    }

    /// Adds an entry to a directory, which loses its index. If no block has space, it gets a new
    /// one.
    pub(super) fn add_saved(&self, dir: InodeNr, saved: &Saved) -> Patch {
        if self.with_inode(dir, |inode| inode.has(InodeFlags::INDEX_FL))? {
            self.drop_index(dir)?;
        }
        let format = self.format_of(dir)?;
        let new = NewEntry::new(saved.inode, &saved.name, saved.kind);
        let mut new = new.ok_or_else(|| Left::because("no entry can hold the name"))?;
        if let Some(hash) = saved.hash {
            new = new.with_hash(hash);
        }
        let mut blocks = self.blocks_of(dir)?;
        for block in &mut blocks {
            let mut bytes = block.bytes.clone();
            if format
                .insert(&mut bytes, &new)
                .is_ok_and(|place| place.is_some())
            {
                return self.write_dir_block(&format, block.place, &mut bytes);
            }
        }
        let mut extents = self.extents_of(dir)?;
        let end = extents.last().map_or(LogicalBlock(0), Extent::logical_end);
        let place = self.next_block(&extents)?;
        let mut bytes = vec![0; self.volume.block_bytes()];
        format.init_leaf(&mut bytes);
        let inserted = format.insert(&mut bytes, &new);
        inserted.map_err(|error| Left(error.to_string()))?;
        self.write_dir_block(&format, place, &mut bytes)?;
        super::map::push_block(&mut extents, end.0.into(), place.0, ExtentState::Written);
        self.write_map(dir, &extents)?;
        let size = (u64::from(end.0) + 1) * self.volume.block_bytes() as u64;
        self.set_size(dir, size)
    }

    /// A block for the end of a file: the next one of its last cluster, or of a new cluster.
    fn next_block(&self, extents: &[Extent]) -> Patch<PhysBlock> {
        let mask = (1_u64 << self.volume.geometry().blocks_per_cluster_log()) - 1;
        let last = extents.last();
        let next = last.map(|last| {
            let end = u64::from(last.logical_end().0);
            (end, last.physical.0 + u64::from(last.blocks))
        });
        match next {
            Some((logical, physical)) if logical & mask != 0 => Ok(PhysBlock(physical)),
            _ => self.take_cluster(),
        }
    }

    /// Makes plain blocks of the index of a directory.
    fn drop_index(&self, dir: InodeNr) -> Patch {
        let block = LogicalBlock(0);
        self.mend_directory(dir, &[&Finding::IndexUnreferenced { dir, block }])
    }

    /// Sets the inode that `..` of a directory refers to.
    pub(super) fn set_dotdot(&self, dir: InodeNr, parent: InodeNr) -> Patch {
        let (is_inline, is_indexed) = self.with_inode(dir, |inode| {
            (
                inode.has(InodeFlags::INLINE_DATA_FL),
                inode.has(InodeFlags::INDEX_FL),
            )
        })?;
        if is_inline {
            return self.edit_inode(dir, |bytes| {
                if let Ok((base, _)) = RawInode::mut_from_prefix(bytes)
                    && let Some(place) = base.i_block.get_mut(..4)
                {
                    place.copy_from_slice(&parent.0.to_le_bytes());
                }
            });
        }
        let format = self.format_of(dir)?;
        let blocks = self.blocks_of(dir)?;
        let first = blocks.first().filter(|block| block.logical == 0);
        let first = first.ok_or_else(|| Left::because("it has no first block"))?;
        let mut bytes = first.bytes.clone();
        format
            .set_parent(&mut bytes, parent)
            .map_err(|error| Left(error.to_string()))?;
        match format.seed.filter(|_| is_indexed) {
            Some(seed) => {
                htree::seal_root(&mut bytes, seed).map_err(|error| Left(error.to_string()))?;
                self.write_block(first.place, &bytes)
            }
            None if is_indexed => self.write_block(first.place, &bytes),
            None => self.write_dir_block(&format, first.place, &mut bytes),
        }
    }

    /// Removes the name of a directory that lies below itself, and gives it one in lost+found.
    pub(super) fn break_loop(&self, nr: InodeNr, parent: InodeNr) -> Patch {
        let finding = Finding::DirTwoNames {
            inode: nr,
            dir: parent,
            other: parent,
        };
        self.lost_and_found.set(None);
        self.mend_directory(parent, &[&finding])?;
        self.reconnect(nr)
    }

    /// Whether an inode without a name holds nothing that is worth a name.
    pub(super) fn is_worthless(&self, nr: InodeNr) -> bool {
        let empty = |inode: &InodeView<'_>| {
            let is_value = inode.has(InodeFlags::EA_INODE_FL);
            let is_file = inode.file_type() == Some(FileType::Regular);
            is_value || (is_file && inode.size_bytes() == 0 && inode.sectors(&self.volume.sb) == 0)
        };
        self.with_inode(nr, empty).unwrap_or(false)
    }
}

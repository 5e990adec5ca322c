//! **Purpose.** Reads the orphan list on disk: the inodes that a crash left half deleted or half
//! truncated.
//!
//! **Model.** An inode that loses blocks or its last name is first put on the orphan list: in a
//! chain through `i_dtime` that begins in the superblock, or in a block of the orphan file. The
//! next read-write mount finishes the deletion or truncation. A read-only mount needs nothing of
//! this: an inode to be deleted has no name, and blocks to be cut off lie behind the file's size.
//!
//! **Invariants.** An inode that is on the list twice is `Corrupt`, so a chain with a cycle cannot
//! make the list grow without end. An orphan file longer than the kernel accepts is `Corrupt` too,
//! so a file that maps the same block again and again is not read forever.

use std::collections::HashSet;

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, InodeSeed, LogicalBlock, PhysBlock, orphan};
use fourscore_sync::Mutex;

use crate::core::Core;
use crate::dir::structure;
use crate::guard::with_guard;
use crate::inode::cache;
use crate::inode::orphan_slots::{SlotNr, SlotTable};
use crate::inode::orphans::{Chain, OrphanFile, Orphans as OrphanRecord};
use crate::map::lookup;
use crate::map::mapping::Target;
use crate::{Result, metadata};

/// The longest orphan file that the kernel and e2fsprogs accept, in bytes.
const ORPHAN_FILE_BYTES_MAX: u64 = 8 << 20;

/// An inode on the orphan list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) inode: InodeNr,
    pub(crate) place: Where,
}

/// The place of an inode on the orphan list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Where {
    /// In the chain that begins in the superblock.
    Chain,
    /// In a slot of a block of the orphan file.
    File { block: usize, index: usize },
}

/// Returns the inodes on the orphan list on disk.
pub(crate) fn orphans(core: &Core) -> Result<Vec<InodeNr>> {
    let found = read_orphans(core)?;
    Ok(found.into_iter().map(|found| found.inode).collect())
}

/// Reads the orphan list from disk.
pub(crate) fn read_orphans(core: &Core) -> Result<Vec<Found>> {
    let mut orphans = Orphans::default();
    read_orphan_chain(core, &mut orphans)?;
    if let Some(file) = core.superblock().orphan_file_inode() {
        read_orphan_file(core, file, &mut orphans)?;
    }
    Ok(orphans.list)
}

fn read_orphan_chain(core: &Core, orphans: &mut Orphans) -> Result<()> {
    let mut next = core.superblock().last_orphan();
    while let Some(inode) = next {
        orphans.add(inode, Where::Chain)?;
        next = Some(InodeNr(cache::load_inode(core, inode)?.dtime())).filter(|next| next.0 != 0);
    }
    Ok(())
}

fn read_orphan_file(core: &Core, file: InodeNr, orphans: &mut Orphans) -> Result<()> {
    let sb = core.superblock();
    let (blocks, seed) = orphan_file_blocks(core, file)?;
    for (nth, &place) in blocks.iter().enumerate() {
        let check = |bytes: &[u8]| {
            orphan::parse(bytes, place, seed, sb)
                .map(drop)
                .map_err(|error| Corrupt::from(error).in_inode(file))
        };
        let entries: Vec<_> = with_guard(core, |guard| {
            let bytes = metadata::metadata(core, place, Structure::OrphanFile, file, guard, check)?;
            let entries = orphan::parse(bytes, place, seed, sb)
                .map_err(|error| Corrupt::from(error).in_inode(file).in_block(place))?;
            Ok(entries.collect())
        })?;
        for (index, inode) in entries {
            orphans.add(inode, Where::File { block: nth, index })?;
        }
    }
    Ok(())
}

/// Returns the blocks of the orphan file, and the seed of their checksums.
pub(crate) fn orphan_file_blocks(
    core: &Core,
    file: InodeNr,
) -> Result<(Vec<PhysBlock>, InodeSeed)> {
    let inode = &cache::inode_copy(core, file)?;
    if inode.size_bytes() > ORPHAN_FILE_BYTES_MAX {
        let error = RelationError::OrphanFileSize {
            found_bytes: inode.size_bytes(),
            limit_bytes: ORPHAN_FILE_BYTES_MAX,
        };
        return Err(Corrupt::from(error).in_inode(file).into());
    }
    let end = structure::size_in_blocks(core, inode)?;
    let place = |at| match lookup::map_locked(core, inode, at)?.target {
        Target::Written(place) => Ok(place),
        Target::Hole | Target::Unwritten(_) => {
            let hole = RelationError::OrphanFileHole { found: at };
            Err(Corrupt::from(hole).in_inode(file).into())
        }
    };
    let places = (0..end.0).map(|block| place(LogicalBlock(block)));
    Ok((
        places.collect::<Result<_>>()?,
        inode.on_disk().checksum_seed(),
    ))
}

/// The orphans found so far.
#[derive(Default)]
struct Orphans {
    list: Vec<Found>,
    seen: HashSet<InodeNr>,
}

impl Orphans {
    fn add(&mut self, inode: InodeNr, place: Where) -> Result<()> {
        if !self.seen.insert(inode) {
            return Err(Corrupt::from(RelationError::OrphanTwice)
                .in_inode(inode)
                .into());
        }
        self.list.push(Found { inode, place });
        Ok(())
    }
}

/// Loads the orphan list from disk, for a read-write mount.
pub(crate) fn load(core: &Core) -> Result<OrphanRecord> {
    let found = read_orphans(core)?;
    let file = match core.superblock().orphan_file_inode() {
        Some(nr) => {
            let (blocks, seed) = orphan_file_blocks(core, nr)?;
            let tag = VerifiedAs::new(Structure::OrphanFile, nr).seeded(seed);
            let slots = fourscore_ondisk::orphan::slots(core.geometry().block_size());
            Some(OrphanFile {
                tag,
                slots: SlotTable::new(blocks.len(), slots),
                blocks: blocks.into(),
            })
        }
        None => None,
    };
    let mut chain = Chain::default();
    // The head was found first.
    for Found { inode, place } in found.into_iter().rev() {
        match (place, &file) {
            (Where::Chain, _) => {
                chain.members.insert(chain.next, inode);
                chain.next += 1;
            }
            (Where::File { block, index }, Some(file)) => {
                file.slots.occupy(SlotNr { block, index }, inode);
            }
            (Where::File { .. }, None) => {}
        }
    }
    Ok(OrphanRecord {
        file,
        chain: Mutex::new(chain),
    })
}

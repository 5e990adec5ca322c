//! **Purpose.** Changes the block pointers that map a file of ext2 or ext3, as part of a plan.
//!
//! **Not here.** The bytes of a block of pointers (`fourscore_ondisk::blockmap`); choosing between
//! the two forms of a map ([`crate::map::update`]); reading the map ([`crate::map::lookup`]).
//!
//! **Model.** Mapping descends from `i_block` and allocates the blocks of pointers that are
//! missing. Unmapping descends all branches that reach into the range. A block of pointers is freed
//! with the last pointer in it, and is revoked like any metadata.
//!
//! ```text
//! i_block -> block of pointers (in the plan) -> .. -> slots -> data
//! ```
//!
//! **Invariants.** A branch has one level less than its parent, so a walk ends whatever the
//! pointers are. If two pointers refer to the same block, the allocator refuses to free it twice. A
//! cluster is a block here: file systems with larger clusters have no such maps.
//!
//! **Locking.** The inode's lock is held.

use std::ops::Range;

use fourscore_block::{Structure, VerifiedAs};
use fourscore_mballoc::ClusterCount;
use fourscore_ondisk::blockmap::{self, BlockMapEditError, BlockMapError, Branch, Path};
use fourscore_ondisk::extent::Extent;
use fourscore_ondisk::{Corrupt, LogicalBlock, PhysBlock};

use crate::dir::changed::tag;
use crate::inode::cached::CachedInode;
use crate::map::account::{self, Freed};
use crate::map::form::MapForm;
use crate::txn::memory::Readers;
use crate::txn::plan::{Content, Plan, RegionId};
use crate::txn::slot::{self, Slot};
use crate::{Error, Result};

/// A file whose pointers are changed.
#[derive(Clone, Copy, Debug)]
struct Mapped<'i> {
    pub(crate) inode: &'i CachedInode,
    pub(crate) slot: Slot,
}

impl Mapped<'_> {
    fn tag(&self) -> VerifiedAs {
        tag(Structure::IndirectMap, self.inode)
    }

    fn broken(&self, error: BlockMapError) -> Error {
        Error::Corrupt(Corrupt::from(error).in_inode(self.inode.nr()))
    }
}

/// The holder of pointers.
#[derive(Clone, Copy, Debug)]
enum Holder {
    /// `i_block`.
    Inode,
    /// A block of the plan.
    Block(RegionId),
}

/// The range that is unmapped.
#[derive(Clone, Debug)]
struct Cut {
    range: Range<LogicalBlock>,
    was: Content,
}

/// Sets pointers to the blocks of `extent`, where the map has a hole.
pub(crate) fn point_to(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    extent: Extent,
) -> Result<()> {
    let file = Mapped { inode, slot };
    let block_size = plan.mount.core.geometry().block_size();
    let mut done = 0;
    while done < extent.blocks {
        let at = LogicalBlock(extent.logical.0.saturating_add(done));
        let path = Path::to(at, block_size).ok_or(Error::FileTooLarge)?;
        let count = path.neighbours().min(extent.blocks - done);
        // Behind the data, which then stays contiguous as far as it goes.
        let goal = PhysBlock(extent.physical.0 + u64::from(extent.blocks));
        let (holder, entry) = holder_of(plan, file, &path, goal)?;
        let hole = blockmap::run(pointers(plan, file, holder)?, entry, count);
        if hole.is_none_or(|hole| hole.physical.is_some() || hole.pointers < count) {
            return Err(file.broken(BlockMapError::Taken { entry }));
        }
        let first = PhysBlock(extent.physical.0 + u64::from(done));
        // No block of pointers has more than 2^14.
        let pointers = u16::try_from(count).unwrap_or(u16::MAX);
        change_pointers(plan, file, holder, |bytes| {
            blockmap::set_run(bytes, entry, first, pointers)
        })?;
        done += count;
    }
    Ok(())
}

/// Returns the holder of the last pointer of `path`, and the pointer's index in it. Blocks of
/// pointers that are missing are allocated near `goal`.
fn holder_of(
    plan: &mut Plan<'_>,
    file: Mapped<'_>,
    path: &Path,
    goal: PhysBlock,
) -> Result<(Holder, u16)> {
    let (&last, above) = path.slots().split_last().unwrap_or((&0, &[]));
    let mut holder = Holder::Inode;
    for &entry in above {
        let below = blockmap::pointer(pointers(plan, file, holder)?, entry);
        let region = match below {
            Some(block) => pointer_block(plan, file, block)?,
            None => {
                let (nr, reach) = (file.inode.nr(), MapForm::Pointers.reach());
                let (block, region) = plan.allocate_metadata(nr, reach, goal, file.tag())?;
                account::count_clusters(plan, file.slot, 1)?;
                change_pointers(plan, file, holder, |bytes| {
                    blockmap::set_pointer(bytes, entry, block).map(drop)
                })?;
                region
            }
        };
        holder = Holder::Block(region);
    }
    Ok((holder, last))
}

/// Clears pointers in `range`, and frees the blocks that they referred to, from the front on and as
/// far as the plan has space.
pub(crate) fn cut_pointers(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    range: Range<LogicalBlock>,
    was: Content,
) -> Result<Freed> {
    let file = Mapped { inode, slot };
    let block_size = plan.mount.core.geometry().block_size();
    let root = <&[u8; 60]>::try_from(slot::i_block(plan, slot)?).map_err(|_| Error::NotFound)?;
    let branches: Vec<Branch> = blockmap::root_branches(root, block_size, range.clone()).collect();
    let cut = Cut { range, was };
    cut_branches(plan, file, Holder::Inode, &branches, &cut)
}

/// Cuts `branches`, which are the pointers of `holder` that reach into the range.
fn cut_branches(
    plan: &mut Plan<'_>,
    file: Mapped<'_>,
    holder: Holder,
    branches: &[Branch],
    cut: &Cut,
) -> Result<Freed> {
    let mut rest = branches;
    while let Some(first) = rest.first() {
        if plan.size() >= plan.capacity() {
            return Ok(Freed::Part);
        }
        if first.levels > 0 {
            if cut_below(plan, file, holder, first, cut)? == Freed::Part {
                return Ok(Freed::Part);
            }
            rest = &rest[1..];
            continue;
        }
        let run = data_run(rest);
        let blocks = u32::try_from(run.len()).unwrap_or(u32::MAX);
        plan.free_clusters(first.block, ClusterCount(blocks), Readers::Possible)?;
        account::count_clusters(plan, file.slot, -i64::from(blocks))?;
        if cut.was == Content::Metadata {
            plan.forget(first.block, blocks);
        }
        change_pointers(plan, file, holder, |bytes| {
            run.iter()
                .try_for_each(|data| blockmap::clear_pointer(bytes, data.slot).map(drop))
        })?;
        rest = &rest[run.len()..];
    }
    Ok(Freed::All)
}

/// Cuts the branches below a block of pointers, and frees the block if no pointer is left in it.
fn cut_below(
    plan: &mut Plan<'_>,
    file: Mapped<'_>,
    holder: Holder,
    branch: &Branch,
    cut: &Cut,
) -> Result<Freed> {
    let block_size = plan.mount.core.geometry().block_size();
    let region = pointer_block(plan, file, branch.block)?;
    let below: Vec<Branch> =
        blockmap::branches(plan.bytes(region), branch, block_size, cut.range.clone()).collect();
    let freed = cut_branches(plan, file, Holder::Block(region), &below, cut)?;
    if freed == Freed::All && blockmap::is_empty(plan.bytes(region)) {
        // A reader with the old pointer may look for the block in vain.
        plan.raise_sequence();
        change_pointers(plan, file, holder, |bytes| {
            blockmap::clear_pointer(bytes, branch.slot).map(drop)
        })?;
        plan.free_metadata(branch.block)?;
        account::count_clusters(plan, file.slot, -1)?;
    }
    Ok(freed)
}

/// Adds the block of pointers at `block` to the plan, and checks it.
fn pointer_block(plan: &mut Plan<'_>, file: Mapped<'_>, block: PhysBlock) -> Result<RegionId> {
    let core = &*plan.mount.core;
    plan.block(block, file.tag(), |bytes| {
        blockmap::check_block(
            bytes,
            core.geometry().block_size(),
            &core.geometry().data_blocks(),
        )
        .map_err(|error| Corrupt::from(error).in_inode(file.inode.nr()))
    })
}

fn pointers<'p>(plan: &'p Plan<'_>, file: Mapped<'_>, holder: Holder) -> Result<&'p [u8]> {
    match holder {
        Holder::Inode => slot::i_block(plan, file.slot),
        Holder::Block(region) => Ok(plan.bytes(region)),
    }
}

fn change_pointers(
    plan: &mut Plan<'_>,
    file: Mapped<'_>,
    holder: Holder,
    change: impl FnOnce(&mut [u8]) -> std::result::Result<(), BlockMapEditError>,
) -> Result<()> {
    let changed = match holder {
        Holder::Inode => slot::edit(plan, file.slot, |inode| change(inode.i_block_mut()))?,
        Holder::Block(region) => change(plan.bytes_mut(region)),
    };
    changed.map_err(|error| Error::Io(std::io::Error::other(error)))
}

/// Returns the branches at the front that are contiguous in the file and on disk.
fn data_run(branches: &[Branch]) -> &[Branch] {
    let follows = |pair: &[Branch]| {
        pair[1].levels == 0
            && pair[1].slot == pair[0].slot + 1
            && pair[1].block.0 == pair[0].block.0 + 1
    };
    let more = branches.windows(2).take_while(|pair| follows(pair)).count();
    &branches[..=more]
}

//! **Purpose.** A step of a growth: blocks that are replaced in one transaction.

use std::collections::{BTreeMap, HashSet};

use fourscore_block::{Buffer, Kept, Structure, VerifiedAs};
use fourscore_journal::{Credits, Handle};
use fourscore_mballoc::ChangeKind;
use fourscore_ondisk::superblock::{SUPERBLOCK_SIZE_BYTES, Superblock};
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock, RawSuperblock};
use fourscore_sync::Arc;
use zerocopy::IntoBytes;

use crate::group::change;
use crate::group::descriptor;
use crate::group::table::{Map, write_bits};
use crate::mount::mark::superblock_part;
use crate::mount::state::Mount;
use crate::txn::refused::{Applying, Refused};
use crate::{Error, Result};

/// The inode of blocks reserved for descriptors.
const RESIZE_INODE: InodeNr = InodeNr(7);

/// The changes of one step.
#[derive(Debug)]
pub struct GrowthStep {
    /// The superblock after the step, of the same file system with the same or more groups.
    pub superblock: Superblock,
    /// The bitmaps of clusters that change, by group, each with its block. The descriptors of the
    /// groups, with counts and checksums, are among `blocks`.
    pub bitmaps: BTreeMap<GroupNr, Bitmap>,
    /// Other blocks that change: of descriptors, of the inode of reserved descriptors, and of its
    /// map.
    pub blocks: BTreeMap<PhysBlock, Vec<u8>>,
}

/// The bitmap of the clusters of a group.
#[derive(Clone, Debug)]
pub struct Bitmap {
    /// Its block.
    pub block: PhysBlock,
    /// Its content after the step: a whole block.
    pub bytes: Vec<u8>,
}

/// A bitmap of clusters that was changed.
pub(super) struct Changed {
    pub(super) before: Vec<u8>,
    pub(super) after: Vec<u8>,
}

/// A block of a step.
struct Part<'s> {
    block: PhysBlock,
    tag: VerifiedAs,
    content: Content<'s>,
}

/// How a block changes.
enum Content<'s> {
    /// To these bytes.
    Whole(&'s [u8]),
    /// As `Whole`, the bitmap of a group.
    Bitmap(GroupNr, &'s [u8]),
    /// The superblock. Only the bytes that differ between these two change: others may have changed
    /// meanwhile.
    Superblock {
        before: &'s RawSuperblock,
        after: &'s RawSuperblock,
    },
}

/// Changes the blocks of a step, and publishes its superblock in the same handle.
pub(super) fn commit(
    mount: &Mount,
    step: &GrowthStep,
    before: &RawSuperblock,
    bitmaps: &mut BTreeMap<GroupNr, Changed>,
) -> Result<()> {
    let parts = parts(mount, step, before);
    let most = mount.journal().most_credits();
    let credits = u32::try_from(parts.len()).ok().map(Credits);
    let Some(credits) = credits.filter(|credits| *credits <= most) else {
        return Err(Error::NotOneTransaction {
            blocks: parts.len() as u64,
            most: most.0.into(),
        });
    };
    for &group in step.bitmaps.keys() {
        note_before(mount, group, bitmaps)?;
    }
    // All blocks stay in the cache, so none of them is refused: a transaction has all of a step.
    let buffers = parts.iter().map(|part| load_kept(mount, part));
    let buffers = buffers.collect::<Result<Vec<_>>>()?;
    let mut handle = mount.start(credits)?;
    for buffer in &buffers {
        let joined = handle.join(buffer);
        joined.map_err(|_| Error::Internal("a block of a growth has left the cache"))?;
    }
    let mut applying = Applying::in_handle(&mut handle);
    for (part, buffer) in parts.iter().zip(&buffers) {
        applying.make(|handle| make(mount, handle, part, buffer));
    }
    applying.end()?;
    mount.core.superblock.publish(step.superblock.clone());
    handle.stop();
    note_changed(step, bitmaps);
    Ok(())
}

/// Writes the blocks of a step that was committed to their places, all but the superblock: see the
/// invariants of the module above. The checkpoint writes the same bytes again.
pub(super) fn put_in_place(mount: &Mount, step: &GrowthStep) -> Result<()> {
    let block_size = mount.core.geometry().block_size();
    let bitmaps = step.bitmaps.values().map(|bitmap| bitmap.block);
    for block in bitmaps.chain(step.blocks.keys().copied()) {
        let bytes = mount.core.buffers.load(block)?.look(<[u8]>::to_vec);
        mount.device.write_at(&bytes, block_size.offset(block))?;
    }
    Ok(mount.device.flush()?)
}

/// The blocks of a step, with what they hold.
fn parts<'s>(mount: &Mount, step: &'s GrowthStep, before: &'s RawSuperblock) -> Vec<Part<'s>> {
    let (core, geometry) = (&mount.core, step.superblock.geometry());
    let (superblock, _) = superblock_part(core, 0..SUPERBLOCK_SIZE_BYTES);
    let tables = change::descriptor_blocks(geometry);
    let tables: HashSet<PhysBlock> = tables.iter().map(|table| table.block).collect();
    let inode = geometry
        .inode_group(RESIZE_INODE)
        .and_then(|(group, index)| {
            let table = mount.groups().get(group)?.inodes().table;
            Some(geometry.inode_place(table, index).block)
        });
    let owned = |structure| VerifiedAs::new(structure, InodeNr(0));
    let mut parts = vec![Part {
        block: superblock,
        tag: owned(Structure::Superblock),
        content: Content::Superblock {
            before,
            after: step.superblock.raw(),
        },
    }];
    for (&group, bitmap) in &step.bitmaps {
        parts.push(Part {
            block: bitmap.block,
            tag: VerifiedAs::of_group(Structure::BlockBitmap, group),
            content: Content::Bitmap(group, &bitmap.bytes),
        });
    }
    for (&block, bytes) in &step.blocks {
        let structure = match block {
            block if tables.contains(&block) => Structure::GroupDescriptors,
            block if Some(block) == inode => Structure::InodeTable,
            _ => Structure::IndirectMap,
        };
        parts.push(Part {
            block,
            tag: owned(structure),
            content: Content::Whole(bytes),
        });
    }
    parts
}

/// Pins the group of a bitmap that is going to change, and keeps its bits.
fn note_before(
    mount: &Mount,
    group: GroupNr,
    bitmaps: &mut BTreeMap<GroupNr, Changed>,
) -> Result<()> {
    // The allocator does not know of a group that is being added.
    if bitmaps.contains_key(&group) || group.0 >= mount.groups().count() {
        return Ok(());
    }
    let found = descriptor::block_bitmap(&mount.core, group)?;
    let mut before = found.as_bytes().to_vec();
    // In the allocator, what lies behind the end is used, whatever the block has there.
    let end = mount.core.geometry().group_clusters(group);
    let bits = u32::try_from(before.len() * 8).unwrap_or(u32::MAX);
    let behind = bits.saturating_sub(end);
    write_bits(&mut before, end, behind, ChangeKind::Set);
    mount.allocator().pin(group).map_err(Error::from)?;
    let after = before.clone();
    bitmaps.insert(group, Changed { before, after });
    Ok(())
}

/// Keeps the bits of bitmaps that have changed.
fn note_changed(step: &GrowthStep, bitmaps: &mut BTreeMap<GroupNr, Changed>) {
    for (group, bitmap) in &step.bitmaps {
        if let Some(changed) = bitmaps.get_mut(group) {
            changed.after.clone_from(&bitmap.bytes);
        }
    }
}

fn load(mount: &Mount, part: &Part<'_>) -> Result<Arc<Buffer>> {
    let buffers = &mount.core.buffers;
    let is_uninit = |group| {
        let group = mount.groups().get(group);
        group.is_some_and(|group| group.place(Map::Blocks).is_uninit())
    };
    match part.content {
        Content::Bitmap(group, _) if is_uninit(group) => Ok(buffers.create_unused(part.block)),
        _ => Ok(buffers.load(part.block)?),
    }
}

/// Loads a block, and keeps it in the cache.
fn load_kept(mount: &Mount, part: &Part<'_>) -> Result<Kept> {
    loop {
        load(mount, part)?;
        if let Some(kept) = mount.core.buffers.keep(part.block) {
            return Ok(kept);
        }
    }
}

fn make(
    mount: &Mount,
    handle: &mut Handle<'_>,
    part: &Part<'_>,
    buffer: &Arc<Buffer>,
) -> std::result::Result<(), Refused> {
    let change = |bytes: &mut [u8]| match part.content {
        Content::Whole(new) | Content::Bitmap(_, new) => bytes.copy_from_slice(new),
        Content::Superblock { before, after } => {
            let (_, place) = superblock_part(&mount.core, 0..SUPERBLOCK_SIZE_BYTES);
            let bytes = bytes[place].iter_mut();
            let pairs = before.as_bytes().iter().zip(after.as_bytes());
            for (byte, (before, after)) in bytes.zip(pairs) {
                if before != after {
                    *byte = *after;
                }
            }
        }
    };
    if let Content::Bitmap(group, bitmap) = part.content {
        return mount.groups().replace_bitmap(handle, buffer, group, bitmap);
    }
    let made = handle.modify(buffer, part.tag, change);
    made.map_err(|error| Refused::new(error, part.block))
}

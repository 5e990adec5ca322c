//! **Purpose.** The groups of a file system that is written: where their bitmaps and tables are,
//! what is counted per group, and the change of bits in a handle.
//!
//! **Not here.** Which clusters are free (`fourscore_mballoc`), which inodes are (`inodes`).
//!
//! **Model.** Bits change in handles. What a descriptor says of its bitmaps follows from them, so
//! it is written once per commit, from the committing copies: see [`Groups::seal_bitmap`] and
//! [`Groups::seal_descriptors`]. So no handle changes a descriptor block for a bit, which all
//! groups in that block would have in common; but the block joins the transaction with the first
//! bitmap that does.
//!
//! **Invariants.** A descriptor block is in every transaction in which a bitmap of its groups is.
//! A bitmap that was never written (`*_UNINIT`) is made up in the first handle that changes it.
//!
//! **Locking.** None but those of buffers. What is sealed is written by the committer alone.

use fourscore_block::{Buffer, BufferCache, Retired, Structure, VerifiedAs};
use fourscore_journal::Handle;
use fourscore_mballoc::{ChangeKind, GroupCounts, InodeSource, Totals};
use fourscore_ondisk::group::{self, BitmapSummary, GroupDescMut, GroupFlags};
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock};
use fourscore_sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use fourscore_sync::{Arc, CachePadded, CoreNr, PerCore};

use crate::Result;
use crate::txn::refused::Refused;

/// One of the two bitmaps of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Map {
    /// Of clusters.
    Blocks,
    /// Of inodes.
    Inodes,
}

impl Map {
    fn structure(self) -> Structure {
        match self {
            Self::Blocks => Structure::BlockBitmap,
            Self::Inodes => Structure::InodeBitmap,
        }
    }
}

/// What the committer saw last in a bitmap.
#[derive(Debug, Default)]
struct Sealed {
    known: AtomicBool,
    free: AtomicU32,
    checksum: AtomicU32,
    unused_tail: AtomicU32,
}

impl Sealed {
    fn set(&self, summary: &BitmapSummary) {
        self.free.store(summary.free, Ordering::Relaxed);
        self.checksum.store(summary.checksum, Ordering::Relaxed);
        self.unused_tail
            .store(summary.unused_tail, Ordering::Relaxed);
        self.known.store(true, Ordering::Release);
    }

    fn get(&self) -> Option<BitmapSummary> {
        self.known.load(Ordering::Acquire).then(|| BitmapSummary {
            free: self.free.load(Ordering::Relaxed),
            checksum: self.checksum.load(Ordering::Relaxed),
            unused_tail: self.unused_tail.load(Ordering::Relaxed),
        })
    }
}

/// One bitmap of a group.
#[derive(Debug)]
pub(crate) struct BitmapPlace {
    block: PhysBlock,
    /// Whether it has to be made up before its first change.
    uninit: AtomicBool,
    sealed: Sealed,
    /// Bits that are free on disk.
    free: AtomicU32,
}

impl BitmapPlace {
    pub(crate) fn new(block: PhysBlock, uninit: bool, free: u32) -> Self {
        Self {
            block,
            uninit: AtomicBool::new(uninit),
            sealed: Sealed::default(),
            free: AtomicU32::new(free),
        }
    }

    pub(crate) fn block(&self) -> PhysBlock {
        self.block
    }

    /// Whether it has to be made up before its first change.
    pub(crate) fn is_uninit(&self) -> bool {
        self.uninit.load(Ordering::Acquire)
    }
}

/// What is known of one group. Who gets its clusters and who gets its inodes are different cores as
/// a rule, so each of the two has a cache line.
#[derive(Debug)]
pub(crate) struct Group {
    blocks: OnLine<BitmapPlace>,
    inodes: OnLine<InodesOfGroup>,
}

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(64))]
struct OnLine<T>(T);

/// What is known of the inodes of a group.
#[derive(Debug)]
pub(crate) struct InodesOfGroup {
    bitmap: BitmapPlace,
    pub(crate) table: PhysBlock,
    /// Blocks of the inode table that hold inodes or zeroes.
    pub(crate) table_ready: AtomicU32,
    used_dirs: AtomicU32,
}

impl InodesOfGroup {
    pub(crate) fn new(
        bitmap: BitmapPlace,
        table: PhysBlock,
        ready_blocks: u32,
        used_dirs: u32,
    ) -> Self {
        Self {
            bitmap,
            table,
            table_ready: AtomicU32::new(ready_blocks),
            used_dirs: AtomicU32::new(used_dirs),
        }
    }
}

impl Group {
    pub(crate) fn new(blocks: BitmapPlace, inodes: InodesOfGroup) -> Self {
        Self {
            blocks: OnLine(blocks),
            inodes: OnLine(inodes),
        }
    }

    pub(crate) fn inodes(&self) -> &InodesOfGroup {
        &self.inodes.0
    }

    pub(crate) fn place(&self, map: Map) -> &BitmapPlace {
        match map {
            Map::Blocks => &self.blocks.0,
            Map::Inodes => &self.inodes().bitmap,
        }
    }
}

/// What a core has changed of the sums over all groups.
#[derive(Debug, Default)]
struct Changed {
    free_clusters: AtomicI64,
    free_inodes: AtomicI64,
    used_dirs: AtomicI64,
}

/// All groups.
#[derive(Debug)]
pub(crate) struct Groups {
    superblock: Arc<Superblock>,
    buffers: Arc<BufferCache>,
    groups: Box<[CachePadded<Group>]>,
    /// The sums over all groups when they were read, and what cores have changed of them since: a
    /// directory is placed by these, and must not ask each group.
    sums_at_first: Totals,
    changed: PerCore<Changed>,
    /// The blocks of descriptors in ascending order, each with the first group in it.
    tables: Box<[(PhysBlock, GroupNr)]>,
}

/// The change of bits of one bitmap, ready to be made in a handle.
#[derive(Debug)]
pub(crate) struct BitsChange {
    pub(crate) group: GroupNr,
    pub(crate) map: Map,
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) kind: ChangeKind,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) descriptors: PhysBlock,
    /// `None` where the bitmap was in the running transaction already, and so were they: to hold
    /// them is to write a count that 64 groups have in common.
    pub(crate) held: Option<Arc<Buffer>>,
    /// The content of a bitmap that was never written.
    pub(crate) made_up: Option<Box<[u8]>>,
}

impl BitsChange {
    /// The two blocks that the change may add to a transaction.
    pub(crate) fn blocks(&self) -> [PhysBlock; 2] {
        [self.buffer.block(), self.descriptors]
    }

    /// Brings the blocks into the transaction without changing them.
    pub(crate) fn join(&self, handle: &mut Handle<'_>) -> std::result::Result<(), Refused> {
        if self.buffer.is_dirty_in(handle.tid()) {
            return Ok(());
        }
        // The descriptors first: who finds the bitmap in the transaction relies on them.
        join_descriptors(handle, self.held()?)?;
        let tag = VerifiedAs::of_group(self.map.structure(), self.group);
        handle
            .modify(&self.buffer, tag, |_| ())
            .map_err(|error| Refused::new(error, self.buffer.block()))
    }

    /// The block of descriptors; refused, so that it is loaded, if nobody thought it was needed.
    fn held(&self) -> std::result::Result<&Arc<Buffer>, Refused> {
        let missing = || Refused::new(Retired.into(), self.descriptors);
        self.held.as_ref().ok_or_else(missing)
    }
}

/// What a change of a bitmap is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// What its descriptor says of it follows from its bits alone.
    Bits,
    /// Its group gets a directory more or fewer, which only the descriptor says.
    Directory,
}

fn join_descriptors(
    handle: &mut Handle<'_>,
    buffer: &Arc<Buffer>,
) -> std::result::Result<(), Refused> {
    handle
        .join(buffer, descriptors_tag())
        .map_err(|error| Refused::new(error, buffer.block()))
}

fn descriptors_tag() -> VerifiedAs {
    VerifiedAs::new(Structure::GroupDescriptors, InodeNr(0))
}

impl Groups {
    /// The state of all `groups`, in order. `tables` names the blocks of descriptors, each with the
    /// first group in it, in the order of blocks.
    pub(crate) fn new(
        superblock: Arc<Superblock>,
        buffers: Arc<BufferCache>,
        groups: Vec<Group>,
        tables: Vec<(PhysBlock, GroupNr)>,
    ) -> Self {
        let mut sums_at_first = Totals::default();
        for counts in groups.iter().map(Group::counts) {
            sums_at_first.free_inodes += u64::from(counts.free_inodes);
            sums_at_first.free_clusters += u64::from(counts.free_clusters);
            sums_at_first.used_dirs += u64::from(counts.used_dirs);
        }
        Self {
            superblock,
            buffers,
            groups: groups.into_iter().map(CachePadded::new).collect(),
            sums_at_first,
            changed: PerCore::default(),
            tables: tables.into(),
        }
    }

    pub(crate) fn get(&self, group: GroupNr) -> Option<&Group> {
        self.groups.get(group.0 as usize).map(|group| &**group)
    }

    /// Inodes that are free on disk in a group.
    pub(crate) fn free_inodes(&self, group: GroupNr) -> u32 {
        self.get(group).map_or(0, |group| group.free(Map::Inodes))
    }

    /// Whether a bitmap was never written; `flag` names which.
    pub(crate) fn is_uninit(&self, group: GroupNr, flag: GroupFlags) -> bool {
        let map = if flag == GroupFlags::BLOCK_UNINIT {
            Map::Blocks
        } else {
            Map::Inodes
        };
        self.get(group)
            .is_some_and(|group| group.place(map).uninit.load(Ordering::Acquire))
    }

    /// Fetches the buffers of a change anew, because one of them had left the cache.
    pub(crate) fn reload(&self, change: &mut BitsChange) -> Result<()> {
        let [bitmap, descriptors] = change.blocks();
        change.held = Some(self.buffers.load(descriptors)?);
        let state = self.get(change.group);
        let uninit =
            state.is_some_and(|group| group.place(change.map).uninit.load(Ordering::Acquire));
        change.buffer = if uninit {
            self.buffers.create(bitmap)
        } else {
            self.buffers.load(bitmap)?
        };
        Ok(())
    }

    /// Makes the change in a handle that its blocks have joined. Its bits belong to nobody else.
    pub(crate) fn make(
        &self,
        handle: &mut Handle<'_>,
        change: &BitsChange,
    ) -> std::result::Result<(), Refused> {
        let Some(state) = self.get(change.group) else {
            return Ok(());
        };
        let place = state.place(change.map);
        let tag = VerifiedAs::of_group(change.map.structure(), change.group);
        let made = handle.modify(&change.buffer, tag, |bytes| {
            // Under the buffer's lock, so that it is made up once.
            if let Some(made_up) = &change.made_up
                && place.uninit.load(Ordering::Relaxed)
            {
                bytes.copy_from_slice(made_up);
                place.uninit.store(false, Ordering::Release);
            }
            write_bits(bytes, change.start, change.len, change.kind);
        });
        made.map_err(|error| Refused::new(error, change.buffer.block()))?;
        let changed = self.changed.of(CoreNr::current());
        let counter = &place.free;
        let sum = match change.map {
            Map::Blocks => &changed.free_clusters,
            Map::Inodes => &changed.free_inodes,
        };
        let len = i64::from(change.len);
        match change.kind {
            ChangeKind::Set => {
                counter.fetch_sub(change.len, Ordering::Relaxed);
                sum.fetch_sub(len, Ordering::Relaxed);
            }
            ChangeKind::Clear => {
                counter.fetch_add(change.len, Ordering::Relaxed);
                sum.fetch_add(len, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Sets the bits of a change in a handle, and counts nothing: for a fault on purpose.
    pub(crate) fn mark_uncounted(
        &self,
        handle: &mut Handle<'_>,
        change: &BitsChange,
    ) -> std::result::Result<(), Refused> {
        let tag = VerifiedAs::of_group(change.map.structure(), change.group);
        let made = handle.modify(&change.buffer, tag, |bytes| {
            write_bits(bytes, change.start, change.len, change.kind);
        });
        made.map_err(|error| Refused::new(error, change.buffer.block()))
    }

    /// Notes in a handle that a group has a directory more, or fewer.
    pub(crate) fn change_used_dirs(
        &self,
        handle: &mut Handle<'_>,
        bits: &BitsChange,
        change: i32,
    ) -> std::result::Result<(), Refused> {
        let geometry = self.superblock.geometry();
        let offset = geometry
            .desc_place(bits.group)
            .map_or(0, |place| place.offset_bytes);
        let buffer = bits.held()?;
        let changed = handle.modify(buffer, descriptors_tag(), |bytes| {
            let bytes = bytes.get_mut(offset..).unwrap_or_default();
            if let Ok(mut desc) = GroupDescMut::new(bytes, &self.superblock) {
                desc.change_used_dirs(change);
            }
            // Readers verify what they find.
            let _ = group::seal(bytes, bits.group, &self.superblock);
        });
        changed.map_err(|error| Refused::new(error, buffer.block()))?;
        if let Some(state) = self.get(bits.group) {
            let dirs = &state.inodes().used_dirs;
            dirs.fetch_add(change.cast_unsigned(), Ordering::Relaxed);
            let changed = self.changed.of(CoreNr::current());
            changed
                .used_dirs
                .fetch_add(i64::from(change), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Notes what the committing copy of a bitmap says.
    pub(crate) fn seal_bitmap(&self, tag: VerifiedAs, bytes: &[u8]) {
        let geometry = self.superblock.geometry();
        let Some(state) = self.get(tag.group()) else {
            return;
        };
        let (map, bits, covered) = match tag.structure() {
            Some(Structure::BlockBitmap) => {
                let bits = geometry.group_clusters(tag.group());
                (Map::Blocks, bits, geometry.clusters_per_group())
            }
            _ => {
                let bits = geometry.inodes_per_group();
                (Map::Inodes, bits, bits)
            }
        };
        let summary = BitmapSummary::of(bytes, bits, covered, &self.superblock);
        state.place(map).sealed.set(&summary);
    }

    /// Writes into the committing copy of a block of descriptors what the bitmaps of its groups
    /// say that were committed with it or before.
    pub(crate) fn seal_descriptors(&self, block: PhysBlock, bytes: &mut [u8]) {
        let geometry = self.superblock.geometry();
        let per_block = geometry.descs_per_block();
        let Some(GroupNr(first)) = self.first_group_of(block) else {
            return;
        };
        for nr in first..first.saturating_add(per_block).min(geometry.groups()) {
            let (Some(state), Some(place)) =
                (self.get(GroupNr(nr)), geometry.desc_place(GroupNr(nr)))
            else {
                continue;
            };
            let sealed = [Map::Blocks, Map::Inodes].map(|map| state.place(map).sealed.get());
            if sealed == [None, None] || place.block != block {
                continue;
            }
            let bytes = bytes.get_mut(place.offset_bytes..).unwrap_or_default();
            if let Ok(mut desc) = GroupDescMut::new(bytes, &self.superblock) {
                let [blocks, inodes] = &sealed;
                blocks
                    .iter()
                    .for_each(|summary| desc.set_block_bitmap(summary));
                inodes
                    .iter()
                    .for_each(|summary| desc.set_inode_bitmap(summary));
            }
            // A block of descriptors is as long as its descriptors.
            let _ = group::seal(bytes, GroupNr(nr), &self.superblock);
        }
    }

    /// Whether `block` is one of descriptors, which follow from other blocks of a transaction.
    pub(crate) fn is_descriptors(&self, block: PhysBlock) -> bool {
        self.first_group_of(block).is_some()
    }

    fn first_group_of(&self, block: PhysBlock) -> Option<GroupNr> {
        let at = self
            .tables
            .binary_search_by_key(&block, |&(block, _)| block);
        at.ok().map(|at| self.tables[at].1)
    }

    /// The sums over all groups, exact while nobody changes them.
    pub(crate) fn sums(&self) -> Totals {
        let changed = |count: fn(&Changed) -> &AtomicI64| -> i64 {
            let cores = self.changed.iter();
            cores.map(|core| count(core).load(Ordering::Relaxed)).sum()
        };
        let first = self.sums_at_first;
        Totals {
            free_inodes: first
                .free_inodes
                .saturating_add_signed(changed(|core| &core.free_inodes)),
            free_clusters: first
                .free_clusters
                .saturating_add_signed(changed(|core| &core.free_clusters)),
            used_dirs: first
                .used_dirs
                .saturating_add_signed(changed(|core| &core.used_dirs)),
        }
    }
}

impl Group {
    fn free(&self, map: Map) -> u32 {
        self.place(map).free.load(Ordering::Relaxed)
    }

    pub(crate) fn counts(&self) -> GroupCounts {
        GroupCounts {
            free_inodes: self.free(Map::Inodes),
            free_clusters: self.free(Map::Blocks),
            used_dirs: self.inodes().used_dirs.load(Ordering::Relaxed),
        }
    }
}

impl InodeSource for Groups {
    fn counts(&self, group: GroupNr) -> GroupCounts {
        self.get(group).map(Group::counts).unwrap_or_default()
    }

    fn totals(&self) -> Totals {
        self.sums()
    }
}

/// Sets or clears `len` bits from `start` on, whole bytes at a time.
pub(crate) fn write_bits(bytes: &mut [u8], start: u32, len: u32, kind: ChangeKind) {
    let mut at = start;
    let end = start.saturating_add(len);
    while at < end {
        let upto = (at / 8 + 1).saturating_mul(8).min(end);
        let ones = 0xff_u8 >> (8 - (upto - at)) << (at % 8);
        let Some(byte) = bytes.get_mut(at as usize / 8) else {
            return;
        };
        match kind {
            ChangeKind::Set => *byte |= ones,
            ChangeKind::Clear => *byte &= !ones,
        }
        at = upto;
    }
}

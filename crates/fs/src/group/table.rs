//! **Purpose.** The groups of a read-write mount: the locations of their bitmaps and tables, counts
//! per group, and the change of bits in a handle.
//!
//! **Not here.** Which clusters are free (`fourscore_mballoc`) and which inodes are free
//! (`inode::free_inodes`).
//!
//! **Model.** Bits change in handles. The fields of a descriptor that describe its bitmaps follow
//! from the bitmaps, so they are written once per commit, from the committing copies: see
//! [`Groups::seal_bitmap`] and [`Groups::seal_descriptors`]. So a handle that changes a bit does
//! not change the descriptor block, which all groups in that block share. The descriptor block
//! still joins the transaction together with the first bitmap.
//!
//! The live descriptor may lag behind its bitmap: if the next transaction changes the block of
//! descriptors before the committer has sealed it, the summaries go into the committing copy only,
//! and the live block gets them when the next transaction is sealed. A bitmap that is read again
//! meanwhile is verified by the sealed summary ([`BitmapPlace::seal_mark`]), not by the descriptor.
//!
//! **Invariants.** A descriptor block is in every transaction that contains a bitmap of its groups.
//! A bitmap that was never written (`*_UNINIT`) is initialized in the first handle that changes it.
//!
//! Groups that are added while the file system is mounted are behind another pointer, which a
//! lookup follows only for them. Their sums, their blocks of descriptors and the size become
//! visible together ([`Extent`]).
//!
//! **Locking.** None but the locks of buffers. Only the committer writes the sealed summaries.

use std::collections::BTreeMap;

use fourscore_block::{Buffer, BufferCache, Retired, Structure, VerifiedAs};
use fourscore_journal::Handle;
use fourscore_mballoc::{ChangeKind, GroupCounts, InodeSource, Totals};
use fourscore_ondisk::group::{self, BitmapSummary, GroupDescMut, GroupFlags};
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock};
use fourscore_sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use fourscore_sync::profile::{self, Section};
use fourscore_sync::{Arc, CachePadded, CoreNr, PerCore, Versions};

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
    pub(crate) fn structure(self) -> Structure {
        match self {
            Self::Blocks => Structure::BlockBitmap,
            Self::Inodes => Structure::InodeBitmap,
        }
    }
}

/// The summary of a bitmap in the last commit that contained it: what its home location holds
/// whenever its buffer may leave the cache.
#[derive(Debug, Default)]
struct Sealed {
    /// A [`SealMark`]. It is written last.
    mark: AtomicU64,
    free: AtomicU32,
    unused_tail: AtomicU32,
}

/// Which seal of a bitmap was the last, and the checksum that it found. One word, so that a reader
/// never has the number of one seal with the checksum of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealMark(u64);

impl SealMark {
    /// The mark of the seal after this one.
    fn next(self, checksum: u32) -> Self {
        let nth = (self.0 >> 32).wrapping_add(1) & u64::from(u32::MAX);
        Self(nth.max(1) << 32 | u64::from(checksum))
    }

    /// The checksum of the bitmap; `None` if it was not sealed since the mount.
    pub(crate) fn checksum(self) -> Option<u32> {
        let checksum = self.0 & u64::from(u32::MAX);
        (self != Self(0)).then(|| u32::try_from(checksum).unwrap_or_default())
    }
}

impl Sealed {
    fn mark(&self) -> SealMark {
        SealMark(self.mark.load(Ordering::Acquire))
    }

    fn set(&self, summary: &BitmapSummary) {
        self.free.store(summary.free, Ordering::Relaxed);
        self.unused_tail
            .store(summary.unused_tail, Ordering::Relaxed);
        let mark = self.mark().next(summary.checksum);
        self.mark.store(mark.0, Ordering::Release);
    }

    /// Returns the summary, for the committer.
    fn get(&self) -> Option<BitmapSummary> {
        let checksum = self.mark().checksum()?;
        Some(BitmapSummary {
            free: self.free.load(Ordering::Relaxed),
            checksum,
            unused_tail: self.unused_tail.load(Ordering::Relaxed),
        })
    }
}

/// The largest count of a descriptor that is believed: more than any group has.
const MOST_COUNTED: u32 = 1 << 30;

/// Returns a count of a group; 0 if it has wrapped below zero. A count begins with what the
/// descriptor says. If that is less than the bitmap has, threads can take more than was counted.
fn counted(count: u32) -> u32 {
    count.cast_signed().max(0).cast_unsigned()
}

/// One bitmap of a group.
#[derive(Debug)]
pub(crate) struct BitmapPlace {
    block: PhysBlock,
    /// Whether it must be initialized before its first change.
    uninit: AtomicBool,
    sealed: Sealed,
    /// The number of bits that are free on disk.
    free: AtomicU32,
}

impl BitmapPlace {
    pub(crate) fn new(block: PhysBlock, uninit: bool, free: u32) -> Self {
        Self {
            block,
            uninit: AtomicBool::new(uninit),
            sealed: Sealed::default(),
            free: AtomicU32::new(free.min(MOST_COUNTED)),
        }
    }

    pub(crate) fn block(&self) -> PhysBlock {
        self.block
    }

    /// Whether it must be initialized before its first change.
    pub(crate) fn is_uninit(&self) -> bool {
        self.uninit.load(Ordering::Acquire)
    }

    /// The last seal of the bitmap.
    pub(crate) fn seal_mark(&self) -> SealMark {
        self.sealed.mark()
    }
}

/// The state of one group. Its clusters and its inodes are usually allocated by different cores, so
/// each of the two has a cache line.
#[derive(Debug)]
pub(crate) struct Group {
    blocks: OnLine<BitmapPlace>,
    inodes: OnLine<InodesOfGroup>,
}

/// A value on cache lines of its own.
#[derive(Debug)]
#[repr(align(64))]
struct OnLine<T>(T);

/// The state of the inodes of a group.
#[derive(Debug)]
pub(crate) struct InodesOfGroup {
    bitmap: BitmapPlace,
    pub(crate) table: PhysBlock,
    /// The number of blocks of the inode table that hold inodes or zeroes.
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
            used_dirs: AtomicU32::new(used_dirs.min(MOST_COUNTED)),
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

/// The changes that a core has made to the sums over all groups.
#[derive(Debug, Default)]
struct Changed {
    free_clusters: AtomicI64,
    free_inodes: AtomicI64,
    used_dirs: AtomicI64,
}

/// All groups.
#[derive(Debug)]
pub(crate) struct Groups {
    /// The superblock of [`Core`](crate::core::Core). During a growth it has the new groups earlier
    /// than `extent`.
    superblock: Arc<Versions<Superblock>>,
    buffers: Arc<BufferCache>,
    /// The groups that there were at the mount.
    groups: Box<[CachePadded<Group>]>,
    extent: Versions<Extent>,
    /// The changes that cores have made to the sums since the mount.
    changed: PerCore<Changed>,
}

/// How far the groups reach. Each growth publishes one version, with all that it adds.
#[derive(Debug)]
pub(crate) struct Extent {
    /// The superblock of this size.
    pub(crate) superblock: Superblock,
    /// The sums over all groups when they were read or added. Together with the changes that cores
    /// have made since, they place a directory without a look at each group.
    sums_at_first: Totals,
    /// The groups that were added since the mount.
    added: Box<[Arc<CachePadded<Group>>]>,
    /// The blocks of descriptors in ascending order, each with the first group in it.
    tables: Box<[DescriptorBlock]>,
}

/// A block of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DescriptorBlock {
    pub(crate) block: PhysBlock,
    /// The first group in it.
    pub(crate) first: GroupNr,
}

/// What a growth changes in the groups.
#[derive(Debug)]
pub(crate) struct Added {
    pub(crate) superblock: Superblock,
    /// The state of new groups, which follow those that there are.
    pub(crate) groups: Vec<Group>,
    /// The blocks of descriptors, of all groups.
    pub(crate) tables: Vec<DescriptorBlock>,
    /// The new counts of free clusters of groups that were there before.
    pub(crate) free: BTreeMap<GroupNr, u32>,
}

/// A change of bits of one bitmap, ready to be applied in a handle.
#[derive(Debug)]
pub(crate) struct BitsChange {
    pub(crate) group: GroupNr,
    pub(crate) map: Map,
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) kind: ChangeKind,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) descriptors: PhysBlock,
    /// The block of descriptors. `None` if the bitmap was already in the running transaction, and
    /// so the descriptors were too: taking a reference would write a count that 64 groups share.
    pub(crate) held: Option<Arc<Buffer>>,
    /// The initial bytes of a bitmap that was never written.
    pub(crate) implied_bitmap: Option<Box<[u8]>>,
}

impl BitsChange {
    /// Returns the two blocks that the change may add to a transaction.
    pub(crate) fn blocks(&self) -> [PhysBlock; 2] {
        [self.buffer.block(), self.descriptors]
    }

    /// Returns the block of descriptors. If it was not loaded, the result is a refusal, which makes
    /// the caller load it.
    fn held(&self) -> std::result::Result<&Arc<Buffer>, Refused> {
        let missing = || Refused::new(Retired.into(), self.descriptors);
        self.held.as_ref().ok_or_else(missing)
    }
}

/// Which fields of the descriptor change with a bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Those that follow from the bits.
    Bits,
    /// Those, and the number of directories, which no bit says: it changes by one.
    Directory,
}

fn descriptors_tag() -> VerifiedAs {
    VerifiedAs::new(Structure::GroupDescriptors, InodeNr(0))
}

impl Groups {
    /// Creates the state of all `groups`, in order. `tables` names the blocks of descriptors, each
    /// with the first group in it, in the order of blocks.
    pub(crate) fn new(
        superblock: Arc<Versions<Superblock>>,
        buffers: Arc<BufferCache>,
        groups: Vec<Group>,
        tables: Vec<DescriptorBlock>,
    ) -> Self {
        let extent = Extent {
            superblock: superblock.get().clone(),
            sums_at_first: sums_of(&groups),
            added: Box::default(),
            tables: tables.into(),
        };
        Self {
            superblock,
            buffers,
            groups: groups.into_iter().map(CachePadded::new).collect(),
            extent: Versions::new(extent),
            changed: PerCore::default(),
        }
    }

    pub(crate) fn get(&self, group: GroupNr) -> Option<&Group> {
        match self.groups.get(group.0 as usize) {
            Some(group) => Some(group),
            None => self.added(group),
        }
    }

    #[cold]
    fn added(&self, group: GroupNr) -> Option<&Group> {
        let nth = (group.0 as usize).checked_sub(self.groups.len())?;
        self.extent().added.get(nth).map(|group| &***group)
    }

    /// Returns how far the groups reach.
    pub(crate) fn extent(&self) -> &Extent {
        self.extent.get()
    }

    /// Returns the number of groups.
    pub(crate) fn count(&self) -> u32 {
        let count = self.groups.len() + self.extent().added.len();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Adds groups, and sets counts of groups that are there. No thread changes any of their bits
    /// meanwhile. A reader of the sums sees all of it at once.
    pub(crate) fn grow(&self, added: Added) {
        let now = self.extent();
        let mut sums = now.sums_at_first;
        for (group, free) in added.free {
            if let Some(group) = self.get(group) {
                let before = counted(group.place(Map::Blocks).free.swap(free, Ordering::Relaxed));
                let more = i64::from(free) - i64::from(before);
                sums.free_clusters = sums.free_clusters.saturating_add_signed(more);
            }
        }
        let more = sums_of(&added.groups);
        sums.free_inodes += more.free_inodes;
        sums.free_clusters += more.free_clusters;
        let groups = added.groups.into_iter().map(CachePadded::new).map(Arc::new);
        self.extent.publish(Extent {
            superblock: added.superblock,
            sums_at_first: sums,
            added: now.added.iter().map(Arc::clone).chain(groups).collect(),
            tables: added.tables.into(),
        });
    }

    /// Copies a bitmap into that of a group, in a handle that it has joined, and counts nothing.
    pub(crate) fn replace_bitmap(
        &self,
        handle: &mut Handle<'_>,
        buffer: &Arc<Buffer>,
        group: GroupNr,
        bitmap: &[u8],
    ) -> std::result::Result<(), Refused> {
        let tag = VerifiedAs::of_group(Structure::BlockBitmap, group);
        let made = handle.modify(buffer, tag, |bytes| {
            bytes.copy_from_slice(bitmap);
            if let Some(group) = self.get(group) {
                group.blocks.0.uninit.store(false, Ordering::Release);
            }
        });
        made.map_err(|error| Refused::new(error, buffer.block()))
    }

    /// Sets the free count of a group to 0: the bitmap is damaged, so no bit of it is changed from
    /// now on.
    pub(crate) fn retire(&self, group: GroupNr, map: Map) {
        let Some(state) = self.get(group) else {
            return;
        };
        let free = counted(state.place(map).free.swap(0, Ordering::Relaxed));
        let changed = self.changed.of(CoreNr::current());
        let sum = match map {
            Map::Blocks => &changed.free_clusters,
            Map::Inodes => &changed.free_inodes,
        };
        sum.fetch_sub(i64::from(free), Ordering::Relaxed);
    }

    /// Returns the number of inodes that are free on disk in a group.
    pub(crate) fn free_inodes(&self, group: GroupNr) -> u32 {
        self.get(group).map_or(0, |group| group.free(Map::Inodes))
    }

    /// Whether a bitmap was never written; `flag` names which bitmap.
    pub(crate) fn is_uninit(&self, group: GroupNr, flag: GroupFlags) -> bool {
        let map = if flag == GroupFlags::BLOCK_UNINIT {
            Map::Blocks
        } else {
            Map::Inodes
        };
        self.get(group)
            .is_some_and(|group| group.place(map).uninit.load(Ordering::Acquire))
    }

    /// Adds the blocks of a change to the transaction without the change. A bitmap that was never
    /// written gets its initial bytes: the transaction may be committed without the change.
    pub(crate) fn join(
        &self,
        handle: &mut Handle<'_>,
        change: &BitsChange,
    ) -> std::result::Result<(), Refused> {
        let tid = handle.tid();
        let has_joined = |buffer: &Arc<Buffer>| buffer.is_dirty_in(tid);
        let mut held = change.held.iter();
        if has_joined(&change.buffer) && held.all(has_joined) {
            return Ok(());
        }
        // The descriptors join first: a thread that finds the bitmap in the transaction relies on
        // them. Their content follows from their tag when they are sealed.
        let held = change.held()?;
        if !has_joined(held) {
            let joined = handle.modify(held, descriptors_tag(), |_| ());
            joined.map_err(|error| Refused::new(error, change.descriptors))?;
        }
        let refused = |error| Refused::new(error, change.buffer.block());
        if change.implied_bitmap.is_none() {
            return handle.join(&change.buffer).map_err(refused);
        }
        let tag = VerifiedAs::of_group(change.map.structure(), change.group);
        let initialized = handle.modify(&change.buffer, tag, |bytes| {
            self.initialize(change, bytes);
        });
        initialized.map_err(refused)
    }

    /// Gives a bitmap that was never written its initial bytes. Under the buffer's lock, so that it
    /// is done only once.
    fn initialize(&self, change: &BitsChange, bytes: &mut [u8]) {
        let Some(state) = self.get(change.group) else {
            return;
        };
        let uninit = &state.place(change.map).uninit;
        if let Some(implied_bitmap) = &change.implied_bitmap
            && uninit.load(Ordering::Relaxed)
        {
            bytes.copy_from_slice(implied_bitmap);
            uninit.store(false, Ordering::Release);
        }
    }

    /// Loads one of the two blocks of a change again, because it has left the cache. The other one
    /// is left alone: to load it could make the first one leave the cache again.
    pub(crate) fn reload(&self, change: &mut BitsChange, block: PhysBlock) -> Result<()> {
        let [bitmap, descriptors] = change.blocks();
        if block == descriptors {
            change.held = Some(self.buffers.load(descriptors)?);
            return Ok(());
        }
        let state = self.get(change.group);
        let uninit =
            state.is_some_and(|group| group.place(change.map).uninit.load(Ordering::Acquire));
        change.buffer = if uninit {
            self.buffers.create_unused(bitmap)
        } else {
            self.buffers.load(bitmap)?
        };
        Ok(())
    }

    /// Applies the change in a handle that its blocks have joined. No other thread changes the same
    /// bits.
    pub(crate) fn make(
        &self,
        handle: &mut Handle<'_>,
        change: &BitsChange,
    ) -> std::result::Result<(), Refused> {
        let _section = profile::enter(Section::Bitmap);
        let Some(state) = self.get(change.group) else {
            return Ok(());
        };
        let place = state.place(change.map);
        let tag = VerifiedAs::of_group(change.map.structure(), change.group);
        let made = handle.modify(&change.buffer, tag, |bytes| {
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

    /// Sets the bits of a change in a handle, without counting: for an injected fault.
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

    /// Adds `change` to the count of directories of a group, in a handle.
    pub(crate) fn change_used_dirs(
        &self,
        handle: &mut Handle<'_>,
        bits: &BitsChange,
        change: i32,
    ) -> std::result::Result<(), Refused> {
        let superblock = self.superblock.get();
        let geometry = superblock.geometry();
        let offset = geometry
            .desc_place(bits.group)
            .map_or(0, |place| place.offset_bytes);
        let buffer = bits.held()?;
        let changed = handle.modify(buffer, descriptors_tag(), |bytes| {
            let bytes = bytes.get_mut(offset..).unwrap_or_default();
            if let Ok(mut desc) = GroupDescMut::new(bytes, superblock) {
                desc.change_used_dirs(change);
            }
            // An error is not reported here: readers verify the descriptor.
            let _ = group::seal(bytes, bits.group, superblock);
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

    /// Stores the summary of the committing copy of a bitmap.
    pub(crate) fn seal_bitmap(&self, tag: VerifiedAs, bytes: &[u8]) {
        let superblock = self.superblock.get();
        let geometry = superblock.geometry();
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
        let summary = BitmapSummary::of(bytes, bits, covered, superblock);
        state.place(map).sealed.set(&summary);
    }

    /// Writes the summaries of bitmaps into the committing copy of a block of descriptors. The
    /// summaries are from bitmaps that are committed with this block or were committed before.
    pub(crate) fn seal_descriptors(&self, block: PhysBlock, bytes: &mut [u8]) {
        let superblock = self.superblock.get();
        let geometry = superblock.geometry();
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
            if let Ok(mut desc) = GroupDescMut::new(bytes, superblock) {
                let [blocks, inodes] = &sealed;
                blocks
                    .iter()
                    .for_each(|summary| desc.set_block_bitmap(summary));
                inodes
                    .iter()
                    .for_each(|summary| desc.set_inode_bitmap(summary));
            }
            // This cannot fail: a block of descriptors is as long as its descriptors.
            let _ = group::seal(bytes, GroupNr(nr), superblock);
        }
    }

    /// Whether `block` is a block of descriptors, whose content follows from other blocks of a
    /// transaction.
    pub(crate) fn is_descriptors(&self, block: PhysBlock) -> bool {
        self.first_group_of(block).is_some()
    }

    fn first_group_of(&self, block: PhysBlock) -> Option<GroupNr> {
        let tables = &self.extent().tables;
        let at = tables.binary_search_by_key(&block, |table| table.block);
        at.ok().map(|at| tables[at].first)
    }

    /// Returns the sums over all groups, which are exact while no thread changes them.
    pub(crate) fn sums(&self) -> Totals {
        self.sums_in(self.extent())
    }

    /// Returns the sums over the groups of an extent.
    pub(crate) fn sums_in(&self, extent: &Extent) -> Totals {
        let changed = |count: fn(&Changed) -> &AtomicI64| -> i64 {
            let cores = self.changed.iter();
            cores.map(|core| count(core).load(Ordering::Relaxed)).sum()
        };
        let first = extent.sums_at_first;
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

fn sums_of(groups: &[Group]) -> Totals {
    let mut sums = Totals::default();
    for counts in groups.iter().map(Group::counts) {
        sums.free_inodes += u64::from(counts.free_inodes);
        sums.free_clusters += u64::from(counts.free_clusters);
        sums.used_dirs += u64::from(counts.used_dirs);
    }
    sums
}

impl Group {
    fn free(&self, map: Map) -> u32 {
        counted(self.place(map).free.load(Ordering::Relaxed))
    }

    pub(crate) fn counts(&self) -> GroupCounts {
        GroupCounts {
            free_inodes: self.free(Map::Inodes),
            free_clusters: self.free(Map::Blocks),
            used_dirs: counted(self.inodes().used_dirs.load(Ordering::Relaxed)),
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

/// Sets or clears `len` bits from `start` on, as far as `bytes` has them.
pub(crate) fn write_bits(bytes: &mut [u8], start: u32, len: u32, kind: ChangeKind) {
    let bits = u32::try_from(bytes.len() * 8).unwrap_or(u32::MAX);
    let end = start.saturating_add(len).min(bits);
    if start >= end {
        return;
    }
    let (first, last) = (start as usize / 8, end as usize / 8);
    let (from_start, to_end) = (0xff_u8 << (start % 8), !(0xff_u8 << (end % 8)));
    let write = |byte: &mut u8, mask: u8| match kind {
        ChangeKind::Set => *byte |= mask,
        ChangeKind::Clear => *byte &= !mask,
    };
    if first == last {
        return write(&mut bytes[first], from_start & to_end);
    }
    write(&mut bytes[first], from_start);
    bytes[first + 1..last].fill(match kind {
        ChangeKind::Set => 0xff,
        ChangeKind::Clear => 0,
    });
    if to_end != 0 {
        write(&mut bytes[last], to_end);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn counts_that_a_descriptor_has_too_low_end_at_zero() {
        let place = BitmapPlace::new(PhysBlock(1), false, 1);
        let dirs = InodesOfGroup::new(place, PhysBlock(2), 0, 0);
        let group = Group::new(BitmapPlace::new(PhysBlock(3), false, u32::MAX), dirs);
        let free = &group.place(Map::Inodes).free;
        // Two threads saw one free inode, and both found one in the bitmap.
        free.fetch_sub(2, Ordering::Relaxed);
        group.inodes().used_dirs.fetch_sub(1, Ordering::Relaxed);
        let counts = group.counts();
        assert_eq!((counts.free_inodes, counts.used_dirs), (0, 0));
        assert_eq!(counts.free_clusters, MOST_COUNTED);
        free.fetch_add(2, Ordering::Relaxed);
        assert_eq!(group.counts().free_inodes, 1);
    }

    #[test]
    fn bits_are_written_where_they_are_and_nowhere_else() {
        for start in 0..40 {
            for len in 0..60 {
                for (kind, before) in [(ChangeKind::Set, 0), (ChangeKind::Clear, 0xff)] {
                    let mut bytes = [before; 6];
                    write_bits(&mut bytes, start, len, kind);
                    for bit in 0..48 {
                        let is_set = bytes[bit as usize / 8] >> (bit % 8) & 1 == 1;
                        let is_changed = is_set != (before == 0xff);
                        assert_eq!(is_changed, (start..start + len).contains(&bit));
                    }
                }
            }
        }
    }
}

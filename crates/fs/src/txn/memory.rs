//! **Purpose.** The memory of plans: regions and lists, which the thread's next plan uses again.
//!
//! **Model.** The bytes of all regions are contiguous in one vector, and each region has its range.
//! A thread keeps the memory of its last plan, emptied, unless that plan was unusually large. So an
//! operation allocates no memory that the thread's previous operation had.
//!
//! **Locking.** None: the kept memory is thread-local.

use std::cell::Cell;
use std::ops::Range;

use fourscore_block::{Buffer, BufferCache, Structure, VerifiedAs};
use fourscore_mballoc::{Claim, Freeing};
use fourscore_ondisk::inode::{self, InodeMut, RawInode};
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{InodeNr, PhysBlock};
use fourscore_sync::{Arc, thread};
use zerocopy::FromBytes;

use crate::dir::departure::Departure;
use crate::group::table::BitsChange;
use crate::inode::free_inodes::InodeClaim;
use crate::quota::memory::QuotaMemory;
use crate::txn::fast_commit::note::Notes;
use crate::xattr::held::Note;

/// The most bytes that a thread keeps: some blocks of a directory and its index, and what belongs
/// to them, for any block size except the largest.
const MOST_KEPT_BYTES: usize = 256 << 10;
/// The most entries of a list that a thread keeps.
const MOST_KEPT_ENTRIES: usize = 1024;

thread::thread_local! {
    /// The memory of the thread's last plan.
    static KEPT: Cell<Option<Memory>> = const { Cell::new(None) };
}

/// A part of a metadata block, with its content after the change.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) tag: VerifiedAs,
    /// Its offset in the block, in bytes.
    pub(crate) offset: usize,
    /// The range of its content in the plan's memory.
    pub(crate) bytes: Range<usize>,
    pub(crate) kind: RegionKind,
    pub(crate) origin: Origin,
    /// Whether the block was freed since, so that the region is not written.
    pub(crate) is_void: bool,
}

/// The initial content of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The block's content, which is read from the device if it is not in memory.
    Disk,
    /// Zeroes: the plan has allocated the block.
    Allocated,
    /// Zeroes: no reader sees what the block holds. Its file may have had it for long, and an older
    /// copy may be in the log.
    Unwritten,
}

impl Origin {
    /// Whether the block is not read from the device, and no reader sees it before the plan is
    /// applied.
    pub(crate) fn is_fresh(self) -> bool {
        self != Self::Disk
    }

    /// Makes the buffer of a fresh block.
    pub(crate) fn make(self, buffers: &BufferCache, block: PhysBlock) -> Arc<Buffer> {
        match self {
            Self::Allocated => buffers.create(block),
            Self::Disk | Self::Unwritten => buffers.create_unused(block),
        }
    }
}

/// What is written for a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionKind {
    /// Its bytes.
    Bytes,
    /// Its bytes, which are an inode, except the field that links orphans. That field may have
    /// changed meanwhile: a thread that unlinks a neighbour in the chain does not hold this inode's
    /// lock.
    Slot(InodeNr),
    /// Its bytes, which are an inode, including the field that links orphans.
    WholeSlot(InodeNr),
    /// Only the field that links orphans, of an inode that is not changed otherwise.
    Link(InodeNr, Option<InodeNr>),
    /// The result of [`Touch`](crate::dir::touch::Touch) on the directory's slot at the time of
    /// applying.
    Touched,
}

/// The order in which the regions of a plan become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Blocks that nothing refers to yet.
    NewBlock,
    /// Inodes that no name refers to yet. A reader may still have the number of an earlier inode.
    NewInode,
    /// What refers to new blocks and inodes, and everything else.
    Rest,
}

impl RegionKind {
    /// Whether the region has content in the plan.
    pub(crate) fn has_content(self) -> bool {
        !matches!(self, Self::Link(..) | Self::Touched)
    }
}

impl Region {
    /// Returns the step in which the region becomes visible among the regions of its plan.
    pub(crate) fn stage(&self) -> Stage {
        match (self.origin.is_fresh(), self.kind) {
            (true, _) => Stage::NewBlock,
            (false, RegionKind::WholeSlot(_)) => Stage::NewInode,
            (false, _) => Stage::Rest,
        }
    }

    /// Writes the region, with the content `own`, into the block `bytes`.
    pub(crate) fn put(&self, own: &[u8], bytes: &mut [u8], superblock: &Superblock) {
        let bytes = &mut bytes[self.offset..];
        let relink = |bytes: &mut [u8], nr, next| {
            if let Ok(mut inode) = InodeMut::of(bytes, superblock) {
                inode.set_next_orphan(next);
            }
            // Readers verify what they find.
            let _ = inode::seal(bytes, nr, superblock);
        };
        match self.kind {
            RegionKind::Bytes | RegionKind::WholeSlot(_) => {
                bytes[..own.len()].copy_from_slice(own);
            }
            RegionKind::Slot(nr) => {
                let link = dtime(bytes);
                bytes[..own.len()].copy_from_slice(own);
                if dtime(bytes) != link {
                    relink(bytes, nr, Some(InodeNr(link)));
                }
            }
            RegionKind::Link(nr, next) => relink(bytes, nr, next),
            RegionKind::Touched => {}
        }
    }
}

/// Returns `i_dtime` of the inode at the start of `bytes`.
fn dtime(bytes: &[u8]) -> u32 {
    RawInode::ref_from_prefix(bytes).map_or(0, |(raw, _)| raw.i_dtime.get())
}

/// Whether readers may still be reading clusters that a plan frees, because they found them in a
/// map before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Perhaps: the clusters are not reused before a grace period has ended.
    Possible,
    /// No: since the clusters were allocated they were never written, and never inside the size of
    /// the file. They wait for the commit only.
    None,
}

/// A free of clusters in a plan.
#[derive(Debug)]
pub(crate) struct Free {
    pub(crate) freeing: Freeing,
    pub(crate) bits: BitsChange,
    pub(crate) readers: Readers,
}

/// The contents of a plan.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) regions: Vec<Region>,
    /// The content of all regions.
    pub(crate) bytes: Vec<u8>,
    pub(crate) claims: Vec<(Claim, BitsChange)>,
    pub(crate) frees: Vec<Free>,
    /// Metadata blocks that the plan frees.
    pub(crate) revoked: Vec<PhysBlock>,
    pub(crate) inodes: Vec<(InodeClaim, BitsChange)>,
    pub(crate) freed_inodes: Vec<(InodeClaim, BitsChange)>,
    /// Names that are removed or will refer to another inode.
    pub(crate) departures: Vec<Departure>,
    /// The changes, for a fast commit.
    pub(crate) notes: Notes,
    /// Scratch space to count blocks in.
    pub(crate) blocks: Vec<PhysBlock>,
    pub(crate) xattrs: XattrMemory,
    /// The changes of usage; `None` where none is counted.
    pub(crate) quota: Option<Box<QuotaMemory>>,
}

/// The memory of a change of attributes.
#[derive(Debug, Default)]
pub(crate) struct XattrMemory {
    /// What the plan means for the cache of shared attributes.
    pub(crate) notes: Vec<Note>,
    /// Scratch space for the content of a block before and after the change.
    pub(crate) before: Vec<u8>,
    pub(crate) after: Vec<u8>,
}

impl Memory {
    /// Returns the memory that the thread has kept, or new memory.
    pub(crate) fn take() -> Self {
        let kept = KEPT.try_with(Cell::take);
        kept.ok().flatten().unwrap_or_default()
    }

    /// Keeps the memory for the thread's next plan, and drops its contents.
    pub(crate) fn keep(mut self) {
        self.regions.clear();
        self.bytes.clear();
        self.claims.clear();
        self.frees.clear();
        self.revoked.clear();
        self.inodes.clear();
        self.freed_inodes.clear();
        self.departures.clear();
        self.notes.clear();
        self.blocks.clear();
        self.xattrs.notes.clear();
        if let Some(quota) = &mut self.quota {
            quota.clear();
        }
        let lists = [
            self.regions.capacity(),
            self.claims.capacity(),
            self.frees.capacity(),
            self.revoked.capacity(),
            self.blocks.capacity(),
        ];
        let is_usual = lists.iter().all(|&entries| entries <= MOST_KEPT_ENTRIES);
        if is_usual && self.bytes.capacity() <= MOST_KEPT_BYTES {
            // A thread that is ending keeps nothing.
            let _ = KEPT.try_with(|kept| kept.set(Some(self)));
        }
    }

    /// Whether the plan changes or frees a block with this structure.
    pub(crate) fn changes(&self, structure: Structure) -> bool {
        let mut regions = self.regions.iter();
        regions.any(|region| region.tag.structure() == Some(structure))
    }

    /// Returns the content of a region.
    pub(crate) fn of(&self, region: &Region) -> &[u8] {
        &self.bytes[region.bytes.clone()]
    }

    /// Returns the contents of different regions, to be changed.
    ///
    /// # Panics
    /// If two of them are the same.
    pub(crate) fn disjoint_mut<const N: usize>(&mut self, regions: [usize; N]) -> [&mut [u8]; N] {
        let ranges = regions.map(|at| self.regions[at].bytes.clone());
        let parts = self.bytes.get_disjoint_mut(ranges);
        parts.expect("different regions")
    }

    /// Returns the contents of any number of regions, to be changed; `None` if one is named twice.
    pub(crate) fn all_mut(
        &mut self,
        wanted: impl Iterator<Item = usize>,
    ) -> Option<Vec<&mut [u8]>> {
        let ranges = wanted.map(|at| self.regions[at].bytes.clone());
        let mut order: Vec<_> = ranges.enumerate().collect();
        order.sort_unstable_by_key(|(_, range)| range.start);
        let (mut rest, mut at) = (&mut self.bytes[..], 0);
        let mut found = Vec::with_capacity(order.len());
        for (nth, range) in order {
            let (_, from) = rest.split_at_mut(range.start.checked_sub(at)?);
            let (part, behind) = from.split_at_mut(range.len());
            (rest, at) = (behind, range.end);
            found.push((nth, part));
        }
        found.sort_unstable_by_key(|(nth, _)| *nth);
        Some(found.into_iter().map(|(_, part)| part).collect())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn add(memory: &mut Memory, content: &[u8]) {
        let start = memory.bytes.len();
        memory.bytes.extend_from_slice(content);
        memory.regions.push(Region {
            buffer: Arc::new(Buffer::new(PhysBlock(1), Arc::from([0; 8]))),
            tag: VerifiedAs::new(Structure::InodeTable, InodeNr(0)),
            offset: 0,
            bytes: start..memory.bytes.len(),
            kind: RegionKind::Bytes,
            origin: Origin::Disk,
            is_void: false,
        });
    }

    #[test]
    fn regions_are_given_out_together_in_the_order_asked_for() {
        let mut memory = Memory::default();
        for content in [&b"one"[..], b"two!", b"three"] {
            add(&mut memory, content);
        }
        let all = memory.all_mut([2, 0].into_iter()).unwrap();
        assert_eq!(all, [&b"three"[..], b"one"]);
        assert!(memory.all_mut([1, 2, 1].into_iter()).is_none());
        let [last, first] = memory.disjoint_mut([1, 0]);
        assert_eq!((&*last, &*first), (&b"two!"[..], &b"one"[..]));
    }

    #[test]
    fn a_thread_uses_its_memory_again_unless_it_is_too_much() {
        thread::spawn(|| {
            let mut memory = Memory::take();
            add(&mut memory, &[7; 5000]);
            let (capacity, entries) = (memory.bytes.capacity(), memory.regions.capacity());
            memory.keep();
            let mut memory = Memory::take();
            assert!(memory.bytes.is_empty() && memory.regions.is_empty());
            assert_eq!(memory.bytes.capacity(), capacity);
            assert_eq!(memory.regions.capacity(), entries);
            add(&mut memory, &[7; 1 << 20]);
            memory.keep();
            assert_eq!(Memory::take().bytes.capacity(), 0);
        })
        .join()
        .unwrap();
    }
}

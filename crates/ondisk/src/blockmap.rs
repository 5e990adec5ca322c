//! **Purpose.** The block map of files without extents: twelve direct pointers in `i_block`, then
//! one pointer each to an indirect, a double indirect and a triple indirect block.
//!
//! Its module `edit` changes pointers in place, `build` makes the map of a file whose runs are
//! known.
//!
//! **Not here.** Reading the indirect blocks, caching mappings.
//!
//! **Model.** With p pointers in a block, the logical blocks fall in four parts, and each part is
//! reached through a [`Path`] of slots:
//!
//! ```text
//! i_block[0..12]   12 blocks   a pointer is a data block
//! i_block[12]       p blocks   -> p pointers
//! i_block[13]      p^2 blocks  -> p pointers -> p pointers
//! i_block[14]      p^3 blocks  -> p pointers -> p pointers -> p pointers
//! ```
//!
//! A pointer of 0 is a hole over all logical blocks below it.
//!
//! **Invariants.** In a checked block each pointer is 0 or inside the file system. A path has at
//! most three slots below the root, so a walk terminates for any bytes on disk.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "Direct/Indirect Block Addressing".

use std::ops::Range;

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::types::{BlockCount, BlockSize, LogicalBlock, PhysBlock};

mod build;
mod edit;

pub use build::{BlockMapBuildError, build, count_indirect_blocks};
pub use edit::{
    BlockMapEditError, Branch, branches, clear_pointer, is_empty, root_branches, set_pointer,
    set_run,
};

/// Direct pointers in `i_block`.
pub const DIRECT: u32 = 12;
/// Pointers in `i_block`.
pub const ROOT_POINTERS: usize = 15;
const POINTER_BYTES: usize = 4;

/// What is wrong with a block of pointers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockMapError {
    /// A pointer outside the file system.
    #[error(
        "block map entry {entry}: block {found} is not in {}..{}",
        expected.start, expected.end
    )]
    Pointer {
        /// Position of the pointer.
        entry: usize,
        /// The block it points to.
        found: PhysBlock,
        /// Blocks of the file system.
        expected: Range<PhysBlock>,
    },
    /// `i_block` or a block has fewer pointers than it must have.
    #[error("block map: {found} pointers, expected {expected}")]
    TooShort {
        /// Pointers found.
        found: usize,
        /// Pointers expected.
        expected: usize,
    },
    /// A pointer where the map had a hole: two pointers refer to the same indirect block.
    #[error("block map entry {entry}: in use, but the map had a hole there")]
    Taken {
        /// Position of the first pointer of the hole.
        entry: u16,
    },
}

/// The path from `i_block` to one logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    slots: [u16; 4],
    indirections: u8,
    pointer_bits: u8,
}

/// A run of pointers to consecutive blocks, or of holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The block of the first pointer; `None` for a run of holes.
    pub physical: Option<PhysBlock>,
    /// Number of pointers: consecutive physical blocks, or holes. At least 1.
    pub pointers: u32,
}

impl Path {
    /// The path to `logical`; `None` if the map of a file with blocks of this size ends before
    /// it.
    #[must_use]
    pub fn to(logical: LogicalBlock, block_size: BlockSize) -> Option<Self> {
        let pointer_bits = block_size.bits() - 2;
        let mut rest = u64::from(logical.0);
        let mut path = Self {
            slots: [0; 4],
            indirections: 0,
            pointer_bits: u8::try_from(pointer_bits).ok()?,
        };
        if rest < u64::from(DIRECT) {
            path.slots[0] = u16::try_from(rest).ok()?;
            return Some(path);
        }
        rest -= u64::from(DIRECT);
        for indirections in 1..=3u8 {
            let covered = 1_u64 << (pointer_bits * u32::from(indirections));
            if rest < covered {
                path.indirections = indirections;
                path.slots[0] = 11 + u16::from(indirections);
                for slot in path.slots[1..=usize::from(indirections)].iter_mut().rev() {
                    *slot = u16::try_from(rest & ((1 << pointer_bits) - 1)).ok()?;
                    rest >>= pointer_bits;
                }
                return Some(path);
            }
            rest -= covered;
        }
        None
    }

    /// The slots of the path: the first one is in `i_block`, each further one in the block that the
    /// slot before points to. 1 to 4 slots.
    #[must_use]
    pub fn slots(&self) -> &[u16] {
        self.slots
            .get(..=usize::from(self.indirections))
            .unwrap_or(&self.slots)
    }

    /// Logical blocks from this one to the end of the range below the slot at `level`: the length
    /// of the hole if that pointer is 0. Level 0 is the slot in `i_block`.
    #[must_use]
    pub fn blocks_below(&self, level: usize) -> u64 {
        let below = self.slots().get(level.saturating_add(1)..).unwrap_or(&[]);
        let offset = below.iter().fold(0, |offset, &slot| {
            (offset << self.pointer_bits) + u64::from(slot)
        });
        let levels = u32::try_from(below.len()).unwrap_or(0);
        (1_u64 << (u32::from(self.pointer_bits) * levels)) - offset
    }

    /// The number of pointers from the last slot to the end of its block, or of the direct
    /// pointers: this many blocks can be mapped by a change of one block. At least 1.
    #[must_use]
    pub fn neighbours(&self) -> u32 {
        match (self.slots(), self.indirections.checked_sub(1)) {
            (_, Some(above)) => u32::try_from(self.blocks_below(above.into())).unwrap_or(u32::MAX),
            (&[direct], None) => DIRECT.saturating_sub(direct.into()).max(1),
            _ => 1,
        }
    }
}

/// The maximum number of data blocks of a file, if data and indirect blocks together are at most
/// `most`. It is also limited by the end of the map.
#[must_use]
pub fn max_blocks(block_size: BlockSize, most: BlockCount) -> BlockCount {
    let p = 1_u64 << (block_size.bits() - 2);
    let (direct, double, triple) = (u64::from(DIRECT), p * p, p * p * p);
    let all_data = direct + p + double + triple;
    let all_nodes = 1 + (1 + p) + (1 + p + double);
    if all_data + all_nodes <= most.0 {
        return BlockCount(all_data);
    }
    // Computed as if all blocks were data, which counts a few indirect blocks too many.
    let behind_single = most.0.saturating_sub(direct + p);
    let nodes = if behind_single < double {
        2 + behind_single.div_ceil(p)
    } else {
        let behind_double = behind_single - double;
        3 + p + behind_double.div_ceil(p) + behind_double.div_ceil(double)
    };
    BlockCount(most.0.saturating_sub(nodes))
}

/// One past the last logical block of a map with blocks of this size.
#[must_use]
pub fn logical_end(block_size: BlockSize) -> LogicalBlock {
    let p = 1_u64 << (block_size.bits() - 2);
    let blocks = u64::from(DIRECT) + p + p * p + p * p * p;
    LogicalBlock(u32::try_from(blocks).unwrap_or(u32::MAX))
}

/// Checks all pointers of `i_block`. `physical` are the blocks of the file system.
///
/// # Errors
/// The first pointer outside, or that there are too few pointers.
pub fn check_root(i_block: &[u8], physical: &Range<PhysBlock>) -> Result<(), BlockMapError> {
    check_pointers(i_block, ROOT_POINTERS, physical)
}

/// Checks all pointers of an indirect block. `physical` are the blocks of the file system.
///
/// # Errors
/// The first pointer outside, or that there are too few pointers.
pub fn check_block(
    block: &[u8],
    block_size: BlockSize,
    physical: &Range<PhysBlock>,
) -> Result<(), BlockMapError> {
    check_pointers(block, block_size.bytes() / POINTER_BYTES, physical)
}

/// The pointer in a slot of `i_block` or of an indirect block: `None` for a hole, and for a slot
/// past the end.
#[must_use]
pub fn pointer(bytes: &[u8], slot: u16) -> Option<PhysBlock> {
    pointers(bytes).get(usize::from(slot)).and_then(target)
}

/// The run that starts at a slot: the pointers from there on that refer to consecutive blocks, or
/// are all holes. Reads at most `limit` pointers; `None` if the slot is past the end.
///
/// A run is meaningful only for pointers to data, that is for the last slot of a path. In `i_block`
/// it ends with the direct pointers.
#[must_use]
pub fn run(bytes: &[u8], slot: u16, limit: u32) -> Option<Run> {
    let mut all = pointers(bytes);
    if all.len() <= ROOT_POINTERS {
        all = all.get(..DIRECT as usize)?;
    }
    let rest = all
        .get(usize::from(slot)..)
        .filter(|rest| !rest.is_empty())?;
    let first = rest.first().and_then(target);
    let limit = limit.max(1);
    let follows = |&(offset, raw): &(u32, &U32)| match (first, target(raw)) {
        (None, None) => true,
        (Some(first), Some(next)) => next.0 == first.0 + u64::from(offset),
        _ => false,
    };
    let pointers = (0..limit).zip(rest).take_while(follows).map(|_| 1).sum();
    Some(Run {
        physical: first,
        pointers,
    })
}

fn target(raw: &U32) -> Option<PhysBlock> {
    (raw.get() != 0).then(|| PhysBlock(raw.get().into()))
}

fn pointers(bytes: &[u8]) -> &[U32] {
    let whole = bytes.len() / POINTER_BYTES;
    <[U32]>::ref_from_prefix_with_elems(bytes, whole).map_or(&[], |(pointers, _)| pointers)
}

fn check_pointers(
    bytes: &[u8],
    expected: usize,
    physical: &Range<PhysBlock>,
) -> Result<(), BlockMapError> {
    let all = pointers(bytes);
    if all.len() < expected {
        return Err(BlockMapError::TooShort {
            found: all.len(),
            expected,
        });
    }
    let outside = |raw: &U32| target(raw).filter(|block| !physical.contains(block));
    match all
        .iter()
        .enumerate()
        .find_map(|(entry, raw)| Some((entry, outside(raw)?)))
    {
        Some((entry, found)) => Err(BlockMapError::Pointer {
            entry,
            found,
            expected: physical.clone(),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn size(log: u32) -> BlockSize {
        BlockSize::from_log(log).unwrap()
    }

    fn slots(logical: u32, log: u32) -> Vec<u16> {
        Path::to(LogicalBlock(logical), size(log))
            .unwrap()
            .slots()
            .to_vec()
    }

    #[test]
    fn paths_at_the_edges_of_each_part() {
        assert_eq!(slots(0, 2), [0]);
        assert_eq!(slots(11, 2), [11]);
        assert_eq!(slots(12, 2), [12, 0]);
        assert_eq!(slots(12 + 1023, 2), [12, 1023]);
        assert_eq!(slots(12 + 1024, 2), [13, 0, 0]);
        assert_eq!(slots(12 + 1024 + (1 << 20) - 1, 2), [13, 1023, 1023]);
        assert_eq!(slots(12 + 1024 + (1 << 20), 2), [14, 0, 0, 0]);
        let end = logical_end(size(2));
        assert_eq!(end.0, 12 + 1024 + (1 << 20) + (1 << 30));
        assert_eq!(slots(end.0 - 1, 2), [14, 1023, 1023, 1023]);
        assert_eq!(Path::to(end, size(2)), None);
    }

    #[test]
    fn large_blocks_reach_all_of_32_bits() {
        assert_eq!(logical_end(size(6)), LogicalBlock(u32::MAX));
        assert_eq!(slots(u32::MAX, 6).len(), 4);
    }

    #[test]
    fn a_hole_has_all_blocks_below_its_pointer() {
        let path = Path::to(LogicalBlock(12 + 256 + 5), size(0)).unwrap();
        assert_eq!(path.slots(), [13, 0, 5]);
        assert_eq!(path.blocks_below(0), 256 * 256 - 5);
        assert_eq!(path.blocks_below(1), 251);
        assert_eq!(path.blocks_below(2), 1);
    }

    #[test]
    fn neighbours_end_with_the_direct_pointers_and_with_a_block() {
        let of = |logical| {
            Path::to(LogicalBlock(logical), size(0))
                .unwrap()
                .neighbours()
        };
        assert_eq!([of(0), of(5), of(11)], [12, 7, 1]);
        assert_eq!([of(12), of(12 + 255), of(12 + 256)], [256, 1, 256]);
        assert_eq!(of(12 + 256 + (1 << 16) + 300), 256 - 44);
    }

    /// Compares with the kernel's `s_bitmap_maxbytes`.
    #[test]
    fn files_are_as_large_as_their_map_or_the_count_of_their_blocks() {
        let sectors = |log: u32| BlockCount(u64::from(u32::MAX) >> (log + 1));
        let wide = BlockCount((1 << 48) - 1);
        for log in 0..2 {
            let all = u64::from(logical_end(size(log)).0);
            assert_eq!(max_blocks(size(log), sectors(log)).0, all);
            assert_eq!(max_blocks(size(log), wide).0, all);
        }
        // 2 TiB without the indirect blocks, measured with the kernel.
        assert_eq!(max_blocks(size(2), sectors(2)).0, 536_346_110);
        for log in 2..7 {
            let (p, most) = (1_u64 << (log + 8), sectors(log).0);
            let data = max_blocks(size(log), sectors(log)).0;
            let indirect = (data - 12).div_ceil(p);
            assert!(
                data + indirect <= most && data + indirect + 2 * p + 4 > most,
                "{log}"
            );
        }
    }

    fn bytes(pointers: &[u32]) -> Vec<u8> {
        pointers
            .iter()
            .flat_map(|pointer| pointer.to_le_bytes())
            .collect()
    }

    #[test]
    fn runs_end_at_a_gap_at_the_limit_and_with_the_direct_pointers() {
        let mut block = vec![7, 8, 9, 11, 0, 0, 1, 0];
        block.resize(256, 0);
        let block = bytes(&block);
        let of = |slot, limit| run(&block, slot, limit).map(|run| (run.physical, run.pointers));
        assert_eq!(of(0, 99), Some((Some(PhysBlock(7)), 3)));
        assert_eq!(of(1, 1), Some((Some(PhysBlock(8)), 1)));
        assert_eq!(of(4, 99), Some((None, 2)));
        assert_eq!(of(7, 9999), Some((None, 249)));
        assert_eq!(of(256, 9), None);
        let i_block = bytes(&(100..115).collect::<Vec<u32>>());
        let run = run(&i_block, 10, 99).unwrap();
        assert_eq!((run.physical, run.pointers), (Some(PhysBlock(110)), 2));
    }

    #[test]
    fn pointers_outside_are_named() {
        let physical = PhysBlock(1)..PhysBlock(100);
        let mut pointers = vec![0_u32; 15];
        pointers[3] = 99;
        check_root(&bytes(&pointers), &physical).unwrap();
        pointers[14] = 100;
        assert_eq!(
            check_root(&bytes(&pointers), &physical),
            Err(BlockMapError::Pointer {
                entry: 14,
                found: PhysBlock(100),
                expected: physical.clone()
            })
        );
        assert_eq!(
            check_block(&bytes(&pointers), size(0), &physical),
            Err(BlockMapError::TooShort {
                found: 15,
                expected: 256
            })
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..1100),
            slot: u16,
            limit: u32,
        ) {
            let _ = pointer(&bytes, slot);
            let _ = run(&bytes, slot, limit);
            let _ = check_block(&bytes, size(0), &(PhysBlock(0)..PhysBlock(1 << 31)));
        }

        #[test]
        fn paths_count_up(logical in 0..u32::MAX, log in 0..7u32) {
            let to = |logical| Path::to(LogicalBlock(logical), size(log));
            let here = to(logical);
            prop_assert_eq!(here.is_some(), LogicalBlock(logical) < logical_end(size(log)));
            if let (Some(here), Some(next)) = (here, to(logical + 1)) {
                // The range below a slot ends exactly where the path of the next block has another
                // slot.
                for level in 0..here.slots().len() {
                    let until = level.min(next.slots().len() - 1);
                    let leaves = here.slots()[..=level] != next.slots()[..=until];
                    prop_assert_eq!(here.blocks_below(level) == 1, leaves);
                }
            }
        }
    }
}

//! **Purpose.** Builds the whole block map of a file whose runs are all known.
//!
//! **Not here.** Which blocks the indirect blocks get; changes of a map that exists (`edit`).
//!
//! **Model.** The caller counts the indirect blocks with [`count_indirect_blocks`], allocates a
//! block for each, and passes the blocks to [`build`], which uses them in the order of a walk
//! through the file: each indirect block in front of those below it.

use super::{BlockMapEditError, Path, set_pointer, set_run};
use crate::run::MappedRun;
use crate::types::{BlockSize, LogicalBlock, PhysBlock};

/// Why a block map is not built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockMapBuildError {
    /// A pointer cannot be set.
    #[error(transparent)]
    Edit(#[from] BlockMapEditError),
    /// A block of the file behind the last one that a map reaches.
    #[error("block {logical} is past the end of a block map")]
    Logical {
        /// The block.
        logical: LogicalBlock,
    },
    /// Fewer blocks at hand than the map has indirect blocks.
    #[error("block map: {found} blocks are too few for the indirect blocks")]
    IndirectBlocks {
        /// How many there are.
        found: usize,
    },
}

/// A step of the walk through the map of a file.
enum Step {
    /// An indirect block begins; this slot of the block above points to it.
    Begin { slot: u16 },
    /// So many slots of the block that began last, or of `i_block`, point to data.
    Data {
        slot: u16,
        physical: PhysBlock,
        count: u16,
    },
    /// The indirect block that began last is complete.
    End,
}

/// The number of indirect blocks that the map of these runs needs, as far as a map reaches.
pub fn count_indirect_blocks(
    runs: impl IntoIterator<Item = MappedRun>,
    block_size: BlockSize,
) -> usize {
    let mut count = 0;
    // The only error ends the walk at the end of the map.
    let _ = walk(runs, block_size, |step| {
        count += usize::from(matches!(step, Step::Begin { .. }));
        Ok(())
    });
    count
}

/// An indirect block that is being filled.
struct OpenBlock {
    block: PhysBlock,
    pointers: Vec<u8>,
}

/// Builds the map of these runs, which are sorted and do not overlap. Returns `i_block`; each
/// indirect block is passed to `emit` with the block it belongs to. `indirect` are the blocks for
/// indirect blocks, at least [`count_indirect_blocks`] of them.
///
/// # Errors
/// Too few `indirect` blocks, and runs that a block map cannot express.
pub fn build(
    runs: impl IntoIterator<Item = MappedRun>,
    indirect: &[PhysBlock],
    block_size: BlockSize,
    emit: &mut dyn FnMut(PhysBlock, Vec<u8>),
) -> Result<[u8; 60], BlockMapBuildError> {
    let mut i_block = [0; 60];
    let mut open: Vec<OpenBlock> = Vec::new();
    let mut unused = indirect.iter().copied();
    walk(runs, block_size, |step| {
        let lowest: &mut [u8] = match open.last_mut() {
            Some(open) => &mut open.pointers,
            None => &mut i_block,
        };
        match step {
            Step::Begin { slot } => {
                let found = indirect.len();
                let block = unused.next();
                let block = block.ok_or(BlockMapBuildError::IndirectBlocks { found })?;
                set_pointer(lowest, slot, block)?;
                open.push(OpenBlock {
                    block,
                    pointers: vec![0; block_size.bytes()],
                });
            }
            Step::Data {
                slot,
                physical,
                count,
            } => set_run(lowest, slot, physical, count)?,
            Step::End => {
                if let Some(done) = open.pop() {
                    emit(done.block, done.pointers);
                }
            }
        }
        Ok(())
    })?;
    Ok(i_block)
}

/// Walks through the map of a file in the order of its blocks.
fn walk(
    runs: impl IntoIterator<Item = MappedRun>,
    block_size: BlockSize,
    mut visit: impl FnMut(Step) -> Result<(), BlockMapBuildError>,
) -> Result<(), BlockMapBuildError> {
    // The slots that lead from `i_block` to the indirect block that began last.
    let mut open: Vec<u16> = Vec::new();
    for run in runs {
        let mut done = 0;
        while done < run.blocks {
            let logical = LogicalBlock(run.logical.0.saturating_add(done));
            let path = Path::to(logical, block_size);
            let path = path.ok_or(BlockMapBuildError::Logical { logical })?;
            let Some((&slot, above)) = path.slots().split_last() else {
                break;
            };
            let same = open.iter().zip(above).take_while(|(a, b)| a == b).count();
            while open.len() > same {
                open.pop();
                visit(Step::End)?;
            }
            for &slot in above.iter().skip(same) {
                open.push(slot);
                visit(Step::Begin { slot })?;
            }
            let count = path.neighbours().min(run.blocks - done);
            // An indirect block has at most 2^14 pointers.
            let count = u16::try_from(count).unwrap_or(u16::MAX);
            let physical = PhysBlock(run.physical.0 + u64::from(done));
            visit(Step::Data {
                slot,
                physical,
                count,
            })?;
            done += u32::from(count);
        }
    }
    for _ in open {
        visit(Step::End)?;
    }
    Ok(())
}

impl Path {
    /// How many indirect blocks a file needs for this block if it has all blocks in front of it
    /// already: those that map this block first.
    #[must_use]
    pub fn indirect_blocks_begun(&self) -> usize {
        let below = self.slots().iter().skip(1);
        below.rev().take_while(|&&slot| slot == 0).count()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::blockmap::pointer;

    fn size() -> BlockSize {
        BlockSize::from_log(0).unwrap()
    }

    /// Where a reader finds a block of the file.
    fn look_up(
        logical: u32,
        i_block: &[u8],
        blocks: &BTreeMap<PhysBlock, Vec<u8>>,
    ) -> Option<PhysBlock> {
        let path = Path::to(LogicalBlock(logical), size()).unwrap();
        let (&last, above) = path.slots().split_last().unwrap();
        let mut bytes = i_block;
        for &slot in above {
            bytes = &blocks[&pointer(bytes, slot)?];
        }
        pointer(bytes, last)
    }

    proptest! {
        #[test]
        fn a_built_map_holds_the_runs_and_nothing_else(
            gaps_and_lengths in proptest::collection::vec((0u32..5000, 1u32..900), 0..30),
        ) {
            let (mut logical, mut physical) = (0, 10_000);
            let mut runs = Vec::new();
            for (gap, blocks) in gaps_and_lengths {
                logical += gap;
                runs.push(MappedRun {
                    logical: LogicalBlock(logical),
                    physical: PhysBlock(physical),
                    blocks,
                });
                logical += blocks;
                physical += u64::from(blocks) + 3;
            }
            let needed = count_indirect_blocks(runs.iter().copied(), size());
            let indirect: Vec<_> = (1..=needed as u64).map(PhysBlock).collect();
            let mut blocks = BTreeMap::new();
            let i_block = build(runs.iter().copied(), &indirect, size(), &mut |block, bytes| {
                blocks.insert(block, bytes);
            });
            let i_block = i_block.unwrap();
            prop_assert_eq!(blocks.len(), needed);
            let mut rest = runs.iter().peekable();
            for at in 0..logical + 10 {
                while rest.peek().is_some_and(|run| run.logical.0 + run.blocks <= at) {
                    rest.next();
                }
                let inside = rest.peek().filter(|run| run.logical.0 <= at);
                let expected =
                    inside.map(|run| PhysBlock(run.physical.0 + u64::from(at - run.logical.0)));
                prop_assert_eq!(look_up(at, &i_block, &blocks), expected);
            }
        }
    }

    #[test]
    fn a_dense_file_begins_as_many_indirect_blocks_as_are_counted() {
        let end = 12 + 256 + 256 * 256 + 1000;
        let begun: usize = (0..end)
            .map(|at| Path::to(LogicalBlock(at), size()).unwrap())
            .map(|path| path.indirect_blocks_begun())
            .sum();
        let run = MappedRun {
            logical: LogicalBlock(0),
            physical: PhysBlock(1),
            blocks: end,
        };
        assert_eq!(begun, count_indirect_blocks([run], size()));
        let found = 0;
        assert_eq!(
            build([run], &[], size(), &mut |_, _| panic!("a block")),
            Err(BlockMapBuildError::IndirectBlocks { found })
        );
    }
}

//! **Purpose.** Positions in the log, which is a ring of blocks.

use fourscore_ondisk::jbd2::JournalBlock;

/// The blocks of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    first: u32,
    end: u32,
}

impl Ring {
    /// The ring of the blocks in `log`, of which there is at least one.
    pub(crate) fn new(log: &std::ops::Range<JournalBlock>) -> Self {
        Self {
            first: log.start.0,
            end: log.end.0.max(log.start.0.saturating_add(1)),
        }
    }

    /// The number of blocks.
    pub(crate) fn len(self) -> u32 {
        self.end - self.first
    }

    /// The first block.
    pub(crate) fn first(self) -> JournalBlock {
        JournalBlock(self.first)
    }

    /// Whether `blocks` from `from` on would go beyond the last block.
    pub(crate) fn wraps(self, from: JournalBlock, blocks: u32) -> bool {
        u64::from(from.0) + u64::from(blocks) > u64::from(self.end)
    }

    /// Whether `block` is one of them.
    pub(crate) fn contains(self, block: JournalBlock) -> bool {
        (self.first..self.end).contains(&block.0)
    }

    /// The block `blocks` after `from`, which must be at most one turn of the ring away.
    pub(crate) fn after(self, from: JournalBlock, blocks: u32) -> JournalBlock {
        let (to, len) = (u64::from(from.0) + u64::from(blocks), self.len());
        let wrapped = if to < u64::from(self.end) {
            to
        } else {
            to - u64::from(len)
        };
        JournalBlock(u32::try_from(wrapped).unwrap_or(self.first))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn positions_wrap_around_after_the_last_block() {
        let ring = Ring::new(&(JournalBlock(3)..JournalBlock(10)));
        assert_eq!((ring.len(), ring.first()), (7, JournalBlock(3)));
        let after = |from, blocks| ring.after(JournalBlock(from), blocks).0;
        assert_eq!([after(3, 0), after(3, 6), after(3, 7)], [3, 9, 3]);
        assert_eq!([after(9, 1), after(9, 3), after(9, 7)], [3, 5, 9]);
        assert!(!ring.wraps(JournalBlock(3), 7) && !ring.wraps(JournalBlock(9), 1));
        assert!(ring.wraps(JournalBlock(3), 8) && ring.wraps(JournalBlock(9), 2));
    }
}

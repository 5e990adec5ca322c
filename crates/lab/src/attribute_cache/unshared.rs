//! **Purpose.** No cache: each file has a block of its own. This is what a cache has to be compared
//! with where few attributes are equal.
//!
//! **Locking.** Each core has blocks of its own; giving a block back takes the lock of the core
//! that made it.

use fourscore_sync::{Mutex, PerCore};

use super::{AttributeCache, Taken};

/// Bits of a block's number for its place on its core.
const PLACE_BITS: u32 = 40;

/// Blocks without a cache.
#[derive(Debug, Default)]
pub struct Unshared {
    blocks: PerCore<Mutex<Blocks>>,
}

#[derive(Debug, Default)]
struct Blocks {
    contents: Vec<Option<Box<[u8]>>>,
    free: Vec<usize>,
}

impl AttributeCache for Unshared {
    fn name(&self) -> &'static str {
        "unshared"
    }

    fn take(&self, content: &[u8]) -> Taken {
        let core = fourscore_sync::CoreNr::current();
        let mut blocks = self.blocks.of(core).lock();
        let place = blocks.free.pop().unwrap_or(blocks.contents.len());
        if place == blocks.contents.len() {
            blocks.contents.push(None);
        }
        blocks.contents[place] = Some(content.into());
        Taken {
            block: (core.index() as u64) << PLACE_BITS | place as u64,
            was_shared: false,
        }
    }

    fn give_back(&self, block: u64) {
        let core = usize::try_from(block >> PLACE_BITS).unwrap_or(usize::MAX);
        let place = usize::try_from(block & ((1 << PLACE_BITS) - 1)).unwrap_or(usize::MAX);
        let Some(core) = fourscore_sync::CoreNr::new(core) else {
            return;
        };
        let mut blocks = self.blocks.of(core).lock();
        let content = blocks.contents.get_mut(place).and_then(Option::take);
        assert!(content.is_some(), "the block is in use");
        blocks.free.push(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_have_blocks_of_their_own_and_places_are_reused() {
        let blocks = Unshared::default();
        let (one, two) = (blocks.take(b"a"), blocks.take(b"a"));
        assert_ne!(one.block, two.block);
        blocks.give_back(one.block);
        blocks.give_back(two.block);
        let made = blocks.blocks.iter().map(|own| own.lock().contents.len());
        assert!(made.sum::<usize>() <= 2);
    }
}

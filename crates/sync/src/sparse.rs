//! **Purpose.** A long slice of which only the parts that somebody uses take memory.
//!
//! **Model.** The values lie in chunks, and a chunk is made, of values as they begin, when one of
//! its values is first asked for. A value begins as [`Default`] says, so nobody can tell whether
//! his chunk was there before. A file system of 15 TiB has 120 000 groups, of which most mounts use
//! a few: making all of them takes longer than all else that a mount does.
//!
//! **Locking.** Finding a value in a chunk that is there is one load of a line that nobody writes
//! any more. Who comes to a chunk that is being made waits for that.

use crate::{CachePadded, OnceLock};

/// Values of one chunk.
const CHUNK: usize = 64;

type Chunk<T> = Box<[CachePadded<T>]>;

/// Values on cache lines of their own, by their numbers from 0.
#[derive(Debug)]
pub struct Sparse<T> {
    chunks: Box<[OnceLock<Chunk<T>>]>,
    len: usize,
}

impl<T: Default> Sparse<T> {
    /// So many values, of which none takes memory.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let chunks = (0..len.div_ceil(CHUNK)).map(|_| OnceLock::new());
        Self {
            chunks: chunks.collect(),
            len,
        }
    }

    /// The value number `index`, if there are as many.
    #[inline]
    #[cfg_attr(feature = "count", track_caller)]
    pub fn get(&self, index: usize) -> Option<&T> {
        let chunk = self.chunks.get(index / CHUNK)?;
        let values = match chunk.get() {
            Some(values) => values,
            None => self.made(index / CHUNK, chunk),
        };
        values.get(index % CHUNK).map(|value| &**value)
    }

    #[cold]
    fn made<'c>(&self, nr: usize, chunk: &'c OnceLock<Chunk<T>>) -> &'c Chunk<T> {
        let values = CHUNK.min(self.len - nr * CHUNK);
        chunk.get_or_init(|| (0..values).map(|_| CachePadded::default()).collect())
    }

    /// The values of the chunks that are there: all that somebody has asked for, and their
    /// neighbours.
    pub fn made_so_far(&self) -> impl Iterator<Item = &T> {
        let there = self.chunks.iter().filter_map(OnceLock::get);
        there.flat_map(|values| values.iter().map(|value| &**value))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::atomic::{AtomicU32, Ordering};
    use crate::thread;

    #[test]
    fn values_are_there_when_they_are_asked_for() {
        let values = Sparse::<AtomicU32>::new(CHUNK * 3 + 1);
        assert_eq!(values.made_so_far().count(), 0);
        let last = values.get(CHUNK * 3).expect("there are as many");
        last.store(7, Ordering::Relaxed);
        assert_eq!(values.made_so_far().count(), 1);
        let first = values.get(0).expect("there are as many");
        assert_eq!(first.load(Ordering::Relaxed), 0);
        let again = values
            .get(CHUNK * 3)
            .map(|last| last.load(Ordering::Relaxed));
        assert_eq!(again, Some(7));
        assert_eq!(values.made_so_far().count(), 1 + CHUNK);
        assert!(values.get(CHUNK * 3 + 1).is_none() && values.get(usize::MAX).is_none());
        assert!(Sparse::<AtomicU32>::new(0).get(0).is_none());
    }

    #[test]
    fn all_who_come_first_find_the_same_value() {
        let values = Sparse::<AtomicU32>::new(1000);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for index in 0..1000 {
                        let value = values.get(index).expect("there are as many");
                        value.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let all = values
            .made_so_far()
            .map(|value| value.load(Ordering::Relaxed));
        assert_eq!(all.collect::<Vec<_>>(), vec![4; 1000]);
    }
}

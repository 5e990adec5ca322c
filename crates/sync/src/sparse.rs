//! **Purpose.** A long slice whose memory is allocated in chunks on first use.
//!
//! **Model.** A chunk is allocated when one of its values is accessed for the first time. All its
//! values are then [`Default`] ones, so a caller cannot tell whether the chunk existed before. A
//! file system of 15 TiB has 120 000 groups, of which most mounts use a few: allocating all of them
//! would take longer than the rest of the mount.
//!
//! **Locking.** Finding a value in an existing chunk is one load of a line that is not written any
//! more. A thread that accesses a chunk while another thread allocates it waits for that.

use crate::{CachePadded, OnceLock};

/// The number of values in a chunk.
const CHUNK: usize = 64;

type Chunk<T> = Box<[CachePadded<T>]>;

/// A slice of values, each on cache lines of its own.
#[derive(Debug)]
pub struct Sparse<T> {
    chunks: Box<[OnceLock<Chunk<T>>]>,
    len: usize,
}

impl<T: Default> Sparse<T> {
    /// A slice of `len` values, of which none is allocated yet.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let chunks = (0..len.div_ceil(CHUNK)).map(|_| OnceLock::new());
        Self {
            chunks: chunks.collect(),
            len,
        }
    }

    /// The value at `index`; `None` if `index` is past the end.
    #[inline]
    #[cfg_attr(feature = "count", track_caller)]
    pub fn get(&self, index: usize) -> Option<&T> {
        let chunk = self.chunks.get(index / CHUNK)?;
        let values = match chunk.get() {
            Some(values) => values,
            None => self.allocate(index / CHUNK, chunk),
        };
        values.get(index % CHUNK).map(|value| &**value)
    }

    #[cold]
    fn allocate<'c>(&self, nr: usize, chunk: &'c OnceLock<Chunk<T>>) -> &'c Chunk<T> {
        let values = CHUNK.min(self.len - nr * CHUNK);
        chunk.get_or_init(|| (0..values).map(|_| CachePadded::default()).collect())
    }

    /// The values of all allocated chunks: those that were accessed, and their neighbours.
    pub fn allocated(&self) -> impl Iterator<Item = &T> {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        chunks.flat_map(|values| values.iter().map(|value| &**value))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::atomic::{AtomicU32, Ordering};
    use crate::thread;

    #[test]
    fn values_are_allocated_on_first_access() {
        let values = Sparse::<AtomicU32>::new(CHUNK * 3 + 1);
        assert_eq!(values.allocated().count(), 0);
        let last = values.get(CHUNK * 3).expect("inside");
        last.store(7, Ordering::Relaxed);
        assert_eq!(values.allocated().count(), 1);
        let first = values.get(0).expect("inside");
        assert_eq!(first.load(Ordering::Relaxed), 0);
        let again = values
            .get(CHUNK * 3)
            .map(|last| last.load(Ordering::Relaxed));
        assert_eq!(again, Some(7));
        assert_eq!(values.allocated().count(), 1 + CHUNK);
        assert!(values.get(CHUNK * 3 + 1).is_none() && values.get(usize::MAX).is_none());
        assert!(Sparse::<AtomicU32>::new(0).get(0).is_none());
    }

    #[test]
    fn threads_that_allocate_a_chunk_together_find_the_same_values() {
        let values = Sparse::<AtomicU32>::new(1000);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for index in 0..1000 {
                        let value = values.get(index).expect("inside");
                        value.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let all = values
            .allocated()
            .map(|value| value.load(Ordering::Relaxed));
        assert_eq!(all.collect::<Vec<_>>(), vec![4; 1000]);
    }
}

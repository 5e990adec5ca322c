//! **Purpose.** A concurrent bitmap: a set of numbers below a bound that many threads add to.
//!
//! **Model.** Bits lie in chunks, each allocated when its first bit is set, so memory follows the
//! numbers in the set and not the bound.
//!
//! **Locking.** Only the allocation of a chunk locks. Bits are only ever set, by an atomic
//! read-modify-write that also returns which of them were set before, so `Relaxed` is enough: a
//! pass ends by joining its threads, which orders everything else.

use std::ops::Range;

use fourscore_sync::OnceLock;
use fourscore_sync::atomic::{AtomicU64, Ordering::Relaxed};

const WORD_BITS: u64 = 64;
/// Words of a chunk: 4 KiB.
const CHUNK_WORDS: usize = 512;

/// The set.
#[derive(Debug)]
pub(crate) struct Bits {
    chunks: Box<[OnceLock<Chunk>]>,
    len: u64,
}

type Chunk = Box<[AtomicU64]>;

impl Bits {
    /// The empty set of numbers below `len`.
    pub(crate) fn new(len: u64) -> Self {
        let words = usize::try_from(len.div_ceil(WORD_BITS)).unwrap_or(usize::MAX);
        let chunks = words.div_ceil(CHUNK_WORDS);
        Self {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            len,
        }
    }

    /// A word, if its chunk exists.
    fn word(&self, index: u64) -> Option<&AtomicU64> {
        let index = usize::try_from(index).ok()?;
        let chunk = self.chunks.get(index / CHUNK_WORDS)?.get()?;
        chunk.get(index % CHUNK_WORDS)
    }

    /// A word to set a bit in; allocates its chunk.
    fn word_to_set(&self, index: u64) -> Option<&AtomicU64> {
        let index = usize::try_from(index).ok()?;
        let chunk = self.chunks.get(index / CHUNK_WORDS)?;
        let words = || (0..CHUNK_WORDS).map(|_| AtomicU64::new(0)).collect();
        chunk.get_or_init(words).get(index % CHUNK_WORDS)
    }

    /// Whether `number` is in the set; numbers beyond the bound are not.
    pub(crate) fn contains(&self, number: u64) -> bool {
        let word = self.word(number / WORD_BITS);
        word.is_some_and(|word| word.load(Relaxed) >> (number % WORD_BITS) & 1 == 1)
    }

    /// Adds `number`, and returns whether it was in the set before. Past the bound it does nothing
    /// and returns `true`.
    pub(crate) fn insert(&self, number: u64) -> bool {
        if number >= self.len {
            return true;
        }
        let bit = 1 << (number % WORD_BITS);
        self.word_to_set(number / WORD_BITS)
            .is_none_or(|word| word.fetch_or(bit, Relaxed) & bit != 0)
    }

    /// Adds a run, and calls `present` with each run of numbers that were in the set before.
    pub(crate) fn insert_run(&self, run: Range<u64>, mut present: impl FnMut(Range<u64>)) {
        let mut at = run.start;
        let end = run.end.min(self.len);
        while at < end {
            let mask = word_mask(at, end);
            let base = at - at % WORD_BITS;
            if let Some(word) = self.word_to_set(at / WORD_BITS) {
                let mut before = word.fetch_or(mask, Relaxed) & mask;
                while before != 0 {
                    let first = before.trailing_zeros();
                    let count = (before >> first).trailing_ones();
                    let start = base + u64::from(first);
                    present(start..start + u64::from(count));
                    before &= !(run_of(count) << first);
                }
            }
            at = base + WORD_BITS;
        }
    }

    /// Calls `each` with every run of numbers of `run` that are in the set, split at words.
    pub(crate) fn runs_in(&self, run: Range<u64>, mut each: impl FnMut(Range<u64>)) {
        for (base, mut bits) in self.words_in(run) {
            while bits != 0 {
                let first = bits.trailing_zeros();
                let count = (bits >> first).trailing_ones();
                let start = base + u64::from(first);
                each(start..start + u64::from(count));
                bits &= !(run_of(count) << first);
            }
        }
    }

    /// The number of members in `run`.
    pub(crate) fn count_in(&self, run: Range<u64>) -> u64 {
        let counts = self.words_in(run).map(|(_, bits)| bits.count_ones());
        counts.map(u64::from).sum()
    }

    /// The words that `run` touches, masked to it, each with its first number.
    fn words_in(&self, run: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let Range { start, end } = run;
        let end = end.min(self.len).max(start);
        let first = (start - start % WORD_BITS).min(end);
        let words = (end - first).div_ceil(WORD_BITS) * u64::from(start < end);
        (0..words).map(move |nth| {
            let base = first + nth * WORD_BITS;
            (base, self.bits_at(base) & word_mask(start.max(base), end))
        })
    }

    /// The 64 bits from number `first` on; zeros past the bound.
    pub(crate) fn bits_at(&self, first: u64) -> u64 {
        let load = |index| self.word(index).map_or(0, |word| word.load(Relaxed));
        let (index, shift) = (first / WORD_BITS, first % WORD_BITS);
        let low = load(index) >> shift;
        if shift == 0 {
            low
        } else {
            low | load(index + 1) << (WORD_BITS - shift)
        }
    }

    /// The bound: one more than the largest possible number.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }
}

/// `count` ones, 1 to 64.
fn run_of(count: u32) -> u64 {
    u64::MAX >> (64 - count.clamp(1, 64))
}

/// The bits of the word of `at` from `at` up to `end`.
fn word_mask(at: u64, end: u64) -> u64 {
    let low = u64::MAX << (at % WORD_BITS);
    match end - (at - at % WORD_BITS) {
        left @ 1..64 => low & (u64::MAX >> (64 - left)),
        0 => 0,
        _ => low,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_across_words_report_present_numbers() {
        let bits = Bits::new(300);
        let again = |run: Range<u64>| {
            let mut found = Vec::new();
            bits.insert_run(run, |run| found.push(run));
            found
        };
        assert_eq!(again(60..70), []);
        assert_eq!(again(128..192), []);
        assert_eq!(again(0..300), [60..64, 64..70, 128..192]);
        assert_eq!(again(299..400), [299..300]);
        assert_eq!(bits.count_in(0..1000), 300);
        assert!(bits.contains(299) && !bits.contains(300));
    }

    #[test]
    fn memory_follows_the_members() {
        let bits = Bits::new(1 << 31);
        assert!(!bits.insert(1 << 30) && bits.contains(1 << 30));
        let far = (1 << 30) - 70..(1 << 30) + 70;
        let mut again = Vec::new();
        bits.insert_run(far.clone(), |run| again.push(run));
        assert_eq!(again, [1 << 30..(1 << 30) + 1]);
        assert_eq!(bits.count_in((1 << 30) - 1000..(1 << 30) + 1000), 140);
        assert_eq!((bits.bits_at(0), bits.bits_at(far.end)), (0, 0));
        let chunks = bits.chunks.iter().filter(|chunk| chunk.get().is_some());
        assert_eq!(chunks.count(), 2);
    }

    #[test]
    fn bits_are_read_at_any_offset() {
        let bits = Bits::new(200);
        assert!(!bits.insert(65) && bits.insert(65) && bits.insert(200));
        assert_eq!(bits.bits_at(65), 1);
        assert_eq!(bits.bits_at(3), 1 << 62);
        assert_eq!(bits.bits_at(199), 0);
        let mut runs = Vec::new();
        bits.runs_in(0..66, |run| runs.push(run));
        assert_eq!(runs, [65..66]);
        assert_eq!(bits.count_in(66..200), 0);
        let backwards = Range { start: 70, end: 60 };
        assert_eq!((bits.count_in(65..65), bits.count_in(backwards)), (0, 0));
    }
}

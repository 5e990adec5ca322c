//! **Purpose.** Runs of bits in slices of 64-bit words, bit 0 of word 0 first.

/// A word whose bits from `from` to `to - 1` are set; both are at most 64.
fn mask(from: u32, to: u32) -> u64 {
    let up_to = |n: u32| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
    up_to(to) & !up_to(from)
}

/// The words and masks that cover bits `start` to `end - 1`.
fn pieces(start: u32, end: u32) -> impl Iterator<Item = (usize, u64)> {
    (start / 64..end.div_ceil(64)).map(move |word| {
        let base = word * 64;
        (
            word as usize,
            mask(start.max(base) - base, end.min(base + 64) - base),
        )
    })
}

/// The word and mask of bits `start` to `end - 1`, if one word has them all: the usual case, and
/// worth a branch.
fn one_word(start: u32, end: u32) -> Option<(usize, u64)> {
    let len = end.wrapping_sub(start);
    let shift = start % 64;
    (len.wrapping_sub(1) < 64 - shift)
        .then(|| ((start / 64) as usize, (u64::MAX >> (64 - len)) << shift))
}

/// Sets bits `start` to `end - 1`.
pub(crate) fn set(words: &mut [u64], start: u32, end: u32) {
    for (word, mask) in pieces(start, end) {
        words[word] |= mask;
    }
}

/// Clears bits `start` to `end - 1`.
#[cfg(test)]
pub(crate) fn clear(words: &mut [u64], start: u32, end: u32) {
    for (word, mask) in pieces(start, end) {
        words[word] &= !mask;
    }
}

/// A range of bits that spans several words: the first word and its mask, the full words between,
/// and the last word and its mask.
struct Long {
    first: (usize, u64),
    between: std::ops::Range<usize>,
    last: (usize, u64),
}

impl Long {
    /// The range of bits `start` to `end - 1`; `None` if it is empty.
    fn new(start: u32, end: u32) -> Option<Self> {
        let last_bit = end.checked_sub(1).filter(|&bit| start <= bit)?;
        let (first, last) = ((start / 64) as usize, (last_bit / 64) as usize);
        Some(Self {
            first: (first, u64::MAX << (start % 64)),
            between: first + 1..last,
            last: (last, u64::MAX >> (63 - last_bit % 64)),
        })
    }

    /// Whether `of` a word is zero under its mask for all words. Tests full words eight at a time,
    /// which takes little longer than one.
    fn all_zero(&self, words: &[u64], of: impl Fn(u64) -> u64) -> bool {
        let at_end = |(word, mask): (usize, u64)| of(words[word]) & mask == 0;
        at_end(self.first)
            && at_end(self.last)
            && words[self.between.clone()]
                .chunks(8)
                .all(|words| words.iter().fold(0, |any, &word| any | of(word)) == 0)
    }
}

/// Flips bits `start` to `end - 1`.
#[inline]
pub(crate) fn flip(words: &mut [u64], start: u32, end: u32) {
    match one_word(start, end) {
        Some((word, mask)) => words[word] ^= mask,
        None => flip_long(words, start, end),
    }
}

fn flip_long(words: &mut [u64], start: u32, end: u32) {
    let Some(Long {
        first,
        between,
        last,
    }) = Long::new(start, end)
    else {
        return;
    };
    words[first.0] ^= first.1;
    words[between].iter_mut().for_each(|word| *word = !*word);
    words[last.0] ^= last.1;
}

/// The start of the run of clear bits that ends right before bit `end`; `end` if there is none.
/// Tests full words eight at a time, as [`Long::all_zero`] does.
pub(crate) fn clear_before(words: &[u64], end: u32) -> u32 {
    let mut at = end - end % 64;
    if at < end {
        let below = words[(at / 64) as usize] & mask(0, end - at);
        if below != 0 {
            return at + 64 - below.leading_zeros();
        }
    }
    let mut full = &words[..(at / 64) as usize];
    while let Some((before, last)) = full.split_last_chunk::<8>()
        && last.iter().fold(0, |any, &word| any | word) == 0
    {
        full = before;
        at -= 8 * 64;
    }
    while let Some((&last, before)) = full.split_last() {
        if last != 0 {
            return at - last.leading_zeros();
        }
        full = before;
        at -= 64;
    }
    0
}

/// Flips bit `i` and returns the other bit of its pair (bits 0 and 1, 2 and 3, and so on).
pub(crate) fn flip_one_of_pair(words: &mut [u64], i: u32) -> bool {
    let word = &mut words[(i / 64) as usize];
    *word ^= 1 << (i % 64);
    *word >> ((i % 64) ^ 1) & 1 != 0
}

/// Whether bit `i` is set.
pub(crate) fn get(words: &[u64], i: u32) -> bool {
    words[(i / 64) as usize] >> (i % 64) & 1 != 0
}

/// Whether all bits from `start` to `end - 1` are clear.
#[inline]
pub(crate) fn all_clear(words: &[u64], start: u32, end: u32) -> bool {
    match one_word(start, end) {
        Some((word, mask)) => words[word] & mask == 0,
        None => Long::new(start, end).is_none_or(|long| long.all_zero(words, |word| word)),
    }
}

/// Whether all bits from `start` to `end - 1` are set.
#[inline]
pub(crate) fn all_set(words: &[u64], start: u32, end: u32) -> bool {
    match one_word(start, end) {
        Some((word, mask)) => words[word] & mask == mask,
        None => Long::new(start, end).is_none_or(|long| long.all_zero(words, |word| !word)),
    }
}

/// The first clear bit from `from` on and before `end`, or `end`.
pub(crate) fn next_clear(words: &[u64], from: u32, end: u32) -> u32 {
    next(from, end, |word| !words[word])
}

/// The first set bit from `from` on and before `end`, or `end`.
pub(crate) fn next_set(words: &[u64], from: u32, end: u32) -> u32 {
    next(from, end, |word| words[word])
}

/// The first clear bit from `from` on and before `end` whose neighbour in its pair (bits 0 and 1, 2
/// and 3, and so on) is set, or `end`.
pub(crate) fn next_lone_clear(words: &[u64], from: u32, end: u32) -> u32 {
    next(from, end, |word| {
        let clear = !words[word];
        let pairs = clear & (clear >> 1) & (u64::MAX / 3);
        clear & !(pairs | pairs << 1)
    })
}

fn next(from: u32, end: u32, word_at: impl Fn(usize) -> u64) -> u32 {
    if from >= end {
        return end;
    }
    let first = from / 64;
    let mut bits = word_at(first as usize) & (u64::MAX << (from % 64));
    let mut word = first;
    loop {
        if bits != 0 {
            return (word * 64 + bits.trailing_zeros()).min(end);
        }
        word += 1;
        if word * 64 >= end {
            return end;
        }
        bits = word_at(word as usize);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_behave_like_a_row_of_booleans(
            steps in prop::collection::vec((0..1300_u32, 0..1300_u32, any::<bool>()), 1..30),
            from in 0..1300_u32,
            to in 0..1300_u32,
        ) {
            let mut words = [0_u64; 21];
            let mut row = [false; 1344];
            for (a, b, value) in steps {
                let (start, end) = (a.min(b), a.max(b));
                if value { set(&mut words, start, end) } else { clear(&mut words, start, end) }
                let before = words;
                flip(&mut words, start, end);
                prop_assert_eq!(all_clear(&words, start, end), start == end || value);
                flip(&mut words, start, end);
                prop_assert_eq!(words, before);
                row[start as usize..end as usize].fill(value);
            }
            let (start, end) = (from.min(to), from.max(to));
            let part = &row[start as usize..end as usize];
            let find = |value: bool| {
                let at = part.iter().position(|&bit| bit == value);
                at.map_or(end, |i| start + u32::try_from(i).unwrap())
            };
            prop_assert_eq!(next_clear(&words, start, end), find(false));
            prop_assert_eq!(next_set(&words, start, end), find(true));
            let clear = row[..end as usize].iter().rev().take_while(|&&bit| !bit).count();
            prop_assert_eq!(clear_before(&words, end), end - u32::try_from(clear).unwrap());
            prop_assert_eq!(all_clear(&words, start, end), part.iter().all(|&bit| !bit));
            prop_assert_eq!(all_set(&words, start, end), part.iter().all(|&bit| bit));
            prop_assert_eq!(get(&words, start), row[start as usize]);
            let mut flipped = words;
            let beside = flip_one_of_pair(&mut flipped, start);
            prop_assert_eq!(beside, row[start as usize ^ 1]);
            prop_assert_eq!(get(&flipped, start), !row[start as usize]);
            let lone = (start..end).find(|&i| !row[i as usize] && row[i as usize ^ 1]);
            prop_assert_eq!(next_lone_clear(&words, start, end), lone.unwrap_or(end));
        }
    }
}

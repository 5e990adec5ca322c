//! **Purpose.** Numbers and bytes into buffers: wide numbers cut into the little-endian words of
//! fields that store them in two parts, and copies that are checked to fit.
//!
//! **Invariants.** The functions named `low..` and `high..` cut: they return the named bits and
//! drop the others without an error. They are for values whose other part is stored beside them or
//! known to be zero. Code that wants the largest number instead of a cut one uses
//! `u32::try_from(..).unwrap_or(u32::MAX)`.

use zerocopy::little_endian::{U16, U32};

/// Bits 0 to 15 of `value`.
#[must_use]
pub fn low16(value: u64) -> U16 {
    let [a, b, ..] = value.to_le_bytes();
    U16::from_bytes([a, b])
}

/// Bits 0 to 31 of `value`.
#[must_use]
pub fn low32(value: u64) -> U32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    U32::from_bytes([a, b, c, d])
}

/// Bits 32 to 63 of `value`.
#[must_use]
pub fn high32(value: u64) -> U32 {
    low32(value >> 32)
}

/// Copies `bytes` into `buffer` from the offset `at` on. The caller guarantees that they fit: bytes
/// that would pass the end are a programming error, and nothing is copied then.
pub fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    let target = at
        .checked_add(bytes.len())
        .and_then(|end| buffer.get_mut(at..end));
    debug_assert!(target.is_some(), "{} bytes at {at} do not fit", bytes.len());
    if let Some(target) = target {
        target.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_and_not_saturated() {
        let value = 0x0123_4567_89ab_cdef;
        assert_eq!(low16(value).get(), 0xcdef);
        assert_eq!(low32(value).get(), 0x89ab_cdef);
        assert_eq!(high32(value).get(), 0x0123_4567);
    }
}

//! **Purpose.** Wide numbers cut into the little-endian words that fields of two parts store.

use zerocopy::little_endian::{U16, U32};

/// Bits 0 to 15.
pub(crate) fn low16(value: u64) -> U16 {
    let [a, b, ..] = value.to_le_bytes();
    U16::from_bytes([a, b])
}

/// Bits 0 to 31.
pub(crate) fn low32(value: u64) -> U32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    U32::from_bytes([a, b, c, d])
}

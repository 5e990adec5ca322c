//! **Purpose.** Numbers and bytes into buffers.

use zerocopy::little_endian::{U16, U32};

/// Copies `bytes` to `at`. What would pass the end is a mistake of the caller and is not copied.
pub(crate) fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    let place = buffer.get_mut(at..at + bytes.len());
    debug_assert!(place.is_some(), "{} bytes at {at}", bytes.len());
    if let Some(place) = place {
        place.copy_from_slice(bytes);
    }
}

/// Bits 0 to 31.
pub(crate) fn low32(value: u64) -> U32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    U32::from_bytes([a, b, c, d])
}

/// Bits 32 to 63.
pub(crate) fn high32(value: u64) -> U32 {
    low32(value >> 32)
}

/// Bits 0 to 15.
pub(crate) fn low16(value: u64) -> U16 {
    let [a, b, ..] = value.to_le_bytes();
    U16::from_bytes([a, b])
}

//! **Purpose.** Number conversions.

/// Converts the length of a container that was made from a `u32` length.
#[expect(
    clippy::cast_possible_truncation,
    reason = "all our slices are made from u32 lengths"
)]
pub(crate) fn len32(len: usize) -> u32 {
    debug_assert!(u32::try_from(len).is_ok());
    len as u32
}

/// floor(log2(value)); 0 for 0.
pub(crate) fn floor_log2(value: u32) -> u32 {
    value.checked_ilog2().unwrap_or(0)
}

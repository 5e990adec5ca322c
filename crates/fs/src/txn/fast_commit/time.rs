//! **Purpose.** Times of the logical clock by which fast commits order units ([`super::list`]).

/// A time of the logical clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(pub(crate) u64);

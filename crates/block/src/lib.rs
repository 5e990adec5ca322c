//! **Purpose.** Block devices, their backends, and the metadata buffer cache.
//!
//! | module | responsibility |
//! |---|---|
//! | [`device`] | the `BlockDevice` trait |

pub mod device;

pub use device::BlockDevice;

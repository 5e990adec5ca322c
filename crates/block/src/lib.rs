//! **Purpose.** Block devices, their backends, and the metadata buffer cache.
//!
//! | module | responsibility |
//! |---|---|
//! | [`device`] | the `BlockDevice` trait: the interface between the file system and its device |
//! | [`batch`] | requests that are submitted to a device together, and their outcomes |
//! | [`io_buf`] | memory that a request owns until it has ended |
//! | [`error`] | errors of devices |
//! | [`open`] | opens an image file or a block device by its path |
//! | `host` | devices: files of the host, by what its operating system has |
//! | [`positioned`] | reads and writes files of the host at offsets |
//! | [`ram`] | device: sparse memory |
//! | [`window`] | device: a range of another device, or all of it read-only |
//! | [`unordered`] | device: another device without flushes |
//! | [`overlay`] | device: another device with some blocks replaced from a journal |
//! | [`mmp`] | keeps other hosts away from a file system (feature `mmp` of ext4) |
//! | `recording` | device for tests (feature `testing`): logs writes, makes the state after a crash |
//! | `faulty` | device for tests (feature `testing`): another device with injected faults |
//! | [`buffer`] | one metadata block: read without a lock, changed by copy-on-write, sealed |
//! | [`buffer_cache`] | the metadata blocks of one file system, within a byte budget |
//! | `loading` | load locks: one thread at a time loads a block into the cache |

pub mod batch;
pub mod buffer;
pub mod buffer_cache;
pub mod device;
pub mod error;
#[cfg(any(test, feature = "testing"))]
pub mod faulty;
mod host;
pub mod io_buf;
mod loading;
pub mod mmp;
pub mod open;
pub mod overlay;
pub mod positioned;
pub mod ram;
#[cfg(any(test, feature = "testing"))]
pub mod recording;
pub mod unordered;
pub mod window;

pub use batch::{Batch, InFlight, Outcome, Poll};
pub use buffer::{
    BUFFER, Buffer, Joined, Kept, Novelty, Retire, Retired, Sealed, Structure, VerifiedAs,
};
pub use buffer_cache::{BlockError, BufferCache, CacheOptions, CacheStats};
pub use device::{BlockDevice, Hints, HostRange};
pub use error::{DeviceError, DeviceOp, raw_os_error};
#[cfg(any(test, feature = "testing"))]
pub use faulty::{FaultyDevice, Rule};
pub use fourscore_cache::HitCounting;
pub use host::*;
pub use io_buf::{IoBuf, prefetch};
pub use open::{Access, Caching, DeviceOptions, Sharing, create_image, open_path};
pub use overlay::{Content, OverlaidBlock, OverlayDevice};
pub use ram::RamDevice;
#[cfg(any(test, feature = "testing"))]
pub use recording::{Durable, Event, RecordingDevice, Survival};
pub use unordered::UnorderedDevice;
pub use window::Window;

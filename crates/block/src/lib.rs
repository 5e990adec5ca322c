//! **Purpose.** Block devices, their backends, and the metadata buffer cache.
//!
//! | module | responsibility |
//! |---|---|
//! | [`device`] | the `BlockDevice` trait: what the file system asks of its device |
//! | [`batch`] | many requests handed to a device together, and what became of them |
//! | [`io_buf`] | memory that a request owns while a device works on it |
//! | [`error`] | one sentence for each way in which a device can refuse or fail |
//! | [`open`] | from a path to a device, by what the path turns out to be |
//! | [`mod@file`] | image files and block devices of the host |
//! | [`uring`] | the same, with batches truly in flight at once |
//! | `raw` | what only block devices have |
//! | `memory_file` | several threads writing one file of tmpfs |
//! | `host_io` | whole transfers over a file descriptor of the host |
//! | `in_use` | who else uses a file or device of the host |
//! | `share` | blocks of another file of the host, shared instead of copied |
//! | [`ram`] | memory, sparse |
//! | [`window`] | a part of another device, or all of it read-only |
//! | [`unordered`] | another device without its flushes |
//! | [`overlay`] | a device some of whose blocks come from elsewhere |
//! | [`recording`] | remembers every write, and shows the device after a crash at any moment |
//! | [`faulty`] | fails when and where a test says |
//! | [`buffer`] | one metadata block: read without a lock, changed by copy, sealed |
//! | [`buffer_cache`] | the metadata blocks of one file system, within a byte budget |
//! | `loading` | who is bringing which block into the cache right now |

pub mod batch;
pub mod buffer;
pub mod buffer_cache;
pub mod device;
pub mod error;
pub mod faulty;
pub mod file;
mod host_io;
mod in_use;
pub mod io_buf;
mod loading;
mod memory_file;
pub mod open;
pub mod overlay;
pub mod ram;
mod raw;
pub mod recording;
mod share;
pub mod unordered;
pub mod uring;
pub mod window;

pub use batch::{Batch, InFlight, Outcome, Poll};
pub use buffer::{BUFFER, Buffer, Joined, Retire, Retired, Sealed, Structure, VerifiedAs};
pub use buffer_cache::{BlockError, BufferCache, CacheOptions, CacheStats};
pub use device::{BlockDevice, Hints, HostRange};
pub use error::{DeviceError, DeviceOp, raw_os_error};
pub use faulty::{FaultyDevice, Rule};
pub use file::FileDevice;
pub use fourscore_cache::HitCounting;
pub use io_buf::{IoBuf, prefetch};
pub use open::{Access, Caching, DeviceOptions, Sharing, create_image, open_path};
pub use overlay::{Content, OverlaidBlock, OverlayDevice};
pub use ram::RamDevice;
pub use recording::{Durable, Event, RecordingDevice, Survival};
pub use unordered::UnorderedDevice;
pub use uring::UringDevice;
pub use window::Window;

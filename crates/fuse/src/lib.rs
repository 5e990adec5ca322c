//! **Purpose.** ext4 mounted without the kernel's ext4: requests of Linux's FUSE, each answered by
//! one call of the library.
//!
//! ```no_run
//! use fourscore::block::{DeviceOptions, open_path};
//! use fourscore::{Arc, Fs, MountOptions};
//! use fourscore_fuse::{Session, SessionOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = open_path("disk.ext4".as_ref(), DeviceOptions::read_write())?;
//! let fs = Fs::mount(Arc::new(device), &MountOptions::new())?;
//! let session = Session::mount("mnt".as_ref(), &SessionOptions::default())?;
//! // Until somebody unmounts it.
//! session.serve(&fs, || Ok(println!("mounted")), |_| std::process::exit(0))?;
//! fs.unmount()?;
//! # Ok(())
//! # }
//! ```
//!
//! **Not here.** What a file system is; there is no logic in this crate but that of the protocol.
//! Who may do what: the kernel asks that itself (`default_permissions`), from the owners, modes and
//! access control lists that it gets from here.
//!
//! | module | responsibility |
//! |---|---|
//! | `abi` | the structures of `linux/fuse.h` |
//! | `request` | a request, taken apart; any bytes are a request or an error |
//! | `reply` | the buffer that replies are made in |
//! | `server` | from a request to a call of the library and its reply; needs no kernel |
//! | `null` | (feature `null`) what the others are measured against |
//! | `device_file` | (feature `device-file`) a block device as the only file of a mount |
//! | `latencies` | how long requests took |
//! | `nodes` | which inodes the kernel knows, counted |
//! | `listing` | directories that are open, and the cookies of their entries |
//! | `negotiate` | what the kernel offers and what is taken of it |
//! | `options` | the words of mount(8) that concern a mount and not a file system |
//! | `anchor` | what lets unmounting wait for the server |
//! | `mount` | making and ending mounts, as root and through fusermount3 |
//! | `serve` | what requests are handed to, whichever way they come |
//! | `classic` | requests through `/dev/fuse` |
//! | `ring` | requests through rings of io_uring |
//! | `processors` | for each of which there is a queue of requests |
//! | `device` | `/dev/fuse`: a descriptor for each worker |
//! | `clone_device` | the one system call that has no safe wrapper |
//! | [`sandbox`] | what a server gives up before it looks at an image |
//! | `session` | a mount and its workers |
//!
//! # Locking
//! Workers share the tables of `nodes` and `listing`, in shards, and nothing else. No lock of this
//! crate is held while the library is called, but that of a directory that is being listed, which
//! only users of one open directory share.
//!
//! # Crash safety
//! That of the library: when the server dies, the journal of the image is recovered by the next
//! mount. What the kernel has in its page cache only is lost, as when the machine dies.
#![deny(unsafe_code)]

mod abi;
#[allow(
    unsafe_code,
    reason = "an ioctl takes what its number says, which the compiler cannot check"
)]
mod anchor;
mod classic;
#[allow(
    unsafe_code,
    reason = "an ioctl takes what its number says, which the compiler cannot check"
)]
mod clone_device;
mod device;
#[cfg(feature = "device-file")]
pub mod device_file;
mod latencies;
mod listing;
mod mount;
mod negotiate;
mod nodes;
#[cfg(feature = "null")]
pub mod null;
mod options;
mod processors;
mod reply;
mod request;
#[allow(
    unsafe_code,
    reason = "the kernel is given memory that it uses while the compiler does not look"
)]
mod ring;
pub mod sandbox;
mod serve;
mod server;
mod session;

pub use crate::latencies::{Latencies, OperationTimes};
pub use crate::mount::{MountError, Unmounter};
pub use crate::options::{Cache, Durability, Permissions, SessionOptions, Transport};
pub use crate::session::Session;

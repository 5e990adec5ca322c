//! **Purpose.** Mounts a file system through Linux's FUSE: translates each request into one call of
//! the library, and its result into the reply.
//!
//! ```no_run
//! use fourscore::block::{DeviceOptions, open_path};
//! use std::sync::Arc;
//! use fourscore::{Fs, MountOptions};
//! use fourscore_fuse::{Session, SessionOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = open_path("disk.ext4".as_ref(), DeviceOptions::read_write())?;
//! let fs = Fs::mount(Arc::new(device), &MountOptions::new())?;
//! let session = Session::mount("mnt".as_ref(), &SessionOptions::default())?;
//! // Returns when the file system is unmounted.
//! session.serve(&fs, || Ok(println!("mounted")), |_| std::process::exit(0))?;
//! fs.unmount()?;
//! # Ok(())
//! # }
//! ```
//!
//! **Not here.** File system logic: this crate implements the protocol only. Permission checks: the
//! kernel makes them (`default_permissions`), from the owners, modes and access control lists that
//! it gets from here.
//!
//! | module | responsibility |
//! |---|---|
//! | `abi` | the structures of `linux/fuse.h` |
//! | `request` | parsing requests; any bytes are a request or an error |
//! | `reply` | the reply buffer, error numbers |
//! | `server` | requests to library calls to replies; needs no kernel |
//! | `null` | (feature `null`) a null file system: the baseline of benchmarks |
//! | `device_file` | (feature `device-file`) a block device as the only file of a mount |
//! | `latencies` | latency histograms of requests |
//! | `nodes` | lookup counts of inodes |
//! | `listing` | open directories, and the cookies of their entries |
//! | `negotiate` | the INIT request: features of the kernel and of this server |
//! | `options` | mount options of FUSE, not of ext4 |
//! | `anchor` | a loop device under a mount, so that unmounting waits for the server |
//! | `mount` | mounting and unmounting, as root and through fusermount3 |
//! | `serve` | the interface between transports and servers |
//! | `classic` | requests through `/dev/fuse` |
//! | `ring` | requests through ring queues (FUSE over io_uring) |
//! | `processors` | the processors of the host, one ring queue for each |
//! | `device` | `/dev/fuse`: a descriptor for each worker |
//! | `clone_device` | the ioctl that clones such a descriptor |
//! | [`sandbox`] | dropping privileges before an image is read |
//! | `session` | a mount and its worker threads |
//!
//! # Locking
//! Workers share only the sharded tables of `nodes` and `listing`. No lock of this crate is held
//! while the library is called, except that of an open directory while it is listed.
//!
//! # Crash safety
//! That of the library: if the server dies, the next mount recovers the image's journal. Data that
//! is only in the kernel's page cache is lost, as in a crash of the machine.
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

//! **Purpose.** What may be given as a path: bytes or text, and the types of `std::path`.
//!
//! **Model.** A name in ext4 is any bytes but `/` and NUL, and the calls by inode number take and
//! return `[u8]`. `AsRef<Path>` alone would not accept those, and `AsRef<[u8]>` alone would not
//! accept a `Path`; so a trait accepts both.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

mod sealed {
    pub trait Sealed {}
}

/// A path: `&str`, `String`, `&[u8]`, `Vec<u8>`, `&Path`, `PathBuf`, `&OsStr` and their kin.
///
/// Paths start at the root of the file system, whether they begin with a slash or not. Their bytes
/// need not be UTF-8. A path may be of any length; each of its names has at most 255 bytes.
pub trait AsPath: sealed::Sealed {
    /// Returns the bytes of the path.
    fn path_bytes(&self) -> &[u8];
}

macro_rules! impl_as_path {
    ($($type:ty => |$path:ident| $bytes:expr;)*) => {$(
        impl sealed::Sealed for $type {}
        impl AsPath for $type {
            fn path_bytes(&self) -> &[u8] {
                let $path = self;
                $bytes
            }
        }
    )*};
}

impl_as_path! {
    [u8] => |path| path;
    Vec<u8> => |path| path;
    str => |path| path.as_bytes();
    String => |path| path.as_bytes();
    OsStr => |path| path.as_encoded_bytes();
    OsString => |path| path.as_encoded_bytes();
    Path => |path| path.as_os_str().as_encoded_bytes();
    PathBuf => |path| path.as_os_str().as_encoded_bytes();
}

impl<const LEN: usize> sealed::Sealed for [u8; LEN] {}
impl<const LEN: usize> AsPath for [u8; LEN] {
    fn path_bytes(&self) -> &[u8] {
        self
    }
}

impl<P: AsPath + ToOwned + ?Sized> sealed::Sealed for Cow<'_, P> {}
impl<P: AsPath + ToOwned + ?Sized> AsPath for Cow<'_, P> {
    fn path_bytes(&self) -> &[u8] {
        (**self).path_bytes()
    }
}

impl<P: AsPath + ?Sized> sealed::Sealed for &P {}
impl<P: AsPath + ?Sized> AsPath for &P {
    fn path_bytes(&self) -> &[u8] {
        (**self).path_bytes()
    }
}

//! **Purpose.** Errors of devices.
//!
//! **Model.** Devices return `io::Result`, which fits every backend, the standard library's readers
//! and the caller's own errors. The payload of such an error is a [`DeviceError`], which holds the
//! operation (kind and byte range) and the cause of the failure; [`raw_os_error`] returns its error
//! number.

use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Range;

use crate::buffer_cache::BlockError;
use crate::host::errno_of;

/// A kind of operation on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceOp {
    /// A read into the caller's memory.
    Read,
    /// A write of the caller's bytes.
    Write,
    /// A request to make earlier writes durable.
    Flush,
    /// A hint that a range is no longer needed.
    Discard,
    /// A request to make a range read as zeroes.
    WriteZeroes,
}

impl fmt::Display for DeviceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write zeroes",
        })
    }
}

/// An operation that a device refused or that failed, with its byte range.
#[derive(Debug)]
pub struct DeviceError {
    operation: Operation,
    cause: Cause,
}

/// Why an operation failed.
#[derive(Debug)]
enum Cause {
    /// The range is not inside the device.
    PastEnd { device_len_bytes: u64 },
    /// The device was opened, or wrapped, for reading only.
    ReadOnly,
    /// The backend cannot do this at all.
    Unsupported,
    /// A request before this one in the same batch failed, so this one was not begun.
    Cancelled,
    /// The host transferred nothing although bytes were left: the file shrank or is full.
    NoProgress { at: u64 },
    /// An injected fault.
    #[cfg(any(test, feature = "testing"))]
    Injected,
    /// The host's own error.
    Host(io::Error),
}

impl DeviceError {
    /// The kind of operation.
    #[must_use]
    pub fn op(&self) -> DeviceOp {
        self.operation.op
    }

    /// The byte range of the operation; empty for a flush.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.operation.range()
    }

    /// Whether the operation was not begun because one before it in its batch had failed.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self.cause, Cause::Cancelled)
    }

    /// Whether this is an injected fault.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn is_injected(&self) -> bool {
        matches!(self.cause, Cause::Injected)
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation {
            op,
            offset,
            len_bytes,
        } = self.operation;
        match op {
            DeviceOp::Flush => f.write_str("flush")?,
            op => write!(f, "{op} of {len_bytes} bytes at byte {offset}")?,
        }
        match &self.cause {
            Cause::PastEnd { device_len_bytes } => {
                write!(f, ": the device ends at byte {device_len_bytes}")
            }
            Cause::ReadOnly => f.write_str(": the device is read-only"),
            Cause::Unsupported => f.write_str(": the device does not support this"),
            Cause::Cancelled => f.write_str(": not begun, as an earlier request failed"),
            Cause::NoProgress { at } => {
                write!(
                    f,
                    ": the host stopped at byte {at} (was the image truncated?)"
                )
            }
            #[cfg(any(test, feature = "testing"))]
            Cause::Injected => f.write_str(": injected fault"),
            Cause::Host(error) => write!(f, ": {error}"),
        }
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::Host(error) => Some(error),
            _ => None,
        }
    }
}

/// The error number of an error of a device, if it has one: on Linux the host's own, on other
/// systems that of Linux for an error of this kind (`EIO` if there is none).
///
/// `io::Error::raw_os_error` is `None` for an error with a payload; this looks into the payload.
#[must_use]
pub fn raw_os_error(error: &io::Error) -> Option<i32> {
    let payload = error.get_ref();
    if let Some(outer) = payload.and_then(|inner| inner.downcast_ref::<BlockError>()) {
        return raw_os_error(&outer.source);
    }
    match payload
        .and_then(|inner| inner.downcast_ref::<DeviceError>())
        .map(|error| &error.cause)
    {
        Some(Cause::Host(host)) => errno_of(host),
        _ => errno_of(error),
    }
}

/// An operation on a device: its kind and byte range. Its errors are made from this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) op: DeviceOp,
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
}

impl Operation {
    /// An operation on `len_bytes` bytes from `offset`.
    pub(crate) fn new(op: DeviceOp, offset: u64, len_bytes: u64) -> Self {
        Self {
            op,
            offset,
            len_bytes,
        }
    }

    /// An operation on a range of bytes.
    pub(crate) fn on_range(op: DeviceOp, range: &Range<u64>) -> Self {
        Self::new(op, range.start, range.end.saturating_sub(range.start))
    }

    /// The byte range.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len_bytes)
    }

    /// A flush, which has no range.
    pub(crate) fn flush() -> Self {
        Self::new(DeviceOp::Flush, 0, 0)
    }

    fn error(&self, kind: ErrorKind, cause: Cause) -> io::Error {
        io::Error::new(
            kind,
            DeviceError {
                operation: *self,
                cause,
            },
        )
    }

    /// Checks that the range is inside a device of `device_len_bytes`.
    ///
    /// # Errors
    /// Kind `UnexpectedEof` for a read, else kind `StorageFull`.
    pub(crate) fn check_inside(&self, device_len_bytes: u64) -> io::Result<()> {
        let end = self.offset.checked_add(self.len_bytes);
        if end.is_some_and(|end| end <= device_len_bytes) {
            return Ok(());
        }
        let kind = match self.op {
            DeviceOp::Read => ErrorKind::UnexpectedEof,
            _ => ErrorKind::StorageFull,
        };
        Err(self.error(kind, Cause::PastEnd { device_len_bytes }))
    }

    pub(crate) fn read_only(&self) -> io::Error {
        self.error(ErrorKind::ReadOnlyFilesystem, Cause::ReadOnly)
    }

    pub(crate) fn unsupported(&self) -> io::Error {
        self.error(ErrorKind::Unsupported, Cause::Unsupported)
    }

    pub(crate) fn cancelled(&self) -> io::Error {
        self.error(ErrorKind::Other, Cause::Cancelled)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn injected(&self) -> io::Error {
        self.error(ErrorKind::Other, Cause::Injected)
    }

    /// The error that the host transferred 0 bytes after `done_bytes`.
    pub(crate) fn no_progress(&self, done_bytes: u64) -> io::Error {
        let kind = match self.op {
            DeviceOp::Read => ErrorKind::UnexpectedEof,
            _ => ErrorKind::WriteZero,
        };
        self.error(
            kind,
            Cause::NoProgress {
                at: self.offset.saturating_add(done_bytes),
            },
        )
    }

    pub(crate) fn host(&self, error: impl Into<io::Error>) -> io::Error {
        let error = error.into();
        self.error(error.kind(), Cause::Host(error))
    }
}

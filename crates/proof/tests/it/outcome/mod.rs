//! The outcome of a call, ours and the kernel's, reduced to its errno: more cannot be compared.

use rustix::io::Errno;

/// Success, or the number of the error.
pub(crate) type Outcome = Result<(), i32>;

/// The outcome of a call of ours.
pub(crate) fn ours<T>(result: fourscore::Result<T>) -> Outcome {
    result.map(drop).map_err(|error| error.errno())
}

/// The outcome of a call through the standard library.
pub(crate) fn theirs<T>(result: std::io::Result<T>) -> Outcome {
    result
        .map(drop)
        .map_err(|error| error.raw_os_error().unwrap())
}

/// The outcome of a system call.
pub(crate) fn errno<T>(result: Result<T, Errno>) -> Outcome {
    result.map(drop).map_err(Errno::raw_os_error)
}

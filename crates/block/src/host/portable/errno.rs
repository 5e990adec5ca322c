//! **Purpose.** Errors of the host by the numbers of Linux, on systems whose numbers are others.
//!
//! **Model.** All errors of this workspace have the numbers of Linux, on every system. On each
//! system, std gives the same kind to errors that mean the same. So an error is translated by its
//! kind. An error whose kind is not in the table is `EIO`.

use std::io::{self, ErrorKind};

/// A number of Linux, and its kind.
struct Row(i32, ErrorKind);

const EIO: i32 = 5;

/// If several rows have the same kind, it is translated to the first of them.
const TABLE: &[Row] = &[
    Row(2, ErrorKind::NotFound),
    Row(4, ErrorKind::Interrupted),
    Row(7, ErrorKind::ArgumentListTooLong),
    Row(11, ErrorKind::WouldBlock),
    Row(12, ErrorKind::OutOfMemory),
    Row(13, ErrorKind::PermissionDenied),
    Row(1, ErrorKind::PermissionDenied),
    Row(16, ErrorKind::ResourceBusy),
    Row(17, ErrorKind::AlreadyExists),
    Row(18, ErrorKind::CrossesDevices),
    Row(20, ErrorKind::NotADirectory),
    Row(21, ErrorKind::IsADirectory),
    Row(22, ErrorKind::InvalidInput),
    Row(26, ErrorKind::ExecutableFileBusy),
    Row(27, ErrorKind::FileTooLarge),
    Row(28, ErrorKind::StorageFull),
    Row(29, ErrorKind::NotSeekable),
    Row(30, ErrorKind::ReadOnlyFilesystem),
    Row(31, ErrorKind::TooManyLinks),
    Row(32, ErrorKind::BrokenPipe),
    Row(35, ErrorKind::Deadlock),
    Row(36, ErrorKind::InvalidFilename),
    Row(39, ErrorKind::DirectoryNotEmpty),
    Row(95, ErrorKind::Unsupported),
    Row(38, ErrorKind::Unsupported),
    Row(110, ErrorKind::TimedOut),
    Row(116, ErrorKind::StaleNetworkFileHandle),
    Row(122, ErrorKind::QuotaExceeded),
];

/// The number that Linux has for an error of the host, or for one of [`error_of_errno`]; `None` for
/// an error that only has a text.
#[must_use]
pub fn errno_of(error: &io::Error) -> Option<i32> {
    if error.get_ref().is_some() {
        return None;
    }
    let row = TABLE.iter().find(|row| row.1 == error.kind());
    row.map(|row| row.0)
        .or_else(|| error.raw_os_error().map(|_| EIO))
}

/// An error with the kind that this number of Linux has; kind `Other` if it has none.
#[must_use]
pub fn error_of_errno(errno: i32) -> io::Error {
    let row = TABLE.iter().find(|row| row.0 == errno);
    row.map_or(ErrorKind::Other, |row| row.1).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_std_says_on_linux() {
        for &Row(errno, kind) in TABLE {
            let of_host = io::Error::from_raw_os_error(errno);
            assert_eq!(of_host.kind(), kind, "{errno}");
            assert_eq!(error_of_errno(errno).kind(), kind, "{errno}");
            let back = errno_of(&of_host).expect("in the table");
            assert_eq!(errno_of(&error_of_errno(errno)), Some(back), "{errno}");
            assert!(back == errno || errno == 1 || errno == 38, "{errno}");
        }
    }

    #[test]
    fn numbers_without_a_kind_are_errors_of_the_device() {
        const ENOTBLK: i32 = 15;
        let of_host = io::Error::from_raw_os_error(ENOTBLK);
        assert_eq!(errno_of(&of_host), Some(EIO));
        assert_eq!(error_of_errno(ENOTBLK).kind(), ErrorKind::Other);
        assert_eq!(errno_of(&io::Error::other("a text")), None);
    }
}

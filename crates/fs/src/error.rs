//! **Purpose.** The errors of this crate, for programs ([`Error`], [`Error::errno`]) and for people
//! (one line each).
//!
//! **Model.** An error is the fault of the device, of the bytes on disk, or of the caller.
//! [`Error::Internal`] is the exception: an operation has found that the library broke a rule of
//! its own. The step that failed has changed nothing. Where only wrong data could follow, the
//! library panics instead.
//!
//! Numbers are those of Linux on every system. An error of another host has the number that Linux
//! has for an error of its kind.
//!
//! **References.** `include/uapi/asm-generic/errno*.h`; the choice of `EUCLEAN` for broken metadata
//! follows the kernel's `EFSCORRUPTED`.

use std::io;

use fourscore_block::mmp::ClaimError;
use fourscore_block::{error_of_errno, raw_os_error};
use fourscore_mballoc::tunables::TunableError;
use fourscore_mballoc::{GroupProblem, RequestProblem};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::superblock::SuperblockRejected;
use fourscore_ondisk::{Corrupt, InodeNr};
use uuid::Uuid;

/// The result of every call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, or is shorter than the file system.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Bytes on disk break the format.
    #[error("{0}")]
    Corrupt(#[from] Corrupt),
    /// The file system is not ext2, ext3 or ext4, or it is of a kind that is not opened.
    #[error("{0}")]
    Refused(SuperblockRejected),
    /// The journal is on a device of its own, which was not given. It is needed to write the file
    /// system, and to read one whose journal must be replayed.
    #[error("its journal is on a device that was not given (UUID {uuid})")]
    JournalNotGiven {
        /// The journal's UUID, by which its device is known (`s_journal_uuid`).
        uuid: Uuid,
    },
    /// The image needs something that is missing here or not implemented.
    #[error("{0}")]
    Unsupported(String),
    /// The directory has no such name, or no such inode is in use.
    #[error("no such file or directory")]
    NotFound,
    /// A path component that is not a directory was used as one.
    #[error("not a directory")]
    NotADirectory,
    /// A directory was read as a file.
    #[error("is a directory")]
    IsADirectory,
    /// More than 40 symbolic links on the way.
    #[error("too many levels of symbolic links")]
    TooManySymlinks,
    /// A name longer than 255 bytes.
    #[error("file name too long")]
    NameTooLong,
    /// An argument that makes no sense for this object.
    #[error("{0}")]
    InvalidArgument(&'static str),
    /// An operation broke an invariant of this library: a fault in it, not in the arguments or in
    /// the image. The step that failed has changed nothing.
    #[error("internal error: {0}")]
    Internal(&'static str),
    /// The name exists already.
    #[error("file exists")]
    Exists,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// `.` and `..` cannot be renamed, and a frozen file system cannot be frozen again.
    #[error("device or resource busy")]
    Busy,
    /// Another host has the file system mounted, or a check of it is running.
    #[error("in use: {0}")]
    InUse(String),
    /// There are no free blocks, or no free inodes.
    #[error("no space left")]
    NoSpace,
    /// A limit of the owner, the group or the project would be exceeded.
    #[error("disk quota exceeded")]
    QuotaExceeded,
    /// Changes that were to be made all at once ([`Staged`](crate::Staged)) do not fit into one
    /// transaction.
    #[error(
        "the changes take {blocks} blocks of one transaction, and its journal has space for {most}"
    )]
    NotOneTransaction {
        /// The blocks that change and are in use already.
        blocks: u64,
        /// The most that a transaction can hold, a quarter of the journal.
        most: u64,
    },
    /// The file system was opened for reading, or must not be written.
    #[error("read-only: {0}")]
    ReadOnly(String),
    /// The inode has as many names as the format can count.
    #[error("too many links")]
    TooManyLinks,
    /// An offset and a length add up to more than the largest offset.
    #[error("value too large")]
    OffsetOverflow,
    /// The file would be longer than a file can be.
    #[error("file too large")]
    FileTooLarge,
    /// A [`File`](crate::File) that was not opened for this was read or written.
    #[error("the file is not open for {0}")]
    NotOpenFor(&'static str),
    /// The content of a file that is to be returned as text is not UTF-8.
    #[error("not valid UTF-8")]
    NotUtf8,
    /// The object does not allow it, whatever the rights of the caller are.
    #[error("operation not permitted")]
    NotPermitted,
    /// The permissions do not allow it, or an object of this type cannot have what is to be set.
    #[error("permission denied")]
    AccessDenied,
    /// The directory accepts only inodes of its own project (`PROJINHERIT_FL`).
    #[error("the directory belongs to another project")]
    CrossDevice,
    /// The name of an attribute is empty or longer than 255 bytes.
    #[error("attribute name out of range")]
    OutOfRange,
    /// The value of an attribute is longer than 64 KiB.
    #[error("attribute value too big")]
    TooBig,
    /// A tunable does not exist, or does not take the value.
    #[error("{0}")]
    Tunable(#[from] TunableError),
    /// A mount option is not understood.
    #[error("mount option {word}: {why}")]
    MountOption {
        /// The option as it was given.
        word: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The extended attribute is not there.
    #[error("no such attribute")]
    NoAttribute,
    /// The data or the names are encrypted and the key is not known here.
    #[error("inode {inode}: encrypted, and the key is not known")]
    NoKey {
        /// The encrypted inode.
        inode: InodeNr,
    },
}

impl Error {
    /// Returns the error number that Linux would return.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Io(error) => Self::errno_of(error).unwrap_or(libc_errno::EIO),
            Self::Corrupt(_) => libc_errno::EUCLEAN,
            Self::Refused(_)
            | Self::JournalNotGiven { .. }
            | Self::InvalidArgument(_)
            | Self::Tunable(_)
            | Self::MountOption { .. } => libc_errno::EINVAL,
            Self::Internal(_) => libc_errno::EIO,
            Self::Unsupported(_) => libc_errno::EOPNOTSUPP,
            Self::NotFound => libc_errno::ENOENT,
            Self::NotADirectory => libc_errno::ENOTDIR,
            Self::IsADirectory => libc_errno::EISDIR,
            Self::TooManySymlinks => libc_errno::ELOOP,
            Self::NameTooLong => libc_errno::ENAMETOOLONG,
            Self::Exists => libc_errno::EEXIST,
            Self::NotEmpty => libc_errno::ENOTEMPTY,
            Self::Busy | Self::InUse(_) => libc_errno::EBUSY,
            Self::NoSpace | Self::NotOneTransaction { .. } => libc_errno::ENOSPC,
            Self::QuotaExceeded => libc_errno::EDQUOT,
            Self::ReadOnly(_) => libc_errno::EROFS,
            Self::TooManyLinks => libc_errno::EMLINK,
            Self::OffsetOverflow => libc_errno::EOVERFLOW,
            Self::FileTooLarge => libc_errno::EFBIG,
            Self::NotOpenFor(_) => libc_errno::EBADF,
            Self::NotUtf8 => libc_errno::EILSEQ,
            Self::NotPermitted => libc_errno::EPERM,
            Self::AccessDenied => libc_errno::EACCES,
            Self::CrossDevice => libc_errno::EXDEV,
            Self::OutOfRange => libc_errno::ERANGE,
            Self::TooBig => libc_errno::E2BIG,
            Self::NoAttribute => libc_errno::ENODATA,
            Self::NoKey { .. } => libc_errno::ENOKEY,
        }
    }

    /// Returns the error number of an [`io::Error`], in the numbers of Linux: that of
    /// [`Error::errno`] if the error was made from one of this crate, else the number that the host
    /// gave. `None` if there is neither.
    #[must_use]
    pub fn errno_of(error: &io::Error) -> Option<i32> {
        let payload = error.get_ref();
        match payload.and_then(|inner| inner.downcast_ref::<Self>()) {
            Some(own) => Some(own.errno()),
            None => raw_os_error(error),
        }
    }

    /// Returns the kind that std on Linux gives to the error number, as far as it has one.
    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Io(error) => error.kind(),
            Self::Corrupt(_) | Self::NotUtf8 => io::ErrorKind::InvalidData,
            other => error_of_errno(other.errno()).kind(),
        }
    }
}

/// The result has the kind that std on Linux gives to [`Error::errno`], and the error of this crate
/// inside, with its message. [`Error::errno_of`] returns the error number, and so does
/// `io_error.get_ref()`, downcast to [`Error`]. `raw_os_error` of the result returns `None` unless
/// the error came from the host: std keeps a number or a message, and not both.
///
/// ```
/// use std::io;
///
/// let error = io::Error::from(fourscore::Error::NotEmpty);
/// assert_eq!(error.kind(), io::ErrorKind::DirectoryNotEmpty);
/// assert_eq!(fourscore::Error::errno_of(&error), Some(39));
/// ```
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(error) => error,
            error => Self::new(error.kind(), error),
        }
    }
}

impl From<SuperblockRejected> for Error {
    fn from(rejected: SuperblockRejected) -> Self {
        match rejected {
            SuperblockRejected::Corrupt(error) => Self::Corrupt(error.into()),
            other => Self::Refused(other),
        }
    }
}

impl From<fourscore_journal::Error> for Error {
    fn from(error: fourscore_journal::Error) -> Self {
        match error {
            fourscore_journal::Error::Corrupt(error) => Self::Corrupt(error.into()),
            fourscore_journal::Error::Io { .. }
            | fourscore_journal::Error::Replay(_)
            | fourscore_journal::Error::Overlay(_)
            | fourscore_journal::Error::NeedsRecovery { .. }
            | fourscore_journal::Error::LogTooShort { .. }
            | fourscore_journal::Error::TooManyCredits { .. }
            | fourscore_journal::Error::Aborted(_) => Self::Io(io::Error::other(error)),
        }
    }
}

impl From<ClaimError> for Error {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::InUse(who) => Self::InUse(who),
            ClaimError::Corrupt(error) => Self::Corrupt(error),
            ClaimError::Unsupported(why) => Self::Unsupported(why),
            ClaimError::Io(error) => Self::Io(error),
        }
    }
}

impl From<fourscore_mballoc::Error> for Error {
    fn from(error: fourscore_mballoc::Error) -> Self {
        use fourscore_mballoc::Error as Space;
        match error {
            Space::NoSpace { .. } | Space::CommitFirst { .. } | Space::NotContiguous { .. } => {
                Self::NoSpace
            }
            Space::BadRequest(problem) => Self::Internal(match problem {
                RequestProblem::Empty => "a request for no clusters",
                RequestProblem::MinLenAboveLen => "a request for more clusters than it wants",
                RequestProblem::Alignment => "a request whose alignment is not a power of two",
                RequestProblem::NotReserved => "a request for more clusters than are reserved",
            }),
            // The file system's own error, from reading a bitmap for the allocator.
            Space::Source { error, .. } => match error.downcast() {
                Ok(said) => *said,
                Err(error) => Self::Io(io::Error::other(error)),
            },
            Space::Group { group, problem } => {
                let wrong = match problem {
                    GroupProblem::FreeCount { found, expected } => {
                        RelationError::FreeClusters { found, expected }
                    }
                    GroupProblem::Unusable => RelationError::GroupOutOfUse,
                };
                Corrupt::from(wrong).in_group(group).into()
            }
            Space::NotInUse { run } => {
                let clusters = run.start.0..run.end();
                let wrong = RelationError::FreedTwice { clusters };
                Corrupt::from(wrong).in_group(run.group).into()
            }
            Space::Outside { block, clusters } => {
                let wrong = RelationError::FreedOutside { clusters };
                Corrupt::from(wrong).in_block(block).into()
            }
        }
    }
}

/// Linux's numbers, on every host: an image server may run elsewhere.
mod libc_errno {
    pub(crate) const ENOENT: i32 = 2;
    pub(crate) const EIO: i32 = 5;
    pub(crate) const EBADF: i32 = 9;
    pub(crate) const ENOTDIR: i32 = 20;
    pub(crate) const EISDIR: i32 = 21;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const ENAMETOOLONG: i32 = 36;
    pub(crate) const ELOOP: i32 = 40;
    pub(crate) const ENODATA: i32 = 61;
    pub(crate) const EOVERFLOW: i32 = 75;
    pub(crate) const EILSEQ: i32 = 84;
    pub(crate) const EOPNOTSUPP: i32 = 95;
    pub(crate) const EPERM: i32 = 1;
    pub(crate) const E2BIG: i32 = 7;
    pub(crate) const EACCES: i32 = 13;
    pub(crate) const EXDEV: i32 = 18;
    pub(crate) const ERANGE: i32 = 34;
    pub(crate) const EBUSY: i32 = 16;
    pub(crate) const EEXIST: i32 = 17;
    pub(crate) const EFBIG: i32 = 27;
    pub(crate) const ENOSPC: i32 = 28;
    pub(crate) const EROFS: i32 = 30;
    pub(crate) const EDQUOT: i32 = 122;
    pub(crate) const EMLINK: i32 = 31;
    pub(crate) const ENOTEMPTY: i32 = 39;
    pub(crate) const EUCLEAN: i32 = 117;
    pub(crate) const ENOKEY: i32 = 126;
}

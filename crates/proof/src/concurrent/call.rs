//! **Purpose.** The calls of threads and their results, as they are recorded for the judge.
//!
//! **Model.** A directory is identified by its inode number, which may be reused for another one
//! later. A file whose data is judged is held open and identified by a [`FileId`], which is never
//! reused. Times come from one counter that all threads share: if a call ended before another one
//! began, its end is the smaller number.

use std::fmt;

use super::stamp::{FileId, Run, Version};

/// A point in time, counted from the begin of a round.
pub(super) type Time = u64;

/// A name, as a number; calls use few different names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name(pub(super) u32);

impl Name {
    /// The entry `.`.
    pub(super) const DOT: Self = Self(u32::MAX);
    /// The entry `..`.
    pub(super) const DOT_DOT: Self = Self(u32::MAX - 1);
    /// A name that the threads did not create, such as `lost+found`.
    const OTHER: Self = Self(u32::MAX - 2);

    const STEADY: u32 = 100;
    const TEMPORARY: u32 = 200;
    const FIXED: u32 = 300;
    const BYSTANDER: u32 = 400;
    const LONG: u32 = 1000;

    /// A name that any call may change.
    pub(super) fn any(number: usize) -> Self {
        Self::numbered(0, number)
    }

    /// A name that is only replaced: it exists during the whole round.
    pub(super) fn steady(number: usize) -> Self {
        Self::numbered(Self::STEADY, number)
    }

    /// The name under which a thread creates a file that replaces another one then.
    pub(super) fn temporary(thread: usize) -> Self {
        Self::numbered(Self::TEMPORARY, thread)
    }

    /// A name that no call changes.
    pub(super) fn fixed(number: usize) -> Self {
        Self::numbered(Self::FIXED, number)
    }

    /// The name of a file that is only read; there are 600 such names.
    pub(super) fn bystander(number: usize) -> Self {
        Self::numbered(Self::BYSTANDER, number)
    }

    /// A long name: few of them fill a block.
    pub(super) fn long(number: usize) -> Self {
        Self::numbered(Self::LONG, number)
    }

    fn numbered(class: u32, number: usize) -> Self {
        Self(class + u32::try_from(number).unwrap_or(0))
    }

    pub(super) fn text(self) -> String {
        match self {
            Self::DOT => ".".to_owned(),
            Self::DOT_DOT => "..".to_owned(),
            Self::OTHER => "?".to_owned(),
            Self(number) if number < Self::LONG => format!("n{number}"),
            Self(number) => format!("n{number:0>100}"),
        }
    }

    pub(super) fn parse(text: &[u8]) -> Self {
        match text {
            b"." => Self::DOT,
            b".." => Self::DOT_DOT,
            [b'n', digits @ ..] => {
                let digits = str::from_utf8(digits).ok();
                let number = digits.and_then(|digits| digits.parse().ok());
                number.map_or(Self::OTHER, Self)
            }
            _ => Self::OTHER,
        }
    }
}

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) dir: u64,
    pub(super) name: Name,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.dir, self.name.text())
    }
}

/// The type of a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
}

/// A change of a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Range {
    Allocate,
    AllocateKeepSize,
    Punch,
    Zero,
    ZeroKeepSize,
    Collapse,
    Insert,
}

impl Range {
    /// Whether it moves data behind the range.
    pub(super) fn moves(self) -> bool {
        matches!(self, Self::Collapse | Self::Insert)
    }
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Make(Kind, Place),
    /// Links the inode with this number to another name.
    Link(u64, Place),
    Unlink(Place),
    Rmdir(Place),
    Rename {
        from: Place,
        to: Place,
        replaces: bool,
    },
    Exchange(Place, Place),
    Lookup(Place),
    /// Resolves a path through directories that are never moved, to a name in the last one.
    Resolve(Place),
    List(u64),
    /// Gets the attributes of the inode with this number, which may have been reused.
    StatNumber(u64),
    Read {
        file: FileId,
        offset: u64,
        len: u64,
    },
    Write {
        file: FileId,
        version: Version,
        offset: u64,
        len: u64,
    },
    Append {
        file: FileId,
        version: Version,
        len: u64,
    },
    Truncate {
        file: FileId,
        size: u64,
    },
    Change {
        file: FileId,
        what: Range,
        offset: u64,
        len: u64,
    },
    Copy {
        from: (FileId, u64),
        to: (FileId, u64),
        len: u64,
    },
    Extents(FileId),
    SeekData(FileId, u64),
    SeekHole(FileId, u64),
    Size(FileId),
    /// Sets an attribute to a value with this number.
    SetXattr(FileId, u32, u32),
    RemoveXattr(FileId, u32),
    GetXattr(FileId, u32),
    Fsync(FileId),
    Sync,
    StatFs,
    /// Makes the file system as large as possible with at most so many blocks.
    GrowFs(u64),
    /// Creates a file without a name.
    Open(FileId),
    /// Closes a file, which frees it if it has no name.
    Close(FileId),
}

/// How full a file system is, as statfs(2) returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Space {
    pub(super) block_bytes: u64,
    /// The blocks without those of the format itself.
    pub(super) blocks: u64,
    pub(super) free_blocks: u64,
    /// The free blocks that data can take: without those kept for maps.
    pub(super) available_blocks: u64,
    pub(super) inodes: u64,
    pub(super) free_inodes: u64,
}

impl Space {
    pub(super) fn available_bytes(&self) -> u64 {
        self.available_blocks * self.block_bytes
    }
}

/// An error, as its number and as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) errno: i32,
    pub(super) text: String,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// An inode number, a size, an offset, a count, the number of an attribute's value.
    Number(u64),
    /// No result: no more data, or no hole.
    Nothing,
    /// The number of bytes that were read, and their values.
    Bytes(u64, Vec<Run>),
    /// The entries that were listed, in order, and whether they are all.
    Entries(Vec<(Name, u64)>, Listed),
    /// How full the file system is.
    Space(Space),
    Failed(Failure),
}

/// Whether a directory was listed completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    Whole,
    Part,
}

/// A call with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) begin: Time,
    pub(super) end: Time,
    pub(super) thread: usize,
    pub(super) call: Call,
    pub(super) outcome: Outcome,
}

impl Event {
    pub(super) fn errno(&self) -> Option<i32> {
        match &self.outcome {
            Outcome::Failed(failure) => Some(failure.errno),
            _ => None,
        }
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.begin < other.end && other.begin < self.end
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            begin,
            end,
            thread,
            call,
            outcome,
        } = self;
        write!(f, "[{begin}..{end}] thread {thread}: {call:?} -> ")?;
        match outcome {
            Outcome::Bytes(len, runs) => write!(f, "{len} bytes in {} runs", runs.len()),
            Outcome::Entries(entries, listed) => {
                write!(f, "{} entries, {listed:?}", entries.len())
            }
            other => write!(f, "{other:?}"),
        }
    }
}

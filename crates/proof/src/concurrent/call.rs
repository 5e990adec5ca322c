//! **Purpose.** What a thread calls and what it is answered, as it is noted for the judge.
//!
//! **Model.** A directory is known by its inode number, which may be that of one directory now and
//! of another one later; a file whose content is judged is held open and known by a [`FileId`],
//! which no other file has. Times are counted by one counter that all threads share: what ended
//! before something else began has the smaller number.

use std::fmt;

use super::stamp::{FileId, Run, Version};

/// A moment, counted from the begin of a round.
pub(super) type Time = u64;

/// A name, by number: what a call is about is drawn from few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name(pub(super) u32);

impl Name {
    /// The entry of a directory that leads to itself.
    pub(super) const DOT: Self = Self(u32::MAX);
    /// The entry of a directory that leads to its parent.
    pub(super) const DOT_DOT: Self = Self(u32::MAX - 1);
    /// What was not made by the threads, such as `lost+found`.
    const OTHER: Self = Self(u32::MAX - 2);

    const STEADY: u32 = 100;
    const TEMPORARY: u32 = 200;
    const FIXED: u32 = 300;
    const BYSTANDER: u32 = 400;
    const LONG: u32 = 1000;

    /// One of the names that anything is done to.
    pub(super) fn any(number: usize) -> Self {
        Self::numbered(0, number)
    }

    /// A name that is only ever replaced: it is there from the begin of a round to its end.
    pub(super) fn steady(number: usize) -> Self {
        Self::numbered(Self::STEADY, number)
    }

    /// The name under which a thread makes what then replaces something else.
    pub(super) fn temporary(thread: usize) -> Self {
        Self::numbered(Self::TEMPORARY, thread)
    }

    /// A name that nothing is done to.
    pub(super) fn fixed(number: usize) -> Self {
        Self::numbered(Self::FIXED, number)
    }

    /// The name of a file that is only looked at; there are 600 such names.
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

/// What is made under a name.
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
    /// Whether content behind the range moves.
    pub(super) fn moves(self) -> bool {
        matches!(self, Self::Collapse | Self::Insert)
    }
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Make(Kind, Place),
    /// Gives the inode with this number another name.
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
    /// Goes along a path through directories that nobody moves, to a name in the last one.
    Resolve(Place),
    List(u64),
    /// What the inode with this number is, whatever it is by now.
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
    /// Makes a file without a name, or gives it up.
    Open(FileId),
    Close(FileId),
}

/// An error, as its number and in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) errno: i32,
    pub(super) text: String,
}

/// What a call was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// An inode number, a size, an offset, a count, the number of an attribute's value.
    Number(u64),
    /// A place that is not there: no more data, no such hole.
    Nothing,
    /// How many bytes were read, and what they were.
    Bytes(u64, Vec<Run>),
    /// What was listed, in order, and whether that was everything.
    Entries(Vec<(Name, u64)>, Listed),
    Failed(Failure),
}

/// How much of a directory was listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    Whole,
    Part,
}

/// A call with its answer.
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

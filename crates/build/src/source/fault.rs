//! **Purpose.** Why a source cannot be taken, and which entry of it is at fault.
//!
//! **Model.** Parsers see bytes and return a [`Fault`]; whoever knows the entry that the bytes
//! belong to makes a [`SourceError`] of it, which names the place as the user knows it: the
//! archive, layer or list, and the entry in it.

use std::fmt;
use std::io;

use crate::error::BuildError;
use crate::tree::TreeError;

/// A source that cannot be taken.
#[derive(Debug)]
pub struct SourceError {
    /// The archive, layout or list, as the user named it.
    pub place: String,
    /// The entry at fault; `None` if it is the source as a whole.
    pub entry: Option<Vec<u8>>,
    /// What is wrong with it.
    pub fault: Fault,
}

impl SourceError {
    /// The entry and what is wrong with it, without the source.
    #[must_use]
    pub fn reason(&self) -> String {
        match &self.entry {
            Some(entry) => format!("{}: {}", entry.escape_ascii(), self.fault),
            None => self.fault.to_string(),
        }
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.reason())
    }
}

impl std::error::Error for SourceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.fault)
    }
}

/// What is wrong with an entry or a source: one variant for each check.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The source could not be read, or its content not be kept.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The compressed bytes are damaged or end too early.
    #[error("cannot be unpacked: {0}")]
    Unpack(io::Error),
    /// A compression nobody here can undo.
    #[error("is compressed with {with} (unpack it first, as in `{with} -dc FILE | ... -`)")]
    Compression {
        /// The program that made it.
        with: &'static str,
    },
    /// The bytes are nothing that an image is made of.
    #[error(
        "is {found} (a source is a directory, a tar archive, a file system of ext2, ext3 or \
        ext4, or a container image; a partition of a disk is named as in disk.img@1M)"
    )]
    NotASource {
        /// What they are.
        found: &'static str,
    },
    /// The bytes are no archive at all.
    #[error("is not a tar archive")]
    NotTar,
    /// A file system where it cannot be read: in a pipe or compressed.
    #[error(
        "is a file system {place}, which is read only from a file or block device (write it \
        to a file first)"
    )]
    FileSystemInStream {
        /// Where it is.
        place: &'static str,
    },
    /// A compressed file in a compressed file.
    #[error("is compressed twice (unpack it first)")]
    CompressedTwice,
    /// The source would be overwritten by the image.
    #[error("is also the output (write the image somewhere else, or --exclude it)")]
    IsOutput,
    /// A file system cannot be opened or is damaged.
    #[error("{0}")]
    FileSystem(fourscore::Error),
    /// A file ends before the file system in it.
    #[error("ends at byte {len_bytes}, before byte {offset}")]
    BehindTheEnd {
        /// The length of the file.
        len_bytes: u64,
        /// Where the file system was said to be.
        offset: u64,
    },
    /// An object of a file system that is encrypted.
    #[error("is encrypted, and cannot be read without its key")]
    Encrypted,
    /// A directory of a damaged file system that two names lead to.
    #[error("is a directory with two names: the file system is damaged")]
    EnteredTwice,
    /// The archive ends inside of a header or of what belongs to it.
    #[error("the archive is cut off at byte {at}")]
    CutOff {
        /// Where the bytes end, in the archive as it is after unpacking.
        at: u64,
    },
    /// The archive ends behind an entry, without the zeros that mark its end.
    #[error("the archive ends at byte {at} without an end mark: it was cut off")]
    NoEndMark {
        /// Where the bytes end.
        at: u64,
    },
    /// The sum over a header is not the one in it.
    #[error("the header at byte {at} has the checksum {found:o} instead of {expected:o}")]
    Checksum {
        /// Where the header begins.
        at: u64,
        /// What the header says.
        found: u64,
        /// What its bytes add up to.
        expected: u64,
    },
    /// A number that is none.
    #[error("{field} is not a number")]
    Number {
        /// The field or record.
        field: &'static str,
    },
    /// A number that ext4 has no room for.
    #[error("{field} is {value}, which ext4 cannot hold")]
    Range {
        /// The field or record.
        field: &'static str,
        /// What was found.
        value: i128,
    },
    /// A type of entry that is not known.
    #[error("has the unknown type '{}'", flag.escape_ascii())]
    Type {
        /// The type as it stands in the header.
        flag: u8,
    },
    /// A part of an archive on several volumes.
    #[error("is continued from another volume (join the volumes first)")]
    Volume,
    /// A pax record that is not `LENGTH KEY=VALUE`.
    #[error("a pax record is malformed at byte {at} of its header")]
    PaxRecord {
        /// Where the record begins.
        at: usize,
    },
    /// A header that would take an absurd amount of memory.
    #[error("an extended header has {len_bytes} bytes, over the limit of {max_bytes}")]
    HeaderTooLong {
        /// How long it claims to be.
        len_bytes: u64,
        /// How long it may be.
        max_bytes: u64,
    },
    /// The map of a sparse file makes no sense.
    #[error("the map of the sparse file is wrong: {why}")]
    SparseMap {
        /// In which way.
        why: &'static str,
    },
    /// The tree cannot hold the entry; the error names it.
    #[error("{0}")]
    Tree(#[from] TreeError),
    /// A directory of this host cannot be taken; the error names the entry.
    #[error("{0}")]
    Directory(Box<BuildError>),
    /// An ACL in words that are not understood.
    #[error("the ACL entry '{}' is not understood", text.escape_ascii())]
    Acl {
        /// The words.
        text: Vec<u8>,
    },
    /// An ACL that names somebody unknown.
    #[error("the ACL names '{}', whom this machine does not know (pack with --numeric-owner)",
        name.escape_ascii())]
    AclName {
        /// The user or group.
        name: Vec<u8>,
    },
    /// An attribute name or value in an encoding that it is not in.
    #[error("the attribute record '{}' is malformed", key.escape_ascii())]
    AttributeRecord {
        /// The key of the record.
        key: Vec<u8>,
    },
    /// An owner that the map of ids leaves out.
    #[error("the {kind} id {id} is in no range of the map")]
    Unmapped {
        /// `user` or `group`.
        kind: &'static str,
        /// The id.
        id: u32,
    },
    /// A whiteout of nothing, or of its own directory.
    #[error("is a whiteout that names nothing")]
    Whiteout,
    /// A file of an image layout that is not as the specification says.
    #[error("{why}")]
    Layout {
        /// What is wrong with it.
        why: String,
    },
    /// A word of a manifest that is not understood.
    #[error("'{}' {why}", word.escape_ascii())]
    ManifestWord {
        /// The word: a keyword with its value, a name or a command.
        word: Vec<u8>,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An entry of a manifest that would have to be made and cannot be.
    #[error("is not in the sources, and {why}")]
    NotInSources {
        /// What is missing.
        why: &'static str,
    },
    /// An entry of a manifest without what makes a link or device.
    #[error("the manifest has no {keyword}= for it")]
    Incomplete {
        /// What is missing.
        keyword: &'static str,
    },
    /// An entry of a manifest that is something else in the sources.
    #[error("is type={found} in the sources and type={wanted} in the manifest")]
    OtherKind {
        /// In the sources.
        found: &'static str,
        /// In the manifest.
        wanted: &'static str,
    },
    /// A file whose length is not the one in the manifest.
    #[error("has {found} bytes in the sources and {wanted} in the manifest")]
    OtherSize {
        /// In the sources.
        found: u64,
        /// In the manifest.
        wanted: u64,
    },
    /// Content that does not match its digest.
    #[error("the digest is wrong: it is {found} instead of {expected}")]
    Digest {
        /// What the bytes give.
        found: String,
        /// What was promised.
        expected: String,
    },
}

/// The result of parsers.
pub(crate) type Parsed<T> = std::result::Result<T, Fault>;

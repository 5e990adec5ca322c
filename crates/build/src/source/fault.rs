//! **Purpose.** Errors of reading a source.
//!
//! **Model.** Parsers see bytes and return a [`Fault`]; the caller that knows the entry turns it
//! into a [`SourceError`], which names the archive, layer or manifest as the user knows it, and the
//! entry in it.

use std::fmt;
use std::io;

use crate::error::BuildError;
use crate::tree::TreeError;

/// An error of reading a source.
#[derive(Debug)]
pub struct SourceError {
    /// The archive, layout or manifest, as the user named it.
    pub place: String,
    /// The entry that caused the error; `None` if it concerns the whole source.
    pub entry: Option<Vec<u8>>,
    /// The cause.
    pub fault: Fault,
}

impl SourceError {
    /// The entry and the cause, without the source.
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

/// The cause of an error: one variant for each check.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The source could not be read, or its data could not be spooled.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The compressed data is damaged or truncated.
    #[error("cannot be decompressed: {0}")]
    Unpack(io::Error),
    /// An unsupported compression.
    #[error("is compressed with {with} (decompress it first, as in `{with} -dc FILE | ... -`)")]
    Compression {
        /// The program that decompresses it.
        with: &'static str,
    },
    /// The file is not a source.
    #[error(
        "is {found} (a source is a directory, a tar archive, a file system of ext2, ext3 or \
        ext4, or a container image; a partition of a disk is named as in disk.img@1M)"
    )]
    NotASource {
        /// A description of the file.
        found: &'static str,
    },
    /// The file is not an archive.
    #[error("is not a tar archive")]
    NotTar,
    /// A file system in a pipe or in a compressed file, where it cannot be read.
    #[error(
        "is a file system {place}, which is read only from a file or block device (write it \
        to a file first)"
    )]
    FileSystemInStream {
        /// Where it is.
        place: &'static str,
    },
    /// A compressed file inside a compressed file.
    #[error("is compressed twice (decompress it first)")]
    CompressedTwice,
    /// The source is also the output.
    #[error("is also the output (write the image somewhere else, or --exclude it)")]
    IsOutput,
    /// A file system cannot be opened or is damaged.
    #[error("{0}")]
    FileSystem(fourscore::Error),
    /// The offset of the file system is beyond the end of the file.
    #[error("ends at byte {len_bytes}, before byte {offset}")]
    BeyondEnd {
        /// The length of the file.
        len_bytes: u64,
        /// The given offset.
        offset: u64,
    },
    /// An encrypted object in a file system.
    #[error("is encrypted, and cannot be read without its key")]
    Encrypted,
    /// A directory in a damaged file system that two entries refer to.
    #[error("is a directory with two names: the file system is damaged")]
    EnteredTwice,
    /// The archive ends inside a header or the data of an entry.
    #[error("the archive is truncated at byte {at}")]
    CutOff {
        /// Length of the archive, decompressed.
        at: u64,
    },
    /// The archive ends after an entry, without the zeroes that mark its end.
    #[error("the archive ends at byte {at} without an end mark: it was truncated")]
    NoEndMark {
        /// Length of the archive, decompressed.
        at: u64,
    },
    /// The checksum of a header is wrong.
    #[error("the header at byte {at} has the checksum {found:o} instead of {expected:o}")]
    Checksum {
        /// Where the header begins.
        at: u64,
        /// The checksum in the header.
        found: u64,
        /// The checksum of its bytes.
        expected: u64,
    },
    /// A field that is not a number.
    #[error("{field} is not a number")]
    Number {
        /// The field or record.
        field: &'static str,
    },
    /// A number that ext4 cannot store.
    #[error("{field} is {value}, which ext4 cannot hold")]
    Range {
        /// The field or record.
        field: &'static str,
        /// The value.
        value: i128,
    },
    /// An unknown type of entry.
    #[error("has the unknown type '{}'", flag.escape_ascii())]
    Type {
        /// The type flag of the header.
        flag: u8,
    },
    /// A part of a multi-volume archive.
    #[error("is continued from another volume (join the volumes first)")]
    Volume,
    /// A pax record that is not `LENGTH KEY=VALUE`.
    #[error("a pax record is malformed at byte {at} of its header")]
    PaxRecord {
        /// Offset of the record in its header.
        at: usize,
    },
    /// An extended header that exceeds the size limit.
    #[error("an extended header has {len_bytes} bytes, over the limit of {max_bytes}")]
    HeaderTooLong {
        /// Its length.
        len_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// The map of a sparse file is invalid.
    #[error("the map of the sparse file is invalid: {why}")]
    SparseMap {
        /// The reason.
        why: &'static str,
    },
    /// The tree cannot hold the entry; the inner error names it.
    #[error("{0}")]
    Tree(#[from] TreeError),
    /// A directory of this host cannot be read; the inner error names the entry.
    #[error("{0}")]
    Directory(Box<BuildError>),
    /// An invalid ACL text.
    #[error("the ACL entry '{}' is invalid", text.escape_ascii())]
    Acl {
        /// The text of the ACL or its entry.
        text: Vec<u8>,
    },
    /// An ACL with an unknown user or group.
    #[error("the ACL names '{}', which is unknown on this machine (pack with --numeric-owner)",
        name.escape_ascii())]
    AclName {
        /// The user or group.
        name: Vec<u8>,
    },
    /// An attribute record with an invalid encoding.
    #[error("the attribute record '{}' is malformed", key.escape_ascii())]
    AttributeRecord {
        /// The key of the record.
        key: Vec<u8>,
    },
    /// An owner that the id map does not contain.
    #[error("the {kind} id {id} is in no range of the map")]
    Unmapped {
        /// `user` or `group`.
        kind: &'static str,
        /// The id.
        id: u32,
    },
    /// A whiteout without a valid name.
    #[error("is a whiteout without a valid name")]
    Whiteout,
    /// A file of an OCI layout that does not follow the specification.
    #[error("{why}")]
    Layout {
        /// What is wrong with it.
        why: String,
    },
    /// An invalid word in a manifest.
    #[error("'{}' {why}", word.escape_ascii())]
    ManifestWord {
        /// A keyword with its value, a name or a command.
        word: Vec<u8>,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An entry of a manifest that is not in the sources and cannot be created.
    #[error("is not in the sources, and {why}")]
    NotInSources {
        /// The reason.
        why: &'static str,
    },
    /// An entry of a manifest for a link or device, without a target or device number.
    #[error("the manifest has no {keyword}= for it")]
    Incomplete {
        /// The missing keyword.
        keyword: &'static str,
    },
    /// An entry of a manifest whose type differs from the sources.
    #[error("is type={found} in the sources and type={wanted} in the manifest")]
    OtherKind {
        /// The type in the sources.
        found: &'static str,
        /// The type in the manifest.
        wanted: &'static str,
    },
    /// A file whose size differs from the manifest.
    #[error("has {found} bytes in the sources and {wanted} in the manifest")]
    OtherSize {
        /// The size in the sources.
        found: u64,
        /// The size in the manifest.
        wanted: u64,
    },
    /// A blob that does not match its digest.
    #[error("the digest is wrong: it is {found} instead of {expected}")]
    Digest {
        /// The digest of the data.
        found: String,
        /// The digest in the descriptor.
        expected: String,
    },
}

/// The result of a parser.
pub(crate) type Parsed<T> = std::result::Result<T, Fault>;

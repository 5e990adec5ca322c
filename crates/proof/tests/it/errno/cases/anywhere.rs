//! Errors that any call can return, and which errors the cases reach.

use std::collections::BTreeSet;
use std::io;

use fourscore::{Corrupt, Error};
use fourscore_ondisk::acl::AclError;
use fourscore_ondisk::relation::RelationError;

use super::ROOT;

/// Errors that any call can return.
pub(crate) fn anywhere() -> [(&'static str, Error); 17] {
    let inode = ROOT;
    let broken = AclError::Version {
        found: 3,
        expected: 1,
    };
    [
        (
            "the device failed, and the host says `ENOSPC`",
            io::Error::from_raw_os_error(28).into(),
        ),
        (
            "the device failed, or the journal had to be aborted during the call",
            io::Error::other("device").into(),
        ),
        (
            "writing after the journal was aborted, or an error that `errors=` makes the last",
            Error::ReadOnly("error".into()),
        ),
        (
            "bytes on disk break the format",
            Corrupt::from(broken).into(),
        ),
        (
            "the inode holds the value of an attribute (`EA_INODE_FL`), whatever name leads to it",
            Corrupt::from(RelationError::UnexpectedEaInode).into(),
        ),
        (
            "an argument makes no sense for the object",
            Error::InvalidArgument("argument"),
        ),
        (
            "the library finds a fault of its own; nothing was changed",
            Error::Internal("credits"),
        ),
        (
            "the content or the names are encrypted, and the key is not known",
            Error::NoKey { inode },
        ),
        (
            "opened for reading, or a feature that is not written, which is named",
            Error::ReadOnly("feature".into()),
        ),
        (
            "an inode has 65 000 names, or a directory so many subdirectories without `dir_nlink`",
            Error::TooManyLinks,
        ),
        (
            "a name would come into a directory that keeps to another project",
            Error::CrossDevice,
        ),
        ("no free inodes or blocks", Error::NoSpace),
        (
            "a limit of the owner, the group or the project would be exceeded (`usrquota`, ..)",
            Error::QuotaExceeded,
        ),
        (
            "changes that are made all at once do not fit into one transaction (`Staged::commit`)",
            Error::NotOneTransaction { blocks: 2, most: 1 },
        ),
        (
            "`fallocate`, but for `PunchHole`, of a file that is mapped by pointers (ext2, ext3)",
            Error::Unsupported("pointers".into()),
        ),
        (
            "another host has the file system (MMP), which is named",
            Error::InUse("host".into()),
        ),
        (
            "the journal is on a device of its own, which was not given (`Fs::open`, `Fs::mount`)",
            Error::JournalNotGiven {
                uuid: uuid::Uuid::nil(),
            },
        ),
    ]
}

/// The names of all variants of [`Error`], as they are in its source.
pub(crate) fn variants() -> BTreeSet<String> {
    let source = include_str!("../../../../../fs/src/error.rs");
    let (_, rest) = source.split_once("pub enum Error {\n").unwrap();
    let (body, _) = rest.split_once("\n}\n").unwrap();
    let item = |line: &str| {
        let line = line.strip_prefix("    ")?;
        let is_variant = line.starts_with(|first: char| first.is_ascii_uppercase());
        is_variant.then(|| name(line))
    };
    let variants: BTreeSet<_> = body.lines().filter_map(item).collect();
    assert!(variants.len() > 30, "{variants:?}");
    variants
}

/// The name of the error's variant.
pub(crate) fn variant(error: &Error) -> String {
    name(&format!("{error:?}"))
}

fn name(text: &str) -> String {
    let end = text.find(|at: char| !at.is_ascii_alphanumeric());
    text[..end.unwrap_or(text.len())].to_owned()
}

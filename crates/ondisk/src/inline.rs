//! **Purpose.** Inline data: content of small files, symlinks and directories that is stored in the
//! inode itself (feature `inline_data`).
//!
//! | module | responsibility |
//! |---|---|
//! | `content` | changing, growing and shrinking the content, moving it out of the inode |
//! | [`edit`] | changing a directory, and moving it out of the inode |
//!
//! **Model.** The first 60 bytes are in `i_block`, the rest is the value of the attribute
//! `system.data` inside the inode, which exists even if it is empty. A directory has no `.` and
//! `..`; instead its first 4 bytes are its parent, and each of the two parts is a chain of records
//! of its own.
//!
//! ```text
//! file       i_block: content 0..60                       system.data: content 60..
//! directory  i_block: parent u32 | records in 56 bytes    system.data: records
//! ```
//!
//! **Invariants.** As for the blocks of directories (`dirent`), separately for each part.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "Inline Data".

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::dirent::{DirFormat, DirentError, Entry};
use crate::types::InodeNr;
use crate::xattr::{NameIndex, Value, XattrError, Xattrs};

mod content;
pub mod edit;

pub use content::{InlineMut, InlineRoom};

/// Bytes of content in `i_block`.
pub const HEAD_BYTES: usize = 60;
/// The name of the attribute that holds the rest, without the prefix `system.`.
pub const ATTRIBUTE: &[u8] = b"data";
const PARENT_BYTES: usize = size_of::<U32>();

/// An error in inline data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InlineError {
    /// The attribute is missing.
    #[error("inline data: no attribute system.data in the inode")]
    NoAttribute,
    /// The attribute's value is in another inode.
    #[error("inline data: the value of system.data is in inode {found}, expected inside")]
    Elsewhere {
        /// The inode.
        found: InodeNr,
    },
    /// `i_block` is too short.
    #[error("inline data: i_block has {found} bytes, expected {HEAD_BYTES}")]
    TooShort {
        /// Its bytes.
        found: usize,
    },
    /// The attributes cannot be read.
    #[error("inline data: {0}")]
    Xattr(#[from] XattrError),
    /// The parent of a directory does not exist.
    #[error("inline directory: parent is {found}, expected 1 to {max}")]
    Parent {
        /// The parent.
        found: InodeNr,
        /// Number of inodes of the file system.
        max: InodeNr,
    },
    /// A record of a directory is corrupt.
    #[error("inline directory: {0}")]
    Record(#[from] DirentError),
}

/// Content stored in an inode.
#[derive(Clone, Copy, Debug)]
pub struct InlineData<'a> {
    head: &'a [u8],
    tail: &'a [u8],
}

impl<'a> InlineData<'a> {
    /// Finds the two parts of an inode with the flag `INLINE_DATA`.
    ///
    /// # Errors
    /// If the attribute is missing or not inside the inode.
    pub fn find(i_block: &'a [u8], xattrs: &Xattrs<'a>) -> Result<Self, InlineError> {
        let head = i_block.get(..HEAD_BYTES).ok_or(InlineError::TooShort {
            found: i_block.len(),
        })?;
        let entry = xattrs
            .find(NameIndex::SYSTEM, ATTRIBUTE)?
            .ok_or(InlineError::NoAttribute)?;
        match entry.value {
            Value::Inline(tail) => Ok(Self { head, tail }),
            Value::Inode { inode, .. } => Err(InlineError::Elsewhere { found: inode }),
        }
    }

    /// The number of stored bytes. Bytes up to `i_size` beyond them are zeros.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Copies the content from `offset` on, and zeros after its end.
    pub fn read_at(&self, offset: u64, to: &mut [u8]) {
        to.fill(0);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let head = self.head.get(offset..).unwrap_or(&[]);
        let tail = self
            .tail
            .get(offset.saturating_sub(self.head.len())..)
            .unwrap_or(&[]);
        for (to, from) in to.iter_mut().zip(head.iter().chain(tail)) {
            *to = *from;
        }
    }

    /// The content as a directory.
    ///
    /// # Errors
    /// If the parent is not an inode of the file system.
    pub fn directory(&self, format: &DirFormat) -> Result<InlineDir<'a>, InlineError> {
        let too_short = |_| InlineError::TooShort {
            found: self.head.len(),
        };
        let (parent, first) = U32::ref_from_prefix(self.head).map_err(too_short)?;
        let (parent, max) = (InodeNr(parent.get()), format.inodes_count);
        if parent.0 == 0 || parent > max {
            return Err(InlineError::Parent { found: parent, max });
        }
        Ok(InlineDir {
            parent,
            first,
            second: self.tail,
            format: part_format(format),
        })
    }
}

/// The format of each part of a directory: it has no checksum besides the inode's.
fn part_format(format: &DirFormat) -> DirFormat {
    DirFormat {
        seed: None,
        ..*format
    }
}

/// A directory stored in an inode.
#[derive(Clone, Copy, Debug)]
pub struct InlineDir<'a> {
    /// The parent directory.
    pub parent: InodeNr,
    first: &'a [u8],
    second: &'a [u8],
    format: DirFormat,
}

impl<'a> InlineDir<'a> {
    /// The position of the start of the second part: the position of a record of the second part is
    /// its offset in the part plus this.
    pub const SECOND_AT: usize = HEAD_BYTES - PARENT_BYTES;

    /// Checks both parts.
    ///
    /// # Errors
    /// The first violated rule.
    pub fn check(&self) -> Result<(), InlineError> {
        for part in [self.first, self.second]
            .into_iter()
            .filter(|part| !part.is_empty())
        {
            self.format.check_block(part)?;
        }
        Ok(())
    }

    /// The entries, without `.` and `..`. [`Entry::at`] counts from the start of the first part
    /// through both.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry<'a>, DirentError>> + use<'a> {
        let second = self.format.entries(self.second).map(|entry| {
            entry.map(|entry| Entry {
                at: entry.at + Self::SECOND_AT,
                ..entry
            })
        });
        self.format.entries(self.first).chain(second)
    }

    /// The entry with exactly this name.
    ///
    /// # Errors
    /// If a record before it is corrupt, which is impossible in a checked directory.
    pub fn find(&self, name: &[u8]) -> Result<Option<Entry<'a>>, DirentError> {
        self.entries()
            .find(|entry| !matches!(entry, Ok(entry) if entry.name != name))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dirent::{NameForm, TypeByte};
    use crate::oracle::{Image, le32};
    use crate::xattr::EaInodes;
    use crate::xattr::check_in_inode;

    const FORMAT: DirFormat = DirFormat {
        names: NameForm::Plain,
        type_byte: TypeByte::Present,
        inodes_count: InodeNr(1000),
        seed: None,
    };

    #[test]
    fn without_the_attribute_there_is_no_content() {
        let none = Xattrs::in_inode(&[]);
        let error = InlineData::find(&[0; 60], &none).unwrap_err();
        assert_eq!(error, InlineError::NoAttribute);
        let error = InlineData::find(&[0; 59], &none).unwrap_err();
        assert_eq!(error, InlineError::TooShort { found: 59 });
    }

    #[test]
    fn reads_cross_the_parts_and_end_in_zeros() {
        let data = InlineData {
            head: &[1; 60],
            tail: &[2; 10],
        };
        let mut to = [9; 20];
        data.read_at(55, &mut to);
        assert_eq!(to[..5], [1; 5]);
        assert_eq!(to[5..15], [2; 10]);
        assert_eq!(to[15..], [0; 5]);
        data.read_at(u64::MAX, &mut to);
        assert_eq!(to, [0; 20]);
        data.read_at(65, &mut to);
        assert_eq!(to[..6], [2, 2, 2, 2, 2, 0]);
    }

    #[test]
    fn a_parent_that_does_not_exist() {
        let head = [0; 60];
        let error = InlineData {
            head: &head,
            tail: &[],
        }
        .directory(&FORMAT)
        .unwrap_err();
        let max = InodeNr(1000);
        assert_eq!(
            error,
            InlineError::Parent {
                found: InodeNr(0),
                max
            }
        );
    }

    #[test]
    fn a_directory_goes_on_in_the_second_part() {
        let record = |inode: u8, rec_len: u8, name: u8| {
            let mut bytes = vec![inode, 0, 0, 0, rec_len, 0, 1, 1, name];
            bytes.resize(rec_len.into(), 0);
            bytes
        };
        let head = [vec![2, 0, 0, 0], record(12, 56, b'a')].concat();
        let tail = [record(0, 12, b'b'), record(13, 16, b'c')].concat();
        let dir = InlineData {
            head: &head,
            tail: &tail,
        }
        .directory(&FORMAT)
        .unwrap();
        dir.check().unwrap();
        let entry = dir.find(b"c").unwrap().unwrap();
        assert_eq!(
            (entry.inode, entry.at),
            (InodeNr(13), InlineDir::SECOND_AT + 12)
        );
        assert_eq!(dir.entries().count(), 2);
        let broken = [record(12, 12, b'a'), record(13, 12, 0)].concat();
        let dir = InlineData {
            head: &head,
            tail: &broken,
        }
        .directory(&FORMAT)
        .unwrap();
        let (at, found, position) = (12, 0, 0);
        let error = DirentError::NameByte {
            at,
            found,
            position,
        };
        assert_eq!(dir.check(), Err(InlineError::Record(error)));
    }

    /// Reads small files and directories that mke2fs stored in their inodes.
    #[test]
    fn agrees_with_mke2fs() {
        let tree = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..100).collect();
        std::fs::write(tree.path().join("file"), &content).unwrap();
        let names = ["a-name", "another-name", "third"];
        std::fs::create_dir(tree.path().join("dir")).unwrap();
        for name in names {
            std::fs::write(tree.path().join("dir").join(name), b"").unwrap();
        }
        let args = ["-b", "4096", "-I", "256", "-O", "inline_data,metadata_csum"];
        let Some(image) = Image::make(&args, tree.path(), 8) else {
            return;
        };

        let inode = |path| {
            let (raw, _) = image.inode(image.inode_nr(path));
            assert_ne!(le32(&raw, 0x20) & 0x1000_0000, 0, "{path} has inline data");
            raw
        };
        let parts = |raw: &[u8]| (raw[0x28..0x64].to_vec(), raw[128 + 32..].to_vec());
        let (i_block, area) = parts(&inode("/file"));
        check_in_inode(&area, EaInodes::Absent).unwrap();
        let data = InlineData::find(&i_block, &Xattrs::in_inode(&area)).unwrap();
        let mut found = vec![0; content.len()];
        data.read_at(0, &mut found);
        assert_eq!(found, content);

        let (i_block, area) = parts(&inode("/dir"));
        let data = InlineData::find(&i_block, &Xattrs::in_inode(&area)).unwrap();
        let dir = data.directory(&FORMAT).unwrap();
        dir.check().unwrap();
        assert_eq!(dir.parent, InodeNr::ROOT);
        let mut found: Vec<_> = dir.entries().map(|entry| entry.unwrap().name).collect();
        found.sort_unstable();
        let mut expected = names.map(str::as_bytes);
        expected.sort_unstable();
        assert_eq!(found, expected);
        for name in names {
            let inode = dir.find(name.as_bytes()).unwrap().unwrap().inode;
            assert_eq!(inode, image.inode_nr(&format!("/dir/{name}")));
        }
        assert_eq!(dir.find(b"fourth"), Ok(None));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            head in proptest::collection::vec(0..20u8, 60),
            tail in proptest::collection::vec(0..20u8, 0..80),
            offset: u64,
        ) {
            let data = InlineData { head: &head, tail: &tail };
            data.read_at(offset, &mut [0; 9]);
            if let Ok(dir) = data.directory(&FORMAT) {
                let _ = dir.check();
                let _ = dir.find(b"x");
                prop_assert!(dir.entries().count() < 14);
            }
        }
    }
}

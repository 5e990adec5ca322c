//! **Purpose.** Encodes extended attributes: in the inode as far as they fit, the others in a block
//! that inodes with equal attributes share, and values that are too large for it in inodes of their
//! own.
//!
//! **Not here.** Those inodes (`values`).
//!
//! **Model.** Each distinct set is encoded once. A block is shared by up to 1024 inodes, which is
//! the kernel's limit; a set with more users gets several equal blocks. With `ea_inode`, the
//! largest values are moved to inodes until the inode and the block hold the others. Inline data
//! gets the space that attributes leave, as it does when the kernel creates a file with a label.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "Extended Attributes".

use std::borrow::Cow;

use fourscore::MAX_VALUE_BYTES;
use fourscore_ondisk::acl;
use fourscore_ondisk::inline::InlineRoom;
use fourscore_ondisk::xattr::{NameIndex, NewValue, Value, XattrEditError, Xattrs, XattrsMut};

use super::facts::Facts;
use super::values::Values;
use crate::tree::{NodeId, XattrIter, is_supported};

/// An encoded attribute set.
#[derive(Clone, Debug, Default)]
pub(crate) struct EncodedSet {
    /// The bytes after the fixed fields of an inode; empty if there are no attributes.
    pub(crate) area: Vec<u8>,
    /// The attribute block, with a reference count of 1 and no checksum; empty if none is needed.
    pub(crate) block: Vec<u8>,
    /// Numbers of large values that entries in the inode refer to.
    pub(crate) inside: Vec<usize>,
    /// Numbers of large values that entries in the block refer to.
    pub(crate) outside: Vec<usize>,
    /// Space in the inode for inline data; `None` without `inline_data`.
    pub(crate) inline_room: Option<InlineRoom>,
}

impl EncodedSet {
    /// Numbers of all large values.
    pub(crate) fn values(&self) -> impl Iterator<Item = usize> {
        self.inside.iter().chain(&self.outside).copied()
    }

    /// Replaces the placeholders in the entries of large values by inode numbers.
    pub(crate) fn number_values(&mut self, values: &Values) -> Result<(), XattrEditError> {
        if !self.inside.is_empty() {
            let entries = entries_of_values(&Xattrs::in_inode(&self.area));
            set_value_inodes(XattrsMut::in_inode(&mut self.area)?, &entries, values)?;
        }
        if !self.outside.is_empty() {
            let entries = entries_of_values(&Xattrs::in_block(&self.block)?);
            set_value_inodes(XattrsMut::in_block(&mut self.block)?, &entries, values)?;
        }
        Ok(())
    }
}

/// Name index and name of each attribute with a large value, and the number of the value.
type ValueEntries = Vec<(NameIndex, Vec<u8>, usize)>;

fn entries_of_values(xattrs: &Xattrs<'_>) -> ValueEntries {
    let of_value = |entry: fourscore_ondisk::xattr::Entry<'_>| match entry.value {
        Value::Inode { inode, .. } => {
            let value = (inode.0 - 1) as usize;
            Some((entry.index, entry.name.to_vec(), value))
        }
        Value::Inline(_) => None,
    };
    xattrs.entries().flatten().filter_map(of_value).collect()
}

fn set_value_inodes(
    mut xattrs: XattrsMut<'_>,
    entries: &ValueEntries,
    values: &Values,
) -> Result<(), XattrEditError> {
    for (index, name, value) in entries {
        xattrs.set(*index, name, &values.entry(*value, values.inode(*value)))?;
    }
    Ok(())
}

/// Why attributes cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XattrProblem {
    /// ext4 cannot store an attribute of this name.
    #[error("ext4 cannot store the extended attribute {name}")]
    Name {
        /// The full name.
        name: String,
    },
    /// An invalid ACL.
    #[error("the access control list {name}: {why}")]
    Acl {
        /// The name of its attribute.
        name: String,
        /// The reason.
        why: acl::AclError,
    },
    /// The attributes do not fit into the inode and one block.
    #[error(
        "extended attributes of {bytes} bytes do not fit into the inode and one block \
         (the feature ea_inode stores large values in inodes of their own)"
    )]
    TooLarge {
        /// Total size of names and values.
        bytes: usize,
    },
    /// A value that is longer than Linux allows.
    #[error("the value of {name} has {bytes} bytes, ext4 allows {MAX_VALUE_BYTES}")]
    ValueTooLong {
        /// The full name.
        name: String,
        /// Its length.
        bytes: usize,
    },
}

/// An attribute in its stored form.
struct Attribute<'a> {
    index: NameIndex,
    name: &'a [u8],
    value: Cow<'a, [u8]>,
    /// The number of its value, if that has an inode of its own.
    large: Option<usize>,
}

impl Attribute<'_> {
    /// Sets the attribute; returns false if there is no space.
    fn put(&self, xattrs: &mut XattrsMut<'_>, values: &Values) -> Result<bool, XattrProblem> {
        let value = match self.large {
            Some(number) => values.entry(number, Values::provisional_inode(number)),
            None => NewValue::Inline(&self.value),
        };
        match xattrs.set(self.index, self.name, &value) {
            Ok(_) => Ok(true),
            Err(XattrEditError::NoSpace { .. }) => Ok(false),
            Err(_) => {
                let prefix = self.index.prefix().unwrap_or_default();
                let name = format!("{prefix}{}", self.name.escape_ascii());
                Err(XattrProblem::Name { name })
            }
        }
    }
}

/// Where entries of large values may be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LargeEntries {
    Anywhere,
    /// Only in the block. For a symbolic link with its target in `i_block`, e2fsck takes the
    /// charged space of values for blocks of the target, unless the link has an attribute block.
    InBlock,
}

/// Encodes the set that `user` is the first to have.
pub(crate) fn encode_set(
    facts: &Facts,
    xattrs: XattrIter<'_>,
    values: &mut Values,
    user: NodeId,
    large_entries: LargeEntries,
) -> Result<EncodedSet, XattrProblem> {
    let mut all = xattrs
        .map(|(name, value)| stored(name, value))
        .collect::<Result<Vec<_>, _>>()?;
    // The order of attributes in blocks that the kernel expects.
    all.sort_by(|a, b| (a.index, a.name.len(), a.name).cmp(&(b.index, b.name.len(), b.name)));
    loop {
        if let Some(encoded) = encode(facts, &all, values, large_entries)? {
            return Ok(encoded);
        }
        let bytes = all.iter().map(|one| one.name.len() + one.value.len()).sum();
        let left = all.iter_mut().filter(|one| one.large.is_none());
        let largest = left.max_by_key(|one| one.value.len());
        match largest.filter(|one| facts.ea_inode && !one.value.is_empty()) {
            Some(one) => one.large = Some(values.number(&one.value, facts, user)),
            None => return Err(XattrProblem::TooLarge { bytes }),
        }
    }
}

/// `None` if the inode and the block have too little space.
fn encode(
    facts: &Facts,
    all: &[Attribute<'_>],
    values: &Values,
    large_entries: LargeEntries,
) -> Result<Option<EncodedSet>, XattrProblem> {
    let mut area = vec![0; facts.xattr_area_bytes()];
    let mut encoded = EncodedSet::default();
    let mut outside = Vec::new();
    // Inodes of 128 bytes have no space for attributes.
    let mut inside = XattrsMut::in_inode(&mut area).ok();
    for attribute in all {
        let is_allowed = attribute.large.is_none() || large_entries == LargeEntries::Anywhere;
        let fits = match &mut inside {
            Some(inside) if is_allowed => attribute.put(inside, values)?,
            _ => false,
        };
        if fits {
            encoded.inside.extend(attribute.large);
        } else {
            outside.push(attribute);
        }
    }
    let none_inside = inside.is_none_or(|inside| inside.is_empty());
    if facts.inline_data {
        // Inodes without space for attributes have no space for inline data either.
        encoded.inline_room = InlineRoom::of(&mut area).unwrap_or_default();
    }
    if !none_inside {
        encoded.area = area;
    }
    if !outside.is_empty() {
        encoded.block = vec![0; facts.block_bytes()];
        let Ok(mut block) = XattrsMut::init_block(&mut encoded.block) else {
            return Ok(None);
        };
        for attribute in outside {
            if !attribute.put(&mut block, values)? {
                return Ok(None);
            }
            encoded.outside.extend(attribute.large);
        }
    }
    Ok(Some(encoded))
}

fn stored<'a>(name: &'a [u8], value: &'a [u8]) -> Result<Attribute<'a>, XattrProblem> {
    let full_name = || name.escape_ascii().to_string();
    let split = NameIndex::split(name).filter(|(_, rest)| rest.len() <= 255 && is_supported(name));
    let Some((index, rest)) = split else {
        return Err(XattrProblem::Name { name: full_name() });
    };
    let is_acl = matches!(
        index,
        NameIndex::POSIX_ACL_ACCESS | NameIndex::POSIX_ACL_DEFAULT
    );
    let value = if is_acl {
        let disk = acl::xattr_to_disk(value);
        Cow::Owned(disk.map_err(|why| XattrProblem::Acl {
            name: full_name(),
            why,
        })?)
    } else {
        Cow::Borrowed(value)
    };
    if value.len() > MAX_VALUE_BYTES {
        let (name, bytes) = (full_name(), value.len());
        return Err(XattrProblem::ValueTooLong { name, bytes });
    }
    Ok(Attribute {
        index,
        name: rest,
        value,
        large: None,
    })
}

//! **Purpose.** Where extended attributes go: into the inode as far as they fit, the rest into a
//! block that inodes with equal attributes share.
//!
//! **Model.** Each different set is laid out once. A block is shared by up to 1024 inodes, which is
//! the kernel's limit; a set with more users gets several equal blocks.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "Extended Attributes".

use std::borrow::Cow;

use fourscore_ondisk::acl;
use fourscore_ondisk::dirhash::CharSign;
use fourscore_ondisk::xattr::{
    HashedValue, MAGIC, NameIndex, RawBlockHeader, RawEntry, block_hash, entry_hash,
};
use zerocopy::IntoBytes;

use super::facts::Facts;
use crate::bytes::{low16, low32, put};
use crate::tree::XattrIter;

const HEADER_BYTES: usize = size_of::<RawBlockHeader>();
const ENTRY_BYTES: usize = size_of::<RawEntry>();
const MAGIC_BYTES: usize = 4;
const TERMINATOR_BYTES: usize = 4;

/// A set of attributes, laid out.
#[derive(Clone, Debug, Default)]
pub(crate) struct SetPlan {
    /// What follows the fixed fields of an inode; empty if nothing does.
    pub(crate) area: Vec<u8>,
    /// A block with a count of 0 users and no checksum; empty if none is needed.
    pub(crate) block: Vec<u8>,
}

/// Why attributes cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XattrProblem {
    /// A name whose prefix ext4 has no number for.
    #[error("the extended attribute {name} cannot be kept by ext4")]
    Name {
        /// The full name.
        name: String,
    },
    /// An access control list that is none.
    #[error("the access control list {name}: {why}")]
    Acl {
        /// The name of its attribute.
        name: String,
        /// What is wrong with it.
        why: acl::AclError,
    },
    /// More than fit into the inode and one block.
    #[error("extended attributes of {bytes} bytes do not fit into the inode and one block")]
    TooLarge {
        /// What names and values take together.
        bytes: usize,
    },
}

/// An attribute as it is stored.
struct Attribute<'a> {
    index: NameIndex,
    name: &'a [u8],
    value: Cow<'a, [u8]>,
}

impl Attribute<'_> {
    fn entry_bytes(&self) -> usize {
        (ENTRY_BYTES + self.name.len()).next_multiple_of(4)
    }

    fn bytes(&self) -> usize {
        self.entry_bytes() + self.value.len().next_multiple_of(4)
    }
}

/// Lays out a set.
pub(crate) fn plan(facts: &Facts, xattrs: XattrIter<'_>) -> Result<SetPlan, XattrProblem> {
    let mut all = xattrs
        .map(|(name, value)| stored(name, value))
        .collect::<Result<Vec<_>, _>>()?;
    // The order that the kernel keeps in blocks.
    all.sort_by(|a, b| (a.index, a.name.len(), a.name).cmp(&(b.index, b.name.len(), b.name)));
    let total = all.iter().map(Attribute::bytes).sum();
    let mut room = facts
        .xattr_area_bytes()
        .saturating_sub(MAGIC_BYTES + TERMINATOR_BYTES);
    let (inside, outside): (Vec<_>, Vec<_>) =
        all.into_iter()
            .partition(|attribute| match room.checked_sub(attribute.bytes()) {
                Some(less) => {
                    room = less;
                    true
                }
                None => false,
            });
    let mut plan = SetPlan::default();
    if !inside.is_empty() {
        plan.area = vec![0; facts.xattr_area_bytes()];
        put(&mut plan.area, 0, &MAGIC.to_le_bytes());
        put_all(&mut plan.area, MAGIC_BYTES, MAGIC_BYTES, &inside, |_| 0);
    }
    if !outside.is_empty() {
        let needed: usize = outside.iter().map(Attribute::bytes).sum();
        if needed + HEADER_BYTES + TERMINATOR_BYTES > facts.block_bytes() {
            return Err(XattrProblem::TooLarge { bytes: total });
        }
        plan.block = block(facts, &outside);
    }
    Ok(plan)
}

fn block(facts: &Facts, attributes: &[Attribute<'_>]) -> Vec<u8> {
    let hash = |attribute: &Attribute<'_>| {
        let value = HashedValue::Inline(&attribute.value);
        entry_hash(attribute.name, value, CharSign::Unsigned)
    };
    let mut block = vec![0; facts.block_bytes()];
    let header = RawBlockHeader {
        h_magic: MAGIC.into(),
        h_refcount: 0.into(),
        h_blocks: 1.into(),
        h_hash: block_hash(attributes.iter().map(hash)).into(),
        h_checksum: 0.into(),
        h_reserved: [0.into(); 3],
    };
    put(&mut block, 0, header.as_bytes());
    put_all(&mut block, HEADER_BYTES, 0, attributes, hash);
    block
}

/// Entries from the front, values from the back.
fn put_all(
    area: &mut [u8],
    mut at: usize,
    values_from: usize,
    attributes: &[Attribute<'_>],
    hash: impl Fn(&Attribute<'_>) -> u32,
) {
    let mut end = area.len();
    for attribute in attributes {
        let value = &*attribute.value;
        end -= value.len().next_multiple_of(4);
        let offset = if value.is_empty() {
            0
        } else {
            end - values_from
        };
        let entry = RawEntry {
            // Names of at most 255 bytes, prefix included, come from the host; longer ones of
            // other sources were refused.
            e_name_len: u8::try_from(attribute.name.len()).unwrap_or(u8::MAX),
            e_name_index: attribute.index.0,
            e_value_offs: low16(offset as u64),
            e_value_inum: 0.into(),
            e_value_size: low32(value.len() as u64),
            e_hash: hash(attribute).into(),
        };
        put(area, at, entry.as_bytes());
        put(area, at + ENTRY_BYTES, attribute.name);
        put(area, end, value);
        at += attribute.entry_bytes();
    }
}

fn stored<'a>(name: &'a [u8], value: &'a [u8]) -> Result<Attribute<'a>, XattrProblem> {
    let shown = || name.escape_ascii().to_string();
    let Some((index, rest)) = NameIndex::split(name).filter(|(_, rest)| rest.len() <= 255) else {
        return Err(XattrProblem::Name { name: shown() });
    };
    let is_acl = matches!(
        index,
        NameIndex::POSIX_ACL_ACCESS | NameIndex::POSIX_ACL_DEFAULT
    );
    let value = if is_acl {
        let disk = acl::xattr_to_disk(value);
        Cow::Owned(disk.map_err(|why| XattrProblem::Acl { name: shown(), why })?)
    } else {
        Cow::Borrowed(value)
    };
    Ok(Attribute {
        index,
        name: rest,
        value,
    })
}

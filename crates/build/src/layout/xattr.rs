//! **Purpose.** Where extended attributes go: into the inode as far as they fit, the rest into a
//! block that inodes with equal attributes share.
//!
//! **Model.** Each different set is laid out once. A block is shared by up to 1024 inodes, which is
//! the kernel's limit; a set with more users gets several equal blocks.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "Extended Attributes".

use std::borrow::Cow;

use fourscore_ondisk::acl;
use fourscore_ondisk::xattr::{NameIndex, NewValue, XattrEditError, XattrsMut};

use super::facts::Facts;
use crate::tree::XattrIter;

/// A set of attributes, laid out.
#[derive(Clone, Debug, Default)]
pub(crate) struct SetPlan {
    /// What follows the fixed fields of an inode; empty if nothing does.
    pub(crate) area: Vec<u8>,
    /// A block with a count of 1 user and no checksum; empty if none is needed.
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
    /// Sets it if there is room; whether there was.
    fn put(&self, xattrs: &mut XattrsMut<'_>) -> Result<bool, XattrProblem> {
        match xattrs.set(self.index, self.name, &NewValue::Inline(&self.value)) {
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

/// Lays out a set.
pub(crate) fn plan(facts: &Facts, xattrs: XattrIter<'_>) -> Result<SetPlan, XattrProblem> {
    let mut all = xattrs
        .map(|(name, value)| stored(name, value))
        .collect::<Result<Vec<_>, _>>()?;
    // The order that the kernel keeps in blocks.
    all.sort_by(|a, b| (a.index, a.name.len(), a.name).cmp(&(b.index, b.name.len(), b.name)));
    let mut area = vec![0; facts.xattr_area_bytes()];
    let mut outside = Vec::new();
    // Inodes of 128 bytes have no room for any.
    let mut inside = XattrsMut::in_inode(&mut area).ok();
    for attribute in &all {
        let fits = match &mut inside {
            Some(inside) => attribute.put(inside)?,
            None => false,
        };
        if !fits {
            outside.push(attribute);
        }
    }
    let none_inside = inside.is_none_or(|inside| inside.is_empty());
    let mut plan = SetPlan::default();
    if !none_inside {
        plan.area = area;
    }
    if !outside.is_empty() {
        let bytes = all.iter().map(|one| one.name.len() + one.value.len()).sum();
        let too_large = || XattrProblem::TooLarge { bytes };
        plan.block = vec![0; facts.block_bytes()];
        let mut block = XattrsMut::init_block(&mut plan.block).map_err(|_| too_large())?;
        for attribute in outside {
            if !attribute.put(&mut block)? {
                return Err(too_large());
            }
        }
    }
    Ok(plan)
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

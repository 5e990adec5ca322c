//! **Purpose.** Where extended attributes go: into the inode as far as they fit, the rest into a
//! block that inodes with equal attributes share, and values that are too large for it into inodes
//! of their own.
//!
//! **Not here.** Those inodes (`values`).
//!
//! **Model.** Each different set is laid out once. A block is shared by up to 1024 inodes, which is
//! the kernel's limit; a set with more users gets several equal blocks. Where the file system has
//! `ea_inode`, the largest values go into inodes until inode and block hold the rest. Content that
//! is kept in the inode gets the room that attributes leave, as it does when the kernel makes a
//! file that has a label from the start.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "Extended Attributes".

use std::borrow::Cow;

use fourscore::MAX_VALUE_BYTES;
use fourscore_ondisk::acl;
use fourscore_ondisk::inline::InlineRoom;
use fourscore_ondisk::xattr::{NameIndex, NewValue, Value, XattrEditError, Xattrs, XattrsMut};

use super::facts::Facts;
use super::values::Values;
use crate::tree::{NodeId, XattrIter, is_kept};

/// A set of attributes, laid out.
#[derive(Clone, Debug, Default)]
pub(crate) struct SetPlan {
    /// What follows the fixed fields of an inode; empty if nothing does.
    pub(crate) area: Vec<u8>,
    /// A block with a count of 1 user and no checksum; empty if none is needed.
    pub(crate) block: Vec<u8>,
    /// Values in inodes of their own to which the area leads.
    pub(crate) inside: Vec<usize>,
    /// Values in inodes of their own to which the block leads.
    pub(crate) outside: Vec<usize>,
    /// What room the area has for content; `None` if the file system keeps none in inodes.
    pub(crate) inline_room: Option<InlineRoom>,
}

impl SetPlan {
    /// All values in inodes of their own.
    pub(crate) fn values(&self) -> impl Iterator<Item = usize> {
        self.inside.iter().chain(&self.outside).copied()
    }

    /// Has entries lead to the inodes of their values, which until now are numbered from 1 on.
    pub(crate) fn number_values(&mut self, values: &Values) -> Result<(), XattrEditError> {
        if !self.inside.is_empty() {
            let entries = entries_of_values(&Xattrs::in_inode(&self.area));
            lead(XattrsMut::in_inode(&mut self.area)?, &entries, values)?;
        }
        if !self.outside.is_empty() {
            let entries = entries_of_values(&Xattrs::in_block(&self.block)?);
            lead(XattrsMut::in_block(&mut self.block)?, &entries, values)?;
        }
        Ok(())
    }
}

/// Prefixes and names of attributes whose values are in inodes, and which values these are.
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

fn lead(
    mut xattrs: XattrsMut<'_>,
    entries: &ValueEntries,
    values: &Values,
) -> Result<(), XattrEditError> {
    for (index, name, value) in entries {
        xattrs.set(*index, name, &values.entry(*value, values.inode(*value)))?;
    }
    Ok(())
}

/// Why attributes cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XattrProblem {
    /// A name that ext4 has no place for.
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
    #[error(
        "extended attributes of {bytes} bytes do not fit into the inode and one block \
         (the feature ea_inode gives large values room)"
    )]
    TooLarge {
        /// What names and values take together.
        bytes: usize,
    },
    /// A value that Linux could not read.
    #[error("the value of {name} has {bytes} bytes, {MAX_VALUE_BYTES} are possible")]
    ValueTooLong {
        /// The full name.
        name: String,
        /// Its length.
        bytes: usize,
    },
}

/// An attribute as it is stored.
struct Attribute<'a> {
    index: NameIndex,
    name: &'a [u8],
    value: Cow<'a, [u8]>,
    /// The number of its value, if that gets an inode of its own.
    large: Option<usize>,
}

impl Attribute<'_> {
    /// Sets it if there is room; whether there was.
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

/// Where entries may be that lead to values in inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LargeEntries {
    Anywhere,
    /// Of a link whose target is in its inode: the space of its values counts for it, and e2fsck
    /// takes that for the space of a target, unless there is a block of attributes.
    InBlock,
}

/// Lays out the set that `user` is the first to have.
pub(crate) fn plan(
    facts: &Facts,
    xattrs: XattrIter<'_>,
    values: &mut Values,
    user: NodeId,
    large_entries: LargeEntries,
) -> Result<SetPlan, XattrProblem> {
    let mut all = xattrs
        .map(|(name, value)| stored(name, value))
        .collect::<Result<Vec<_>, _>>()?;
    // The order that the kernel keeps in blocks.
    all.sort_by(|a, b| (a.index, a.name.len(), a.name).cmp(&(b.index, b.name.len(), b.name)));
    loop {
        if let Some(plan) = lay_out(facts, &all, values, large_entries)? {
            return Ok(plan);
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

/// `None` if inode and block have too little room.
fn lay_out(
    facts: &Facts,
    all: &[Attribute<'_>],
    values: &Values,
    large_entries: LargeEntries,
) -> Result<Option<SetPlan>, XattrProblem> {
    let mut area = vec![0; facts.xattr_area_bytes()];
    let mut plan = SetPlan::default();
    let mut outside = Vec::new();
    // Inodes of 128 bytes have no room for any.
    let mut inside = XattrsMut::in_inode(&mut area).ok();
    for attribute in all {
        let may = attribute.large.is_none() || large_entries == LargeEntries::Anywhere;
        let fits = match &mut inside {
            Some(inside) if may => attribute.put(inside, values)?,
            _ => false,
        };
        if fits {
            plan.inside.extend(attribute.large);
        } else {
            outside.push(attribute);
        }
    }
    let none_inside = inside.is_none_or(|inside| inside.is_empty());
    if facts.inline_data {
        // Inodes too short for attributes have no room for content either.
        plan.inline_room = InlineRoom::of(&mut area).unwrap_or_default();
    }
    if !none_inside {
        plan.area = area;
    }
    if !outside.is_empty() {
        plan.block = vec![0; facts.block_bytes()];
        let Ok(mut block) = XattrsMut::init_block(&mut plan.block) else {
            return Ok(None);
        };
        for attribute in outside {
            if !attribute.put(&mut block, values)? {
                return Ok(None);
            }
            plan.outside.extend(attribute.large);
        }
    }
    Ok(Some(plan))
}

fn stored<'a>(name: &'a [u8], value: &'a [u8]) -> Result<Attribute<'a>, XattrProblem> {
    let shown = || name.escape_ascii().to_string();
    let split = NameIndex::split(name).filter(|(_, rest)| rest.len() <= 255 && is_kept(name));
    let Some((index, rest)) = split else {
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
    if value.len() > MAX_VALUE_BYTES {
        let (name, bytes) = (shown(), value.len());
        return Err(XattrProblem::ValueTooLong { name, bytes });
    }
    Ok(Attribute {
        index,
        name: rest,
        value,
        large: None,
    })
}

//! **Purpose.** Values of extended attributes that have inodes of their own (feature `ea_inode`).
//!
//! **Not here.** Which values these are (`xattr`), where their content lies (`place`).
//!
//! **Model.** Equal values share an inode, whoever has them. Their inodes come behind those of all
//! objects, in the order in which objects were found to need them. How many entries lead to each is
//! known when attributes have their blocks: an entry in an inode counts for every inode that has
//! it, one in a block once for each copy of the block.
//!
//! **References.** Linux, `fs/ext4/xattr.c`, "EA inodes".

use std::collections::HashMap;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::xattr::{EaInode, NewValue};
use fourscore_sync::Arc;

use super::facts::Facts;
use crate::tree::NodeId;

/// A value that has an inode of its own.
#[derive(Debug)]
pub(crate) struct LargeValue {
    pub(crate) bytes: Arc<[u8]>,
    /// The checksum that its inode tells.
    pub(crate) hash: u32,
    /// The first object that has it: its owner is that of the inode.
    pub(crate) user: NodeId,
    /// Entries that lead to it.
    pub(crate) refs: u64,
}

impl LargeValue {
    pub(crate) fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// All values that have inodes of their own.
#[derive(Debug, Default)]
pub(crate) struct Values {
    all: Vec<LargeValue>,
    numbers: HashMap<Arc<[u8]>, usize>,
    /// The inode of value 0.
    first: u32,
}

impl Values {
    /// The number of a value, which `user` has.
    pub(crate) fn number(&mut self, bytes: &[u8], facts: &Facts, user: NodeId) -> usize {
        if let Some(&number) = self.numbers.get(bytes) {
            return number;
        }
        let number = self.all.len();
        let bytes: Arc<[u8]> = bytes.into();
        self.numbers.insert(Arc::clone(&bytes), number);
        self.all.push(LargeValue {
            hash: EaInode::hash_of(&bytes, facts.fs_seed()),
            bytes,
            user,
            refs: 0,
        });
        number
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get(&self, number: usize) -> Option<&LargeValue> {
        self.all.get(number)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LargeValue> {
        self.all.iter()
    }

    /// Counts an entry that leads to a value.
    pub(crate) fn add_ref(&mut self, number: usize) {
        if let Some(value) = self.all.get_mut(number) {
            value.refs += 1;
        }
    }

    /// Says which inode value 0 gets.
    pub(crate) fn begin_at(&mut self, first: InodeNr) {
        self.first = first.0;
    }

    /// What stands for the inode of a value until it has one.
    pub(crate) fn provisional_inode(number: usize) -> InodeNr {
        InodeNr(u32::try_from(number + 1).unwrap_or(u32::MAX))
    }

    pub(crate) fn inode(&self, number: usize) -> InodeNr {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        InodeNr(self.first.saturating_add(number))
    }

    /// The number of the value whose inode this is.
    pub(crate) fn of_inode(&self, inode: InodeNr) -> Option<usize> {
        let number = inode.0.checked_sub(self.first)? as usize;
        (number < self.all.len()).then_some(number)
    }

    /// What an entry says of a value in this inode.
    pub(crate) fn entry(&self, number: usize, inode: InodeNr) -> NewValue<'static> {
        let (len, hash) = self
            .get(number)
            .map_or((0, 0), |value| (value.bytes.len(), value.hash));
        NewValue::Inode {
            inode,
            bytes: u32::try_from(len).unwrap_or(u32::MAX),
            hash,
        }
    }
}

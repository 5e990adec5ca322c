//! **Purpose.** Large values of extended attributes, which have inodes of their own (feature
//! `ea_inode`).
//!
//! **Not here.** The choice of these values (`xattr`) and the allocation of their blocks (`place`).
//!
//! **Model.** Equal values share an inode, whichever object has them. Their inodes follow those of
//! all objects, in the order in which they were found. Their reference counts are known when
//! attribute blocks are allocated: an entry in an inode counts for every inode with this attribute
//! set, an entry in a block once for each copy of the block.
//!
//! **References.** Linux, `fs/ext4/xattr.c`, "EA inodes".

use std::collections::HashMap;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::xattr::{EaInode, NewValue};
use fourscore_sync::Arc;

use super::facts::Facts;
use crate::tree::NodeId;

/// A value with an inode of its own.
#[derive(Debug)]
pub(crate) struct LargeValue {
    pub(crate) bytes: Arc<[u8]>,
    /// The hash of the value, stored in its inode.
    pub(crate) hash: u32,
    /// The first object that has the value; its owner becomes the owner of the inode.
    pub(crate) user: NodeId,
    /// Number of entries that refer to it.
    pub(crate) refs: u64,
}

impl LargeValue {
    pub(crate) fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// All values with inodes of their own.
#[derive(Debug, Default)]
pub(crate) struct Values {
    all: Vec<LargeValue>,
    numbers: HashMap<Arc<[u8]>, usize>,
    /// The inode number of value 0.
    first: u32,
}

impl Values {
    /// Returns the number of a value; adds it with the owner of `user` if it is new.
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

    /// Counts an entry that refers to a value.
    pub(crate) fn add_ref(&mut self, number: usize) {
        if let Some(value) = self.all.get_mut(number) {
            value.refs += 1;
        }
    }

    /// Sets the inode number of value 0.
    pub(crate) fn set_first_inode(&mut self, first: InodeNr) {
        self.first = first.0;
    }

    /// A placeholder for the inode number of a value.
    pub(crate) fn provisional_inode(number: usize) -> InodeNr {
        InodeNr(u32::try_from(number + 1).unwrap_or(u32::MAX))
    }

    pub(crate) fn inode(&self, number: usize) -> InodeNr {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        InodeNr(self.first.saturating_add(number))
    }

    /// The number of the value with this inode number.
    pub(crate) fn of_inode(&self, inode: InodeNr) -> Option<usize> {
        let number = inode.0.checked_sub(self.first)? as usize;
        (number < self.all.len()).then_some(number)
    }

    /// The entry for a value in this inode.
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

//! **Purpose.** Attribute blocks, their users and their contents.
//!
//! **Model.** A block is read when the first inode with it is met. Contents are equal if they have
//! the same entries in the same order: names, values, and for values in inodes equal values, in
//! whichever inodes. Neither where a value lies in the block nor a hash on disk counts.
//! A block that breaks a rule has users and no content: it could not be shared.

use std::collections::HashMap;

use fourscore::{InodeNr, PhysBlock};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::xattr::{self, Entry, HashedValue, MAX_BLOCK_REFS, Value, Xattrs};

use super::contents::{ContentNr, Contents, NewContent, WideHash};
use super::faults::{Faults, Kind, Place};
use super::hashes::is_hash_of;
use super::values::{Count, User, Values};
use super::volume::Volume;
use crate::failure::Result;

/// A block that inodes have as their block of attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) users: u64,
    /// `h_refcount`; `None` for a block that is not valid.
    pub(super) refcount: Option<u32>,
    /// The first inode with it.
    pub(super) inode: InodeNr,
    /// `None` for a block that could not be shared.
    pub(super) content: Option<ContentNr>,
}

/// All blocks of attributes.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    known: HashMap<PhysBlock, Block>,
    pub(super) contents: Contents<PhysBlock>,
    buffers: Buffers,
}

#[derive(Debug, Default)]
struct Buffers {
    block: Vec<u8>,
    other: Vec<u8>,
    places: Vec<(usize, usize)>,
}

impl Blocks {
    /// Counts a user of a block; `None` if the block has not been met.
    pub(super) fn add_user(&mut self, block: PhysBlock) -> Option<Block> {
        let known = self.known.get_mut(&block)?;
        known.users += 1;
        if let Some(content) = known.content {
            self.contents.add_user(content);
        }
        Some(*known)
    }

    /// Reads a block of `user`, unless it has been met. No user is counted.
    pub(super) fn load(
        &mut self,
        volume: Volume<'_>,
        block: PhysBlock,
        user: User,
        values: &mut Values,
        faults: &mut Faults,
    ) -> Result<()> {
        if self.known.contains_key(&block) {
            return Ok(());
        }
        let inode = user.inode;
        let mut new = Block {
            users: 0,
            refcount: None,
            inode,
            content: None,
        };
        let place = Place::Block { block, inode };
        let blocks = volume.geometry().data_blocks();
        if !blocks.contains(&block) {
            let why = RelationError::XattrBlock {
                found: block,
                blocks,
            };
            faults.report(volume.image, Kind::BlockPlace, place, why);
        } else if let Err(why) = volume.read_attributes(block, &mut self.buffers.block) {
            faults.report(volume.image, Kind::Block, place, why);
        } else {
            let header = xattr::block_header(&self.buffers.block);
            new.refcount = header.ok().map(|header| header.h_refcount.get());
            let is_sound = self.check(volume, place, faults);
            let found = self.values_of(volume, user, values, faults)?;
            if let (true, Some(found)) = (is_sound, found) {
                new.content = Some(self.add_content(volume, block, found, values)?);
            }
        }
        self.known.insert(block, new);
        Ok(())
    }

    /// Checks what parsing does not: the hashes, and that values do not overlap. Returns whether
    /// the block could be shared.
    fn check(&mut self, volume: Volume<'_>, place: Place, faults: &mut Faults) -> bool {
        let block = &self.buffers.block;
        let (Ok(xattrs), Ok(header)) = (Xattrs::in_block(block), xattr::block_header(block)) else {
            return false;
        };
        let mut is_sound = true;
        let places = &mut self.buffers.places;
        places.clear();
        for entry in entries(&xattrs) {
            let Value::Inline(value) = entry.value else {
                continue;
            };
            if let Some(start) = xattrs.value_place(&entry) {
                places.push((start, start + value.len().next_multiple_of(4)));
            }
            if !is_hash_of(&entry, HashedValue::Inline(value)) {
                is_sound = false;
                let (at, found) = (entry.at, entry.hash);
                let why = format_args!("e_hash {found:#010x} at byte {at} is wrong");
                faults.report(volume.image, Kind::EntryHash, place, why);
            }
        }
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[1].0 < pair[0].1) {
            is_sound = false;
            faults.report(volume.image, Kind::Overlap, place, "two values overlap");
        }
        let found = header.h_hash.get();
        let expected = xattr::block_hash(entries(&xattrs).map(|entry| entry.hash));
        // 0 says that the block is not to be found by its hash, as e2fsprogs writes it. Its
        // content is shared as soon as it is set again.
        if found != 0 && found != expected {
            is_sound = false;
            let why = format_args!("h_hash is {found:#010x}, expected {expected:#010x}");
            faults.report(volume.image, Kind::BlockHash, place, why);
        }
        is_sound
    }

    /// The contents of the values in inodes to which the block in the buffer refers; `None` if one
    /// of them is not valid.
    fn values_of(
        &self,
        volume: Volume<'_>,
        user: User,
        values: &mut Values,
        faults: &mut Faults,
    ) -> Result<Option<Box<[ContentNr]>>> {
        let mut found = Some(Vec::new());
        let Ok(xattrs) = Xattrs::in_block(&self.buffers.block) else {
            return Ok(None);
        };
        for entry in entries(&xattrs) {
            if let Value::Inode { .. } = entry.value {
                // Each entry counts as a user, also behind one that is not valid.
                let content = values.add_user(volume, user, &entry, faults)?;
                found = found.zip(content).map(|(mut found, content)| {
                    found.push(content);
                    found
                });
            }
        }
        Ok(found.map(Vec::into_boxed_slice))
    }

    /// Adds the block in the buffer to the contents.
    fn add_content(
        &mut self,
        volume: Volume<'_>,
        block: PhysBlock,
        found: Box<[ContentNr]>,
        values: &Values,
    ) -> Result<ContentNr> {
        let own = canonical(&self.buffers.block, values);
        let new = NewContent {
            hash: WideHash::of(&own),
            place: block,
            bytes: volume.block_bytes() as u64,
            values: found,
        };
        let other = &mut self.buffers.other;
        self.contents.add(new, |&first| {
            let read = volume.read_attributes(first, other);
            read.map_err(|why| volume.image.problem(why))?;
            Ok(canonical(other, values) == own)
        })
    }

    /// Compares the reference counts of blocks with their users.
    pub(super) fn check_refcounts(&self, volume: Volume<'_>, faults: &mut Faults) {
        for (block, known) in self.sorted() {
            let Some(found) = known.refcount else {
                continue;
            };
            let (users, inode) = (known.users, known.inode);
            let place = Place::Block { block, inode };
            if !(1..=MAX_BLOCK_REFS).contains(&found) {
                let why = format_args!(
                    "h_refcount is {found}, expected 1 to {MAX_BLOCK_REFS}; {users} inodes use it"
                );
                faults.report(volume.image, Kind::Refcount, place, why);
            } else if u64::from(found) != users {
                let why = format_args!("h_refcount is {found}, and {users} inodes use it");
                faults.report(volume.image, Kind::Refcount, place, why);
            }
        }
    }

    /// The blocks by number.
    pub(super) fn sorted(&self) -> Vec<(PhysBlock, Block)> {
        let mut all: Vec<_> = self.known.iter().map(|(&at, &known)| (at, known)).collect();
        all.sort_unstable_by_key(|&(block, _)| block);
        all
    }

    /// Blocks, and how many of them several inodes use.
    pub(super) fn count(&self) -> Count {
        let blocks = self.known.values();
        blocks.fold(Count::default(), |count, block| Count {
            all: count.all + 1,
            shared: count.shared + u64::from(block.users > 1),
        })
    }
}

/// The entries of a checked area.
fn entries<'a>(xattrs: &Xattrs<'a>) -> impl Iterator<Item = Entry<'a>> {
    xattrs.entries().map_while(std::result::Result::ok)
}

/// The part of a block that has to be equal in blocks that are shared.
fn canonical(block: &[u8], values: &Values) -> Vec<u8> {
    let mut bytes = Vec::new();
    let Ok(xattrs) = Xattrs::in_block(block) else {
        return bytes;
    };
    for entry in entries(&xattrs) {
        let name_len = u8::try_from(entry.name.len()).unwrap_or(u8::MAX);
        bytes.extend_from_slice(&[entry.index.0, name_len]);
        bytes.extend_from_slice(entry.name);
        match entry.value {
            Value::Inline(value) => {
                bytes.push(0);
                bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
                bytes.extend_from_slice(value);
            }
            Value::Inode { inode, .. } => {
                let content = values.content_of(inode).map_or(u32::MAX, |nr| nr.0);
                bytes.push(1);
                bytes.extend_from_slice(&content.to_le_bytes());
            }
        }
    }
    bytes
}

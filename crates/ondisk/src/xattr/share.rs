//! **Purpose.** Blocks of attributes that several inodes use: the count of these inodes, and
//! whether two blocks hold the same attributes.
//!
//! **Not here.** Finding a block to share and the locks that this needs (crate `fourscore`).
//!
//! **Model.** A block is shared for the attributes in it, whatever the places of its values and the
//! bytes of its header are: [`SharedContent`] is what two blocks are compared by, and what they are
//! hashed by. Names and values are compared byte by byte, values in inodes by their inodes.
//!
//! **Invariants.** The count of a block in use is 1 to [`MAX_BLOCK_REFS`]. Only *sound* blocks are
//! shared: their hashes are those of their entries and their values share no bytes, so a block is
//! shared only if the kernel would have written it, too.

use std::hash::{Hash, Hasher};

use zerocopy::FromBytes;

use super::{
    Entry, HashedValue, MAX_BLOCK_REFS, PAD, RawBlockHeader, Value, XattrError, Xattrs, block_hash,
    block_header, entry_hash,
};
use crate::dirhash::CharSign;

/// The place of `h_refcount` in a block, in bytes.
pub const REFCOUNT: std::ops::Range<usize> = 4..8;
/// Blocks with more entries than this are not shared. It bounds the time of a comparison.
const MOST_ENTRIES: usize = 128;

/// The number of inodes that use a block of attributes.
///
/// # Errors
/// If it is 0, or more than may share a block.
pub fn users(block: &[u8]) -> Result<u32, XattrError> {
    let found = block_header(block)?.h_refcount.get();
    match found {
        1..=MAX_BLOCK_REFS => Ok(found),
        _ => Err(XattrError::Users { found }),
    }
}

/// Sets the number of inodes that use the block of attributes whose bytes [`REFCOUNT`] are `field`.
pub fn put_users(field: &mut [u8], users: u32) {
    if let Some(field) = field.get_mut(..REFCOUNT.len()) {
        field.copy_from_slice(&users.to_le_bytes());
    }
}

/// The attributes of a checked block, to be compared and hashed.
#[derive(Clone, Copy, Debug)]
pub struct SharedContent<'b>(Xattrs<'b>);

impl<'b> SharedContent<'b> {
    /// The attributes of `block`, if it is sound, so that inodes may share it.
    #[must_use]
    pub fn of(block: &'b [u8]) -> Option<Self> {
        let content = Self::unchecked(block)?;
        content.is_sound(block).then_some(content)
    }

    /// The attributes of `block`, sound or not.
    #[must_use]
    pub fn unchecked(block: &'b [u8]) -> Option<Self> {
        Xattrs::in_block(block).ok().map(Self)
    }

    fn entries(self) -> impl Iterator<Item = Entry<'b>> {
        self.0.entries().map_while(Result::ok)
    }

    /// Whether the hashes are right and no two values share bytes.
    fn is_sound(self, block: &[u8]) -> bool {
        let stored = RawBlockHeader::ref_from_prefix(block).map_or(0, |(raw, _)| raw.h_hash.get());
        let hash = block_hash(self.entries().map(|entry| entry.hash));
        if hash == 0 || hash != stored || self.entries().count() > MOST_ENTRIES {
            return false;
        }
        let is_hashed = |entry: Entry<'_>| is_hashed(&entry);
        self.entries().all(is_hashed) && !self.has_overlap()
    }

    fn has_overlap(self) -> bool {
        let place = |entry: &Entry<'_>| {
            let len = match entry.value {
                Value::Inline(value) => value.len().next_multiple_of(PAD),
                Value::Inode { .. } => 0,
            };
            self.0.value_place(entry).map(|at| at..at + len)
        };
        for entry in self.entries() {
            let Some(one) = place(&entry) else { continue };
            let mut others = self.entries().filter(|other| other.at > entry.at);
            let meets = |other: Entry<'_>| {
                place(&other).is_some_and(|other| one.start < other.end && other.start < one.end)
            };
            if others.any(meets) {
                return true;
            }
        }
        false
    }
}

/// Whether the hash of an entry is one of the two that Linux writes. That of a value in an inode
/// needs the inode, and counts as right here.
fn is_hashed(entry: &Entry<'_>) -> bool {
    let Value::Inline(value) = entry.value else {
        return true;
    };
    let value = HashedValue::Inline(value);
    entry_hash(entry.name, value, CharSign::Unsigned) == entry.hash
        || entry_hash(entry.name, value, CharSign::Signed) == entry.hash
}

/// Equal attributes: in the same order, with the same names and values. The hashes of sound blocks
/// may differ for names that are not ASCII, by the kernel that wrote them.
impl PartialEq for SharedContent<'_> {
    fn eq(&self, other: &Self) -> bool {
        let key = |entry: Entry<'_>| match entry.value {
            // The hash is compared, since it was not verified.
            Value::Inode { .. } => entry.hash,
            Value::Inline(_) => 0,
        };
        let (mut ours, mut theirs) = (self.entries(), other.entries());
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return true,
                (Some(one), Some(two)) => {
                    let is_equal = one.index == two.index
                        && one.name == two.name
                        && one.value == two.value
                        && key(one) == key(two);
                    if !is_equal {
                        return false;
                    }
                }
                _ => return false,
            }
        }
    }
}

impl Eq for SharedContent<'_> {}

impl Hash for SharedContent<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for entry in self.entries() {
            state.write_u8(entry.index.0);
            state.write(entry.name);
            match entry.value {
                Value::Inline(value) => state.write(value),
                Value::Inode { inode, bytes } => {
                    state.write_u32(inode.0);
                    state.write_u32(bytes);
                }
            }
        }
    }
}

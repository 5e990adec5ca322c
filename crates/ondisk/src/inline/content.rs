//! **Purpose.** Changes of inline data in place: creating it, writing, growing, shrinking, and
//! moving it out of the inode.
//!
//! **Not here.** `i_size` and the flag `INLINE_DATA`, which the caller sets with the rest of the
//! inode; the records of directories (`edit`); the block that the content moves to.
//!
//! **Model.** The content shares the inode's space with the other attributes. Its maximum length is
//! queried first ([`InlineRoom`], [`InlineMut::most_bytes`]); for longer content the caller moves
//! it to a block.
//!
//! **Invariants.** The space after the content is zero, so that a file that grows reads zeros. A
//! change is made completely, or refused before the first byte changes.

use super::{ATTRIBUTE, HEAD_BYTES, InlineData, InlineError};
use crate::xattr::{NameIndex, NewValue, XattrEditError, XattrError, XattrsMut};

/// The space for inline data in an inode without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineRoom {
    /// The maximum length of the content.
    pub most_bytes: usize,
}

impl InlineRoom {
    /// The space in `area`, the xattr area of the inode; `None` if not even the entry of the
    /// attribute fits. An area without attributes is initialised as empty.
    ///
    /// # Errors
    /// If the area is corrupt.
    pub fn of(area: &mut [u8]) -> Result<Option<Self>, XattrError> {
        let xattrs = XattrsMut::in_inode(area)?;
        if !xattrs.fits(NameIndex::SYSTEM, ATTRIBUTE, 0)? {
            return Ok(None);
        }
        let value = xattrs.most_value_bytes(NameIndex::SYSTEM, ATTRIBUTE)?;
        Ok(Some(Self {
            most_bytes: HEAD_BYTES + value,
        }))
    }
}

/// Content stored in an inode, to be changed.
#[derive(Debug)]
pub struct InlineMut<'a> {
    head: &'a mut [u8; HEAD_BYTES],
    xattrs: XattrsMut<'a>,
}

impl<'a> InlineMut<'a> {
    /// Initialises empty inline data in `i_block` and `area`, the xattr area of the inode.
    ///
    /// # Errors
    /// `NoSpace`; `Area` if the area is corrupt. Then nothing is changed.
    pub fn init(
        i_block: &'a mut [u8; HEAD_BYTES],
        area: &'a mut [u8],
    ) -> Result<Self, XattrEditError> {
        let mut xattrs = XattrsMut::in_inode(area)?;
        xattrs.set(NameIndex::SYSTEM, ATTRIBUTE, &NewValue::Inline(&[]))?;
        i_block.fill(0);
        Ok(Self {
            head: i_block,
            xattrs,
        })
    }

    /// The content of an inode with the flag `INLINE_DATA`.
    ///
    /// # Errors
    /// If the attribute is missing or not inside the inode.
    pub fn of(i_block: &'a mut [u8; HEAD_BYTES], area: &'a mut [u8]) -> Result<Self, InlineError> {
        let xattrs = XattrsMut::in_inode(area)?;
        InlineData::find(i_block, &xattrs.as_xattrs())?;
        Ok(Self {
            head: i_block,
            xattrs,
        })
    }

    /// Both parts: the bytes in `i_block`, and the value of the attribute.
    ///
    /// # Errors
    /// If the area is corrupt, which [`InlineMut::of`] would have found.
    pub fn parts_mut(&mut self) -> Result<(&mut [u8; HEAD_BYTES], &mut [u8]), InlineError> {
        let tail = self.xattrs.value_mut(NameIndex::SYSTEM, ATTRIBUTE)?;
        Ok((self.head, tail.ok_or(InlineError::NoAttribute)?))
    }

    /// The current length of the space for content.
    ///
    /// # Errors
    /// As [`InlineMut::parts_mut`].
    pub fn capacity_bytes(&self) -> Result<usize, InlineError> {
        Ok(self.as_data()?.capacity_bytes())
    }

    /// The content, for reading.
    ///
    /// # Errors
    /// As [`InlineMut::parts_mut`].
    pub fn as_data(&self) -> Result<InlineData<'_>, InlineError> {
        InlineData::find(&self.head[..], &self.xattrs.as_xattrs())
    }

    /// The maximum length of the content, beside all other attributes of the inode.
    ///
    /// # Errors
    /// If the area is corrupt.
    pub fn most_bytes(&self) -> Result<usize, XattrError> {
        let value = self.xattrs.most_value_bytes(NameIndex::SYSTEM, ATTRIBUTE)?;
        Ok(HEAD_BYTES + value)
    }

    /// Resizes the space to `content_bytes` bytes of content, but at least 60. Bytes after them are
    /// lost, new bytes are zero.
    ///
    /// # Errors
    /// `NoSpace`; `Area` if the area is corrupt. Then nothing is changed.
    pub fn resize(&mut self, content_bytes: usize) -> Result<(), XattrEditError> {
        let tail = content_bytes.saturating_sub(HEAD_BYTES);
        self.xattrs.resize(NameIndex::SYSTEM, ATTRIBUTE, tail)?;
        self.head
            .get_mut(content_bytes..)
            .unwrap_or(&mut [])
            .fill(0);
        Ok(())
    }

    /// Writes inside the current space. Returns `false` without a change if `bytes` extend past its
    /// end.
    ///
    /// # Errors
    /// As [`InlineMut::parts_mut`].
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<bool, InlineError> {
        let (head, tail) = self.parts_mut()?;
        let end = offset.checked_add(bytes.len());
        if end.is_none_or(|end| end > head.len() + tail.len()) {
            return Ok(false);
        }
        let room = head.iter_mut().chain(tail).skip(offset);
        for (to, from) in room.zip(bytes) {
            *to = *from;
        }
        Ok(true)
    }

    /// Moves the content out of the inode: copies it to the start of `to`, fills the rest with
    /// zeros, removes the attribute, and zeroes `i_block` for the root of a map.
    ///
    /// # Errors
    /// `Area` if the area is corrupt. Then nothing is changed.
    pub fn take(mut self, to: &mut [u8]) -> Result<(), XattrEditError> {
        to.fill(0);
        if let Some(tail) = self.xattrs.value_mut(NameIndex::SYSTEM, ATTRIBUTE)? {
            for (to, from) in to.iter_mut().zip(self.head.iter().chain(&*tail)) {
                *to = *from;
            }
        }
        self.xattrs.remove(NameIndex::SYSTEM, ATTRIBUTE)?;
        self.head.fill(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

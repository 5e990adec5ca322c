//! **Purpose.** Changes of content stored in an inode in place: made so, written within, grown,
//! shrunk and taken out.
//!
//! **Not here.** `i_size` and the flag `INLINE_DATA`, which the caller sets with the rest of the
//! inode; the records of directories (`edit`); the block that content moves to.
//!
//! **Model.** The content competes with the other attributes for the inode's room. How much it may
//! become is asked before ([`InlineRoom`], [`InlineMut::most_bytes`]); whoever wants more takes it
//! out into a block.
//!
//! **Invariants.** The room behind the content is zero, so that a file that grows reads zeros. A
//! change is made whole or refused before the first byte changes.

use super::{ATTRIBUTE, HEAD_BYTES, InlineData, InlineError};
use crate::xattr::{NameIndex, NewValue, XattrEditError, XattrError, XattrsMut};

/// Room in an inode that does not keep its content yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineRoom {
    /// The most content there is room for.
    pub most_bytes: usize,
}

impl InlineRoom {
    /// What `area`, the xattr area of the inode, has room for; `None` if not even for the entry
    /// that must be there. An area without attributes is made empty.
    ///
    /// # Errors
    /// If the area is broken.
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
    /// Makes an inode keep its content, which is empty at first, in `i_block` and `area`, its xattr
    /// area.
    ///
    /// # Errors
    /// `NoSpace`; `Area` if the area is broken. Then nothing is changed.
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

    /// Both parts: what is in `i_block`, and the value of the attribute.
    ///
    /// # Errors
    /// If the area is broken, which [`InlineMut::of`] would have found.
    pub fn parts_mut(&mut self) -> Result<(&mut [u8; HEAD_BYTES], &mut [u8]), InlineError> {
        let tail = self.xattrs.value_mut(NameIndex::SYSTEM, ATTRIBUTE)?;
        Ok((self.head, tail.ok_or(InlineError::NoAttribute)?))
    }

    /// Bytes of content there is room for without growing.
    ///
    /// # Errors
    /// As [`InlineMut::parts_mut`].
    pub fn capacity_bytes(&self) -> Result<usize, InlineError> {
        Ok(self.as_data()?.capacity_bytes())
    }

    /// The content as it is now.
    ///
    /// # Errors
    /// As [`InlineMut::parts_mut`].
    pub fn as_data(&self) -> Result<InlineData<'_>, InlineError> {
        InlineData::find(&self.head[..], &self.xattrs.as_xattrs())
    }

    /// The most content that the inode has room for, with all its other attributes.
    ///
    /// # Errors
    /// If the area is broken.
    pub fn most_bytes(&self) -> Result<usize, XattrError> {
        let value = self.xattrs.most_value_bytes(NameIndex::SYSTEM, ATTRIBUTE)?;
        Ok(HEAD_BYTES + value)
    }

    /// Makes room for just so many bytes of content, but never less than 60: what is behind them
    /// is gone, what is new is zero.
    ///
    /// # Errors
    /// `NoSpace`; `Area` if the area is broken. Then nothing is changed.
    pub fn resize(&mut self, content_bytes: usize) -> Result<(), XattrEditError> {
        let tail = content_bytes.saturating_sub(HEAD_BYTES);
        self.xattrs.resize(NameIndex::SYSTEM, ATTRIBUTE, tail)?;
        self.head
            .get_mut(content_bytes..)
            .unwrap_or(&mut [])
            .fill(0);
        Ok(())
    }

    /// Writes within the room there is; whether all of it was inside. If not, nothing is written.
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

    /// Copies the content to the front of `to`, fills that up with zeros, and takes it out of the
    /// inode: the attribute goes, and `i_block` is zero, for the root of a map.
    ///
    /// # Errors
    /// `Area` if the area is broken. Then nothing is changed.
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

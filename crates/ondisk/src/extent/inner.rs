//! **Purpose.** Changes of the indexes of an inner node in place.

use super::edit::{Entry as _, ExtentEditError, Fill, ForParent, Shift, Slots};
use super::{Inner, RawIndex};
use crate::types::{LogicalBlock, PhysBlock};
use crate::words::{low16, low32};

/// The indexes of an inner node, to be changed.
#[derive(Debug)]
pub struct InnerMut<'a>(pub(super) Slots<'a, RawIndex>);

impl InnerMut<'_> {
    /// The node, for reading.
    #[must_use]
    pub fn as_inner(&self) -> Inner<'_> {
        Inner {
            indexes: self.0.used(),
            depth: self.0.depth(),
        }
    }

    /// The fill level.
    #[must_use]
    pub fn fill(&self) -> Fill {
        self.0.fill()
    }

    /// Adds the child at `block`, whose first key is `key`.
    ///
    /// # Errors
    /// `Overlap` if a child has that key already, `Full`, `Physical`.
    pub fn insert(
        &mut self,
        key: LogicalBlock,
        block: PhysBlock,
    ) -> Result<ForParent, ExtentEditError> {
        let raw = RawIndex::new(key, block)?;
        let before = self.0.first_key();
        let at = self.0.used().partition_point(|raw| raw.key() < key);
        if self.0.used().get(at).is_some_and(|raw| raw.key() == key) {
            return Err(overlap(key));
        }
        self.0.resize(at..at, 1)?;
        self.0.set(at, raw);
        Ok(self.0.for_parent(before))
    }

    /// Removes the child at a position.
    ///
    /// # Errors
    /// `Position`.
    pub fn remove(&mut self, position: usize) -> Result<ForParent, ExtentEditError> {
        let before = self.0.first_key();
        self.check_position(position)?;
        self.0.resize(position..position + 1, 0)?;
        Ok(self.0.for_parent(before))
    }

    /// Changes the key of the child at a position.
    ///
    /// # Errors
    /// `Position`; `Overlap` if the key is not between those of its neighbours.
    pub fn set_key(
        &mut self,
        position: usize,
        key: LogicalBlock,
    ) -> Result<ForParent, ExtentEditError> {
        let before = self.0.first_key();
        self.check_position(position)?;
        let used = self.0.used();
        let left = position.checked_sub(1).and_then(|left| used.get(left));
        let right = used.get(position + 1);
        if left.is_some_and(|left| left.key() >= key)
            || right.is_some_and(|right| right.key() <= key)
        {
            return Err(overlap(key));
        }
        if let Some(raw) = self.0.used_mut().get_mut(position) {
            raw.set_key(key);
        }
        Ok(self.0.for_parent(before))
    }

    /// Changes the block of the child at a position.
    ///
    /// # Errors
    /// `Position`, `Physical`.
    pub fn set_block(&mut self, position: usize, block: PhysBlock) -> Result<(), ExtentEditError> {
        self.check_position(position)?;
        if block.0 >= 1 << 48 {
            return Err(ExtentEditError::Physical { block });
        }
        if let Some(raw) = self.0.used_mut().get_mut(position) {
            raw.ei_leaf_lo = low32(block.0);
            raw.ei_leaf_hi = low16(block.0 >> 32);
        }
        Ok(())
    }

    /// Shifts all keys from `from` on. The caller must shift the extents below as well.
    ///
    /// # Errors
    /// `Logical` if a key would leave the range of a file; `Overlap` if the first shifted key would
    /// meet the one before it.
    pub fn shift(
        &mut self,
        from: LogicalBlock,
        shift: Shift,
    ) -> Result<ForParent, ExtentEditError> {
        let before = self.0.first_key();
        let at = self.0.used().partition_point(|raw| raw.key() < from);
        let (kept, moved) = self.0.used().split_at(at);
        let (Some(first), Some(last)) = (moved.first(), moved.last()) else {
            return Ok(ForParent::Unchanged);
        };
        let key = shift.apply(first.key())?;
        shift.apply(last.key())?;
        if kept.last().is_some_and(|left| left.key() >= key) {
            return Err(overlap(key));
        }
        for raw in self.0.used_mut().iter_mut().skip(at) {
            raw.set_key(shift.apply(raw.key())?);
        }
        Ok(self.0.for_parent(before))
    }

    /// Moves the children from `position` on to `block`, which becomes a node of the same depth,
    /// and returns its first key: `None` if it is still empty, because `position` is the end.
    ///
    /// # Errors
    /// `Position`; `Shape` if the block is too small for the children.
    pub fn split_off(
        &mut self,
        position: usize,
        block: &mut [u8],
    ) -> Result<Option<LogicalBlock>, ExtentEditError> {
        self.0.split_off(position, block)
    }

    fn check_position(&self, position: usize) -> Result<(), ExtentEditError> {
        if position >= self.0.len() {
            return Err(ExtentEditError::Position { position });
        }
        Ok(())
    }
}

fn overlap(key: LogicalBlock) -> ExtentEditError {
    let end = LogicalBlock(key.0.saturating_add(1));
    ExtentEditError::Overlap { logical: key..end }
}

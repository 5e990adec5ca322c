//! **Purpose.** Changes of the extents of a leaf in place.
//!
//! **Model.** Extents are joined as in Linux: an inserted extent and one whose state changed with
//! their neighbours, and those that a shift makes adjacent. Extents of different leaves are not
//! joined.

use std::iter::once;
use std::ops::Range;

use super::edit::{Entry as _, ExtentEditError, Fill, ForParent, Shift, Slots};
use super::{Extent, ExtentState, Leaf, RawExtent};
use crate::types::LogicalBlock;

/// The extents of a leaf, to be changed.
#[derive(Debug)]
pub struct LeafMut<'a>(pub(super) Slots<'a, RawExtent>);

impl LeafMut<'_> {
    /// The leaf, for reading.
    #[must_use]
    pub fn as_leaf(&self) -> Leaf<'_> {
        Leaf {
            extents: self.0.used(),
        }
    }

    /// The fill level.
    #[must_use]
    pub fn fill(&self) -> Fill {
        self.0.fill()
    }

    /// Adds an extent in a hole, and joins it with its neighbours.
    ///
    /// # Errors
    /// `Full` if it cannot be joined and there is no free slot; `Overlap`; `Length`, `Logical` or
    /// `Physical` for an extent that the format cannot express.
    pub fn insert(&mut self, extent: Extent) -> Result<ForParent, ExtentEditError> {
        let raw = RawExtent::try_from(&extent)?;
        let before = self.0.first_key();
        let at = self.first_from(extent.logical);
        let left = at.checked_sub(1).and_then(|left| self.get(left));
        let right = self.get(at);
        let logical = extent.logical..extent.logical_end();
        if left.is_some_and(|left| left.logical_end() > logical.start)
            || right.is_some_and(|right| right.logical < logical.end)
        {
            return Err(ExtentEditError::Overlap { logical });
        }
        if let Some(joined) = left.and_then(|left| left.joined(&extent)) {
            self.put(at.saturating_sub(1), joined)?;
            self.join(at.saturating_sub(1))?;
        } else if let Some(joined) = right.and_then(|right| extent.joined(&right)) {
            self.put(at, joined)?;
            self.join(at)?;
        } else {
            self.0.resize(at..at, 1)?;
            self.0.set(at, raw);
        }
        Ok(self.0.for_parent(before))
    }

    /// Unmaps the logical blocks of `range`, and calls `cut` for each piece that was mapped there,
    /// in order.
    ///
    /// # Errors
    /// `Full` if the range is inside one extent and there is no slot for the part after it.
    pub fn remove(
        &mut self,
        range: Range<LogicalBlock>,
        mut cut: impl FnMut(Extent),
    ) -> Result<ForParent, ExtentEditError> {
        let touched = self.touched(&range);
        let (Some(first), Some(last)) = (
            self.get(touched.start),
            touched.clone().last().and_then(|last| self.get(last)),
        ) else {
            return Ok(ForParent::Unchanged);
        };
        let before = self.0.first_key();
        let kept = [front(&first, &range), back(&last, &range)];
        let count = kept.iter().flatten().count();
        self.0.check_room(count.saturating_sub(touched.len()))?;
        for position in touched.clone() {
            if let Some(piece) = self.get(position).and_then(|extent| extent.part(&range)) {
                cut(piece);
            }
        }
        self.0.resize(touched.clone(), count)?;
        for (position, extent) in (touched.start..).zip(kept.into_iter().flatten()) {
            self.put(position, extent)?;
        }
        Ok(self.0.for_parent(before))
    }

    /// Changes the state of all mapped blocks in `range`, and joins extents where possible. Holes
    /// stay holes.
    ///
    /// # Errors
    /// `Full` if the leaf has too few slots for the pieces: at most two more are needed, and
    /// another for each written extent of 32768 blocks, which is too long as an unwritten one.
    pub fn set_state(
        &mut self,
        range: Range<LogicalBlock>,
        state: ExtentState,
    ) -> Result<(), ExtentEditError> {
        let touched = self.touched(&range);
        if touched.is_empty() {
            return Ok(());
        }
        let window = touched.start.saturating_sub(1)..(touched.end + 1).min(self.0.len());
        // Each extent must be read before the pieces that replace it are written. Therefore the
        // extents of the window are first moved up by the maximum lead of the pieces.
        let (mut count, mut ahead) = (0_usize, 0_usize);
        let mut joiner = Joiner::default();
        for (read, position) in (1..).zip(window.clone()) {
            for piece in self.pieces(position, &range, state) {
                count += usize::from(joiner.push(piece).is_some());
            }
            ahead = ahead.max(count.saturating_sub(read));
        }
        count += usize::from(joiner.finish().is_some());
        ahead = ahead.max(count.saturating_sub(window.len()));
        self.0.resize(window.start..window.start, ahead)?;

        let mut at = window.start;
        for position in window.start + ahead..window.end + ahead {
            for piece in self.pieces(position, &range, state) {
                if let Some(done) = joiner.push(piece) {
                    self.put(at, done)?;
                    at += 1;
                }
            }
        }
        if let Some(done) = joiner.finish() {
            self.put(at, done)?;
            at += 1;
        }
        self.0.resize(at..window.end + ahead, 0)
    }

    /// Splits an extent across `at` in two, so that the second begins there.
    ///
    /// # Errors
    /// `Full`.
    pub fn cut_at(&mut self, at: LogicalBlock) -> Result<(), ExtentEditError> {
        let position = self.as_leaf().position(at);
        let Some(extent) = self.get(position).filter(|extent| extent.logical < at) else {
            return Ok(());
        };
        let parts = [
            extent.part(&(extent.logical..at)),
            extent.part(&(at..extent.logical_end())),
        ];
        self.0.resize(position + 1..position + 1, 1)?;
        for (position, part) in (position..).zip(parts.into_iter().flatten()) {
            self.put(position, part)?;
        }
        Ok(())
    }

    /// Shifts the extents from `from` on in the file, and joins the first of them with the one
    /// before.
    ///
    /// # Errors
    /// `Overlap` if an extent begins before and ends after `from` (see [`cut_at`](Self::cut_at)) or
    /// the first one would overlap the extent before; `Logical` if one would leave the range of a
    /// file.
    pub fn shift(
        &mut self,
        from: LogicalBlock,
        shift: Shift,
    ) -> Result<ForParent, ExtentEditError> {
        let before = self.0.first_key();
        let at = self.first_from(from);
        let left = at.checked_sub(1).and_then(|left| self.get(left));
        let (Some(first), Some(last)) = (self.get(at), self.as_leaf().iter().last()) else {
            return Ok(ForParent::Unchanged);
        };
        let start = shift.apply(first.logical)?;
        shift.apply(last.logical_end())?;
        let end = left.map_or(LogicalBlock(0), |left| left.logical_end());
        if end > start || end > from {
            return Err(ExtentEditError::Overlap {
                logical: start..end,
            });
        }
        for raw in self.0.used_mut().iter_mut().skip(at) {
            raw.set_key(shift.apply(raw.key())?);
        }
        if at > 0 {
            self.join(at - 1)?;
        }
        Ok(self.0.for_parent(before))
    }

    /// Moves the extents from `position` on to `block`, which becomes a leaf, and returns its first
    /// key: `None` if it is still empty, because `position` is the end. Linux splits at the
    /// position of the next insertion ([`insert_position`](Self::insert_position)).
    ///
    /// # Errors
    /// `Position`; `Shape` if the block is too small for the extents.
    pub fn split_off(
        &mut self,
        position: usize,
        block: &mut [u8],
    ) -> Result<Option<LogicalBlock>, ExtentEditError> {
        self.0.split_off(position, block)
    }

    /// The position at which an extent that begins at `logical` would be inserted.
    #[must_use]
    pub fn insert_position(&self, logical: LogicalBlock) -> usize {
        self.first_from(logical)
    }

    /// Position of the first extent that begins at `logical` or later.
    fn first_from(&self, logical: LogicalBlock) -> usize {
        self.0.used().partition_point(|raw| raw.key() < logical)
    }

    /// Positions of the extents with blocks in `range`.
    fn touched(&self, range: &Range<LogicalBlock>) -> Range<usize> {
        let start = self.as_leaf().position(range.start);
        let end = self.first_from(range.end);
        start..if range.is_empty() {
            start
        } else {
            end.max(start)
        }
    }

    /// The extent at a position, with the part of it in `range` in another state.
    fn pieces(
        &self,
        position: usize,
        range: &Range<LogicalBlock>,
        state: ExtentState,
    ) -> impl Iterator<Item = Extent> + use<> {
        let extent = self.get(position);
        let inside = extent.and_then(|extent| extent.part(range));
        let (whole, split) = match (extent, inside) {
            (Some(extent), None) => (Some(extent), [None; 4]),
            (Some(extent), Some(inside)) => {
                let inside = Extent { state, ..inside };
                // Only a whole written extent of the maximum length is too long as an unwritten
                // one.
                let middle = LogicalBlock(inside.logical.0.saturating_add(state.max_blocks()));
                let end = inside.logical_end();
                let split = [
                    front(&extent, range),
                    inside.part(&(inside.logical..middle)),
                    inside.part(&(middle..end)),
                    back(&extent, range),
                ];
                (None, split)
            }
            (None, _) => (None, [None; 4]),
        };
        once(whole).chain(split).flatten()
    }

    fn get(&self, position: usize) -> Option<Extent> {
        self.as_leaf().get(position)
    }

    fn put(&mut self, position: usize, extent: Extent) -> Result<(), ExtentEditError> {
        self.0.set(position, RawExtent::try_from(&extent)?);
        Ok(())
    }

    /// Joins the extent at a position with the next one if possible.
    fn join(&mut self, position: usize) -> Result<(), ExtentEditError> {
        let (this, next) = (self.get(position), self.get(position + 1));
        if let (Some(this), Some(next)) = (this, next)
            && let Some(joined) = this.joined(&next)
        {
            self.put(position, joined)?;
            self.0.resize(position + 1..position + 2, 0)?;
        }
        Ok(())
    }
}

/// The part of an extent before `range`.
fn front(extent: &Extent, range: &Range<LogicalBlock>) -> Option<Extent> {
    extent.part(&(extent.logical..range.start))
}

/// The part of an extent after `range`.
fn back(extent: &Extent, range: &Range<LogicalBlock>) -> Option<Extent> {
    extent.part(&(range.end..extent.logical_end()))
}

/// Joins a sequence of extents.
#[derive(Default)]
struct Joiner {
    last: Option<Extent>,
}

impl Joiner {
    /// Adds an extent; returns the one before it if both cannot be joined.
    fn push(&mut self, next: Extent) -> Option<Extent> {
        match self.last.map(|last| (last, last.joined(&next))) {
            Some((_, Some(joined))) => {
                self.last = Some(joined);
                None
            }
            Some((last, None)) => {
                self.last = Some(next);
                Some(last)
            }
            None => {
                self.last = Some(next);
                None
            }
        }
    }

    fn finish(&mut self) -> Option<Extent> {
        self.last.take()
    }
}

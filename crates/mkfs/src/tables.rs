//! **Purpose.** Where each group's bitmaps and inode table go.
//!
//! **Model.** Without `flex_bg` they lie in their group. With it, those of a flex group lie
//! together at its start, packed by kind:
//!
//! ```text
//! superblock, descriptors | block bitmaps | inode bitmaps | inode tables | ... data ...
//! ```
//!
//! Tables go around backup superblocks. With packed metadata the tables of all groups
//! lie together at the start of the file system.
//!
//! **References.** The order in which places are tried is that of libext2fs.

use fourscore_ondisk::group::GroupFlags;
use fourscore_ondisk::{Geometry, GroupNr};

use crate::error::{FormatError, FormatResult};
use crate::space::Space;

/// The fields of a group descriptor, except for free blocks and checksums.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GroupLayout {
    pub(crate) block_bitmap: u64,
    pub(crate) inode_bitmap: u64,
    pub(crate) inode_table: u64,
    pub(crate) used_inodes: u32,
    pub(crate) dirs: u32,
    pub(crate) itable_unused: u32,
    pub(crate) flags: GroupFlags,
}

/// Places tables.
pub(crate) struct Tables<'a> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) space: &'a mut Space,
    pub(crate) groups: &'a mut [GroupLayout],
    /// log2 of the groups in a flex group; 0 without.
    pub(crate) log_groups_per_flex: u8,
    /// `s_raid_stride`.
    pub(crate) stride: u64,
}

const NO_ROOM: FormatError = FormatError::NoRoom {
    what: "the bitmaps and inode tables",
};

impl Tables<'_> {
    /// Places the tables of one group after the other.
    pub(crate) fn place_all(&mut self) -> FormatResult<()> {
        let mut group = 0;
        while group < self.geometry.groups() {
            let placed = if self.log_groups_per_flex == 0 {
                self.place_in_group(group)?;
                1
            } else if let Some(placed) = self.place_flex_group(group) {
                placed
            } else {
                self.place_in_flex_group(group)?;
                1
            };
            group += placed;
        }
        Ok(())
    }

    /// Places the tables of a whole flex group at once if they fit side by side: one by one they
    /// would come to the same places. Returns the number of groups.
    fn place_flex_group(&mut self, group: u32) -> Option<u32> {
        let flex = 1u32.checked_shl(self.log_groups_per_flex.into())?;
        let end = group.checked_add(flex)?;
        if !group.is_multiple_of(flex) || end >= self.geometry.groups() {
            return None;
        }
        let count = u64::from(flex);
        let table_blocks = u64::from(self.geometry.inode_table_blocks());
        let blocks = count * (2 + table_blocks);
        let first = self.flex_offset(group, 0, count, 1);
        if first == 0 || self.space.place_for(blocks, first, first + 1) != Some(first) {
            return None;
        }
        self.take(first, blocks);
        for (group, at) in self.groups.iter_mut().skip(group as usize).zip(0..count) {
            group.block_bitmap = first + at;
            group.inode_bitmap = first + count + at;
            group.inode_table = first + 2 * count + at * table_blocks;
        }
        Some(flex)
    }

    /// Places all block bitmaps, then all inode bitmaps, then all inode tables.
    pub(crate) fn place_packed(&mut self) -> FormatResult<()> {
        let table_blocks = u64::from(self.geometry.inode_table_blocks());
        let mut goal = 0;
        for group in 0..self.groups.len() {
            goal = self.space.first_free(goal).ok_or(NO_ROOM)?;
            self.take(goal, 1);
            self.groups[group].block_bitmap = goal;
        }
        for group in 0..self.groups.len() {
            goal = self.space.first_free(goal).ok_or(NO_ROOM)?;
            self.take(goal, 1);
            self.groups[group].inode_bitmap = goal;
        }
        let end = self.geometry.blocks().0 - 1;
        for group in 0..self.groups.len() {
            let place = self.space.place_for(table_blocks, goal, end);
            // Around earlier data there may be gaps in front that are large enough for this one.
            let place = place.or_else(|| self.space.place_for(table_blocks, 0, end));
            goal = place.ok_or(NO_ROOM)?;
            self.take(goal, table_blocks);
            self.groups[group].inode_table = goal;
        }
        Ok(())
    }

    fn place_in_group(&mut self, group: u32) -> FormatResult<()> {
        let (first, last) = self.bounds(group, group);
        let table_blocks = u64::from(self.geometry.inode_table_blocks());
        let mut start = first;
        if self.stride > 0 {
            // So that the bitmaps of neighbouring groups lie on different disks of an array.
            start = self.space.place_for(1, first, last).ok_or(NO_ROOM)? + table_blocks;
            let room = last.checked_sub(start).map_or(1, |room| room + 1);
            start += self.stride * u64::from(group) % room;
            if start >= last {
                start = first;
            }
        }
        let block_bitmap = self.one_block(start, first, last)?;
        let inode_bitmap = self.one_block(start, first, last)?;
        let inode_table = self
            .space
            .place_for(table_blocks, first, last)
            .ok_or(NO_ROOM)?;
        self.space.take(inode_table..inode_table + table_blocks);
        let tables = self.group(group);
        (tables.block_bitmap, tables.inode_bitmap) = (block_bitmap, inode_bitmap);
        tables.inode_table = inode_table;
        Ok(())
    }

    fn one_block(&mut self, start: u64, first: u64, last: u64) -> FormatResult<u64> {
        let place = self.space.place_for(1, start, last);
        let place = place.or_else(|| self.space.place_for(1, first, last));
        let place = place.ok_or(NO_ROOM)?;
        self.space.take(place..place + 1);
        Ok(place)
    }

    fn place_in_flex_group(&mut self, group: u32) -> FormatResult<()> {
        let flex = 1u32
            .checked_shl(self.log_groups_per_flex.into())
            .unwrap_or(0);
        let last_of_all = self.geometry.groups() - 1;
        let last_group = (group | flex.wrapping_sub(1)).min(last_of_all);
        let rest = u64::from(last_group - group + 1);
        let (first, _) = self.bounds(group, group);
        let (_, last) = self.bounds(group, last_group);
        let opens = group & flex.wrapping_sub(1) == 0;
        // Distance from the first table of one kind to the first of the next kind.
        let kind_blocks = if opens && last_group == last_of_all {
            match u64::from(last_group & flex.wrapping_sub(1)) {
                0 => u64::from(flex),
                more => more + 1,
            }
        } else {
            u64::from(flex)
        };
        let table_blocks = u64::from(self.geometry.inode_table_blocks());
        let before = match group.checked_sub(1) {
            Some(before) if !opens => *self.group(before),
            _ => GroupLayout::default(),
        };

        let hint = if opens { 0 } else { before.block_bitmap + 1 };
        let from = self.flex_offset(group, hint, rest, 1);
        let block_bitmap = self.place_of(1, from, first, last)?;
        let hint = match opens {
            true => block_bitmap + kind_blocks,
            false => before.inode_bitmap + 1,
        };
        let from = self.flex_offset(group, hint, rest, 1);
        let inode_bitmap = self.place_of(1, from, first, last)?;
        let hint = match opens {
            true => inode_bitmap + kind_blocks,
            false => before.inode_table + table_blocks,
        };
        let from = self.flex_offset(group, hint, rest, table_blocks);
        let inode_table = self.place_of(table_blocks, from, from, last)?;
        let tables = self.group(group);
        (tables.block_bitmap, tables.inode_bitmap) = (block_bitmap, inode_bitmap);
        tables.inode_table = inode_table;
        Ok(())
    }

    fn place_of(&mut self, blocks: u64, from: u64, again: u64, last: u64) -> FormatResult<u64> {
        let place = self.space.place_for(blocks, from, last);
        let place = place.or_else(|| self.space.place_for(blocks, again, last));
        let place = place.ok_or(NO_ROOM)?;
        self.take(place, blocks);
        Ok(place)
    }

    /// Where the search for a table of `blocks` begins when `rest` more of its kind follow: at the
    /// hint, else where all of them fit, else where one fits; 0 if there is no such place.
    fn flex_offset(&mut self, group: u32, hint: u64, rest: u64, blocks: u64) -> u64 {
        let quarter = u64::from(self.geometry.blocks_per_group()) / 4;
        let all = (rest * blocks).min(quarter);
        if hint != 0
            && hint < self.geometry.blocks().0
            && let Some(place) = self.space.place_for(blocks, hint, hint + all)
        {
            return place;
        }
        let flex = 1u32
            .checked_shl(self.log_groups_per_flex.into())
            .unwrap_or(0);
        let first_group = group & !flex.wrapping_sub(1);
        let last_group = (group | flex.wrapping_sub(1)).min(self.geometry.groups() - 1);
        let (first, last) = self.bounds(first_group, last_group);
        let place = self.space.place_for(all, first, last);
        place
            .or_else(|| self.space.place_for(blocks, first, last))
            .unwrap_or(0)
    }

    /// Takes blocks for tables, which may lie in other groups: those need a block bitmap.
    fn take(&mut self, first: u64, blocks: u64) {
        self.space.take(first..first + blocks);
        mark_written(self.geometry, self.groups, first..first + blocks);
    }

    fn group(&mut self, group: u32) -> &mut GroupLayout {
        &mut self.groups[group as usize]
    }

    /// The first block of one group and the last of another.
    fn bounds(&self, first: u32, last: u32) -> (u64, u64) {
        let first = self.geometry.group_blocks(GroupNr(first)).start.0;
        let last = self.geometry.group_blocks(GroupNr(last)).end.0;
        (first, last.saturating_sub(1))
    }
}

/// Clears `BLOCK_UNINIT` in the groups of these blocks, which need a block bitmap now.
pub(crate) fn mark_written(
    geometry: &Geometry,
    groups: &mut [GroupLayout],
    blocks: std::ops::Range<u64>,
) {
    let per_group = u64::from(geometry.blocks_per_group());
    let first_block = geometry.first_data_block().0;
    let group_of = |block: u64| {
        let group = block.saturating_sub(first_block) / per_group;
        usize::try_from(group).unwrap_or(usize::MAX)
    };
    let (first, last) = (
        group_of(blocks.start),
        group_of(blocks.end.saturating_sub(1)),
    );
    for group in groups.iter_mut().take(last.saturating_add(1)).skip(first) {
        group.flags.remove(GroupFlags::BLOCK_UNINIT);
    }
}

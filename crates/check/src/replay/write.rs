//! **Purpose.** Writes what fast commits change of inodes to an in-memory copy of the device, and
//! keeps bitmaps and descriptors in step.
//!
//! **Model.** For each changed inode the clusters that its map holds before and after are compared:
//! ```text
//! lost   = before - after      gained = after - before
//! block bitmap = (stored - lost) + gained
//! ```
//! `i_blocks` and the free counts of groups change by the same numbers, so what was wrong before is
//! wrong afterwards, and is reported.
//!
//! An inode that the records delete gets a link count of 0 and joins the orphans: recovery frees
//! it. Where its number was given to a new inode, its attributes are released here. With
//! `data=writeback` Linux may give the blocks of a deleted file to another one within the same
//! transaction. The map of an orphan that holds gained clusters is therefore cut.
//!
//! **Invariants.** No block is allocated: records name the blocks that they map.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::ops::Range;

use fourscore_block::{BlockDevice, RamDevice};
use fourscore_ondisk::extent;
use fourscore_ondisk::inode::{self, FileType, InodeFlags, InodeMut, RawInode};
use fourscore_ondisk::jbd2::JournalError;
use fourscore_ondisk::xattr::{self, EaInode, Value, Xattrs};
use fourscore_ondisk::{GroupNr, GroupOffset, InodeNr, LogicalBlock};
use fourscore_sync::Arc;
use zerocopy::FromBytes;

use super::bitmaps::{Bitmap, BitmapEdit, edit_bitmap};
use super::clusters::{Clusters, Held, held};
use super::edits::{MapEdits, Target};
use super::image::{Base, lay_over};
use super::records::{InodeChange, Outcome, read_used};
use super::{Changes, Charged};
use crate::inode::InodeView;
use crate::quota::owners_of;
use crate::volume::Volume;
use crate::walk::Limits;

/// Bytes of the unit that `i_blocks` counts in.
const SECTOR_BYTES: u64 = 512;

/// Why the changes cannot be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error(transparent)]
    Records(#[from] JournalError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the fast commits move directory {0} into or out of its inode")]
    InlineDirectory(InodeNr),
    #[error("inode {0} of a fast commit cannot be written")]
    Inode(InodeNr),
}

/// The file system with the changes of `outcome`, and its orphans.
///
/// # Errors
/// The records contradict the file system, or a block cannot be read.
pub(super) fn write(
    before: &Volume,
    orphans: HashSet<InodeNr>,
    outcome: Outcome,
) -> Result<(Volume, HashSet<InodeNr>), WriteError> {
    let copy = Arc::new(RamDevice::over(Arc::clone(&before.device)));
    let device: Arc<dyn BlockDevice> = Arc::<RamDevice>::clone(&copy);
    let mut writer = Writer {
        before,
        after: Volume {
            device,
            sb: before.sb.clone(),
            groups: before.groups.clone(),
            journal_copy: None,
            changes: Changes::default(),
        },
        copy,
        orphans,
        lost: Vec::new(),
        gained: Vec::new(),
        new_inodes: Vec::new(),
        new_dirs: HashMap::new(),
        limits: Limits::of(before),
    };
    let mut unchanged_orphans = writer.orphans.clone();
    for (nr, change) in outcome.inodes {
        unchanged_orphans.remove(&nr);
        match change {
            InodeChange::Deleted => {
                if writer.delete(nr)? {
                    unchanged_orphans.insert(nr);
                }
            }
            InodeChange::Changed {
                base,
                record,
                links,
                edits,
            } => writer.change(nr, base, record.as_deref(), links, edits)?,
        }
    }
    writer.after.changes.dirs = outcome.dirs;
    writer.cut_orphans(unchanged_orphans)?;
    writer.write_bitmaps()?;
    Ok((writer.after, writer.orphans))
}

struct Writer<'a> {
    before: &'a Volume,
    /// The result; its device is `copy`.
    after: Volume,
    copy: Arc<RamDevice>,
    orphans: HashSet<InodeNr>,
    lost: Vec<Range<u64>>,
    gained: Vec<Range<u64>>,
    new_inodes: Vec<InodeNr>,
    /// By how many directories a group has more.
    new_dirs: HashMap<GroupNr, i32>,
    /// What the walks of all maps may still follow.
    limits: Limits,
}

impl Writer<'_> {
    /// Deletes an inode; whether it is an orphan now. One that came and went between two full
    /// commits was never written.
    fn delete(&mut self, nr: InodeNr) -> Result<bool, WriteError> {
        let mut bytes = Vec::new();
        if read_used(self.before, nr, &mut bytes).is_none() {
            return Ok(false);
        }
        if let Ok((inode, _)) = RawInode::mut_from_prefix(&mut bytes) {
            if inode.i_links_count.get() == 0 {
                return Ok(self.orphans.contains(&nr));
            }
            inode.i_links_count = 0.into();
        }
        self.put_inode(nr, &mut bytes)?;
        self.orphans.insert(nr);
        Ok(true)
    }

    fn change(
        &mut self,
        nr: InodeNr,
        base: Base,
        record: Option<&[u8]>,
        links: u16,
        edits: MapEdits,
    ) -> Result<(), WriteError> {
        let mut stored = Vec::new();
        let is_used = read_used(self.before, nr, &mut stored).is_some_and(|()| {
            let links = InodeView::new(&stored, nr).map_or(0, |inode| inode.links());
            links > 0 || self.orphans.contains(&nr)
        });
        let mut bytes = match base {
            Base::Table => stored.clone(),
            Base::Zeroes => vec![0; self.before.geometry().inode_size_bytes()],
        };
        if let Some(record) = record {
            lay_over(&mut bytes, record);
        }
        if let Ok((inode, _)) = RawInode::mut_from_prefix(&mut bytes) {
            inode.i_links_count = links.into();
        }
        let stored = is_used.then_some(&*stored);
        self.count_inode(nr, stored, &bytes)?;
        if base == Base::Zeroes {
            self.orphans.remove(&nr);
            if let Some(stored) = stored {
                self.release_attributes(nr, stored)?;
            }
        }
        self.put(nr, stored, base, bytes, edits)
    }

    /// Notes a number that comes into use, and directories that come and go.
    fn count_inode(
        &mut self,
        nr: InodeNr,
        stored: Option<&[u8]>,
        bytes: &[u8],
    ) -> Result<(), WriteError> {
        let before = stored.and_then(|stored| InodeView::new(stored, nr));
        let after = InodeView::new(bytes, nr).ok_or(WriteError::Inode(nr))?;
        if before.is_none() {
            self.new_inodes.push(nr);
        }
        let was_directory = before.is_some_and(|inode| inode.is_directory());
        let change = i32::from(after.is_directory()) - i32::from(was_directory);
        if let Some((group, _)) = self.before.geometry().inode_group(nr) {
            *self.new_dirs.entry(group).or_default() += change;
        }
        let was_inline = before.map(|inode| inode.has(InodeFlags::INLINE_DATA_FL));
        let is_inline = after.has(InodeFlags::INLINE_DATA_FL);
        // The names that move with it would not be among those that the records add.
        if was_directory && after.is_directory() && was_inline != Some(is_inline) {
            return Err(WriteError::InlineDirectory(nr));
        }
        Ok(())
    }

    /// Writes an inode whose map has `edits`, and counts what its map gains and loses against that
    /// of `stored`, the inode in its place before.
    fn put(
        &mut self,
        nr: InodeNr,
        stored: Option<&[u8]>,
        base: Base,
        mut bytes: Vec<u8>,
        edits: MapEdits,
    ) -> Result<(), WriteError> {
        let old = match (stored, self.after.changes.maps.contains_key(&nr)) {
            (None, _) => Held::default(),
            (Some(stored), true) => held(&self.after, nr, stored, &mut self.limits),
            (Some(stored), false) => held(self.before, nr, stored, &mut self.limits),
        };
        self.after.changes.maps.remove(&nr);
        if !edits.is_empty() {
            self.after.changes.maps.insert(nr, edits);
        }
        let new = held(&self.after, nr, &bytes, &mut self.limits);
        let sb = self.before.sb.clone();
        let sectors = |bytes: &[u8]| {
            let inode = InodeView::new(bytes, nr);
            inode.map_or(0, |inode| inode.sectors(&sb))
        };
        let charged = stored.and_then(|stored| {
            Some(Charged {
                owner: owners_of(&InodeView::new(stored, nr)?, &sb),
                bytes: sectors(stored).saturating_mul(SECTOR_BYTES),
            })
        });
        self.after.changes.charged.entry(nr).or_insert(charged);
        let unit = self.before.geometry().cluster_size_bytes() as u64 / SECTOR_BYTES;
        let (before, old_counted) = match (base, stored) {
            (Base::Table, Some(stored)) => (sectors(stored), old.counted),
            _ => (0, 0),
        };
        let after = before
            .saturating_add(new.counted.saturating_mul(unit))
            .saturating_sub(old_counted.saturating_mul(unit));
        let fault = |_| WriteError::Inode(nr);
        let mut inode = InodeMut::of(&mut bytes, &sb).map_err(fault)?;
        inode
            .set_sectors(after)
            .map_err(|_| WriteError::Inode(nr))?;
        self.put_inode(nr, &mut bytes)?;
        let lost = old.clusters.minus(&new.clusters);
        let gained = new.clusters.minus(&old.clusters);
        self.lost.extend_from_slice(lost.ranges());
        self.gained.extend_from_slice(gained.ranges());
        Ok(())
    }

    /// Writes the bytes of an inode into its table, with their checksum.
    fn put_inode(&self, nr: InodeNr, bytes: &mut [u8]) -> Result<(), WriteError> {
        inode::seal(bytes, nr, &self.before.sb).map_err(|_| WriteError::Inode(nr))?;
        let geometry = self.before.geometry();
        let place = geometry.inode_group(nr).and_then(|(group, index)| {
            let table = self.before.group(group)?.inode_table?;
            Some(geometry.inode_place(table, GroupOffset(index.0)))
        });
        let place = place.ok_or(WriteError::Inode(nr))?;
        let offset = geometry.block_size().offset(place.block) + place.offset_bytes as u64;
        Ok(self.copy.write_at(bytes, offset)?)
    }

    /// Releases the attribute block of an inode that is gone, and the inodes that hold values of
    /// its attributes.
    fn release_attributes(&mut self, nr: InodeNr, stored: &[u8]) -> Result<(), WriteError> {
        let Some(inode) = InodeView::new(stored, nr) else {
            return Ok(());
        };
        self.release_values(&Xattrs::in_inode(inode.xattr_area().unwrap_or(&[])))?;
        let block = inode.file_acl(&self.before.sb);
        if !self.before.physical().contains(&block) {
            return Ok(());
        }
        let mut bytes = vec![0; self.before.block_bytes()];
        self.after.read(block, &mut bytes)?;
        if xattr::drop_user(&mut bytes) == 0 {
            if let Ok(xattrs) = Xattrs::in_block(&bytes) {
                self.release_values(&xattrs)?;
            }
            let cluster = self.before.cluster(block);
            self.lost.push(cluster..cluster + 1);
            return Ok(());
        }
        if let Some(seed) = self.before.seed() {
            let sealed = xattr::seal_block(&mut bytes, block, seed);
            sealed.map_err(|_| WriteError::Inode(nr))?;
        }
        let offset = self.before.geometry().block_size().offset(block);
        Ok(self.copy.write_at(&bytes, offset)?)
    }

    /// Counts one user less of each inode that holds a value; one without users is an orphan.
    fn release_values(&mut self, xattrs: &Xattrs<'_>) -> Result<(), WriteError> {
        for entry in xattrs.entries().map_while(Result::ok) {
            let Value::Inode { inode: value, .. } = entry.value else {
                continue;
            };
            let mut bytes = Vec::new();
            if self.after.read_inode(value, &mut bytes).is_none() {
                continue;
            }
            if let Ok((raw, _)) = RawInode::mut_from_prefix(&mut bytes) {
                let mut fields = EaInode::of(raw);
                fields.refs = fields.refs.saturating_sub(1);
                fields.put(raw);
                if fields.refs == 0 {
                    raw.i_links_count = 0.into();
                    self.orphans.insert(value);
                }
            }
            self.put_inode(value, &mut bytes)?;
        }
        Ok(())
    }

    /// The clusters that come into use; each must have been free, or be freed.
    fn wanted(&self) -> Clusters {
        let gained = Clusters::from_ranges(self.gained.clone());
        gained.minus(&Clusters::from_ranges(self.lost.clone()))
    }

    /// Cuts the maps of orphans that hold wanted clusters: of an orphan without links all, of
    /// another one what lies behind its size.
    fn cut_orphans(&mut self, orphans: HashSet<InodeNr>) -> Result<(), WriteError> {
        let wanted = self.wanted();
        if wanted.ranges().is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        for nr in orphans {
            if self.after.read_inode(nr, &mut bytes).is_none() {
                continue;
            }
            let held = held(&self.after, nr, &bytes, &mut self.limits);
            if !held.clusters.meets(&wanted) {
                continue;
            }
            let Some(inode) = InodeView::new(&bytes, nr) else {
                continue;
            };
            let (mut cut, mut edits) = (bytes.clone(), MapEdits::default());
            if inode.links() > 0 {
                let size = self.before.geometry().block_size();
                let end = inode.size_bytes().div_ceil(size.bytes() as u64);
                let end = u32::try_from(end).unwrap_or(u32::MAX);
                edits.set(LogicalBlock(end), u32::MAX - end, Target::Hole);
            } else if let Ok((raw, _)) = RawInode::mut_from_prefix(&mut cut) {
                raw.i_block = [0; 60];
                if inode.has(InodeFlags::EXTENTS_FL) {
                    extent::init_root(&mut raw.i_block);
                }
                if inode.file_type() != Some(FileType::Symlink) {
                    (raw.i_size_lo, raw.i_size_high) = (0.into(), 0.into());
                }
            }
            let stored = bytes.clone();
            self.put(nr, Some(&stored), Base::Table, cut, edits)?;
        }
        Ok(())
    }

    /// Brings bitmaps and descriptors in step with what was lost and gained.
    fn write_bitmaps(&mut self) -> Result<(), WriteError> {
        let wanted = self.wanted();
        let gained = Clusters::from_ranges(std::mem::take(&mut self.gained));
        let lost = Clusters::from_ranges(std::mem::take(&mut self.lost)).minus(&gained);
        let per_group = u64::from(self.before.geometry().clusters_per_group());
        let mut edits: BTreeMap<GroupNr, BitmapEdit> = BTreeMap::new();
        for (set, is_used) in [(&lost, false), (&wanted, true)] {
            for range in set.ranges() {
                let mut at = range.start;
                while at < range.end {
                    let group = at / per_group;
                    let end = range.end.min((group + 1) * per_group);
                    let group = GroupNr(u32::try_from(group).unwrap_or(u32::MAX));
                    let first = at % per_group;
                    let bits = first..first + (end - at);
                    edits.entry(group).or_default().add(bits, is_used);
                    at = end;
                }
            }
        }
        for (group, edit) in &edits {
            let taken = edit_bitmap(&mut self.after, &*self.copy, *group, Bitmap::Blocks, edit)?;
            if let Some(bit) = taken {
                let cluster = u64::from(group.0) * per_group + bit;
                let block = self.before.cluster_start(cluster);
                return Err(JournalError::FastCommitInUse { block }.into());
            }
        }
        let mut edits: BTreeMap<GroupNr, BitmapEdit> = BTreeMap::new();
        for nr in &self.new_inodes {
            if let Some((group, index)) = self.before.geometry().inode_group(*nr) {
                let bit = u64::from(index.0);
                edits.entry(group).or_default().add(bit..bit + 1, true);
            }
        }
        for (group, change) in self.new_dirs.drain().filter(|(_, change)| *change != 0) {
            edits.entry(group).or_default().new_dirs = change;
        }
        for (group, edit) in &edits {
            edit_bitmap(&mut self.after, &*self.copy, *group, Bitmap::Inodes, edit)?;
        }
        Ok(())
    }
}

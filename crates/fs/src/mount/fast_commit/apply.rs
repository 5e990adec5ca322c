//! **Purpose.** Applies the records of fast commits, one after the other, and builds the overlay.
//!
//! **Not here.** The meaning of each record and the differences from the kernel's replay
//! (`crate::mount::fast_commit`).

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use fourscore_journal::FastCommits;
use fourscore_ondisk::fast_commit::{AddRange, DelRange, Dentry, RangeState, Record};
use fourscore_ondisk::inode::{FileMode, FileType, InodeFlags, RawInode};
use fourscore_ondisk::jbd2::JournalError;
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{BlockCount, Corrupt, Inode, InodeNr};
use zerocopy::FromBytes;

use crate::Result;
use crate::dir::touch::links_after;
use crate::map::mapping::Target;
use crate::mount::fast_commit::patch::Base;
use crate::mount::fast_commit::ranges::RangeSet;
use crate::mount::fast_commit::{
    Before, DirChanges, FastCommitOverlay, InodeChange, InodePatch, NewName,
};

/// The state of an inode that some record is about.
#[derive(Debug)]
struct Known {
    /// Its type; `None` while the inode is not in use.
    file_type: Option<FileType>,
    links: u16,
    flags: InodeFlags,
    base: Base,
    record: Option<Box<[u8]>>,
    ranges: RangeSet,
    changed: bool,
    /// `i_generation` of an inode without a name that is on the orphan list: a link can bring it
    /// back.
    orphan_generation: Option<u32>,
}

impl Known {
    fn not_in_use() -> Self {
        Self {
            file_type: None,
            links: 0,
            flags: InodeFlags::empty(),
            base: Base::Zeroes,
            record: None,
            ranges: RangeSet::default(),
            changed: false,
            orphan_generation: None,
        }
    }

    fn on_disk(inode: &Inode) -> Self {
        let file_type = inode.file_type().filter(|_| inode.links_count() > 0);
        if file_type.is_none() {
            return Self::not_in_use();
        }
        Self {
            file_type,
            links: inode.links_count(),
            flags: inode.flags(),
            base: Base::Table,
            ..Self::not_in_use()
        }
    }

    /// Deletes the inode, which has lost its last name: its earlier state is void.
    fn delete(&mut self) {
        *self = Self {
            changed: true,
            ..Self::not_in_use()
        };
    }

    /// Whether the inode is in use, and its blocks are in an extent tree.
    fn has_extents(&self) -> bool {
        self.file_type.is_some() && self.flags.contains(InodeFlags::EXTENTS_FL)
    }

    /// Whether names can be added and removed.
    fn is_open_directory(&self) -> bool {
        self.file_type == Some(FileType::Directory) && !self.flags.contains(InodeFlags::ENCRYPT_FL)
    }

    fn set_links(&mut self, links: u16) {
        self.links = links;
        self.changed = true;
    }
}

struct Apply<'a, 'r, B> {
    before: &'a B,
    superblock: &'a Superblock,
    inodes: HashMap<InodeNr, Known>,
    dirs: HashMap<InodeNr, DirChanges>,
    /// The inodes on the orphan list before the first record.
    orphans: HashSet<InodeNr>,
    /// Records of the current commit about inodes that are not in use yet. A commit may have
    /// records of the name and the ranges of a file before the record of its inode, if the file was
    /// made without a name.
    early: HashMap<InodeNr, Vec<Record<'r>>>,
}

/// Applies the records of `commits` to the state `before`; `None` if there are none.
///
/// # Errors
/// A record maps blocks outside the file system or adds an invalid name; or the state before cannot
/// be read.
pub(crate) fn build(
    commits: &FastCommits,
    before: &impl Before,
    superblock: &Superblock,
) -> Result<Option<FastCommitOverlay>> {
    if commits.is_empty() {
        return Ok(None);
    }
    apply(commits.records(), before, superblock).map(Some)
}

/// Returns the overlay of the changes that `records` make to the state `before`.
pub(crate) fn apply<'r, B: Before>(
    records: impl Iterator<Item = Record<'r>>,
    before: &B,
    superblock: &Superblock,
) -> Result<FastCommitOverlay> {
    let mut apply = Apply {
        before,
        superblock,
        inodes: HashMap::new(),
        dirs: HashMap::new(),
        orphans: before.orphans()?.into_iter().collect(),
        early: HashMap::new(),
    };
    for record in records {
        if apply.comes_early(record)? {
            continue;
        }
        match record {
            Record::AddRange(range) => apply.add_range(&range)?,
            Record::DelRange(range) => apply.delete_range(&range)?,
            Record::Creat(dentry) => apply.creat(&dentry)?,
            Record::Link(dentry) => apply.link(&dentry)?,
            Record::Unlink(dentry) => apply.unlink(&dentry)?,
            Record::Inode { inode, raw } => apply.inode(inode, raw)?,
            Record::Tail { .. } => apply.early.clear(),
            Record::Pad | Record::Head { .. } => {}
        }
    }
    Ok(apply.finish())
}

impl<'r, B: Before> Apply<'_, 'r, B> {
    /// Returns the state of `nr`, which is initially that on disk. Numbers that no name may refer
    /// to are never in use here: a record about the journal's own inode, for example, is ignored.
    fn known(&mut self, nr: InodeNr) -> Result<&mut Known> {
        match self.inodes.entry(nr) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(vacant) => {
                let inode = match self.superblock.may_be_named(nr) {
                    true => self.before.inode(nr)?,
                    false => None,
                };
                let mut known = inode
                    .as_ref()
                    .map_or_else(Known::not_in_use, Known::on_disk);
                if known.file_type.is_none() && self.orphans.contains(&nr) {
                    known.orphan_generation = inode.map(|inode| inode.generation().0);
                }
                Ok(vacant.insert(known))
            }
        }
    }

    fn inode(&mut self, nr: InodeNr, raw: &[u8]) -> Result<()> {
        if !self.superblock.may_be_named(nr) {
            return Ok(());
        }
        let Ok((fields, _)) = RawInode::ref_from_prefix(raw) else {
            return Ok(());
        };
        let early = self.early.remove(&nr).unwrap_or_default();
        let known = self.known(nr)?;
        let file_type = FileType::from_mode(FileMode(fields.i_mode.get()));
        if file_type.is_none() || fields.i_links_count.get() == 0 {
            known.delete();
            return Ok(());
        }
        let flags = InodeFlags::from_bits_retain(fields.i_flags.get());
        if known.orphan_generation.take() == Some(fields.i_generation.get()) {
            // The file without a name on the orphan list got a name: its map is in the table.
            known.base = Base::Table;
        }
        known.file_type = file_type;
        known.flags = flags;
        known.record = Some(raw.into());
        known.set_links(fields.i_links_count.get());
        for record in early {
            match record {
                Record::AddRange(range) => self.add_range(&range)?,
                Record::DelRange(range) => self.delete_range(&range)?,
                // The link count of the INODE record includes this name.
                Record::Link(dentry) => {
                    if let Some(file_type) = self.types(&dentry)? {
                        self.add_name(&dentry, file_type)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Keeps a record that must wait for its inode. Returns whether the record was kept.
    fn comes_early(&mut self, record: Record<'r>) -> Result<bool> {
        let inode = match record {
            Record::AddRange(range) => range.inode,
            Record::DelRange(range) => range.inode,
            Record::Link(dentry) => dentry.inode,
            _ => return Ok(false),
        };
        let is_early = self.known(inode)?.file_type.is_none();
        if is_early {
            self.early.entry(inode).or_default().push(record);
        }
        Ok(is_early)
    }

    fn delete_range(&mut self, range: &DelRange) -> Result<()> {
        let known = self.known(range.inode)?;
        if known.has_extents() {
            known.ranges.set(range.logical, range.blocks, Target::Hole);
        }
        Ok(())
    }

    fn add_range(&mut self, range: &AddRange) -> Result<()> {
        let AddRange {
            inode,
            logical,
            physical,
            blocks,
            state,
        } = *range;
        let inside = self
            .superblock
            .geometry()
            .contains(physical, BlockCount(blocks.into()));
        let known = self.known(inode)?;
        if !known.has_extents() || blocks == 0 {
            return Ok(());
        }
        if !inside {
            let error = JournalError::FastCommitRange {
                block: physical,
                blocks,
            };
            return Err(Corrupt::from(error).in_inode(inode).into());
        }
        let target = match state {
            RangeState::Written => Target::Written(physical),
            RangeState::Unwritten => Target::Unwritten(physical),
        };
        known.ranges.set(logical, blocks, target);
        Ok(())
    }

    /// Returns the type of the inode that a name is to refer to, if both it and the directory are
    /// in use.
    fn types(&mut self, dentry: &Dentry<'_>) -> Result<Option<FileType>> {
        let file_type = self.known(dentry.inode)?.file_type;
        let parent = self.known(dentry.parent)?;
        Ok(file_type.filter(|_| parent.is_open_directory()))
    }

    /// Returns the inode that the name refers to now.
    fn find(&self, dentry: &Dentry<'_>, key: &[u8]) -> Result<Option<InodeNr>> {
        match self
            .dirs
            .get(&dentry.parent)
            .and_then(|changes| changes.get(key))
        {
            Some(now) => Ok(now),
            None => self.before.find(dentry.parent, dentry.name),
        }
    }

    /// Adds the name unless it exists. Returns whether it was added.
    fn add_name(&mut self, dentry: &Dentry<'_>, file_type: FileType) -> Result<Added> {
        let Dentry {
            parent,
            inode,
            name,
        } = *dentry;
        if name.iter().any(|&byte| byte == b'/' || byte == 0) || name == b"." || name == b".." {
            let name = String::from_utf8_lossy(name).into_owned();
            return Err(Corrupt::from(JournalError::FastCommitName { name })
                .in_inode(parent)
                .into());
        }
        let key = self.before.key(parent, name)?;
        if self.find(dentry, &key)?.is_some() {
            return Ok(Added::No);
        }
        let new = NewName {
            name: name.into(),
            inode,
            file_type,
        };
        self.dirs
            .entry(parent)
            .or_default()
            .names
            .insert(key, Some(new));
        Ok(Added::Yes)
    }

    fn creat(&mut self, dentry: &Dentry<'_>) -> Result<()> {
        let Some(file_type) = self.types(dentry)? else {
            return Ok(());
        };
        let added = self.add_name(dentry, file_type)?;
        if file_type != FileType::Directory {
            self.known(dentry.inode)?.set_links(1);
            return Ok(());
        }
        if added == Added::Yes {
            self.count_subdirectory(dentry.parent, 1)?;
            let made_in = Some(dentry.parent);
            self.dirs.insert(
                dentry.inode,
                DirChanges {
                    made_in,
                    ..DirChanges::default()
                },
            );
            // The links are its own name and `.`; its contents follow in later records.
            self.known(dentry.inode)?.set_links(2);
        }
        Ok(())
    }

    fn link(&mut self, dentry: &Dentry<'_>) -> Result<()> {
        let Some(file_type) = self.types(dentry)? else {
            return Ok(());
        };
        if self.add_name(dentry, file_type)? == Added::Yes {
            let known = self.known(dentry.inode)?;
            known.set_links(known.links.saturating_add(1));
        }
        Ok(())
    }

    fn unlink(&mut self, dentry: &Dentry<'_>) -> Result<()> {
        let Some(file_type) = self.types(dentry)? else {
            if let Some(early) = self.early.get_mut(&dentry.inode) {
                early.retain(|early| *early != Record::Link(*dentry));
            }
            return Ok(());
        };
        let key = self.before.key(dentry.parent, dentry.name)?;
        let Some(found) = self.find(dentry, &key)? else {
            return Ok(());
        };
        if found == dentry.inode {
            self.dirs
                .entry(dentry.parent)
                .or_default()
                .names
                .insert(key, None);
            if file_type == FileType::Directory {
                self.count_subdirectory(dentry.parent, -1)?;
            }
        }
        let known = self.known(dentry.inode)?;
        let links = known.links.saturating_sub(1);
        // A directory has one name, and is removed only when it is empty.
        if links == 0 || (file_type == FileType::Directory && found == dentry.inode) {
            known.delete();
            self.dirs.remove(&dentry.inode);
        } else {
            known.set_links(links);
        }
        Ok(())
    }

    /// Counts the `..` of a subdirectory that was added or removed.
    fn count_subdirectory(&mut self, dir: InodeNr, change: i32) -> Result<()> {
        let superblock = self.superblock;
        let known = self.known(dir)?;
        if known.links > 1 {
            known.set_links(links_after(superblock, known.links, change));
        }
        Ok(())
    }

    fn finish(self) -> FastCommitOverlay {
        let mut overlay = FastCommitOverlay {
            dirs: self.dirs,
            ..FastCommitOverlay::default()
        };
        for (nr, known) in self.inodes {
            let Known {
                file_type,
                links,
                base,
                record,
                ranges,
                changed,
                ..
            } = known;
            if file_type.is_some()
                && let Some(ranges) = ranges.finish()
            {
                overlay.ranges.insert(nr, ranges);
            }
            if changed {
                let change = match file_type {
                    Some(_) => InodeChange::Patched(InodePatch {
                        base,
                        record,
                        links,
                    }),
                    None => InodeChange::Deleted,
                };
                overlay.inodes.insert(nr, change);
            }
        }
        overlay
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Added {
    Yes,
    No,
}

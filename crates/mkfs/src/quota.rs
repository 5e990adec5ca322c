//! **Purpose.** Quota files, laid out whole: what every user, group and project uses.
//!
//! **Model.** A file of blocks of 1 KiB, whatever the block size of the file system: a header, a
//! tree of four levels whose slots are chosen by the bytes of the identifier, highest first, and
//! at its leaves blocks of entries. How many blocks there are follows from the identifiers alone,
//! so a file has its place before it is known what they use.
//!
//! ```text
//! 0: header | 1: root of the tree | as identifiers need them: lower levels, blocks of entries
//! ```
//!
//! **Invariants.** Blocks of entries are full, but for the last; if that has room, the header leads
//! to it as the first of those that do.
//!
//! **References.** Documentation/filesystems/quota.rst of the kernel; version 1 of format 2.

use std::collections::BTreeMap;

use fourscore_ondisk::inode::InodeFlags;

use crate::error::{FormatError, FormatResult};
use crate::files::{DIRECT_BLOCKS, File, put};
use crate::plan::Planner;

const QUOTA_BLOCK_BYTES: usize = 1024;
const ENTRY_BYTES: usize = 72;
const ENTRIES_HEAD_BYTES: usize = 16;
const ENTRIES_PER_BLOCK: usize = (QUOTA_BLOCK_BYTES - ENTRIES_HEAD_BYTES) / ENTRY_BYTES;
/// Header and root of the tree.
const FIRST_BLOCKS: usize = 2;
/// Seconds that soft limits may be passed: a week.
const GRACE_SECONDS: u32 = 604_800;
const USER_INO: u32 = 3;
const GROUP_INO: u32 = 4;

/// Whom an object counts for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaIds {
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// The project; 0 where inodes have none.
    pub project: u32,
}

/// What objects use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaCounts {
    /// Inodes.
    pub inodes: u64,
    /// Space in bytes.
    pub bytes: u64,
}

/// What every user, group and project uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaUsage {
    users: BTreeMap<u32, QuotaCounts>,
    groups: BTreeMap<u32, QuotaCounts>,
    projects: BTreeMap<u32, QuotaCounts>,
}

impl QuotaUsage {
    /// Counts an object.
    pub fn add(&mut self, ids: QuotaIds, counts: QuotaCounts) {
        for (id, usage) in [
            (ids.user, &mut self.users),
            (ids.group, &mut self.groups),
            (ids.project, &mut self.projects),
        ] {
            let entry = usage.entry(id).or_default();
            entry.inodes += counts.inodes;
            entry.bytes += counts.bytes;
        }
    }

    fn of(&self, kind: QuotaKind) -> &BTreeMap<u32, QuotaCounts> {
        match kind {
            QuotaKind::User => &self.users,
            QuotaKind::Group => &self.groups,
            QuotaKind::Project => &self.projects,
        }
    }
}

/// What a quota file is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuotaKind {
    User,
    Group,
    Project,
}

impl QuotaKind {
    fn magic(self) -> u32 {
        match self {
            Self::User => 0xd9c0_1f11,
            Self::Group => 0xd9c0_1927,
            Self::Project => 0xd9c0_3f14,
        }
    }
}

/// A quota file that has its blocks.
#[derive(Debug)]
pub(crate) struct QuotaFile {
    kind: QuotaKind,
    blocks: Vec<u64>,
}

impl Planner {
    /// Places the files of the wanted types for the identifiers in `usage`. The project's has no
    /// reserved inode.
    pub(crate) fn make_quota_files(&mut self, usage: &QuotaUsage) -> FormatResult<()> {
        let types = self.p.quota_types;
        if types.user {
            self.make_quota_file(USER_INO, QuotaKind::User, usage)?;
            self.raw.s_usr_quota_inum = USER_INO.into();
        }
        if types.group {
            self.make_quota_file(GROUP_INO, QuotaKind::Group, usage)?;
            self.raw.s_grp_quota_inum = GROUP_INO.into();
        }
        if types.project {
            let number = self.new_inode()?;
            self.make_quota_file(number, QuotaKind::Project, usage)?;
            self.raw.s_prj_quota_inum = number.into();
        }
        Ok(())
    }

    /// What root and lost+found of an empty file system use.
    pub(crate) fn root_usage(&self) -> QuotaUsage {
        let owner = self.p.options.root_owner.unwrap_or_default();
        let root = QuotaIds {
            user: owner.uid,
            group: owner.gid,
            project: 0,
        };
        let mut usage = QuotaUsage::default();
        for (ids, number) in [(root, 2), (QuotaIds::default(), 11)] {
            let bytes = self.space_of(number);
            usage.add(ids, QuotaCounts { inodes: 1, bytes });
        }
        usage
    }

    /// The space an inode takes, in bytes.
    fn space_of(&self, number: u32) -> u64 {
        let sectors = self
            .inodes
            .get(&number)
            .and_then(|bytes| bytes.get(0x1c..0x20));
        let sectors = sectors.and_then(|bytes| bytes.try_into().ok());
        u64::from(sectors.map_or(0, u32::from_le_bytes)) * 512
    }

    fn make_quota_file(
        &mut self,
        number: u32,
        kind: QuotaKind,
        usage: &QuotaUsage,
    ) -> FormatResult<()> {
        let quota_blocks = count_blocks(usage.of(kind).keys().copied());
        let block_bytes = self.block_bytes();
        let len_bytes = quota_blocks * QUOTA_BLOCK_BYTES;
        // mke2fs knows two identifiers at most.
        let mapped = if quota_blocks <= DIRECT_BLOCKS {
            // The order in which libext2fs writes: the header, the tree from below, its root.
            let order = std::iter::once(0)
                .chain(FIRST_BLOCKS..quota_blocks)
                .chain([1]);
            let writes: Vec<u64> = order
                .map(|block| (block * QUOTA_BLOCK_BYTES / block_bytes) as u64)
                .collect();
            self.map_writes(number, &writes)?
        } else {
            self.map_sequence(number, len_bytes.div_ceil(block_bytes) as u64)?
        };
        let blocks = mapped.blocks.clone();
        self.quota_files.push(QuotaFile { kind, blocks });
        let file = self.hidden_file(len_bytes as u64, mapped);
        let file = File {
            flags: file.flags | InodeFlags::IMMUTABLE_FL,
            ..file
        };
        self.put_file(number, &file)
    }

    /// Fills the files that were made with what is used: by the identifiers they were made for.
    pub(crate) fn fill_quota_files(&mut self, usage: &QuotaUsage) -> FormatResult<()> {
        let block_bytes = self.block_bytes();
        for QuotaFile { kind, blocks } in std::mem::take(&mut self.quota_files) {
            let content = content(kind.magic(), usage.of(kind));
            if content.len().div_ceil(block_bytes) != blocks.len() {
                let why = "quota files of other identifiers than were announced";
                return Err(FormatError::Invalid(why.to_owned()));
            }
            for (bytes, &block) in content.chunks(block_bytes).zip(&blocks) {
                let mut whole = vec![0; block_bytes];
                put(&mut whole, 0, bytes);
                self.blocks.insert(block, whole);
            }
        }
        Ok(())
    }
}

/// The blocks of 1 KiB of a file with entries for these identifiers, in rising order.
fn count_blocks(ids: impl Iterator<Item = u32>) -> usize {
    let (mut tree, mut entries) = (0, 0);
    let mut before: Option<u32> = None;
    for id in ids {
        // Blocks on the way to the entry that the way to the one before does not have.
        let shared = before.map_or(0, |before| (before ^ id).leading_zeros() / 8);
        tree += 3 - shared.min(3) as usize;
        entries += 1_usize;
        before = Some(id);
    }
    FIRST_BLOCKS + tree + entries.div_ceil(ENTRIES_PER_BLOCK)
}

/// The bytes of a quota file.
fn content(magic: u32, usage: &BTreeMap<u32, QuotaCounts>) -> Vec<u8> {
    let mut file = vec![0; FIRST_BLOCKS * QUOTA_BLOCK_BYTES];
    let mut entries_block = 0;
    for (index, (&id, counts)) in usage.iter().enumerate() {
        let [a, b, c, leaf] = id.to_be_bytes();
        let bottom = [a, b, c]
            .into_iter()
            .fold(1, |block, slot| child(&mut file, block, slot));
        let entry = index % ENTRIES_PER_BLOCK;
        if entry == 0 {
            entries_block = child(&mut file, bottom, leaf);
        }
        let slot = bottom * QUOTA_BLOCK_BYTES + usize::from(leaf) * 4;
        put(&mut file, slot, &number(entries_block).to_le_bytes());
        let at = entries_block * QUOTA_BLOCK_BYTES;
        put(&mut file, at + 8, &(entry as u64 + 1).to_le_bytes()[..2]);
        let at = at + ENTRIES_HEAD_BYTES + entry * ENTRY_BYTES;
        put(&mut file, at, &id.to_le_bytes());
        put(&mut file, at + 24, &counts.inodes.to_le_bytes());
        put(&mut file, at + 48, &counts.bytes.to_le_bytes());
    }
    let blocks = file.len() / QUOTA_BLOCK_BYTES;
    let with_room = match usage.len() % ENTRIES_PER_BLOCK {
        0 => 0,
        _ => entries_block,
    };
    let words = [
        magic,
        1,
        GRACE_SECONDS,
        GRACE_SECONDS,
        0,
        number(blocks),
        0,
        number(with_room),
    ];
    for (index, word) in words.into_iter().enumerate() {
        put(&mut file, index * 4, &word.to_le_bytes());
    }
    file
}

/// The block that `slot` of the tree block `parent` points to; a new one where there is none.
fn child(file: &mut Vec<u8>, parent: usize, slot: u8) -> usize {
    let at = parent * QUOTA_BLOCK_BYTES + usize::from(slot) * 4;
    let found = file.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    match found.map_or(0, u32::from_le_bytes) {
        0 => {
            let new = file.len() / QUOTA_BLOCK_BYTES;
            file.resize(file.len() + QUOTA_BLOCK_BYTES, 0);
            put(file, at, &number(new).to_le_bytes());
            new
        }
        found => found as usize,
    }
}

/// A block number: of a file that is in memory.
fn number(block: usize) -> u32 {
    u32::try_from(block).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a reader of the file finds for an identifier, by its way through the tree.
    fn look_up(file: &[u8], id: u32) -> Option<QuotaCounts> {
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let mut block = 1;
        for slot in id.to_be_bytes() {
            block = word(block * QUOTA_BLOCK_BYTES + usize::from(slot) * 4) as usize;
            if block == 0 {
                return None;
            }
        }
        let head = block * QUOTA_BLOCK_BYTES;
        let count = u16::from_le_bytes(file[head + 8..head + 10].try_into().unwrap());
        let entries = file[head + ENTRIES_HEAD_BYTES..].chunks(ENTRY_BYTES);
        let long =
            |entry: &[u8], at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
        let mut entries = entries.take(count.into());
        let entry = entries.find(|entry| entry[..4] == id.to_le_bytes())?;
        Some(QuotaCounts {
            inodes: long(entry, 24),
            bytes: long(entry, 48),
        })
    }

    proptest! {
        #[test]
        fn every_identifier_is_found_and_blocks_were_counted(
            ids in proptest::collection::btree_set(
                prop_oneof![0..3000u32, any::<u32>(), 0xffff_fff0..=u32::MAX], 0..200),
        ) {
            let usage: BTreeMap<u32, QuotaCounts> = ids
                .iter()
                .map(|&id| (id, QuotaCounts { inodes: 1 + u64::from(id), bytes: !u64::from(id) }))
                .collect();
            let file = content(7, &usage);
            prop_assert_eq!(file.len(), count_blocks(ids.iter().copied()) * QUOTA_BLOCK_BYTES);
            for id in 0..3010 {
                prop_assert_eq!(look_up(&file, id), usage.get(&id).copied());
            }
            for (&id, counts) in &usage {
                prop_assert_eq!(look_up(&file, id), Some(*counts));
            }
            let with_room = u32::from_le_bytes(file[28..32].try_into().unwrap());
            prop_assert_eq!(with_room == 0, usage.len().is_multiple_of(ENTRIES_PER_BLOCK));
        }
    }
}

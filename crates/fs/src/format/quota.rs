//! **Purpose.** The quota files of an empty file system: who owns root and lost+found.
//!
//! **Model.** A file of blocks of 1 KiB, whatever the block size of the file system: a header, a
//! tree of four levels whose slots are chosen by the bytes of the identifier, highest first, and
//! at its leaves blocks of entries.
//!
//! ```text
//! 0: header | 1: root of the tree | 2, 3, 4: lower levels | 5: entries
//! ```
//!
//! **References.** Documentation/filesystems/quota.rst of the kernel; version 1 of format 2.

use std::collections::BTreeMap;

use fourscore_ondisk::inode::InodeFlags;

use super::error::FormatResult;
use super::files::{File, put};
use super::plan::Planner;

const QUOTA_BLOCK_BYTES: usize = 1024;
const ENTRY_BYTES: usize = 72;
const ENTRIES_HEAD_BYTES: usize = 16;
/// Seconds that soft limits may be passed: a week.
const GRACE_SECONDS: u32 = 604_800;
const USER_INO: u32 = 3;
const GROUP_INO: u32 = 4;

/// What one identifier uses.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    inodes: u64,
    bytes: u64,
}

impl Planner {
    /// The files of the wanted types. The project's has no reserved inode.
    pub(super) fn make_quota_files(&mut self) -> FormatResult<()> {
        let types = self.p.quota_types;
        let owner = self.p.options.root_owner;
        let root = self.directory_usage(2);
        let lost_and_found = self.directory_usage(11);
        let usage_by = |root_id: u32| {
            let mut usage: BTreeMap<u32, Usage> = BTreeMap::new();
            for (id, bytes) in [(root_id, root), (0, lost_and_found)] {
                let entry = usage.entry(id).or_default();
                entry.inodes += 1;
                entry.bytes += bytes;
            }
            usage
        };
        if types.user {
            self.make_quota_file(USER_INO, 0xd9c0_1f11, &usage_by(owner.uid))?;
            self.raw.s_usr_quota_inum = USER_INO.into();
        }
        if types.group {
            self.make_quota_file(GROUP_INO, 0xd9c0_1927, &usage_by(owner.gid))?;
            self.raw.s_grp_quota_inum = GROUP_INO.into();
        }
        if types.project {
            let number = self.new_inode()?;
            self.make_quota_file(number, 0xd9c0_3f14, &usage_by(0))?;
            self.raw.s_prj_quota_inum = number.into();
        }
        Ok(())
    }

    /// The space a directory takes, in bytes.
    fn directory_usage(&self, number: u32) -> u64 {
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
        magic: u32,
        usage: &BTreeMap<u32, Usage>,
    ) -> FormatResult<()> {
        let content = content(magic, usage);
        let block_bytes = self.block_bytes();
        // The order in which libext2fs writes: the header, the tree from below, its root.
        let last = content.len() / QUOTA_BLOCK_BYTES;
        let order = std::iter::once(0).chain(2..last).chain([1]);
        let writes: Vec<u64> = order
            .map(|block| (block * QUOTA_BLOCK_BYTES / block_bytes) as u64)
            .collect();
        let mapped = self.map_writes(number, &writes)?;
        for (bytes, &block) in content.chunks(block_bytes).zip(&mapped.blocks) {
            let mut whole = vec![0; block_bytes];
            put(&mut whole, 0, bytes);
            self.blocks.insert(block, whole);
        }
        let file = self.hidden_file(content.len() as u64, mapped);
        let file = File {
            flags: file.flags | InodeFlags::IMMUTABLE_FL,
            ..file
        };
        self.put_file(number, &file)
    }
}

/// The bytes of a quota file.
fn content(magic: u32, usage: &BTreeMap<u32, Usage>) -> Vec<u8> {
    let mut file = vec![0; 2 * QUOTA_BLOCK_BYTES];
    let mut entries_block = 0;
    for (index, (&id, usage)) in usage.iter().enumerate() {
        let [a, b, c, leaf] = id.to_be_bytes();
        let bottom = [a, b, c]
            .into_iter()
            .fold(1, |block, slot| child(&mut file, block, slot));
        if entries_block == 0 {
            entries_block = child(&mut file, bottom, leaf);
        }
        let slot = bottom * QUOTA_BLOCK_BYTES + usize::from(leaf) * 4;
        put(&mut file, slot, &number(entries_block).to_le_bytes());
        let at = entries_block * QUOTA_BLOCK_BYTES;
        put(&mut file, at + 8, &(index as u64 + 1).to_le_bytes()[..2]);
        let at = at + ENTRIES_HEAD_BYTES + index * ENTRY_BYTES;
        put(&mut file, at, &id.to_le_bytes());
        put(&mut file, at + 24, &usage.inodes.to_le_bytes());
        put(&mut file, at + 48, &usage.bytes.to_le_bytes());
    }
    let blocks = file.len() / QUOTA_BLOCK_BYTES;
    let words = [
        magic,
        1,
        GRACE_SECONDS,
        GRACE_SECONDS,
        0,
        number(blocks),
        0,
        number(entries_block),
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

/// A block number of a file of a few blocks.
fn number(block: usize) -> u32 {
    u32::try_from(block).unwrap_or(u32::MAX)
}

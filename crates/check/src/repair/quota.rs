//! **Purpose.** Patches of quota files: a file is written again with what pass 1 counted.
//!
//! **Model.** Limits and times of grace of the old file are kept as far as its tree can be
//! followed.

use std::collections::BTreeMap;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::extent;
use fourscore_ondisk::extent::ExtentState;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inode::{FileMode, FileType, InodeFlags};
use fourscore_ondisk::quota::{self, QuotaKind};

use super::editor::{Editor, Left, Patch};

const BLOCK_BYTES: usize = 1024;
const ENTRIES_AT: usize = 16;
const ENTRY_BYTES: usize = 72;
/// Hard and soft limit of inodes, hard and soft limit of space, the two times of grace: their
/// places in an entry.
const LIMITS: [usize; 6] = [8, 16, 32, 40, 56, 64];
/// The places of `dqi_bgrace` and `dqi_igrace` in the header.
const GRACE: std::ops::Range<usize> = 8..16;
const LEVELS: u32 = 4;

impl Editor<'_> {
    /// Writes a quota file again.
    pub(super) fn mend_quota(&self, nr: InodeNr) -> Patch {
        let inodes = self.volume.sb.quota_inodes();
        let kind = QuotaKind::ALL.into_iter().find(|kind| {
            let own = match kind {
                QuotaKind::User => inodes.user,
                QuotaKind::Group => inodes.group,
                QuotaKind::Project => inodes.project,
            };
            own == Some(nr)
        });
        let kind = kind.ok_or_else(|| Left::because("no kind of quota has this inode"))?;
        let old = self.content(nr).unwrap_or_default();
        let old_places = places(&old);
        let mut usage = self.found.usage.of(kind).clone();
        for (&id, &at) in &old_places {
            if LIMITS.iter().any(|limit| has_bits(&old, at + limit)) {
                usage.entry(id).or_default();
            }
        }
        let mut new = quota::write(kind, &usage);
        for (id, at) in places(&new) {
            let Some(from) = old_places.get(&id) else {
                continue;
            };
            for limit in LIMITS {
                copy(&old, from + limit..from + limit + 8, &mut new, at + limit);
            }
        }
        if !old_places.is_empty() {
            copy(&old, GRACE, &mut new, GRACE.start);
        }
        self.write_file(nr, &new)
    }

    /// The content of a file, as far as its map can be followed.
    fn content(&self, nr: InodeNr) -> Patch<Vec<u8>> {
        let mut content = Vec::new();
        for block in self.blocks_of(nr)? {
            let at = usize::try_from(block.logical).unwrap_or(usize::MAX);
            let at = at.saturating_mul(block.bytes.len());
            if at > 1 << 28 {
                break;
            }
            content.resize(at, 0);
            content.extend_from_slice(&block.bytes);
        }
        Ok(content)
    }

    /// Makes an inode a regular file with this content, in new blocks.
    fn write_file(&self, nr: InodeNr, content: &[u8]) -> Patch {
        let volume = self.volume;
        let block_bytes = volume.block_bytes();
        let log = volume.geometry().blocks_per_cluster_log();
        let mask = (1_u64 << log) - 1;
        let mut extents = Vec::new();
        let mut next = 0;
        for (logical, part) in (0_u64..).zip(content.chunks(block_bytes)) {
            if logical & mask == 0 {
                next = self.take_cluster()?.0;
            }
            let mut block = vec![0; block_bytes];
            copy(part, 0..part.len(), &mut block, 0);
            self.write_block(fourscore_ondisk::PhysBlock(next), &block)?;
            super::map::push_block(&mut extents, logical, next, ExtentState::Written);
            next += 1;
        }
        let has_extents = volume.incompat(Incompat::EXTENTS);
        self.edit_base(nr, |base| {
            base.i_mode = FileMode::new(FileType::Regular, 0o600).0.into();
            base.i_links_count = 1.into();
            base.i_dtime = 0.into();
            base.i_block = [0; 60];
            if has_extents {
                base.i_flags = (base.i_flags.get() | InodeFlags::EXTENTS_FL.bits()).into();
                extent::init_root(&mut base.i_block);
            }
        })?;
        self.write_map(nr, &extents)?;
        self.set_size(nr, content.len() as u64)
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

fn has_bits(bytes: &[u8], at: usize) -> bool {
    let field = bytes.get(at..at + 8).unwrap_or(&[]);
    field.iter().any(|&byte| byte != 0)
}

fn copy(from: &[u8], range: std::ops::Range<usize>, to: &mut [u8], at: usize) {
    let length = range.end - range.start;
    if let (Some(from), Some(to)) = (from.get(range), to.get_mut(at..at + length)) {
        to.copy_from_slice(from);
    }
}

/// The places of the entries of a quota file, by identifier.
fn places(file: &[u8]) -> BTreeMap<u32, usize> {
    let mut found = BTreeMap::new();
    let mut left = file.len() / BLOCK_BYTES * 4;
    descend(file, 1, 0, &mut left, &mut found);
    found
}

/// Follows a node of the tree; `left` bounds the walk of a tree that refers to itself.
fn descend(
    file: &[u8],
    block: u32,
    level: u32,
    left: &mut usize,
    found: &mut BTreeMap<u32, usize>,
) {
    let start = block as usize * BLOCK_BYTES;
    if *left == 0 || block == 0 || start + BLOCK_BYTES > file.len() {
        return;
    }
    *left -= 1;
    if level < LEVELS {
        for slot in 0..BLOCK_BYTES / 4 {
            descend(file, word(file, start + slot * 4), level + 1, left, found);
        }
        return;
    }
    let entries = (BLOCK_BYTES - ENTRIES_AT) / ENTRY_BYTES;
    for at in (0..entries).map(|nth| start + ENTRIES_AT + nth * ENTRY_BYTES) {
        let entry = file.get(at..at + ENTRY_BYTES).unwrap_or(&[]);
        if entry.iter().any(|&byte| byte != 0) {
            found.insert(word(file, at), at);
        }
    }
}

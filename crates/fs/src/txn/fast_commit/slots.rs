//! **Purpose.** Decides whether the change of an inode's slot can be expressed by an INODE record.
//!
//! **Model.** A record holds the first 128 bytes of an inode and the fields that `i_extra_isize`
//! covers. Replay copies them over the slot, except the map of the file, and counts the blocks of
//! the map again. Linux and e2fsck do no more, so nothing else of the slot may differ:
//!
//! ```text
//! 0           128                 128 + i_extra_isize
//! | fields    | further fields    | attributes: as before, or nothing if the inode is new |
//! ```
//!
//! **References.** Kernel `fs/ext4/fast_commit.c` (`ext4_fc_replay_inode`); e2fsprogs,
//! `e2fsck/journal.c` (`ext4_fc_handle_inode`), which refuses an `i_extra_isize` below 4.

use std::ops::Range;

use fourscore_ondisk::inode::{
    FileMode, FileType, GOOD_OLD_INODE_SIZE_BYTES, InodeFlags, RawInode, RawInodeExtra,
};
use zerocopy::FromBytes;

use crate::txn::fast_commit::note::Life;
use crate::txn::fast_commit::reason::Reason;

/// The least `i_extra_isize` that e2fsck accepts in a record.
const LEAST_EXTRA: usize = 4;

/// The field `eh_depth` of the root of an extent tree.
const DEPTH: Range<usize> = 6..8;

/// Flags of inodes whose data or names are not stored as records need them.
const UNUSUAL: InodeFlags = InodeFlags::INLINE_DATA_FL
    .union(InodeFlags::ENCRYPT_FL)
    .union(InodeFlags::VERITY_FL)
    .union(InodeFlags::EA_INODE_FL)
    .union(InodeFlags::CASEFOLD_FL);

/// How the change of a slot is expressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// By this many bytes from the start of the slot.
    Image { len: usize },
    /// It need not be: a directory whose times or number of subdirectories changed. Its names have
    /// records of their own.
    Unsaid,
    /// By no record.
    Tainted(Reason),
}

/// The fields of a slot.
struct Fields<'s> {
    raw: &'s RawInode,
    /// The end of the fields.
    end: usize,
    behind: &'s [u8],
}

impl<'s> Fields<'s> {
    fn of(slot: &'s [u8]) -> Option<Self> {
        let (raw, rest) = RawInode::ref_from_prefix(slot).ok()?;
        let extra = match RawInodeExtra::ref_from_prefix(rest) {
            Ok((extra, _)) => usize::from(extra.i_extra_isize.get()),
            Err(_) => 0,
        };
        let end = GOOD_OLD_INODE_SIZE_BYTES + extra;
        let behind = slot.get(end..)?;
        Some(Self { raw, end, behind })
    }

    fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(FileMode(self.raw.i_mode.get()))
    }

    fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.raw.i_flags.get())
    }

    fn has_xattr_block(&self) -> bool {
        self.raw.i_file_acl_lo.get() != 0 || self.raw.i_file_acl_high.get() != 0
    }

    /// Whether the extent tree has nodes outside of the inode.
    fn is_deep(&self) -> bool {
        let depth = self.raw.i_block.get(DEPTH).unwrap_or_default();
        depth.iter().any(|&byte| byte != 0)
    }

    fn size(&self) -> u64 {
        u64::from(self.raw.i_size_high.get()) << 32 | u64::from(self.raw.i_size_lo.get())
    }

    fn owner(&self) -> [u16; 4] {
        let raw = self.raw;
        [raw.i_uid, raw.i_uid_high, raw.i_gid, raw.i_gid_high].map(|word| word.get())
    }

    /// The fields of the directory that its names do not change.
    fn attributes_of_directory(&self) -> (u16, InodeFlags, [u16; 4], bool) {
        (
            self.raw.i_mode.get(),
            self.flags(),
            self.owner(),
            self.has_xattr_block(),
        )
    }
}

/// Decides how the change of a slot from `old` to `new` is expressed. `maps_blocks` says whether
/// the unit has ranges of this inode, `journals` whether its data goes through the journal.
pub(crate) fn verdict(
    old: &[u8],
    new: &[u8],
    life: Life,
    maps_blocks: bool,
    journals: bool,
) -> Verdict {
    let (Some(before), Some(after)) = (Fields::of(old), Fields::of(new)) else {
        return Verdict::Tainted(Reason::Fields);
    };
    let is_kept = match life {
        Life::New => {
            let is_clear = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
            // Replay leaves what lies there.
            is_clear(after.behind) && is_clear(old.get(after.end..).unwrap_or_default())
        }
        Life::Existing => before.end == after.end && before.behind == after.behind,
    };
    if after.file_type() == Some(FileType::Directory) {
        return directory(&before, &after, life, is_kept);
    }
    if after.has_xattr_block() || !is_kept {
        return Verdict::Tainted(Reason::Xattr);
    }
    match refused(&before, &after, life, maps_blocks, journals) {
        Some(why) => Verdict::Tainted(why),
        None => Verdict::Image { len: after.end },
    }
}

fn directory(before: &Fields<'_>, after: &Fields<'_>, life: Life, is_kept: bool) -> Verdict {
    let is_same = before.attributes_of_directory() == after.attributes_of_directory();
    if life == Life::New || !is_kept || !is_same || after.raw.i_links_count.get() == 0 {
        return Verdict::Tainted(Reason::Directory);
    }
    // Linux does not count the blocks of a directory that grows in replay, and e2fsck does not make
    // one longer that has no index.
    match before.size() != after.size() {
        true => Verdict::Tainted(Reason::NoSpace),
        false => Verdict::Unsaid,
    }
}

/// Returns why the change of a file is not expressed by a record, if it is not.
fn refused(
    before: &Fields<'_>,
    after: &Fields<'_>,
    life: Life,
    maps_blocks: bool,
    journals: bool,
) -> Option<Reason> {
    // e2fsck gives a fifo or a socket the root of an extent tree, and then takes it for broken.
    let is_file = after.file_type() == Some(FileType::Regular);
    let has_kind = is_file && after.flags().contains(InodeFlags::EXTENTS_FL);
    let has_extra = !after.behind.is_empty() || after.end > GOOD_OLD_INODE_SIZE_BYTES;
    let extra = after.end - GOOD_OLD_INODE_SIZE_BYTES;
    let is_short = has_extra && extra < LEAST_EXTRA;
    if !has_kind || after.flags().intersects(UNUSUAL) {
        return Some(Reason::Kind);
    }
    if journals {
        return Some(Reason::JournaledData);
    }
    // e2fsck takes blocks for the nodes of the tree that later records may map.
    if maps_blocks && after.is_deep() {
        return Some(Reason::DeepTree);
    }
    if after.raw.i_links_count.get() == 0 {
        return Some(Reason::LastName);
    }
    if is_short || after.raw.i_dtime.get() != 0 {
        return Some(Reason::Fields);
    }
    if life == Life::New {
        return None;
    }
    let is_same_life = before.raw.i_generation == after.raw.i_generation
        && before.raw.i_links_count.get() > 0
        && before.file_type() == after.file_type();
    let changes_map = before.raw.i_block != after.raw.i_block;
    if !is_same_life {
        Some(Reason::Fields)
    } else if before.flags() != after.flags() {
        Some(Reason::Flags)
    } else if after.size() < before.size() || (changes_map && !maps_blocks) {
        Some(Reason::RangeOperation)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;

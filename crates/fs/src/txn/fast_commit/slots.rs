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
//! Replay counts nothing but the map. So an inode that is charged for more, a block of attributes
//! or values in inodes of their own, is in no record.
//!
//! Directories get no INODE record. What names change in the slot is *unsaid*: it follows from
//! their records, if the slot differs in nothing else and the unit has names in this directory. An
//! access is unsaid too, and lost unless a full commit follows.
//!
//! | a directory's slot differs in | names in the unit | without |
//! |---|---|---|
//! | times, version, link count | unsaid | tainted |
//! | the time of the last access | unsaid | unsaid |
//! | anything else | tainted | tainted |
//!
//! **References.** Kernel `fs/ext4/fast_commit.c` (`ext4_fc_replay_inode`; `ext4_fc_track_inode`,
//! which leaves directories out); e2fsprogs, `e2fsck/journal.c` (`ext4_fc_handle_inode`), which
//! refuses an `i_extra_isize` below 4.

use std::ops::Range;

use fourscore_ondisk::inode::{
    FileMode, FileType, GOOD_OLD_INODE_SIZE_BYTES, InodeFlags, RawInode, RawInodeExtra,
};
use fourscore_ondisk::xattr::{Entry, Value, Xattrs};
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
    /// It needs no record: of a directory, only the time of an access has changed, or what follows
    /// from the records of its names.
    Unsaid,
    /// By no record.
    Tainted(Reason),
}

/// What else is known of the inode of a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beside {
    /// The unit has ranges of this inode.
    pub(crate) maps_blocks: bool,
    /// The unit has names in this inode, a directory.
    pub(crate) changes_names: bool,
    /// Its data goes through the journal.
    pub(crate) journals: bool,
}

/// The fields of a slot.
struct Fields<'s> {
    raw: &'s RawInode,
    /// What lies in the place of the further fields. Where `i_extra_isize` does not cover it all,
    /// the rest belongs to what is behind the fields.
    extra: RawInodeExtra,
    /// The end of the fields.
    end: usize,
    behind: &'s [u8],
}

impl<'s> Fields<'s> {
    fn of(slot: &'s [u8]) -> Option<Self> {
        let (raw, rest) = RawInode::ref_from_prefix(slot).ok()?;
        let extra = RawInodeExtra::ref_from_prefix(rest)
            .map_or_else(|_| RawInodeExtra::default(), |(extra, _)| *extra);
        let end = GOOD_OLD_INODE_SIZE_BYTES + usize::from(extra.i_extra_isize.get());
        let behind = slot.get(end..)?;
        Some(Self {
            raw,
            extra,
            end,
            behind,
        })
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

    /// Whether an attribute behind the fields has its value in another inode, for which this one is
    /// charged. Damaged attributes may have one.
    fn has_value_inode(&self) -> bool {
        let is_here = |entry: Result<Entry<'_>, _>| {
            entry.is_ok_and(|entry| matches!(entry.value, Value::Inline(_)))
        };
        !Xattrs::in_inode(self.behind).entries().all(is_here)
    }

    /// The fields of a directory without those that an access changes.
    fn but_access(&self) -> (RawInode, RawInodeExtra) {
        let (mut raw, mut extra) = (*self.raw, self.extra);
        raw.i_atime.set(0);
        extra.i_atime_extra.set(0);
        raw.i_checksum_lo.set(0);
        extra.i_checksum_hi.set(0);
        (raw, extra)
    }

    /// The fields of a directory without those that its names change.
    fn but_names(&self) -> (RawInode, RawInodeExtra) {
        let (mut raw, mut extra) = self.but_access();
        raw.i_ctime.set(0);
        extra.i_ctime_extra.set(0);
        raw.i_mtime.set(0);
        extra.i_mtime_extra.set(0);
        raw.i_version.set(0);
        extra.i_version_hi.set(0);
        raw.i_links_count.set(0);
        (raw, extra)
    }
}

/// Decides how the change of a slot from `old` to `new` is expressed.
pub(crate) fn verdict(old: &[u8], new: &[u8], life: Life, beside: Beside) -> Verdict {
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
        return match life {
            Life::Existing if is_kept => directory(&before, &after, beside),
            _ => Verdict::Tainted(Reason::Directory),
        };
    }
    if after.has_xattr_block() || after.has_value_inode() || !is_kept {
        return Verdict::Tainted(Reason::Xattr);
    }
    match refused(&before, &after, life, beside) {
        Some(why) => Verdict::Tainted(why),
        None => Verdict::Image { len: after.end },
    }
}

/// Decides about a directory that is not new, with the same attributes behind its fields.
fn directory(before: &Fields<'_>, after: &Fields<'_>, beside: Beside) -> Verdict {
    if after.raw.i_links_count.get() == 0 {
        return Verdict::Tainted(Reason::Directory);
    }
    // Linux does not count the blocks of a directory that grows in replay, and e2fsck does not make
    // one longer that has no index.
    if before.size() != after.size() {
        return Verdict::Tainted(Reason::NoSpace);
    }
    let is_unsaid = match beside.changes_names {
        true => before.but_names() == after.but_names(),
        false => before.but_access() == after.but_access(),
    };
    match is_unsaid {
        true => Verdict::Unsaid,
        false => Verdict::Tainted(Reason::Directory),
    }
}

/// Returns why the change of a file is not expressed by a record, if it is not.
fn refused(before: &Fields<'_>, after: &Fields<'_>, life: Life, beside: Beside) -> Option<Reason> {
    // e2fsck gives a fifo or a socket the root of an extent tree, and then takes it for broken.
    let is_file = after.file_type() == Some(FileType::Regular);
    let has_kind = is_file && after.flags().contains(InodeFlags::EXTENTS_FL);
    let has_extra = !after.behind.is_empty() || after.end > GOOD_OLD_INODE_SIZE_BYTES;
    let extra = after.end - GOOD_OLD_INODE_SIZE_BYTES;
    let is_short = has_extra && extra < LEAST_EXTRA;
    if !has_kind || after.flags().intersects(UNUSUAL) {
        return Some(Reason::Kind);
    }
    if beside.journals {
        return Some(Reason::JournaledData);
    }
    // e2fsck takes blocks for the nodes of the tree that later records may map.
    if beside.maps_blocks && after.is_deep() {
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
    } else if after.size() < before.size() || (changes_map && !beside.maps_blocks) {
        Some(Reason::RangeOperation)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;

//! **Purpose.** The inodes of an empty file system in their final form.
//!
//! **Not here.** What the files hold (`root`, `journal`, `hidden`, `quota`), and which blocks they
//! have (`mapping`).

use fourscore_ondisk::features::{Incompat, RoCompat};
use fourscore_ondisk::inode::{self, InodeFlags, RawInode, RawInodeExtra};
use fourscore_ondisk::words::{high32, low16, low32};
use fourscore_ondisk::{InodeNr, Timestamp};
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::draft::LayoutDraft;
use crate::error::{FormatError, FormatResult};
use crate::mapping::Mapped;
use crate::sizes::FIRST_INO;
use crate::superblock::EXTRA_ISIZE;

const BAD_INO: u32 = 1;

/// Which fields of an inode are set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fields {
    /// The first 128 bytes.
    Base,
    /// Those behind them too.
    All,
}

/// The fields of the inode of a file.
pub(crate) struct File {
    pub(crate) mode: u16,
    pub(crate) links: u16,
    pub(crate) flags: InodeFlags,
    pub(crate) size_bytes: u64,
    pub(crate) mapped: Mapped,
}

/// Stores the inode of a file.
pub(crate) fn put_file(draft: &mut LayoutDraft, number: u32, file: &File) -> FormatResult<()> {
    let (time, _) = inode_time(draft);
    let mut raw = RawInode::new_zeroed();
    raw.i_mode = file.mode.into();
    raw.i_links_count = file.links.into();
    raw.i_flags = file.flags.bits().into();
    raw.i_size_lo = low32(file.size_bytes);
    raw.i_size_high = high32(file.size_bytes);
    if raw.i_size_high.get() != 0 {
        let features = draft.raw.features().ro_compat | RoCompat::LARGE_FILE;
        draft.raw.s_feature_ro_compat = features.bits().into();
    }
    let cluster_sectors = draft.geometry().cluster_size_bytes() as u64 / 512;
    let sectors = file.mapped.clusters * cluster_sectors;
    raw.i_blocks_lo = low32(sectors);
    raw.i_blocks_high = low16(sectors >> 32);
    raw.i_block = file.mapped.i_block;
    (raw.i_atime, raw.i_ctime, raw.i_mtime) = (time, time, time);
    put_inode(draft, number, raw, Fields::All)
}

/// Stores an inode; its times behind the first 128 bytes are set here.
fn put_inode(
    draft: &mut LayoutDraft,
    number: u32,
    raw: RawInode,
    fields: Fields,
) -> FormatResult<()> {
    let mut bytes = vec![0; draft.geometry().inode_size_bytes()];
    let (base, tail) = bytes.split_at_mut(size_of::<RawInode>());
    base.copy_from_slice(raw.as_bytes());
    if fields == Fields::All
        && let Ok((extra, _)) = RawInodeExtra::mut_from_prefix(tail)
    {
        let (word, more) = inode_time(draft);
        extra.i_extra_isize = EXTRA_ISIZE.into();
        (extra.i_crtime, extra.i_crtime_extra) = (word, more);
        extra.i_atime_extra = more;
        (extra.i_ctime_extra, extra.i_mtime_extra) = (more, more);
    }
    inode::seal(&mut bytes, InodeNr(number), &draft.sb).map_err(FormatError::invalid)?;
    draft.inodes.insert(number, bytes);
    Ok(())
}

/// The time of all inodes as the two words that inodes store.
fn inode_time(draft: &LayoutDraft) -> (U32, U32) {
    let seconds = i64::try_from(draft.id.time_seconds).unwrap_or(i64::MAX);
    let time = Timestamp::new(seconds, 0).map_or((0, 0), Timestamp::to_inode_words);
    (time.0.into(), time.1.into())
}

/// Stores the reserved inodes 1 to 10. With metadata checksums unused ones have a checksum too.
pub(crate) fn reserve_inodes(draft: &mut LayoutDraft) -> FormatResult<()> {
    for number in 1..FIRST_INO {
        draft.use_inode(number)?;
        if draft.sb.has_metadata_csum() {
            put_inode(draft, number, RawInode::new_zeroed(), Fields::Base)?;
        }
    }
    let mut bad = RawInode::new_zeroed();
    let (time, _) = inode_time(draft);
    (bad.i_atime, bad.i_ctime, bad.i_mtime) = (time, time, time);
    put_inode(draft, BAD_INO, bad, Fields::Base)
}

/// The flag of files with extent trees, if the file system has them.
pub(crate) fn extents_flag(draft: &LayoutDraft) -> InodeFlags {
    let extents = draft.raw.features().incompat.contains(Incompat::EXTENTS);
    if extents {
        InodeFlags::EXTENTS_FL
    } else {
        InodeFlags::empty()
    }
}

/// The inode fields of a regular file that is not in any directory.
pub(crate) fn hidden_file(draft: &LayoutDraft, size_bytes: u64, mapped: Mapped) -> File {
    File {
        mode: 0o100_600,
        links: 1,
        flags: extents_flag(draft),
        size_bytes,
        mapped,
    }
}

/// Changes a stored inode, if there is one, and seals it again.
pub(crate) fn change_inode(
    draft: &mut LayoutDraft,
    number: u32,
    change: impl FnOnce(&mut RawInode, &mut [u8]),
) -> FormatResult<()> {
    let Some(bytes) = draft.inodes.get_mut(&number) else {
        return Ok(());
    };
    if let Ok((raw, tail)) = RawInode::mut_from_prefix(bytes) {
        change(raw, tail);
    }
    inode::seal(bytes, InodeNr(number), &draft.sb).map_err(FormatError::invalid)
}

//! **Purpose.** Inodes: type, owner, size, times and other properties of a file.
//!
//! | module | responsibility |
//! |---|---|
//! | `raw` | the bytes |
//! | `edit` | changes of the bytes in place |
//! | `tail` | the bytes after the first 128, in memory |
//! | `values` | flags, file types, device numbers |
//!
//! **Not here.** The content of `i_block` (extents, block map, inline data, symlink target), and
//! the entries of the xattr area after the fields.
//!
//! **Model.** An inode is `s_inode_size` bytes:
//!
//! ```text
//! 0           128              128 + i_extra_isize           s_inode_size
//! | RawInode   | RawInodeExtra  | extended attributes          |
//! ```
//!
//! A field after the first 128 bytes exists only if `i_extra_isize` covers all of it.
//!
//! **Invariants.** An [`Inode`] has a correct checksum if there is one, a known type or none (a
//! free or reserved inode), an `i_extra_isize` that fits the inode, and a size below 2^63.
//!
//! **References.** Documentation/filesystems/ext4/inodes.rst of the kernel.

use std::mem::{offset_of, size_of};
use std::ops::Range;

use thiserror::Error;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::{ChecksumMismatch, InodeGeneration, InodeSeed};
use crate::features::{Incompat, RoCompat};
use crate::superblock::Superblock;
use crate::time::Timestamp;
use crate::types::{InodeNr, PhysBlock};

use self::tail::Tail;

mod edit;
mod raw;
mod tail;
mod values;

pub use edit::{
    FAST_SYMLINK_MAX_BYTES, InodeMut, InodeValueError, NewInode, needs_large_file, new_extra_isize,
};
pub use raw::{GOOD_OLD_INODE_SIZE_BYTES, RawInode, RawInodeExtra};
pub use values::{DeviceNr, FileMode, FileType, InodeFlags};

/// The reason why bytes are not a valid inode.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InodeError {
    /// Fewer bytes than an inode.
    #[error("inode: {found_bytes} bytes where {needed_bytes} are needed")]
    TooShort {
        /// The bytes found.
        found_bytes: usize,
        /// `s_inode_size`.
        needed_bytes: usize,
    },
    /// `i_checksum_lo` and `i_checksum_hi` are not the checksum of the bytes.
    #[error("inode: i_checksum: {0}")]
    Checksum(ChecksumMismatch),
    /// More extra bytes than the inode has, or not a multiple of 4.
    #[error("inode: i_extra_isize {found} is no multiple of 4 up to {most}")]
    ExtraIsize {
        /// `i_extra_isize`.
        found: u16,
        /// The bytes after the first 128.
        most: usize,
    },
    /// An unknown type.
    #[error("inode: i_mode {found:#o} has no known type")]
    Mode {
        /// `i_mode`.
        found: u16,
    },
    /// A size of 2^63 or more.
    #[error("inode: i_size {found} is over 2^63 - 1")]
    Size {
        /// `i_size`, both halves.
        found: u64,
    },
}

/// A checked inode, with the bytes it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    number: InodeNr,
    base: RawInode,
    /// Zero past `i_extra_isize`; `extra_size_bytes` is the length of the existing fields.
    extra: RawInodeExtra,
    extra_size_bytes: u16,
    /// All bytes after the first 128, as read.
    tail: Tail,
    file_type: Option<FileType>,
    size_bytes: u64,
    sectors: u64,
    file_acl: PhysBlock,
    uid: u32,
    gid: u32,
    project_id: u32,
    seed: InodeSeed,
}

impl Inode {
    /// Parses inode `number` at the start of `bytes`, which may be longer.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn parse(bytes: &[u8], number: InodeNr, sb: &Superblock) -> Result<Self, InodeError> {
        verify(bytes, number, sb)?;
        Self::parse_unsealed(bytes, number, sb)
    }

    /// As [`Inode::parse`], for bytes in memory that were changed and not sealed yet: the checksum
    /// is not checked.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn parse_unsealed(
        bytes: &[u8],
        number: InodeNr,
        sb: &Superblock,
    ) -> Result<Self, InodeError> {
        let parts = Parts::split(bytes, sb)?;
        let seed = inode_seed(parts.base, number, sb);
        Self::decode(&parts, number, seed, sb)
    }

    /// Seals and parses the bytes, with less work than [`seal`] and [`Inode::parse`].
    ///
    /// # Errors
    /// The first check that fails.
    pub fn sealed(bytes: &mut [u8], number: InodeNr, sb: &Superblock) -> Result<Self, InodeError> {
        let seed = inode_seed(Parts::split(bytes, sb)?.base, number, sb);
        Self::sealed_by(bytes, number, seed, sb)
    }

    /// As [`Inode::sealed`], for callers that know the inode's seed, since its generation has not
    /// changed.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn sealed_by(
        bytes: &mut [u8],
        number: InodeNr,
        seed: InodeSeed,
        sb: &Superblock,
    ) -> Result<Self, InodeError> {
        seal_by(bytes, seed, sb)?;
        Self::decode(&Parts::split(bytes, sb)?, number, seed, sb)
    }

    fn decode(
        parts: &Parts<'_>,
        number: InodeNr,
        seed: InodeSeed,
        sb: &Superblock,
    ) -> Result<Self, InodeError> {
        let extra_size_bytes = parts.extra_isize()?;
        let extra = parts.extra(extra_size_bytes);
        let base = *parts.base;

        let mode = base.i_mode.get();
        let file_type = FileType::from_mode(FileMode(mode));
        if file_type.is_none() && mode & 0xf000 != 0 {
            return Err(InodeError::Mode { found: mode });
        }
        let mut inode = Self {
            number,
            base,
            extra,
            extra_size_bytes,
            tail: Tail::new(parts.tail),
            file_type,
            size_bytes: size_bytes(&base, file_type, sb)?,
            sectors: sectors(&base, sb),
            file_acl: file_acl(&base, sb),
            uid: 0,
            gid: 0,
            project_id: 0,
            seed,
        };
        (inode.uid, inode.gid) = owner(&base);
        if sb.features().ro_compat.contains(RoCompat::PROJECT) {
            inode.project_id = inode.extra_u32(offset_of!(RawInodeExtra, i_projid), extra.i_projid);
        }
        Ok(inode)
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> InodeNr {
        self.number
    }

    /// The first 128 bytes, as read.
    #[must_use]
    pub fn raw(&self) -> &RawInode {
        &self.base
    }

    /// All bytes after the first 128, as read: `s_inode_size - 128` bytes.
    #[must_use]
    pub fn raw_tail(&self) -> &[u8] {
        &self.tail
    }

    /// Its allocated memory besides this value, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.tail.heap_bytes()
    }

    /// The seed of the checksums of this inode's extent and directory blocks.
    #[must_use]
    pub fn checksum_seed(&self) -> InodeSeed {
        self.seed
    }

    /// Type and permissions.
    #[must_use]
    pub fn mode(&self) -> FileMode {
        FileMode(self.base.i_mode.get())
    }

    /// The type; `None` for a free inode and some reserved ones.
    #[must_use]
    pub fn file_type(&self) -> Option<FileType> {
        self.file_type
    }

    /// The user that owns it.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The group that owns it.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// The project for quota; 0 without the feature `project`.
    #[must_use]
    pub fn project_id(&self) -> u32 {
        self.project_id
    }

    /// The size of its content, below 2^63. Large sizes exist only for regular files, and for
    /// directories with `large_dir`.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Space taken by content, extent or map blocks and xattr block, in units of 512 bytes. Not
    /// checked.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// The link count. 1 in a directory means that there are too many to count (`dir_nlink`).
    #[must_use]
    pub fn links_count(&self) -> u16 {
        self.base.i_links_count.get()
    }

    /// The flags, unknown ones included.
    #[must_use]
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.base.i_flags.get())
    }

    /// Distinguishes successive uses of the same number.
    #[must_use]
    pub fn generation(&self) -> InodeGeneration {
        InodeGeneration(self.base.i_generation.get())
    }

    /// Extent tree, block map, inline data, symlink target or device number.
    #[must_use]
    pub fn i_block(&self) -> &[u8; 60] {
        &self.base.i_block
    }

    /// The block of its extended attributes. Not checked to be inside the file system.
    #[must_use]
    pub fn file_acl(&self) -> Option<PhysBlock> {
        (self.file_acl.0 != 0).then_some(self.file_acl)
    }

    /// Its device number; `None` for anything but a device.
    #[must_use]
    pub fn device(&self) -> Option<DeviceNr> {
        self.file_type?
            .is_device()
            .then(|| DeviceNr::from_i_block(&self.base.i_block))
    }

    /// `i_version`, both halves; changes with every change of the inode.
    #[must_use]
    pub fn version(&self) -> u64 {
        let high = self.extra_u32(
            offset_of!(RawInodeExtra, i_version_hi),
            self.extra.i_version_hi,
        );
        u64::from(self.base.i_version.get()) | (u64::from(high) << 32)
    }

    /// `i_dtime`: the time of deletion or, while the inode is on the orphan list, the number of the
    /// next orphan.
    #[must_use]
    pub fn dtime(&self) -> u32 {
        self.base.i_dtime.get()
    }

    /// The number of bytes of fields after the first 128; 0 in the smallest inodes.
    #[must_use]
    pub fn extra_isize_bytes(&self) -> u16 {
        self.extra_size_bytes
    }
}

/// Times.
impl Inode {
    /// Last access.
    #[must_use]
    pub fn atime(&self) -> Timestamp {
        let at = offset_of!(RawInodeExtra, i_atime_extra);
        self.time(self.base.i_atime, at, self.extra.i_atime_extra)
    }

    /// Last change of the inode.
    #[must_use]
    pub fn ctime(&self) -> Timestamp {
        let at = offset_of!(RawInodeExtra, i_ctime_extra);
        self.time(self.base.i_ctime, at, self.extra.i_ctime_extra)
    }

    /// Last change of the content.
    #[must_use]
    pub fn mtime(&self) -> Timestamp {
        let at = offset_of!(RawInodeExtra, i_mtime_extra);
        self.time(self.base.i_mtime, at, self.extra.i_mtime_extra)
    }

    /// Creation; `None` if the inode does not have the field.
    #[must_use]
    pub fn crtime(&self) -> Option<Timestamp> {
        let at = offset_of!(RawInodeExtra, i_crtime_extra);
        self.has_extra(offset_of!(RawInodeExtra, i_crtime))
            .then(|| self.time(self.extra.i_crtime, at, self.extra.i_crtime_extra))
    }

    fn time(&self, word: U32, extra_at: usize, extra: U32) -> Timestamp {
        Timestamp::from_inode(word.get(), self.has_extra(extra_at).then(|| extra.get()))
    }

    /// Whether the 32-bit field at this offset of [`RawInodeExtra`] exists.
    fn has_extra(&self, offset: usize) -> bool {
        offset + size_of::<U32>() <= usize::from(self.extra_size_bytes)
    }

    fn extra_u32(&self, offset: usize, field: U32) -> u32 {
        if self.has_extra(offset) {
            field.get()
        } else {
            0
        }
    }
}

/// The area of extended attributes inside the inode.
impl Inode {
    /// The range of the area in the inode's bytes; `None` if there is no space or `i_extra_isize`
    /// is 0.
    #[must_use]
    pub fn xattr_range(&self) -> Option<Range<usize>> {
        let start = GOOD_OLD_INODE_SIZE_BYTES + usize::from(self.extra_size_bytes);
        let end = GOOD_OLD_INODE_SIZE_BYTES + self.tail.len();
        (self.extra_size_bytes > 0 && start < end).then_some(start..end)
    }

    /// The bytes of the area: a magic number and entries, or any bytes if it was never used.
    #[must_use]
    pub fn xattr_area(&self) -> Option<&[u8]> {
        self.xattr_range()?;
        self.tail.get(usize::from(self.extra_size_bytes)..)
    }
}

/// Checks only the checksum of inode `number` at the start of `bytes`. Always `Ok` without
/// `metadata_csum`. Does not allocate.
///
/// # Errors
/// [`InodeError::Checksum`], [`InodeError::TooShort`].
pub fn verify(bytes: &[u8], number: InodeNr, sb: &Superblock) -> Result<(), InodeError> {
    if !sb.has_metadata_csum() {
        return Ok(());
    }
    let parts = Parts::split(bytes, sb)?;
    let expected = parts.checksum(inode_seed(parts.base, number, sb));
    ChecksumMismatch::check(parts.stored_checksum(), expected).map_err(InodeError::Checksum)
}

/// Computes and stores the checksum of inode `number` at the start of `bytes`. Does nothing without
/// `metadata_csum`.
///
/// # Errors
/// [`InodeError::TooShort`].
pub fn seal(bytes: &mut [u8], number: InodeNr, sb: &Superblock) -> Result<(), InodeError> {
    let parts = Parts::split(bytes, sb)?;
    if !sb.has_metadata_csum() {
        return Ok(());
    }
    seal_by(bytes, inode_seed(parts.base, number, sb), sb)
}

/// As [`seal`], for callers that know the inode's seed.
fn seal_by(bytes: &mut [u8], seed: InodeSeed, sb: &Superblock) -> Result<(), InodeError> {
    let parts = Parts::split(bytes, sb)?;
    if !sb.has_metadata_csum() {
        return Ok(());
    }
    let value = parts.checksum(seed);
    let has_high = parts.has_checksum_hi();
    let [a, b, c, d] = value.to_le_bytes();
    if let Ok((base, tail)) = RawInode::mut_from_prefix(bytes) {
        base.i_checksum_lo = U16::from_bytes([a, b]);
        if let (true, Some(field)) = (has_high, tail.get_mut(CHECKSUM_HI)) {
            field.copy_from_slice(&[c, d]);
        }
    }
    Ok(())
}

/// The number of bytes after the first 128 that are copied for the checksum: all of them in inodes
/// of 256 bytes, the usual size.
const COPIED_TAIL_BYTES: usize = 128;

/// The offset of `i_checksum_lo` in the first 128 bytes.
const CHECKSUM_LO: Range<usize> = {
    let start = offset_of!(RawInode, i_checksum_lo);
    start..start + size_of::<U16>()
};

/// The offset of `i_checksum_hi` in the bytes after the first 128.
const CHECKSUM_HI: Range<usize> = {
    let start = offset_of!(RawInodeExtra, i_checksum_hi);
    start..start + size_of::<U16>()
};

/// An inode's bytes, split after the first 128.
struct Parts<'a> {
    base: &'a RawInode,
    tail: &'a [u8],
}

impl<'a> Parts<'a> {
    fn split(bytes: &'a [u8], sb: &Superblock) -> Result<Self, InodeError> {
        let needed_bytes = sb.geometry().inode_size_bytes();
        let too_short = InodeError::TooShort {
            found_bytes: bytes.len(),
            needed_bytes,
        };
        let Some(bytes) = bytes.get(..needed_bytes) else {
            return Err(too_short);
        };
        match RawInode::ref_from_prefix(bytes) {
            Ok((base, tail)) => Ok(Self { base, tail }),
            Err(_) => Err(too_short),
        }
    }

    /// `i_extra_isize` as stored; 0 in an inode of 128 bytes.
    fn stored_extra_isize(&self) -> u16 {
        U16::ref_from_prefix(self.tail).map_or(0, |(size, _)| size.get())
    }

    fn extra_isize(&self) -> Result<u16, InodeError> {
        let (found, most) = (self.stored_extra_isize(), self.tail.len());
        if usize::from(found) > most || found % 4 != 0 {
            return Err(InodeError::ExtraIsize { found, most });
        }
        Ok(found)
    }

    /// The fields after the first 128 bytes; those that the inode does not have are zero.
    fn extra(&self, extra_isize: u16) -> RawInodeExtra {
        let mut extra = RawInodeExtra::default();
        let fields = self.tail.get(..extra_isize.into()).unwrap_or_default();
        for (to, from) in extra.as_mut_bytes().iter_mut().zip(fields) {
            *to = *from;
        }
        extra
    }

    fn has_checksum_hi(&self) -> bool {
        usize::from(self.stored_extra_isize()) >= CHECKSUM_HI.end
    }

    fn stored_checksum(&self) -> u32 {
        let low = u32::from(self.base.i_checksum_lo.get());
        match (self.has_checksum_hi(), self.tail.get(CHECKSUM_HI)) {
            (true, Some(&[c, d])) => low | (u32::from(u16::from_le_bytes([c, d])) << 16),
            _ => low,
        }
    }

    /// The checksum of the bytes with its own fields as zero: 32 bits, or 16 if the inode has no
    /// `i_checksum_hi`.
    ///
    /// The fields are zeroed in a copy, so that an inode of the usual size needs one call: a call
    /// costs about as much as a hundred bytes.
    fn checksum(&self, seed: InodeSeed) -> u32 {
        let mut copy = [0; GOOD_OLD_INODE_SIZE_BYTES + COPIED_TAIL_BYTES];
        let (base, tail) = copy.split_at_mut(GOOD_OLD_INODE_SIZE_BYTES);
        base.copy_from_slice(self.base.as_bytes());
        base[CHECKSUM_LO].fill(0);
        let cut = self.tail.len().min(COPIED_TAIL_BYTES);
        let (copied, rest) = self.tail.split_at(cut);
        tail[..cut].copy_from_slice(copied);
        let has_high = self.has_checksum_hi();
        if has_high {
            tail[CHECKSUM_HI].fill(0);
        }
        let mut crc = seed.start();
        crc = crc.update(&copy[..GOOD_OLD_INODE_SIZE_BYTES + cut]);
        if !rest.is_empty() {
            crc = crc.update(rest);
        }
        if has_high {
            crc.value()
        } else {
            crc.low16().into()
        }
    }
}

fn inode_seed(base: &RawInode, number: InodeNr, sb: &Superblock) -> InodeSeed {
    sb.checksum_seed()
        .for_inode(number, InodeGeneration(base.i_generation.get()))
}

fn size_bytes(
    base: &RawInode,
    file_type: Option<FileType>,
    sb: &Superblock,
) -> Result<u64, InodeError> {
    let large = match file_type {
        Some(FileType::Regular) => true,
        Some(FileType::Directory) => sb.features().incompat.contains(Incompat::LARGEDIR),
        _ => false,
    };
    let high = if large { base.i_size_high.get() } else { 0 };
    let found = u64::from(base.i_size_lo.get()) | (u64::from(high) << 32);
    if i64::try_from(found).is_err() {
        return Err(InodeError::Size { found });
    }
    Ok(found)
}

fn sectors(base: &RawInode, sb: &Superblock) -> u64 {
    let low = u64::from(base.i_blocks_lo.get());
    if !sb.features().ro_compat.contains(RoCompat::HUGE_FILE) {
        return low;
    }
    let count = low | (u64::from(base.i_blocks_high.get()) << 32);
    let in_blocks =
        InodeFlags::from_bits_retain(base.i_flags.get()).contains(InodeFlags::HUGE_FILE_FL);
    if in_blocks {
        count << (sb.geometry().block_size().bits() - 9)
    } else {
        count
    }
}

fn file_acl(base: &RawInode, sb: &Superblock) -> PhysBlock {
    let high = match sb.features().incompat.contains(Incompat::BIT64) {
        true => base.i_file_acl_high.get(),
        false => 0,
    };
    PhysBlock(u64::from(base.i_file_acl_lo.get()) | (u64::from(high) << 32))
}

/// User and group.
fn owner(base: &RawInode) -> (u32, u32) {
    let both = |low: U16, high: U16| u32::from(low.get()) | (u32::from(high.get()) << 16);
    (
        both(base.i_uid, base.i_uid_high),
        both(base.i_gid, base.i_gid_high),
    )
}

#[cfg(test)]
mod tests;

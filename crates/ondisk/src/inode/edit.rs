//! **Purpose.** Changes of an inode's bytes in place: initialising a new inode, and setting fields.
//!
//! **Not here.** Checksums (`seal` writes them once, when all changes are made); the content of
//! `i_block` and the xattr area (`extent`, `blockmap`, `xattr`, `inline`); which features the
//! superblock must gain before a field may hold a value ([`needs_large_file`]).
//!
//! **Model.** An [`InodeMut`] borrows one slot of an inode table. A setter writes every field that
//! its value is stored in, if the inode has it: bytes past `i_extra_isize` are never changed,
//! because the extended attributes begin there.
//!
//! **Invariants.** [`Inode::parse`](super::Inode::parse) returns the value that a setter accepted.
//! A value that the fields cannot hold is refused without a change, except for times, which are
//! clamped as in Linux. Other fields are not changed.
//!
//! **References.** Documentation/filesystems/ext4/inodes.rst of the kernel.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros};

use super::{
    DeviceNr, FileMode, FileType, GOOD_OLD_INODE_SIZE_BYTES, InodeError, InodeFlags, Parts,
    RawInode, RawInodeExtra, sectors,
};
use crate::checksum::InodeGeneration;
use crate::features::{Incompat, RoCompat};
use crate::superblock::{CreatorOs, Superblock};
use crate::time::Timestamp;
use crate::types::{InodeNr, PhysBlock};
use crate::words::{low16, low32};
use crate::xattr::{XattrEditError, shift_start};

/// The longest target of a symbolic link that fits `i_block` with its NUL.
pub const FAST_SYMLINK_MAX_BYTES: usize = size_of::<[u8; 60]>() - 1;
/// One past the largest number of 48 bits.
const END_48: u64 = 1 << 48;

/// A value that the fields of an inode cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InodeValueError {
    /// A size of 2^63 or more, or for a directory or link of more than its 32 bits.
    #[error("a size of {size_bytes} bytes does not fit the inode")]
    Size {
        /// The size.
        size_bytes: u64,
    },
    /// More space than `i_blocks` can hold.
    #[error("{sectors} sectors do not fit i_blocks")]
    Sectors {
        /// The space in units of 512 bytes.
        sectors: u64,
    },
    /// A block number that `i_file_acl` cannot hold.
    #[error("block {block} does not fit i_file_acl")]
    FileAcl {
        /// The block.
        block: PhysBlock,
    },
    /// A device number of more than 12 and 20 bits.
    #[error("device {}:{} does not fit the inode", device.major, device.minor)]
    Device {
        /// The number.
        device: DeviceNr,
    },
    /// A target that is empty or longer than [`FAST_SYMLINK_MAX_BYTES`].
    #[error("a target of {found} bytes does not fit i_block")]
    Target {
        /// Its length in bytes.
        found: usize,
    },
}

/// The fields of a new inode; all others are zero.
#[derive(Clone, Copy, Debug)]
pub struct NewInode {
    /// Type and permissions.
    pub mode: FileMode,
    /// The user that owns it.
    pub uid: u32,
    /// The group that owns it.
    pub gid: u32,
    /// Distinguishes it from earlier uses of the same number.
    pub generation: InodeGeneration,
    /// The number of its names.
    pub links: u16,
    /// Its flags.
    pub flags: InodeFlags,
    /// The project for quota; not stored without the feature `project`.
    pub project_id: u32,
    /// All its times.
    pub now: Timestamp,
}

/// An inode's slot, to be changed.
#[derive(Debug)]
pub struct InodeMut<'a> {
    base: &'a mut RawInode,
    /// All bytes after the first 128.
    tail: &'a mut [u8],
    /// Bytes of `tail` that are fields.
    extra_size_bytes: usize,
    sb: &'a Superblock,
}

/// Whether a file of this size needs the feature `large_file`.
#[must_use]
pub fn needs_large_file(size_bytes: u64) -> bool {
    size_bytes > 0x7fff_ffff
}

impl<'a> InodeMut<'a> {
    /// The inode at the start of `bytes`, which may be longer.
    ///
    /// # Errors
    /// If there are too few bytes, or `i_extra_isize` is invalid.
    pub fn of(bytes: &'a mut [u8], sb: &'a Superblock) -> Result<Self, InodeError> {
        let extra_size_bytes = Parts::split(bytes, sb)?.extra_isize()?.into();
        Self::cut(bytes, extra_size_bytes, sb)
    }

    /// Initialises a new inode in the slot at the start of `bytes`, which may have any content. Its
    /// `i_block` and xattr area are zero, and it has the extra fields that the superblock wants.
    ///
    /// # Errors
    /// [`InodeError::TooShort`].
    pub fn init(
        bytes: &'a mut [u8],
        sb: &'a Superblock,
        new: &NewInode,
    ) -> Result<Self, InodeError> {
        let extra_isize = new_extra_isize(sb);
        let mut inode = Self::cut(bytes, extra_isize.into(), sb)?;
        *inode.base = RawInode::new_zeroed();
        inode.tail.fill(0);
        inode.put_extra_isize(extra_isize);
        inode.set_mode(new.mode);
        inode.set_owner(new.uid, new.gid);
        inode.set_generation(new.generation);
        inode.set_links_count(new.links);
        inode.set_flags(new.flags);
        inode.set_project_id(new.project_id);
        inode.set_atime(new.now);
        inode.set_ctime(new.now);
        inode.set_mtime(new.now);
        inode.set_crtime(new.now);
        Ok(inode)
    }

    fn cut(
        bytes: &'a mut [u8],
        extra_size_bytes: usize,
        sb: &'a Superblock,
    ) -> Result<Self, InodeError> {
        let (found_bytes, needed_bytes) = (bytes.len(), sb.geometry().inode_size_bytes());
        let slot = bytes.get_mut(..needed_bytes);
        match slot.and_then(|slot| RawInode::mut_from_prefix(slot).ok()) {
            Some((base, tail)) => Ok(Self {
                base,
                tail,
                extra_size_bytes,
                sb,
            }),
            None => Err(InodeError::TooShort {
                found_bytes,
                needed_bytes,
            }),
        }
    }
}

/// Properties.
impl InodeMut<'_> {
    /// Type and permissions.
    #[must_use]
    pub fn mode(&self) -> FileMode {
        FileMode(self.base.i_mode.get())
    }

    /// The flags, unknown ones included.
    #[must_use]
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.base.i_flags.get())
    }

    /// Sets type and permissions.
    pub fn set_mode(&mut self, mode: FileMode) {
        self.base.i_mode = mode.0.into();
    }

    /// Sets user and group.
    pub fn set_owner(&mut self, uid: u32, gid: u32) {
        let (uid, gid) = (u64::from(uid), u64::from(gid));
        (self.base.i_uid, self.base.i_uid_high) = (low16(uid), low16(uid >> 16));
        (self.base.i_gid, self.base.i_gid_high) = (low16(gid), low16(gid >> 16));
    }

    /// Sets the link count.
    pub fn set_links_count(&mut self, links: u16) {
        self.base.i_links_count = links.into();
    }

    /// Sets the flags except `HUGE_FILE_FL`, which is set by [`set_sectors`](Self::set_sectors).
    pub fn set_flags(&mut self, flags: InodeFlags) {
        let kept = self.flags() & InodeFlags::HUGE_FILE_FL;
        self.base.i_flags = ((flags - InodeFlags::HUGE_FILE_FL) | kept).bits().into();
    }

    /// Sets the generation, on which the checksums of all its blocks depend.
    pub fn set_generation(&mut self, generation: InodeGeneration) {
        self.base.i_generation = generation.0.into();
    }

    /// Sets `i_version`, and its upper half if the inode has the field.
    pub fn set_version(&mut self, version: u64) {
        if self.sb.creator_os() == CreatorOs::Hurd {
            // There the field holds the block of the translator.
            return;
        }
        self.base.i_version = low32(version);
        self.set_extra(
            offset_of!(RawInodeExtra, i_version_hi),
            low32(version >> 32),
        );
    }

    /// Increments `i_version`, for a change of the inode.
    pub fn raise_version(&mut self) {
        let high_at = offset_of!(RawInodeExtra, i_version_hi);
        let field = self.tail.get(high_at..high_at + size_of::<U32>());
        let high = match field {
            Some(&[a, b, c, d]) if self.has_extra(high_at) => u32::from_le_bytes([a, b, c, d]),
            _ => 0,
        };
        let version = u64::from(high) << 32 | u64::from(self.base.i_version.get());
        self.set_version(version.wrapping_add(1));
    }

    /// Sets the project; does nothing without the feature `project`.
    pub fn set_project_id(&mut self, project_id: u32) {
        if self.sb.features().ro_compat.contains(RoCompat::PROJECT) {
            self.set_extra(offset_of!(RawInodeExtra, i_projid), project_id.into());
        }
    }

    /// Sets the time of deletion.
    pub fn set_deleted(&mut self, at: Timestamp) {
        self.base.i_dtime = at.to_inode_word().into();
    }

    /// Sets the next inode on the orphan list; `None` for the last one, and for an inode that is
    /// neither an orphan nor deleted.
    pub fn set_next_orphan(&mut self, next: Option<InodeNr>) {
        self.base.i_dtime = next.map_or(0, |next| next.0).into();
    }
}

/// Size and space.
impl InodeMut<'_> {
    /// Sets the size of its content. Set the type first.
    ///
    /// # Errors
    /// [`InodeValueError::Size`]: only regular files (and directories, with `large_dir`) have the
    /// upper 32 bits.
    pub fn set_size_bytes(&mut self, size_bytes: u64) -> Result<(), InodeValueError> {
        let large_dir = self.sb.features().incompat.contains(Incompat::LARGEDIR);
        let most = match FileType::from_mode(self.mode()) {
            Some(FileType::Regular) => i64::MAX.unsigned_abs(),
            Some(FileType::Directory) if large_dir => i64::MAX.unsigned_abs(),
            _ => u32::MAX.into(),
        };
        if size_bytes > most {
            return Err(InodeValueError::Size { size_bytes });
        }
        self.base.i_size_lo = low32(size_bytes);
        self.base.i_size_high = low32(size_bytes >> 32);
        Ok(())
    }

    /// The space it takes in units of 512 bytes.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        sectors(self.base, self.sb)
    }

    /// Sets the space it takes in units of 512 bytes. A value of more than 48 bits is stored in
    /// blocks of the file system, rounded down, with `HUGE_FILE_FL`.
    ///
    /// # Errors
    /// [`InodeValueError::Sectors`]: more than fit 48 bits, or without the feature `huge_file` 32
    /// bits.
    pub fn set_sectors(&mut self, sectors: u64) -> Result<(), InodeValueError> {
        let huge_file = self.sb.features().ro_compat.contains(RoCompat::HUGE_FILE);
        let (count, unit) = if sectors < END_48 {
            (sectors, InodeFlags::empty())
        } else {
            let blocks = sectors >> (self.sb.geometry().block_size().bits() - 9);
            (blocks, InodeFlags::HUGE_FILE_FL)
        };
        if count >= END_48 || (count > u32::MAX.into() && !huge_file) {
            return Err(InodeValueError::Sectors { sectors });
        }
        self.base.i_blocks_lo = low32(count);
        if huge_file {
            self.base.i_blocks_high = low16(count >> 32);
            let flags = (self.flags() - InodeFlags::HUGE_FILE_FL) | unit;
            self.base.i_flags = flags.bits().into();
        }
        Ok(())
    }

    /// Sets the block of its extended attributes.
    ///
    /// # Errors
    /// [`InodeValueError::FileAcl`]: a number of more than 48 bits, or without the feature `64bit`
    /// of more than 32.
    pub fn set_file_acl(&mut self, block: Option<PhysBlock>) -> Result<(), InodeValueError> {
        let wide = self.sb.features().incompat.contains(Incompat::BIT64);
        let block = block.unwrap_or_default();
        let end = if wide { END_48 } else { 1 << 32 };
        if block.0 >= end {
            return Err(InodeValueError::FileAcl { block });
        }
        self.base.i_file_acl_lo = low32(block.0);
        if wide {
            self.base.i_file_acl_high = low16(block.0 >> 32);
        }
        Ok(())
    }
}

/// Times. Times that the inode cannot hold are clamped; without the extra fields the range is whole
/// seconds up to the year 2038.
impl InodeMut<'_> {
    /// Sets the time of the last access.
    pub fn set_atime(&mut self, time: Timestamp) {
        let at = offset_of!(RawInodeExtra, i_atime_extra);
        self.base.i_atime = self.put_time(time, at);
    }

    /// Sets the time of the last change of the inode.
    pub fn set_ctime(&mut self, time: Timestamp) {
        let at = offset_of!(RawInodeExtra, i_ctime_extra);
        self.base.i_ctime = self.put_time(time, at);
    }

    /// Sets the time of the last change of the content.
    pub fn set_mtime(&mut self, time: Timestamp) {
        let at = offset_of!(RawInodeExtra, i_mtime_extra);
        self.base.i_mtime = self.put_time(time, at);
    }

    /// Sets the time of creation, if the inode has the field.
    pub fn set_crtime(&mut self, time: Timestamp) {
        let word_at = offset_of!(RawInodeExtra, i_crtime);
        if self.has_extra(word_at) {
            let word = self.put_time(time, offset_of!(RawInodeExtra, i_crtime_extra));
            self.set_extra(word_at, word);
        }
    }

    /// Writes the extra field of a time if there is one; returns the first one.
    fn put_time(&mut self, time: Timestamp, extra_at: usize) -> U32 {
        if !self.has_extra(extra_at) {
            return time.to_inode_word().into();
        }
        let (word, extra) = time.to_inode_words();
        self.set_extra(extra_at, extra.into());
        word.into()
    }

    /// Whether the 32-bit field at this offset of [`RawInodeExtra`] exists.
    fn has_extra(&self, at: usize) -> bool {
        at + size_of::<U32>() <= self.extra_size_bytes
    }

    /// Writes the 32-bit field at this offset of [`RawInodeExtra`], if it exists.
    fn set_extra(&mut self, at: usize, value: U32) {
        let exists = self.has_extra(at);
        if let (true, Some(field)) = (exists, self.tail.get_mut(at..at + size_of::<U32>())) {
            field.copy_from_slice(&value.to_bytes());
        }
    }
}

/// The parts that hold more than fields.
impl InodeMut<'_> {
    /// Extent tree, block map, inline data, symlink target or device number.
    pub fn i_block_mut(&mut self) -> &mut [u8; 60] {
        &mut self.base.i_block
    }

    /// The area of extended attributes, see [`Inode::xattr_area`](super::Inode::xattr_area).
    pub fn xattr_area_mut(&mut self) -> Option<&mut [u8]> {
        self.parts_mut().1
    }

    /// [`i_block_mut`](Self::i_block_mut) and [`xattr_area_mut`](Self::xattr_area_mut) at once, the
    /// two parts of inline data.
    pub fn parts_mut(&mut self) -> (&mut [u8; 60], Option<&mut [u8]>) {
        let area = match self.extra_size_bytes {
            0 => None,
            from => self.tail.get_mut(from..).filter(|area| !area.is_empty()),
        };
        (&mut self.base.i_block, area)
    }

    /// Extends the inode to all extra fields that new inodes have, if there is space to move the
    /// attributes after them. The new fields are zero.
    ///
    /// # Errors
    /// If there is no space, or the attributes are corrupt. Then nothing is changed.
    pub fn expand_extra_isize(&mut self) -> Result<(), XattrEditError> {
        let wanted = new_extra_isize(self.sb);
        let (from, to) = (self.extra_size_bytes, usize::from(wanted));
        if from >= to {
            return Ok(());
        }
        if from == 0 {
            // The bytes after the fields are not in use.
            self.tail.fill(0);
        } else {
            shift_start(self.tail, from, to)?;
        }
        self.put_extra_isize(wanted);
        Ok(())
    }

    fn put_extra_isize(&mut self, extra_isize: u16) {
        let at = offset_of!(RawInodeExtra, i_extra_isize);
        if let Some(field) = self.tail.get_mut(at..at + size_of::<u16>()) {
            field.copy_from_slice(&extra_isize.to_le_bytes());
        }
        self.extra_size_bytes = extra_isize.into();
    }

    /// Sets the number of a device node, in the old form if it fits.
    ///
    /// # Errors
    /// [`InodeValueError::Device`].
    pub fn set_device(&mut self, device: DeviceNr) -> Result<(), InodeValueError> {
        let i_block = device.to_i_block();
        self.base.i_block = i_block.ok_or(InodeValueError::Device { device })?;
        Ok(())
    }

    /// Sets the target of a symbolic link without a block, and its size.
    ///
    /// # Errors
    /// [`InodeValueError::Target`].
    pub fn set_fast_symlink(&mut self, target: &[u8]) -> Result<(), InodeValueError> {
        let found = target.len();
        if found == 0 || found > FAST_SYMLINK_MAX_BYTES {
            return Err(InodeValueError::Target { found });
        }
        let mut i_block = [0; 60];
        for (to, from) in i_block.iter_mut().zip(target) {
            *to = *from;
        }
        self.base.i_block = i_block;
        self.base.i_size_lo = low32(found as u64);
        self.base.i_size_high = 0.into();
        Ok(())
    }
}

/// `i_extra_isize` of new inodes: all defined fields, or more if the superblock wants that and
/// inodes have the space.
#[must_use]
pub fn new_extra_isize(sb: &Superblock) -> u16 {
    let behind = sb.geometry().inode_size_bytes() - GOOD_OLD_INODE_SIZE_BYTES;
    let defined = size_of::<RawInodeExtra>();
    let asked = if sb.features().ro_compat.contains(RoCompat::EXTRA_ISIZE) {
        let (want, min) = (sb.want_extra_isize_bytes(), sb.min_extra_isize_bytes());
        usize::from(want.max(min))
    } else {
        0
    };
    let size = if asked > defined && asked <= behind && asked % 4 == 0 {
        asked
    } else {
        defined.min(behind)
    };
    u16::try_from(size).unwrap_or(0)
}

#[cfg(test)]
mod tests;

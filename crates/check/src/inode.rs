//! **Purpose.** A view of an inode in its table: named fields, without copies and without checks.

use std::ops::Range;

use fourscore_ondisk::features::{Incompat, RoCompat};
use fourscore_ondisk::inode::{
    FileMode, FileType, GOOD_OLD_INODE_SIZE_BYTES, InodeFlags, RawInode, RawInodeExtra,
};
use fourscore_ondisk::{InodeGeneration, InodeNr, InodeSeed, PhysBlock, Superblock};
use zerocopy::FromBytes;

/// An inode as stored in its table.
#[derive(Clone, Copy)]
pub(crate) struct InodeView<'a> {
    pub(crate) number: InodeNr,
    /// All of it: `s_inode_size` bytes.
    pub(crate) bytes: &'a [u8],
    pub(crate) base: &'a RawInode,
    tail: &'a [u8],
}

impl<'a> InodeView<'a> {
    /// The view of inode `number`, which fills `bytes`; `None` if they are too few.
    pub(crate) fn new(bytes: &'a [u8], number: InodeNr) -> Option<Self> {
        let (base, tail) = RawInode::ref_from_prefix(bytes).ok()?;
        Some(Self {
            number,
            bytes,
            base,
            tail,
        })
    }

    pub(crate) fn mode(&self) -> u16 {
        self.base.i_mode.get()
    }

    pub(crate) fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(FileMode(self.mode()))
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.file_type() == Some(FileType::Directory)
    }

    pub(crate) fn links(&self) -> u32 {
        self.base.i_links_count.get().into()
    }

    pub(crate) fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.base.i_flags.get())
    }

    pub(crate) fn has(&self, flag: InodeFlags) -> bool {
        self.flags().contains(flag)
    }

    /// `i_size`, both halves, for every type.
    pub(crate) fn size_bytes(&self) -> u64 {
        u64::from(self.base.i_size_lo.get()) | u64::from(self.base.i_size_high.get()) << 32
    }

    /// `i_blocks` as counted, in sectors or with `HUGE_FILE_FL` in blocks.
    pub(crate) fn counted_blocks(&self, sb: &Superblock) -> u64 {
        let wide = sb.features().ro_compat.contains(RoCompat::HUGE_FILE);
        let high = if wide {
            self.base.i_blocks_high.get()
        } else {
            0
        };
        u64::from(self.base.i_blocks_lo.get()) | u64::from(high) << 32
    }

    /// Whether `i_blocks` counts blocks of the file system, not of 512 bytes.
    pub(crate) fn counts_large_blocks(&self, sb: &Superblock) -> bool {
        self.has(InodeFlags::HUGE_FILE_FL) && sb.features().ro_compat.contains(RoCompat::HUGE_FILE)
    }

    /// `i_blocks` in units of 512 bytes.
    pub(crate) fn sectors(&self, sb: &Superblock) -> u64 {
        let counted = self.counted_blocks(sb);
        if self.counts_large_blocks(sb) {
            counted << (sb.geometry().block_size().bits() - 9)
        } else {
            counted
        }
    }

    /// The block of attributes; 0 for none.
    pub(crate) fn file_acl(&self, sb: &Superblock) -> PhysBlock {
        let wide = sb.features().incompat.contains(Incompat::BIT64);
        let high = if wide {
            self.base.i_file_acl_high.get()
        } else {
            0
        };
        PhysBlock(u64::from(self.base.i_file_acl_lo.get()) | u64::from(high) << 32)
    }

    /// Whether it is a symbolic link whose target fits into `i_block`.
    pub(crate) fn is_fast_symlink(&self) -> bool {
        self.file_type() == Some(FileType::Symlink)
            && !self.has(InodeFlags::INLINE_DATA_FL)
            && (1..self.base.i_block.len() as u64).contains(&self.size_bytes())
    }

    /// The word of `i_block` at a position.
    pub(crate) fn block_word(&self, position: usize) -> u32 {
        let word = self.base.i_block.get(position * 4..position * 4 + 4);
        word.and_then(|word| word.try_into().ok())
            .map_or(0, u32::from_le_bytes)
    }

    /// `i_extra_isize` as stored; `None` in inodes of 128 bytes.
    pub(crate) fn extra_isize(&self) -> Option<u16> {
        match self.tail {
            [low, high, ..] => Some(u16::from_le_bytes([*low, *high])),
            _ => None,
        }
    }

    /// The largest valid `i_extra_isize`.
    pub(crate) fn most_extra(&self) -> u16 {
        u16::try_from(self.bytes.len() - GOOD_OLD_INODE_SIZE_BYTES).unwrap_or(u16::MAX)
    }

    /// The fields past the first 128 bytes, if the inode has all of them.
    pub(crate) fn extra(&self) -> Option<&'a RawInodeExtra> {
        let size = usize::from(self.extra_isize()?);
        if size < size_of::<RawInodeExtra>() {
            return None;
        }
        RawInodeExtra::ref_from_prefix(self.tail)
            .ok()
            .map(|(extra, _)| extra)
    }

    /// The byte range for attributes inside the inode.
    fn xattr_range(&self) -> Option<Range<usize>> {
        let start = GOOD_OLD_INODE_SIZE_BYTES + usize::from(self.extra_isize()?);
        (start + 4 < self.bytes.len()).then_some(start..self.bytes.len())
    }

    /// The bytes for attributes inside the inode.
    pub(crate) fn xattr_area(&self) -> Option<&'a [u8]> {
        self.bytes.get(self.xattr_range()?)
    }

    /// The project identifier of its quota.
    pub(crate) fn project(&self, sb: &Superblock) -> u32 {
        let has = sb.features().ro_compat.contains(RoCompat::PROJECT);
        let extra = self.extra().filter(|_| has);
        extra.map_or(0, |extra| extra.i_projid.get())
    }

    /// The checksum seed of its blocks.
    pub(crate) fn seed(&self, sb: &Superblock) -> InodeSeed {
        let generation = InodeGeneration(self.base.i_generation.get());
        sb.checksum_seed().for_inode(self.number, generation)
    }

    /// Whether it was never used: all bytes are zero.
    pub(crate) fn is_blank(&self) -> bool {
        let (words, rest) = self.bytes.as_chunks::<8>();
        words.iter().all(|&word| word == [0; 8]) && rest.iter().all(|&byte| byte == 0)
    }
}

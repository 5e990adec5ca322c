//! **Purpose.** The types of an inode's fields: flags, file type, device number.

use bitflags::bitflags;

bitflags! {
    /// `i_flags`, in the kernel's spelling. Unknown bits are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// Overwrite on deletion; not implemented by Linux.
        const SECRM_FL = 0x1;
        /// Keep for undeletion; not implemented by Linux.
        const UNRM_FL = 0x2;
        /// Compress; not implemented by Linux.
        const COMPR_FL = 0x4;
        /// Write synchronously.
        const SYNC_FL = 0x8;
        /// Immutable.
        const IMMUTABLE_FL = 0x10;
        /// Append only.
        const APPEND_FL = 0x20;
        /// `dump` skips it.
        const NODUMP_FL = 0x40;
        /// Access times are not kept.
        const NOATIME_FL = 0x80;
        /// Compression: dirty.
        const DIRTY_FL = 0x100;
        /// Compression: has compressed clusters.
        const COMPRBLK_FL = 0x200;
        /// Compression: access to the raw data.
        const NOCOMPR_FL = 0x400;
        /// Encrypted: the content, and in a directory the names.
        const ENCRYPT_FL = 0x800;
        /// A directory with a hash tree.
        const INDEX_FL = 0x1000;
        /// An inode of an AFS server.
        const IMAGIC_FL = 0x2000;
        /// Data is journaled.
        const JOURNAL_DATA_FL = 0x4000;
        /// Do not merge tails.
        const NOTAIL_FL = 0x8000;
        /// Write directory changes synchronously.
        const DIRSYNC_FL = 0x1_0000;
        /// Spread the subdirectories over the groups.
        const TOPDIR_FL = 0x2_0000;
        /// `i_blocks` counts blocks of the file system.
        const HUGE_FILE_FL = 0x4_0000;
        /// `i_block` is the root of an extent tree.
        const EXTENTS_FL = 0x8_0000;
        /// Sealed with a Merkle tree.
        const VERITY_FL = 0x10_0000;
        /// Holds the value of an extended attribute.
        const EA_INODE_FL = 0x20_0000;
        /// Formerly: has blocks past the end.
        const EOFBLOCKS_FL = 0x40_0000;
        /// Access memory directly.
        const DAX_FL = 0x200_0000;
        /// Data inside the inode.
        const INLINE_DATA_FL = 0x1000_0000;
        /// New entries inherit the project.
        const PROJINHERIT_FL = 0x2000_0000;
        /// A directory that ignores case.
        const CASEFOLD_FL = 0x4000_0000;
        /// Reserved for the library of e2fsprogs.
        const RESERVED_FL = 0x8000_0000;
    }
}

/// Groups of flags.
impl InodeFlags {
    /// The flags that `FS_IOC_GETFLAGS` returns.
    pub const USER_VISIBLE: Self = Self::USER_MODIFIABLE.union(
        Self::DIRTY_FL
            .union(Self::COMPRBLK_FL)
            .union(Self::NOCOMPR_FL)
            .union(Self::ENCRYPT_FL)
            .union(Self::INDEX_FL)
            .union(Self::VERITY_FL)
            .union(Self::INLINE_DATA_FL),
    );

    /// The flags that `FS_IOC_SETFLAGS` can change.
    pub const USER_MODIFIABLE: Self = Self::SECRM_FL
        .union(Self::UNRM_FL)
        .union(Self::COMPR_FL)
        .union(Self::SYNC_FL)
        .union(Self::IMMUTABLE_FL)
        .union(Self::APPEND_FL)
        .union(Self::NODUMP_FL)
        .union(Self::NOATIME_FL)
        .union(Self::JOURNAL_DATA_FL)
        .union(Self::NOTAIL_FL)
        .union(Self::DIRSYNC_FL)
        .union(Self::TOPDIR_FL)
        .union(Self::EXTENTS_FL)
        .union(Self::EOFBLOCKS_FL)
        .union(Self::DAX_FL)
        .union(Self::PROJINHERIT_FL)
        .union(Self::CASEFOLD_FL);

    /// The flags that a new inode inherits from its directory, if its type may have them.
    pub const INHERITED: Self = Self::SECRM_FL
        .union(Self::UNRM_FL)
        .union(Self::COMPR_FL)
        .union(Self::SYNC_FL)
        .union(Self::NODUMP_FL)
        .union(Self::NOATIME_FL)
        .union(Self::NOCOMPR_FL)
        .union(Self::JOURNAL_DATA_FL)
        .union(Self::NOTAIL_FL)
        .union(Self::DIRSYNC_FL)
        .union(Self::PROJINHERIT_FL)
        .union(Self::CASEFOLD_FL)
        .union(Self::DAX_FL);

    /// Of these flags, those that an inode of this type may have.
    #[must_use]
    pub fn of_type(self, file_type: FileType) -> Self {
        let only_directories =
            Self::DIRSYNC_FL | Self::TOPDIR_FL | Self::CASEFOLD_FL | Self::PROJINHERIT_FL;
        match file_type {
            FileType::Directory => self,
            FileType::Regular => self - only_directories,
            _ => self & (Self::NODUMP_FL | Self::NOATIME_FL),
        }
    }
}

/// The type of an inode: the top four bits of `i_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A pipe with a name.
    Fifo,
    /// A character device.
    CharDevice,
    /// A directory.
    Directory,
    /// A block device.
    BlockDevice,
    /// A regular file.
    Regular,
    /// A symbolic link.
    Symlink,
    /// A socket.
    Socket,
}

impl FileType {
    /// The type in a mode; `None` for no type and for unknown values.
    #[must_use]
    pub fn from_mode(mode: FileMode) -> Option<Self> {
        Some(match mode.0 & 0xf000 {
            0x1000 => Self::Fifo,
            0x2000 => Self::CharDevice,
            0x4000 => Self::Directory,
            0x6000 => Self::BlockDevice,
            0x8000 => Self::Regular,
            0xa000 => Self::Symlink,
            0xc000 => Self::Socket,
            _ => return None,
        })
    }

    /// The top four bits of a mode of this type.
    #[must_use]
    pub fn mode_bits(self) -> u16 {
        match self {
            Self::Fifo => 0x1000,
            Self::CharDevice => 0x2000,
            Self::Directory => 0x4000,
            Self::BlockDevice => 0x6000,
            Self::Regular => 0x8000,
            Self::Symlink => 0xa000,
            Self::Socket => 0xc000,
        }
    }

    /// Whether it is a character or block device.
    #[must_use]
    pub fn is_device(self) -> bool {
        matches!(self, Self::CharDevice | Self::BlockDevice)
    }
}

/// `i_mode`: type and permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileMode(pub u16);

impl FileMode {
    /// The mode of a file of this type with the lower twelve bits of `permissions`.
    #[must_use]
    pub fn new(file_type: FileType, permissions: u16) -> Self {
        Self(file_type.mode_bits() | (permissions & 0o7777))
    }

    /// Permissions with set-user, set-group and sticky bits.
    #[must_use]
    pub fn permissions(self) -> u16 {
        self.0 & 0o7777
    }
}

/// The number of a device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNr {
    /// The driver: 12 bits.
    pub major: u32,
    /// The device of the driver: 20 bits.
    pub minor: u32,
}

impl DeviceNr {
    /// From `i_block`: the first word holds an old number (8 bits each), or is zero and the second
    /// holds a new one (12 and 20 bits).
    #[must_use]
    pub fn from_i_block(i_block: &[u8; 60]) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *i_block;
        let old = u32::from_le_bytes([a, b, c, d]);
        if old != 0 {
            return Self {
                major: (old >> 8) & 0xff,
                minor: old & 0xff,
            };
        }
        let new = u32::from_le_bytes([e, f, g, h]);
        Self {
            major: (new >> 8) & 0xfff,
            minor: (new & 0xff) | ((new >> 12) & 0xf_ff00),
        }
    }
    /// The form in `i_block`: the old one if the number fits, which all implementations read.
    /// `None` for a number of more than 12 and 20 bits.
    #[must_use]
    pub fn to_i_block(self) -> Option<[u8; 60]> {
        let Self { major, minor } = self;
        let words = if major < 1 << 8 && minor < 1 << 8 {
            [major << 8 | minor, 0]
        } else if major < 1 << 12 && minor < 1 << 20 {
            [
                0,
                (minor & 0xff) | (major << 8) | ((minor & 0xf_ff00) << 12),
            ]
        } else {
            return None;
        };
        let mut i_block = [0; 60];
        for (to, from) in i_block.chunks_mut(4).zip(words) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        Some(i_block)
    }
}

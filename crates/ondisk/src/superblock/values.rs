//! **Purpose.** The types of the superblock's fields.

use bitflags::bitflags;
use uuid::Uuid;

use crate::time::Timestamp;
use crate::types::{InodeNr, PhysBlock};

bitflags! {
    /// `s_state`. Unknown bits are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct State: u16 {
        /// Unmounted cleanly (or, with a journal, always set).
        const VALID_FS = 0x1;
        /// An error was seen; a check is due.
        const ERROR_FS = 0x2;
        /// Orphans were being recovered.
        const ORPHAN_FS = 0x4;
        /// Fast commits were being replayed.
        const FC_REPLAY = 0x20;
    }
}

bitflags! {
    /// `s_flags`. Unknown bits are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SuperFlags: u32 {
        /// Directory hashes take name bytes as signed.
        const SIGNED_HASH = 0x1;
        /// Directory hashes take name bytes as unsigned.
        const UNSIGNED_HASH = 0x2;
        /// May be mounted by development code.
        const TEST_FILESYS = 0x4;
    }
}

bitflags! {
    /// `s_default_mount_opts`. Unknown bits are kept. The journal mode is the two bits of
    /// [`JMODE`](Self::JMODE) together.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DefaultMountOpts: u32 {
        /// `debug`.
        const DEBUG = 0x1;
        /// `bsdgroups`.
        const BSDGROUPS = 0x2;
        /// `user_xattr`.
        const XATTR_USER = 0x4;
        /// `acl`.
        const ACL = 0x8;
        /// `uid16`.
        const UID16 = 0x10;
        /// `data=journal` alone, `data=writeback` with the next bit.
        const JMODE_DATA = 0x20;
        /// `data=ordered` alone.
        const JMODE_ORDERED = 0x40;
        /// Both bits of the journal mode: `data=writeback`.
        const JMODE = 0x60;
        /// `nobarrier`.
        const NOBARRIER = 0x100;
        /// `block_validity`.
        const BLOCK_VALIDITY = 0x200;
        /// `discard`.
        const DISCARD = 0x400;
        /// `nodelalloc`.
        const NODELALLOC = 0x800;
    }
}

/// `s_errors`: the action when an error is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorPolicy {
    /// Continue.
    Continue,
    /// Remount read-only.
    RemountReadOnly,
    /// Panic.
    Panic,
    /// Not a known value; treated as `RemountReadOnly`.
    Unknown(u16),
}

impl ErrorPolicy {
    /// The policy with this name in mount(8) and mke2fs.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "continue" => Some(Self::Continue),
            "remount-ro" => Some(Self::RemountReadOnly),
            "panic" => Some(Self::Panic),
            _ => None,
        }
    }
}

/// `s_creator_os`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreatorOs {
    /// Linux.
    Linux,
    /// The Hurd, which uses some inode fields differently.
    Hurd,
    /// Masix.
    Masix,
    /// FreeBSD.
    FreeBsd,
    /// Lites.
    Lites,
    /// Not a known value.
    Unknown(u32),
}

/// The checksums of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataChecksum {
    /// None.
    None,
    /// crc16 of group descriptors (`uninit_bg`).
    Crc16,
    /// crc32c of all metadata (`metadata_csum`, which takes precedence over `uninit_bg`).
    Crc32c,
}

/// The location of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalPlace {
    /// In an inode of the file system.
    Inode(InodeNr),
    /// On a device of its own.
    Device {
        /// The UUID of the journal.
        uuid: Uuid,
        /// The device number at the time it was attached, as the kernel encodes it.
        device: u32,
    },
}

/// The encoding of names under `casefold`: UTF-8, Unicode 12.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameEncoding {
    /// Whether names that are not valid UTF-8 are refused.
    pub strict: bool,
}

/// The hidden inodes of quota files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaInodes {
    /// Per user.
    pub user: Option<InodeNr>,
    /// Per group.
    pub group: Option<InodeNr>,
    /// Per project.
    pub project: Option<InodeNr>,
}

/// One of the two errors that the superblock records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRecord<'a> {
    /// The time.
    pub time: Timestamp,
    /// The inode concerned, if any.
    pub inode: Option<InodeNr>,
    /// The block concerned, if any.
    pub block: Option<PhysBlock>,
    /// The function that reported it.
    pub function: &'a [u8],
    /// The line in its source.
    pub line: u32,
    /// The kernel's code for the kind of error; 0 when not recorded.
    pub code: u8,
}

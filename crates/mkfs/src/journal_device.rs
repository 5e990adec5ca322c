//! **Purpose.** Journals on a device of their own: making one (`-O journal_dev`), and giving one to
//! a file system (`-J device=`).
//!
//! **Model.** Such a device holds an ext4 superblock with the feature `journal_dev` at byte 1024,
//! and in the block after that one the journal's own superblock, which lists the UUIDs of the file
//! systems that use it. A file system names its journal by UUID and device number.
//!
//! **Crash safety.** A file system is entered into its journal before it is written: a journal
//! that names a file system which is not there does no harm. [`JournalDevicePlan::write`] clears
//! the old superblock first and writes the new one last.

use std::fmt;

use fourscore_block::BlockDevice;
use fourscore_ondisk::features::{FeatureSet, Incompat, RoCompat};
use fourscore_ondisk::jbd2::{JournalSuperblock, JournalVersion, RawJournalSuperblock};
use fourscore_ondisk::superblock::{JournalDevice, RawSuperblock, SUPERBLOCK_OFFSET_BYTES, State};
use fourscore_ondisk::{BlockCount, BlockSize};
use uuid::Uuid;
use zerocopy::byteorder::big_endian::U32 as BigU32;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::error::{FormatError, FormatResult};
use crate::options::{OldContent, Options};
use crate::plan::identity;
use crate::profile::Profile;
use crate::resolve::{JournalParameters, resolve_journal_device};
use crate::sizes::FIRST_INO;
use crate::superblock::{
    EXTRA_ISIZE, creator_value, errors_value, low, low16, put_features, put_identity, put_text,
};
use crate::text::edit_features;
use crate::write::wipe;

/// The fewest blocks of a journal.
const LEAST_JOURNAL_BLOCKS: u64 = 1024;

/// A journal on a device of its own, as a new file system must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalJournal {
    device: JournalDevice,
    device_number: u32,
}

impl ExternalJournal {
    /// Looks at the journal on `device`, which the host knows under `device_number`
    /// (`s_journal_dev`).
    ///
    /// # Errors
    /// [`FormatError::Option`] if there is no journal; the device's errors.
    pub fn read<D: BlockDevice + ?Sized>(device: &D, device_number: u32) -> FormatResult<Self> {
        let mut bytes = [0; size_of::<RawSuperblock>()];
        if device.len_bytes() < SUPERBLOCK_OFFSET_BYTES + bytes.len() as u64 {
            return Err(no_journal("is too short for one"));
        }
        device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
        let raw = RawSuperblock::from_bytes(&bytes).map_err(no_journal)?;
        let found = Self {
            device: JournalDevice::try_from(raw).map_err(no_journal)?,
            device_number,
        };
        found.read_journal(device)?;
        Ok(found)
    }

    /// The block size of the journal, and of every file system that uses it.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.device.block_size
    }

    /// The UUID by which file systems name it.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.device.uuid
    }

    /// `s_journal_dev`.
    pub(crate) fn device_number(&self) -> u32 {
        self.device_number
    }

    /// Enters the file system `user` into the journal on `device`. Durable when the call returns.
    ///
    /// # Errors
    /// [`FormatError::Option`] if another file system uses the journal: the kernel lets only one;
    /// the device's errors.
    pub fn add_user<D: BlockDevice + ?Sized>(&self, device: &D, user: Uuid) -> FormatResult<()> {
        let mut journal = self.read_journal(device)?;
        if let Some(other) = journal.users().find(|&other| other != user) {
            let why = format!("is in use by the file system {other}");
            return Err(FormatError::option("-J device", why));
        }
        journal.set_only_user(user);
        journal.seal();
        device.write_at(journal.raw().as_bytes(), self.journal_offset_bytes())?;
        device.flush()?;
        Ok(())
    }

    fn journal_offset_bytes(&self) -> u64 {
        self.device.block_size.offset(self.device.journal_start)
    }

    fn read_journal<D: BlockDevice + ?Sized>(&self, device: &D) -> FormatResult<JournalSuperblock> {
        let mut bytes = [0; size_of::<RawJournalSuperblock>()];
        device.read_at(&mut bytes, self.journal_offset_bytes())?;
        let raw = RawJournalSuperblock::ref_from_bytes(&bytes)
            .map_err(|_| no_journal("its superblock is cut off"))?;
        let journal = JournalSuperblock::try_from(raw).map_err(no_journal)?;
        if journal.version() == JournalVersion::V1 {
            return Err(no_journal("it is of version 1, which knows no users"));
        }
        if journal.block_size_bytes() as usize != self.block_size().bytes() {
            return Err(no_journal("its two superblocks name different block sizes"));
        }
        Ok(journal)
    }
}

fn no_journal(why: impl fmt::Display) -> FormatError {
    FormatError::option("-J device", format!("holds no journal: {why}"))
}

impl Options {
    /// Whether these options ask for a journal on a device of its own ([`JournalDevicePlan`])
    /// instead of a file system.
    ///
    /// # Errors
    /// [`FormatError::Option`] for features that do not exist.
    pub fn is_journal_device(&self) -> FormatResult<bool> {
        let mut features = FeatureSet::default();
        edit_features(&mut features, self.features.as_deref().unwrap_or_default())?;
        Ok(features.incompat.contains(Incompat::JOURNAL_DEV))
    }
}

/// A journal on a device of its own, planned.
#[derive(Clone, Debug)]
pub struct JournalDevicePlan {
    raw: RawSuperblock,
    journal: RawJournalSuperblock,
    block_size: BlockSize,
    blocks: u32,
    old_content: OldContent,
    discard: bool,
    lazy: bool,
}

impl JournalDevicePlan {
    /// Plans a journal that fills a device of `len_bytes`.
    ///
    /// # Errors
    /// Everything that keeps it from being made, except I/O.
    pub fn new(options: &Options, profile: &Profile, len_bytes: u64) -> FormatResult<Self> {
        let p = resolve_journal_device(options, profile, len_bytes)?;
        if p.blocks < LEAST_JOURNAL_BLOCKS {
            return Err(FormatError::TooSmall {
                blocks: p.blocks,
                block_size_bytes: p.block_size.bytes(),
                why: "a journal has at least 1024",
            });
        }
        let Ok(blocks) = u32::try_from(p.blocks) else {
            let why = format!("{} blocks are over the 2^32 of a journal", p.blocks);
            return Err(FormatError::option("size", why));
        };
        let id = identity(&p.options)?;
        let mut raw = superblock(&p);
        let features = raw.features();
        put_identity(&mut raw, p.hash_version, features, &id);
        if p.checksum {
            raw.s_kbytes_written = 1.into();
            raw.seal();
        }
        let made = JournalDevice::try_from(&raw);
        let made = made.map_err(|error| FormatError::Invalid(error.to_string()))?;
        let mut journal = RawJournalSuperblock::new(p.block_size, blocks, id.uuid);
        journal.s_nr_users = BigU32::new(0);
        journal.s_first = BigU32::new(low(made.journal_start.0 + 1).get());
        Ok(Self {
            raw,
            journal,
            block_size: p.block_size,
            blocks,
            old_content: p.options.old_content,
            discard: p.discard,
            lazy: p.lazy_journal,
        })
    }

    /// The UUID by which file systems name it.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        Uuid::from_bytes(self.raw.s_uuid)
    }

    /// The size of its blocks.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Its blocks, both superblocks included.
    #[must_use]
    pub fn blocks(&self) -> BlockCount {
        BlockCount(self.blocks.into())
    }

    /// Writes the journal. It is durable when the call returns.
    ///
    /// # Errors
    /// [`FormatError::Io`]; then the device holds no journal any more.
    pub fn write<D: BlockDevice + ?Sized>(&self, device: &D) -> FormatResult<()> {
        let size_bytes = u64::from(self.blocks) << self.block_size.bits();
        if device.len_bytes() < size_bytes {
            let found = device.len_bytes();
            let why = format!("the device has {found} bytes, the journal {size_bytes}");
            return Err(FormatError::option("size", why));
        }
        let reads_zero = wipe(device, size_bytes, self.old_content, self.discard)?;
        if !(reads_zero || self.lazy) {
            device.write_zeroes(0..size_bytes)?;
        }
        let mut block = vec![0; self.block_size.bytes()];
        crate::files::put(&mut block, 0, self.journal.as_bytes());
        let start = (SUPERBLOCK_OFFSET_BYTES >> self.block_size.bits()) + 1;
        device.write_at(&block, start << self.block_size.bits())?;
        device.flush()?;
        device.write_at(self.raw.as_bytes(), SUPERBLOCK_OFFSET_BYTES)?;
        device.flush()?;
        Ok(())
    }
}

/// What mke2fs says about it.
impl fmt::Display for JournalDevicePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = self.block_size.bytes() >> 10;
        writeln!(f, "Creating journal with {} {kib}k blocks", self.blocks)?;
        writeln!(f, "Journal UUID: {}\n", self.uuid())
    }
}

/// The superblock in front of the journal, except for what identifies it: that of a file system
/// without groups.
fn superblock(p: &JournalParameters) -> RawSuperblock {
    let mut raw = RawSuperblock::new_zeroed();
    let log = p.block_size.bits() - 10;
    let bytes = p.block_size.bytes() as u64;
    raw.s_magic = 0xef53.into();
    raw.s_state = State::VALID_FS.bits().into();
    raw.s_rev_level = 1.into();
    (raw.s_log_block_size, raw.s_log_cluster_size) = (log.into(), log.into());
    raw.s_first_data_block = u32::from(log == 0).into();
    raw.s_blocks_count_lo = low(p.blocks);
    let per_group = (8 * bytes).min((1 << 16) - 8);
    (raw.s_blocks_per_group, raw.s_clusters_per_group) = (low(per_group), low(per_group));
    raw.s_first_ino = FIRST_INO.into();
    raw.s_inode_size = low16(p.inode_size_bytes.into());
    if p.inode_size_bytes > 128 {
        raw.s_min_extra_isize = EXTRA_ISIZE.into();
        raw.s_want_extra_isize = EXTRA_ISIZE.into();
    }
    raw.s_default_mount_opts = p.mount_opts.bits().into();
    raw.s_errors = errors_value(p.errors);
    raw.s_creator_os = creator_value(p.options.creator_os);
    put_text(&mut raw.s_volume_name, &p.options.label);
    put_text(&mut raw.s_last_mounted, &p.options.last_mounted);
    let mut features = FeatureSet {
        incompat: Incompat::JOURNAL_DEV,
        ..FeatureSet::default()
    };
    features.ro_compat.set(RoCompat::METADATA_CSUM, p.checksum);
    put_features(&mut raw, features);
    raw
}

//! **Purpose.** Makes a journal on a device of its own (`-O journal_dev`).
//!
//! **Not here.** Using one for a file system (`external_journal`).
//!
//! **Model.** Such a device holds an ext4 superblock with the feature `journal_dev` at byte 1024,
//! and in the block after that one the superblock of the journal, which lists the UUIDs of the file
//! systems that use it. A file system names its journal by UUID and device number.
//!
//! **Crash safety.** [`JournalDeviceLayout::write`] clears the old superblock first and writes the
//! new one last.

use std::fmt;

use fourscore_block::BlockDevice;
use fourscore_ondisk::features::{FeatureSet, Incompat, RoCompat};
use fourscore_ondisk::jbd2::RawJournalSuperblock;
use fourscore_ondisk::superblock::{JournalDevice, RawSuperblock, SUPERBLOCK_OFFSET_BYTES, State};
use fourscore_ondisk::words::{low16, low32, put};
use fourscore_ondisk::{BlockCount, BlockSize};
use uuid::Uuid;
use zerocopy::byteorder::big_endian::U32 as BigU32;
use zerocopy::{FromZeros, IntoBytes};

use crate::error::{FormatError, FormatResult};
use crate::identity::Identity;
use crate::options::{OldContent, Options};
use crate::profile::Profile;
use crate::resolve::{JournalParameters, resolve_journal_device};
use crate::sizes::FIRST_INO;
use crate::superblock::{
    EXTRA_ISIZE, creator_value, errors_value, put_features, put_identity, put_text,
};
use crate::text::edit_features;
use crate::write::wipe;

/// The fewest blocks of a journal.
const LEAST_JOURNAL_BLOCKS: u64 = 1024;

impl Options {
    /// Whether these options ask for a journal on a device of its own ([`JournalDeviceLayout`])
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

/// The layout of a journal on a device of its own that is not written yet.
#[derive(Clone, Debug)]
pub struct JournalDeviceLayout {
    raw: RawSuperblock,
    journal: RawJournalSuperblock,
    block_size: BlockSize,
    blocks: u32,
    old_content: OldContent,
    discard: bool,
    lazy: bool,
}

impl JournalDeviceLayout {
    /// Computes the layout of a journal that fills a device of `len_bytes`.
    ///
    /// # Errors
    /// All that can keep it from being made, except I/O.
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
        let id = Identity::of(&p.options)?;
        let mut raw = superblock(&p);
        let features = raw.features();
        put_identity(&mut raw, p.hash_version, features, &id);
        if p.checksum {
            raw.s_kbytes_written = 1.into();
            raw.seal();
        }
        let made = JournalDevice::try_from(&raw);
        let made = made.map_err(FormatError::invalid)?;
        let mut journal = RawJournalSuperblock::new(p.block_size, blocks, id.uuid);
        journal.s_nr_users = BigU32::new(0);
        journal.s_first = BigU32::new(low32(made.journal_start.0 + 1).get());
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
        put(&mut block, 0, self.journal.as_bytes());
        let start = (SUPERBLOCK_OFFSET_BYTES >> self.block_size.bits()) + 1;
        device.write_at(&block, start << self.block_size.bits())?;
        device.flush()?;
        device.write_at(self.raw.as_bytes(), SUPERBLOCK_OFFSET_BYTES)?;
        device.flush()?;
        Ok(())
    }
}

/// The lines that mke2fs prints about it.
impl fmt::Display for JournalDeviceLayout {
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
    raw.s_blocks_count_lo = low32(p.blocks);
    let per_group = (8 * bytes).min((1 << 16) - 8);
    (raw.s_blocks_per_group, raw.s_clusters_per_group) = (low32(per_group), low32(per_group));
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

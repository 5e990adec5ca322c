//! **Purpose.** The checks of the bytes of a superblock, which make a [`Superblock`].

use uuid::Uuid;
use zerocopy::FromBytes;
use zerocopy::byteorder::little_endian::U32;

use super::{RawSuperblock, Superblock, SuperblockError, SuperblockRejected, UnsupportedFormat};
use crate::checksum::{ChecksumMismatch, ChecksumSeed};
use crate::features::{Compat, FeatureSet, Incompat, RoCompat};
use crate::geometry::Geometry;
use crate::types::{BlockCount, BlockSize, GroupNr, InodeNr, PhysBlock};

const EXT4_SUPER_MAGIC: u16 = 0xef53;
const CRC32C_CHKSUM: u8 = 1;
const ENC_UTF8_12_1: u16 = 1;
const GOOD_OLD_FIRST_INO: u32 = 11;

impl RawSuperblock {
    /// The superblock at the start of `bytes`.
    ///
    /// # Errors
    /// [`SuperblockRejected::TooShort`].
    pub fn from_bytes(bytes: &[u8]) -> Result<&Self, SuperblockRejected> {
        match Self::ref_from_prefix(bytes) {
            Ok((raw, _)) => Ok(raw),
            Err(_) => Err(SuperblockRejected::TooShort {
                found_bytes: bytes.len(),
            }),
        }
    }

    /// All feature bits, known or not.
    #[must_use]
    pub fn features(&self) -> FeatureSet {
        FeatureSet {
            compat: Compat::from_bits_retain(self.s_feature_compat.get()),
            incompat: Incompat::from_bits_retain(self.s_feature_incompat.get()),
            ro_compat: RoCompat::from_bits_retain(self.s_feature_ro_compat.get()),
        }
    }

    /// A count of two halves; the high one is used only with `64bit`.
    pub(crate) fn wide(&self, features: FeatureSet, low: U32, high: U32) -> u64 {
        let high = match features.incompat.contains(Incompat::BIT64) {
            true => high.get(),
            false => 0,
        };
        u64::from(low.get()) | (u64::from(high) << 32)
    }

    fn check_magic(&self) -> Result<(), SuperblockRejected> {
        match self.s_magic.get() {
            EXT4_SUPER_MAGIC => Ok(()),
            found => Err(SuperblockRejected::NotExt4 { found }),
        }
    }

    fn check_checksum(&self, features: FeatureSet) -> Result<(), SuperblockRejected> {
        if !features.ro_compat.contains(RoCompat::METADATA_CSUM) {
            return Ok(());
        }
        if self.s_checksum_type != CRC32C_CHKSUM {
            let found = self.s_checksum_type;
            return Err(UnsupportedFormat::ChecksumType { found }.into());
        }
        ChecksumMismatch::check(self.s_checksum.get(), self.checksum())
            .map_err(|mismatch| SuperblockError::Checksum(mismatch).into())
    }
}

impl TryFrom<&RawSuperblock> for Superblock {
    type Error = SuperblockRejected;

    fn try_from(raw: &RawSuperblock) -> Result<Self, SuperblockRejected> {
        raw.check_magic()?;
        let features = raw.features();
        if features.incompat.contains(Incompat::JOURNAL_DEV) {
            return Err(SuperblockRejected::JournalDevice);
        }
        check_format(raw, features)?;
        raw.check_checksum(features)?;
        let geometry = Geometry::from_superblock(raw, features)?;
        check_descriptors(&geometry)?;
        check_first_inode(raw)?;
        let faults = faults(raw, features, &geometry);
        let checksum_seed = match features.incompat.contains(Incompat::CSUM_SEED) {
            true => ChecksumSeed::from_stored(raw.s_checksum_seed.get()),
            false => ChecksumSeed::from_uuid(&raw.s_uuid),
        };
        Ok(Self {
            raw: *raw,
            features,
            geometry,
            checksum_seed,
            faults,
        })
    }
}

/// Refuses unsupported formats. This is the first check, since the meaning of all other fields
/// depends on the format.
fn check_format(raw: &RawSuperblock, features: FeatureSet) -> Result<(), UnsupportedFormat> {
    features.check_reading()?;
    let revision = raw.s_rev_level.get();
    if revision > 1 {
        return Err(UnsupportedFormat::Revision { found: revision });
    }
    let encoding = raw.s_encoding.get();
    if features.incompat.contains(Incompat::CASEFOLD) && encoding != ENC_UTF8_12_1 {
        return Err(UnsupportedFormat::Encoding { found: encoding });
    }
    if features.incompat.contains(Incompat::ENCRYPT) && raw.s_encryption_level != 0 {
        return Err(UnsupportedFormat::EncryptionLevel {
            found: raw.s_encryption_level,
        });
    }
    Ok(())
}

fn check_first_inode(raw: &RawSuperblock) -> Result<(), SuperblockError> {
    let inodes_count = raw.s_inodes_count.get();
    let found = raw.first_ino().0;
    if (GOOD_OLD_FIRST_INO..=inodes_count).contains(&found) {
        Ok(())
    } else {
        Err(SuperblockError::FirstInode {
            found,
            inodes_count,
        })
    }
}

/// The invalid fields that reading does not depend on.
fn faults(raw: &RawSuperblock, features: FeatureSet, geometry: &Geometry) -> Vec<SuperblockError> {
    let meta_bg = features.incompat.contains(Incompat::META_BG);
    let (found, descriptor_blocks) = (raw.s_first_meta_bg.get(), geometry.desc_blocks());
    let first_meta_bg = SuperblockError::FirstMetaBg {
        found,
        descriptor_blocks,
    };
    let mut faults = Vec::new();
    faults.extend((meta_bg && found > descriptor_blocks).then_some(first_meta_bg));
    faults.extend(journal_fault(raw, features));
    faults.extend(hidden_inode_faults(raw, features));
    let has_mmp = features.incompat.contains(Incompat::MMP);
    let found = raw.s_mmp_block.get();
    let mmp = SuperblockError::MmpBlock { found };
    faults.extend((has_mmp && !may_be_mmp_block(geometry, PhysBlock(found))).then_some(mmp));
    faults
}

/// Checks that a journal is either in an inode or on a device.
fn journal_fault(raw: &RawSuperblock, features: FeatureSet) -> Option<SuperblockError> {
    let (inode, device) = (raw.s_journal_inum.get(), raw.s_journal_dev.get());
    let has_device = device != 0 || raw.s_journal_uuid != [0; 16];
    let nowhere = inode == 0 && !has_device;
    let twice = inode != 0 && device != 0;
    let is_wrong = features.compat.contains(Compat::HAS_JOURNAL) && (nowhere || twice);
    is_wrong.then_some(SuperblockError::Journal { inode, device })
}

/// Checks that inodes in fields of the superblock exist, and have no other role.
fn hidden_inode_faults(
    raw: &RawSuperblock,
    features: FeatureSet,
) -> impl Iterator<Item = SuperblockError> {
    let inodes_count = raw.s_inodes_count.get();
    let (compat, ro_compat) = (features.compat, features.ro_compat);
    let quota = ro_compat.contains(RoCompat::QUOTA);
    let journal = compat.contains(Compat::HAS_JOURNAL);
    let orphan_file = compat.contains(Compat::ORPHAN_FILE);
    // Field, value, whether it is looked at, its minimum, and whether it is a quota file. e2fsck
    // looks at that of projects also without the feature `project`.
    let fields = [
        ("s_journal_inum", raw.s_journal_inum, journal, 0, false),
        ("s_usr_quota_inum", raw.s_usr_quota_inum, quota, 0, true),
        ("s_grp_quota_inum", raw.s_grp_quota_inum, quota, 0, true),
        ("s_prj_quota_inum", raw.s_prj_quota_inum, quota, 0, true),
        (
            "s_orphan_file_inum",
            raw.s_orphan_file_inum,
            orphan_file,
            1,
            false,
        ),
    ];
    let in_use = fields.into_iter().filter(|(_, _, counts, ..)| *counts);
    in_use.filter_map(move |(field, found, _, least, is_quota)| {
        let found = found.get();
        if !(least..=inodes_count).contains(&found) {
            return Some(SuperblockError::HiddenInode {
                field,
                found,
                inodes_count,
            });
        }
        let is_taken = is_quota && has_other_role(InodeNr(found));
        is_taken.then_some(SuperblockError::QuotaInode { field, found })
    })
}

/// Whether an inode has a role other than quota, so that it cannot be a quota file.
pub(super) fn has_other_role(inode: InodeNr) -> bool {
    const USER_QUOTA: u32 = 3;
    const GROUP_QUOTA: u32 = 4;
    (1..GOOD_OLD_FIRST_INO).contains(&inode.0) && !matches!(inode.0, USER_QUOTA | GROUP_QUOTA)
}

/// Whether the MMP block may be there.
pub(super) fn may_be_mmp_block(geometry: &Geometry, block: PhysBlock) -> bool {
    let count = BlockCount(1);
    geometry.contains(block, count) && !geometry.overlaps_base_meta(block, count)
}

/// Refuses a file system that is too small for its own descriptors. Descriptors are in ascending
/// order, so checking those of the first and the last group is enough. With `meta_bg` each is in an
/// existing group.
fn check_descriptors(geometry: &Geometry) -> Result<(), SuperblockError> {
    let blocks = geometry.blocks().0;
    for group in [0, geometry.groups().saturating_sub(1)] {
        let place = geometry.desc_place(GroupNr(group));
        if let Some(found) = place
            .map(|place| place.block.0)
            .filter(|&block| block >= blocks)
        {
            return Err(SuperblockError::Descriptors { found, blocks });
        }
    }
    Ok(())
}

impl RawSuperblock {
    /// The first inode that is not reserved; revision 0 has no field for it.
    pub(crate) fn first_ino(&self) -> InodeNr {
        match self.s_rev_level.get() {
            0 => InodeNr(GOOD_OLD_FIRST_INO),
            _ => InodeNr(self.s_first_ino.get()),
        }
    }
}

/// The superblock before an external journal (feature `journal_dev`): it identifies the device
/// and gives the start of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalDevice {
    /// The UUID that `s_journal_uuid` of the file system must name.
    pub uuid: Uuid,
    /// The block size of device and journal.
    pub block_size: BlockSize,
    /// The blocks of the device.
    pub blocks: BlockCount,
    /// The block of the jbd2 superblock, the one after this superblock's.
    pub journal_start: PhysBlock,
}

impl TryFrom<&RawSuperblock> for JournalDevice {
    type Error = SuperblockRejected;

    fn try_from(raw: &RawSuperblock) -> Result<Self, SuperblockRejected> {
        raw.check_magic()?;
        let features = raw.features();
        if !features.incompat.contains(Incompat::JOURNAL_DEV) {
            return Err(SuperblockRejected::NotJournalDevice);
        }
        raw.check_checksum(features)?;
        let found = raw.s_log_block_size.get();
        let block_size =
            BlockSize::from_log(found).ok_or(SuperblockError::LogBlockSize { found })?;
        let blocks = raw.wide(features, raw.s_blocks_count_lo, raw.s_blocks_count_hi);
        let journal_start = PhysBlock((1024 >> block_size.bits()) + 1);
        if blocks <= journal_start.0 || blocks > i64::MAX.cast_unsigned() >> block_size.bits() {
            return Err(SuperblockError::BlocksCount { found: blocks }.into());
        }
        Ok(Self {
            uuid: Uuid::from_bytes(raw.s_uuid),
            block_size,
            blocks: BlockCount(blocks),
            journal_start,
        })
    }
}

//! **Purpose.** The fields of the new superblock that do not depend on where metadata is placed.

use fourscore_ondisk::ChecksumSeed;
use fourscore_ondisk::features::{Compat, FeatureSet, Incompat, RoCompat};
use fourscore_ondisk::superblock::{
    CreatorOs, ErrorPolicy, RawSuperblock, State, SuperFlags, Superblock,
};
use fourscore_ondisk::words::{high32, low16, low32};
use zerocopy::FromZeros;
use zerocopy::byteorder::little_endian::{U16, U32};

use crate::error::{FormatError, FormatResult};
use crate::identity::Identity;
use crate::resolve::Parameters;
use crate::sizes::{FIRST_INO, Sizes};

/// Mounts and seconds between checks if the profile has periodic checks.
const CHECK_MOUNTS: u16 = 20;
const CHECK_SECONDS: u32 = 180 * 86400;
/// Fields of inodes behind the first 128 bytes.
pub(crate) const EXTRA_ISIZE: u16 = 32;

/// Sets the fields that follow from parameters and counts.
pub(crate) fn build(p: &Parameters, sizes: &Sizes, id: &Identity) -> RawSuperblock {
    let mut raw = RawSuperblock::new_zeroed();
    let options = &p.options;
    raw.s_magic = 0xef53.into();
    raw.s_state = State::VALID_FS.bits().into();
    raw.s_rev_level = p.revision.into();
    let log_block_size = p.block_size.bits() - 10;
    raw.s_log_block_size = log_block_size.into();
    raw.s_log_cluster_size = (log_block_size + p.cluster_log).into();
    raw.s_first_data_block = low32(sizes.first_data_block);
    raw.s_blocks_per_group = low32(sizes.blocks_per_group);
    raw.s_clusters_per_group = low32(sizes.blocks_per_group >> p.cluster_log);
    raw.s_inodes_per_group = sizes.inodes_per_group.into();
    raw.s_inodes_count = sizes.inodes_per_group.saturating_mul(sizes.groups).into();
    raw.s_blocks_count_lo = low32(sizes.blocks);
    raw.s_blocks_count_hi = high32(sizes.blocks);
    raw.s_r_blocks_count_lo = low32(sizes.reserved_blocks);
    raw.s_r_blocks_count_hi = high32(sizes.reserved_blocks);
    raw.s_reserved_gdt_blocks = low16(sizes.reserved_gdt_blocks);
    raw.s_backup_bgs = sizes.backup_groups.map(U32::new);
    put_features(&mut raw, sizes.features);

    raw.s_first_ino = FIRST_INO.into();
    raw.s_inode_size = p.inode_size_bytes.into();
    if p.revision > 0 && p.inode_size_bytes > 128 {
        raw.s_min_extra_isize = EXTRA_ISIZE.into();
        raw.s_want_extra_isize = EXTRA_ISIZE.into();
    }
    if sizes.features.incompat.contains(Incompat::BIT64) {
        raw.s_desc_size = p.desc_size_bytes.into();
    }
    raw.s_log_groups_per_flex = p.log_groups_per_flex;
    // A field of 16 bits, checked among the options.
    raw.s_raid_stride = low16(options.stride_blocks.unwrap_or(0).into());
    raw.s_raid_stripe_width = options.stripe_width_blocks.unwrap_or(0).into();
    raw.s_default_mount_opts = p.mount_opts.bits().into();
    raw.s_errors = errors_value(p.errors);
    raw.s_creator_os = creator_value(options.creator_os);
    put_text(&mut raw.s_volume_name, &options.label);
    put_text(&mut raw.s_last_mounted, &options.last_mounted);
    put_identity(&mut raw, p.hash_version, sizes.features, id);
    if p.periodic_check {
        put_periodic_check(&mut raw, id);
    }
    if let Some(journal) = &options.external_journal {
        raw.s_journal_uuid = journal.uuid().into_bytes();
        raw.s_journal_dev = journal.device_number().into();
    }
    put_extras(&mut raw, p, sizes.features);
    raw
}

/// `s_errors`.
pub(crate) fn errors_value(policy: ErrorPolicy) -> U16 {
    U16::new(match policy {
        ErrorPolicy::Continue => 1,
        ErrorPolicy::RemountReadOnly => 2,
        ErrorPolicy::Panic => 3,
        ErrorPolicy::Unknown(value) => value,
    })
}

/// `s_creator_os`.
pub(crate) fn creator_value(asked: Option<CreatorOs>) -> U32 {
    U32::new(match asked.unwrap_or(CreatorOs::Linux) {
        CreatorOs::Linux => 0,
        CreatorOs::Hurd => 1,
        CreatorOs::Masix => 2,
        CreatorOs::FreeBsd => 3,
        CreatorOs::Lites => 4,
        CreatorOs::Unknown(value) => value,
    })
}

/// Sets UUID, hash seed, times, and the fields that follow from them.
pub(crate) fn put_identity(
    raw: &mut RawSuperblock,
    hash_version: u8,
    features: FeatureSet,
    id: &Identity,
) {
    raw.s_uuid = id.uuid.into_bytes();
    let mut words = id.hash_seed.as_bytes().chunks_exact(4);
    raw.s_hash_seed = std::array::from_fn(|_| match words.next() {
        Some(&[a, b, c, d]) => U32::from_bytes([a, b, c, d]),
        _ => U32::ZERO,
    });
    raw.s_def_hash_version = hash_version;
    let time = low32(id.time_seconds);
    let time_hi = id.time_seconds.to_le_bytes()[4];
    (raw.s_mkfs_time, raw.s_lastcheck, raw.s_wtime) = (time, time, time);
    (raw.s_mkfs_time_hi, raw.s_lastcheck_hi, raw.s_wtime_hi) = (time_hi, time_hi, time_hi);
    raw.s_max_mnt_count = U16::MAX_VALUE;
    if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        raw.s_checksum_type = 1;
    }
    if features.incompat.contains(Incompat::CSUM_SEED) {
        raw.s_checksum_seed = ChecksumSeed::from_uuid(&raw.s_uuid).value().into();
    }
}

/// Sets periodic checks. The interval in mounts varies with the UUID, so that not all file systems
/// of a machine are checked at once.
fn put_periodic_check(raw: &mut RawSuperblock, id: &Identity) {
    let sum: u32 = id.uuid.as_bytes().iter().map(|&byte| u32::from(byte)).sum();
    let jitter = low16(u64::from(sum % u32::from(CHECK_MOUNTS)));
    raw.s_max_mnt_count = (CHECK_MOUNTS + jitter.get()).into();
    raw.s_checkinterval = CHECK_SECONDS.into();
}

fn put_extras(raw: &mut RawSuperblock, p: &Parameters, features: FeatureSet) {
    let mut flags = SuperFlags::SIGNED_HASH;
    flags.set(SuperFlags::TEST_FILESYS, p.options.test_fs);
    raw.s_flags = flags.bits().into();
    if features.incompat.contains(Incompat::CASEFOLD) {
        raw.s_encoding = 1.into();
        raw.s_encoding_flags = u16::from(p.options.encoding_strict).into();
    }
    if features.incompat.contains(Incompat::ENCRYPT) {
        // AES-256-XTS for contents, AES-256-CTS for names.
        [raw.s_encrypt_algos[0], raw.s_encrypt_algos[1]] = [1, 4];
    }
    let interval = p.options.mmp_update_interval_seconds.unwrap_or(0);
    let usual = interval == 0 && features.incompat.contains(Incompat::MMP);
    raw.s_mmp_update_interval = if usual { 5 } else { interval }.into();
    let counted = Incompat::FLEX_BG;
    let counted_ro = RoCompat::HUGE_FILE
        | RoCompat::GDT_CSUM
        | RoCompat::DIR_NLINK
        | RoCompat::METADATA_CSUM
        | RoCompat::EXTRA_ISIZE;
    if features.incompat.intersects(counted) || features.ro_compat.intersects(counted_ro) {
        raw.s_kbytes_written = 1.into();
    }
}

/// Sets the three fields of features.
pub(crate) fn put_features(raw: &mut RawSuperblock, features: FeatureSet) {
    raw.s_feature_compat = features.compat.bits().into();
    raw.s_feature_incompat = features.incompat.bits().into();
    raw.s_feature_ro_compat = features.ro_compat.bits().into();
}

/// The checked form of an incomplete superblock, without the features whose inodes and blocks have
/// no number yet.
pub(crate) fn provisional(raw: &RawSuperblock) -> FormatResult<Superblock> {
    let mut raw = *raw;
    let mut features = raw.features();
    features
        .compat
        .remove(Compat::HAS_JOURNAL | Compat::ORPHAN_FILE);
    features.incompat.remove(Incompat::MMP);
    features.ro_compat.remove(RoCompat::QUOTA);
    put_features(&mut raw, features);
    checked(&mut raw)
}

/// Seals a superblock and checks that it can be read back.
pub(crate) fn checked(raw: &mut RawSuperblock) -> FormatResult<Superblock> {
    if raw.features().ro_compat.contains(RoCompat::METADATA_CSUM) {
        raw.seal();
    }
    Superblock::try_from(&*raw).map_err(FormatError::invalid)
}

/// Copies a text into a field, which is zeroed behind it.
pub(crate) fn put_text(field: &mut [u8], text: &[u8]) {
    for (to, from) in field.iter_mut().zip(text) {
        *to = *from;
    }
}

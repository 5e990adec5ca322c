//! **Purpose.** Changes of a file system that are changes of its superblock alone, as tune2fs makes
//! them: label, UUID, reserved blocks, mount counts, behaviour, features.
//!
//! | module | responsibility |
//! |---|---|
//! | [`features`] | which features can be switched, and what goes with them |
//! | [`mod@write`] | the superblock and its backups on the device |
//!
//! **Not here.** Changes that move, allocate or rewrite other blocks: a journal, quota files,
//! checksums of metadata (`fourscore_check::convert`, which calls this as its last part), the size
//! of inodes.
//!
//! **Model.** The superblock is read and validated, changed in memory, validated again, and
//! written. What the format does not allow is found before a byte is written.
//!
//! **Crash safety.** All changes of one call are one durable write of the superblock, so a crash
//! leaves all of them or none. The backups are written after it; until then e2fsck finds that they
//! differ, checks the file system and writes them itself.
//!
//! **References.** tune2fs(8).

mod features;
mod write;

use fourscore_block::BlockDevice;
use fourscore_ondisk::RawSuperblock;
use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::mmp::{MmpBlock, MmpSequence};
use fourscore_ondisk::superblock::{
    DefaultMountOpts, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, State, SuperFlags, Superblock,
};
use uuid::Uuid;

use crate::error::{FormatError, FormatResult};
use crate::resolve::mount_option;
pub use features::FeatureChange;

/// Changes of a file system; `None` and empty lists change nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// The label (`-L`), at most 16 bytes.
    pub label: Option<Vec<u8>>,
    /// The UUID (`-U`).
    pub uuid: Option<Uuid>,
    /// The directory of the last mount (`-M`), at most 64 bytes.
    pub last_mounted: Option<Vec<u8>>,
    /// Mounts after which a check is due (`-c`); -1 for never.
    pub max_mount_count: Option<i16>,
    /// Mounts since the last check (`-C`).
    pub mount_count: Option<u16>,
    /// Seconds after which a check is due (`-i`); 0 for never.
    pub check_interval_seconds: Option<u32>,
    /// Time of the last check in seconds since 1970 (`-T`).
    pub last_check_seconds: Option<u64>,
    /// `s_errors`: 1 continue, 2 remount read-only, 3 panic (`-e`).
    pub errors: Option<u16>,
    /// Blocks for the super-user (`-m`, `-r`).
    pub reserved: Option<Reserved>,
    /// The user who may use reserved blocks (`-u`).
    pub reserved_uid: Option<u32>,
    /// The group that may use reserved blocks (`-g`).
    pub reserved_gid: Option<u32>,
    /// Default mount options by name, to be set, or with a leading `^` cleared (`-o`).
    pub mount_options: Vec<String>,
    /// Features that are switched, in this order (`-O`).
    pub features: Vec<FeatureChange>,
    /// Blocks that a RAID writes to one disk (`-E stride`).
    pub stride_blocks: Option<u16>,
    /// Blocks of a stripe of a RAID (`-E stripe_width`).
    pub stripe_width_blocks: Option<u32>,
    /// Mount options as text (`-E mount_opts`), at most 63 bytes.
    pub mount_opts: Option<Vec<u8>>,
    /// `s_def_hash_version`: 0 legacy, 1 half_md4, 2 tea (`-E hash_alg`).
    pub hash_version: Option<u8>,
    /// Whether code under test may use the file system (`-E test_fs`).
    pub is_test_fs: Option<bool>,
    /// Marks it as having errors, so that it is checked (`-E force_fsck`).
    pub force_check: bool,
}

/// Blocks that only the super-user may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reserved {
    /// A part of all blocks, in percent.
    Percent(f64),
    /// A number of blocks.
    Blocks(u64),
}

/// What a change needs besides the change.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// The time in seconds since 1970, for `s_wtime`.
    pub now_seconds: u64,
    /// A random hash seed, for a file system that gets `dir_index` and has none.
    pub hash_seed: Uuid,
}

/// Changes the file system on a device, which nothing else may be writing. The caller keeps other
/// hosts away (`fourscore_block::mmp`). Durable when this returns.
///
/// # Errors
/// `Option` names the option and why it is not possible; `NoFileSystem`; `NotAtRest` for a file
/// system that is mounted, or that a crash has left. Nothing was written in these cases. `Io`.
pub fn tune(device: &dyn BlockDevice, tuning: &Tuning, around: Surroundings) -> FormatResult<()> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
    let mut raw = *RawSuperblock::from_bytes(&bytes).map_err(FormatError::no_file_system)?;
    let before = Superblock::try_from(&raw).map_err(FormatError::no_file_system)?;
    check_at_rest(device, &before)?;
    change(&mut raw, &before, tuning, around)?;
    if before.has_metadata_csum() {
        raw.seal();
    }
    Superblock::try_from(&raw).map_err(|why| FormatError::option("-O", why.to_string()))?;
    write::write(device, &raw, before.geometry())
}

/// Refuses a file system that is in use, or that a crash has left.
fn check_at_rest(device: &dyn BlockDevice, sb: &Superblock) -> FormatResult<()> {
    let features = sb.features();
    if let Some(unknown) = features.iter().find(|feature| feature.row().is_none()) {
        let why = format!("it has the feature {unknown}, which is not known");
        return Err(FormatError::not_at_rest(why));
    }
    if features.incompat.contains(Incompat::RECOVER) {
        let why = "its journal needs recovery: mount it once, or run e2fsck -p";
        return Err(FormatError::not_at_rest(why));
    }
    if features.ro_compat.contains(RoCompat::ORPHAN_PRESENT) || sb.last_orphan().is_some() {
        let why =
            "it has files whose deletion a crash interrupted: mount it once, or run e2fsck -p";
        return Err(FormatError::not_at_rest(why));
    }
    if let Some(block) = sb.mmp_block() {
        let block_size = sb.geometry().block_size();
        let mut bytes = vec![0; block_size.bytes()];
        device.read_at(&mut bytes, block.0 << block_size.bits())?;
        let mmp = MmpBlock::parse(&bytes, sb).map_err(FormatError::not_at_rest)?;
        // A caller that keeps other hosts away has written "a check runs".
        if let MmpSequence::InUse(_) = mmp.sequence() {
            let why = "another host has it mounted, or did not unmount it (feature mmp)";
            return Err(FormatError::not_at_rest(why));
        }
    }
    Ok(())
}

fn change(
    raw: &mut RawSuperblock,
    before: &Superblock,
    tuning: &Tuning,
    around: Surroundings,
) -> FormatResult<()> {
    // The seed of the checksums may be stored by -O, and -U comes after that.
    for feature in &tuning.features {
        features::switch(raw, before, *feature, around.hash_seed)?;
    }
    if let Some(uuid) = tuning.uuid {
        change_uuid(raw, before, uuid)?;
    }
    change_names(raw, tuning)?;
    change_checks(raw, tuning);
    change_reserve(raw, before, tuning)?;
    for name in &tuning.mount_options {
        change_mount_option(raw, name)?;
    }
    change_extended(raw, tuning);
    raw.s_wtime = low(around.now_seconds).into();
    raw.s_wtime_hi = high_byte(around.now_seconds);
    Ok(())
}

fn change_uuid(raw: &mut RawSuperblock, before: &Superblock, uuid: Uuid) -> FormatResult<()> {
    let features = raw.features();
    let refused = |why: &str| Err(FormatError::option("-U", why));
    if raw.s_uuid == *uuid.as_bytes() {
        return Ok(());
    }
    if features.compat.contains(Compat::STABLE_INODES) {
        return refused("with the feature stable_inodes the UUID never changes");
    }
    if features.ro_compat.contains(RoCompat::GDT_CSUM) {
        return refused("the checksums of its group descriptors depend on the UUID (uninit_bg)");
    }
    if before.has_metadata_csum() && !features.incompat.contains(Incompat::CSUM_SEED) {
        return refused(
            "all checksums depend on the UUID; with -O metadata_csum_seed as well they do not",
        );
    }
    // Only a file system that has the feature before has such values.
    let may_have_values = before.features().incompat.contains(Incompat::EA_INODE);
    if may_have_values && !features.incompat.contains(Incompat::CSUM_SEED) {
        return refused("hashes of values in inodes of their own depend on the UUID (ea_inode)");
    }
    raw.s_uuid = *uuid.as_bytes();
    Ok(())
}

fn change_names(raw: &mut RawSuperblock, tuning: &Tuning) -> FormatResult<()> {
    let set = |option: &str, field: &mut [u8], text: &Option<Vec<u8>>, most: usize| {
        let Some(text) = text else {
            return Ok(());
        };
        if text.len() > most || text.contains(&0) {
            let why = format!("has {} bytes, of which {most} fit", text.len());
            return Err(FormatError::option(option, why));
        }
        field.fill(0);
        field[..text.len()].copy_from_slice(text);
        Ok(())
    };
    set("-L", &mut raw.s_volume_name, &tuning.label, 16)?;
    set("-M", &mut raw.s_last_mounted, &tuning.last_mounted, 64)?;
    set(
        "-E mount_opts",
        &mut raw.s_mount_opts,
        &tuning.mount_opts,
        63,
    )
}

fn change_checks(raw: &mut RawSuperblock, tuning: &Tuning) {
    if let Some(count) = tuning.max_mount_count {
        raw.s_max_mnt_count = count.cast_unsigned().into();
    }
    if let Some(count) = tuning.mount_count {
        raw.s_mnt_count = count.into();
    }
    if let Some(seconds) = tuning.check_interval_seconds {
        raw.s_checkinterval = seconds.into();
    }
    if let Some(seconds) = tuning.last_check_seconds {
        raw.s_lastcheck = low(seconds).into();
        raw.s_lastcheck_hi = high_byte(seconds);
    }
    if let Some(errors) = tuning.errors {
        raw.s_errors = errors.into();
    }
    if tuning.force_check {
        raw.s_state = (raw.s_state.get() | State::ERROR_FS.bits()).into();
    }
}

fn change_reserve(
    raw: &mut RawSuperblock,
    before: &Superblock,
    tuning: &Tuning,
) -> FormatResult<()> {
    let blocks = before.geometry().blocks().0;
    let reserved = match tuning.reserved {
        None => None,
        Some(Reserved::Blocks(count)) if count > blocks / 2 => {
            let why = format!("{count} of {blocks} blocks are more than half");
            return Err(FormatError::option("-r", why));
        }
        Some(Reserved::Blocks(count)) => Some(count),
        Some(Reserved::Percent(percent)) if !(0.0..=50.0).contains(&percent) => {
            return Err(FormatError::option(
                "-m",
                "is not a percentage from 0 to 50",
            ));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "half of the blocks at most, and rounded as tune2fs does"
        )]
        Some(Reserved::Percent(percent)) => Some((percent * blocks as f64 / 100.0) as u64),
    };
    if let Some(count) = reserved {
        raw.s_r_blocks_count_lo = low(count).into();
        if raw.features().incompat.contains(Incompat::BIT64) {
            raw.s_r_blocks_count_hi = low(count >> 32).into();
        }
    }
    if let Some(uid) = tuning.reserved_uid {
        raw.s_def_resuid = half(uid).into();
        raw.s_def_resuid_hi = half(uid >> 16).into();
    }
    if let Some(gid) = tuning.reserved_gid {
        raw.s_def_resgid = half(gid).into();
        raw.s_def_resgid_hi = half(gid >> 16).into();
    }
    Ok(())
}

fn change_mount_option(raw: &mut RawSuperblock, word: &str) -> FormatResult<()> {
    let (name, is_set) = match word.strip_prefix('^') {
        Some(name) => (name, false),
        None => (word, true),
    };
    let option = mount_option(name).ok_or_else(|| {
        FormatError::option(
            "-o",
            format!("{name}: there is no default mount option of this name"),
        )
    })?;
    let mut options = DefaultMountOpts::from_bits_retain(raw.s_default_mount_opts.get());
    if DefaultMountOpts::JMODE.contains(option) {
        options.remove(DefaultMountOpts::JMODE);
    }
    options.set(option, is_set);
    raw.s_default_mount_opts = options.bits().into();
    Ok(())
}

fn change_extended(raw: &mut RawSuperblock, tuning: &Tuning) {
    if let Some(blocks) = tuning.stride_blocks {
        raw.s_raid_stride = blocks.into();
    }
    if let Some(blocks) = tuning.stripe_width_blocks {
        raw.s_raid_stripe_width = blocks.into();
    }
    if let Some(version) = tuning.hash_version {
        raw.s_def_hash_version = version;
    }
    if let Some(is_test) = tuning.is_test_fs {
        let mut flags = SuperFlags::from_bits_retain(raw.s_flags.get());
        flags.set(SuperFlags::TEST_FILESYS, is_test);
        raw.s_flags = flags.bits().into();
    }
}

/// The lower 32 bits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the other bits have fields of their own"
)]
fn low(value: u64) -> u32 {
    value as u32
}

/// Bits 32 to 39, as times have them.
fn high_byte(seconds: u64) -> u8 {
    seconds.to_le_bytes()[4]
}

/// The lower 16 bits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the other bits have fields of their own"
)]
fn half(id: u32) -> u16 {
    id as u16
}

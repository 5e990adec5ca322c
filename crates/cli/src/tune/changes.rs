//! **Purpose.** Which options of `tune` are changes of more than the superblock.
//!
//! **Model.** The options also stay part of what changes the superblock: a feature that has been
//! switched is as it is wished there.

use fourscore_block::BlockDevice;
use fourscore_check::{Change, NewJournal, Switch};
use fourscore_mkfs::{JournalSize, Options, Tuning};
use fourscore_ondisk::features::{Compat, FeatureSet, RoCompat};
use fourscore_ondisk::quota::QuotaKind;
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES};
use fourscore_ondisk::{PhysBlock, RawSuperblock, Superblock};

use super::{TuneOptions, words};
use crate::failure::{Failure, Result};
use crate::mkfs;

impl TuneOptions {
    /// Whether there are options that are changes of more than the superblock.
    pub(super) fn has_changes(&self) -> bool {
        self.with_journal || !self.journal.is_empty() || !self.quota.is_empty()
    }
}

/// The superblock, if there is one.
pub(super) fn superblock(device: &dyn BlockDevice) -> Option<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    let read = device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES);
    read.ok()?;
    let raw = RawSuperblock::from_bytes(&bytes).ok()?;
    Superblock::try_from(raw).ok()
}

/// The changes; none for a device without a superblock, which is found later.
pub(super) fn of(
    device: &dyn BlockDevice,
    options: &TuneOptions,
    tuning: &Tuning,
) -> Result<Vec<Change>> {
    let Some(sb) = superblock(device) else {
        return Ok(Vec::new());
    };
    let now = sb.features();
    let switched = |name: &str| {
        let last = tuning
            .features
            .iter()
            .rev()
            .find(|change| change.name() == name);
        last.map(|change| {
            if change.is_on() {
                Switch::On
            } else {
                Switch::Off
            }
        })
    };
    let mut changes = Vec::new();
    changes.extend(switched("metadata_csum").map(Change::MetadataCsum));
    changes.extend(switched("uninit_bg").map(Change::UninitBg));
    changes.extend(switched("orphan_file").map(Change::OrphanFile));
    changes.extend(switched("mmp").map(Change::Mmp));
    if switched("resize_inode") == Some(Switch::Off) {
        changes.push(Change::RemoveResizeInode);
    }
    if switched("dir_index") == Some(Switch::Off) {
        changes.push(Change::RemoveDirIndex);
    }
    // With it, the UUID is one that nothing depends on any more.
    if switched("metadata_csum_seed") != Some(Switch::On) {
        changes.extend(tuning.uuid.map(Change::Uuid));
    }
    let fast_commit = switched("fast_commit");
    changes.extend(journal(&sb, options, switched("has_journal"), fast_commit)?);
    add_quota(now, switched("quota"), switched("project"), &mut changes);
    for word in words(&options.quota) {
        changes.push(quota_type(word)?);
    }
    Ok(changes)
}

/// What becomes of the journal.
fn journal(
    sb: &Superblock,
    options: &TuneOptions,
    switch: Option<Switch>,
    fast_commit: Option<Switch>,
) -> Result<Option<Change>> {
    let has_journal = sb.features().compat.contains(Compat::HAS_JOURNAL);
    let is_asked = options.with_journal || !options.journal.is_empty();
    match switch {
        Some(Switch::Off) if is_asked => {
            let why = "makes a journal, and -O ^has_journal takes it away: give one of them";
            return Err(Failure::usage("-J", why));
        }
        Some(Switch::Off) => return Ok(Some(Change::RemoveJournal)),
        None if !is_asked => return Ok(None),
        _ => {}
    }
    if has_journal && is_asked {
        let why = "it has a journal already: -O ^has_journal takes it away";
        return Err(Failure::usage("-J", why));
    }
    let mut wish = Options::default();
    for text in &options.journal {
        wish.add_journal(text).map_err(mkfs::format_failure)?;
    }
    if wish.journal_device.is_some() {
        let why = "a journal on another device is made and joined by tune2fs";
        return Err(Failure::usage("-J device", why));
    }
    let mut features = sb.features().compat;
    if let Some(switch) = fast_commit {
        features.set(Compat::FAST_COMMIT, switch == Switch::On);
    }
    let geometry = sb.geometry();
    let (blocks, block_size) = (geometry.blocks().0, geometry.block_size());
    let size = JournalSize::of(&wish.journal, blocks, block_size, features);
    let too_small = || Failure::usage("-O has_journal", "the file system is too small for one");
    let size = size.ok_or_else(too_small)?;
    let goal = wish.journal.location;
    Ok(Some(Change::AddJournal(NewJournal {
        log_blocks: size.log_blocks,
        fast_commit_blocks: size.fast_commit_blocks,
        goal: goal.map(|place| PhysBlock(place.blocks(block_size))),
    })))
}

/// What the features of quota mean: `quota` counts users and groups, `project` projects, and
/// without `quota` nothing is counted.
fn add_quota(
    now: FeatureSet,
    quota: Option<Switch>,
    project: Option<Switch>,
    changes: &mut Vec<Change>,
) {
    let has_quota = now.ro_compat.contains(RoCompat::QUOTA);
    let kinds = match quota {
        Some(Switch::On) if !has_quota => &[QuotaKind::User, QuotaKind::Group][..],
        Some(Switch::Off) => &QuotaKind::ALL[..],
        _ => &[],
    };
    let of_quota = kinds.iter().zip(std::iter::repeat(quota));
    let of_project = [(&QuotaKind::Project, project)];
    for (&kind, switch) in of_quota.chain(of_project) {
        changes.extend(switch.map(|switch| Change::Quota { kind, switch }));
    }
}

/// A type of `-Q`.
fn quota_type(word: &str) -> Result<Change> {
    let (name, switch) = match word.strip_prefix('^') {
        Some(name) => (name, Switch::Off),
        None => (word, Switch::On),
    };
    let kind = match name {
        "usrquota" => QuotaKind::User,
        "grpquota" => QuotaKind::Group,
        "prjquota" => QuotaKind::Project,
        _ => {
            let why = format!("{name}: the types are usrquota, grpquota and prjquota");
            return Err(Failure::usage("-Q", why));
        }
    };
    Ok(Change::Quota { kind, switch })
}

//! **Purpose.** Pass 0: the superblock, the group descriptors, the fixed metadata that they place,
//! and the backups of both.
//!
//! **Not here.** Faults that make a superblock unusable: `Superblock` rejects it, and
//! [`open`](crate::open) looks for a backup. The journal ([`crate::journal`]).

use fourscore_block::BlockDevice;
use fourscore_ondisk::features::{Compat, Feature, FeatureClass, Incompat, RoCompat};
use fourscore_ondisk::group::{self, GroupFlags};
use fourscore_ondisk::inode::GOOD_OLD_INODE_SIZE_BYTES;
use fourscore_ondisk::mmp::MmpBlock;
use fourscore_ondisk::superblock::State as SuperState;
use fourscore_ondisk::{GroupDesc, GroupNr, PhysBlock, Superblock};
use fourscore_sync::Arc;

use crate::finding::Finding;
use crate::open::read_superblock;
use crate::replay::Changes;
use crate::report::Findings;
use crate::state::State;
use crate::text;
use crate::volume::{DescCopy, Group, Volume};

/// log2 of the most groups in a flex group.
pub(crate) const MOST_GROUPS_PER_FLEX_LOG: u8 = 31;

/// Whether e2fsck accepts a size of descriptors, whether it means something or not.
pub(crate) fn is_desc_size(bytes: u16) -> bool {
    const MOST_BYTES: u16 = 1024;
    bytes == 0 || (bytes.is_power_of_two() && bytes <= MOST_BYTES)
}

/// Reads and checks all descriptors.
pub(crate) fn load(
    device: Arc<dyn BlockDevice>,
    sb: Superblock,
    findings: &mut Findings,
) -> Volume {
    let geometry = *sb.geometry();
    let mut volume = Volume {
        device,
        sb,
        groups: Vec::new(),
        journal_copy: None,
        changes: Changes::default(),
    };
    let mut block = vec![0; volume.block_bytes()];
    let mut loaded = None;
    for nr in (0..geometry.groups()).map(GroupNr) {
        let Some(place) = geometry.desc_place(nr) else {
            break;
        };
        if loaded != Some(place.block) {
            read_or_report(&volume, place.block, &mut block, findings);
            loaded = Some(place.block);
        }
        let bytes = block.get(place.offset_bytes..).unwrap_or(&[]);
        let Ok(desc) = GroupDesc::unchecked(bytes, &volume.sb) else {
            break;
        };
        if let Err(why) = group::verify(bytes, nr, &volume.sb) {
            findings.push(Finding::GroupChecksum { group: nr, why });
        }
        check_descriptor(&volume, nr, &desc, findings);
        volume.groups.push(Group::new(desc, &geometry));
    }
    volume
}

/// Reads a block. If that fails, reports it and fills `buf` with zeroes.
fn read_or_report(volume: &Volume, block: PhysBlock, buf: &mut [u8], findings: &mut Findings) {
    if let Err(error) = volume.read(block, buf) {
        buf.fill(0);
        let why = error.to_string();
        findings.push(Finding::Unreadable { block, why });
    }
}

fn check_descriptor(volume: &Volume, nr: GroupNr, desc: &GroupDesc, findings: &mut Findings) {
    if let Err(why) = desc.check_places(nr, &volume.sb) {
        findings.push(Finding::GroupPlace { group: nr, why });
    }
    let geometry = volume.geometry();
    let flags = desc.flags();
    let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
    let unused = desc.itable_unused();
    if !volume.has_group_checksums() {
        if flags.intersects(uninit) || unused != 0 {
            let found = flags.bits();
            findings.push(Finding::GroupFlags { group: nr, found });
        }
        return;
    }
    if nr.0 + 1 == geometry.groups() && flags.contains(GroupFlags::BLOCK_UNINIT) {
        findings.push(Finding::LastGroupUninit { group: nr });
    }
    let most = desc.free_inodes().min(geometry.inodes_per_group());
    if unused > most {
        findings.push(Finding::ItableUnused {
            group: nr,
            found: unused,
            most,
        });
    }
}

/// Checks the fields of the superblock that readers do not depend on, and claims the blocks of
/// fixed metadata.
pub(crate) fn check(volume: &Volume, state: &State, findings: &mut Findings) {
    check_superblock(volume, findings);
    mark_metadata(volume, state, findings);
    check_mmp(volume, state, findings);
    check_backups(volume, findings);
}

fn check_superblock(volume: &Volume, findings: &mut Findings) {
    let (sb, geometry) = (&volume.sb, volume.geometry());
    for fault in sb.faults() {
        let why = text::of_superblock(fault);
        findings.push(Finding::SuperblockField { why });
    }
    for why in idle_faults(volume) {
        findings.push(Finding::SuperblockField { why });
    }
    let most = geometry.blocks().0 / 2;
    let found = sb.reserved_blocks().0;
    if found > most {
        let field = "s_r_blocks_count";
        findings.push(Finding::SuperblockCount { field, found, most });
    }
    let found = sb.reserved_gdt_blocks();
    if found != 0 && !volume.compat(Compat::RESIZE_INODE) {
        findings.push(Finding::ReservedGdtBlocks { found });
    }
    check_features(volume, findings);
    check_extra_isizes(volume, findings);
    let inodes_count = u64::from(geometry.inodes());
    if let Some(last) = sb
        .last_orphan()
        .filter(|last| u64::from(last.0) > inodes_count)
    {
        let why = "its head does not exist";
        findings.push(Finding::OrphanList { inode: last, why });
    }
    let state = sb.state();
    if !state.contains(SuperState::VALID_FS) || state.contains(SuperState::ERROR_FS) {
        let state = state.bits();
        findings.push(Finding::NotClean { state });
    }
}

/// The faults of fields that mean nothing for readers with these features, and for which e2fsck
/// refuses the file system all the same, or takes a file away.
fn idle_faults(volume: &Volume) -> Vec<String> {
    let (raw, mut faults) = (volume.sb.raw(), Vec::new());
    let found = raw.s_log_groups_per_flex;
    if found > MOST_GROUPS_PER_FLEX_LOG {
        faults.push(format!(
            "s_log_groups_per_flex {found} is over {MOST_GROUPS_PER_FLEX_LOG}"
        ));
    }
    let found = raw.s_desc_size.get();
    if !is_desc_size(found) {
        faults.push(format!("s_desc_size {found} without 64bit"));
    }
    let (blocks, clusters) = (raw.s_blocks_per_group.get(), raw.s_clusters_per_group.get());
    if clusters != blocks && !volume.ro_compat(RoCompat::BIGALLOC) {
        faults.push(format!(
            "s_clusters_per_group is {clusters} without bigalloc, and s_blocks_per_group {blocks}"
        ));
    }
    for found in volume.false_hidden_files() {
        let ((field, feature), inode) = (found.file.field(), found.inode);
        faults.push(format!(
            "{field} is {inode} without the feature {feature}, which is no such file"
        ));
    }
    faults
}

/// Checks features of which one needs or excludes another, although readers can cope.
fn check_features(volume: &Volume, findings: &mut Findings) {
    let checksums = volume.ro_compat(RoCompat::METADATA_CSUM);
    let rules = [
        (
            checksums && volume.ro_compat(RoCompat::GDT_CSUM),
            "metadata_csum and uninit_bg exclude each other",
        ),
        (
            !checksums && volume.incompat(Incompat::CSUM_SEED),
            "metadata_csum_seed without metadata_csum",
        ),
        (
            volume.incompat(Incompat::BIT64) && !volume.incompat(Incompat::EXTENTS),
            "64bit without extent",
        ),
        (
            volume.incompat(Incompat::META_BG) && volume.compat(Compat::RESIZE_INODE),
            "meta_bg and resize_inode exclude each other",
        ),
    ];
    for (_, why) in rules.into_iter().filter(|(broken, _)| *broken) {
        findings.push(Finding::Features { why });
    }
    let all = volume.sb.features().iter();
    let unknown = all.filter(|feature| feature.row().is_none() || is_unchecked(*feature));
    let names: Vec<String> = unknown.map(|feature| feature.to_string()).collect();
    if !names.is_empty() {
        let features = names.join(", ");
        findings.push(Finding::UnknownFeatures { features });
    }
}

/// Whether a feature has a name and nothing else: no kernel has it, and e2fsck refuses it.
fn is_unchecked(feature: Feature) -> bool {
    let unchecked = RoCompat::BTREE_DIR | RoCompat::HAS_SNAPSHOT | RoCompat::REPLICA;
    feature.class() == FeatureClass::RoCompat && feature.bit() & unchecked.bits() != 0
}

/// Checks the sizes of extra fields for new inodes.
fn check_extra_isizes(volume: &Volume, findings: &mut Findings) {
    let inode_bytes = volume.geometry().inode_size_bytes();
    let Some(most) = inode_bytes.checked_sub(GOOD_OLD_INODE_SIZE_BYTES) else {
        return;
    };
    let most = u16::try_from(most).unwrap_or(u16::MAX);
    let raw = volume.sb.raw();
    let fields = [
        ("s_min_extra_isize", raw.s_min_extra_isize.get()),
        ("s_want_extra_isize", raw.s_want_extra_isize.get()),
    ];
    for (field, found) in fields {
        let fits = found == 0 || ((4..=most).contains(&found) && found.is_multiple_of(4));
        if !fits && most > 0 {
            findings.push(Finding::SuperblockExtraIsize { field, found, most });
        }
    }
}

/// Claims superblocks, descriptors, bitmaps and inode tables, and reports those that overlap.
fn mark_metadata(volume: &Volume, state: &State, findings: &mut Findings) {
    let geometry = volume.geometry();
    let mut claim = |group: GroupNr, field: &'static str, start: PhysBlock, count: u32| {
        let mut is_reported = false;
        let run = start.0..start.0 + u64::from(count);
        state.metadata.insert_run(run.clone(), |overlap| {
            if !std::mem::replace(&mut is_reported, true) {
                let block = PhysBlock(overlap.start);
                findings.push(Finding::MetadataOverlap {
                    group,
                    field,
                    block,
                });
            }
        });
        if run.start < run.end && PhysBlock(run.start) >= geometry.first_data_block() {
            let first = volume.cluster(start);
            let last = volume.cluster(PhysBlock(run.end - 1));
            state.found.insert_run(first..last + 1, |_| {});
        }
    };
    for group in (0..geometry.groups()).map(GroupNr) {
        let start = geometry.group_first_block(group);
        let count = geometry.base_meta_blocks(group);
        claim(group, "the superblock or its descriptors", start, count);
    }
    let table_blocks = geometry.inode_table_blocks();
    for (nr, group) in (0..).map(GroupNr).zip(&volume.groups) {
        let places = [
            ("bg_block_bitmap", group.block_bitmap, 1),
            ("bg_inode_bitmap", group.inode_bitmap, 1),
            ("bg_inode_table", group.inode_table, table_blocks),
        ];
        for (field, start, count) in places {
            if let Some(start) = start {
                claim(nr, field, start, count);
            }
        }
    }
}

fn check_mmp(volume: &Volume, state: &State, findings: &mut Findings) {
    let Some(block) = volume.sb.mmp_block() else {
        return;
    };
    let cluster = volume.cluster(block);
    state.found.insert_run(cluster..cluster + 1, |_| {});
    let mut bytes = vec![0; volume.block_bytes()];
    read_or_report(volume, block, &mut bytes, findings);
    if let Err(why) = MmpBlock::parse(&bytes, &volume.sb) {
        findings.push(Finding::Mmp { block, why });
    }
}

/// Checks the backups of the superblock, of the descriptors that follow the first sound backup, and
/// with `meta_bg` those in the groups themselves.
fn check_backups(volume: &Volume, findings: &mut Findings) {
    let geometry = volume.geometry();
    let size = geometry.block_size();
    let mut has_descriptors = false;
    for group in geometry.groups_with_super().filter(|group| group.0 > 0) {
        let start = geometry.group_first_block(group);
        let why = match read_superblock(&*volume.device, size.offset(start)) {
            Err(error) => Some(error.to_string()),
            Ok(Err(why)) => Some(why.to_string()),
            Ok(Ok(copy)) => difference(&volume.sb, &copy, group).map(str::to_owned),
        };
        if let Some(why) = why {
            findings.push(Finding::BackupSuperblock { group, why });
        } else if !has_descriptors {
            check_backup_descriptors(volume, group, findings);
            has_descriptors = true;
        }
    }
    check_meta_groups(volume, findings);
}

/// The first difference of a backup in a field that only mkfs and resizing change.
fn difference(sb: &Superblock, copy: &Superblock, group: GroupNr) -> Option<&'static str> {
    let (own, other) = (sb.raw(), copy.raw());
    let pairs = [
        (sb.geometry() == copy.geometry(), "other sizes or counts"),
        (own.s_uuid == other.s_uuid, "another UUID"),
        (
            copy.block_group_nr().0 == group.0 || group.0 > u32::from(u16::MAX),
            "its s_block_group_nr is that of another group",
        ),
    ];
    pairs
        .into_iter()
        .find(|(same, _)| !same)
        .map(|(_, why)| why)
}

/// Compares the copies of descriptors behind a backup of the superblock. With `meta_bg` these are
/// the copies of the first descriptors only, and only groups that they describe have them.
fn check_backup_descriptors(volume: &Volume, holder: GroupNr, findings: &mut Findings) {
    let geometry = volume.geometry();
    let first = geometry.group_first_block(holder).0 + 1;
    let blocks = match geometry.first_meta_bg() {
        Some(meta) if holder.0 / geometry.descs_per_block() >= meta => 0,
        Some(meta) => meta.min(geometry.desc_blocks()),
        None => geometry.desc_blocks(),
    };
    for index in 0..blocks {
        let place = PhysBlock(first + u64::from(index));
        check_copy(volume, index, &DescCopy { holder, place }, findings);
    }
}

/// Compares the copies of descriptors that lie in the groups which they describe (`meta_bg`).
fn check_meta_groups(volume: &Volume, findings: &mut Findings) {
    let geometry = volume.geometry();
    let Some(first) = geometry.first_meta_bg() else {
        return;
    };
    for index in first..geometry.desc_blocks() {
        for copy in volume.meta_group_copies(index) {
            check_copy(volume, index, &copy, findings);
        }
    }
}

/// Compares a copy of block `index` of the descriptors with the descriptors in use.
fn check_copy(volume: &Volume, index: u32, copy: &DescCopy, findings: &mut Findings) {
    let geometry = volume.geometry();
    let mut block = vec![0; volume.block_bytes()];
    read_or_report(volume, copy.place, &mut block, findings);
    let per_block = geometry.descs_per_block();
    let size = geometry.desc_size_bytes();
    let first = index.saturating_mul(per_block);
    let own = volume.groups.iter().skip(first as usize);
    let copies = block.chunks_exact(size).take(per_block as usize);
    for ((nr, own), bytes) in (first..).map(GroupNr).zip(own).zip(copies) {
        let places =
            |desc: &GroupDesc| (desc.block_bitmap(), desc.inode_bitmap(), desc.inode_table());
        let same = GroupDesc::unchecked(bytes, &volume.sb)
            .is_ok_and(|copy| places(&copy) == places(&own.desc));
        if !same {
            findings.push(Finding::BackupDescriptors {
                group: copy.holder,
                other: nr,
            });
        }
    }
}

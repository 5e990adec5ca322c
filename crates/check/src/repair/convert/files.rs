//! **Purpose.** Adds the files and blocks that belong to features (journal, quota files, orphan
//! file, the block of multi-mount protection), and has the superblock forget them.
//!
//! **Not here.** What is in a quota file: repair fills it with what the check counts.
//!
//! **Model.** A file is placed where the check found free blocks. A journal is one run in the
//! middle of the file system if there is space, else as few runs as there are. It is empty, and its
//! blocks are zeroed, so that nothing in it is ever taken for a transaction.

use std::ops::Range;

use fourscore_ondisk::extent::{self, Extent, ExtentState};
use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::inode::{FileMode, FileType, InodeFlags, RawInode, RawInodeExtra};
use fourscore_ondisk::jbd2::RawJournalSuperblock;
use fourscore_ondisk::quota::QuotaKind;
use fourscore_ondisk::superblock::JournalPlace;
use fourscore_ondisk::{InodeGeneration, InodeNr, PhysBlock, RawSuperblock, orphan};
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::super::editor::{Editor, Left, Patch};
use super::super::map::push_block;
use super::plan::{Additions, Forgotten};
use super::{NewJournal, Ranges};

const USER_QUOTA: InodeNr = InodeNr(3);
const GROUP_QUOTA: InodeNr = InodeNr(4);
const SECTOR_BYTES: u64 = 512;
/// The limits of a journal in blocks.
const JOURNAL_BLOCKS: std::ops::RangeInclusive<u64> = 1024..=10_240_000;
/// Seconds between two updates of the block of multi-mount protection, as tune2fs sets it.
const MMP_INTERVAL: u16 = 5;
/// The blocks of an orphan file in file systems of fewer blocks than the second number, and for how
/// many blocks there is one in others, up to the most that the kernel takes.
const ORPHAN_BLOCKS: u64 = 32;
const SMALL_BLOCKS: u64 = 128 << 10;
const BLOCKS_PER_ORPHAN_BLOCK: u64 = 4096;
const MOST_ORPHAN_BLOCKS: u64 = 512;

/// Has the superblock forget what belongs to features, and the features.
pub(super) fn forget(editor: &Editor<'_>, what: &Forgotten) -> Patch {
    let inodes = editor.volume.sb.quota_inodes();
    let journal_blocks = match (what.journal, editor.volume.sb.journal()) {
        (true, Some(JournalPlace::Inode(nr))) => {
            let bits = editor.volume.geometry().block_size().bits();
            editor.with_inode(nr, |inode| inode.size_bytes() >> bits)?
        }
        _ => 0,
    };
    let journal_clusters = clusters_of(editor, journal_blocks);
    editor.edit_super(|raw| {
        let mut features = raw.features();
        if what.journal {
            features.compat -= Compat::HAS_JOURNAL;
            // 0 means that it is not known.
            let overhead = raw.s_overhead_clusters.get();
            raw.s_overhead_clusters = overhead.saturating_sub(journal_clusters).into();
            raw.s_journal_inum = 0.into();
            raw.s_jnl_blocks = [0.into(); 17];
        }
        if what.orphan_file {
            features.compat -= Compat::ORPHAN_FILE;
            raw.s_orphan_file_inum = 0.into();
        }
        if what.mmp {
            features.incompat -= Incompat::MMP;
            raw.s_mmp_block = 0.into();
            raw.s_mmp_update_interval = 0.into();
        }
        if what.resize_inode {
            features.compat -= Compat::RESIZE_INODE;
            raw.s_reserved_gdt_blocks = 0.into();
        }
        let mut left = [
            (QuotaKind::User, inodes.user),
            (QuotaKind::Group, inodes.group),
            (QuotaKind::Project, inodes.project),
        ];
        for kind in &what.quota {
            set_quota_inode(raw, *kind, InodeNr(0));
            for (_, inode) in left.iter_mut().filter(|(other, _)| other == kind) {
                *inode = None;
            }
            if *kind == QuotaKind::Project {
                features.ro_compat -= RoCompat::PROJECT;
            }
        }
        if left.iter().all(|(_, inode)| inode.is_none()) {
            features.ro_compat -= RoCompat::QUOTA;
        }
        raw.s_feature_compat = features.compat.bits().into();
        raw.s_feature_incompat = features.incompat.bits().into();
        raw.s_feature_ro_compat = features.ro_compat.bits().into();
    })
}

/// Adds what belongs to features, and the features.
pub(super) fn add(editor: &Editor<'_>, what: &Additions) -> Patch<Ranges> {
    let mut zeroed = Ranges::new();
    if let Some(journal) = &what.journal {
        zeroed = add_journal(editor, journal)?;
    }
    for kind in &what.quota {
        add_quota_file(editor, *kind)?;
    }
    if what.orphan_file {
        add_orphan_file(editor)?;
    }
    if what.mmp {
        let block = editor.take_cluster()?;
        editor.edit_super(|raw| {
            let features = raw.features().incompat | Incompat::MMP;
            raw.s_feature_incompat = features.bits().into();
            raw.s_mmp_block = block.0.into();
            raw.s_mmp_update_interval = MMP_INTERVAL.into();
        })?;
        editor.write_mmp(block)?;
    }
    Ok(zeroed)
}

/// The clusters of so many blocks.
fn clusters_of(editor: &Editor<'_>, blocks: u64) -> u32 {
    let log = editor.volume.geometry().blocks_per_cluster_log();
    u32::try_from(blocks.div_ceil(1 << log)).unwrap_or(u32::MAX)
}

fn set_quota_inode(raw: &mut RawSuperblock, kind: QuotaKind, inode: InodeNr) {
    match kind {
        QuotaKind::User => raw.s_usr_quota_inum = inode.0.into(),
        QuotaKind::Group => raw.s_grp_quota_inum = inode.0.into(),
        QuotaKind::Project => raw.s_prj_quota_inum = inode.0.into(),
    }
}

/// Adds a journal; returns the bytes of its blocks behind the first one.
fn add_journal(editor: &Editor<'_>, new: &NewJournal) -> Patch<Ranges> {
    let volume = editor.volume;
    let size = volume.geometry().block_size();
    let wished = new.log_blocks.saturating_add(new.fast_commit_blocks);
    let all = volume.geometry().blocks().0;
    if !JOURNAL_BLOCKS.contains(&wished) {
        let why = format!("a journal of {wished} blocks: 1024 to 10240000 are possible");
        return Err(Left(why));
    }
    if wished > all / 2 {
        let why = format!("a journal of {wished} blocks is over half of the {all} blocks");
        return Err(Left(why));
    }
    let nr = InodeNr::JOURNAL;
    must_be_unused(editor, nr)?;
    let runs = take_runs(editor, wished, new.goal)?;
    let extents = extents_of(blocks_of(&runs));
    let blocks: u64 = runs.iter().map(|run| run.end - run.start).sum();
    make_file(editor, nr, InodeFlags::empty(), &extents)?;
    let first = extents.first().map(|extent| extent.physical);
    let first = first.ok_or_else(|| Left::because("no free block is left"))?;
    let length = u32::try_from(blocks).map_err(|_| Left::because("over 2^32 blocks"))?;
    let uuid = Uuid::from_bytes(volume.sb.raw().s_uuid);
    let mut head = RawJournalSuperblock::new(size, length, uuid);
    head.s_num_fc_blks = u32::try_from(new.fast_commit_blocks).unwrap_or(0).into();
    let mut bytes = vec![0; size.bytes()];
    if let Some(place) = bytes.get_mut(..size_of::<RawJournalSuperblock>()) {
        place.copy_from_slice(head.as_bytes());
    }
    editor.write_block(first, &bytes)?;
    editor.edit_super(|raw| {
        let features = raw.features().compat | Compat::HAS_JOURNAL;
        raw.s_feature_compat = features.bits().into();
        raw.s_journal_uuid = [0; 16];
        raw.s_journal_dev = 0.into();
        let overhead = raw.s_overhead_clusters.get();
        if overhead > 0 {
            let clusters = clusters_of(editor, blocks);
            raw.s_overhead_clusters = overhead.saturating_add(clusters).into();
        }
    })?;
    editor.copy_journal_inode(nr)?;
    let bytes = |run: &Range<u64>| {
        let start = run.start + u64::from(run.start == first.0);
        size.offset(PhysBlock(start))..size.offset(PhysBlock(run.end))
    };
    Ok(runs.iter().map(bytes).collect())
}

/// Adds an empty quota file.
fn add_quota_file(editor: &Editor<'_>, kind: QuotaKind) -> Patch {
    let nr = match kind {
        QuotaKind::User => USER_QUOTA,
        QuotaKind::Group => GROUP_QUOTA,
        QuotaKind::Project => editor.take_inode()?,
    };
    must_be_unused(editor, nr)?;
    make_file(editor, nr, InodeFlags::IMMUTABLE_FL, &[])?;
    editor.edit_super(|raw| {
        let mut features = raw.features().ro_compat | RoCompat::QUOTA;
        if kind == QuotaKind::Project {
            features |= RoCompat::PROJECT;
        }
        raw.s_feature_ro_compat = features.bits().into();
        set_quota_inode(raw, kind, nr);
    })
}

/// Adds an orphan file without entries.
fn add_orphan_file(editor: &Editor<'_>) -> Patch {
    let volume = editor.volume;
    let blocks = match volume.geometry().blocks().0 {
        ..SMALL_BLOCKS => ORPHAN_BLOCKS,
        blocks => (blocks / BLOCKS_PER_ORPHAN_BLOCK).min(MOST_ORPHAN_BLOCKS),
    };
    let runs = take_runs(editor, blocks, None)?;
    let nr = editor.take_inode()?;
    make_file(
        editor,
        nr,
        InodeFlags::empty(),
        &extents_of(blocks_of(&runs)),
    )?;
    let sb = &volume.sb;
    let seed = sb.checksum_seed().for_inode(nr, InodeGeneration(0));
    for place in blocks_of(&runs).map(PhysBlock) {
        let mut bytes = vec![0; volume.block_bytes()];
        let sealed = orphan::seal(&mut bytes, place, seed, sb);
        sealed.map_err(|error| Left(error.to_string()))?;
        editor.write_block(place, &bytes)?;
    }
    editor.edit_super(|raw| {
        let features = raw.features().compat | Compat::ORPHAN_FILE;
        raw.s_feature_compat = features.bits().into();
        raw.s_orphan_file_inum = nr.0.into();
    })
}

fn must_be_unused(editor: &Editor<'_>, nr: InodeNr) -> Patch {
    let is_used = editor.with_inode(nr, |inode| inode.links() > 0 || inode.mode() != 0)?;
    match is_used {
        true => Err(Left(format!("inode {nr}, which it needs, is in use"))),
        false => Ok(()),
    }
}

/// Makes an inode a regular file of root's, with these blocks.
fn make_file(editor: &Editor<'_>, nr: InodeNr, flags: InodeFlags, extents: &[Extent]) -> Patch {
    const EXTRA_BYTES: u16 = 32;
    let volume = editor.volume;
    let now = editor.now;
    let mut bytes = vec![0; volume.geometry().inode_size_bytes()];
    let Ok((base, tail)) = RawInode::mut_from_prefix(&mut bytes) else {
        return Err(Left::because("too short"));
    };
    base.i_mode = FileMode::new(FileType::Regular, 0o600).0.into();
    base.i_links_count = 1.into();
    base.i_atime = now.into();
    base.i_mtime = now.into();
    base.i_ctime = now.into();
    base.i_flags = flags.bits().into();
    if volume.incompat(Incompat::EXTENTS) {
        base.i_flags = (flags | InodeFlags::EXTENTS_FL).bits().into();
        extent::init_root(&mut base.i_block);
    }
    if let Ok((extra, _)) = RawInodeExtra::mut_from_prefix(tail) {
        extra.i_extra_isize = EXTRA_BYTES.into();
        extra.i_crtime = now.into();
    }
    editor.write_inode(nr, &mut bytes)?;
    editor.write_map(nr, extents)?;
    let blocks: u64 = extents.iter().map(|extent| u64::from(extent.blocks)).sum();
    let len_bytes = blocks * volume.block_bytes() as u64;
    editor.set_size(nr, len_bytes)?;
    editor.set_blocks(nr, len_bytes / SECTOR_BYTES)
}

/// The blocks of runs, in order.
pub(super) fn blocks_of(runs: &[Range<u64>]) -> impl Iterator<Item = u64> {
    runs.iter().flat_map(Clone::clone)
}

/// The map of a file in these blocks.
pub(super) fn extents_of(blocks: impl Iterator<Item = u64>) -> Vec<Extent> {
    let mut extents = Vec::new();
    for (logical, block) in (0..).zip(blocks) {
        push_block(&mut extents, logical, block, ExtentState::Written);
    }
    extents
}

/// Takes so many blocks or a few more, up to a whole cluster: behind the goal or the middle in one
/// run if there is one, else in as long runs as there are.
pub(super) fn take_runs(
    editor: &Editor<'_>,
    blocks: u64,
    goal: Option<PhysBlock>,
) -> Patch<Ranges> {
    let volume = editor.volume;
    let cluster_blocks = 1 << volume.geometry().blocks_per_cluster_log();
    let clusters = volume.clusters();
    let goal = goal
        .map_or(clusters / 2, |goal| volume.cluster(goal))
        .min(clusters);
    let mut left = blocks.next_multiple_of(cluster_blocks);
    let mut most = left;
    let mut runs = Vec::new();
    while left > 0 {
        let length = left.min(most);
        let behind = editor.take_run_in(length, goal..clusters);
        match behind.or_else(|_| editor.take_run(length)) {
            Ok(start) => {
                runs.push(start.0..start.0 + length);
                left -= length;
            }
            Err(why) if most == cluster_blocks => return Err(why),
            Err(_) => most = (most / 2).next_multiple_of(cluster_blocks),
        }
    }
    Ok(runs)
}

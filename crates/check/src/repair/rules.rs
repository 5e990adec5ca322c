//! **Purpose.** What a repair does for each finding: when, whether without being asked, and with
//! which patch.
//!
//! **Model.** A round patches only the findings of its first stage that has any, since later ones
//! may follow from them: bitmaps, for one, are made of what the inodes map once all maps are sound.
//! Which stages may be patched together says [`may_go_on`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fourscore_ondisk::features::{Compat, RoCompat};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{InodeNr, PhysBlock};

use super::editor::{Editor, Left, Patch};
use super::map::Kept;
use crate::finding::Finding;

/// When a finding is patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The superblock, descriptors, the journal.
    Super,
    /// Orphans, as recovery would treat them.
    Orphans,
    /// Inodes and their maps.
    Inodes,
    /// Blocks with several owners.
    Shared,
    /// Blocks of directories.
    Directories,
    /// The tree of directories, and what has no name.
    Tree,
    /// Link counts, reference counts, quota files.
    Counts,
    /// Bitmaps, free counts.
    Bitmaps,
    /// Backups and the state of the superblock.
    Seal,
    /// Nothing is done.
    Never,
}

/// When a finding is patched.
pub(super) fn stage(finding: &Finding) -> Stage {
    use Finding as F;
    match finding {
        F::UnknownFeatures { .. }
        | F::DeviceShort { .. }
        | F::JournalNotGiven { .. }
        | F::JournalElsewhere { .. }
        | F::JournalReplayed { .. }
        | F::FastCommitsReplayed { .. }
        | F::JournalTail { .. }
        | F::JournalDamaged { .. }
        | F::Unreadable { .. } => Stage::Never,
        F::BackupSuperblock { .. } | F::BackupDescriptors { .. } | F::NotClean { .. } => {
            Stage::Seal
        }
        F::EntryInUnused { .. } => Stage::Super,
        F::Orphan { .. } | F::OrphanList { .. } | F::OrphanFile { .. } => Stage::Orphans,
        F::SharedBlocks { .. } | F::SharedWithMetadata { .. } => Stage::Shared,
        F::XattrRefcount { .. } | F::ValueRefs { .. } => Stage::Counts,
        F::DirNlink { .. } | F::ValueFlag { .. } => Stage::Inodes,
        F::Unattached { .. } => Stage::Tree,
        other => match other.invariant().pass.number() {
            0 => Stage::Super,
            1 => Stage::Inodes,
            2 => Stage::Directories,
            3 => Stage::Tree,
            5 => Stage::Bitmaps,
            _ => Stage::Counts,
        },
    }
}

/// Whether a round that has patched `stage`, its first one, may patch `next` as well, from the same
/// check. Sums may be computed together. In the tree, what has no name gets one: names that a
/// directory still lacks because its blocks are broken must be there before.
pub(super) fn may_go_on(stage: Stage, next: Stage, all: &[Finding]) -> bool {
    use Finding as F;
    let is_entry = |finding: &&Finding| {
        matches!(
            finding,
            F::EntryUnused { .. } | F::EntryType { .. } | F::EntryTypeOpen { .. }
        )
    };
    let mut directories = all
        .iter()
        .filter(|finding| self::stage(finding) == Stage::Directories);
    match (stage, next) {
        (Stage::Directories, Stage::Tree) => directories.all(|finding| is_entry(&finding)),
        _ => stage >= Stage::Counts,
    }
}

/// Whether a finding is patched without being asked (`-p`): if nothing that a user stored can be
/// lost by it, and e2fsck does the same.
pub(super) fn is_safe(finding: &Finding) -> bool {
    use Finding as F;
    matches!(
        finding,
        F::NotClean { .. }
            | F::JournalErrno { .. }
            | F::Orphan { .. }
            | F::GroupChecksum { .. }
            | F::GroupFlags { .. }
            | F::ItableUnused { .. }
            | F::BackupSuperblock { .. }
            | F::BackupDescriptors { .. }
            | F::ZeroDtime { .. }
            | F::TimeRange { .. }
            | F::InodeBlocks { .. }
            | F::InodeSize { .. }
            | F::LargeFile { .. }
            | F::LinksCount { .. }
            | F::DirNlink { .. }
            | F::QuotaUsage { .. }
    ) || finding.invariant().pass.number() == 5
        || (finding.invariant().severity == crate::Severity::Note && stage(finding) == Stage::Never)
}

/// Blocks that are copied, and the findings that ask for it.
type Copies<'f> = (Vec<Range<u64>>, Vec<&'f Finding>);

/// What one round patches, grouped by object.
#[derive(Default)]
pub(super) struct Agenda<'f> {
    directories: BTreeMap<InodeNr, Vec<&'f Finding>>,
    /// The blocks of which an inode needs copies.
    copies: BTreeMap<(InodeNr, Kept), Copies<'f>>,
    /// Objects that are made again once, whatever the number of findings.
    remade: BTreeSet<Remade>,
}

/// Something that one patch mends for all of its findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Remade {
    Super,
    Fields,
    Group(u32),
    Descriptor(u32),
    Backups,
    Map(InodeNr),
    Journal,
    Quota(InodeNr),
    Orphans,
    AttributeBlock(PhysBlock),
    Inode(InodeNr),
}

impl<'f> Agenda<'f> {
    /// Patches one finding. Those of directories wait for [`finish`](Self::finish).
    pub(super) fn patch(&mut self, editor: &Editor<'_>, finding: &'f Finding) -> Patch {
        match stage(finding) {
            Stage::Super => self.super_stage(editor, finding),
            Stage::Orphans => self.orphans(editor, finding),
            Stage::Inodes => self.inodes(editor, finding),
            Stage::Shared => self.shared(editor, finding),
            Stage::Directories => {
                self.plan_directory(editor, finding);
                Ok(())
            }
            Stage::Tree => tree(editor, finding),
            Stage::Counts | Stage::Bitmaps | Stage::Seal => self.counts(editor, finding),
            Stage::Never => Err(Left(finding.invariant().repair.to_owned())),
        }
    }

    /// Patches directories and copies shared blocks, each object once for all of its findings;
    /// returns the findings that are left, and why.
    pub(super) fn finish(&mut self, editor: &Editor<'_>) -> Vec<(&'f Finding, Left)> {
        let mut left = Vec::new();
        for (dir, findings) in std::mem::take(&mut self.directories) {
            if let Err(why) = editor.mend_directory(dir, &findings) {
                left.extend(findings.into_iter().map(|finding| (finding, why.clone())));
            }
        }
        for ((inode, kept), (ranges, findings)) in std::mem::take(&mut self.copies) {
            if let Err(why) = editor.clone_blocks(inode, &ranges, kept) {
                left.extend(findings.into_iter().map(|finding| (finding, why.clone())));
            }
        }
        left
    }

    /// Of two names of a directory, the one is kept that its `..` agrees with, else the first.
    fn plan_directory(&mut self, editor: &Editor<'_>, finding: &'f Finding) {
        let dir = match finding {
            Finding::DirTwoNames { inode, dir, other } => {
                let dotdot = editor.found.tree.dotdot(*inode);
                if dotdot == *other { *dir } else { *other }
            }
            other => InodeNr(u32::try_from(other.subject()).unwrap_or(0)),
        };
        self.directories.entry(dir).or_default().push(finding);
    }

    /// Carries out a patch, unless it was for an earlier finding of this round.
    fn once(&mut self, what: Remade, patch: impl FnOnce() -> Patch) -> Patch {
        if self.remade.insert(what) {
            patch()
        } else {
            Ok(())
        }
    }

    fn super_stage(&mut self, editor: &Editor<'_>, finding: &Finding) -> Patch {
        use Finding as F;
        match finding {
            F::SuperblockRejected { .. } | F::BackupInUse { .. } => {
                self.once(Remade::Super, || editor.restore_super())
            }
            F::SuperblockField { .. } => self.once(Remade::Fields, || editor.mend_super_fields()),
            F::SuperblockCount { .. } => editor.mend_reserved_blocks(),
            F::Features { why } => editor.mend_features(why),
            F::SuperblockExtraIsize { field, .. } => editor.mend_extra_isizes(field),
            F::ReservedGdtBlocks { .. } => {
                editor.edit_super(|raw| raw.s_reserved_gdt_blocks = 0.into())
            }
            F::ResizeInode { inode, .. } => {
                self.once(Remade::Inode(*inode), || editor.mend_resize_inode())
            }
            F::GroupChecksum { group, .. } | F::GroupPlace { group, .. } => self
                .once(Remade::Descriptor(group.0), || {
                    editor.mend_descriptor(*group)
                }),
            F::GroupFlags { group, .. } => editor.clear_group_flags(*group),
            F::LastGroupUninit { group } => {
                let changed = editor.edit_descriptor(*group, |low, _| {
                    let flag = fourscore_ondisk::group::GroupFlags::BLOCK_UNINIT;
                    low.bg_flags = (low.bg_flags.get() & !flag.bits()).into();
                });
                changed.and_then(|()| editor.recount_group(*group))
            }
            F::ItableUnused { group, .. } => editor.set_unused(*group, 0),
            F::MetadataOverlap { group, field, .. } => self
                .once(Remade::Descriptor(group.0), || {
                    editor.mend_overlap(*group, field)
                }),
            F::JournalInode { inode, why } => self.journal_inode(editor, *inode, why),
            // Its inode was found first.
            F::JournalCopyUsed { .. } => Ok(()),
            F::JournalUnreadable { .. } => self.once(Remade::Journal, || editor.reset_journal()),
            F::JournalUnmarked { .. } => self.once(Remade::Journal, || editor.empty_log()),
            F::JournalErrno { .. } => editor.clear_journal_errno(),
            F::Mmp { block, .. } => editor.write_mmp(*block),
            F::EntryInUnused { inode, .. } => {
                let group = editor.volume.geometry().inode_group(*inode);
                let (group, _) = group.ok_or_else(|| Left::because("no such inode"))?;
                self.once(Remade::Descriptor(group.0), || editor.distrust(group))
            }
            other => Err(no_rule(other)),
        }
    }

    /// Takes the journal's inode from its copy, if they differ, unless the superblock names another
    /// inode. If the inode is sound and what is in the journal does not fit it, the journal is
    /// emptied; else it is made again.
    fn journal_inode(&mut self, editor: &Editor<'_>, inode: InodeNr, why: &str) -> Patch {
        let is_content = why.contains("its superblock");
        let has_copy = editor.volume.journal_copy.is_some();
        self.once(Remade::Journal, || {
            if editor.is_journal_elsewhere(inode) {
                editor.use_usual_journal()
            } else if has_copy && !editor.is_journal_copied(inode) {
                editor.restore_journal_inode(inode)
            } else if is_content {
                editor.reset_journal()
            } else {
                editor.recreate_journal(inode)
            }
        })
    }

    fn orphans(&mut self, editor: &Editor<'_>, finding: &Finding) -> Patch {
        self.once(Remade::Orphans, || editor.drop_orphan_lists())?;
        match finding {
            Finding::Orphan { inode } => editor.release_orphan(*inode),
            _ => Ok(()),
        }
    }

    fn inodes(&mut self, editor: &Editor<'_>, finding: &Finding) -> Patch {
        use Finding as F;
        match finding {
            F::InodeChecksum { inode, .. } => editor.edit_inode(*inode, |_| {}),
            F::LowDtime { inode, .. } | F::ZeroDtime { inode, .. } => editor.mend_dtime(*inode),
            F::DtimeInUse { inode, .. } => editor.edit_base(*inode, |base| base.i_dtime = 0.into()),
            F::RootMode { inode, .. } | F::InodeMode { inode, .. } => editor.type_or_clear(*inode),
            F::ReservedMode { inode, .. } => editor.mend_reserved_mode(*inode),
            F::ReservedInUse { inode }
            | F::EncryptionContext { inode, .. }
            | F::DirEmpty { inode }
            | F::SharedBeyond { inode } => {
                self.once(Remade::Inode(*inode), || editor.clear_inode(*inode))
            }
            F::BadBlocksInode { inode } => editor.mend_bad_blocks_inode(*inode),
            F::SpecialMapped { inode, .. } | F::SpecialImmutable { inode, .. } => {
                match editor.type_of(*inode) {
                    fourscore_ondisk::dirent::EntryType::Symlink => {
                        editor.clear_flags(*inode, InodeFlags::IMMUTABLE_FL | InodeFlags::APPEND_FL)
                    }
                    _ => editor.mend_special(*inode),
                }
            }
            F::SpecialSize { inode, .. } => editor.set_size(*inode, 0),
            F::Symlink { inode, .. } => editor.mend_symlink(*inode),
            F::ReservedField { inode, field, .. } => editor.clear_field(*inode, field),
            F::InodeFlags { inode, flag, why } => editor.mend_flag(*inode, flag, why),
            F::ExtraIsize { inode, .. } => editor.mend_extra_isize(*inode),
            F::TimeRange { inode, field } => editor.mend_time(*inode, field),
            F::InodeSize { inode, mapped, .. } => editor.set_size(*inode, *mapped),
            F::InodeBlocks {
                inode, expected, ..
            } => editor.set_blocks(*inode, *expected),
            F::LargeFile { .. } => editor.set_ro_compat(RoCompat::LARGE_FILE),
            F::DirNlink { .. } => editor.set_ro_compat(RoCompat::DIR_NLINK),
            F::ValueFlag { inode } => editor.clear_flags(*inode, InodeFlags::EA_INODE_FL),
            F::Inline { inode, .. } => editor.cut_inline(*inode),
            other => self.attributes(editor, other),
        }
    }

    fn attributes(&mut self, editor: &Editor<'_>, finding: &Finding) -> Patch {
        use Finding as F;
        match finding {
            F::XattrInInode { inode, .. }
            | F::XattrCollision { inode, .. }
            | F::XattrHash { inode, .. }
            | F::XattrName { inode, .. }
            | F::XattrValueInode { inode, .. } => editor.drop_attributes(*inode, finding),
            F::XattrBlockPlace { inode, block } => match editor.is_attribute_block(*block) {
                true => editor.set_compat(Compat::EXT_ATTR),
                false => editor.drop_acl(*inode),
            },
            F::XattrBlock { block, .. } => {
                self.once(Remade::AttributeBlock(*block), || editor.drop_block(*block))
            }
            F::ExtentRoot { inode, .. }
            | F::ExtentNode { inode, .. }
            | F::ExtentMax { inode, .. }
            | F::ClusterAlign { inode, .. }
            | F::BlockOutside { inode, .. }
            | F::MapOnMetadata { inode, .. }
            | F::DirUnwritten { inode, .. }
            | F::DirHole { inode, .. }
            | F::DirTooBig { inode, .. }
            | F::BigallocBlockMap { inode } => {
                self.once(Remade::Map(*inode), || editor.rebuild_map(*inode))
            }
            other => Err(no_rule(other)),
        }
    }

    /// Has all owners of shared blocks but the first get a copy; with metadata all of them. An
    /// owner of an attribute block keeps it, if it is sound. An inode that maps a block more than
    /// once keeps it where it maps it first.
    fn shared(&mut self, editor: &Editor<'_>, finding: &'f Finding) -> Patch {
        let (block, count, inodes, with_metadata) = match finding {
            Finding::SharedBlocks {
                block,
                count,
                inodes,
            } => (block, count, inodes, false),
            Finding::SharedWithMetadata {
                block,
                count,
                inodes,
            } => (block, count, inodes, true),
            other => return Err(no_rule(other)),
        };
        let range = block.0..block.0.saturating_add(*count);
        let mut has_owner = with_metadata;
        for nr in &inodes.0 {
            let acl = editor.with_inode(*nr, |inode| inode.file_acl(&editor.volume.sb))?;
            if range.contains(&acl.0) {
                match !with_metadata && editor.is_attribute_block(acl) {
                    true => has_owner = true,
                    false => editor.drop_block(acl)?,
                }
            }
        }
        if let ([nr], false) = (&inodes.0[..], has_owner) {
            let (ranges, findings) = self.copies.entry((*nr, Kept::First)).or_default();
            ranges.push(range);
            findings.push(finding);
            return Ok(());
        }
        for nr in &inodes.0 {
            let is_first = !std::mem::replace(&mut has_owner, true);
            if !is_first {
                let (ranges, findings) = self.copies.entry((*nr, Kept::None)).or_default();
                ranges.push(range.clone());
                findings.push(finding);
            }
        }
        Ok(())
    }

    fn counts(&mut self, editor: &Editor<'_>, finding: &Finding) -> Patch {
        use Finding as F;
        match finding {
            F::XattrRefcount {
                block, expected, ..
            } => editor.set_users(*block, *expected),
            F::ValueRefs {
                inode, expected, ..
            } => editor.set_value_users(*inode, *expected),
            F::LinksCount {
                inode, expected, ..
            } => editor.set_links(*inode, *expected),
            F::QuotaFile { inode, .. } | F::QuotaUsage { inode, .. } => {
                self.once(Remade::Quota(*inode), || editor.mend_quota(*inode))
            }
            F::BitmapChecksum { group, .. }
            | F::BlockNotMarked { group, .. }
            | F::BlockNotUsed { group, .. }
            | F::InodeNotMarked { group, .. }
            | F::InodeNotUsed { group, .. }
            | F::BitmapPadding { group, .. }
            | F::GroupFreeBlocks { group, .. }
            | F::GroupFreeInodes { group, .. }
            | F::GroupDirs { group, .. } => {
                self.once(Remade::Group(group.0), || editor.recount_group(*group))
            }
            F::FreeBlocks { expected, .. } => editor.set_free_blocks(*expected),
            F::FreeInodes { expected, .. } => {
                editor.edit_super(|raw| raw.s_free_inodes_count = (*expected).into())
            }
            F::BackupSuperblock { .. } | F::BackupDescriptors { .. } => {
                self.once(Remade::Backups, || editor.write_backups())
            }
            F::NotClean { .. } => editor.mark_clean(),
            other => Err(no_rule(other)),
        }
    }
}

fn no_rule(finding: &Finding) -> Left {
    Left(format!("no rule for {}", finding.invariant().code))
}

fn tree(editor: &Editor<'_>, finding: &Finding) -> Patch {
    match finding {
        Finding::NoRoot { .. } => editor.make_root(),
        Finding::DirLost { inode, .. } => editor.reconnect(*inode),
        Finding::DirLoop { inode, parent } => editor.break_loop(*inode, *parent),
        Finding::DotDotInode {
            inode, expected, ..
        } => editor.set_dotdot(*inode, *expected),
        Finding::Unattached { inode, .. } if editor.state.directories.contains(inode.0.into()) => {
            Ok(())
        }
        Finding::Unattached { inode, .. } if editor.is_worthless(*inode) => {
            editor.clear_inode(*inode)
        }
        Finding::Unattached { inode, .. } => editor.reconnect(*inode),
        other => Err(no_rule(other)),
    }
}

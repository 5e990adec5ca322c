//! **Purpose.** Which steps the wished changes take, in which order.
//!
//! **Model.** The last of several changes of the same thing counts. Names are taken out of the
//! superblock first, then their inodes are cleared, files are added, and checksums come last, so
//! that they cover everything:
//! ```text
//! from \ to   none            uninit_bg         metadata_csum
//! none        -               seal groups       dress
//! uninit_bg   undress         (seal: new UUID)  dress
//! metadata    strip, refit,   strip, refit      (strip, dress: new UUID)
//!             undress
//! ```
//!
//! The seed of checksums is also that of the hashes of values in inodes of their own (`ea_inode`),
//! whether or not metadata has checksums. So with that feature a new UUID is a change of its own:
//! without checksums before and after, it is the step of that name. These hashes are not computed
//! again: a step that would change the seed is refused where there are such values.

use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::quota::QuotaKind;
use fourscore_ondisk::superblock::{JournalPlace, MetadataChecksum, Superblock};
use fourscore_ondisk::{InodeNr, RawSuperblock};
use uuid::Uuid;

use super::super::editor::{Editor, Patch};
use super::{Change, NewJournal, Ranges, Switch, checksums, files, index};

/// The inode of the blocks that are reserved for descriptors.
const RESIZE_INODE: InodeNr = InodeNr(7);

/// What the superblock no longer has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Forgotten {
    pub(super) journal: bool,
    pub(super) orphan_file: bool,
    pub(super) mmp: bool,
    pub(super) resize_inode: bool,
    pub(super) quota: Vec<QuotaKind>,
}

/// What is added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Additions {
    pub(super) journal: Option<NewJournal>,
    pub(super) orphan_file: bool,
    pub(super) mmp: bool,
    pub(super) quota: Vec<QuotaKind>,
}

/// A step of a change: see `convert`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The superblock forgets.
    Forget(Forgotten),
    /// Inodes that it has forgotten are cleared.
    Clear(Vec<InodeNr>),
    /// Directories lose their index.
    Unindex,
    Add(Additions),
    /// From `metadata_csum` to `uninit_bg`.
    Strip(Option<Uuid>),
    /// Limits of index blocks become those of the format.
    Refit,
    /// From `uninit_bg` to no checksums.
    Undress,
    /// Checksums of descriptors: `uninit_bg`.
    SealGroups(Option<Uuid>),
    /// All checksums: `metadata_csum`.
    Dress(Option<Uuid>),
    /// The UUID of a file system without checksums, on which hashes of values depend.
    ChangeUuid(Uuid),
}

impl Step {
    /// Makes the changes of the step; returns what is to be zeroed before they are written.
    pub(super) fn apply(&self, editor: &Editor<'_>) -> Patch<Ranges> {
        match self {
            Self::Forget(what) => files::forget(editor, what).map(|()| Ranges::new()),
            Self::Clear(inodes) => {
                let clear = |nr: &InodeNr| editor.zero_inode(*nr);
                inodes.iter().try_for_each(clear)?;
                Ok(Ranges::new())
            }
            Self::Unindex => index::remove(editor),
            Self::Add(what) => files::add(editor, what),
            Self::Strip(uuid) => checksums::strip(editor, *uuid),
            Self::Refit => checksums::refit(editor),
            Self::Undress => checksums::undress(editor),
            Self::SealGroups(uuid) => checksums::seal_groups(editor, *uuid),
            Self::Dress(uuid) => checksums::dress(editor, *uuid),
            Self::ChangeUuid(uuid) => checksums::change_uuid(editor, *uuid),
        }
    }

    /// The option that is at fault if the step is not possible.
    pub(super) fn option(&self) -> &'static str {
        match self {
            Self::Forget(_) | Self::Clear(_) | Self::Add(_) => "-O",
            Self::Unindex => "-O ^dir_index",
            Self::Strip(Some(_))
            | Self::SealGroups(Some(_))
            | Self::Dress(Some(_))
            | Self::ChangeUuid(_) => "-U",
            Self::Strip(_) | Self::Refit | Self::Dress(_) => "-O metadata_csum",
            Self::Undress | Self::SealGroups(_) => "-O uninit_bg",
        }
    }
}

/// Why a change is not possible: what, and why.
type Refused = (&'static str, String);

/// What is wished, the last change of each thing.
#[derive(Default)]
struct Wish {
    metadata_csum: Option<Switch>,
    uninit_bg: Option<Switch>,
    uuid: Option<Uuid>,
    journal: Option<Option<NewJournal>>,
    quota: [Option<Switch>; 3],
    orphan_file: Option<Switch>,
    mmp: Option<Switch>,
    drops_resize_inode: bool,
    drops_dir_index: bool,
}

impl Wish {
    fn of(changes: &[Change]) -> Self {
        let mut wish = Self::default();
        for change in changes {
            match *change {
                Change::MetadataCsum(switch) => wish.metadata_csum = Some(switch),
                Change::UninitBg(switch) => wish.uninit_bg = Some(switch),
                Change::Uuid(uuid) => wish.uuid = Some(uuid),
                Change::AddJournal(new) => wish.journal = Some(Some(new)),
                Change::RemoveJournal => wish.journal = Some(None),
                Change::Quota { kind, switch } => {
                    let [user, group, project] = &mut wish.quota;
                    *match kind {
                        QuotaKind::User => user,
                        QuotaKind::Group => group,
                        QuotaKind::Project => project,
                    } = Some(switch);
                }
                Change::OrphanFile(switch) => wish.orphan_file = Some(switch),
                Change::Mmp(switch) => wish.mmp = Some(switch),
                Change::RemoveResizeInode => wish.drops_resize_inode = true,
                Change::RemoveDirIndex => wish.drops_dir_index = true,
            }
        }
        wish
    }
}

/// The steps of the changes; none if everything is as it is wished, or concerns the superblock
/// alone.
pub(super) fn steps(sb: &Superblock, changes: &[Change]) -> Result<Vec<Step>, Refused> {
    let wish = Wish::of(changes);
    let mut steps = Vec::new();
    let forgotten = forgotten(sb, &wish)?;
    if forgotten != Forgotten::default() {
        let inodes = inodes_of(sb, &forgotten);
        steps.push(Step::Forget(forgotten));
        if !inodes.is_empty() {
            steps.push(Step::Clear(inodes));
        }
    }
    if wish.drops_dir_index && sb.features().compat.contains(Compat::DIR_INDEX) {
        steps.push(Step::Unindex);
    }
    let additions = additions(sb, &wish)?;
    if additions != Additions::default() {
        steps.push(Step::Add(additions));
    }
    add_checksums(sb, &wish, &mut steps);
    Ok(steps)
}

/// The inode of the quota of a kind.
fn quota_inode(sb: &Superblock, kind: QuotaKind) -> Option<InodeNr> {
    let inodes = sb.quota_inodes();
    match kind {
        QuotaKind::User => inodes.user,
        QuotaKind::Group => inodes.group,
        QuotaKind::Project => inodes.project,
    }
}

/// Whether a kind of quota is there; that of projects also if only the feature is.
fn has_quota(sb: &Superblock, kind: QuotaKind) -> bool {
    let ro_compat = sb.features().ro_compat;
    let is_project = kind == QuotaKind::Project && ro_compat.contains(RoCompat::PROJECT);
    is_project || quota_inode(sb, kind).is_some()
}

fn forgotten(sb: &Superblock, wish: &Wish) -> Result<Forgotten, Refused> {
    let features = sb.features();
    let mut forgotten = Forgotten::default();
    if wish.journal == Some(None) && features.compat.contains(Compat::HAS_JOURNAL) {
        if let Some(JournalPlace::Device { .. }) = sb.journal() {
            let why = "its journal is on another device, which counts it: use tune2fs";
            return Err(("-O ^has_journal", why.into()));
        }
        forgotten.journal = true;
    }
    let is_off = |switch: Option<Switch>| switch == Some(Switch::Off);
    // Without a journal there are no orphans.
    forgotten.orphan_file = (is_off(wish.orphan_file) || forgotten.journal)
        && features.compat.contains(Compat::ORPHAN_FILE);
    forgotten.mmp = is_off(wish.mmp) && features.incompat.contains(Incompat::MMP);
    forgotten.resize_inode =
        wish.drops_resize_inode && features.compat.contains(Compat::RESIZE_INODE);
    let kinds = QuotaKind::ALL.into_iter().zip(wish.quota);
    let off = kinds.filter(|&(kind, switch)| is_off(switch) && has_quota(sb, kind));
    forgotten.quota = off.map(|(kind, _)| kind).collect();
    Ok(forgotten)
}

/// The inodes of what is forgotten.
fn inodes_of(sb: &Superblock, forgotten: &Forgotten) -> Vec<InodeNr> {
    let mut inodes = Vec::new();
    if let (true, Some(JournalPlace::Inode(nr))) = (forgotten.journal, sb.journal()) {
        inodes.push(nr);
    }
    if forgotten.orphan_file {
        inodes.extend(sb.orphan_file_inode());
    }
    if forgotten.resize_inode {
        inodes.push(RESIZE_INODE);
    }
    let quota = forgotten.quota.iter();
    inodes.extend(quota.filter_map(|&kind| quota_inode(sb, kind)));
    inodes
}

fn additions(sb: &Superblock, wish: &Wish) -> Result<Additions, Refused> {
    const OLD_INODE_BYTES: usize = 128;
    let features = sb.features();
    let is_on = |switch: Option<Switch>| switch == Some(Switch::On);
    let has_journal = features.compat.contains(Compat::HAS_JOURNAL);
    let mut additions = Additions {
        journal: wish.journal.flatten().filter(|_| !has_journal),
        orphan_file: is_on(wish.orphan_file) && !features.compat.contains(Compat::ORPHAN_FILE),
        mmp: is_on(wish.mmp) && !features.incompat.contains(Incompat::MMP),
        quota: Vec::new(),
    };
    let will_have_journal = wish
        .journal
        .map_or(has_journal, |journal| journal.is_some());
    if additions.orphan_file && !will_have_journal {
        return Err(("-O orphan_file", "needs a journal (-O has_journal)".into()));
    }
    let kinds = QuotaKind::ALL.into_iter().zip(wish.quota);
    let on = kinds.filter(|&(kind, switch)| is_on(switch) && quota_inode(sb, kind).is_none());
    additions.quota = on.map(|(kind, _)| kind).collect();
    let is_old = sb.geometry().inode_size_bytes() <= OLD_INODE_BYTES;
    if is_old && additions.quota.contains(&QuotaKind::Project) {
        let why = "its inodes of 128 bytes have no field for a project";
        return Err(("-O project", why.into()));
    }
    Ok(additions)
}

fn add_checksums(sb: &Superblock, wish: &Wish, steps: &mut Vec<Step>) {
    use MetadataChecksum::{Crc16, Crc32c, None as Nothing};
    let features = sb.features();
    let now = sb.metadata_checksum();
    let to = match (wish.metadata_csum, wish.uninit_bg) {
        (Some(Switch::On), _) => Crc32c,
        (Some(Switch::Off), Some(Switch::Off)) => Nothing,
        (Some(Switch::Off), _) if now == Crc32c => Crc16,
        (_, Some(Switch::On)) if now == Nothing => Crc16,
        (_, Some(Switch::Off)) if now == Crc16 => Nothing,
        _ => now,
    };
    let keeps_seed = to == Crc32c && features.incompat.contains(Incompat::CSUM_SEED);
    let is_fixed = features.compat.contains(Compat::STABLE_INODES);
    let has_hashes = to != Nothing || features.incompat.contains(Incompat::EA_INODE);
    let uuid = wish.uuid.filter(|uuid| {
        let is_new = uuid.as_bytes() != &sb.raw().s_uuid;
        is_new && has_hashes && !keeps_seed && !is_fixed
    });
    match (now, to) {
        (Crc32c, Crc32c) if uuid.is_some() => steps.extend([Step::Strip(None), Step::Dress(uuid)]),
        (Crc32c, Crc16) => steps.extend([Step::Strip(uuid), Step::Refit]),
        (Crc32c, Nothing) => steps.extend([Step::Strip(uuid), Step::Refit, Step::Undress]),
        (Nothing | Crc16, Crc32c) => steps.push(Step::Dress(uuid)),
        (Crc16, Nothing) => {
            steps.extend(uuid.map(|uuid| Step::SealGroups(Some(uuid))));
            steps.push(Step::Undress);
        }
        (Nothing, Crc16) => steps.push(Step::SealGroups(uuid)),
        (Crc16, Crc16) if uuid.is_some() => steps.push(Step::SealGroups(uuid)),
        (Nothing, Nothing) => steps.extend(uuid.map(Step::ChangeUuid)),
        _ => {}
    }
}

/// Sets which checksums there are, and the UUID.
pub(super) fn set_checksums(
    raw: &mut RawSuperblock,
    checksums: MetadataChecksum,
    uuid: Option<Uuid>,
) {
    const CRC32C: u8 = 1;
    let mut ro_compat = raw.features().ro_compat;
    ro_compat.set(
        RoCompat::METADATA_CSUM,
        checksums == MetadataChecksum::Crc32c,
    );
    ro_compat.set(RoCompat::GDT_CSUM, checksums == MetadataChecksum::Crc16);
    raw.s_feature_ro_compat = ro_compat.bits().into();
    if checksums == MetadataChecksum::Crc32c {
        raw.s_checksum_type = CRC32C;
    } else {
        let incompat = raw.features().incompat - Incompat::CSUM_SEED;
        raw.s_feature_incompat = incompat.bits().into();
        raw.s_checksum_type = 0;
        raw.s_checksum_seed = 0.into();
        raw.s_checksum = 0.into();
    }
    if let Some(uuid) = uuid {
        raw.s_uuid = *uuid.as_bytes();
    }
}

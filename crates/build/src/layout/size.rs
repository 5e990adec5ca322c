//! **Purpose.** How large the file system must be, exactly, and the layout in it.
//!
//! **Model.** What is needed is known before the size: placing into endless space counts it. What a
//! file system of some size has free is known from its skeleton, which costs next to nothing to
//! plan. So the least size is searched for: from below, growing by what is missing, then halving
//! the last step. Placing for real may need a few blocks more (a file cut by a superblock's copy
//! may get a node); then the search goes on with these added.
//!
//! **Invariants.** The size that is found holds everything, and by far not a percent less would.

use std::ops::Range;

use fourscore_mkfs::{BlockSizeWish, FormatError, Layout, ReservedInodes, Skeleton, Usage};
use fourscore_ondisk::features::{Compat, FeatureSet, RoCompat};
use fourscore_ondisk::quota::QuotaUsage;
use fourscore_ondisk::{BlockSize, InodeNr, PhysBlock, Timestamp};

use super::draft::Arrived;
use super::facts::Facts;
use super::numbers::Numbers;
use super::place::{Forms, Outcome, Placed};
use super::pool::Pool;
use crate::error::{BuildError, BuildResult};
use crate::identity::identify;
use crate::options::{Options, Size};
use crate::tree::{FileId, Kind, Meta, NodeId, Tree, Xattrs};

/// The layout, and the plan of the file system around it.
pub(crate) struct Settled {
    pub(crate) forms: Forms,
    pub(crate) placed: Placed,
    pub(crate) plan: Layout,
    pub(crate) reserved: ReservedInodes,
}

/// Bytes of free space for each inode that is kept free with it, as mke2fs does it.
const FREE_BYTES_PER_INODE: u64 = 16384;
/// The least length with which the form of file systems is asked for.
const PROBE_BYTES: u64 = 64 << 20;
/// The length for which this is done where the content is not known yet: neither small nor big.
const DRAFT_BYTES: u64 = 4 << 30;
/// The smallest journal, in blocks.
const LEAST_JOURNAL_BLOCKS: u64 = 1024;
/// From how many blocks on a larger journal is usual.
const LARGER_JOURNAL_BLOCKS: u64 = 30 << 10;
/// Inodes that are reserved.
const RESERVED_INODES: u64 = 10;
/// A draft is given up that makes the file system larger than one part in so many.
const MOST_MORE: u64 = 256;
/// How often places may need more than was counted.
const MOST_ROUNDS: u32 = 16;
/// One past the last block of a file system.
const BLOCKS_END: u64 = 1 << 48;

/// Decides everything. `draft` is the image as far as it was begun: its file, and log2 of its
/// block size.
pub(crate) fn settle(
    options: &Options,
    mut tree: Tree,
    draft: Option<(FileId, u32)>,
) -> BuildResult<Settled> {
    let threads = options.thread_count();
    let lost_and_found = lost_and_found(&mut tree, options)?;
    tree.sort(threads);
    if let Some(path) = tree.name_given_twice() {
        // Only a directory that changes while it is listed tells a name twice.
        return Err(BuildError::Changed { path });
    }
    let numbers = Numbers::new(&tree, lost_and_found);
    let mut wish = Wish::new(options, &tree, &numbers);
    if let Some(size) = draft.and_then(|(_, bits)| BlockSize::from_log(bits.checked_sub(10)?))
        && !matches!(wish.format.block_size, Some(BlockSizeWish::Exactly(_)))
    {
        wish.format.block_size = Some(BlockSizeWish::Exactly(size));
    }
    let skeleton = wish.skeleton(wish.probe_bytes(&tree, &numbers))?;
    wish.keep_form(&skeleton);
    let facts = Facts::of(&skeleton);
    let facts = facts.ok_or(BuildError::Invalid("the hash function needs a key"))?;
    let arrived = draft
        .filter(|&(_, bits)| bits == facts.block_bits)
        .and_then(|(file, bits)| Arrived::new(&tree, numbers.order(), file, bits));
    let mut forms = Forms::new(tree, facts, numbers, arrived)?;
    forms.shape_directories(lost_and_found, threads)?;
    wish.objects = forms.inodes();
    if skeleton.has_quota_files() {
        wish.owners = forms.owners();
    }
    let endless = forms.place(&mut Pool::new(vec![0..BLOCKS_END]), 0);
    if skeleton.wants_a_journal() {
        wish.shrink_journal(endless.needed_blocks);
    }
    let around = match forms.arrived {
        Some(_) => wish.fit(&forms, endless.needed_blocks).ok(),
        None => None,
    };
    let arrived = forms.arrived.take();
    let fitted = match (wish.fit(&forms, endless.needed_blocks), around) {
        (Ok(anew), Some(around))
            if around.blocks() <= anew.blocks() + anew.blocks() / MOST_MORE =>
        {
            forms.arrived = arrived;
            around
        }
        // The draft becomes a source, and the image a new file.
        (anew, _) => anew?,
    };
    finish(forms, fitted)
}

/// The directory for what e2fsck finds: of the sources, else a new one.
fn lost_and_found(tree: &mut Tree, options: &Options) -> BuildResult<Option<NodeId>> {
    let name = b"lost+found";
    // Looked for by hand: the first question for a name has the tree index all it holds.
    let found = tree.children(NodeId::ROOT).find(|(own, _)| *own == name);
    if let Some((_, found)) = found {
        return Ok(tree.list_of(found).map(|_| found));
    }
    let seconds = i64::try_from(image_seconds(options)).unwrap_or(i64::MAX);
    let time = Timestamp::new(seconds, 0).unwrap_or_default();
    let meta = Meta {
        permissions: 0o700,
        atime: time,
        mtime: time,
        ctime: time,
        ..Meta::default()
    };
    let made = tree.insert_new(NodeId::ROOT, name, &meta, Kind::Directory, &Xattrs::new())?;
    Ok(Some(made))
}

/// The time at which the file system counts as made.
pub(crate) fn image_seconds(options: &Options) -> u64 {
    let now = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |since| since.as_secs())
    };
    let given = options.format.time_seconds.or(options.source_date_epoch);
    given.unwrap_or_else(now)
}

/// What is asked of the file system, whatever is in it.
fn format_of(options: &Options) -> fourscore_mkfs::Options {
    let mut format = options.format.clone();
    format.time_seconds = Some(image_seconds(options));
    if !matches!(options.size, Size::Bytes(_)) {
        format.reserved_percent.get_or_insert(0.0);
        // By size a profile may give small file systems small blocks; what the size is shows
        // only later, and blocks of a page are quicker everywhere.
        let page = BlockSize::from_log(2).map(BlockSizeWish::AtLeast);
        format.block_size = format.block_size.or(page);
    }
    if options.size == Size::Minimum {
        let asked = format.features.take();
        let asked = asked.map_or(String::new(), |asked| asked + ",");
        format.features = Some(asked + "^resize_inode");
    }
    format
}

/// A file system of the form that is asked for, before anybody knows what will be in it.
pub(super) fn draft_skeleton(options: &Options) -> BuildResult<Skeleton> {
    let len_bytes = match options.size {
        Size::Bytes(bytes) => bytes,
        _ => DRAFT_BYTES,
    };
    let format = format_of(options);
    let nobody = QuotaUsage::default();
    Ok(Skeleton::new(
        &format,
        &options.profile,
        len_bytes,
        &nobody,
    )?)
}

/// What is asked of the file system, made definite.
struct Wish<'a> {
    options: &'a Options,
    format: fourscore_mkfs::Options,
    /// How many objects need an inode.
    objects: u64,
    block_bits: u32,
    /// For whom quota files need room.
    owners: QuotaUsage,
}

/// Inodes in front of the first object's.
fn hidden_inodes(skeleton: &Skeleton) -> u64 {
    u64::from(skeleton.next_inode().0) - 1
}

/// A file system that is large enough.
struct Found {
    skeleton: Skeleton,
    blocks: u64,
}

impl<'a> Wish<'a> {
    fn new(options: &'a Options, tree: &Tree, numbers: &Numbers) -> Self {
        let mut format = format_of(options);
        let identity = identify(tree, numbers, options);
        format.uuid = format.uuid.or(Some(identity.uuid));
        format.hash_seed = format.hash_seed.or(Some(identity.hash_seed));
        Self {
            options,
            format,
            objects: numbers.order().len() as u64,
            block_bits: 0,
            owners: QuotaUsage::default(),
        }
    }

    /// A length near the one that will come out, for asking what the profile says of such a size.
    fn probe_bytes(&self, tree: &Tree, numbers: &Numbers) -> u64 {
        if let Size::Bytes(bytes) = self.options.size {
            return bytes;
        }
        let content: u64 = numbers
            .order()
            .iter()
            .map(|&node| tree.content_units_bytes(node))
            .sum();
        let slack = match self.options.size {
            Size::AutoPlusBytes(bytes) => bytes,
            _ => 0,
        };
        let rest = numbers.order().len() as u64 * 4096;
        (content + content / 16 + rest + slack).max(PROBE_BYTES)
    }

    /// Keeps the block size of the probe whatever the size will be.
    fn keep_form(&mut self, probe: &Skeleton) {
        let size = probe.superblock().geometry().block_size();
        self.format.block_size = Some(BlockSizeWish::Exactly(size));
        self.block_bits = size.bits();
    }

    /// A journal as small as it may be, where a larger one would be usual.
    fn shrink_journal(&mut self, needed_blocks: u64) {
        if self.options.size == Size::Minimum && needed_blocks >= LARGER_JOURNAL_BLOCKS {
            let size_bits = self.block_bits;
            let mib = (LEAST_JOURNAL_BLOCKS << size_bits >> 20).max(1);
            let journal = &mut self.format.journal;
            journal.size_mib = journal.size_mib.or(u32::try_from(mib).ok());
        }
    }

    fn skeleton(&self, len_bytes: u64) -> BuildResult<Skeleton> {
        self.with_inodes(&[], len_bytes, 0)
    }

    /// A skeleton around `contents` with as many inodes as are needed and asked for.
    fn with_inodes(
        &self,
        contents: &[Range<PhysBlock>],
        len_bytes: u64,
        slack_blocks: u64,
    ) -> BuildResult<Skeleton> {
        let mut format = self.format.clone();
        if matches!(self.options.size, Size::Bytes(_)) || format.inode_ratio_bytes.is_some() {
            // By the ratio of the profile, if these are enough.
            let skeleton = self.planned(contents, &format, len_bytes)?;
            if self.has_inodes_for_all(&skeleton) {
                return Ok(skeleton);
            }
        }
        let asked = format.inodes.unwrap_or(0);
        let slack = (slack_blocks << self.block_bits) / FREE_BYTES_PER_INODE;
        let wanted = |hidden: u64| asked.max(self.objects + hidden + slack).next_multiple_of(8);
        let mut with = |inodes: u64| {
            format.inodes = Some(inodes);
            self.planned(contents, &format, len_bytes)
        };
        let skeleton = with(wanted(RESERVED_INODES))?;
        if self.has_inodes_for_all(&skeleton) {
            return Ok(skeleton);
        }
        // A large file system has an orphan file too, one with projects a file for these.
        let wanted = wanted(hidden_inodes(&skeleton));
        let skeleton = with(wanted)?;
        if self.has_inodes_for_all(&skeleton) {
            return Ok(skeleton);
        }
        // The inodes of each group are rounded down to whole bytes of its bitmap.
        with(wanted + 8 * u64::from(skeleton.superblock().geometry().groups()))
    }

    /// Whether a file system has an inode for each object.
    fn has_inodes_for_all(&self, skeleton: &Skeleton) -> bool {
        let geometry = skeleton.superblock().geometry();
        u64::from(geometry.inodes()) >= self.objects + hidden_inodes(skeleton)
    }

    fn planned(
        &self,
        contents: &[Range<PhysBlock>],
        format: &fourscore_mkfs::Options,
        len_bytes: u64,
    ) -> BuildResult<Skeleton> {
        let profile = &self.options.profile;
        let skeleton = Skeleton::around(contents, format, profile, len_bytes, &self.owners)?;
        Ok(skeleton)
    }

    /// A file system for the forms, and where they are in it.
    fn fit(&self, forms: &Forms, needed: u64) -> BuildResult<Fitted> {
        match self.options.size {
            Size::Bytes(given_bytes) => {
                let skeleton = self.with_inodes(forms.contents(), given_bytes, 0)?;
                let fitted = Fitted::place(forms, skeleton);
                if fitted.outcome.missing_blocks == 0 {
                    return Ok(fitted);
                }
                let least = self.least(forms, needed, 0)?;
                let needed_bytes = least.skeleton.superblock().geometry().size_bytes();
                Err(BuildError::NoSpace {
                    needed_bytes,
                    given_bytes,
                })
            }
            Size::Auto | Size::Minimum => self.least(forms, needed, 0),
            Size::AutoPlusBytes(bytes) => self.least(forms, needed, forms.facts.blocks(bytes)),
            Size::AutoPlusPercent(percent) => {
                let least = self.least(forms, needed, 0)?;
                let blocks = u128::from(least.skeleton.superblock().geometry().blocks().0);
                let slack = (blocks * u128::from(percent)).div_ceil(100);
                let slack = u64::try_from(slack).unwrap_or(BLOCKS_END).min(BLOCKS_END);
                self.least(forms, needed, slack)
            }
        }
    }

    /// The smallest file system that holds the forms and has `slack` blocks free.
    fn least(&self, forms: &Forms, needed: u64, slack: u64) -> BuildResult<Fitted> {
        let mut target = needed + slack;
        for round in 0..MOST_ROUNDS {
            let found = self.search(forms, target, slack)?;
            let fitted = Fitted::place(forms, found.skeleton);
            let missing = fitted.outcome.missing_blocks;
            let more = (fitted.outcome.needed_blocks + slack).saturating_sub(target);
            if missing == 0 && more == 0 {
                return Ok(fitted);
            }
            // A file for which one block is missing is missing whole: what more is needed tells how
            // much that is, as long as it does tell.
            target += match round < MOST_ROUNDS / 2 {
                true => more.max(1),
                false => more.max(missing).max(1),
            };
        }
        Err(BuildError::Invalid("no size is large enough"))
    }

    /// The smallest file system with `target` blocks free, those counted that contents lie in
    /// already.
    fn search(&self, forms: &Forms, target: u64, slack: u64) -> BuildResult<Found> {
        let mut low = target;
        let mut step = 0;
        let mut high = loop {
            match self.try_blocks(forms, low, target, slack)? {
                Ok(found) => break found,
                Err(missing) => {
                    // A last group too short to be used makes no progress until it is not.
                    step = if missing == step { step * 2 } else { missing };
                    low += step.max(1);
                }
            }
        };
        let mut low = high.blocks.saturating_sub(step.max(1));
        while low + 1 < high.blocks {
            let middle = low + (high.blocks - low) / 2;
            match self.try_blocks(forms, middle, target, slack)? {
                Ok(found) => high = found,
                Err(_) => low = middle,
            }
        }
        Ok(high)
    }

    /// A file system of so many blocks, or how many are missing in it.
    fn try_blocks(
        &self,
        forms: &Forms,
        blocks: u64,
        target: u64,
        slack: u64,
    ) -> BuildResult<Result<Found, u64>> {
        if blocks >= BLOCKS_END {
            return Err(BuildError::Invalid("no size is large enough"));
        }
        let skeleton = match self.with_inodes(forms.contents(), blocks << self.block_bits, slack) {
            Ok(skeleton) => skeleton,
            Err(BuildError::Format(error)) if is_about_size(&error) => {
                return Ok(Err((blocks / 8).max(16)));
            }
            Err(error) => return Err(error),
        };
        let end = skeleton.superblock().geometry().blocks().0;
        let free = skeleton.free_blocks().0 + forms.blocks_that_stay(end);
        if free < target {
            return Ok(Err(target - free));
        }
        if skeleton.is_too_small_for_a_journal() && self.options.size != Size::Minimum {
            return Ok(Err((blocks / 8).max(16)));
        }
        Ok(Ok(Found { skeleton, blocks }))
    }
}

/// Whether a larger file system might do.
fn is_about_size(error: &FormatError) -> bool {
    match error {
        FormatError::TooSmall { .. } | FormatError::NoRoom { .. } => true,
        FormatError::Option { option, .. } => {
            matches!(option.as_str(), "-J size" | "-I, -i, -N" | "-N, -i, -g")
        }
        _ => false,
    }
}

/// A file system in which everything was placed.
struct Fitted {
    skeleton: Skeleton,
    outcome: Outcome,
    taken: Vec<Range<u64>>,
}

impl Fitted {
    /// The size of the file system.
    fn blocks(&self) -> u64 {
        self.skeleton.superblock().geometry().blocks().0
    }

    fn place(forms: &Forms, skeleton: Skeleton) -> Self {
        let free: Vec<_> = skeleton
            .free_runs()
            .map(|run| run.start.0..run.end.0)
            .collect();
        let mut pool = Pool::new(free.clone());
        let end = skeleton.superblock().geometry().blocks().0;
        let outcome = forms.place(&mut pool, end);
        let taken = pool.taken(&free);
        Self {
            skeleton,
            outcome,
            taken,
        }
    }
}

/// Counts what is in use and completes the plan.
fn finish(mut forms: Forms, fitted: Fitted) -> BuildResult<Settled> {
    let Fitted {
        skeleton,
        outcome,
        taken,
    } = fitted;
    forms.begin_at(skeleton.next_inode(), &outcome.placed)?;
    let geometry = skeleton.superblock().geometry();
    let mut directories = vec![0; geometry.groups() as usize];
    for node in forms.numbers.directories(&forms.tree) {
        let place = geometry.inode_group(forms.numbers.inode(node));
        let count = place.and_then(|(group, _)| directories.get_mut(group.0 as usize));
        if let Some(count) = count {
            *count += 1;
        }
    }
    let used = u32::try_from(forms.inodes()).unwrap_or(u32::MAX);
    let last_inode = InodeNr((skeleton.next_inode().0 - 1).saturating_add(used));
    let usage = Usage {
        blocks: taken
            .into_iter()
            .map(|run| PhysBlock(run.start)..PhysBlock(run.end))
            .collect(),
        last_inode,
        directories,
        features: features(&forms),
        quota: match skeleton.has_quota_files() {
            true => forms.quota(&outcome.placed),
            false => QuotaUsage::default(),
        },
    };
    let (plan, reserved) = skeleton.finish(&usage)?;
    Ok(Settled {
        forms,
        placed: outcome.placed,
        plan,
        reserved,
    })
}

/// Features that the content asks for.
fn features(forms: &Forms) -> FeatureSet {
    let mut features = FeatureSet::default();
    for &node in forms.numbers.order() {
        if forms.tree.len_bytes(node) > i32::MAX.unsigned_abs().into() {
            features.ro_compat |= RoCompat::LARGE_FILE;
        }
    }
    if forms
        .sets
        .iter()
        .any(|set| !set.area.is_empty() || !set.block.is_empty())
    {
        features.compat |= Compat::EXT_ATTR;
    }
    features
}

//! **Purpose.** Determines the smallest sufficient size of the file system, and completes the
//! layout.
//!
//! **Model.** The number of blocks needed is known first, by allocating from an unlimited pool. The
//! free space of a file system of a given size is known from its skeleton, which is cheap to
//! compute. The smallest size is found by a search: it grows from below by the number of missing
//! blocks, and then bisects the last step. The real allocation may need a few blocks more (a file
//! that is split by a backup of the superblock may need a node); then the search is repeated with
//! these added.
//!
//! **Invariants.** The size that is found holds everything, and is larger than the smallest
//! possible one by far less than one percent.

use std::ops::Range;

use fourscore_mkfs::{BlockSizeWish, FormatError, Layout, ReservedInodes, Skeleton, Usage};
use fourscore_ondisk::features::{Compat, FeatureSet, RoCompat};
use fourscore_ondisk::quota::QuotaUsage;
use fourscore_ondisk::{BlockSize, InodeNr, PhysBlock, Timestamp};

use super::draft::{DraftFile, StreamedData};
use super::facts::Facts;
use super::numbers::Numbers;
use super::place::{Forms, Outcome, Placed};
use super::pool::Pool;
use crate::error::{BuildError, BuildResult};
use crate::identity::identify;
use crate::options::{Options, Size};
use crate::tree::{Kind, Meta, NodeId, Tree, Xattrs};

/// The complete layout of an image, with the plan of its file system.
pub(crate) struct ImageLayout {
    pub(crate) forms: Forms,
    pub(crate) placed: Placed,
    pub(crate) plan: Layout,
    pub(crate) reserved: ReservedInodes,
}

/// Bytes of requested free space for each free inode, as in mke2fs.
const FREE_BYTES_PER_INODE: u64 = 16384;
/// Smallest size for which the profile is queried.
const PROBE_BYTES: u64 = 64 << 20;
/// Size for which the profile is queried when the data is not known yet: neither small nor big.
const DRAFT_BYTES: u64 = 4 << 30;
/// Size of the smallest journal in blocks.
const MIN_JOURNAL_BLOCKS: u64 = 1024;
/// From this size in blocks on, the default journal is larger than the smallest one.
const LARGER_JOURNAL_BLOCKS: u64 = 30 << 10;
/// Number of reserved inodes.
const RESERVED_INODES: u64 = 10;
/// A draft is discarded if it makes the file system larger by more than one part in this number.
const MAX_GROWTH_DIVISOR: u64 = 256;
/// Limit for the rounds in which the allocation needs more blocks than expected.
const MAX_ROUNDS: u32 = 16;
/// Limit for the number of blocks of a file system.
const BLOCKS_END: u64 = 1 << 48;

/// Computes the layout. `draft` is the image that was begun while the sources were read.
pub(crate) fn compute_layout(
    options: &Options,
    mut tree: Tree,
    draft: Option<DraftFile>,
) -> BuildResult<ImageLayout> {
    let threads = options.thread_count();
    let lost_and_found = lost_and_found(&mut tree, options)?;
    tree.sort(threads);
    if let Some(path) = tree.duplicate_name() {
        // The host lists a name twice only if the directory changes at the same time.
        return Err(BuildError::Changed { path });
    }
    let numbers = Numbers::new(&tree, lost_and_found);
    let mut request = Request::new(options, &tree, &numbers);
    if let Some(size) =
        draft.and_then(|draft| BlockSize::from_log(draft.block_bits.checked_sub(10)?))
        && !matches!(request.format.block_size, Some(BlockSizeWish::Exactly(_)))
    {
        request.format.block_size = Some(BlockSizeWish::Exactly(size));
    }
    let skeleton = request.skeleton(request.probe_bytes(&tree, &numbers))?;
    request.fix_block_size(&skeleton);
    let facts = Facts::of(&skeleton);
    let facts = facts.ok_or(BuildError::Invalid("the hash function needs a key"))?;
    let streamed = draft
        .filter(|draft| draft.block_bits == facts.block_bits)
        .and_then(|draft| StreamedData::new(&tree, numbers.order(), draft));
    let mut forms = Forms::new(tree, facts, numbers, streamed)?;
    forms.shape_directories(lost_and_found, threads)?;
    request.objects = forms.inodes();
    if skeleton.has_quota_files() {
        request.owners = forms.owners();
    }
    let unlimited = forms.place(&mut Pool::new(vec![0..BLOCKS_END]), 0);
    if skeleton.wants_a_journal() {
        request.shrink_journal(unlimited.needed_blocks);
    }
    let with_draft = match forms.streamed {
        Some(_) => request.fit(&forms, unlimited.needed_blocks).ok(),
        None => None,
    };
    let streamed = forms.streamed.take();
    let fitted = match (request.fit(&forms, unlimited.needed_blocks), with_draft) {
        (Ok(without_draft), Some(with_draft))
            if with_draft.blocks()
                <= without_draft.blocks() + without_draft.blocks() / MAX_GROWTH_DIVISOR =>
        {
            forms.streamed = streamed;
            with_draft
        }
        // The draft becomes a source of file data, and the image a new file.
        (without_draft, _) => without_draft?,
    };
    finish(forms, fitted)
}

/// The directory lost+found: that of the sources, or a new one.
fn lost_and_found(tree: &mut Tree, options: &Options) -> BuildResult<Option<NodeId>> {
    let name = b"lost+found";
    // A linear search, because the first lookup makes the tree build its index.
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

/// The creation time of the file system.
pub(crate) fn image_seconds(options: &Options) -> u64 {
    let now = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |since| since.as_secs())
    };
    let given = options.format.time_seconds.or(options.source_date_epoch);
    given.unwrap_or_else(now)
}

/// The options of the file system that do not depend on the tree.
fn format_of(options: &Options) -> fourscore_mkfs::Options {
    let mut format = options.format.clone();
    format.time_seconds = Some(image_seconds(options));
    if !matches!(options.size, Size::Bytes(_)) {
        format.reserved_percent.get_or_insert(0.0);
        // A profile may prescribe small blocks for small file systems. The size is not known yet,
        // and blocks of a page are faster on all systems.
        let page = BlockSize::from_log(2).map(BlockSizeWish::AtLeast);
        format.block_size = format.block_size.or(page);
    }
    if options.size == Size::Minimum {
        let requested = format.features.take();
        let requested = requested.map_or(String::new(), |requested| requested + ",");
        format.features = Some(requested + "^resize_inode");
    }
    format
}

/// A skeleton with these options, before the objects are known.
pub(super) fn draft_skeleton(options: &Options) -> BuildResult<Skeleton> {
    let len_bytes = match options.size {
        Size::Bytes(bytes) => bytes,
        _ => DRAFT_BYTES,
    };
    let format = format_of(options);
    let no_owner = QuotaUsage::default();
    Ok(Skeleton::new(
        &format,
        &options.profile,
        len_bytes,
        &no_owner,
    )?)
}

/// The requested options of the file system, with derived values filled in.
struct Request<'a> {
    options: &'a Options,
    format: fourscore_mkfs::Options,
    /// Number of objects that need an inode.
    objects: u64,
    block_bits: u32,
    /// The owners that quota files need entries for.
    owners: QuotaUsage,
}

/// Number of inodes before that of the first object.
fn hidden_inodes(skeleton: &Skeleton) -> u64 {
    u64::from(skeleton.next_inode().0) - 1
}

/// A file system that is large enough.
struct Found {
    skeleton: Skeleton,
    blocks: u64,
}

impl<'a> Request<'a> {
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

    /// An estimate of the size, to query the profile with.
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
        (content + content / 16 + rest)
            .saturating_add(slack)
            .max(PROBE_BYTES)
    }

    /// Fixes the block size to that of the probe.
    fn fix_block_size(&mut self, probe: &Skeleton) {
        let size = probe.superblock().geometry().block_size();
        self.format.block_size = Some(BlockSizeWish::Exactly(size));
        self.block_bits = size.bits();
    }

    /// Uses the smallest journal, for [`Size::Minimum`].
    fn shrink_journal(&mut self, needed_blocks: u64) {
        if self.options.size == Size::Minimum && needed_blocks >= LARGER_JOURNAL_BLOCKS {
            let size_bits = self.block_bits;
            let mib = (MIN_JOURNAL_BLOCKS << size_bits >> 20).max(1);
            let journal = &mut self.format.journal;
            journal.size_mib = journal.size_mib.or(u32::try_from(mib).ok());
        }
    }

    fn skeleton(&self, len_bytes: u64) -> BuildResult<Skeleton> {
        self.with_inodes(&[], len_bytes, 0)
    }

    /// A skeleton around `contents` with as many inodes as are needed and requested.
    fn with_inodes(
        &self,
        contents: &[Range<PhysBlock>],
        len_bytes: u64,
        slack_blocks: u64,
    ) -> BuildResult<Skeleton> {
        let mut format = self.format.clone();
        if matches!(self.options.size, Size::Bytes(_)) || format.inode_ratio_bytes.is_some() {
            // Uses the inode ratio of the profile if it gives enough inodes.
            let skeleton = self.planned(contents, &format, len_bytes)?;
            if self.has_inodes_for_all(&skeleton) {
                return Ok(skeleton);
            }
        }
        let requested = format.inodes.unwrap_or(0);
        let slack = (slack_blocks << self.block_bits) / FREE_BYTES_PER_INODE;
        let wanted = |hidden: u64| {
            requested
                .max(self.objects + hidden + slack)
                .next_multiple_of(8)
        };
        let mut with = |inodes: u64| {
            format.inodes = Some(inodes);
            self.planned(contents, &format, len_bytes)
        };
        let skeleton = with(wanted(RESERVED_INODES))?;
        if self.has_inodes_for_all(&skeleton) {
            return Ok(skeleton);
        }
        // A large file system also has an orphan file, one with projects also a quota file for
        // them.
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

    /// Determines the size and allocates everything.
    fn fit(&self, forms: &Forms, needed: u64) -> BuildResult<Fitted> {
        match self.options.size {
            Size::Bytes(given_bytes) => {
                let skeleton = self.with_inodes(forms.contents(), given_bytes, 0)?;
                let fitted = Fitted::place(forms, skeleton);
                if fitted.outcome.missing_blocks == 0 {
                    return Ok(fitted);
                }
                let smallest = self.smallest(forms, needed, 0)?;
                let needed_bytes = smallest.skeleton.superblock().geometry().size_bytes();
                Err(BuildError::NoSpace {
                    needed_bytes,
                    given_bytes,
                })
            }
            Size::Auto | Size::Minimum => self.smallest(forms, needed, 0),
            Size::AutoPlusBytes(bytes) => self.smallest(forms, needed, forms.facts.blocks(bytes)),
            Size::AutoPlusPercent(percent) => {
                let smallest = self.smallest(forms, needed, 0)?;
                let blocks = u128::from(smallest.skeleton.superblock().geometry().blocks().0);
                let slack = (blocks * u128::from(percent)).div_ceil(100);
                let slack = u64::try_from(slack).unwrap_or(BLOCKS_END).min(BLOCKS_END);
                self.smallest(forms, needed, slack)
            }
        }
    }

    /// The smallest file system that holds everything and has `slack` free blocks.
    fn smallest(&self, forms: &Forms, needed: u64, slack: u64) -> BuildResult<Fitted> {
        let mut target = needed + slack;
        for round in 0..MAX_ROUNDS {
            let found = self.search(forms, target, slack)?;
            let fitted = Fitted::place(forms, found.skeleton);
            let missing = fitted.outcome.missing_blocks;
            let more = (fitted.outcome.needed_blocks + slack).saturating_sub(target);
            if missing == 0 && more == 0 {
                return Ok(fitted);
            }
            // If one block is missing for a file, all its blocks are counted as missing. The
            // additional need is a better estimate, if there is one.
            target += match round < MAX_ROUNDS / 2 {
                true => more.max(1),
                false => more.max(missing).max(1),
            };
        }
        Err(BuildError::Invalid("no size is large enough"))
    }

    /// The smallest file system with `target` free blocks, including those that already contain
    /// data.
    fn search(&self, forms: &Forms, target: u64, slack: u64) -> BuildResult<Found> {
        let mut low = target;
        let mut step = 0;
        let mut high = loop {
            match self.try_blocks(forms, low, target, slack)? {
                Ok(found) => break found,
                Err(missing) => {
                    // While the last group is too short to be used, adding blocks does not help; so
                    // the step doubles.
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

    /// A file system of this size; if it is too small, the number of missing blocks.
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
        let free = skeleton.free_blocks().0 + forms.staying_blocks(end);
        if free < target {
            return Ok(Err(target - free));
        }
        if skeleton.is_too_small_for_a_journal() && self.options.size != Size::Minimum {
            return Ok(Err((blocks / 8).max(16)));
        }
        Ok(Ok(Found { skeleton, blocks }))
    }
}

/// Whether the error may disappear with a larger size.
fn is_about_size(error: &FormatError) -> bool {
    match error {
        FormatError::TooSmall { .. } | FormatError::NoRoom { .. } => true,
        FormatError::Option { option, .. } => {
            matches!(option.as_str(), "-J size" | "-I, -i, -N" | "-N, -i, -g")
        }
        _ => false,
    }
}

/// A file system with everything allocated.
struct Fitted {
    skeleton: Skeleton,
    outcome: Outcome,
    taken: Vec<Range<u64>>,
}

impl Fitted {
    /// The size of the file system in blocks.
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

/// Computes the usage of each group and completes the plan.
fn finish(mut forms: Forms, fitted: Fitted) -> BuildResult<ImageLayout> {
    let Fitted {
        skeleton,
        outcome,
        taken,
    } = fitted;
    forms.set_first_inode(skeleton.next_inode(), &outcome.placed)?;
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
    Ok(ImageLayout {
        forms,
        placed: outcome.placed,
        plan,
        reserved,
    })
}

/// Features that the objects require.
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

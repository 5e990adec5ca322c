//! **Purpose.** Derives a workload from a seed: the file system, the threads and their steps.
//!
//! **Model.** Seeds enumerate all workloads. In turn a seed stands for one operation alone, for two
//! of the ordered pairs (two seeds), for a random history, and for one that creates and removes the
//! same few files on a file system that is nearly full. The order of the pairs is spread over all
//! of them, so that any range of seeds is a fair sample; after enough seeds each pair has occurred.

use clap::ValueEnum;
use fourscore::DataMode;
use fourscore_testkit::explore::Rng;
use fourscore_testkit::explore::rng::mix;
use serde::{Deserialize, Serialize};

use super::base::CACHE_BYTES;
use super::catalogue::{CHURN, OPS, place_of};
use super::{few_blocks, few_files};
use crate::model::{Call, Id, Model, Whole};

/// A step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// An operation of the catalogue, by its index.
    Named(usize),
    /// The call that the model derives from a random number.
    Drawn(u64),
    /// The call on one of a few files that is derived from a random number.
    OnFewFiles(u64),
    /// The call on a file that needs the blocks of others, derived from a random number.
    OnFewBlocks(u64),
    /// An fsync of the inode that the last call changed.
    Fsync,
    /// An fdatasync of that inode.
    Fdatasync,
    /// A sync of the file system.
    Sync,
}

/// How data becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Before the transaction that makes it part of a file.
    Ordered,
    /// As `Ordered` in our implementation, although ext4 guarantees less.
    Writeback,
    /// Through the journal.
    Journal,
    /// Without a journal: after a crash e2fsck repairs the file system.
    None,
}

impl Mode {
    pub(super) fn of_mount(self) -> DataMode {
        match self {
            Self::Ordered | Self::None => DataMode::Ordered,
            Self::Writeback => DataMode::Writeback,
            Self::Journal => DataMode::Journal,
        }
    }
}

/// The journal of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LogKind {
    /// A journal.
    Journal,
    /// A journal with fast commits.
    FastCommit,
    /// No journal.
    None,
}

/// How much of the file system is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FreeSpace {
    /// Nearly all: freed blocks are seldom reused soon.
    Ample,
    /// This number of blocks: freed blocks are reused next.
    Blocks(u32),
}

/// The format of the file system.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    ValueEnum,
)]
pub enum Format {
    /// The default of mke2fs.
    #[default]
    Usual,
    /// Inline data, and xattr values in inodes.
    Inline,
    /// Clusters of four blocks.
    Clusters,
    /// Files mapped by indirect blocks, as in ext2 and ext3.
    Pointers,
    /// An orphan file instead of the orphan list in inodes.
    OrphanFile,
    /// No checksums.
    NoSums,
    /// Quota of users and groups.
    Quota,
}

impl Format {
    /// The features to give mke2fs.
    pub(super) fn features(self) -> &'static [&'static str] {
        match self {
            Self::Usual => &[],
            Self::Inline => &["inline_data", "ea_inode"],
            Self::Clusters => &["bigalloc"],
            Self::Pointers => &["^extent", "^64bit", "^flex_bg"],
            Self::OrphanFile => &["orphan_file", "metadata_csum_seed"],
            Self::NoSums => &["^metadata_csum", "uninit_bg"],
            Self::Quota => &["quota"],
        }
    }
}

/// The file system that a history begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shape {
    /// The format.
    #[serde(default)]
    pub format: Format,
    /// The size of a block in bytes.
    pub block_bytes: u32,
    /// The number of trees, one for each thread.
    pub trees: usize,
    /// The journal.
    pub log: LogKind,
    /// How much of it is free.
    #[serde(alias = "room")]
    pub free_space: FreeSpace,
}

/// A workload: the file system and the steps that are recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// The seed.
    pub seed: u64,
    /// The file system.
    pub shape: Shape,
    /// How data becomes durable.
    pub mode: Mode,
    /// The steps of each thread.
    pub threads: Vec<Vec<Step>>,
    /// Memory for the caches of the mount.
    pub cache_bytes: usize,
}

/// The last steps of a workload, which make it durable before it is unmounted.
const ENDS: [&[Step]; 3] = [&[Step::Fsync], &[Step::Sync], &[]];
const BLOCK_BYTES: [u32; 2] = [1024, 4096];
const MODES: [Mode; 3] = [Mode::Ordered, Mode::Journal, Mode::Writeback];
/// A prime that does not divide the number of pairs: its multiples visit all of them.
const STRIDE: u64 = 7919;
/// The place in a turn of the random history.
const RANDOM: u64 = 3;
/// The place in a turn of the workload that creates and removes the same files.
const CHURNS: u64 = 4;
/// The number of free blocks for it. All its operations together take fewer.
const CHURN_BLOCKS: u32 = 16;
/// Divided by the first number, the seed leaves the second, for the histories with fast commits on
/// a file system that is nearly full.
const ON_FEW_BLOCKS: (u64, u64) = (8, 6);
/// Memory for the caches in every second random history, for each thread: so little that blocks
/// leave memory while they are logged. With 40 KiB a call may lack memory for its own blocks.
const SMALL_CACHE_BYTES: usize = 64 << 10;
/// One of this many random histories has no journal.
const WITHOUT_JOURNAL: usize = 8;

impl Workload {
    /// Seeds in a turn: one operation alone, two pairs, one random history, one that churns.
    pub(super) const TURN: u64 = 5;

    /// The workload of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let turn = seed / Self::TURN;
        let mut rng = Rng::new(mix(seed));
        let (threads, block_bytes, mode) = match seed % Self::TURN {
            0 => Self::single(turn % Self::singles()),
            1 => Self::pair(2 * turn),
            2 => Self::pair(2 * turn + 1),
            RANDOM => {
                let threads = random(&mut rng);
                let mode = match rng.happens(1, WITHOUT_JOURNAL) {
                    true => Mode::None,
                    false => *rng.pick(&[Mode::Ordered, Mode::Ordered, Mode::Journal]),
                };
                (threads, *rng.pick(&BLOCK_BYTES), mode)
            }
            _ => {
                let threads = vec![churn(&mut rng)];
                (threads, *rng.pick(&BLOCK_BYTES), *rng.pick(&MODES))
            }
        };
        let shape = Shape {
            format: Format::Usual,
            block_bytes,
            trees: threads.len(),
            log: match mode {
                Mode::None => LogKind::None,
                _ => LogKind::Journal,
            },
            free_space: match seed % Self::TURN {
                CHURNS => FreeSpace::Blocks(CHURN_BLOCKS),
                _ => FreeSpace::Ample,
            },
        };
        let cache_bytes = match seed % Self::TURN {
            RANDOM => *rng.pick(&[CACHE_BYTES, SMALL_CACHE_BYTES * threads.len()]),
            _ => CACHE_BYTES,
        };
        Self {
            seed,
            shape,
            mode,
            threads,
            cache_bytes,
        }
    }

    /// The workload of a seed on a file system of a format. An orphan file needs a journal, and
    /// without one e2fsck begins no check of a file system with quota whose block bitmap was torn:
    /// without a journal, both have the default format.
    #[must_use]
    pub fn on(format: Format, seed: u64) -> Self {
        let mut workload = Self::of(seed);
        workload.shape.format = match (format, workload.shape.log) {
            (Format::OrphanFile | Format::Quota, LogKind::None) => Format::Usual,
            (format, _) => format,
        };
        workload
    }

    /// The workload of a seed on a file system with fast commits. Every second seed has calls on a
    /// few files, with many fsyncs of single files; the others are those of [`Self::of`]. One in
    /// four of the former is on a file system that is nearly full.
    #[must_use]
    pub fn with_fast_commits(seed: u64) -> Self {
        let rng = &mut Rng::new(mix(seed ^ 0xfc));
        let mut workload = Self::of(seed / 2);
        workload.seed = seed;
        if seed.is_multiple_of(2) {
            workload.threads = on_few_files(rng);
            workload.shape.trees = workload.threads.len();
            workload.shape.free_space = FreeSpace::Ample;
            workload.shape.block_bytes = *rng.pick(&BLOCK_BYTES);
        }
        if seed % ON_FEW_BLOCKS.0 == ON_FEW_BLOCKS.1 {
            workload.threads = vec![on_few_blocks(rng)];
            workload.shape.trees = 1;
            workload.shape.free_space = FreeSpace::Blocks(few_blocks::LEAST_FREE);
        }
        // With `data=journal` there are full commits only.
        if seed.is_multiple_of(2) || workload.mode == Mode::None {
            workload.mode = *rng.pick(&[Mode::Ordered, Mode::Ordered, Mode::Writeback]);
        }
        workload.shape.log = LogKind::FastCommit;
        workload
    }

    fn single(number: u64) -> (Vec<Vec<Step>>, u32, Mode) {
        let (op, rest) = divided(number, OPS.len());
        let (end, rest) = divided(rest, ENDS.len());
        let (shape, rest) = divided(rest, BLOCK_BYTES.len());
        let mut steps = vec![Step::Named(op)];
        steps.extend(ENDS[end]);
        let mode = MODES[to_usize(rest) % MODES.len()];
        (vec![steps], BLOCK_BYTES[shape], mode)
    }

    /// All pairs in one mode and block size come before those in the next.
    fn pair(number: u64) -> (Vec<Vec<Step>>, u32, Mode) {
        let pairs = Self::pairs();
        let (first, rest) = divided(number * STRIDE % pairs, OPS.len());
        let (second, end) = divided(rest, OPS.len());
        let (shape, rest) = divided(number / pairs, BLOCK_BYTES.len());
        let mode = MODES[to_usize(rest) % MODES.len()];
        let steps = pair(first, second, to_usize(end));
        (vec![steps], BLOCK_BYTES[shape], mode)
    }

    /// The number of workloads of a single operation.
    #[must_use]
    pub fn singles() -> u64 {
        (OPS.len() * ENDS.len() * BLOCK_BYTES.len() * MODES.len()) as u64
    }

    /// The number of pairs, with their ends, in each mode and block size.
    #[must_use]
    pub fn pairs() -> u64 {
        (OPS.len() * OPS.len() * ENDS.len()) as u64
    }

    /// Whether each recording is the same: one thread, and no work in the background.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        self.threads.len() == 1
    }

    /// The workload with only those steps of the first thread whose indexes are in `kept`.
    #[must_use]
    pub fn only(&self, kept: &[usize]) -> Self {
        let steps = self.threads.first().map_or(&[][..], Vec::as_slice);
        let kept = kept.iter().filter_map(|&at| steps.get(at).copied());
        Self {
            threads: vec![kept.collect()],
            ..self.clone()
        }
    }

    /// The steps of the threads, as text.
    #[must_use]
    pub fn describe(&self) -> String {
        let steps = self.threads.iter().map(|steps| {
            let steps: Vec<_> = steps.iter().map(|step| step.describe()).collect();
            steps.join(", ")
        });
        let threads = steps.collect::<Vec<_>>().join(" | ");
        let Shape { block_bytes, .. } = self.shape;
        let cache = match self.cache_bytes {
            CACHE_BYTES => String::new(),
            bytes => format!(", {} KiB of caches", bytes >> 10),
        };
        format!("blocks of {block_bytes}, {:?}{cache}: {threads}", self.mode)
    }
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The remainder and the quotient.
fn divided(number: u64, by: usize) -> (usize, u64) {
    (to_usize(number % by as u64), number / by as u64)
}

fn pair(first: usize, second: usize, end: usize) -> Vec<Step> {
    let [first, second] = [first, second].map(Step::Named);
    match end {
        0 => vec![first, second, Step::Fsync],
        1 => vec![first, Step::Fsync, second, Step::Fsync],
        _ => vec![first, Step::Sync, second],
    }
}

/// Histories of one, two or eight threads.
fn random(rng: &mut Rng) -> Vec<Vec<Step>> {
    let threads = *rng.pick(&[1, 1, 2, 8]);
    let calls = [40, 24, 0, 0, 0, 0, 0, 10][threads - 1];
    let likely_fsync = 1 + rng.below(4);
    let mut steps = |_| {
        let mut steps = Vec::new();
        for _ in 0..calls {
            steps.push(match rng.below(5) {
                0 => Step::Named(rng.below(OPS.len())),
                _ => Step::Drawn(rng.bits()),
            });
            if rng.happens(likely_fsync, 12) {
                steps.push(*rng.pick(&[Step::Fsync, Step::Fsync, Step::Sync]));
            }
        }
        steps
    };
    (0..threads).map(&mut steps).collect()
}

/// Histories of one, two or four threads with calls on a few files.
fn on_few_files(rng: &mut Rng) -> Vec<Vec<Step>> {
    let threads = *rng.pick(&[1, 1, 1, 1, 2, 4]);
    let calls = [60, 30, 0, 16][threads - 1];
    let mut step = |_| match rng.below(20) {
        0 => Step::Drawn(rng.bits()),
        1 => Step::Named(rng.below(OPS.len())),
        2 | 3 => Step::Fsync,
        _ => Step::OnFewFiles(rng.bits()),
    };
    let mut steps = |_| (0..calls).map(&mut step).collect();
    (0..threads).map(&mut steps).collect()
}

/// Calls on files that need each other's blocks.
fn on_few_blocks(rng: &mut Rng) -> Vec<Step> {
    (0..36).map(|_| Step::OnFewBlocks(rng.bits())).collect()
}

/// Steps that create and remove the same few files again and again.
fn churn(rng: &mut Rng) -> Vec<Step> {
    const CALLS: usize = 24;
    let ops: Vec<_> = CHURN.iter().filter_map(|name| place_of(name)).collect();
    let mut steps = Vec::new();
    for _ in 0..CALLS {
        steps.push(Step::Named(*rng.pick(&ops)));
        if rng.happens(1, 2) {
            steps.push(*rng.pick(&[Step::Fsync, Step::Sync]));
        }
    }
    steps
}

impl Step {
    /// The call of the step; `last` is the inode that the last call changed.
    pub(super) fn call(self, model: &Model, last: Option<Id>) -> Option<Call> {
        match self {
            Self::Named(op) => OPS.get(op).and_then(|op| (op.call)(model)),
            Self::Drawn(number) => match model.draw(number) {
                // It sets a flag and clears it again, which are two calls.
                Call::Disturb(_) => None,
                // Only one thread at a time may freeze.
                Call::Whole(Whole::FreezeAndThaw) => None,
                call => Some(call),
            },
            Self::OnFewFiles(number) => few_files::draw(model, number),
            Self::OnFewBlocks(number) => few_blocks::draw(model, number),
            Self::Fsync => last.filter(|&id| model.has(id)).map(Call::Fsync),
            Self::Fdatasync => last.filter(|&id| model.has(id)).map(Call::Fdatasync),
            Self::Sync => Some(Call::Whole(Whole::Sync)),
        }
    }

    /// An operation of the catalogue.
    ///
    /// # Panics
    /// If there is none with this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self::Named(place_of(name).unwrap_or_else(|| panic!("no operation {name}")))
    }

    fn describe(self) -> String {
        match self {
            Self::Named(op) => OPS.get(op).map_or("?", |op| op.name).to_owned(),
            Self::Drawn(number) => format!("{number:#x}"),
            Self::OnFewFiles(number) => format!("few {number:#x}"),
            Self::OnFewBlocks(number) => format!("blocks {number:#x}"),
            Self::Fsync => "fsync".to_owned(),
            Self::Fdatasync => "fdatasync".to_owned(),
            Self::Sync => "sync".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const TURN: u64 = Workload::TURN;

    #[test]
    fn all_operations_and_pairs_are_among_the_seeds() {
        let shown = |seed| {
            format!(
                "{:?}",
                Workload {
                    seed: 0,
                    ..Workload::of(seed)
                }
            )
        };
        let alone: BTreeSet<_> = (0..Workload::singles())
            .map(|turn| shown(TURN * turn))
            .collect();
        assert_eq!(alone.len() as u64, Workload::singles());
        let turns = 0..Workload::pairs() / 2;
        let seeds = turns.flat_map(|turn| [TURN * turn + 1, TURN * turn + 2]);
        let pairs: BTreeSet<_> = seeds.map(shown).collect();
        assert_eq!(pairs.len() as u64, Workload::pairs() / 2 * 2);
    }
}

//! **Purpose.** The file systems that histories begin with: small, with a tree for each thread, and
//! with poison in all free blocks.
//!
//! **Model.** Each shape is made once: mke2fs formats it, we populate it, and poison is written to
//! all blocks that are free in the block bitmaps. All histories of a shape begin with the same
//! bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use fourscore::{Error, Fallocate, Fs, InodeNr, MountOptions, OpenOptions};
use fourscore_block::{BlockDevice, RamDevice};
use fourscore_journal::{Background, Batching, JournalOptions};
use fourscore_ondisk::GroupNr;
use fourscore_sync::{Arc, Mutex};
use fourscore_testkit::image::{Image, MiB};

use super::catalogue::POPULATE;
use super::injected::InjectedFault;
use super::workload::{Format, FreeSpace, LogKind, Mode, Shape};
use crate::BY_ROOT;
use crate::model::{Model, Numbers, Pair, Rules};

/// Memory for the caches of a mount, in which all metadata of a history finds room.
pub(super) const CACHE_BYTES: usize = 1 << 20;
/// Blocks of a cluster, in the format with clusters.
const CLUSTER_BLOCKS: u32 = 4;
/// The byte that free blocks are filled with.
pub(super) const POISON: u8 = 0xdb;
/// The offset up to which histories write, so that files are read quickly.
const FAR_BYTES: u64 = 100_000;
/// The most that a call writes, in bytes.
const MOST_BYTES: u64 = 12_000;

/// The file in the root that occupies the blocks that must not be free.
pub(super) const BALLAST: &[u8] = b"ballast";
/// A name in the root that tests create to see whether that is possible.
pub(super) const PROBE: &[u8] = b"probe";

/// An initial file system.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) bytes: Vec<u8>,
    /// The same bytes, below disks that hold changed blocks only.
    below: Arc<RamDevice>,
    /// The model of each thread's tree.
    pub(super) models: Vec<Model>,
    /// The inode numbers of each tree.
    pub(super) numbers: Vec<Numbers>,
}

/// The base of each shape that was made.
static MADE: Mutex<BTreeMap<Shape, Arc<Base>>> = Mutex::new(BTreeMap::new());

/// Whether the journal commits and checkpoints in threads of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackgroundWork {
    None,
    Threads,
}

/// The options with which a history and its states are mounted.
pub(super) fn mount_options(
    mode: Mode,
    background: BackgroundWork,
    injected: InjectedFault,
) -> MountOptions {
    let default = JournalOptions::default();
    let journal = injected.of_journal(match background {
        // Each new block goes home at once.
        BackgroundWork::None => JournalOptions {
            background: Background::None,
            batching: Batching::Off,
            new_run_bytes: 0,
            ..default
        },
        // New blocks are logged, unless many are adjacent.
        BackgroundWork::Threads => JournalOptions {
            background: Background::Threads {
                interval: Duration::from_millis(2),
            },
            ..default
        },
    });
    let open = OpenOptions::new().cache_bytes(CACHE_BYTES);
    let options = MountOptions::new().open(open).journal(journal);
    // A full disk is full to the last block.
    let options = options.use_reserve();
    injected.of_mount(options.data(mode.of_mount()))
}

/// The name of a thread's tree.
pub(super) fn tree_name(thread: usize) -> Vec<u8> {
    format!("t{thread}").into_bytes()
}

impl Base {
    /// The base of a shape, made if it does not exist.
    ///
    /// # Errors
    /// If mke2fs cannot be run, or what it made cannot be mounted.
    pub(super) fn of(shape: Shape) -> Result<Arc<Self>> {
        let mut made = MADE.lock();
        if let Some(base) = made.get(&shape) {
            return Ok(Arc::clone(base));
        }
        let base = Arc::new(Self::make(shape)?);
        made.insert(shape, Arc::clone(&base));
        Ok(base)
    }

    fn make(shape: Shape) -> Result<Self> {
        let (size, journal) = match shape.block_bytes {
            1024 => (MiB(5), MiB(1)),
            _ => (MiB(10), MiB(4)),
        };
        let image = Image::builder(size)
            .kind("ext4")
            .block_size_bytes(shape.block_bytes)
            .arguments(["-N", "512", "-m", "0"]);
        let cluster = (shape.block_bytes * CLUSTER_BLOCKS).to_string();
        let image = match shape.format {
            Format::Clusters => image.arguments(["-C", &cluster]),
            _ => image,
        };
        let (image, of_log): (_, &[&str]) = match shape.log {
            LogKind::Journal => (image.journal(journal), &[]),
            LogKind::FastCommit => (image.journal(journal), &["fast_commit"]),
            LogKind::None => (image, &["^has_journal"]),
        };
        let features = [shape.format.features(), of_log].concat();
        let image = image.features(&features).make()?;
        let device = Arc::new(RamDevice::from_bytes(&std::fs::read(image.path())?));
        let fs = Fs::mount(
            device.clone(),
            &mount_options(
                Mode::Ordered,
                BackgroundWork::None,
                InjectedFault::default(),
            ),
        )?;
        let trees = (0..shape.trees).map(|thread| populate(&fs, thread));
        let trees: Vec<_> = trees.collect::<Result<_>>()?;
        let (models, numbers) = trees.into_iter().unzip();
        if let FreeSpace::Blocks(blocks) = shape.free_space {
            fill_up(&fs, blocks.into())?;
        }
        fs.unmount()?;
        let free = free_ranges(device.clone())?;
        let mut bytes = vec![0; usize::try_from(device.len_bytes())?];
        device.read_at(&mut bytes, 0)?;
        for range in free {
            bytes[range].fill(POISON);
        }
        Ok(Self {
            below: Arc::new(RamDevice::from_bytes(&bytes)),
            bytes,
            models,
            numbers,
        })
    }

    /// A new disk with this file system, which may be changed.
    pub(super) fn disk(&self) -> Arc<RamDevice> {
        Arc::new(RamDevice::over(self.below.clone()))
    }
}

/// Allocates all blocks but `left`.
fn fill_up(fs: &Fs, left: u64) -> Result<()> {
    let ballast = fs.create(InodeNr::ROOT, BALLAST, &BY_ROOT)?;
    fs.sync()?;
    let found = fs.statfs()?;
    let blocks = found.free_blocks.saturating_sub(left);
    let block_size = fs.geometry().block_size();
    let bytes = blocks << block_size.bits();
    match fs.fallocate(ballast, Fallocate::Allocate, 0, bytes) {
        // Without extents nothing can be preallocated, and indirect blocks take space as well.
        Err(Error::Unsupported(_)) => {}
        done => return Ok(done?),
    }
    while fs.statfs()?.free_blocks > left {
        fs.append(ballast, &vec![POISON; block_size.bytes()])?;
        fs.sync()?;
    }
    Ok(())
}

/// Creates the tree of a thread.
fn populate(fs: &Arc<Fs>, thread: usize) -> Result<(Model, Numbers)> {
    let dir = fs.mkdir(InodeNr::ROOT, &tree_name(thread), &BY_ROOT)?;
    let rules = Rules {
        far_bytes: FAR_BYTES,
        most_bytes: MOST_BYTES,
        ..Rules::of(fs)
    };
    let mut pair = Pair::resume(Arc::clone(fs), dir, Model::new(rules, 2));
    for op in POPULATE {
        let call = (op.call)(&pair.model).with_context(|| op.name.to_owned())?;
        pair.call(&call);
    }
    let numbers = pair.numbers().clone();
    Ok((pair.finish(), numbers))
}

/// The byte ranges of free blocks.
fn free_ranges(device: Arc<RamDevice>) -> Result<Vec<std::ops::Range<usize>>> {
    let fs = Fs::open(device, &OpenOptions::new().cache_bytes(CACHE_BYTES))?;
    let geometry = fs.geometry();
    let block_size = geometry.block_size();
    let mut free = Vec::new();
    for group in 0..geometry.groups() {
        let bitmap = fs.block_bitmap(GroupNr(group))?;
        let first = geometry.first_data_block().0
            + u64::from(group) * u64::from(geometry.blocks_per_group());
        for run in bitmap.free_runs() {
            let block = |bit: u32| first + (u64::from(bit) << geometry.blocks_per_cluster_log());
            let byte = |bit: u32| block(bit) << block_size.bits();
            free.push(usize::try_from(byte(run.start))?..usize::try_from(byte(run.end))?);
        }
    }
    Ok(free)
}

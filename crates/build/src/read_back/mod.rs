//! **Purpose.** Reads the finished image before it is renamed into place: compares it with its
//! sources, and computes checksums.
//!
//! | module | responsibility |
//! |---|---|
//! | `compare` | compares an object of the image with its source, except for its data |
//! | `content` | compares and sums the data of a file in one pass |
//! | `lists` | writes checksum lists and manifests |
//!
//! **Model.** The image is opened with the ordinary file system reader (`fourscore::Fs`). Every
//! object of the tree is read from it: inode, attributes, link target, each name of a directory by
//! a lookup through its index, and all data, which is compared with the source byte by byte. This
//! verifies the whole path from the first read of the source to the reader's maps and checksums,
//! and also detects sources that changed during the build. Checksums are of the data in the image.
//!
//! **Locking.** Threads take ranges of the order of objects from a shared counter, and store the
//! checksums of each range in one list behind a mutex: 32 bytes for each object.

mod compare;
mod content;
mod lists;

use fourscore::{Fs, OpenOptions};
use fourscore_block::BlockDevice;
use fourscore_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use fourscore_sync::{Arc, Mutex, thread};

use crate::error::{BuildError, BuildResult};
use crate::layout::ImageLayout;
use crate::manifest::Sha256Sum;
use crate::options::{Flow, Options, Phase, Progress, Watch};
use crate::tree::{NodeId, Tree};
use content::DataChecker;

pub use compare::Difference;
pub use lists::ListTarget;
pub(crate) use lists::Lists;

/// What to do with a finished image before it is renamed into place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadBack {
    /// Whether the image is compared with its sources.
    pub comparison: Comparison,
    /// A list of SHA-256 checksums of all files, in the format of `sha256sum`.
    pub sums: Option<ListTarget>,
    /// A manifest: an mtree of all objects, with SHA-256 checksums.
    pub manifest: Option<ListTarget>,
}

/// Whether a finished image is compared with its sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Comparison {
    /// It is not compared.
    #[default]
    No,
    /// Every name, attribute and byte is compared.
    Everything,
}

/// Number of objects that a thread takes at once.
const STEP_OBJECTS: usize = 64;

/// Reads the image on `device` as the options request.
pub(crate) fn read_back(
    layout: &ImageLayout,
    options: &Options,
    device: Arc<dyn BlockDevice>,
    watch: Watch<'_>,
) -> BuildResult<Lists> {
    let requested = &options.read_back;
    let has_lists = requested.sums.is_some() || requested.manifest.is_some();
    if requested.comparison == Comparison::No && !has_lists {
        return Ok(Lists::default());
    }
    let fs = Fs::open(device, &OpenOptions::new()).map_err(|why| BuildError::Verify {
        path: b"/".to_vec(),
        what: Difference::Unreadable(why),
    })?;
    let checker = Checker::new(layout, options, &fs, has_lists);
    let sums = checker.run(watch)?;
    drop(fs);
    Lists::begin(layout, options, &sums)
}

/// State shared by all threads.
struct Checker<'a> {
    layout: &'a ImageLayout,
    options: &'a Options,
    fs: &'a Fs,
    is_compared: bool,
    is_summed: bool,
    next: AtomicUsize,
    done_bytes: AtomicU64,
    is_stopped: AtomicBool,
    all: Progress,
    sums: Mutex<Sums>,
}

/// Checksums by position in the order of objects, if requested; zeroes for other types than files.
type Sums = Vec<Sha256Sum>;

impl<'a> Checker<'a> {
    fn new(layout: &'a ImageLayout, options: &'a Options, fs: &'a Fs, is_summed: bool) -> Self {
        let (order, tree) = (layout.forms.numbers.order(), &layout.forms.tree);
        Self {
            layout,
            options,
            fs,
            is_compared: options.read_back.comparison == Comparison::Everything,
            is_summed,
            next: AtomicUsize::new(0),
            done_bytes: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
            all: Progress {
                phase: Phase::ReadingBack,
                objects: order.len() as u64,
                bytes: order.iter().map(|&node| tree.content_bytes(node)).sum(),
                ..Progress::default()
            },
            sums: Mutex::new(match is_summed {
                true => vec![[0; 32]; order.len()],
                false => Vec::new(),
            }),
        }
    }

    fn tree(&self) -> &'a Tree {
        &self.layout.forms.tree
    }

    fn run(self, watch: Watch<'_>) -> BuildResult<Sums> {
        if self.is_compared {
            self.compare(NodeId::ROOT)?;
        }
        let mut result = Ok(());
        thread::scope(|scope| {
            let others: Vec<_> = (1..self.options.thread_count())
                .map(|_| scope.spawn(|| self.work(watch)))
                .collect();
            result = self.work(watch);
            for worker in others {
                let worked = match worker.join() {
                    Ok(worked) => worked,
                    Err(panic) => std::panic::resume_unwind(panic),
                };
                result = std::mem::replace(&mut result, Ok(())).and(worked);
            }
        });
        result.map(|()| self.sums.into_inner())
    }

    fn work(&self, watch: Watch<'_>) -> BuildResult<()> {
        let result = self.run_steps(watch);
        if result.is_err() {
            self.is_stopped.store(true, Ordering::Relaxed);
        }
        result
    }

    fn run_steps(&self, watch: Watch<'_>) -> BuildResult<()> {
        let order = self.layout.forms.numbers.order();
        let mut data_checker = DataChecker::new(self);
        let mut sums = Vec::new();
        while !self.is_stopped.load(Ordering::Relaxed) {
            let from = self.next.fetch_add(STEP_OBJECTS, Ordering::Relaxed);
            let step = order.get(from..).unwrap_or_default();
            if step.is_empty() {
                break;
            }
            let progress = Progress {
                objects_done: from as u64,
                bytes_done: self.done_bytes.load(Ordering::Relaxed),
                ..self.all
            };
            if watch(progress) == Flow::Stop {
                return Err(BuildError::Stopped);
            }
            let mut bytes = 0;
            for (position, &node) in (from..).zip(step.iter().take(STEP_OBJECTS)) {
                if self.is_compared {
                    self.compare(node)?;
                }
                if let Some(sum) = data_checker.read(node)? {
                    sums.push((position, sum));
                }
                bytes += self.tree().content_bytes(node);
            }
            self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.store_sums(&mut sums);
        }
        Ok(())
    }

    /// Stores checksums in the shared list.
    fn store_sums(&self, sums: &mut Vec<(usize, Sha256Sum)>) {
        if sums.is_empty() {
            return;
        }
        let mut all = self.sums.lock();
        for (position, sum) in sums.drain(..) {
            if let Some(place) = all.get_mut(position) {
                *place = sum;
            }
        }
    }

    fn differs(&self, node: NodeId, what: Difference) -> BuildError {
        BuildError::Verify {
            path: self.tree().path_of(node),
            what,
        }
    }

    fn unreadable(&self, node: NodeId) -> impl Fn(fourscore::Error) -> BuildError + '_ {
        move |why| self.differs(node, Difference::Unreadable(why))
    }
}

#[cfg(test)]
mod tests;

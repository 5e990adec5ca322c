//! **Purpose.** Reading the finished image, before it gets its name: is everything in it that was
//! to be, and what are the sums of its files?
//!
//! | module | responsibility |
//! |---|---|
//! | `compare` | one object of the image beside what it was made from |
//! | `content` | the content of a file, compared and summed in one pass |
//! | `lists` | sums and manifests as files |
//!
//! **Model.** The image is opened as any reader opens it (`fourscore::Fs`), and asked for every
//! object of the tree: its inode, attributes, link target, the names of a directory one by one
//! through its index, and the content, byte by byte beside the source. So the whole way is under
//! test, from the first read of the source to the reader's maps and checksums; a source that
//! changed meanwhile is found as well. Sums are of what the image holds.
//!
//! **Locking.** Threads take stretches of the order of objects from one counter, and put the sums
//! of each into one list behind a mutex: 32 bytes for an object, and nothing beside them.

mod compare;
mod content;
mod lists;

use std::path::PathBuf;

use fourscore::{Fs, OpenOptions};
use fourscore_block::BlockDevice;
use fourscore_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use fourscore_sync::{Arc, Mutex, thread};

use crate::error::{BuildError, BuildResult};
use crate::layout::Settled;
use crate::manifest::Sha256Sum;
use crate::options::{Flow, Options, Phase, Progress, Watch};
use crate::tree::{NodeId, Tree};
use content::Contents;

pub use compare::Difference;
pub(crate) use lists::Lists;

/// What is done with a finished image before it gets its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadBack {
    /// Whether all of it is compared with its sources.
    pub comparison: Comparison,
    /// Where SHA-256 sums of all files go, as `sha256sum` writes them.
    pub sums: Option<PathBuf>,
    /// Where a manifest goes: an mtree of everything, with SHA-256 sums.
    pub manifest: Option<PathBuf>,
}

/// Whether a finished image is compared with its sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Comparison {
    /// It is not.
    #[default]
    No,
    /// Every name, attribute and byte is.
    Everything,
}

/// Objects that a thread takes at once.
const STEP_OBJECTS: usize = 64;

/// Reads the image on `device` as far as the options ask for it.
pub(crate) fn read_back(
    settled: &Settled,
    options: &Options,
    device: Arc<dyn BlockDevice>,
    watch: Watch<'_>,
) -> BuildResult<Lists> {
    let wish = &options.read_back;
    let has_lists = wish.sums.is_some() || wish.manifest.is_some();
    if wish.comparison == Comparison::No && !has_lists {
        return Ok(Lists::default());
    }
    let fs = Fs::open(device, &OpenOptions::new()).map_err(|why| BuildError::Verify {
        path: b"/".to_vec(),
        what: Difference::Unreadable(why),
    })?;
    let reading = Reading::new(settled, options, &fs, has_lists);
    let sums = reading.run(watch)?;
    drop(fs);
    Lists::begin(settled, options, &sums)
}

/// What all threads share.
struct Reading<'a> {
    settled: &'a Settled,
    options: &'a Options,
    fs: &'a Fs,
    is_compared: bool,
    is_summed: bool,
    next: AtomicUsize,
    done_bytes: AtomicU64,
    is_over: AtomicBool,
    all: Progress,
    sums: Mutex<Sums>,
}

/// Sums by position in the order of objects, if they were asked for; what is no file has zeros.
type Sums = Vec<Sha256Sum>;

impl<'a> Reading<'a> {
    fn new(settled: &'a Settled, options: &'a Options, fs: &'a Fs, is_summed: bool) -> Self {
        let (order, tree) = (settled.forms.numbers.order(), &settled.forms.tree);
        Self {
            settled,
            options,
            fs,
            is_compared: options.read_back.comparison == Comparison::Everything,
            is_summed,
            next: AtomicUsize::new(0),
            done_bytes: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
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
        &self.settled.forms.tree
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
        let result = self.take_steps(watch);
        if result.is_err() {
            self.is_over.store(true, Ordering::Relaxed);
        }
        result
    }

    fn take_steps(&self, watch: Watch<'_>) -> BuildResult<()> {
        let order = self.settled.forms.numbers.order();
        let mut contents = Contents::new(self);
        let mut sums = Vec::new();
        while !self.is_over.load(Ordering::Relaxed) {
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
                if let Some(sum) = contents.read(node)? {
                    sums.push((position, sum));
                }
                bytes += self.tree().content_bytes(node);
            }
            self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.keep(&mut sums);
        }
        Ok(())
    }

    /// Puts sums where they belong.
    fn keep(&self, sums: &mut Vec<(usize, Sha256Sum)>) {
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

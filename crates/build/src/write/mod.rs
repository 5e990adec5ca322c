//! **Purpose.** Writes the image on all cores.
//!
//! | module | responsibility |
//! |---|---|
//! | `queue` | the queue of jobs, and the progress |
//! | `content` | writes file data, and nodes of extent trees and block maps |
//! | `metadata` | writes directories, attributes, inode tables |
//! | `inode` | encodes inodes |
//! | `reader` | reads file data from its source |
//! | `combine` | joins adjacent small writes |
//! | `output` | creates the image file |
//! | `place` | gives a finished file its name, and replaces only what may be replaced |
//!
//! **Model.** All blocks are allocated, so jobs are independent. A thread takes the next job, about
//! a megabyte of adjacent data, and reads and writes it with its own buffers, which it reuses for
//! the next. The superblock is written last.
//!
//! **Locking.** One lock protects the queue and is taken once for each job. All other shared data
//! is read-only.

mod combine;
mod content;
mod inode;
mod metadata;
mod output;
mod place;
mod queue;
mod reader;

use std::path::Path;

use fourscore_block::{BlockDevice, Window};
use fourscore_mkfs::{Layout, ReservedInodes};
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock, Timestamp};
use fourscore_sync::{Mutex, thread};

use crate::error::{BuildError, BuildResult};
use crate::layout::{Forms, ImageLayout, Placed};
use crate::options::{Flow, Options, Progress, Watch};
use crate::read_back::read_back;
use crate::target::{Form, Target};
use crate::tree::Tree;
use combine::WriteCombiner;
use inode::InodeMaker;
use queue::{Job, Queue};

use output::{Disk, Output};
pub(crate) use output::{NewImage, old_content};
pub(crate) use place::HiddenFile;
pub use place::{FileId, Replaces, put_in_place};
pub use reader::read_file;
pub(crate) use reader::{OpenContent, ReadError, Reader};

/// What all threads share.
pub(crate) struct Image<'a> {
    forms: &'a Forms,
    placed: &'a Placed,
    plan: &'a Layout,
    reserved: &'a ReservedInodes,
    disk: &'a Disk,
    options: &'a Options,
    made: Timestamp,
}

/// The state of one thread.
struct Worker<'a> {
    reader: Reader<'a>,
    combiner: WriteCombiner<'a, Window>,
}

/// Writes the image to the output, and renames it into place.
pub(crate) fn write(
    layout: &ImageLayout,
    options: &Options,
    target: &Target,
    new_image: NewImage,
    made: Timestamp,
    watch: Watch<'_>,
) -> BuildResult<()> {
    let size_bytes = layout.plan.superblock().geometry().size_bytes();
    let output = new_image
        .open(size_bytes)
        .map_err(|why| target.failed(why))?;
    let written = fill(layout, options, target, output, made, watch);
    written.map_err(|why| match target.form() {
        Form::Part(_) => BuildError::Overwritten { why: Box::new(why) },
        Form::File { .. } | Form::Unlinked(_) => why,
    })
}

/// The part of `write` that changes the target, if it is written in place.
fn fill(
    layout: &ImageLayout,
    options: &Options,
    target: &Target,
    output: Output,
    made: Timestamp,
    watch: Watch<'_>,
) -> BuildResult<()> {
    let failed = |why| target.failed(why);
    let size_bytes = layout.plan.superblock().geometry().size_bytes();
    let device = &output.disk.window;
    clear_between(&layout.forms, size_bytes, device).map_err(failed)?;
    layout.plan.prepare(device)?;
    let image = Image {
        forms: &layout.forms,
        placed: &layout.placed,
        plan: &layout.plan,
        reserved: &layout.reserved,
        disk: &output.disk,
        options,
        made,
    };
    let done = image.run(watch)?;
    check_archives(&layout.forms.tree)?;
    // Data of the draft after the end has been copied.
    output.cut(size_bytes).map_err(failed)?;
    layout.plan.complete(device)?;
    let finished = output.reopen().map_err(failed)?;
    let lists = read_back(layout, options, finished, watch)?;
    if watch(done) == Flow::Stop {
        return Err(BuildError::Stopped);
    }
    output.commit().map_err(failed)?;
    lists.commit()
}

/// Returns an error if an archive changed after its headers were read.
fn check_archives(tree: &Tree) -> BuildResult<()> {
    let changed = tree.changed_file().map(str::as_bytes);
    changed.map_or(Ok(()), |place| {
        Err(BuildError::Changed {
            path: place.to_vec(),
        })
    })
}

/// Zeroes the blocks between data that stays: they may hold data of replaced or excluded files.
fn clear_between(forms: &Forms, size_bytes: u64, device: &Window) -> std::io::Result<()> {
    let bits = forms.facts.block_bits;
    let mut at = 0;
    for run in forms.contents() {
        let start = (run.start.0 << bits).min(size_bytes);
        if at < start {
            device.write_zeroes(at..start)?;
        }
        at = run.end.0 << bits;
    }
    Ok(())
}

impl Image<'_> {
    /// Runs all jobs; returns the final progress.
    fn run(&self, watch: Watch<'_>) -> BuildResult<Progress> {
        let queue = Queue::new(self);
        let failed: Mutex<Option<BuildError>> = Mutex::new(None);
        let threads = self.options.thread_count();
        let work = || {
            let mut worker = Worker {
                reader: Reader::new(&self.forms.tree),
                combiner: WriteCombiner::new(self.device(), self.block_bits(), threads),
            };
            let mut result = Ok(());
            while result.is_ok()
                && let Some((job, progress)) = queue.next()
            {
                result = match watch(progress) {
                    Flow::Continue => self.run_job(&mut worker, &job),
                    Flow::Stop => Err(BuildError::Stopped),
                };
            }
            let flushed = worker.combiner.flush();
            let result = result.and(flushed.map_err(|why| self.output_error(why)));
            if let Err(error) = result {
                failed.lock().get_or_insert(error);
                queue.stop();
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        match failed.into_inner() {
            Some(error) => Err(error),
            None => Ok(queue.progress()),
        }
    }

    fn run_job(&self, worker: &mut Worker<'_>, job: &Job) -> BuildResult<()> {
        match job {
            Job::Directories(nodes) => self.write_directories(worker, nodes),
            Job::Xattrs => self.write_xattr_blocks(worker),
            Job::Values(range) => self.write_values(worker, range.clone()),
            Job::Inodes { group, range } => self.write_inodes(worker, *group, range.clone()),
            Job::Contents(range) => self.write_contents(worker, range.clone()),
            Job::Part { node, blocks } => self.write_part(worker, *node, blocks.clone()),
        }
    }

    fn output_error(&self, why: std::io::Error) -> BuildError {
        // The device's errors describe the operation; the caller adds the path.
        BuildError::Output {
            path: Path::new("the image").to_owned(),
            why,
        }
    }

    fn device(&self) -> &Window {
        &self.disk.window
    }

    fn block_bits(&self) -> u32 {
        self.forms.facts.block_bits
    }

    fn inode_maker(&self) -> InodeMaker<'_> {
        InodeMaker {
            forms: self.forms,
            placed: self.placed,
            sb: self.plan.superblock(),
            options: self.options,
            made: self.made,
        }
    }

    fn inode_table(&self, group: GroupNr) -> Option<PhysBlock> {
        self.plan.inode_table(group)
    }

    /// The last inode in use.
    fn last_inode(&self) -> InodeNr {
        self.plan.last_inode()
    }
}

//! **Purpose.** Writing the image: all cores read, make and write at the same time.
//!
//! | module | responsibility |
//! |---|---|
//! | `queue` | what is to be done next, and how far the build is |
//! | `content` | contents of files and nodes of their maps |
//! | `metadata` | directories, attributes, inode tables |
//! | `inode` | the bytes of an inode |
//! | `reader` | contents, wherever they are |
//! | `stretch` | neighbours written in one call |
//! | `output` | the image while it is written |
//!
//! **Model.** Since everything has its place, jobs are independent. A thread takes the next job,
//! some megabyte of neighbours, and reads and writes it from start to end with buffers of its own,
//! which it keeps for the next.
//! The superblock comes last.
//!
//! **Locking.** One lock around the queue, taken once for each job. Nothing else is shared that
//! anybody writes.

mod content;
mod inode;
mod metadata;
mod output;
mod queue;
mod reader;
mod stretch;

use std::path::Path;

use fourscore_block::{BlockDevice, Window};
use fourscore_mkfs::{Layout, ReservedInodes};
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock, Timestamp};
use fourscore_sync::{Mutex, thread};

use crate::error::{BuildError, BuildResult};
use crate::layout::{Forms, Placed, Settled};
use crate::options::{Flow, Options, Progress, Watch};
use crate::read_back::read_back;
use crate::target::{Form, Target};
use crate::tree::Tree;
use inode::InodeMaker;
use queue::{Job, Queue};
use stretch::Stretch;

pub(crate) use output::{Begun, HiddenFile, old_content, sync_folder};
use output::{Disk, Output};
pub(crate) use reader::{OpenContent, ReadError, Reader};

/// What all threads look at.
pub(crate) struct Image<'a> {
    forms: &'a Forms,
    placed: &'a Placed,
    plan: &'a Layout,
    reserved: &'a ReservedInodes,
    disk: &'a Disk,
    options: &'a Options,
    made: Timestamp,
}

/// What one thread works with.
struct Hands<'a> {
    reader: Reader<'a>,
    stretch: Stretch<'a, Window>,
}

/// Writes everything that was settled to the output, and gives it its name.
pub(crate) fn write(
    settled: &Settled,
    options: &Options,
    (target, begun): (&Target, Begun),
    made: Timestamp,
    watch: Watch<'_>,
) -> BuildResult<()> {
    let size_bytes = settled.plan.superblock().geometry().size_bytes();
    let output = begun.open(size_bytes).map_err(|why| target.failed(why))?;
    let written = fill(settled, options, (target, output), made, watch);
    written.map_err(|why| match target.form() {
        Form::Part(_) => BuildError::Overwritten { why: Box::new(why) },
        Form::File { .. } | Form::Nameless(_) => why,
    })
}

/// The part of it that changes the target, if it is written in place.
fn fill(
    settled: &Settled,
    options: &Options,
    (target, output): (&Target, Output),
    made: Timestamp,
    watch: Watch<'_>,
) -> BuildResult<()> {
    let failed = |why| target.failed(why);
    let size_bytes = settled.plan.superblock().geometry().size_bytes();
    let device = &output.disk.window;
    clear_between(&settled.forms, size_bytes, device).map_err(failed)?;
    settled.plan.prepare(device)?;
    let image = Image {
        forms: &settled.forms,
        placed: &settled.placed,
        plan: &settled.plan,
        reserved: &settled.reserved,
        disk: &output.disk,
        options,
        made,
    };
    let done = image.run(watch)?;
    check_archives(&settled.forms.tree)?;
    // Nothing is read any more from behind the end.
    output.cut(size_bytes).map_err(failed)?;
    settled.plan.complete(device)?;
    let finished = output.reopen().map_err(failed)?;
    let lists = read_back(settled, options, finished, watch)?;
    if watch(done) == Flow::Stop {
        return Err(BuildError::Stopped);
    }
    output.commit().map_err(failed)?;
    lists.commit()
}

/// Refuses archives that are not what they were when their headers were read.
fn check_archives(tree: &Tree) -> BuildResult<()> {
    let changed = tree.changed_file().map(str::as_bytes);
    changed.map_or(Ok(()), |place| {
        Err(BuildError::Changed {
            path: place.to_vec(),
        })
    })
}

/// Zeroes what lies between contents that stay: what a later entry replaced, and what was excluded.
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
    /// Does all jobs, and says how much that was.
    fn run(&self, watch: Watch<'_>) -> BuildResult<Progress> {
        let queue = Queue::new(self);
        let failed: Mutex<Option<BuildError>> = Mutex::new(None);
        let threads = self.options.thread_count();
        let work = || {
            let mut hands = Hands {
                reader: Reader::new(&self.forms.tree),
                stretch: Stretch::new(self.device(), self.block_bits(), threads),
            };
            let mut result = Ok(());
            while result.is_ok()
                && let Some((job, progress)) = queue.next()
            {
                result = match watch(progress) {
                    Flow::Continue => self.do_job(&mut hands, &job),
                    Flow::Stop => Err(BuildError::Stopped),
                };
            }
            let flushed = hands.stretch.flush();
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

    fn do_job(&self, hands: &mut Hands<'_>, job: &Job) -> BuildResult<()> {
        match job {
            Job::Directories(nodes) => self.write_directories(hands, nodes),
            Job::Xattrs => self.write_xattr_blocks(hands),
            Job::Values(range) => self.write_values(hands, range.clone()),
            Job::Inodes { group, range } => self.write_inodes(hands, *group, range.clone()),
            Job::Contents(range) => self.write_contents(hands, range.clone()),
            Job::Part { node, blocks } => self.write_part(hands, *node, blocks.clone()),
        }
    }

    fn output_error(&self, why: std::io::Error) -> BuildError {
        // The device's errors say what was tried; the caller knows the path.
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

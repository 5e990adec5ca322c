//! **Purpose.** The queue of jobs of a build, and its progress.
//!
//! **Model.** The queue is not a list but a position in the order of objects: first directories,
//! then attribute blocks, large values and inode tables, then file data. A job is created from the
//! position when a thread requests one: adjacent objects of about a megabyte, or a part of a large
//! file.

use std::ops::Range;

use fourscore_ondisk::GroupNr;
use fourscore_ondisk::inode::FileType;
use fourscore_sync::Mutex;

use super::Image;
use crate::options::Progress;
use crate::tree::NodeId;

/// Approximate size of a job.
const JOB_BYTES: u64 = 1 << 20;
/// Largest number of objects in a job.
const JOB_OBJECTS: usize = 1024;
/// Longer files are split into parts of this size.
const PART_BYTES: u64 = 16 << 20;
/// Large attribute values in a job.
const JOB_VALUES: usize = 64;
/// Inodes in a job.
const JOB_INODES: u32 = 4096;

/// A unit of work for one thread.
#[derive(Debug)]
pub(crate) enum Job {
    /// Write these directories.
    Directories(Vec<NodeId>),
    /// Write the attribute blocks.
    Xattrs,
    /// Write the large attribute values with these numbers.
    Values(Range<usize>),
    /// Write a range of a group's inode table.
    Inodes { group: GroupNr, range: Range<u32> },
    /// Write the data of the objects at these positions of the order.
    Contents(Range<usize>),
    /// Write some blocks of a large file. The first part also writes the nodes.
    Part { node: NodeId, blocks: Range<u64> },
}

/// Creates jobs.
pub(crate) struct Queue<'a> {
    image: &'a Image<'a>,
    place: Mutex<Place>,
}

#[derive(Debug)]
struct Place {
    stage: Stage,
    progress: Progress,
}

#[derive(Debug)]
enum Stage {
    /// From this position of the order; `None` for the root.
    Directories(Option<usize>),
    Xattrs,
    /// From this number.
    Values(usize),
    Inodes {
        group: u32,
        next: u32,
    },
    Contents(usize),
    /// The remaining blocks of the file at this position.
    Parts {
        position: usize,
        blocks: Range<u64>,
    },
    Done,
}

impl<'a> Queue<'a> {
    pub(crate) fn new(image: &'a Image<'a>) -> Self {
        let (order, tree) = (image.forms.numbers.order(), &image.forms.tree);
        let progress = Progress {
            objects: order.len() as u64,
            bytes: order.iter().map(|&node| tree.content_bytes(node)).sum(),
            ..Progress::default()
        };
        let stage = Stage::Directories(None);
        Self {
            image,
            place: Mutex::new(Place { stage, progress }),
        }
    }

    /// Returns the next job, and the progress before it.
    pub(crate) fn next(&self) -> Option<(Job, Progress)> {
        let mut place = self.place.lock();
        let place = &mut *place;
        loop {
            let before = place.progress;
            let (job, stage) = match &place.stage {
                Stage::Directories(from) => self.directories(*from),
                Stage::Xattrs => (Some(Job::Xattrs), Stage::Values(0)),
                Stage::Values(from) => self.values(*from),
                Stage::Inodes { group, next } => self.inodes(*group, *next),
                Stage::Contents(from) => self.contents(*from, &mut place.progress),
                Stage::Parts { position, blocks } => {
                    self.parts(*position, blocks.clone(), &mut place.progress)
                }
                Stage::Done => return None,
            };
            place.stage = stage;
            if let Some(job) = job {
                return Some((job, before));
            }
        }
    }

    /// Ends the queue.
    pub(crate) fn stop(&self) {
        self.place.lock().stage = Stage::Done;
    }

    /// The progress, with running jobs counted as done.
    pub(crate) fn progress(&self) -> Progress {
        self.place.lock().progress
    }

    fn directories(&self, from: Option<usize>) -> (Option<Job>, Stage) {
        let forms = self.image.forms;
        let order = forms.numbers.order();
        let mut nodes = Vec::new();
        let mut bytes = 0;
        if from.is_none() {
            nodes.push(NodeId::ROOT);
            bytes += forms.size_bytes(NodeId::ROOT);
        }
        let mut at = from.unwrap_or(0);
        while bytes < JOB_BYTES
            && nodes.len() < JOB_OBJECTS
            && let Some(&node) = order.get(at)
        {
            if forms.tree.file_type(node) == FileType::Directory {
                nodes.push(node);
                bytes += forms.size_bytes(node);
            }
            at += 1;
        }
        let stage = if at < order.len() {
            Stage::Directories(Some(at))
        } else {
            Stage::Xattrs
        };
        (
            (!nodes.is_empty()).then_some(Job::Directories(nodes)),
            stage,
        )
    }

    fn values(&self, from: usize) -> (Option<Job>, Stage) {
        let all = self.image.forms.values.len();
        if from >= all {
            return (None, Stage::Inodes { group: 0, next: 0 });
        }
        let range = from..(from + JOB_VALUES).min(all);
        (Some(Job::Values(range.clone())), Stage::Values(range.end))
    }

    fn inodes(&self, group: u32, next: u32) -> (Option<Job>, Stage) {
        let geometry = self.image.plan.superblock().geometry();
        let per_group = geometry.inodes_per_group();
        let used = self
            .image
            .last_inode()
            .0
            .saturating_sub(group.saturating_mul(per_group));
        let end = used.min(per_group);
        if group >= geometry.groups() || used == 0 {
            return (None, Stage::Contents(0));
        }
        if next >= end {
            return (
                None,
                Stage::Inodes {
                    group: group + 1,
                    next: 0,
                },
            );
        }
        let range = next..(next + JOB_INODES).min(end);
        let stage = Stage::Inodes {
            group,
            next: range.end,
        };
        let group = GroupNr(group);
        (Some(Job::Inodes { group, range }), stage)
    }

    fn contents(&self, from: usize, progress: &mut Progress) -> (Option<Job>, Stage) {
        let forms = self.image.forms;
        let order = forms.numbers.order();
        let mut at = from;
        let mut bytes = 0;
        while bytes < JOB_BYTES && at - from < JOB_OBJECTS {
            let Some(&node) = order.get(at) else { break };
            let own = forms.tree.content_bytes(node);
            if own > PART_BYTES {
                break;
            }
            bytes += own;
            at += 1;
        }
        progress.objects_done += (at - from) as u64;
        progress.bytes_done += bytes;
        let stage = match order.get(at) {
            None => Stage::Done,
            Some(&node) if forms.tree.content_bytes(node) > PART_BYTES => Stage::Parts {
                position: at,
                blocks: 0..forms.facts.blocks(forms.size_bytes(node)),
            },
            Some(_) => Stage::Contents(at),
        };
        ((at > from).then_some(Job::Contents(from..at)), stage)
    }

    fn parts(
        &self,
        position: usize,
        blocks: Range<u64>,
        progress: &mut Progress,
    ) -> (Option<Job>, Stage) {
        let forms = self.image.forms;
        let Some(&node) = forms.numbers.order().get(position) else {
            return (None, Stage::Done);
        };
        let part_blocks = PART_BYTES >> forms.facts.block_bits;
        // A sparse file is one part, because most of its blocks need no work.
        let whole = forms.tree.content_bytes(node) < forms.tree.len_bytes(node);
        let end = if whole {
            blocks.end
        } else {
            (blocks.start + part_blocks).min(blocks.end)
        };
        let now = blocks.start..end;
        let last = end == blocks.end;
        progress.bytes_done += match last {
            true => {
                let before = if whole {
                    0
                } else {
                    blocks.start << forms.facts.block_bits
                };
                forms.tree.content_bytes(node).saturating_sub(before)
            }
            false => PART_BYTES,
        };
        let stage = if last {
            progress.objects_done += 1;
            Stage::Contents(position + 1)
        } else {
            Stage::Parts {
                position,
                blocks: end..blocks.end,
            }
        };
        (Some(Job::Part { node, blocks: now }), stage)
    }
}

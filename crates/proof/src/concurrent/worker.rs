//! **Purpose.** A thread of a round: it draws calls, runs them, and records their results.
//!
//! | module | responsibility |
//! |---|---|
//! | `names` | calls on names and directories |
//! | `content` | calls on files |
//! | `growth` | growths of the file system |

mod content;
mod growth;
mod names;

use std::time::Instant;

use fourscore_testkit::explore::Rng;

use super::call::{Call, Event, Outcome};
use super::shape::Format;
use super::shared::Shared;
use super::stamp::Version;
use super::target::{Answer, Target};
use super::theme::Theme;

/// The most events that a thread records in a round.
const MOST_EVENTS: usize = 40_000;
/// The number of calls after which a thread checks the time; one that only grows the file system
/// checks after each.
const CALLS_BETWEEN_CHECKS: usize = 16;

/// A kind of call, or of a short sequence of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Make,
    MakeDirectory,
    Remove,
    RemoveDirectory,
    Rename,
    Exchange,
    Link,
    Lookup,
    Flicker,
    Hunt,
    Flip,
    Resolve,
    Replace,
    List,
    Grow,
    Read,
    Write,
    Append,
    Truncate,
    Punch,
    Range,
    Move,
    Copy,
    Map,
    Size,
    Xattr,
    OneXattr,
    Sync,
    StatFs,
    GrowFs,
    NewFile,
    Bystander,
}

/// How often each step is done, relative to the others.
type Weights = [(Step, usize)];

const TREE: &Weights = &[
    (Step::Make, 4),
    (Step::MakeDirectory, 10),
    (Step::Remove, 4),
    (Step::RemoveDirectory, 8),
    (Step::Flip, 20),
    (Step::Rename, 50),
    (Step::Exchange, 8),
    (Step::Lookup, 4),
    (Step::List, 1),
];

const NAMES: &Weights = &[
    (Step::Make, 14),
    (Step::MakeDirectory, 4),
    (Step::Remove, 12),
    (Step::RemoveDirectory, 4),
    (Step::Rename, 8),
    (Step::Exchange, 4),
    (Step::Link, 4),
    (Step::Lookup, 8),
    (Step::Flicker, 12),
    (Step::Hunt, 12),
    (Step::Resolve, 16),
    (Step::Replace, 12),
    (Step::List, 4),
    (Step::NewFile, 2),
    (Step::Xattr, 2),
    (Step::Sync, 1),
    (Step::StatFs, 1),
];

const LISTINGS: &Weights = &[
    (Step::Grow, 60),
    (Step::List, 14),
    (Step::Make, 4),
    (Step::Remove, 4),
    (Step::Rename, 4),
    (Step::Lookup, 8),
    (Step::Replace, 2),
    (Step::Resolve, 2),
];

const CONTENT: &Weights = &[
    (Step::Read, 36),
    (Step::Write, 18),
    (Step::Append, 2),
    (Step::Truncate, 3),
    (Step::Punch, 14),
    (Step::Range, 4),
    (Step::Move, 2),
    (Step::Copy, 6),
    (Step::Map, 8),
    (Step::Size, 3),
    (Step::NewFile, 2),
    (Step::Sync, 1),
    (Step::Xattr, 1),
];

const COPIES: &Weights = &[
    (Step::Copy, 40),
    (Step::Punch, 30),
    (Step::Write, 20),
    (Step::Read, 4),
    (Step::NewFile, 1),
];

const ATTRIBUTES: &Weights = &[(Step::Xattr, 60), (Step::NewFile, 6), (Step::Sync, 1)];

const EVERYTHING: &Weights = &[
    (Step::Make, 4),
    (Step::MakeDirectory, 4),
    (Step::Remove, 4),
    (Step::RemoveDirectory, 3),
    (Step::Rename, 6),
    (Step::Exchange, 2),
    (Step::Link, 2),
    (Step::Lookup, 4),
    (Step::Flicker, 2),
    (Step::Hunt, 2),
    (Step::Resolve, 4),
    (Step::Replace, 3),
    (Step::List, 2),
    (Step::Grow, 3),
    (Step::Read, 16),
    (Step::Write, 10),
    (Step::Append, 1),
    (Step::Truncate, 2),
    (Step::Punch, 6),
    (Step::Range, 2),
    (Step::Move, 1),
    (Step::Copy, 3),
    (Step::Map, 3),
    (Step::Size, 2),
    (Step::Xattr, 6),
    (Step::Sync, 1),
    (Step::StatFs, 1),
    (Step::NewFile, 2),
];

const GROWTH: &Weights = &[
    (Step::Make, 8),
    (Step::MakeDirectory, 8),
    (Step::Remove, 6),
    (Step::RemoveDirectory, 4),
    (Step::Rename, 4),
    (Step::Lookup, 4),
    (Step::List, 2),
    (Step::Grow, 8),
    (Step::Read, 8),
    (Step::Write, 12),
    (Step::Append, 2),
    (Step::Truncate, 3),
    (Step::Punch, 6),
    (Step::Range, 3),
    (Step::Copy, 3),
    (Step::Xattr, 6),
    (Step::Sync, 1),
    (Step::StatFs, 8),
    (Step::NewFile, 4),
];

impl Theme {
    /// The steps of a thread.
    fn weights(self, thread: usize) -> &'static Weights {
        match self {
            Self::Tree => TREE,
            Self::Names => NAMES,
            Self::Listings => LISTINGS,
            Self::Content => CONTENT,
            Self::Copies => COPIES,
            // One thread commits, one reads, and some keep the cores busy, so that the others are
            // preempted anywhere.
            Self::Reuse if thread == 1 => &[(Step::Sync, 1)],
            Self::Reuse if thread > 6 => &[(Step::Resolve, 1)],
            Self::Reuse if thread > 2 => &[(Step::Write, 1), (Step::Punch, 1)],
            Self::Reuse => &[(Step::Read, 1)],
            Self::NewNames if thread <= 3 => &[(Step::Flicker, 1)],
            Self::NewNames => &[(Step::Hunt, 1)],
            // A change keeps an inode in memory, so changes are rare.
            Self::Eviction if thread == 1 => &[(Step::Grow, 1), (Step::Bystander, 2)],
            Self::Eviction if thread == 2 => &[(Step::Bystander, 1)],
            Self::Eviction => &[(Step::List, 1)],
            Self::Attributes => ATTRIBUTES,
            Self::OneAttribute => &[(Step::OneXattr, 300), (Step::NewFile, 1)],
            Self::Growth if thread == 1 => &[(Step::GrowFs, 1)],
            // Looks at the free space, and grows now and then while the other one does.
            Self::Growth if thread == 2 => &[(Step::StatFs, 100), (Step::GrowFs, 1)],
            Self::Growth => GROWTH,
            Self::Everything => EVERYTHING,
        }
    }
}

/// A thread.
pub(super) struct Worker<'s, T: Target> {
    shared: &'s Shared<T>,
    thread: usize,
    random: Rng,
    versions: u32,
    buffer: Vec<u8>,
    events: Vec<Event>,
}

impl<'s, T: Target> Worker<'s, T> {
    pub(super) fn new(shared: &'s Shared<T>, thread: usize, random: Rng) -> Self {
        Self {
            shared,
            thread,
            random,
            versions: 0,
            buffer: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Works until a time, and returns the recorded events.
    pub(super) fn work(mut self, until: Instant) -> Vec<Event> {
        let weights = self.shared.shape.theme.weights(self.thread);
        let total: usize = weights.iter().map(|(_, weight)| weight).sum();
        let between = match weights {
            [(Step::GrowFs, _)] => 1,
            _ => CALLS_BETWEEN_CHECKS,
        };
        while self.events.len() < MOST_EVENTS && Instant::now() < until {
            for _ in 0..between {
                let mut drawn = self.random.below(total);
                let step = weights.iter().find(|(_, weight)| {
                    let here = drawn < *weight;
                    drawn = drawn.saturating_sub(*weight);
                    here
                });
                if let Some((step, _)) = step {
                    self.step(*step);
                }
            }
        }
        self.events
    }

    /// Reads everything once more, when no thread changes anything.
    pub(super) fn read_all(mut self) -> Vec<Event> {
        self.read_all_files();
        self.read_all_names();
        self.events
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Make => self.make(),
            Step::MakeDirectory => self.make_directory(),
            Step::Remove => self.remove(),
            Step::RemoveDirectory => self.remove_directory(),
            Step::Rename => self.rename(),
            Step::Exchange => self.exchange(),
            Step::Link => self.link(),
            Step::Lookup => self.lookup(),
            Step::Flicker => self.flicker(),
            Step::Hunt => self.hunt(),
            Step::Flip => self.flip(),
            Step::Resolve => self.resolve(),
            Step::Replace => self.replace(),
            Step::List => self.list(),
            Step::Grow => self.grow(),
            Step::Read => self.read(),
            Step::Write => self.write(),
            Step::Append => self.append(),
            Step::Truncate => self.truncate(),
            Step::Punch => self.punch(),
            Step::Range => self.range(),
            Step::Move => self.move_range(),
            Step::Copy => self.copy(),
            Step::Map => self.map(),
            Step::Size => self.size(),
            Step::Xattr => self.xattr(),
            Step::OneXattr => self.one_xattr(),
            Step::Sync => self.sync(),
            Step::StatFs => self.stat_fs(),
            Step::GrowFs => self.grow_fs(),
            Step::NewFile => self.new_file(),
            Step::Bystander => self.stat_bystander(),
        }
    }

    fn stat_fs(&mut self) {
        self.note(Call::StatFs, |shared| {
            let answer = shared.target.stat_fs();
            answer.map_or_else(Outcome::Failed, Outcome::Space)
        });
    }

    /// Runs a call and records its result.
    fn note(&mut self, call: Call, act: impl FnOnce(&'s Shared<T>) -> Outcome) {
        let begin = self.shared.now();
        let outcome = act(self.shared);
        let end = self.shared.now();
        self.events.push(Event {
            begin,
            end,
            thread: self.thread,
            call,
            outcome,
        });
    }

    /// The number of the next write.
    fn version(&mut self) -> Version {
        self.versions += 1;
        Version(u32::try_from(self.thread).unwrap_or(0) << 24 | self.versions)
    }

    fn has_indirect_blocks(&self) -> bool {
        self.shared.shape.format == Format::Pointers
    }
}

fn done(answer: Answer<()>) -> Outcome {
    answer.map_or_else(Outcome::Failed, |()| Outcome::Done)
}

fn number(answer: Answer<u64>) -> Outcome {
    answer.map_or_else(Outcome::Failed, Outcome::Number)
}

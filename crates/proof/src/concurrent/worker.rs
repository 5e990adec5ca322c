//! **Purpose.** A thread of a round: it draws calls, does them, and notes what it was answered.
//!
//! | module | responsibility |
//! |---|---|
//! | `names` | calls about names and directories |
//! | `content` | calls about files |

mod content;
mod names;

use std::time::Instant;

use fourscore_testkit::explore::Rng;

use super::call::{Call, Event, Outcome};
use super::shape::{Format, Theme};
use super::shared::Shared;
use super::stamp::Version;
use super::target::{Answer, Target};

/// A thread notes no more than this in a round.
const MOST_EVENTS: usize = 40_000;
/// A thread looks at the clock after so many calls.
const CALLS_BETWEEN_LOOKS: usize = 16;

/// What may be done next.
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
    Sync,
    StatFs,
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

impl Theme {
    /// What a thread does.
    fn weights(self, thread: usize) -> &'static Weights {
        match self {
            Self::Tree => TREE,
            Self::Names => NAMES,
            Self::Listings => LISTINGS,
            Self::Content => CONTENT,
            // One commits, one reads, some keep the cores busy, so that the others are
            // interrupted anywhere.
            Self::Reuse if thread == 1 => &[(Step::Sync, 1)],
            Self::Reuse if thread > 6 => &[(Step::Resolve, 1)],
            Self::Reuse if thread > 2 => &[(Step::Write, 1), (Step::Punch, 1)],
            Self::Reuse => &[(Step::Read, 1)],
            Self::NewNames if thread <= 3 => &[(Step::Flicker, 1)],
            Self::NewNames => &[(Step::Hunt, 1)],
            // Who changes an inode keeps it in memory, so that is done seldom.
            Self::Eviction if thread == 1 => &[(Step::Grow, 1), (Step::Bystander, 2)],
            Self::Eviction if thread == 2 => &[(Step::Bystander, 1)],
            Self::Eviction => &[(Step::List, 1)],
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
    room: Vec<u8>,
    events: Vec<Event>,
}

impl<'s, T: Target> Worker<'s, T> {
    pub(super) fn new(shared: &'s Shared<T>, thread: usize, random: Rng) -> Self {
        Self {
            shared,
            thread,
            random,
            versions: 0,
            room: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Works until it is time; gives what it noted.
    pub(super) fn work(mut self, until: Instant) -> Vec<Event> {
        let weights = self.shared.shape.theme.weights(self.thread);
        let total: usize = weights.iter().map(|(_, weight)| weight).sum();
        while self.events.len() < MOST_EVENTS && Instant::now() < until {
            for _ in 0..CALLS_BETWEEN_LOOKS {
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

    /// Looks at everything once more, when nobody changes anything.
    pub(super) fn look(mut self) -> Vec<Event> {
        self.look_at_files();
        self.look_at_names();
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
            Step::Sync => self.sync(),
            Step::StatFs => self.note(Call::StatFs, |shared| number(shared.target.stat_fs())),
            Step::NewFile => self.new_file(),
            Step::Bystander => self.look_at_bystander(),
        }
    }

    /// Does a call and notes its answer.
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

    /// A number for what is written next.
    fn version(&mut self) -> Version {
        self.versions += 1;
        Version(u32::try_from(self.thread).unwrap_or(0) << 24 | self.versions)
    }

    fn is_mapped_by_pointers(&self) -> bool {
        self.shared.shape.format == Format::Pointers
    }
}

fn done(answer: Answer<()>) -> Outcome {
    answer.map_or_else(Outcome::Failed, |()| Outcome::Done)
}

fn number(answer: Answer<u64>) -> Outcome {
    answer.map_or_else(Outcome::Failed, Outcome::Number)
}

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
}

impl Theme {
    /// How often each is done by a thread.
    fn weights(self, thread: usize) -> &'static [(Step, usize)] {
        use Step::{
            Append, Copy, Exchange, Flicker, Flip, Grow, Hunt, Link, List, Lookup, Make,
            MakeDirectory, Map, Move, NewFile, Punch, Range, Read, Remove, RemoveDirectory, Rename,
            Replace, Resolve, Size, StatFs, Sync, Truncate, Write, Xattr,
        };
        match self {
            Self::Tree => &[
                (Make, 4),
                (MakeDirectory, 10),
                (Remove, 4),
                (RemoveDirectory, 8),
                (Flip, 20),
                (Rename, 50),
                (Exchange, 8),
                (Lookup, 4),
                (List, 1),
            ],
            Self::Names => &[
                (Make, 14),
                (MakeDirectory, 4),
                (Remove, 12),
                (RemoveDirectory, 4),
                (Rename, 8),
                (Exchange, 4),
                (Link, 4),
                (Lookup, 8),
                (Flicker, 12),
                (Hunt, 12),
                (Resolve, 16),
                (Replace, 12),
                (List, 4),
                (NewFile, 2),
                (Xattr, 2),
                (Sync, 1),
                (StatFs, 1),
            ],
            Self::Listings => &[
                (Grow, 60),
                (List, 14),
                (Make, 4),
                (Remove, 4),
                (Rename, 4),
                (Lookup, 8),
                (Replace, 2),
                (Resolve, 2),
            ],
            Self::Content => &[
                (Read, 36),
                (Write, 18),
                (Append, 2),
                (Truncate, 3),
                (Punch, 14),
                (Range, 4),
                (Move, 2),
                (Copy, 6),
                (Map, 8),
                (Size, 3),
                (NewFile, 2),
                (Sync, 1),
                (Xattr, 1),
            ],
            // One commits, one reads, some keep the cores busy, so that the others are
            // interrupted anywhere.
            Self::Reuse if thread == 1 => &[(Sync, 1)],
            Self::Reuse if thread > 6 => &[(Resolve, 1)],
            Self::Reuse if thread > 2 => &[(Write, 1), (Punch, 1)],
            Self::Reuse => &[(Read, 1)],
            Self::Everything => &[
                (Make, 4),
                (MakeDirectory, 4),
                (Remove, 4),
                (RemoveDirectory, 3),
                (Rename, 6),
                (Exchange, 2),
                (Link, 2),
                (Lookup, 4),
                (Flicker, 2),
                (Hunt, 2),
                (Resolve, 4),
                (Replace, 3),
                (List, 2),
                (Grow, 3),
                (Read, 16),
                (Write, 10),
                (Append, 1),
                (Truncate, 2),
                (Punch, 6),
                (Range, 2),
                (Move, 1),
                (Copy, 3),
                (Map, 3),
                (Size, 2),
                (Xattr, 6),
                (Sync, 1),
                (StatFs, 1),
                (NewFile, 2),
            ],
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

//! **Purpose.** Judges the size of the file system while it grows, and how full it is said to be.
//!
//! **Model.** The size is a register that only growths change. What statfs(2) returns is of one
//! moment of the call:
//!
//! | what | must be |
//! |---|---|
//! | free blocks and inodes | at most all of them |
//! | all blocks and inodes | at least what a call that ended before has returned, and more after a growth that ended before than before it |
//! | blocks in use | at most as many more as before as the calls in between may have taken |
//! | the size that a growth returns | less than a group below its wish, and never above; not below what was there before |
//! | a growth that is refused | below the size, or beyond the device; or another one is in progress |
//!
//! **Not here.** With a page cache, blocks are taken after the write that needs them has ended: the
//! blocks in use are not judged then.

use std::collections::BTreeMap;

use super::super::call::{Call, Event, Outcome, Space, Time};
use super::context::{Context, errno};
use super::violation::Violation;

/// Bytes that a call may take for maps, directories and attributes, besides its data.
const OWN_BYTES: u64 = 64 << 10;
/// Bytes that no call takes: files of quota, and what the size of a file system with another
/// number of groups counts otherwise.
const SLACK_BYTES: u64 = 1 << 20;

/// Judges the size and the free space.
///
/// # Errors
/// The first call whose result is impossible.
pub(super) fn judge(context: &Context, events: &[Event]) -> Result<(), Box<Violation>> {
    let growths = Growths::of(context, events);
    for (index, event) in events.iter().enumerate() {
        let wrong = match (event.call, &event.outcome) {
            (Call::StatFs, Outcome::Space(space)) => wrong_in_itself(space),
            (Call::GrowFs(wish), &Outcome::Number(size)) => growths.wrong_size(event, wish, size),
            _ => None,
        };
        if let Some(what) = wrong {
            return Err(Violation::new(events, index, what));
        }
    }
    judge_order(&growths, events)?;
    match context.has_page_cache {
        true => Ok(()),
        false => judge_use(events),
    }
}

/// The size that the file system must have at the end, at least.
pub(in crate::concurrent) fn final_blocks(first: u64, events: &[Event]) -> u64 {
    let sizes = events.iter().filter_map(size_of).map(|(_, size)| size);
    sizes.max().unwrap_or(0).max(first)
}

/// The size that a growth has returned.
fn size_of(event: &Event) -> Option<(&Event, u64)> {
    match (event.call, &event.outcome) {
        (Call::GrowFs(_), &Outcome::Number(size)) => Some((event, size)),
        _ => None,
    }
}

fn wrong_in_itself(space: &Space) -> Option<String> {
    let is_wrong = space.free_blocks > space.blocks || space.free_inodes > space.inodes;
    is_wrong.then(|| "more blocks or inodes are free than exist".to_owned())
}

/// The growths of a round.
pub(super) struct Growths<'e> {
    context: &'e Context,
    events: &'e [Event],
    /// The calls, by their indices among all.
    calls: Vec<usize>,
}

impl<'e> Growths<'e> {
    pub(super) fn of(context: &'e Context, events: &'e [Event]) -> Self {
        let calls = (0..events.len()).filter(|&at| matches!(events[at].call, Call::GrowFs(_)));
        Self {
            context,
            events,
            calls: calls.collect(),
        }
    }

    fn events(&self) -> impl Iterator<Item = &Event> {
        self.calls.iter().map(|&index| &self.events[index])
    }

    /// The time from which no call may find too little space.
    pub(super) fn spacious(&self) -> Time {
        let enough = self.context.spacious_blocks;
        if self.context.first_size.blocks >= enough {
            return 0;
        }
        let sizes = self.events().filter_map(size_of);
        let ends = sizes.filter(|(_, size)| *size >= enough);
        ends.map(|(event, _)| event.end).min().unwrap_or(Time::MAX)
    }

    /// Whether a growth may fail this way.
    pub(super) fn may_fail(&self, index: usize, number: i32) -> bool {
        let event = &self.events[index];
        let Call::GrowFs(wish) = event.call else {
            return false;
        };
        match number {
            errno::BUSY => {
                let others = self.calls.iter().filter(|&&other| other != index);
                let mut others = others.map(|&other| &self.events[other]);
                others.any(|other| other.overlaps(event))
            }
            errno::INVAL => {
                let has = self.most_before(event.end, index);
                wish > self.context.device_blocks || wish < has
            }
            _ => false,
        }
    }

    /// The largest size that the file system may have had before `end`, without what the call at
    /// `index` has done.
    fn most_before(&self, end: Time, index: usize) -> u64 {
        let others = self.calls.iter().filter(|&&other| other != index);
        let begun = others.map(|&other| &self.events[other]);
        let sizes = begun.filter(|other| other.begin < end);
        let sizes = sizes.filter_map(|other| match (other.call, &other.outcome) {
            (_, &Outcome::Number(size)) => Some(size),
            // What was done until an error stays.
            (Call::GrowFs(wish), Outcome::Failed(_)) => {
                (wish <= self.context.device_blocks).then_some(wish)
            }
            _ => None,
        });
        sizes.max().unwrap_or(0).max(self.context.first_size.blocks)
    }

    /// The calls that have certainly made the file system larger, with its size then.
    fn certain(&self) -> impl Iterator<Item = (&Event, u64)> {
        let calls = self.calls.iter().filter_map(|&index| {
            let (event, size) = size_of(&self.events[index])?;
            Some((index, event, size))
        });
        calls.filter_map(|(index, event, size)| {
            (size > self.most_before(event.end, index)).then_some((event, size))
        })
    }

    fn wrong_size(&self, event: &Event, wish: u64, size: u64) -> Option<String> {
        let ended = self.events().filter(|other| other.end < event.begin);
        let known = ended.filter_map(size_of).map(|(_, size)| size);
        let known = known.max().unwrap_or(0).max(self.context.first_size.blocks);
        if size < known {
            return Some(format!("it had {known} blocks before"));
        }
        let overlaps = self
            .events()
            .any(|other| other != event && other.overlaps(event));
        // Another growth, which ended meanwhile, may have gone further.
        if size > wish && !overlaps {
            return Some("it has more blocks than were wished".to_owned());
        }
        let is_short = size + self.context.first_size.group_blocks <= wish;
        is_short.then(|| "it lacks a group or more of its wish".to_owned())
    }
}

/// What must have been seen at a time.
#[derive(Clone, Copy, Default)]
struct Least {
    blocks: u64,
    inodes: u64,
}

impl Least {
    fn and(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.max(other.blocks),
            inodes: self.inodes.max(other.inodes),
        }
    }
}

/// The greatest of what had ended before each time.
#[derive(Default)]
struct Ended(BTreeMap<Time, Least>);

impl Ended {
    /// Takes what was seen by calls, in any order.
    fn of(mut seen: Vec<(Time, Least)>) -> Self {
        seen.sort_unstable_by_key(|(end, _)| *end);
        let mut least = Least::default();
        let seen = seen.into_iter().map(|(end, here)| {
            least = least.and(here);
            (end, least)
        });
        Self(seen.collect())
    }

    fn before(&self, time: Time) -> Least {
        let last = self.0.range(..time).next_back();
        last.map_or(Least::default(), |(_, least)| *least)
    }
}

/// Nothing becomes smaller, and what a growth has added is seen when it has ended.
fn judge_order(growths: &Growths<'_>, events: &[Event]) -> Result<(), Box<Violation>> {
    let stats = events.iter().enumerate().filter_map(|(index, event)| {
        let Outcome::Space(space) = &event.outcome else {
            return None;
        };
        let seen = Least {
            blocks: space.blocks,
            inodes: space.inodes,
        };
        Some((index, seen))
    });
    let stats: Vec<(usize, Least)> = stats.collect();
    let seen = stats
        .iter()
        .map(|(index, seen)| (events[*index].end, *seen));
    let mut seen: Vec<_> = seen.collect();
    let before = Ended::of(seen.clone());
    let sizes = growths.certain().map(|(event, _)| {
        // Larger than all that was seen before it began.
        (event.end, before.before(event.begin).blocks + 1)
    });
    seen.extend(sizes.map(|(end, blocks)| {
        let least = Least { blocks, inodes: 0 };
        (end, least)
    }));
    let all = Ended::of(seen);
    for (index, seen) in stats {
        let least = all.before(events[index].begin);
        if seen.blocks < least.blocks || seen.inodes < least.inodes {
            let Least { blocks, inodes } = least;
            let what = format!("there were {blocks} blocks and {inodes} inodes, at least, before");
            return Err(Violation::new(events, index, what));
        }
    }
    Ok(())
}

/// The bytes that a call may take at most.
fn taken(event: &Event) -> u64 {
    match event.call {
        Call::Lookup(_)
        | Call::Resolve(_)
        | Call::List(_)
        | Call::StatNumber(_)
        | Call::Read { .. }
        | Call::Extents(_)
        | Call::SeekData(..)
        | Call::SeekHole(..)
        | Call::Size(_)
        | Call::GetXattr(..)
        | Call::Fsync(_)
        | Call::Sync
        | Call::StatFs
        | Call::Close(_) => 0,
        Call::Write { len, .. }
        | Call::Append { len, .. }
        | Call::Change { len, .. }
        | Call::Copy { len, .. } => len + OWN_BYTES,
        Call::GrowFs(_) => SLACK_BYTES,
        _ => OWN_BYTES,
    }
}

/// Free space that a growth adds comes with the blocks that it adds: no more blocks are in use than
/// calls have taken since the thread looked the last time.
fn judge_use(events: &[Event]) -> Result<(), Box<Violation>> {
    let sums = |time: fn(&Event) -> Time| {
        let mut times: Vec<(Time, u64)> = events.iter().map(|e| (time(e), taken(e))).collect();
        times.sort_unstable_by_key(|(time, _)| *time);
        let mut sum = 0;
        let sums = times.into_iter().map(|(time, taken)| {
            sum += taken;
            (time, sum)
        });
        sums.collect::<BTreeMap<_, _>>()
    };
    let (begun, ended) = (sums(|event| event.begin), sums(|event| event.end));
    let until = |sums: &BTreeMap<Time, u64>, time| {
        let last = sums.range(..time).next_back();
        last.map_or(0, |(_, sum)| *sum)
    };
    let mut last: BTreeMap<usize, (&Event, Space)> = BTreeMap::new();
    for (index, event) in events.iter().enumerate() {
        let Outcome::Space(now) = event.outcome else {
            continue;
        };
        let in_use = |space: &Space| space.blocks.saturating_sub(space.free_blocks);
        if let Some((before, then)) = last.insert(event.thread, (event, now)) {
            let taken = until(&begun, event.end) - until(&ended, before.begin);
            let most = (taken + SLACK_BYTES) / now.block_bytes.max(1);
            let more = in_use(&now).saturating_sub(in_use(&then));
            if more > most {
                let what = format!(
                    "{more} blocks more are in use than in {then:?}, and calls have taken at most \
                     {most}"
                );
                return Err(Violation::new(events, index, what));
            }
        }
    }
    Ok(())
}

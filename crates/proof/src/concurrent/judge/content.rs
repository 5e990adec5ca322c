//! **Purpose.** Judging content: whether each cell that was read held a value that it can have had
//! while it was read.
//!
//! **Model.** The calls that change a file are its log, each with a begin and an end. Calls that
//! leave content where it is run beside each other; a call that moves content (collapse, insert)
//! runs alone among those that change the file, so the log falls into *spans* between moves, and a
//! place in one span is that of another by the moves in between. Readers run beside everything.
//!
//! A value of a cell that was read from `b` to `e` comes from a change `c` of that cell in one of
//! the spans that ran between `b` and `e`. It is possible if `c.begin < e`, and there is no change
//! `d` of the cell that certainly came behind `c` and before the read: `c.end < d.begin` and `d.end
//! < b`. A span begins with what the one before it ended with, and the first one with zeroes. What
//! was copied is what the source can have held while the call ran, so that question is asked again
//! of the source.
//!
//! **Invariants.** What a call that failed may have done is possible, and not certain; where it is
//! not known which bytes that were, everything is possible in the file. The questions about copies
//! of copies are bounded in depth and number; where that is not enough, everything is possible.

use std::collections::{BTreeMap, BTreeSet};

use super::super::call::{Call, Event, Outcome, Range, Time};
use super::super::stamp::{CELL_BYTES, FileId, Run, Value, Version};
use super::{ALWAYS, Wrong};

/// A cell in so many bytes of a run with one origin is asked about, and the last.
const STEP_BYTES: u64 = 512;
/// Copies of copies.
const MOST_DEEP: u32 = 6;
/// Questions for one cell.
const MOST_QUESTIONS: u32 = 20_000;

/// What a change makes of the cells of its range.
#[derive(Clone, Copy, Debug)]
enum Made {
    Written(Version),
    Zero,
    /// What lay in another file, or another place, at this offset.
    Copied(FileId, u64),
}

/// A change that leaves the rest where it is.
#[derive(Clone, Copy, Debug)]
struct Change {
    begin: Time,
    end: Time,
    from: u64,
    to: u64,
    made: Made,
    /// Whether all of it was done; else each cell may be as it was before.
    is_whole: bool,
    event: usize,
}

/// A change that moves what lies behind it.
#[derive(Clone, Copy, Debug)]
struct Move {
    begin: Time,
    end: Time,
    what: Range,
    offset: u64,
    len: u64,
}

/// What happened between two moves.
#[derive(Clone, Debug)]
struct Span {
    /// What began it; `None` for the first.
    moved: Option<Move>,
    changes: Vec<Change>,
    /// By the part of the file, in order: the changes that touch it.
    parts: BTreeMap<u64, Part>,
}

/// The changes that touch a part of a file, in the order of their begins.
#[derive(Clone, Debug, Default)]
struct Part {
    changes: Vec<usize>,
    /// The latest end of all changes up to each.
    ends: Vec<Time>,
}

/// What happened to a file.
#[derive(Clone, Debug)]
struct Log {
    spans: Vec<Span>,
    /// Whether something failed half-way.
    is_unclear: bool,
}

#[derive(Debug, Default)]
struct Logs(BTreeMap<FileId, Log>);

/// How much may still be asked.
struct Budget {
    questions: u32,
}

impl Move {
    /// Where the cell at `place` behind the move was before; `None` if it was made by it.
    fn before(&self, place: u64) -> Option<u64> {
        if place < self.offset {
            return Some(place);
        }
        match self.what {
            Range::Collapse => Some(place + self.len),
            _ => place
                .checked_sub(self.len)
                .filter(|&old| old >= self.offset),
        }
    }
}

impl Span {
    fn new(moved: Option<Move>) -> Self {
        Self {
            moved,
            changes: Vec::new(),
            parts: BTreeMap::new(),
        }
    }

    /// Adds a change that began behind all others.
    fn push(&mut self, change: Change) {
        let index = self.changes.len();
        for number in part_of(change.from)..=part_of(change.to) {
            let part = self.parts.entry(number).or_default();
            let before = part.ends.last().copied().unwrap_or(0);
            part.changes.push(index);
            part.ends.push(before.max(change.end));
        }
        self.changes.push(change);
    }

    /// The changes from which a cell can have its value between two moments: those that began
    /// before the end and are not certainly followed by another that ended before the begin. And
    /// whether one certainly ended before the begin.
    fn sources(&self, place: u64, (begin, end): (Time, Time)) -> (Vec<&Change>, bool) {
        let mut found: Vec<&Change> = Vec::new();
        // The latest begin of what ended before the read: whatever ended before that is gone.
        let mut last_begin = None;
        let Some(part) = self.parts.get(&part_of(place)) else {
            return (found, false);
        };
        let began = part
            .changes
            .partition_point(|&index| self.changes[index].begin < end);
        let earlier = part.changes[..began].iter().zip(&part.ends[..began]);
        for (&index, &ends) in earlier.rev() {
            if last_begin.is_some_and(|last| ends < last) {
                break;
            }
            let change = &self.changes[index];
            if !change.touches(place) {
                continue;
            }
            if change.end < begin && change.is_whole {
                last_begin = last_begin.max(Some(change.begin));
            }
            found.push(change);
        }
        if let Some(last) = last_begin {
            found.retain(|change| change.end >= last);
        }
        (found, last_begin.is_some())
    }
}

/// The number of the part of a file in which a place lies; the last part has no end.
fn part_of(place: u64) -> u64 {
    const PART_BYTES: u64 = 4096;
    const MOST_PARTS: u64 = 256;
    (place / PART_BYTES).min(MOST_PARTS)
}

impl Change {
    fn touches(&self, place: u64) -> bool {
        self.from <= place && place < self.to
    }
}

impl Logs {
    fn of(events: &[Event]) -> Self {
        let mut logs = Self::default();
        for (index, event) in events.iter().enumerate() {
            logs.note(index, event);
        }
        logs
    }

    fn log(&mut self, file: FileId) -> &mut Log {
        self.0.entry(file).or_insert_with(|| Log {
            spans: vec![Span::new(None)],
            is_unclear: false,
        })
    }

    fn note(&mut self, index: usize, event: &Event) {
        let (file, from, to, made) = match (event.call, &event.outcome) {
            (
                Call::Write {
                    file,
                    version,
                    offset,
                    len,
                },
                _,
            ) => (file, offset, offset + len, Made::Written(version)),
            (Call::Append { file, version, len }, &Outcome::Number(at)) => {
                (file, at, at + len, Made::Written(version))
            }
            (Call::Append { file, version, .. }, _) => (file, 0, u64::MAX, Made::Written(version)),
            (Call::Truncate { file, size }, _) => (file, size, u64::MAX, Made::Zero),
            (
                Call::Change {
                    file,
                    what,
                    offset,
                    len,
                },
                _,
            ) if what.moves() => {
                if event.errno().is_none() {
                    let (begin, end) = (event.begin, event.end);
                    let moved = Move {
                        begin,
                        end,
                        what,
                        offset,
                        len,
                    };
                    self.log(file).spans.push(Span::new(Some(moved)));
                }
                return;
            }
            (
                Call::Change {
                    file,
                    what: Range::Punch | Range::Zero | Range::ZeroKeepSize,
                    offset,
                    len,
                },
                _,
            ) => (file, offset, offset + len, Made::Zero),
            (Call::Copy { from, to, .. }, &Outcome::Number(len)) => {
                (to.0, to.1, to.1 + len, Made::Copied(from.0, from.1))
            }
            (Call::Copy { to, .. }, _) => (to.0, 0, 0, Made::Zero),
            _ => return,
        };
        let log = self.log(file);
        let is_whole = event.errno().is_none();
        let is_known = matches!(
            event.call,
            Call::Write { .. } | Call::Truncate { .. } | Call::Change { .. }
        );
        log.is_unclear |= !is_whole && !is_known;
        if let Some(span) = log.spans.last_mut() {
            span.push(Change {
                begin: event.begin,
                end: event.end,
                from,
                to,
                made,
                is_whole,
                event: index,
            });
        }
    }

    /// Whether a cell of a file can have held a value between two moments.
    fn can_hold(
        &self,
        (file, place): (FileId, u64),
        value: Value,
        (begin, end): (Time, Time),
        depth: u32,
        budget: &mut Budget,
    ) -> bool {
        let Some(log) = self.0.get(&file) else {
            return value == Value::Zero;
        };
        if log.is_unclear || depth > MOST_DEEP {
            return true;
        }
        for (number, span) in log.spans.iter().enumerate() {
            let from = span.moved.map_or(ALWAYS.0, |moved| moved.begin);
            let next = log.spans.get(number + 1).and_then(|next| next.moved);
            let to = next.map_or(ALWAYS.1, |moved| moved.end);
            if from > end || to < begin {
                continue;
            }
            let during = (begin.max(from), end.min(to));
            let at = (file, place);
            if self.can_hold_in(log, number, at, value, during, depth, budget) {
                return true;
            }
        }
        false
    }

    /// The same for the `number`th span and those before it.
    #[expect(clippy::too_many_arguments, reason = "a question with all its parts")]
    fn can_hold_in(
        &self,
        log: &Log,
        number: usize,
        (file, place): (FileId, u64),
        value: Value,
        (begin, end): (Time, Time),
        depth: u32,
        budget: &mut Budget,
    ) -> bool {
        if budget.questions == 0 {
            return true;
        }
        budget.questions -= 1;
        let span = &log.spans[number];
        let (sources, is_changed) = span.sources(place, (begin, end));
        for change in sources {
            let is_source = match (change.made, value) {
                (Made::Zero, Value::Zero) => true,
                (
                    Made::Written(version),
                    Value::Written {
                        file: of,
                        version: is,
                        offset,
                    },
                ) => of == file && is == version && offset == place,
                (Made::Copied(source, offset), _) => {
                    let from = (source, offset + (place - change.from));
                    let during = (change.begin, change.end);
                    self.can_hold(from, value, during, depth + 1, budget)
                }
                _ => false,
            };
            if is_source {
                return true;
            }
        }
        if is_changed {
            return false;
        }
        let Some(moved) = span.moved else {
            return value == Value::Zero;
        };
        match moved.before(place) {
            None => value == Value::Zero,
            Some(old) => {
                let during = (moved.begin, moved.begin);
                self.can_hold_in(log, number - 1, (file, old), value, during, depth, budget)
            }
        }
    }

    /// The changes of a file, for who tells about it.
    fn events(&self, file: FileId) -> BTreeSet<usize> {
        let spans = self.0.get(&file).into_iter().flat_map(|log| &log.spans);
        spans
            .flat_map(|span| span.changes.iter().map(|change| change.event))
            .collect()
    }
}

/// Judges everything that was read in a round.
///
/// # Errors
/// The first cell that held what it cannot have held.
pub(super) fn judge(events: &[Event]) -> Result<(), Box<Wrong>> {
    let logs = Logs::of(events);
    for (index, event) in events.iter().enumerate() {
        let (Call::Read { file, .. }, Outcome::Bytes(_, runs)) = (event.call, &event.outcome)
        else {
            continue;
        };
        for run in runs {
            if let Some(bad) = bad_cell(&logs, file, run, (event.begin, event.end)) {
                let value = run.value.behind(bad - run.offset);
                let what = match value {
                    Value::Poison => "bytes from before the file system was made".to_owned(),
                    Value::Foreign(bytes) => format!("bytes that no file holds, {bytes:x?}"),
                    Value::Written { file: of, .. } if of != file => {
                        format!("another file's bytes, {value:?}")
                    }
                    _ => format!("bytes that cannot be there, {value:?}"),
                };
                let what = format!("{what}, at {bad} of {file:?}, in {run:?}");
                let about = logs.events(file);
                return Err(Wrong::among(events, index, what, &about));
            }
        }
    }
    Ok(())
}

/// The first place of those asked about in a run that cannot have held what was read.
fn bad_cell(logs: &Logs, file: FileId, run: &Run, during: (Time, Time)) -> Option<u64> {
    let end = run.offset + run.len;
    let steps = (run.offset..end).step_by(usize::try_from(STEP_BYTES).unwrap_or(1));
    let mut places = steps.chain([end - CELL_BYTES]);
    places.find(|&place| {
        let value = run.value.behind(place - run.offset);
        let mut budget = Budget {
            questions: MOST_QUESTIONS,
        };
        let is_known = matches!(value, Value::Zero | Value::Written { .. });
        !is_known || !logs.can_hold((file, place), value, during, 0, &mut budget)
    })
}

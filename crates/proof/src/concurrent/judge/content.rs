//! **Purpose.** Judges file data: whether each cell that was read held a value that it can have had
//! during the read.
//!
//! **Model.** The calls that change a file form its log, each with a begin and an end. Calls that
//! do not move data may overlap. A call that moves data (collapse, insert) excludes all other
//! changes of the file, so the log falls into *spans* between moves, and an offset in one span
//! corresponds to one in another by the moves in between. Reads overlap with everything.
//!
//! The value of a cell that was read from `b` to `e` comes from a change `c` of that cell in a span
//! that overlaps `b..e`. It is possible if `c.begin < e`, and there is no change `d` of the cell
//! that certainly came after `c` and before the read: `c.end < d.begin` and `d.end < b`. A span
//! begins with the data at the end of the span before, the first one with zeroes. Data that was
//! copied is any data that the source can have held while the copy ran, so the same question is
//! asked of the source.
//!
//! Through a page cache a cell may also be torn: its first bytes are those of one possible value,
//! the others of another one. Linux copies from a page that another thread copies into, and the
//! copy of neither is atomic in any unit.
//!
//! **Invariants.** The changes of a call that failed are possible, but not certain; where it is not
//! known which bytes it changed, any value of the file is possible. The search through copies of
//! copies is bounded in depth and number; beyond that any value is possible.

use std::collections::{BTreeMap, BTreeSet};

use super::super::call::{Call, Event, Outcome, Range, Time};
use super::super::stamp::{CELL, CELL_BYTES, FileId, Run, Value, Version};
use super::Context;
use super::violation::Violation;

/// One cell in this many bytes of a run is checked, and the last one.
const STEP_BYTES: u64 = 512;
/// The greatest depth of copies of copies.
const MOST_DEEP: u32 = 6;
/// The most steps of the search for one cell.
const MOST_STEPS: u32 = 20_000;

/// A time span.
#[derive(Clone, Copy, Debug)]
struct Interval {
    begin: Time,
    end: Time,
}

/// A cell of a file.
#[derive(Clone, Copy, Debug)]
struct Cell {
    file: FileId,
    /// Its offset in bytes.
    place: u64,
}

/// The new data in the range of a change.
#[derive(Clone, Copy, Debug)]
enum Made {
    Written(Version),
    Zero,
    /// Data of a file at this offset.
    Copied(FileId, u64),
}

/// A change that does not move data.
#[derive(Clone, Copy, Debug)]
struct Change {
    begin: Time,
    end: Time,
    from: u64,
    to: u64,
    made: Made,
    /// Whether it succeeded; otherwise each cell may be unchanged.
    is_whole: bool,
    event: usize,
}

/// A change that moves the data behind it.
#[derive(Clone, Copy, Debug)]
struct Move {
    begin: Time,
    end: Time,
    what: Range,
    offset: u64,
    len: u64,
}

/// The changes between two moves.
#[derive(Clone, Debug)]
struct Span {
    /// The move that began it; `None` for the first.
    moved: Option<Move>,
    changes: Vec<Change>,
    /// For each part of the file, the changes that touch it.
    parts: BTreeMap<u64, Part>,
}

/// The changes that touch a part of a file, ordered by their begins.
#[derive(Clone, Debug, Default)]
struct Part {
    changes: Vec<usize>,
    /// For each change, the latest end of it and all before it.
    ends: Vec<Time>,
}

/// The changes of a file.
#[derive(Clone, Debug)]
struct Log {
    spans: Vec<Span>,
    /// Whether a call failed and it is not known which bytes it changed.
    is_unclear: bool,
}

#[derive(Debug, Default)]
struct Logs(BTreeMap<FileId, Log>);

/// The number of steps that the search may still take.
struct Budget {
    steps: u32,
}

impl Move {
    /// The offset before the move of the cell at `place` after it; `None` if the move created it.
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

    /// Adds a change that began after all others.
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

    /// The changes from which a cell can have its value in an interval: those that began before its
    /// end, unless another change certainly followed before the interval. And whether a change
    /// certainly ended before the interval.
    fn sources(&self, place: u64, during: Interval) -> (Vec<&Change>, bool) {
        let Interval { begin, end } = during;
        let mut found: Vec<&Change> = Vec::new();
        // The latest begin of the changes that ended before the read; they replaced all changes
        // that ended before that.
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

/// The number of the part of a file that contains an offset; the last part has no end.
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

    /// Whether a cell can have held a value in an interval.
    fn can_hold(&self, cell: Cell, value: Value, during: Interval) -> bool {
        let mut budget = Budget { steps: MOST_STEPS };
        self.any_value(cell, during, 0, &mut budget, &mut |held| held == value)
    }

    /// Whether a cell can have been seen with these bytes in an interval, torn between two values.
    fn can_be_torn(&self, cell: Cell, torn: [u8; CELL], during: Interval) -> bool {
        let mut budget = Budget { steps: MOST_STEPS };
        let mut values = Vec::new();
        let mut note = |value: Value| {
            values.push(value.bytes());
            false
        };
        if self.any_value(cell, during, 0, &mut budget, &mut note) {
            return true;
        }
        let begins = |value: &[u8; CELL], at: usize| value[..at] == torn[..at];
        let ends = |value: &[u8; CELL], at: usize| value[at..] == torn[at..];
        (1..CELL).any(|at| {
            values.iter().any(|value| begins(value, at))
                && values.iter().any(|value| ends(value, at))
        })
    }

    /// Whether `is_it` is true of a value that a cell can have held in an interval, or any value is
    /// possible.
    fn any_value(
        &self,
        cell: Cell,
        during: Interval,
        depth: u32,
        budget: &mut Budget,
        is_it: &mut impl FnMut(Value) -> bool,
    ) -> bool {
        let Some(log) = self.0.get(&cell.file) else {
            return is_it(Value::Zero);
        };
        if log.is_unclear || depth > MOST_DEEP {
            return true;
        }
        for (number, span) in log.spans.iter().enumerate() {
            let from = span.moved.map_or(Time::MIN, |moved| moved.begin);
            let next = log.spans.get(number + 1).and_then(|next| next.moved);
            let to = next.map_or(Time::MAX, |moved| moved.end);
            if from > during.end || to < during.begin {
                continue;
            }
            let during = Interval {
                begin: during.begin.max(from),
                end: during.end.min(to),
            };
            if self.any_value_in(number, cell, during, depth, budget, is_it) {
                return true;
            }
        }
        false
    }

    /// As [`Self::any_value`], in the `number`th span of the file and those before it.
    fn any_value_in(
        &self,
        number: usize,
        cell: Cell,
        during: Interval,
        depth: u32,
        budget: &mut Budget,
        is_it: &mut impl FnMut(Value) -> bool,
    ) -> bool {
        if budget.steps == 0 {
            return true;
        }
        budget.steps -= 1;
        let Cell { file, place } = cell;
        let span = &self.0[&file].spans[number];
        let (sources, is_changed) = span.sources(place, during);
        for change in sources {
            let is_source = match change.made {
                Made::Zero => is_it(Value::Zero),
                Made::Written(version) => is_it(Value::Written {
                    file,
                    version,
                    offset: place,
                }),
                Made::Copied(source, offset) => {
                    let from = Cell {
                        file: source,
                        place: offset + (place - change.from),
                    };
                    let during = Interval {
                        begin: change.begin,
                        end: change.end,
                    };
                    self.any_value(from, during, depth + 1, budget, is_it)
                }
            };
            if is_source {
                return true;
            }
        }
        if is_changed {
            return false;
        }
        let Some(moved) = span.moved else {
            return is_it(Value::Zero);
        };
        match moved.before(place) {
            None => is_it(Value::Zero),
            Some(old) => {
                let during = Interval {
                    begin: moved.begin,
                    end: moved.begin,
                };
                let cell = Cell { file, place: old };
                self.any_value_in(number - 1, cell, during, depth, budget, is_it)
            }
        }
    }

    /// The events that changed a file, for a report.
    fn events(&self, file: FileId) -> BTreeSet<usize> {
        let spans = self.0.get(&file).into_iter().flat_map(|log| &log.spans);
        spans
            .flat_map(|span| span.changes.iter().map(|change| change.event))
            .collect()
    }
}

/// Judges all reads of a round.
///
/// # Errors
/// The first cell with an impossible value.
pub(super) fn judge(context: &Context, events: &[Event]) -> Result<(), Box<Violation>> {
    let logs = Logs::of(events);
    for (index, event) in events.iter().enumerate() {
        let (Call::Read { file, .. }, Outcome::Bytes(_, runs)) = (event.call, &event.outcome)
        else {
            continue;
        };
        let during = Interval {
            begin: event.begin,
            end: event.end,
        };
        for run in runs {
            if let Some(bad) = bad_cell(context, &logs, file, run, during) {
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
                return Err(Violation::among(events, index, what, &about));
            }
        }
    }
    Ok(())
}

/// The offset of the first checked cell of a run with an impossible value.
fn bad_cell(
    context: &Context,
    logs: &Logs,
    file: FileId,
    run: &Run,
    during: Interval,
) -> Option<u64> {
    let end = run.offset + run.len;
    let steps = (run.offset..end).step_by(usize::try_from(STEP_BYTES).unwrap_or(1));
    let mut places = steps.chain([end - CELL_BYTES]);
    places.find(|&place| {
        let cell = Cell { file, place };
        let is_possible = match run.value.behind(place - run.offset) {
            Value::Poison => false,
            Value::Foreign(bytes) => {
                context.has_page_cache && logs.can_be_torn(cell, bytes, during)
            }
            value => logs.can_hold(cell, value, during),
        };
        !is_possible
    })
}

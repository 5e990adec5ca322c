//! **Purpose.** Judges the sizes and extended attributes of files.
//!
//! **Model.** Both are registers. A call that makes a file longer may do so in steps, so that a
//! size between the old one and the new one may be seen while it runs.

use std::collections::BTreeMap;

use super::super::call::{Call, Event, Outcome, Range};
use super::super::stamp::FileId;
use super::context::{Context, errno};
use super::linear::{Effect, Timed, explain};
use super::violation::Violation;

/// The effect of a call on a size, or its result, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeEffect {
    /// It is at least this.
    Grows(u64),
    Sets(u64),
    /// It was the first, and is the second now.
    Steps(u64, u64),
    Adds(u64),
    Takes(u64),
    /// It was between the first two, or was growing up to the third.
    Sees(u64, u64, u64),
    /// It is unknown now.
    Any,
}

impl Effect for SizeEffect {
    /// `None` is any size.
    type State = Option<u64>;

    fn after(&self, state: &Option<u64>, into: &mut Vec<Option<u64>>) {
        let Some(size) = *state else {
            into.push(match *self {
                Self::Sets(size) | Self::Steps(_, size) => Some(size),
                _ => None,
            });
            return;
        };
        match *self {
            Self::Grows(end) => into.push(Some(size.max(end))),
            Self::Sets(size) => into.push(Some(size)),
            Self::Steps(from, to) if from == size => into.push(Some(to)),
            Self::Adds(len) => into.push(Some(size + len)),
            Self::Takes(len) => into.push(Some(size.saturating_sub(len))),
            Self::Any => into.push(None),
            Self::Sees(least, most, _) if (least..=most).contains(&size) => into.push(Some(size)),
            // While it grows, the size that was seen was the size at that moment.
            Self::Sees(least, _, limit) if size < least && least <= limit => {
                into.push(Some(least));
            }
            Self::Sees(..) | Self::Steps(..) => {}
        }
    }

    fn is_read(&self) -> bool {
        matches!(self, Self::Sees(..))
    }
}

/// The effect of a call on an attribute, or its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttributeEffect {
    Sets(u64),
    Removes,
    Sees(Option<u64>),
}

impl Effect for AttributeEffect {
    type State = Option<u64>;

    fn after(&self, state: &Option<u64>, into: &mut Vec<Option<u64>>) {
        match *self {
            Self::Sets(value) => into.push(Some(value)),
            Self::Removes if state.is_some() => into.push(None),
            Self::Sees(seen) if seen == *state => into.push(seen),
            Self::Removes | Self::Sees(_) => {}
        }
    }

    fn is_read(&self) -> bool {
        matches!(self, Self::Sees(_))
    }
}

/// Judges sizes and attributes.
///
/// # Errors
/// The first call that no order explains.
pub(super) fn judge(context: &Context, events: &[Event]) -> Result<(), Box<Violation>> {
    let mut sizes: BTreeMap<FileId, Vec<Timed<SizeEffect>>> = BTreeMap::new();
    let mut attributes: BTreeMap<(FileId, u32), Vec<Timed<AttributeEffect>>> = BTreeMap::new();
    for (index, event) in events.iter().enumerate() {
        if let Some((file, effect)) = size_effect(event) {
            sizes
                .entry(file)
                .or_default()
                .push(timed(index, event, effect));
        }
        if let Some((key, effect)) = attribute_effect(event) {
            attributes
                .entry(key)
                .or_default()
                .push(timed(index, event, effect));
        }
    }
    for (file, mut calls) in sizes {
        if context.has_page_cache {
            let changes: Vec<_> = calls.iter().filter(|call| !call.effect.is_read()).collect();
            let changes: Vec<_> = changes.iter().map(|call| (call.begin, call.end)).collect();
            calls.retain(|call| {
                let mut overlapping = changes.iter();
                !call.effect.is_read()
                    || !overlapping.any(|(begin, end)| *begin < call.end && call.begin < *end)
            });
        }
        let growing: Vec<_> = calls.iter().filter_map(growth).collect();
        for call in &mut calls {
            if let SizeEffect::Sees(_, _, limit) = &mut call.effect {
                let overlapping = growing.iter();
                let overlapping =
                    overlapping.filter(|(begin, end, _)| *begin < call.end && call.begin < *end);
                *limit = overlapping.map(|(_, _, to)| *to).max().unwrap_or(0);
            }
        }
        check(events, &calls, Some(0), &format!("the size of {file:?}"))?;
    }
    for (key, calls) in &attributes {
        check(
            events,
            calls,
            None,
            &format!("attribute {} of {:?}", key.1, key.0),
        )?;
    }
    Ok(())
}

fn timed<E>(index: usize, event: &Event, effect: E) -> Timed<E> {
    Timed {
        begin: event.begin,
        end: event.end,
        effect,
        event: index,
    }
}

fn growth(call: &Timed<SizeEffect>) -> Option<(u64, u64, u64)> {
    match call.effect {
        SizeEffect::Grows(to) | SizeEffect::Steps(_, to) => Some((call.begin, call.end, to)),
        _ => None,
    }
}

fn check<E: Effect + std::fmt::Debug>(
    events: &[Event],
    calls: &[Timed<E>],
    initial: E::State,
    what: &str,
) -> Result<(), Box<Violation>> {
    explain(initial, calls).map_err(|at| {
        let what = format!(
            "no order of calls explains {:?} of {what}",
            calls[at].effect
        );
        let about = calls.iter().map(|call| call.event).collect();
        Violation::among(events, calls[at].event, what, &about)
    })
}

fn size_effect(event: &Event) -> Option<(FileId, SizeEffect)> {
    use SizeEffect::{Adds, Any, Grows, Sees, Sets, Steps, Takes};
    let is_done = event.errno().is_none();
    let effect = match (event.call, &event.outcome) {
        (
            Call::Write {
                file, offset, len, ..
            },
            _,
        ) if is_done => (file, Grows(offset + len)),
        (Call::Append { file, len, .. }, &Outcome::Number(at)) => (file, Steps(at, at + len)),
        (Call::Truncate { file, size }, _) if is_done => (file, Sets(size)),
        (
            Call::Change {
                file,
                what,
                offset,
                len,
            },
            _,
        ) if is_done => match what {
            Range::Allocate | Range::Zero => (file, Grows(offset + len)),
            Range::Collapse => (file, Takes(len)),
            Range::Insert => (file, Adds(len)),
            Range::AllocateKeepSize | Range::Punch | Range::ZeroKeepSize => return None,
        },
        (Call::Copy { to, .. }, &Outcome::Number(len)) if len > 0 => (to.0, Grows(to.1 + len)),
        (Call::Copy { .. }, Outcome::Number(_)) => return None,
        (Call::Change { what, .. }, _) if what.moves() => return None,
        (Call::Write { file, .. } | Call::Append { file, .. }, _)
        | (Call::Truncate { file, .. } | Call::Change { file, .. }, _) => (file, Any),
        (Call::Copy { to, .. }, _) => (to.0, Any),
        (Call::Size(file), &Outcome::Number(size)) => (file, Sees(size, size, 0)),
        (Call::Read { file, offset, len }, &Outcome::Bytes(got, _)) => match got {
            0 => (file, Sees(0, offset, 0)),
            got if got < len => (file, Sees(offset + got, offset + got, 0)),
            got => (file, Sees(offset + got, u64::MAX, 0)),
        },
        _ => return None,
    };
    Some(effect)
}

fn attribute_effect(event: &Event) -> Option<((FileId, u32), AttributeEffect)> {
    use AttributeEffect::{Removes, Sees, Sets};
    Some(match (event.call, &event.outcome) {
        (Call::SetXattr(file, name, value), Outcome::Done) => {
            ((file, name), Sets(u64::from(value)))
        }
        (Call::RemoveXattr(file, name), Outcome::Done) => ((file, name), Removes),
        (Call::GetXattr(file, name), &Outcome::Number(value)) => ((file, name), Sees(Some(value))),
        (Call::GetXattr(file, name) | Call::RemoveXattr(file, name), Outcome::Failed(failure))
            if failure.errno == errno::NODATA =>
        {
            ((file, name), Sees(None))
        }
        _ => return None,
    })
}

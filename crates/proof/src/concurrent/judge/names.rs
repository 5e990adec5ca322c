//! **Purpose.** Judges names: the calls that changed a name of a directory, and the results of
//! lookups, path resolution and listings.
//!
//! **Model.** A name in the directory with an inode number is a register: it is missing, or refers
//! to an inode number. A call on two names counts as one on each of them; whether it was atomic is
//! not checked. A removed directory is empty, and so is a new one that reuses its number, so the
//! registers of a number outlive the directory: a call on a removed directory sees that the name is
//! missing. A listing is not atomic: for each name it returns the state at some moment between its
//! begin and its end. So a name that existed all the time is listed once, and one that never
//! existed is not.

use std::collections::{BTreeMap, BTreeSet};

use super::super::call::{Call, Event, Listed, Name, Outcome, Place, Time};
use super::context::{Context, errno};
use super::linear::{Effect, Timed, explain};
use super::violation::Violation;

/// The state of a name. `There(None)` is an inode whose number is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Missing,
    There(Option<u64>),
}

/// The effect of a call on a name, or its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameEffect {
    /// It was missing, and refers to this number now.
    Adds(Option<u64>),
    /// It existed, and is missing now.
    Removes,
    /// It existed, and may be missing now.
    MayRemove,
    /// It refers to this number now, in whatever state it was.
    Sets(Option<u64>),
    /// It existed, and refers to another inode now.
    Redirects,
    /// It existed, with this number if that is known.
    Sees(Option<u64>),
    SeesMissing,
}

impl Effect for NameEffect {
    type State = State;

    fn after(&self, state: &State, into: &mut Vec<State>) {
        use State::{Missing, There};
        match (*self, *state) {
            (Self::Adds(number), Missing) | (Self::Sets(number), _) => into.push(There(number)),
            (Self::Removes, There(_)) | (Self::SeesMissing, Missing) => into.push(Missing),
            (Self::MayRemove, There(number)) => into.extend([Missing, There(number)]),
            (Self::Redirects, There(_)) => into.push(There(None)),
            (Self::Sees(seen), There(number)) => match (seen, number) {
                (Some(seen), Some(number)) if seen != number => {}
                (seen, number) => into.push(There(seen.or(number))),
            },
            _ => {}
        }
    }

    fn is_read(&self) -> bool {
        matches!(self, Self::Sees(_) | Self::SeesMissing)
    }
}

/// Judges all names of a round.
///
/// # Errors
/// The first call that no order explains.
pub(super) fn judge(context: &Context, events: &[Event]) -> Result<(), Box<Violation>> {
    judge_numbers(events)?;
    let mut registers: BTreeMap<Place, Vec<Timed<NameEffect>>> = BTreeMap::new();
    let mut universe: BTreeMap<u64, BTreeSet<Name>> = BTreeMap::new();
    for (index, event) in events.iter().enumerate() {
        for (place, effect) in effects(context, event) {
            universe.entry(place.dir).or_default().insert(place.name);
            registers.entry(place).or_default().push(Timed {
                begin: event.begin,
                end: event.end,
                effect,
                event: index,
            });
        }
    }
    for (index, event) in events.iter().enumerate() {
        let (Call::List(dir), Outcome::Entries(entries, listed)) = (event.call, &event.outcome)
        else {
            continue;
        };
        let known = universe.get(&dir);
        let seen = listing(dir, entries, *listed, known);
        for (place, effect) in seen.map_err(|what| Violation::new(events, index, what))? {
            registers.entry(place).or_default().push(Timed {
                begin: event.begin,
                end: event.end,
                effect,
                event: index,
            });
        }
    }
    for (place, calls) in &registers {
        if let Err(at) = explain(State::Missing, calls) {
            let what = format!(
                "no order of calls explains {:?} of {place:?}{}",
                calls[at].effect,
                around(calls, at)
            );
            let about = calls.iter().map(|call| call.event).collect();
            return Err(Violation::among(events, calls[at].event, what, &about));
        }
    }
    Ok(())
}

/// The effects of calls around the one at `at` on the same name, a line each.
fn around(calls: &[Timed<NameEffect>], at: usize) -> String {
    const SHOWN: usize = 12;
    let begin = calls[at].begin;
    let mut nearest: Vec<_> = calls.iter().collect();
    nearest.sort_by_key(|call| call.begin.abs_diff(begin));
    nearest.truncate(2 * SHOWN);
    nearest.sort_by_key(|call| call.begin);
    let line = |call: &&Timed<NameEffect>| {
        let Timed {
            begin, end, effect, ..
        } = call;
        format!("\n  its name [{begin}..{end}] {effect:?}")
    };
    nearest.iter().map(line).collect()
}

/// The inode of a name exists as long as the name does: judges calls that use an inode number after
/// the lookup that returned it.
fn judge_numbers(events: &[Event]) -> Result<(), Box<Violation>> {
    let mut losses: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
    for (index, event) in events
        .iter()
        .enumerate()
        .filter(|(_, event)| event.errno().is_none())
    {
        let places = match event.call {
            Call::Unlink(at) | Call::Rmdir(at) => vec![at],
            Call::Rename { from, to, .. } => vec![from, to],
            Call::Exchange(one, other) => vec![one, other],
            _ => continue,
        };
        for at in places {
            losses.entry(at).or_default().push(index);
        }
    }
    let mut found: BTreeMap<usize, (Time, Place, u64)> = BTreeMap::new();
    for (index, event) in events.iter().enumerate() {
        match (event.call, &event.outcome) {
            (Call::Lookup(at), &Outcome::Number(number)) => {
                found.insert(event.thread, (event.begin, at, number));
            }
            (Call::StatNumber(number), Outcome::Failed(_)) => {
                let Some(&(since, at, found)) = found.get(&event.thread) else {
                    continue;
                };
                let lost = losses
                    .get(&at)
                    .into_iter()
                    .flatten()
                    .map(|&loss| &events[loss]);
                let mut lost = lost.filter(|loss| loss.end > since && loss.begin < event.end);
                if found == number && lost.next().is_none() {
                    let what = format!("{at:?} refers to {number} all the time");
                    return Err(Violation::new(events, index, what));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The effects of a call on names.
fn effects(context: &Context, event: &Event) -> Vec<(Place, NameEffect)> {
    use NameEffect::{Adds, MayRemove, Redirects, Removes, Sees, SeesMissing, Sets};
    let number = match event.outcome {
        Outcome::Number(number) => Some(number),
        _ => None,
    };
    match (event.call, event.errno()) {
        (Call::Make(..) | Call::Link(..), Some(errno::NOENT | errno::NOTDIR)) => Vec::new(),
        (Call::Make(_, at) | Call::Link(_, at), Some(errno::EXIST)) => vec![(at, Sees(None))],
        (Call::Make(_, at), None) => vec![(at, Adds(number))],
        (Call::Link(nr, at), None) => vec![(at, Adds(Some(nr)))],
        (Call::Unlink(at) | Call::Rmdir(at), None) => vec![(at, Removes)],
        (Call::Unlink(at) | Call::Rmdir(at), Some(errno::NOENT)) => vec![(at, SeesMissing)],
        (Call::Unlink(at), Some(errno::ISDIR)) | (Call::Rmdir(at), Some(errno::NOTEMPTY)) => {
            vec![(at, Sees(None))]
        }
        (Call::Lookup(at) | Call::Resolve(at), None) => vec![(at, Sees(number))],
        (Call::Lookup(at) | Call::Resolve(at), Some(errno::NOENT)) => vec![(at, SeesMissing)],
        (Call::Rename { from, to, .. }, None) => {
            // A rename between two names of one inode does nothing.
            let gone = if context.has_links {
                MayRemove
            } else {
                Removes
            };
            vec![(from, gone), (to, Sets(None))]
        }
        (Call::Rename { from, to, .. }, Some(errno::NOENT)) if context.is_permanent(to.dir) => {
            vec![(from, SeesMissing)]
        }
        (Call::Rename { to, .. }, Some(errno::EXIST | errno::NOTEMPTY)) => vec![(to, Sees(None))],
        (Call::Exchange(one, other), None) => vec![(one, Redirects), (other, Redirects)],
        _ => Vec::new(),
    }
}

/// The effects of a listing on all names that may have existed.
fn listing(
    dir: u64,
    entries: &[(Name, u64)],
    listed: Listed,
    known: Option<&BTreeSet<Name>>,
) -> Result<Vec<(Place, NameEffect)>, String> {
    let mut seen: BTreeMap<Name, Vec<u64>> = BTreeMap::new();
    for &(name, number) in entries {
        seen.entry(name).or_default().push(number);
    }
    if listed == Listed::Whole {
        match seen.get(&Name::DOT).map(Vec::as_slice) {
            Some(&[number]) if number == dir => {}
            other => return Err(format!("'.' of {dir} is listed as {other:?}")),
        }
        match seen.get(&Name::DOT_DOT).map(Vec::as_slice) {
            Some(&[_]) => {}
            other => return Err(format!("'..' of {dir} is listed as {other:?}")),
        }
    }
    let mut effects = Vec::new();
    for (&name, numbers) in &seen {
        if name == Name::DOT || name == Name::DOT_DOT {
            continue;
        }
        let at = Place { dir, name };
        effects.extend(numbers.iter().map(|&nr| (at, NameEffect::Sees(Some(nr)))));
        if numbers.len() > 1 {
            // A name that is listed twice was missing in between.
            effects.push((at, NameEffect::SeesMissing));
        }
    }
    if listed == Listed::Whole {
        let missed = known.into_iter().flatten();
        let missed = missed.filter(|name| !seen.contains_key(*name));
        effects.extend(missed.map(|&name| (Place { dir, name }, NameEffect::SeesMissing)));
    }
    Ok(effects)
}

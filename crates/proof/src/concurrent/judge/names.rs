//! **Purpose.** Judging names: what calls did to a name of a directory, and what lookups, paths and
//! listings saw of it.
//!
//! **Model.** A name in the directory with a number is a register: it is missing, or leads to an
//! inode number. A call about two names is one about each of them; that it is atomic is not asked.
//! A directory that is removed is empty, and so is one that is made of its number later, so the
//! registers of a number outlive the directory: a call about a directory that is gone sees that the
//! name is missing. A listing is no moment, but of each name it lists what was there at some moment
//! between its begin and its end; so a name that was there all the time is listed once, and one
//! that never was is not.

use std::collections::{BTreeMap, BTreeSet};

use super::super::call::{Call, Event, Listed, Name, Outcome, Place, Time};
use super::linear::{Effect, Timed, explain};
use super::{Context, Wrong, errno};

/// The state of a name: `None` inside is an inode whose number is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Missing,
    There(Option<u64>),
}

/// What a call did to a name, or saw of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameEffect {
    /// It was missing, and leads to this number now.
    Adds(Option<u64>),
    /// It was there, and is missing now.
    Removes,
    /// It was there, and may be missing now.
    MayRemove,
    /// Whatever was before, it leads to this number now.
    Sets(Option<u64>),
    /// It was there, and leads to something else now.
    Redirects,
    /// It was there, with this number if that is known.
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

    fn is_look(&self) -> bool {
        matches!(self, Self::Sees(_) | Self::SeesMissing)
    }
}

/// Judges all names of a round.
///
/// # Errors
/// The first call that nothing explains.
pub(super) fn judge(context: &Context, events: &[Event]) -> Result<(), Box<Wrong>> {
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
        for (place, effect) in seen.map_err(|what| Wrong::new(events, index, what))? {
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
            return Err(Wrong::among(events, calls[at].event, what, &about));
        }
    }
    Ok(())
}

/// What calls before and behind the one at `at` did to a name or saw of it, a line each.
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

/// What a name leads to is there as long as the name is: judges calls about a number that follow on
/// the lookup that told it.
fn judge_numbers(events: &[Event]) -> Result<(), Box<Wrong>> {
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
                let Some(&(since, at, told)) = found.get(&event.thread) else {
                    continue;
                };
                let lost = losses
                    .get(&at)
                    .into_iter()
                    .flatten()
                    .map(|&loss| &events[loss]);
                let mut lost = lost.filter(|loss| loss.end > since && loss.begin < event.end);
                if told == number && lost.next().is_none() {
                    let what = format!("{at:?} leads to {number} all the time");
                    return Err(Wrong::new(events, index, what));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// What a call did to names, or saw of them.
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
            // With two names of one inode nothing is done.
            let gone = if context.has_links {
                MayRemove
            } else {
                Removes
            };
            vec![(from, gone), (to, Sets(None))]
        }
        (Call::Rename { from, to, .. }, Some(errno::NOENT)) if context.lasts(to.dir) => {
            vec![(from, SeesMissing)]
        }
        (Call::Rename { to, .. }, Some(errno::EXIST | errno::NOTEMPTY)) => vec![(to, Sees(None))],
        (Call::Exchange(one, other), None) => vec![(one, Redirects), (other, Redirects)],
        _ => Vec::new(),
    }
}

/// What a listing saw of the names that there may have been.
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
            // Who is listed twice was gone in between.
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

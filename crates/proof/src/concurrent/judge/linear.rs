//! **Purpose.** Whether what several threads did to one object, and saw of it, can have happened
//! one after the other.
//!
//! **Model.** The object has a state. Each call began and ended at some time, and took effect at
//! one moment in between. The calls are gone through in the order of their begins and ends; when
//! one ends, all orders are tried in which it and others that are under way may have taken effect.
//! What is kept are all states that are possible so far, each with the calls under way that have
//! taken effect in it. A call that only looks is explained by the first state that it can have
//! seen: whatever follows can follow then, too. So only calls that change something are tried in
//! several places.
//!
//! **Invariants.** The search is bounded: where more than [`MOST_POSSIBLE`] states are possible, or
//! more than 64 calls are under way, the calls count as explained. So it refuses only what no order
//! explains.
//!
//! **References.** Wing, Gong: "Testing and Verifying Concurrent Objects" (1993); Lowe: "Testing
//! for linearizability" (2017), just-in-time linearization.

use std::collections::BTreeSet;

use super::super::call::Time;

/// More states are not kept.
const MOST_POSSIBLE: usize = 4_000;

/// What a call does to a state.
pub(super) trait Effect {
    /// The state of the object.
    type State: Ord + Clone;

    /// Appends the states that may follow on one; none if it cannot take effect there.
    fn after(&self, state: &Self::State, into: &mut Vec<Self::State>);

    /// Whether the call only looks, so that nothing follows from it for the object.
    fn is_look(&self) -> bool;
}

/// An effect with the begin and the end of its call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed<E> {
    pub(super) begin: Time,
    pub(super) end: Time,
    pub(super) effect: E,
    /// The call, for who tells about it.
    pub(super) event: usize,
}

/// A state, and a bit for each call under way that has taken effect.
type Possible<S> = (S, u64);

/// Looks for an order that explains all calls.
///
/// # Errors
/// The index of the first call in the order of ends that no order explains.
pub(super) fn explain<E: Effect>(initial: E::State, calls: &[Timed<E>]) -> Result<(), usize> {
    let mut times: Vec<(Time, bool, usize)> = Vec::with_capacity(2 * calls.len());
    for (index, call) in calls.iter().enumerate() {
        times.extend([(call.begin, false, index), (call.end, true, index)]);
    }
    times.sort_unstable();
    let mut slots: [Option<usize>; 64] = [None; 64];
    let mut possible = BTreeSet::from([(initial, 0_u64)]);
    for (_, is_end, index) in times {
        if !is_end {
            let Some(free) = slots.iter().position(Option::is_none) else {
                return Ok(());
            };
            slots[free] = Some(index);
            continue;
        }
        let Some(slot) = slots.iter().position(|held| *held == Some(index)) else {
            continue;
        };
        let Some(reached) = with_effect(calls, &slots, &possible, slot) else {
            return Ok(());
        };
        possible = reached;
        slots[slot] = None;
        if possible.is_empty() {
            return Err(index);
        }
    }
    Ok(())
}

/// The states in which the call in slot `ends` has taken effect, reached by letting calls that are
/// under way take theirs first; `None` if there are too many.
fn with_effect<E: Effect>(
    calls: &[Timed<E>],
    slots: &[Option<usize>; 64],
    possible: &BTreeSet<Possible<E::State>>,
    ends: usize,
) -> Option<BTreeSet<Possible<E::State>>> {
    let bit = 1_u64 << ends;
    let under_way: Vec<(u64, &E)> = slots
        .iter()
        .enumerate()
        .filter_map(|(slot, held)| Some((1 << slot, &calls[(*held)?].effect)))
        .collect();
    let mut reached = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut pending: Vec<Possible<E::State>> = possible.iter().cloned().collect();
    let mut after = Vec::new();
    while let Some((state, mut done)) = pending.pop() {
        let mut changes = Vec::new();
        for &(slot, effect) in &under_way {
            if done & slot != 0 {
                continue;
            }
            effect.after(&state, &mut after);
            if effect.is_look() && after.len() == 1 && after[0] == state {
                done |= slot;
            } else {
                changes.extend(after.iter().cloned().map(|state| (state, slot)));
            }
            after.clear();
        }
        if !seen.insert((state.clone(), done)) {
            continue;
        }
        if seen.len() > MOST_POSSIBLE {
            return None;
        }
        if done & bit != 0 {
            reached.insert((state, done & !bit));
            continue;
        }
        pending.extend(
            changes
                .into_iter()
                .map(|(state, slot)| (state, done | slot)),
        );
    }
    Some(reached)
}

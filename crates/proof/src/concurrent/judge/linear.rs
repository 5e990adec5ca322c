//! **Purpose.** Decides whether the calls of several threads on one object are linearizable.
//!
//! **Model.** The object has a state. Each call began and ended at some time, and took effect at
//! one moment in between. The begins and ends of all calls are processed in order. When a call
//! ends, all orders are tried in which it and others that are in progress may have taken effect.
//! The search keeps all states that are possible so far, each with the calls in progress that have
//! taken effect in it. A read is explained by the first state that it can have seen, since
//! everything that can follow without it can follow with it; only calls that change the object are
//! tried at several moments.
//!
//! **Invariants.** The search is bounded: if more than [`MOST_POSSIBLE`] states are possible, or
//! more than 64 calls are in progress, the calls count as explained. So it rejects only calls that
//! no order explains.
//!
//! **References.** Wing, Gong: "Testing and Verifying Concurrent Objects" (1993); Lowe: "Testing
//! for linearizability" (2017), just-in-time linearization.

use std::collections::BTreeSet;

use super::super::call::Time;

/// The most states that are kept.
const MOST_POSSIBLE: usize = 4_000;

/// The effect of a call on a state.
pub(super) trait Effect {
    /// The state of the object.
    type State: Ord + Clone;

    /// Appends the states that may follow `state`; none if it cannot take effect there.
    fn after(&self, state: &Self::State, into: &mut Vec<Self::State>);

    /// Whether the call only reads the object.
    fn is_read(&self) -> bool;
}

/// An effect with the begin and the end of its call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed<E> {
    pub(super) begin: Time,
    pub(super) end: Time,
    pub(super) effect: E,
    /// The index of the call, for a report.
    pub(super) event: usize,
}

/// A state, and a bit for each call in progress that has taken effect.
type Possible<S> = (S, u64);

/// Searches for an order that explains all calls.
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

/// The states in which the call in slot `ends` has taken effect, perhaps after others that are in
/// progress; `None` if there are too many.
fn with_effect<E: Effect>(
    calls: &[Timed<E>],
    slots: &[Option<usize>; 64],
    possible: &BTreeSet<Possible<E::State>>,
    ends: usize,
) -> Option<BTreeSet<Possible<E::State>>> {
    let bit = 1_u64 << ends;
    let in_progress: Vec<(u64, &E)> = slots
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
        for &(slot, effect) in &in_progress {
            if done & slot != 0 {
                continue;
            }
            effect.after(&state, &mut after);
            if effect.is_read() && after.len() == 1 && after[0] == state {
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

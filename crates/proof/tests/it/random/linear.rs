//! Checks whether the results that several threads got for one name can have happened one after the
//! other.
//!
//! **Model.** A name exists or not. Each call began and ended at some time; it took effect at one
//! moment in between. The calls are processed in the order of their ends: of all calls in progress,
//! any may have taken effect before. The checker keeps all states that are possible so far.
//!
//! **References.** Lowe: "Testing for linearizability" (2017), just-in-time linearization.

use std::collections::BTreeSet;

/// What a call did to a name, or found out about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The name did not exist and does now.
    Adds,
    /// The name existed and does not any more.
    Removes,
    /// The name existed, and may be removed now.
    MayRemove,
    /// The name exists now, whether it did before or not.
    Sets,
    /// The name existed, or not.
    Sees(Presence),
}

/// Whether a name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Presence {
    There,
    Missing,
}

/// A call, with the times of its beginning and end; no two times are equal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) effect: Effect,
}

impl Effect {
    /// Returns the states that may follow a state.
    fn after(self, before: Presence) -> &'static [Presence] {
        use Presence::{Missing, There};
        match (self, before) {
            (Self::Adds, Missing) | (Self::Sets, _) => &[There],
            (Self::Removes, There) => &[Missing],
            (Self::MayRemove, There) => &[There, Missing],
            (Self::Sees(seen), _) if seen == before => match before {
                There => &[There],
                Missing => &[Missing],
            },
            _ => &[],
        }
    }
}

/// A possible state, and which of the calls in progress have taken effect in it.
type Possible = (Presence, BTreeSet<usize>);

/// Whether some order of the calls explains their results for a name that did not exist at first.
pub(crate) fn is_explained(events: &[Event]) -> bool {
    let mut times: Vec<(u64, usize)> = Vec::with_capacity(2 * events.len());
    for (index, event) in events.iter().enumerate() {
        times.extend([(event.begin, index), (event.end, index)]);
    }
    times.sort_unstable();
    let mut under_way = BTreeSet::new();
    let mut possible = BTreeSet::from([(Presence::Missing, BTreeSet::new())]);
    for (_, index) in times {
        if under_way.insert(index) {
            continue;
        }
        possible = with_effect(events, &under_way, possible, index);
        under_way.remove(&index);
        if possible.is_empty() {
            return false;
        }
    }
    true
}

/// Returns the states in which the call `ends` has taken effect. They are reached from `possible`
/// by letting other calls in progress take effect first.
fn with_effect(
    events: &[Event],
    under_way: &BTreeSet<usize>,
    possible: BTreeSet<Possible>,
    ends: usize,
) -> BTreeSet<Possible> {
    let mut reached = BTreeSet::new();
    let mut seen = possible.clone();
    let mut pending: Vec<Possible> = possible.into_iter().collect();
    while let Some((state, mut done)) = pending.pop() {
        if done.remove(&ends) {
            reached.insert((state, done));
            continue;
        }
        for &next in under_way.difference(&done) {
            for &after in events[next].effect.after(state) {
                let mut done = done.clone();
                done.insert(next);
                let new = (after, done);
                if seen.insert(new.clone()) {
                    pending.push(new);
                }
            }
        }
    }
    reached
}

#[test]
fn only_what_some_order_explains_is_explained() {
    use Effect::{Adds, MayRemove, Removes, Sees, Sets};
    use Presence::{Missing, There};
    let explained = |calls: &[(u64, u64, Effect)]| {
        let event = |&(begin, end, effect): &(u64, u64, Effect)| Event { begin, end, effect };
        is_explained(&calls.iter().map(event).collect::<Vec<_>>())
    };
    assert!(explained(&[
        (1, 2, Adds),
        (3, 4, Sees(There)),
        (5, 6, Removes)
    ]));
    assert!(!explained(&[(1, 2, Adds), (3, 4, Adds)]));
    assert!(!explained(&[(1, 2, Adds), (3, 4, Sees(Missing))]));
    assert!(explained(&[(1, 4, Adds), (2, 3, Sees(Missing))]));
    assert!(explained(&[(1, 4, Adds), (2, 3, Sees(There))]));
    // Two calls succeed at the same time only with a removal in between.
    assert!(!explained(&[(1, 3, Adds), (2, 4, Adds)]));
    assert!(explained(&[(1, 4, Adds), (2, 5, Adds), (3, 6, Removes)]));
    assert!(!explained(&[(1, 4, Adds), (2, 5, Adds), (6, 7, Removes)]));
    assert!(explained(&[
        (1, 2, Sets),
        (3, 4, Sets),
        (5, 6, MayRemove),
        (7, 8, Adds)
    ]));
    assert!(!explained(&[(1, 2, MayRemove)]));
    // A thread saw the name come and go in the wrong order.
    let seen = [(1, 10, Adds), (2, 3, Sees(There)), (4, 5, Sees(Missing))];
    assert!(!explained(&seen));
}

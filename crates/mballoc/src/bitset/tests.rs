//! Tests of the set: against a sorted set of the standard library, and with threads.

use std::collections::BTreeSet;

use fourscore_sync::thread;
use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn behaves_like_a_sorted_set(
        len in prop::sample::select(vec![1_u32, 63, 64, 65, 4096, 4097, 300_000]),
        steps in prop::collection::vec((any::<u32>(), 0..3_u8), 1..400),
    ) {
        let set = BitSet::new(len);
        let mut model = BTreeSet::new();
        for (i, what) in steps {
            // Clustered and spread numbers both.
            let i = if i % 2 == 0 { i % len } else { (i >> 20) % len };
            match what {
                0 => { set.insert(i); model.insert(i); }
                1 => {
                    set.remove(i);
                    model.remove(&i);
                    prop_assert_eq!(set.maybe_any(), !model.is_empty());
                }
                _ => prop_assert_eq!(set.next_at_or_after(i), model.range(i..).next().copied()),
            }
            prop_assert_eq!(set.contains(i), model.contains(&i));
        }
        prop_assert_eq!(set.count() as usize, model.len());
        set.assert_summaries();
    }
}

#[test]
fn the_next_of_eight_million_groups_is_found() {
    let set = BitSet::new(8_000_000);
    set.insert(7_999_999);
    assert_eq!(set.next_at_or_after(0), Some(7_999_999));
    assert_eq!(set.next_at_or_after(7_999_999), Some(7_999_999));
    assert_eq!(set.next_at_or_after(8_000_000), None);
    assert!(set.remove(7_999_999));
    assert_eq!(set.next_at_or_after(0), None);
}

#[test]
fn a_summary_bit_over_an_empty_word_is_skipped() {
    let set = BitSet::new(10_000);
    set.insert(5);
    set.insert(9_000);
    set.levels[0][0].store(0, SeqCst);
    assert_eq!(set.next_at_or_after(0), Some(9_000));
}

/// Each thread changes members of its own, which share leaf words with those of other threads. Only
/// the end state is compared, because a summary bit may be missing for a moment.
fn churn(threads: u32, rounds: u32, len: u32) {
    let set = BitSet::new(len);
    thread::scope(|scope| {
        for t in 0..threads {
            let set = &set;
            scope.spawn(move || {
                for round in 0..rounds {
                    let member =
                        (round.wrapping_mul(2_654_435_761) % (len / threads)) * threads + t;
                    set.insert(member);
                    if round % 7 != 0 {
                        set.remove(member);
                    }
                }
            });
        }
    });
    set.assert_summaries();
    let mut model = BTreeSet::new();
    for t in 0..threads {
        for round in 0..rounds {
            let member = (round.wrapping_mul(2_654_435_761) % (len / threads)) * threads + t;
            model.insert(member);
            if round % 7 != 0 {
                model.remove(&member);
            }
        }
    }
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(member) = set.next_at_or_after(from) {
        found.push(member);
        from = member + 1;
    }
    assert_eq!(found, model.into_iter().collect::<Vec<_>>());
}

#[test]
fn threads_in_the_same_words_hide_nothing() {
    churn(8, 20_000, 4096);
}

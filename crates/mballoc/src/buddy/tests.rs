//! Tests of the buddy: random allocations and frees against a vector of booleans.

use proptest::prelude::*;

use super::*;

/// The number of free chunks of each order, by the definition: aligned, all free, and not part of a
/// larger chunk.
fn chunk_counts(row: &[bool], orders: u32) -> Vec<u32> {
    let mut counts = vec![0; orders as usize];
    let mut covered = vec![false; row.len()];
    for order in (0..orders).rev() {
        let size = 1_usize << order;
        for chunk in (0..row.len() / size).map(|i| i * size..(i + 1) * size) {
            if row[chunk.clone()].iter().all(|&used| !used) && !covered[chunk.start] {
                covered[chunk].fill(true);
                counts[order as usize] += 1;
            }
        }
    }
    counts
}

fn fragments(row: &[bool]) -> u32 {
    let starts = (0..row.len())
        .filter(|&i| !row[i] && (i == 0 || row[i - 1]))
        .count();
    u32::try_from(starts).unwrap()
}

/// Where a step begins: anywhere, or at the start or end of the step before, so that deferred
/// changes grow, shrink and are undone.
#[derive(Clone, Copy, Debug)]
enum From {
    Anywhere(u32),
    SameStart,
    End,
}

fn from() -> impl Strategy<Value = From> {
    prop_oneof![
        any::<u32>().prop_map(From::Anywhere),
        Just(From::SameStart),
        Just(From::End),
    ]
}

/// The action after a step.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    Query,
    List,
}

fn then() -> impl Strategy<Value = Then> {
    prop_oneof![
        6 => Just(Then::Nothing),
        1 => Just(Then::Query),
        1 => Just(Then::List),
    ]
}

/// Calls all queries and compares the results with the row.
fn query(buddy: &mut Buddy, row: &[bool], orders: u32) -> Result<(), TestCaseError> {
    buddy.check().map_err(TestCaseError::fail)?;
    let counts = chunk_counts(row, orders);
    prop_assert_eq!(&buddy.counters().collect::<Vec<_>>(), &counts);
    for order in 0..orders {
        if let Some(at) = buddy.first_chunk(order) {
            prop_assert!(buddy.is_free(at, 1 << order));
            prop_assert_eq!(at % (1 << order), 0);
        } else {
            prop_assert!(counts[order as usize..].iter().all(|&n| n == 0));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn follows_the_definition_through_any_history(
        clusters in prop::sample::select(vec![1_u32, 7, 64, 300, 1024, 2000]),
        steps in prop::collection::vec((from(), 1..200_u32, then()), 1..120),
    ) {
        let orders = 8;
        let mut row = vec![false; clusters as usize];
        let mut listed = row.clone();
        let mut buddy = Buddy::new(clusters, orders, &vec![0; 256]);
        buddy.set_listed();
        let (mut start, mut end) = (0, 0);
        for (from, len, then) in steps {
            start = match from {
                From::Anywhere(at) => at,
                From::SameStart => start,
                From::End => end,
            } % clusters;
            let used = row[start as usize];
            let same = row[start as usize..].iter().take_while(|&&bit| bit == used).count();
            let len = len.min(u32::try_from(same).unwrap());
            end = start + len;
            if used { buddy.mark_free(start, len) } else { buddy.mark_used(start, len) }
            row[start as usize..end as usize].fill(!used);
            let free = row.iter().filter(|&&used| !used).count();
            prop_assert_eq!(buddy.free_clusters() as usize, free);
            prop_assert_eq!(buddy.fragments, fragments(&row));
            match buddy.drift() {
                Drift::Nothing => prop_assert_eq!(&row, &listed),
                Drift::Claimed => {
                    let less = row.iter().zip(&listed).all(|(now, before)| now >= before);
                    prop_assert!(less);
                }
                Drift::Gained => {}
            }
            match then {
                Then::Nothing => {}
                Then::Query => query(&mut buddy, &row, orders)?,
                Then::List => {
                    buddy.set_listed();
                    listed.clone_from(&row);
                    prop_assert_eq!(buddy.drift(), Drift::Nothing);
                }
            }
        }
        query(&mut buddy, &row, orders)?;
    }
}

#[test]
fn clusters_claimed_and_freed_again_do_not_change_the_levels() {
    let mut buddy = Buddy::new(20_000, 14, &[0; 4096]);
    buddy.mark_used(5000, 2);
    let fitness = buddy.fitness();
    buddy.set_listed();
    let nodes = buddy.nodes.clone();
    for start in (5002..6000).step_by(2) {
        buddy.mark_used(start, 2);
        assert_eq!(buddy.drift(), Drift::Claimed);
    }
    buddy.mark_free(5500, 500);
    assert_eq!(buddy.drift(), Drift::Claimed);
    buddy.mark_free(5002, 498);
    assert_eq!(buddy.drift(), Drift::Nothing);
    assert_eq!(nodes, buddy.nodes, "no change of the levels was applied");
    assert_eq!(fitness, buddy.fitness());
    buddy.mark_free(5000, 2);
    assert_eq!(buddy.drift(), Drift::Gained);
    buddy.set_listed();
    // Together longer than a deferred change may be.
    buddy.mark_used(0, 1500);
    buddy.mark_used(1500, 1500);
    buddy.mark_free(0, 3000);
    assert_eq!(buddy.drift(), Drift::Gained);
    buddy.check().unwrap();
}

#[test]
fn bits_past_the_end_are_used_whatever_the_bitmap_block_has() {
    let mut buddy = Buddy::new(100, 14, &[0; 4096]);
    assert_eq!(buddy.free_clusters(), 100);
    assert_eq!(buddy.fitness().largest, 100);
    assert_eq!(buddy.largest_order(), Some(6));
    let short = Buddy::new(100, 14, &[0; 5]);
    assert_eq!(short.free_clusters(), 40);
}

#[test]
#[should_panic(expected = "not all free")]
fn a_second_claim_of_the_same_cluster_is_a_bug() {
    let mut buddy = Buddy::new(100, 14, &[0; 13]);
    buddy.mark_used(10, 5);
    buddy.mark_used(14, 1);
}

//! Tests of the buddy: random allocations and frees against a row of booleans.

use proptest::prelude::*;

use super::*;

/// The free chunks that the model of the row implies, by the definition: aligned, all free, and
/// with no larger such chunk around.
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

proptest! {
    #[test]
    fn follows_the_definition_through_any_history(
        clusters in prop::sample::select(vec![1_u32, 7, 64, 300, 1024, 2000]),
        steps in prop::collection::vec((any::<u32>(), 1..200_u32), 1..120),
    ) {
        let orders = 8;
        let mut row = vec![false; clusters as usize];
        let mut buddy = Buddy::new(clusters, orders, &vec![0; 256]);
        for (start, len) in steps {
            let start = start % clusters;
            let used = row[start as usize];
            let same = row[start as usize..].iter().take_while(|&&bit| bit == used).count();
            let len = len.min(u32::try_from(same).unwrap());
            if used { buddy.mark_free(start, len) } else { buddy.mark_used(start, len) }
            row[start as usize..(start + len) as usize].fill(!used);
            buddy.check().map_err(TestCaseError::fail)?;
            prop_assert_eq!(buddy.counters().collect::<Vec<_>>(), chunk_counts(&row, orders));
            prop_assert_eq!(buddy.fragments, fragments(&row));
            for order in 0..orders {
                if let Some(at) = buddy.first_chunk(order) {
                    prop_assert!(buddy.is_free(at, 1 << order));
                    prop_assert_eq!(at % (1 << order), 0);
                } else {
                    let counts = chunk_counts(&row, orders);
                    prop_assert!(counts[order as usize..].iter().all(|&n| n == 0));
                }
            }
        }
    }
}

#[test]
fn bits_past_the_end_are_used_whatever_the_block_says() {
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

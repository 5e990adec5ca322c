//! What allocating and freeing move between cores, counted at 2, 80 and 192 virtual cores
//! (`cargo test --release -p fourscore-lab --features count --test alloc_count -- --nocapture`).
#![cfg(feature = "count")]

use fourscore_lab::ThreadCount;
use fourscore_lab::alloc::transfers::count_transfers;
use fourscore_lab::alloc::{AllocBench, NamedWorkload, Scenario};

#[test]
fn allocating_moves_next_to_nothing_between_cores_however_many() {
    let bench = AllocBench::on(Scenario::by_name("15t").expect("the scenario exists"));
    // What is left is what groups write while they learn for how long to stay in their bins.
    const MOST: f64 = 0.005;
    for (name, rounds) in [("fallocate2", 512), ("fallocate3", 20)] {
        let named = NamedWorkload::by_name(name).expect("the workload exists");
        for cores in [2, 80, 192] {
            let threads = ThreadCount::new(cores);
            let report = count_transfers(&bench, named.workload, threads, rounds).expect("a run");
            println!("{name}\n{report}");
            assert!(
                report.transfers_per_op() <= MOST,
                "{name}, {cores} cores:\n{report}"
            );
        }
    }
}

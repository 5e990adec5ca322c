//! Cache line transfers between 2, 80 and 192 virtual cores that allocating and freeing cause (
//! `cargo test --release -p fourscore-lab --features count --test alloc_count -- --nocapture`).

use fourscore_lab::ThreadCount;
use fourscore_lab::alloc::transfers::count_transfers;
use fourscore_lab::alloc::{AllocBench, NamedWorkload, Scenario};

#[test]
fn allocating_causes_next_to_no_transfers_at_any_number_of_cores() {
    let bench = AllocBench::on(Scenario::by_name("15t").expect("the scenario exists"));
    // The rest is what groups write while they adapt how long they stay in their bins.
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

//! Cache line transfers between 2, 80 and 192 virtual cores that allocating and freeing cause (
//! `cargo test --release -p fourscore-lab --features count --test count_alloc -- --nocapture`).

use std::process::Command;

use fourscore_lab::ThreadCount;
use fourscore_lab::alloc::transfers::count_transfers;
use fourscore_lab::alloc::{AllocBench, NamedWorkload, Scenario};
use serde_json::Value;

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

#[test]
fn the_program_reports_transfers_and_shared_writes_by_location() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_transfers"));
    let output = program
        .args(["16g-aged-64k", "pair", "50", "2", "8"])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let runs: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let of_run = |name: &str| runs.iter().map(|run| run[name].clone()).collect::<Vec<_>>();
    assert_eq!(of_run("cores"), [2, 8], "{text}");
    assert_eq!(of_run("operations"), [100, 400], "{text}");
    let writes = runs[1]["shared_writes_per_operation"].as_f64();
    assert!(
        writes > Some(0.0),
        "an allocation writes at least its group: {text}"
    );
    assert!(text.contains("crates/mballoc/src/"), "{text}");
}

#[test]
fn the_program_names_what_it_does_not_know() {
    let program = || Command::new(env!("CARGO_BIN_EXE_transfers"));
    for (arguments, named) in [
        (["nowhere", "pair", "1", "2"], "nowhere is no scenario"),
        (["15t", "nothing", "1", "2"], "nothing is no workload"),
        (["15t", "pair", "some", "2"], "some is no number"),
        (["15t", "pair", "1", "0"], "not in the range 1 to"),
    ] {
        let output = program().args(arguments).output().expect("it runs");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && message.contains(named),
            "{message}"
        );
    }
}

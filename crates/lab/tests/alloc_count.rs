//! What allocating and freeing move between cores, counted at 2, 80 and 192 virtual cores
//! (`cargo test --release -p fourscore-lab --features count --test alloc_count -- --nocapture`).
#![cfg(feature = "count")]

use fourscore_lab::alloc::{AllocBench, Fallocate3, Scenario};
use fourscore_lab::target::{Target, Worker, WorkerNr};
use fourscore_lab::workload::{Fallocate2, Workload};
use fourscore_sync::count::{Report, with_cores};

/// Runs `rounds` steps on every core after as many to warm up.
fn count(scenario: &str, workload: &dyn Workload, cores: usize, rounds: u64) -> Report {
    with_cores(cores, |machine| {
        let scenario = Scenario::by_name(scenario).expect("the scenario exists");
        let target = AllocBench::on(scenario)
            .target()
            .expect("the scenario can be set up");
        let mut workers: Vec<Box<dyn Worker + '_>> = (0..cores)
            .map(|nr| target.worker(WorkerNr(nr)).expect("a worker"))
            .collect();
        workers
            .iter_mut()
            .for_each(|worker| workload.prepare(&mut **worker).expect("prepared"));
        let mut steps = 0;
        let mut run = |rounds: u64| {
            let start = steps;
            steps += rounds;
            let rounds = usize::try_from(rounds).expect("few rounds");
            machine.run(rounds, |core, round| {
                let step = start + round as u64;
                workload
                    .step(&mut *workers[core.index()], step)
                    .expect("a step");
            })
        };
        run(rounds);
        run(rounds)
    })
}

#[test]
fn allocating_moves_next_to_nothing_between_cores_however_many() {
    for (name, workload, rounds) in [
        ("fallocate2", &Fallocate2 as &dyn Workload, 512),
        ("fallocate3", &Fallocate3, 20),
    ] {
        let reports = [2, 80, 192].map(|cores| (cores, count("15t", workload, cores, rounds)));
        for (cores, report) in &reports {
            println!(
                "{name}, {cores} cores: {:.3} transfers per step",
                report.transfers_per_op()
            );
            println!("{}", report);
        }
        if name == "fallocate2" {
            reports.iter().for_each(|(cores, report)| {
                assert!(
                    report.transfers_per_op() <= 0.1,
                    "{cores} cores:\n{}",
                    report
                );
            });
        }
    }
}

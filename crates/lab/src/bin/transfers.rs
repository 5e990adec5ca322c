//! **Purpose.** Counts the cache lines that a workload on the allocator moves between virtual
//! cores, and prints one JSON object for each number of cores (`cargo xtask bench alloc` records
//! them): `transfers SCENARIO WORKLOAD ROUNDS CORES..`. A core makes ROUNDS steps before they are
//! counted, and as many that are.

use std::error::Error;
use std::fmt::Display;

use fourscore_lab::ThreadCount;
use fourscore_lab::alloc::transfers::count_transfers;
use fourscore_lab::alloc::{AllocBench, NamedWorkload, Scenario};
use fourscore_sync::count::MAX_CORES;
use serde_json::json;

const USAGE: &str = "transfers SCENARIO WORKLOAD ROUNDS CORES..";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [scenario, workload, rounds, cores @ ..] = &arguments[..] else {
        return Err(USAGE.into());
    };
    let scenario = Scenario::by_name(scenario).ok_or_else(|| unknown("scenario", scenario))?;
    let workload = NamedWorkload::by_name(workload).ok_or_else(|| unknown("workload", workload))?;
    let rounds = rounds.parse().map_err(|_| unknown("number", rounds))?;
    let bench = AllocBench::on(scenario);
    for cores in cores {
        let number = cores.parse().map_err(|_| unknown("number", cores))?;
        if !(1..=MAX_CORES).contains(&number) {
            return Err(format!("{number} cores are not in the range 1 to {MAX_CORES}").into());
        }
        let threads = ThreadCount::new(number);
        let report = count_transfers(&bench, workload.workload, threads, rounds)?;
        let all = report.per_operation();
        let rows: Vec<_> = report
            .rows()
            .iter()
            .map(|row| {
                json!({ "location": row.name, "transfers": row.transfers, "writes": row.writes })
            })
            .collect();
        let run = json!({
            "cores": number,
            "operations": report.operations(),
            "transfers_per_operation": all.transfers,
            "shared_writes_per_operation": all.writes,
            "locations": rows,
        });
        println!("{run}");
    }
    Ok(())
}

fn unknown(what: &str, name: impl Display) -> Box<dyn Error> {
    format!("{name} is no {what} ({USAGE})").into()
}

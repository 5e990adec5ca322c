//! **Purpose.** Runs one workload of the bare allocator from the command line:
//! `cargo run --release -p fourscore-lab --example alloc -- fallocate2 133g-75 1,2,64 20000
//! mb_optimize_scan=0 absent`.

use std::io;

use fourscore_lab::alloc::bench::Bitmaps;
use fourscore_lab::alloc::target::Changes;
use fourscore_lab::alloc::{AllocBench, AllocFree, Fallocate3, MixedAppend, Scenario, SmallFiles};
use fourscore_lab::workload::{Fallocate2, Workload};
use fourscore_lab::{MonotonicClock, ThreadCount};

fn bad(what: &str) -> io::Error {
    let names: Vec<_> = Scenario::ALL.iter().map(|scenario| scenario.name).collect();
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "{what}; usage: pair|fallocate2|fallocate3|files|append SCENARIO THREADS,.. STEPS \
             [absent] [applied] [NAME=VALUE..]; scenarios: {}",
            names.join(" ")
        ),
    )
}

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, scenario, threads, steps, options @ ..] = &args[..] else {
        return Err(bad("too few arguments"));
    };
    let workload: &dyn Workload = match name.as_str() {
        "fallocate2" => &Fallocate2,
        "pair" => &AllocFree { bytes: 8192 },
        "fallocate3" => &Fallocate3,
        "files" => &SmallFiles { file_bytes: 65_536 },
        "append" => &MixedAppend {
            files: 16,
            most_bytes: 256 << 10,
        },
        _ => return Err(bad("unknown workload")),
    };
    let mut bench =
        AllocBench::on(Scenario::by_name(scenario).ok_or_else(|| bad("unknown scenario"))?);
    for option in options {
        match (option.as_str(), option.split_once('=')) {
            ("absent", _) => bench.bitmaps = Bitmaps::Absent,
            ("applied", _) => bench.changes = Changes::Applied,
            (_, Some((name, value))) => {
                let value = value.parse().map_err(|_| bad("a value is not a number"))?;
                bench.tunables.push((name.to_owned(), value));
            }
            _ => return Err(bad("unknown option")),
        }
    }
    let steps: u64 = steps.parse().map_err(|_| bad("STEPS is not a number"))?;
    for count in threads.split(',') {
        let count = count.parse().map_err(|_| bad("THREADS is not a number"))?;
        println!(
            "{}",
            bench.run(
                workload,
                ThreadCount::new(count),
                steps,
                &MonotonicClock::default()
            )?
        );
    }
    Ok(())
}

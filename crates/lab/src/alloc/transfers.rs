//! **Purpose.** Counts the cache line transfers between cores that a workload on the allocator
//! causes, on virtual cores.

use std::io;

use fourscore_sync::count::{Report, with_cores};

use crate::alloc::bench::AllocBench;
use crate::comparison::ThreadCount;
use crate::target::{Target, Worker, WorkerNr};
use crate::workload::Workload;

/// Runs `rounds` steps of warm-up and then `rounds` counted steps on each of `cores` virtual cores,
/// and reports the reads, writes and transfers of shared cache lines by source location.
///
/// # Errors
/// The file system cannot be set up, or the first failure of a worker.
pub fn count_transfers(
    bench: &AllocBench,
    workload: &dyn Workload,
    cores: ThreadCount,
    rounds: usize,
) -> io::Result<Report> {
    with_cores(cores.get(), |machine| {
        let target = bench.target()?;
        let mut workers: Vec<Box<dyn Worker + '_>> = (0..cores.get())
            .map(|nr| target.worker(WorkerNr(nr)))
            .collect::<io::Result<_>>()?;
        for worker in &mut workers {
            workload.prepare(&mut **worker)?;
        }
        let mut failed = None;
        let mut run = |first: usize| {
            machine.run(rounds, |core, round| {
                let step = (first + round) as u64;
                let done = workload.step(&mut *workers[core.index()], step);
                failed = failed.take().or(done.err());
            })
        };
        run(0);
        let report = run(rounds);
        failed.map_or(Ok(report), Err)
    })
}

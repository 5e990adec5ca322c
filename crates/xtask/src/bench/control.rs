//! **Purpose.** What writes cost without a file system: the control of the benchmarks whose image
//! is a file on tmpfs.
//!
//! **Model.** Each thread writes a range of a file again and again, as the workloads `write` and
//! `append` of `fourscore bench files` do to their files. On one side all ranges are in one file,
//! as the files of an image are; on the other each thread has a file. The kernel locks a file while
//! it is written, so a second thread that writes to the same image waits for the first.

use fourscore_sync::thread;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use fourscore_lab::comparison::{Rounds, ThreadCount};
use fourscore_lab::{Comparison, ComparisonReport, MonotonicClock, Side, Work};

use super::folder::Folder;

/// Writes of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writes {
    pub(super) title: &'static str,
    pub(super) step_bytes: u64,
    /// The length of the range that each thread writes again and again.
    pub(super) range_bytes: u64,
    pub(super) steps: u64,
}

/// Compares writes of one and two threads to one file with those to a file each.
pub(super) fn compare(folder: &Folder, writes: Writes, rounds: u32) -> Result<ComparisonReport> {
    let image = create(&folder.join("control"))?;
    let other = create(&folder.join("control2"))?;
    let run = |files: [&File; 2], threads: ThreadCount| {
        let began = Instant::now();
        let results: Vec<io::Result<()>> = thread::scope(|scope| {
            let started: Vec<_> = (0..threads.get())
                .map(|nr| scope.spawn(move || write(files[nr % 2], nr as u64, writes)))
                .collect();
            let joined = started.into_iter().map(thread::ScopedJoinHandle::join);
            let died = |_| Err(io::Error::other("a thread panicked"));
            joined.map(|result| result.unwrap_or_else(died)).collect()
        });
        results.into_iter().collect::<io::Result<()>>()?;
        let operations = writes.steps * threads.get() as u64;
        Ok(Work {
            operations,
            bytes: operations * writes.step_bytes,
            wall: Some(began.elapsed()),
        })
    };
    let report = Comparison::new(format!("control: {}", writes.title))
        .rounds(Rounds(rounds))
        .threads(&[1, 2].map(ThreadCount::new))
        .side(Side::closure("one file", |threads| {
            run([&image, &image], threads)
        }))
        .side(Side::closure("a file for each thread", |threads| {
            run([&image, &other], threads)
        }))
        .run(&MonotonicClock::default())?;
    Ok(report)
}

fn create(path: &Path) -> Result<File> {
    let open = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path);
    open.with_context(|| path.display().to_string())
}

fn write(file: &File, thread: u64, writes: Writes) -> io::Result<()> {
    let len = usize::try_from(writes.step_bytes).unwrap_or(usize::MAX);
    let bytes = vec![0x5a; len];
    (0..writes.steps).try_for_each(|step| {
        let within = step * writes.step_bytes % writes.range_bytes;
        file.write_all_at(&bytes, thread * writes.range_bytes + within)
    })
}

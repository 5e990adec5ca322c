//! Measures what the journal costs, for `cargo xtask bench journal`. Prints one figure per line, as
//! `name value`.
//!
//! ```text
//! handles THREADS         nanoseconds of a handle that changes a joined buffer, and handles/s
//! sealed THREADS          the same with a seal every 20 ms
//! commit BLOCKS DEVICE    commit of dirty blocks on RAM against memcpy + crc32c of the same bytes;
//!                         DEVICE is `flat` (one allocation) or `sparse` (RamDevice)
//! gate THREADS DIRTY      how long a seal keeps the gate closed while threads run handles
//! baseline THREADS        the same with an empty gate: what the machine's scheduler allows
//! group WAITERS MICROS    acknowledged commits/s on RAM with this flush latency
//! disk WAITERS DIR        the same on the disk of directory DIR
//! ```
//!
//! | module | responsibility |
//! |---|---|
//! | [`devices`] | devices of the measurements |
//! | [`gate`] | how long the gate is closed |
#![forbid(unsafe_code)]

mod devices;
mod gate;

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use fourscore_block::{BlockDevice, Buffer, Structure, VerifiedAs};
use fourscore_journal::{
    Background, Batching, Credits, Journal, JournalMap, JournalOptions, JournalRun, Log,
    NewChecksums, NoHook,
};
use fourscore_ondisk::jbd2::{
    JournalBlock, JournalIncompat, JournalSuperblock, LogFormat, RawJournalSuperblock,
};
use fourscore_ondisk::{InodeNr, PhysBlock, Tid};
use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use fourscore_sync::{Arc, epoch, thread};
use zerocopy::IntoBytes;

use devices::{Flat, SMALL_HOME, Shape, Slow, on_disk, sparse_ram};

/// The allocator of the `fourscore` command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Length of a timed run.
const RUN: Duration = Duration::from_millis(700);

/// Rounds of the commit measurement, and the first ones that do not count: they allocate the
/// device's memory.
const COMMIT_ROUNDS: u32 = 32;
const WARM_UP_ROUNDS: u32 = 8;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<u64>().expect("a number");
    match words[..] {
        ["handles", threads] => handles(number(threads), None),
        ["sealed", threads] => handles(number(threads), Some(Duration::from_millis(20))),
        ["commit", blocks, "flat"] => commit(number(blocks), Arc::new(Flat::new(&SMALL_HOME))),
        ["commit", blocks, "sparse"] => commit(number(blocks), sparse_ram(&SMALL_HOME)),
        ["gate", threads, dirty] => gate::journal_gate(number(threads), number(dirty)),
        ["baseline", threads] => gate::empty_gate(number(threads)),
        ["group", waiters, micros] => {
            let latency = Duration::from_micros(number(micros));
            let memory = Arc::new(Flat::new(&SMALL_HOME));
            let slow: Arc<dyn BlockDevice> = Arc::new(Slow::new(memory, latency));
            group(&slow, number(waiters));
        }
        ["disk", waiters, dir] => group(&on_disk(Path::new(dir)), number(waiters)),
        _ => panic!("unknown measurement: {words:?}"),
    }
}

/// Opens a new journal on `device`, with checksums of version 3.
fn journal(shape: &Shape, device: Arc<dyn BlockDevice>, batching: Batching) -> Journal {
    let uuid = uuid::Uuid::from_bytes([7; 16]);
    let raw = RawJournalSuperblock::new(shape.block_size(), shape.journal_blocks, uuid);
    let run = JournalRun {
        journal_block: JournalBlock(0),
        block: PhysBlock(shape.home_blocks),
        blocks: shape.journal_blocks,
    };
    device
        .write_at(raw.as_bytes(), shape.journal_offset())
        .expect("the superblock is written");
    let map = JournalMap::from_runs([run], shape.blocks()).expect("one run");
    let log = Log::open(Arc::clone(&device), shape.block_size(), map).expect("a valid journal");
    let options = JournalOptions {
        background: Background::None,
        batching,
        checksums: NewChecksums::V3,
        ..JournalOptions::default()
    };
    Journal::open(log, device, Arc::new(NoHook), options).expect("an empty journal")
}

fn tag() -> VerifiedAs {
    VerifiedAs::new(Structure::InodeTable, InodeNr(0))
}

fn buffer(shape: &Shape, block: u64) -> Arc<Buffer> {
    let bytes = vec![0; shape.block_bytes];
    Arc::new(Buffer::new(PhysBlock(block), bytes.into()))
}

/// Runs one handle that changes `buffer`.
fn change(journal: &Journal, buffer: &Arc<Buffer>) -> Tid {
    let mut handle = journal
        .start(Credits(2))
        .expect("the journal is not aborted");
    let bump = |bytes: &mut [u8]| bytes[8] = bytes[8].wrapping_add(1);
    handle.modify(buffer, tag(), bump).expect("enough credits");
    handle.stop()
}

/// Prints the figure `value / per`.
#[expect(clippy::cast_precision_loss, reason = "a figure needs few digits")]
fn print(name: &str, value: u128, per: u128) {
    println!("{name} {:.3}", value as f64 / per.max(1) as f64);
}

/// Runs handles on `threads` threads, each with its own buffer, until `meanwhile` returns. Returns
/// the number of handles.
fn run_handles(journal: &Journal, threads: u64, meanwhile: impl FnOnce()) -> u64 {
    let (stop, sum) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for nr in 0..threads {
            let (stop, sum) = (&stop, &sum);
            scope.spawn(move || {
                let buffer = buffer(&SMALL_HOME, nr);
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..64 {
                        change(journal, &buffer);
                    }
                    count += 64;
                }
                sum.fetch_add(count, Ordering::Relaxed);
            });
        }
        meanwhile();
        stop.store(true, Ordering::Relaxed);
    });
    sum.into_inner()
}

/// Measures handles, with a commit every `interval` if that is given.
fn handles(threads: u64, interval: Option<Duration>) {
    let journal = journal(&SMALL_HOME, sparse_ram(&SMALL_HOME), Batching::Off);
    let began = Instant::now();
    let count = run_handles(&journal, threads, || match interval {
        None => thread::sleep(RUN),
        Some(interval) => {
            while began.elapsed() < RUN {
                thread::sleep(interval);
                journal.commit().expect("no I/O error in memory");
            }
        }
    });
    let nanos = began.elapsed().as_nanos();
    print("handle_ns", nanos * u128::from(threads), u128::from(count));
    print("handles_per_s", u128::from(count) * 1_000_000_000, nanos);
}

/// Measures commits of `count` dirty blocks. Each time it also measures memcpy and crc32c of the
/// same bytes, from the buffers to memory as large as the log.
fn commit(count: u64, device: Arc<dyn BlockDevice>) {
    let journal = journal(&SMALL_HOME, device, Batching::Off);
    let buffers: Vec<_> = (0..count).map(|nr| buffer(&SMALL_HOME, nr)).collect();
    let log_bytes =
        SMALL_HOME.block_bytes * usize::try_from(SMALL_HOME.journal_blocks).unwrap_or(0);
    let mut copy = vec![1_u8; log_bytes];
    let mut copies = 0..0;
    let format = log_format();
    let (mut commits, mut plain) = (Vec::new(), Vec::new());
    for round in 0..COMMIT_ROUNDS {
        for buffer in &buffers {
            change(&journal, buffer);
        }
        let began = Instant::now();
        journal.commit().expect("no I/O error in memory");
        let committed = began.elapsed();
        journal.checkpoint().expect("no I/O error in memory");
        let began = Instant::now();
        for buffer in &buffers {
            let guard = epoch::pin();
            let from = buffer.bytes(&guard);
            copies = copies.end..copies.end + from.len();
            if copies.end > copy.len() {
                copies = 0..from.len();
            }
            let to = &mut copy[copies.clone()];
            to.copy_from_slice(from);
            black_box(format.copy_checksum(Tid(round), to));
        }
        black_box(&copy);
        let copied = began.elapsed();
        if round >= WARM_UP_ROUNDS {
            commits.push(committed);
            plain.push(copied);
        }
    }
    commits.sort_unstable();
    plain.sort_unstable();
    let (commit, copy) = (commits[commits.len() / 2], plain[plain.len() / 2]);
    print("commit_us", commit.as_nanos(), 1000);
    print("memcpy_crc_us", copy.as_nanos(), 1000);
    print("of_memcpy_crc", copy.as_nanos(), commit.as_nanos());
}

/// The format of a log with checksums of version 3.
fn log_format() -> LogFormat {
    let raw = RawJournalSuperblock::new(SMALL_HOME.block_size(), 1024, uuid::Uuid::nil());
    let mut superblock = JournalSuperblock::try_from(&raw).expect("a valid superblock");
    superblock.upgrade(uuid::Uuid::nil(), JournalIncompat::CSUM_V3);
    superblock.log_format()
}

/// Measures how many commits per second are acknowledged to `waiters` threads, each of which waits
/// for every commit.
fn group(device: &Arc<dyn BlockDevice>, waiters: u64) {
    for (name, batching) in [("off", Batching::Off), ("adaptive", Batching::Adaptive)] {
        let journal = journal(&SMALL_HOME, Arc::clone(device), batching);
        let (stop, sum) = (AtomicBool::new(false), AtomicU64::new(0));
        let began = Instant::now();
        thread::scope(|scope| {
            for nr in 0..waiters {
                let (journal, stop, sum) = (&journal, &stop, &sum);
                scope.spawn(move || {
                    let buffer = buffer(&SMALL_HOME, nr);
                    while !stop.load(Ordering::Relaxed) {
                        let tid = change(journal, &buffer);
                        journal.commit_and_wait(tid).expect("no I/O error");
                        sum.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            thread::sleep(RUN);
            stop.store(true, Ordering::Relaxed);
        });
        let acknowledged = u128::from(sum.into_inner());
        let nanos = began.elapsed().as_nanos();
        print(
            &format!("acknowledged_per_s_{name}"),
            acknowledged * 1_000_000_000,
            nanos,
        );
        let commits = u128::from(journal.stats().commits);
        print(&format!("waiters_per_commit_{name}"), acknowledged, commits);
    }
}

//! What the journal costs, run by `cargo xtask bench journal`: prints one number per line, as
//! `name value`.
//!
//! ```text
//! handles THREADS         nanoseconds of a handle that changes a joined buffer, and handles/s
//! sealed THREADS          the same with a seal every 20 ms
//! commit BLOCKS           commit of dirty blocks on RAM against memcpy + crc32c of their bytes
//! gate THREADS DIRTY      how long the gate is closed while threads run handles
//! group WAITERS MICROS    acknowledged commits/s, at a flush latency, on RAM
//! disk WAITERS DIR        the same on the disk that holds DIR
//! ```

use std::hint::black_box;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;
use std::time::{Duration, Instant};

use fourscore_block::{
    BlockDevice, Buffer, DeviceOptions, RamDevice, Structure, VerifiedAs, create_image,
};
use fourscore_journal::{
    Background, Batching, Credits, Journal, JournalMap, JournalOptions, JournalRun, Log,
    NewChecksums, NoHook,
};
use fourscore_ondisk::jbd2::{
    JournalBlock, JournalIncompat, JournalSuperblock, LogFormat, RawJournalSuperblock,
};
use fourscore_ondisk::{BlockCount, BlockSize, InodeNr, PhysBlock, Tid};
use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use fourscore_sync::{Arc, thread};
use zerocopy::IntoBytes;

/// What the command uses as well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BLOCK_BYTES: usize = 4096;
/// Where the journal begins, behind the blocks that are changed.
const JOURNAL_AT: u64 = 1 << 17;
const JOURNAL_BLOCKS: u32 = 1 << 16;
/// How long a timed run takes.
const RUN: Duration = Duration::from_millis(700);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<u64>().expect("a number");
    match words[..] {
        ["handles", threads] => handles(number(threads), None),
        ["sealed", threads] => handles(number(threads), Some(Duration::from_millis(20))),
        ["commit", blocks] => commit(number(blocks)),
        ["gate", threads, dirty] => gate(number(threads), number(dirty)),
        ["group", waiters, micros] => {
            let latency = Duration::from_micros(number(micros));
            let slow: Arc<dyn BlockDevice> = Arc::new(Slow::new(ram(), latency));
            group(&slow, number(waiters));
        }
        ["disk", waiters, dir] => group(&on_disk(Path::new(dir)), number(waiters)),
        _ => panic!("unknown measurement: {words:?}"),
    }
}

fn block_size() -> BlockSize {
    BlockSize::from_log(2).expect("4 KiB")
}

fn blocks() -> u64 {
    JOURNAL_AT + u64::from(JOURNAL_BLOCKS)
}

fn ram() -> Arc<dyn BlockDevice> {
    Arc::new(RamDevice::new(blocks() * BLOCK_BYTES as u64))
}

/// An image in `dir`, without a name once it is open, all of whose journal is allocated.
fn on_disk(dir: &Path) -> Arc<dyn BlockDevice> {
    let path = dir.join(format!("journal-cost-{}", std::process::id()));
    let len_bytes = blocks() * BLOCK_BYTES as u64;
    let device = create_image(&path, len_bytes, DeviceOptions::read_write()).expect("an image");
    std::fs::remove_file(&path).expect("just made");
    let zeroes = vec![0; 1 << 20];
    for at in (JOURNAL_AT * BLOCK_BYTES as u64..len_bytes).step_by(zeroes.len()) {
        device.write_at(&zeroes, at).expect("space");
    }
    device.flush().expect("a flush");
    Arc::new(device)
}

/// A new journal on `device`, with checksums of version 3.
fn journal(device: Arc<dyn BlockDevice>, batching: Batching) -> Journal {
    let uuid = uuid::Uuid::from_bytes([7; 16]);
    let raw = RawJournalSuperblock::new(block_size(), JOURNAL_BLOCKS, uuid);
    let run = JournalRun {
        journal_block: JournalBlock(0),
        block: PhysBlock(JOURNAL_AT),
        blocks: JOURNAL_BLOCKS,
    };
    device
        .write_at(raw.as_bytes(), block_size().offset(run.block))
        .expect("a superblock");
    let map = JournalMap::from_runs([run], BlockCount(blocks())).expect("one run");
    let log = Log::open(Arc::clone(&device), block_size(), map).expect("a sound journal");
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

fn buffer(block: u64) -> Arc<Buffer> {
    Arc::new(Buffer::new(PhysBlock(block), vec![0; BLOCK_BYTES].into()))
}

/// One handle that changes `buffer`.
fn change(journal: &Journal, buffer: &Arc<Buffer>) -> Tid {
    let mut handle = journal.start(Credits(2)).expect("not aborted");
    let bump = |bytes: &mut [u8]| bytes[8] = bytes[8].wrapping_add(1);
    handle.modify(buffer, tag(), bump).expect("credits");
    handle.stop()
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn print(name: &str, value: u128, per: u128) {
    println!("{name} {:.3}", value as f64 / per.max(1) as f64);
}

/// Runs handles on `threads` threads, each with a buffer of its own, until told to stop; gives how
/// many there were.
fn run_handles(journal: &Journal, threads: u64, meanwhile: impl FnOnce()) -> u64 {
    let (stop, sum) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for nr in 0..threads {
            let (stop, sum) = (&stop, &sum);
            scope.spawn(move || {
                let buffer = buffer(nr);
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

/// What a handle costs, with a commit every `interval` if that is given.
fn handles(threads: u64, interval: Option<Duration>) {
    let journal = journal(ram(), Batching::Off);
    let began = Instant::now();
    let count = run_handles(&journal, threads, || match interval {
        None => thread::sleep(RUN),
        Some(interval) => {
            while began.elapsed() < RUN {
                thread::sleep(interval);
                journal.commit().expect("in memory");
            }
        }
    });
    let nanos = began.elapsed().as_nanos();
    print("handle_ns", nanos * u128::from(threads), u128::from(count));
    print("handles_per_s", u128::from(count) * 1_000_000_000, nanos);
}

/// Commits `count` dirty blocks several times, and copies and checksums as many bytes.
fn commit(count: u64) {
    let journal = journal(ram(), Batching::Off);
    let buffers: Vec<_> = (0..count).map(buffer).collect();
    let source: Vec<Vec<u8>> = (0..count)
        .map(|nr| vec![nr.to_le_bytes()[0]; BLOCK_BYTES])
        .collect();
    let mut copy = vec![0_u8; source.len() * BLOCK_BYTES];
    let format = with_checksums();
    let (mut commits, mut plain) = (Vec::new(), Vec::new());
    for round in 0..16 {
        for buffer in &buffers {
            change(&journal, buffer);
        }
        let began = Instant::now();
        journal.commit().expect("in memory");
        let committed = began.elapsed();
        journal.checkpoint().expect("in memory");
        let began = Instant::now();
        for (to, from) in copy.chunks_exact_mut(BLOCK_BYTES).zip(&source) {
            to.copy_from_slice(from);
            black_box(format.copy_checksum(Tid(round), to));
        }
        black_box(&copy);
        let copied = began.elapsed();
        // The first turn of the ring makes the device's memory.
        if round >= 8 {
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
fn with_checksums() -> LogFormat {
    let raw = RawJournalSuperblock::new(block_size(), JOURNAL_BLOCKS, uuid::Uuid::nil());
    let mut superblock = JournalSuperblock::try_from(&raw).expect("sound");
    superblock.upgrade(uuid::Uuid::nil(), JournalIncompat::CSUM_V3);
    superblock.log_format()
}

/// How long seals keep the gate closed, with `dirty` buffers in each transaction. The first thread
/// commits now and then, as a thread that calls `fsync` does; the others run handles.
fn gate(threads: u64, dirty: u64) {
    let journal = journal(ram(), Batching::Off);
    let most = u64::from(journal.most_credits().0) - threads * 64;
    let buffers: Vec<_> = (1000..1000 + dirty.min(most)).map(buffer).collect();
    run_handles(&journal, threads - 1, || {
        let began = Instant::now();
        while began.elapsed() < 3 * RUN {
            for buffer in &buffers {
                change(&journal, buffer);
            }
            let busy = Instant::now();
            while busy.elapsed() < Duration::from_millis(1) {
                change(&journal, &buffers[0]);
            }
            journal.commit().expect("in memory");
            journal.checkpoint().expect("in memory");
        }
    });
    let mut closed = journal.stats().gate_closed;
    closed.sort_unstable();
    let at = |part: usize| closed[closed.len() * part / 100].as_nanos();
    print("seals", closed.len() as u128, 1);
    print("closed_p50_us", at(50), 1000);
    print("closed_p99_us", at(99), 1000);
}

/// How many commits per second are acknowledged to `waiters` threads that wait for each.
fn group(device: &Arc<dyn BlockDevice>, waiters: u64) {
    for (name, batching) in [("off", Batching::Off), ("adaptive", Batching::Adaptive)] {
        let journal = journal(Arc::clone(device), batching);
        let (stop, sum) = (AtomicBool::new(false), AtomicU64::new(0));
        let began = Instant::now();
        thread::scope(|scope| {
            for nr in 0..waiters {
                let (journal, stop, sum) = (&journal, &stop, &sum);
                scope.spawn(move || {
                    let buffer = buffer(nr);
                    while !stop.load(Ordering::Relaxed) {
                        let tid = change(journal, &buffer);
                        journal.commit_and_wait(tid).expect("no fault");
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

/// A device whose flush takes a while.
#[derive(Debug)]
struct Slow {
    device: Arc<dyn BlockDevice>,
    latency: Duration,
}

impl Slow {
    fn new(device: Arc<dyn BlockDevice>, latency: Duration) -> Self {
        Self { device, latency }
    }
}

impl BlockDevice for Slow {
    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.device.read_vectored_at(bufs, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.device.write_vectored_at(bufs, offset)
    }
    fn flush(&self) -> io::Result<()> {
        if !self.latency.is_zero() {
            thread::sleep(self.latency);
        }
        self.device.flush()
    }
}

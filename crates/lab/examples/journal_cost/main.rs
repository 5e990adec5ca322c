//! What the journal costs, run by `cargo xtask bench journal`: prints one number per line, as
//! `name value`.
//!
//! ```text
//! handles THREADS         nanoseconds of a handle that changes a joined buffer, and handles/s
//! sealed THREADS          the same with a seal every 20 ms
//! commit BLOCKS DEVICE    commit of dirty blocks on RAM against memcpy + crc32c of their bytes;
//!                         DEVICE is `flat` (one piece of memory) or `sparse` (RamDevice)
//! gate THREADS DIRTY      how long the gate is closed while threads run handles
//! flag THREADS            the same with nothing but a flag: what the machine's scheduler allows
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
use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use fourscore_sync::{Arc, CachePadded, Mutex, epoch, thread};
use zerocopy::IntoBytes;

/// What the command uses as well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What a device holds: first the blocks that are changed, then the journal.
struct Shape {
    block_bytes: usize,
    home_blocks: u64,
    journal_blocks: u32,
}

/// For all but the gate.
const SMALL_HOME: Shape = Shape {
    block_bytes: 4096,
    home_blocks: 1 << 14,
    journal_blocks: 1 << 16,
};

/// With transactions of more than 100 000 blocks.
const LARGE_LOG: Shape = Shape {
    block_bytes: 1024,
    home_blocks: 1 << 17,
    journal_blocks: 1 << 19,
};

/// How long a timed run takes.
const RUN: Duration = Duration::from_millis(700);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<u64>().expect("a number");
    match words[..] {
        ["handles", threads] => handles(number(threads), None),
        ["sealed", threads] => handles(number(threads), Some(Duration::from_millis(20))),
        ["commit", blocks, "flat"] => commit(number(blocks), Arc::new(Flat::new(&SMALL_HOME))),
        ["commit", blocks, "sparse"] => commit(number(blocks), ram(&SMALL_HOME)),
        ["gate", threads, dirty] => gate(number(threads), number(dirty)),
        ["flag", threads] => flag(number(threads)),
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

impl Shape {
    fn block_size(&self) -> BlockSize {
        BlockSize::from_log((self.block_bytes >> 10).ilog2()).expect("a power of two")
    }

    fn blocks(&self) -> BlockCount {
        BlockCount(self.home_blocks + u64::from(self.journal_blocks))
    }

    fn len_bytes(&self) -> u64 {
        self.block_size().offset(PhysBlock(self.blocks().0))
    }

    /// Where the journal begins, in bytes.
    fn journal_offset(&self) -> u64 {
        self.block_size().offset(PhysBlock(self.home_blocks))
    }
}

fn ram(shape: &Shape) -> Arc<dyn BlockDevice> {
    Arc::new(RamDevice::new(shape.len_bytes()))
}

/// An image in `dir`, without a name once it is open, all of whose journal is allocated.
fn on_disk(dir: &Path) -> Arc<dyn BlockDevice> {
    let path = dir.join(format!("journal-cost-{}", std::process::id()));
    let len_bytes = SMALL_HOME.len_bytes();
    let device = create_image(&path, len_bytes, DeviceOptions::read_write()).expect("an image");
    std::fs::remove_file(&path).expect("just made");
    let zeroes = vec![0; 1 << 20];
    for at in (SMALL_HOME.journal_offset()..len_bytes).step_by(zeroes.len()) {
        device.write_at(&zeroes, at).expect("space");
    }
    device.flush().expect("a flush");
    Arc::new(device)
}

/// A new journal on `device`, with checksums of version 3.
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
        .expect("a superblock");
    let map = JournalMap::from_runs([run], shape.blocks()).expect("one run");
    let log = Log::open(Arc::clone(&device), shape.block_size(), map).expect("a sound journal");
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

/// What a handle costs, with a commit every `interval` if that is given.
fn handles(threads: u64, interval: Option<Duration>) {
    let journal = journal(&SMALL_HOME, ram(&SMALL_HOME), Batching::Off);
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

/// Commits `count` dirty blocks several times, and each time copies and checksums the same bytes:
/// from where the buffers have them, to memory as large as the log.
fn commit(count: u64, device: Arc<dyn BlockDevice>) {
    let journal = journal(&SMALL_HOME, device, Batching::Off);
    let buffers: Vec<_> = (0..count).map(|nr| buffer(&SMALL_HOME, nr)).collect();
    let log_bytes =
        SMALL_HOME.block_bytes * usize::try_from(SMALL_HOME.journal_blocks).unwrap_or(0);
    let mut copy = vec![1_u8; log_bytes];
    let mut copies = 0..0;
    let format = with_checksums();
    let (mut commits, mut plain) = (Vec::new(), Vec::new());
    for round in 0..32 {
        for buffer in &buffers {
            change(&journal, buffer);
        }
        let began = Instant::now();
        journal.commit().expect("in memory");
        let committed = began.elapsed();
        journal.checkpoint().expect("in memory");
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
        // The first turns of the ring make the device's memory.
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
    let raw = RawJournalSuperblock::new(SMALL_HOME.block_size(), 1024, uuid::Uuid::nil());
    let mut superblock = JournalSuperblock::try_from(&raw).expect("sound");
    superblock.upgrade(uuid::Uuid::nil(), JournalIncompat::CSUM_V3);
    superblock.log_format()
}

/// How many seals tell how long the gate is closed, and how long they may take.
const SEALS: u64 = 200;
const MOST_SEALING: Duration = Duration::from_secs(10);

/// Prints how long the gate, or the flag, was closed.
fn print_closed(mut closed: Vec<Duration>) {
    closed.sort_unstable();
    let at = |part: usize| closed[closed.len() * part / 100].as_nanos();
    print("seals", closed.len() as u128, 1);
    print("closed_p50_us", at(50), 1000);
    print("closed_p99_us", at(99), 1000);
}

/// Threads that run handles in rounds.
#[derive(Default)]
struct Crew {
    /// Odd while they work, even while they rest.
    round: AtomicU64,
    over: AtomicBool,
    /// How many have changed all their buffers in this round.
    ready: AtomicU64,
}

impl Crew {
    /// One of the threads: in each round it changes all its `buffers` once, and then the first of
    /// them again and again until the transaction is sealed.
    fn work(&self, journal: &Journal, buffers: &[Arc<Buffer>]) {
        let mut done = 0;
        while let Some(round) = self.round_after(done) {
            for buffer in buffers {
                change(journal, buffer);
            }
            self.ready.fetch_add(1, Ordering::AcqRel);
            while self.round.load(Ordering::Relaxed) == round {
                change(journal, &buffers[0]);
            }
            done = round;
        }
    }

    /// Sleeps until there is another round than the one just done; `None` when there are no more.
    fn round_after(&self, done: u64) -> Option<u64> {
        loop {
            if self.over.load(Ordering::Acquire) {
                return None;
            }
            let round = self.round.load(Ordering::Acquire);
            if round % 2 == 1 && round != done {
                return Some(round);
            }
            thread::park();
        }
    }
}

/// How long seals keep the gate closed, with `dirty` buffers in each transaction. One thread
/// commits now and then, as a thread that calls `fsync` does, while the others run handles without
/// a pause; they rest while the transaction is written, which is not measured. The device forgets
/// what is written to it.
fn gate(threads: u64, dirty: u64) {
    let device = Arc::new(Forgetful::new(&LARGE_LOG));
    let journal = journal(&LARGE_LOG, device, Batching::Off);
    let crew = Arc::new(Crew::default());
    let workers = threads - 1;
    thread::scope(|scope| {
        let start = |nr: u64| {
            // Each has one buffer at least.
            let (first, end) = (dirty * nr / workers, dirty * (nr + 1) / workers);
            let own = first..end.max(first + 1);
            let (crew, journal) = (&crew, &journal);
            let worker = scope.spawn(move || {
                let buffers: Vec<_> = own.map(|nr| buffer(&LARGE_LOG, nr)).collect();
                crew.work(journal, &buffers);
            });
            worker.thread().clone()
        };
        let crew_threads: Vec<_> = (0..workers).map(start).collect();
        let wake = || crew_threads.iter().for_each(thread::Thread::unpark);
        let began = Instant::now();
        let mut seals = 0;
        while seals < SEALS && began.elapsed() < MOST_SEALING {
            crew.ready.store(0, Ordering::Release);
            crew.round.fetch_add(1, Ordering::AcqRel);
            wake();
            while crew.ready.load(Ordering::Acquire) < workers {
                thread::sleep(Duration::from_micros(200));
            }
            thread::sleep(Duration::from_millis(1));
            let mut handle = journal.start(Credits(0)).expect("not aborted");
            let rest = Arc::clone(&crew);
            handle.before_commit(Box::new(move || {
                rest.round.fetch_add(1, Ordering::AcqRel);
                Ok(())
            }));
            let tid = handle.stop();
            journal.commit_and_wait(tid).expect("in memory");
            journal.checkpoint().expect("in memory");
            seals += 1;
        }
        crew.over.store(true, Ordering::Release);
        wake();
    });
    print_closed(journal.stats().gate_closed);
}

/// The least that can keep threads out until all have left: each says that it is inside, and
/// looks at a flag. There is no journal behind it.
struct Flag {
    /// Odd while it is closed.
    turn: CachePadded<AtomicU64>,
    inside: Vec<CachePadded<AtomicU64>>,
    passes: Vec<CachePadded<AtomicU64>>,
    over: AtomicBool,
    closer: thread::Thread,
}

impl Flag {
    /// One of the threads.
    fn work(&self, nr: usize) {
        let (inside, passes) = (&self.inside[nr], &self.passes[nr]);
        while !self.over.load(Ordering::Relaxed) {
            inside.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let turn = self.turn.load(Ordering::SeqCst);
            if turn.is_multiple_of(2) {
                passes.fetch_add(1, Ordering::Relaxed);
            }
            inside.fetch_sub(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let turn = self.turn.load(Ordering::SeqCst);
            if turn % 2 == 1 {
                if self.is_empty() {
                    self.closer.unpark();
                }
                while self.turn.load(Ordering::Acquire) == turn {
                    thread::park();
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        let mut inside = self.inside.iter();
        inside.all(|inside| inside.load(Ordering::SeqCst) == 0)
    }

    /// Waits until every thread has had its turn, and longer.
    fn wait_for_all(&self) {
        let passes = |passes: &CachePadded<AtomicU64>| passes.load(Ordering::Relaxed);
        let before: Vec<u64> = self.passes.iter().map(passes).collect();
        for (of_thread, before) in self.passes.iter().zip(before) {
            while passes(of_thread) == before {
                thread::sleep(Duration::from_micros(200));
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// How long a flag has to be closed until all threads have left.
fn flag(threads: u64) {
    let workers = usize::try_from(threads - 1).expect("few");
    let zeroes = || (0..workers).map(|_| CachePadded::default()).collect();
    let flag = Flag {
        turn: CachePadded::default(),
        inside: zeroes(),
        passes: zeroes(),
        over: AtomicBool::new(false),
        closer: thread::current(),
    };
    let mut closed = Vec::new();
    thread::scope(|scope| {
        let start = |nr| {
            scope
                .spawn({
                    let flag = &flag;
                    move || flag.work(nr)
                })
                .thread()
                .clone()
        };
        let all: Vec<_> = (0..workers).map(start).collect();
        let began = Instant::now();
        while (closed.len() as u64) < SEALS && began.elapsed() < MOST_SEALING {
            flag.wait_for_all();
            let began = Instant::now();
            flag.turn.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let mut looks = 0;
            while !flag.is_empty() {
                looks += 1;
                if looks > 200 {
                    thread::park();
                }
                std::hint::spin_loop();
            }
            flag.turn.fetch_add(1, Ordering::SeqCst);
            closed.push(began.elapsed());
            all.iter().for_each(thread::Thread::unpark);
        }
        flag.over.store(true, Ordering::Relaxed);
    });
    print_closed(closed);
}

/// How many commits per second are acknowledged to `waiters` threads that wait for each.
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

/// Memory in one piece: what writing costs on it is a copy.
#[derive(Debug)]
struct Flat(Mutex<Vec<u8>>);

impl Flat {
    /// All of its memory is there, so that no write makes any.
    fn new(shape: &Shape) -> Self {
        let len_bytes = usize::try_from(shape.len_bytes()).expect("fits into memory");
        Self(Mutex::new(vec![1; len_bytes]))
    }
}

fn byte(offset: u64) -> usize {
    usize::try_from(offset).expect("fits into memory")
}

impl BlockDevice for Flat {
    fn len_bytes(&self) -> u64 {
        self.0.lock().len() as u64
    }
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let (memory, mut at) = (self.0.lock(), byte(offset));
        for buf in bufs {
            let end = at + buf.len();
            buf.copy_from_slice(&memory[at..end]);
            at = end;
        }
        Ok(())
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let (mut memory, mut at) = (self.0.lock(), byte(offset));
        for buf in bufs {
            memory[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A device that keeps nothing but the journal's superblock.
#[derive(Debug)]
struct Forgetful {
    device: RamDevice,
    superblock_at: u64,
}

impl Forgetful {
    fn new(shape: &Shape) -> Self {
        Self {
            device: RamDevice::new(shape.len_bytes()),
            superblock_at: shape.journal_offset(),
        }
    }
}

impl BlockDevice for Forgetful {
    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.device.read_vectored_at(bufs, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        if offset == self.superblock_at {
            return self.device.write_vectored_at(bufs, offset);
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

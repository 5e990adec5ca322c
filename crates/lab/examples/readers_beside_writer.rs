//! Measures reads of a file while another thread changes the same file, and while it changes
//! another file. Both run in memory, in turns.
//!
//! ```console
//! $ fourscore mkfs disk.ext4 512M
//! $ cargo run --release -p fourscore-lab --example readers_beside_writer disk.ext4 5
//! ```
//!
//! The image is not changed. One thread reads blocks of 4 KiB at random offsets of a file of 16 MiB
//! for half a second. Meanwhile another thread overwrites blocks, appends and truncates, or punches
//! holes and fills them: in that file on one side, in another file on the other side. So what the
//! two cores have to share in any case affects both sides. The last two rows do the same without a
//! file system, on parts of a device in memory: they show what it costs that the other core was the
//! last to write a block, and in the last row that it has moved the block as well. Prints reads per
//! second as the median of the rounds (here 5), and the ratio of the two sides.
#![forbid(unsafe_code)]

use std::path::Path;
use std::time::{Duration, Instant};

use fourscore::{Fallocate, Fs, InodeNr, MountOptions, NewAttributes, Result};
use fourscore_block::{BlockDevice, DeviceOptions, RamDevice, open_path};
use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use fourscore_sync::{Arc, thread};

/// The allocator of the `fourscore` command: that of the C library serialises threads that free
/// each other's memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const OWNER: NewAttributes = NewAttributes::owned_by(0, 0).permissions(0o755);
const BLOCK: u64 = 4096;
const BLOCK_BYTES: usize = 4096;
/// Size of the files in blocks.
const BLOCKS: u64 = 4096;
/// Length of a run.
const RUN: Duration = Duration::from_millis(500);

/// A change of the other thread to its file; `nth` counts the changes.
type Change = fn(&Fs, InodeNr, nth: u64) -> Result<()>;

fn nothing(_: &Fs, _: InodeNr, _: u64) -> Result<()> {
    thread::sleep(Duration::from_millis(1));
    Ok(())
}

fn overwrite(fs: &Fs, file: InodeNr, nth: u64) -> Result<()> {
    let offset = random_block(nth) * BLOCK;
    fs.write_at(file, &[4; BLOCK_BYTES], offset).map(drop)
}

fn append(fs: &Fs, file: InodeNr, nth: u64) -> Result<()> {
    let end = BLOCKS + nth % 64;
    fs.write_at(file, &[1; BLOCK_BYTES], end * BLOCK)?;
    match nth % 64 {
        63 => fs.truncate(file, BLOCKS * BLOCK),
        _ => Ok(()),
    }
}

fn punch(fs: &Fs, file: InodeNr, nth: u64) -> Result<()> {
    let offset = random_block(nth / 2) * BLOCK;
    match nth.is_multiple_of(2) {
        true => fs.fallocate(file, Fallocate::PunchHole, offset, BLOCK),
        false => fs.write_at(file, &[2; BLOCK_BYTES], offset).map(drop),
    }
}

const CHANGES: [(&str, Change); 4] = [
    ("nothing", nothing),
    ("overwrites blocks", overwrite),
    ("appends and truncates", append),
    ("punches holes and fills them", punch),
];

/// The `nth` of a pseudorandom sequence of blocks of the file.
fn random_block(nth: u64) -> u64 {
    (nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % BLOCKS
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [image, rounds] = &arguments[..] else {
        anyhow::bail!("usage: readers_beside_writer IMAGE ROUNDS");
    };
    let rounds: usize = rounds.parse()?;
    let base = open_path(Path::new(image), DeviceOptions::default())?;
    let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::over(Arc::new(base)));
    let fs = Fs::mount(device, &MountOptions::new())?;
    let [read, other] = ["read", "other"].map(|name| create_file(&fs, name.as_bytes()));
    let (to_read, other) = (read?, other?);
    println!("| the other thread | on another file, reads/s | on the same file, reads/s | ratio |");
    println!("|---|---:|---:|---:|");
    for (name, change) in CHANGES {
        let read = |nth| {
            let mut block = [0; BLOCK_BYTES];
            fs.read_at(to_read, &mut block, random_block(nth) * BLOCK)
                .map(drop)
        };
        let apart = |nth| change(&fs, other, nth);
        let beside = |nth| change(&fs, to_read, nth);
        report(name, rounds, read, apart, beside)?;
    }
    overwrite_without_file_system(rounds)?;
    move_without_file_system(rounds)?;
    Ok(fs.unmount()?)
}

/// Both threads use a device in memory: the other one writes to blocks that are read, or to others.
fn overwrite_without_file_system(rounds: usize) -> Result<()> {
    let bare = filled_device(2 * BLOCKS)?;
    let read = |nth| Ok(bare.read_at(&mut [0; BLOCK_BYTES], random_block(nth) * BLOCK)?);
    let write = |block: u64| Ok(bare.write_at(&[4; BLOCK_BYTES], block * BLOCK)?);
    let apart = |nth| write(BLOCKS + random_block(nth));
    let beside = |nth| write(random_block(nth));
    report(
        "overwrites, without a file system",
        rounds,
        read,
        apart,
        beside,
    )
}

/// As [`overwrite_without_file_system`], with a table of the places of blocks. The other thread
/// writes a block to a place that is free, and changes its entry: the least that is left of a punch
/// and a write to the hole.
fn move_without_file_system(rounds: usize) -> Result<()> {
    let bare = filled_device(4 * BLOCKS)?;
    let table = |first: u64| -> Vec<AtomicU64> {
        (first..first + 2 * BLOCKS).map(AtomicU64::new).collect()
    };
    let entry = |block: u64| usize::try_from(block).unwrap_or(usize::MAX);
    // The second half of each table has the free places.
    let (read_table, other_table) = (table(0), table(2 * BLOCKS));
    let read = |nth| {
        let place = read_table[entry(random_block(nth))].load(Ordering::Acquire);
        Ok(bare.read_at(&mut [0; BLOCK_BYTES], place * BLOCK)?)
    };
    let change = |table: &[AtomicU64], nth: u64| {
        let (moved, free) = (entry(random_block(nth)), entry(BLOCKS + nth % BLOCKS));
        let place = table[free].load(Ordering::Relaxed);
        bare.write_at(&[2; BLOCK_BYTES], place * BLOCK)?;
        let old = table[moved].swap(place, Ordering::AcqRel);
        table[free].store(old, Ordering::Relaxed);
        Ok(())
    };
    let apart = |nth| change(&other_table, nth);
    let beside = |nth| change(&read_table, nth);
    report(
        "moves blocks, without a file system",
        rounds,
        read,
        apart,
        beside,
    )
}

/// A device in memory with so many blocks, all of which were written.
fn filled_device(blocks: u64) -> Result<RamDevice> {
    let device = RamDevice::new(blocks * BLOCK);
    for block in 0..blocks {
        device.write_at(&[3; BLOCK_BYTES], block * BLOCK)?;
    }
    Ok(device)
}

fn create_file(fs: &Fs, name: &[u8]) -> Result<InodeNr> {
    let file = fs.create(InodeNr::ROOT, name, &OWNER)?;
    for block in 0..BLOCKS {
        fs.write_at(file, &[3; BLOCK_BYTES], block * BLOCK)?;
    }
    Ok(file)
}

/// Measures reads beside both changes in turns, and prints a row.
fn report(
    name: &str,
    rounds: usize,
    read: impl Fn(u64) -> Result<()>,
    change_other: impl Fn(u64) -> Result<()> + Sync,
    change_same: impl Fn(u64) -> Result<()> + Sync,
) -> Result<()> {
    let (mut apart, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        apart.push(reads_beside(&read, &change_other)?);
        beside.push(reads_beside(&read, &change_same)?);
    }
    let (apart, beside) = (median(&mut apart), median(&mut beside));
    let ratio = beside / apart;
    println!("| {name} | {apart:.0} | {beside:.0} | {ratio:.2} |");
    Ok(())
}

/// Returns reads per second, while another thread calls `change`.
fn reads_beside(
    read: impl Fn(u64) -> Result<()>,
    change: impl Fn(u64) -> Result<()> + Sync,
) -> Result<f64> {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            let mut nth = 0;
            while !ends.load(Ordering::Relaxed) {
                change(nth)?;
                nth += 1;
            }
            Ok(())
        });
        let (began, mut reads) = (Instant::now(), 0);
        let read = loop {
            if let Err(error) = read(reads) {
                break Err(error);
            }
            reads += 1;
            if reads % 64 == 0 && began.elapsed() >= RUN {
                break Ok(reads as f64 / began.elapsed().as_secs_f64());
            }
        };
        ends.store(true, Ordering::Relaxed);
        writer.join().unwrap_or(Ok(()))?;
        read
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

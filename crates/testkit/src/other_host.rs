//! **Purpose.** Another host that has an image with multi-mount protection (feature `mmp`), and
//! what the programs of this host may write there.
//!
//! **Model.** The other host writes the block of the image file, past all locks, as a host does
//! that shares the device.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fourscore_block::{Durable, Event};
use fourscore_ondisk::RawSuperblock;
use fourscore_ondisk::mmp::{MmpBlock, MmpHost, MmpSequence};
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, Superblock};
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, thread};
use zerocopy::IntoBytes;

/// The name of the other host.
pub const NAME: &str = "elsewhere";

const BLOCK_BYTES: usize = 1024;
/// The place of `mmp_seq` in the block.
const SEQUENCE_AT: u64 = 4;

/// A host that is alive: it writes another number again and again, until this is dropped.
#[derive(Debug)]
pub struct OtherHost {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl OtherHost {
    /// A host that has the image mounted, and writes its number this often.
    ///
    /// # Errors
    /// If the image has no valid block.
    pub fn mounts(image: &Path, every: Duration) -> Result<Self> {
        leave(image, MmpSequence::InUse(1))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (image, stopped) = (PathBuf::from(image), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            for number in 2.. {
                thread::sleep(every);
                let is_over = stopped.load(Ordering::Relaxed);
                if is_over || leave(&image, MmpSequence::InUse(number)).is_err() {
                    return;
                }
            }
        });
        let thread = Some(thread);
        Ok(Self { stop, thread })
    }
}

impl Drop for OtherHost {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes the block of an image once, as the other host does.
///
/// # Errors
/// If the image has no valid block.
pub fn leave(image: &Path, sequence: MmpSequence) -> Result<()> {
    let host = MmpHost {
        node_name: NAME.as_bytes(),
        device_name: b"sdx",
    };
    let file = File::options().read(true).write(true).open(image)?;
    let sb = superblock(&file)?;
    let (block, at) = read(&file, &sb)?;
    let block = block.written_by(&host, sequence, 1, 5, &sb);
    Ok(file.write_all_at(block.raw().as_bytes(), at)?)
}

/// The block of an image.
///
/// # Errors
/// If it is not valid.
pub fn block(image: &Path) -> Result<MmpBlock> {
    let file = File::open(image)?;
    Ok(read(&file, &superblock(&file)?)?.0)
}

fn superblock(file: &File) -> Result<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
    Ok(Superblock::try_from(RawSuperblock::from_bytes(&bytes)?)?)
}

fn place(sb: &Superblock) -> Result<u64> {
    let block = sb.mmp_block().context("no feature mmp")?;
    Ok(sb.geometry().block_size().offset(block))
}

fn read(file: &File, sb: &Superblock) -> Result<(MmpBlock, u64)> {
    let at = place(sb)?;
    let mut bytes = [0; BLOCK_BYTES];
    file.read_exact_at(&mut bytes, at)?;
    Ok((MmpBlock::parse(&bytes, sb)?, at))
}

/// Checks the recorded writes of a program that works on a file system that is not mounted. Its
/// first writes are a number and then "a check runs", each durable at once; its last one is the
/// clean value, which is durable at once and behind a flush of all others. In between the block
/// says "a check runs". Returns the numbers of events between which the file system is claimed.
///
/// # Errors
/// What is not so.
pub fn check_claim(events: &[Event], sb: &Superblock) -> Result<std::ops::Range<usize>> {
    let at = place(sb)?;
    let writes: Vec<(usize, Durable, MmpSequence)> = (0..)
        .zip(events)
        .filter_map(|(nth, event)| {
            let (durable, sequence) = sequence_in(event, at)?;
            Some((nth, durable, sequence))
        })
        .collect();
    let [first, second, between @ .., last] = &writes[..] else {
        anyhow::bail!("too few writes of the block: {writes:?}");
    };
    let is_write = |event: &Event| !matches!(event, Event::Flush { .. } | Event::Note(_));
    let early = events[..second.0].iter().filter(|event| is_write(event));
    ensure!(early.count() == 1, "something is written before the claim");
    ensure!(matches!(first.2, MmpSequence::InUse(_)), "{writes:?}");
    ensure!(second.2 == MmpSequence::Fsck, "{writes:?}");
    let is_claimed = between.iter().all(|write| write.2 == MmpSequence::Fsck);
    ensure!(is_claimed && last.2 == MmpSequence::Clean, "{writes:?}");
    for write in [first, second, last] {
        ensure!(write.1 == Durable::AtOnce, "not durable: {writes:?}");
    }
    let late = events[last.0 + 1..].iter().any(is_write);
    ensure!(!late, "something is written after the release");
    let flushed = events[..last.0].iter().rposition(Event::is_flush);
    let written = events[..last.0].iter().rposition(is_write);
    ensure!(flushed > written, "the release is before other writes");
    Ok(second.0 + 1..last.0)
}

/// What a write says in the block at `at`, if it covers that.
fn sequence_in(event: &Event, at: u64) -> Option<(Durable, MmpSequence)> {
    let Event::Write {
        offset,
        bytes,
        durable,
    } = event
    else {
        return None;
    };
    let start = usize::try_from((at + SEQUENCE_AT).checked_sub(*offset)?).ok()?;
    let number = bytes.get(start..start + size_of::<u32>())?;
    let number = u32::from_le_bytes(number.try_into().ok()?);
    let special = [MmpSequence::Clean, MmpSequence::Fsck];
    let special = special.into_iter().find(|value| value.number() == number);
    Some((*durable, special.unwrap_or(MmpSequence::InUse(number))))
}

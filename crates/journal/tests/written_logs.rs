//! Logs that the journal wrote and that a crash cut off: e2fsck and the kernel replay them to the
//! blocks that were acknowledged, and debugfs finds the structure that we meant.
//!
//! The transactions change blocks of a real image that nothing uses. Needs root, loop devices and
//! e2fsprogs; says so where they are missing.

mod kernel;

use std::collections::BTreeMap;

use fourscore_block::{BlockDevice, Buffer, DeviceOptions, Structure, VerifiedAs, open_path};
use fourscore_journal::{
    Background, Batching, Credits, Journal, JournalOptions, Log, NewChecksums, NoHook, recover,
    replay,
};
use fourscore_ondisk::jbd2::{LogChecksums, MAGIC};
use fourscore_ondisk::{BlockCount, InodeNr, PhysBlock, Tid};
use fourscore_sync::{Arc, Mutex, thread};

use kernel::{Image, Mount, can_run, compare_with_e2fsck, run};

const TOOLS: &[&str] = &["mke2fs", "e2fsck", "debugfs", "losetup"];
/// How many blocks the transactions change.
const BLOCKS: u64 = 24;
const WRITERS: u64 = 2;

/// What the blocks held when their last transaction was acknowledged.
type Acknowledged = BTreeMap<PhysBlock, Vec<u8>>;

/// A log that was written and never closed, and what must be found.
struct Written {
    image: Image,
    last: Tid,
    acknowledged: Acknowledged,
}

/// Opens the image's journal for writing, replaying first what it holds.
fn open(image: &Image, checksums: NewChecksums) -> Journal {
    let device = open_path(&image.path, DeviceOptions::read_write()).unwrap();
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let mut log = Log::open(Arc::clone(&device), image.block_size(), image.journal_map()).unwrap();
    let blocks = BlockCount(device.len_bytes() >> image.block_size().bits());
    let recovered = recover(&log, blocks).unwrap();
    replay(&mut log, &recovered, &*device).unwrap();
    let options = JournalOptions {
        background: Background::None,
        batching: Batching::Off,
        checksums,
        ..JournalOptions::default()
    };
    Journal::open(log, device, Arc::new(NoHook), options).unwrap()
}

/// Writes `rounds` transactions of each of two writers and leaves the log as a crash would.
fn write(image: Image, checksums: NewChecksums, rounds: u32) -> Written {
    let journal = open(&image, checksums);
    let all = std::fs::metadata(&image.path).unwrap().len() >> image.block_size().bits();
    // Behind the tables and the journal, and before the end: blocks that nothing uses.
    let first = all - all / 8;
    let acknowledged = Mutex::new(Acknowledged::new());
    thread::scope(|scope| {
        for nr in 0..WRITERS {
            let (journal, acknowledged, image) = (&journal, &acknowledged, &image);
            scope.spawn(move || {
                let own = first + nr * BLOCKS..first + (nr + 1) * BLOCKS;
                let writer = Writer::new(image, own);
                for round in 0..rounds {
                    acknowledged
                        .lock()
                        .extend(writer.transaction(journal, round));
                }
            });
        }
    });
    let last = journal.committed_tid();
    drop(journal);
    let path = image.path.to_str().unwrap();
    run(
        "debugfs",
        &["-w", "-R", "feature needs_recovery", path],
        &[0],
    );
    Written {
        image,
        last,
        acknowledged: acknowledged.into_inner(),
    }
}

/// One thread's blocks.
struct Writer {
    buffers: Vec<Mutex<Arc<Buffer>>>,
    block_bytes: usize,
}

impl Writer {
    fn new(image: &Image, blocks: std::ops::Range<u64>) -> Self {
        let block_bytes = image.block_size().bytes();
        let buffers = blocks.map(|block| Mutex::new(fresh(block, block_bytes)));
        Self {
            buffers: buffers.collect(),
            block_bytes,
        }
    }

    /// Changes some blocks, each third of them to something that must be escaped, and frees one;
    /// gives what they hold once the transaction is durable.
    fn transaction(&self, journal: &Journal, round: u32) -> Vec<(PhysBlock, Vec<u8>)> {
        let mut handle = journal.start(Credits(8)).unwrap();
        let tag = VerifiedAs::new(Structure::Xattrs, InodeNr(0));
        let mut changed = Vec::new();
        for step in 0..5 {
            let at = usize::try_from(round * 7 + step * 3).unwrap() % self.buffers.len();
            let buffer = self.buffers[at].lock();
            let change = |bytes: &mut [u8]| {
                bytes.fill(u8::try_from(round % 251).unwrap() + 1);
                if at.is_multiple_of(3) {
                    bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
                }
                bytes.to_vec()
            };
            let bytes = handle.modify(&buffer, tag, change).unwrap();
            changed.push((buffer.block(), bytes));
        }
        if round % 4 == 3 {
            let at = usize::try_from(round).unwrap() % self.buffers.len();
            let mut buffer = self.buffers[at].lock();
            handle.forget_buffer(&buffer).unwrap();
            let again = fresh(buffer.block().0, self.block_bytes);
            // Freed and used again as metadata: only now is its content promised again.
            let bytes = handle
                .modify(&again, tag, |bytes| {
                    bytes.fill(0xee);
                    bytes.to_vec()
                })
                .unwrap();
            changed.push((again.block(), bytes));
            *buffer = again;
        }
        let tid = handle.stop();
        journal.commit_and_wait(tid).unwrap();
        changed
    }
}

fn fresh(block: u64, block_bytes: usize) -> Arc<Buffer> {
    Arc::new(Buffer::new(PhysBlock(block), vec![0; block_bytes].into()))
}

/// Compares what is found after a replay with what was acknowledged.
fn check_blocks(image: &Image, acknowledged: &Acknowledged, by: &str) {
    let content = std::fs::read(&image.path).unwrap();
    let block_bytes = image.block_size().bytes();
    for (block, expected) in acknowledged {
        let at = usize::try_from(block.0).unwrap() * block_bytes;
        assert!(
            content[at..at + block_bytes] == expected[..],
            "{by}: block {block}"
        );
    }
}

/// Replays by e2fsck, by the kernel and by ourselves, and looks at the log with debugfs.
fn check(written: &Written) -> LogChecksums {
    let Written {
        image,
        last,
        acknowledged,
    } = written;
    let dump = image.debugfs("logdump -a");
    let commit = format!("Found expected sequence {last}, type 2 (commit block)");
    assert!(dump.contains(&commit), "{commit}: not in\n{dump}");
    assert!(
        !dump.contains("bad") && !dump.contains("checksum"),
        "{dump}"
    );

    // Compares all blocks, ours with e2fsck's.
    let (log, recovered) = compare_with_e2fsck(image);
    assert_eq!(recovered.last_tid(), Some(*last));

    let by_e2fsck = image.copy("e2fsck");
    run(
        "e2fsck",
        &["-fy", by_e2fsck.path.to_str().unwrap()],
        &[0, 1],
    );
    check_blocks(&by_e2fsck, acknowledged, "e2fsck");

    let by_kernel = image.copy("kernel");
    drop(Mount::new(&by_kernel, "rw"));
    check_blocks(&by_kernel, acknowledged, "the kernel");
    assert!(!by_kernel.debugfs("stats -h").contains("needs_recovery"));

    let by_us = image.copy("us");
    drop(open(&by_us, NewChecksums::None));
    check_blocks(&by_us, acknowledged, "our replay");
    log.superblock().log_format().checksums
}

#[test]
fn checksums_of_version_3_by_default() {
    if can_run(TOOLS) {
        for options in [&[][..], &["-O", "^64bit", "-b", "1024"], &["-b", "2048"]] {
            let written = write(Image::make(options, "48M"), NewChecksums::V3, 30);
            assert!(matches!(check(&written), LogChecksums::V3 { .. }));
        }
    }
}

#[test]
fn no_checksums() {
    if can_run(TOOLS) {
        for options in [&["-O", "^metadata_csum"][..], &["-t", "ext3", "-b", "1024"]] {
            let written = write(Image::make(options, "48M"), NewChecksums::None, 30);
            assert_eq!(check(&written), LogChecksums::None);
        }
    }
}

#[test]
fn checksums_of_version_1_where_the_image_has_them() {
    if can_run(TOOLS) {
        let image = Image::make(&["-O", "^metadata_csum"], "48M");
        let mount = Mount::new(&image, "journal_checksum");
        std::fs::write(mount.dir.join("file"), b"so that something is committed").unwrap();
        drop(mount);
        let written = write(image, NewChecksums::V3, 30);
        assert_eq!(check(&written), LogChecksums::V1);
    }
}

#[test]
fn checksums_of_version_2_where_the_image_has_them() {
    if can_run(TOOLS) {
        let image = Image::make(&["-b", "1024"], "16M");
        image.log_with_version_2();
        let written = write(image, NewChecksums::V3, 30);
        assert!(matches!(check(&written), LogChecksums::V2 { .. }));
    }
}

#[test]
fn a_log_that_went_around() {
    if can_run(TOOLS) {
        let image = Image::make(&["-b", "1024", "-J", "size=1"], "48M");
        let written = write(image, NewChecksums::V3, 150);
        check(&written);
        // Two writers with at least 7 blocks in each of 150 transactions, or half as many.
        assert!(written.last.0 > 150, "{}", written.last);
    }
}

#[test]
fn a_closed_journal_is_clean() {
    if can_run(TOOLS) {
        let image = Image::make(&[], "48M");
        let journal = open(&image, NewChecksums::V3);
        let writer = Writer::new(&image, 11_000..11_000 + BLOCKS);
        let mut acknowledged = Acknowledged::new();
        for round in 0..10 {
            acknowledged.extend(writer.transaction(&journal, round));
        }
        journal.close().unwrap();
        check_blocks(&image, &acknowledged, "the checkpoint");
        run("e2fsck", &["-fn", image.path.to_str().unwrap()], &[0]);
        let mounted = Mount::new(&image, "rw");
        std::fs::write(mounted.dir.join("file"), b"the kernel goes on").unwrap();
        drop(mounted);
        run("e2fsck", &["-fn", image.path.to_str().unwrap()], &[0]);
    }
}

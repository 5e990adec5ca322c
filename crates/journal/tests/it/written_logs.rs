//! Tests with logs that our journal wrote before a crash: e2fsck and the kernel must replay them to
//! the acknowledged blocks, and debugfs must find the expected structure.
//!
//! The transactions change unused blocks of a real image. Needs root, loop devices and e2fsprogs;
//! prints that the test was skipped otherwise.

use std::collections::BTreeMap;

use fourscore_block::{
    BlockDevice, Buffer, DeviceOptions, RamDevice, Structure, VerifiedAs, open_path,
};
use fourscore_journal::{
    Background, Batching, Credits, FastCommitArea, Journal, JournalOptions, Log, NewChecksums,
    NoHook, recover, replay,
};
use fourscore_ondisk::jbd2::{BlockNumbers, JournalBlock, LogChecksums, MAGIC};
use fourscore_ondisk::{BlockCount, InodeNr, PhysBlock, Tid};
use fourscore_sync::{Arc, Mutex, thread};

use crate::kernel::{self, Image, Loop, Mount, can_run, compare, run};

const TOOLS: &[&str] = &["mke2fs", "e2fsck", "debugfs", "losetup"];
/// How many blocks the transactions change.
const BLOCKS: u64 = 24;
const WRITERS: u64 = 2;

/// The bytes of the blocks as of their last acknowledged transaction.
type Acknowledged = BTreeMap<PhysBlock, Vec<u8>>;

/// A log that was written and never closed, and the expected result of its replay.
struct Written {
    image: Image,
    /// The device of an external journal.
    journal: Option<Image>,
    last: Tid,
    acknowledged: Acknowledged,
}

/// The journal of the image on `device`, or the external one.
fn log(device: &Arc<dyn BlockDevice>, image: &Image, journal: Option<&Image>) -> Log {
    let block_size = image.block_size();
    let log = match journal {
        None => Log::open(Arc::clone(device), block_size, image.journal_map()),
        Some(journal) => Log::open_external(writable(journal), image.journal_uuid(), block_size),
    };
    log.unwrap()
}

fn writable(image: &Image) -> Arc<dyn BlockDevice> {
    Arc::new(open_path(&image.path, DeviceOptions::read_write()).unwrap())
}

/// Replays the image's journal and opens it for writing.
fn open(image: &Image, journal: Option<&Image>, options: JournalOptions) -> Journal {
    let device = writable(image);
    let mut log = log(&device, image, journal);
    let blocks = BlockCount(device.len_bytes() >> image.block_size().bits());
    let recovered = recover(&log, blocks).unwrap();
    replay(&mut log, &recovered, &*device).unwrap();
    Journal::open(log, device, Arc::new(NoHook), options).unwrap()
}

fn options(checksums: NewChecksums) -> JournalOptions {
    JournalOptions {
        background: Background::None,
        batching: Batching::Off,
        checksums,
        ..JournalOptions::default()
    }
}

/// Writes `rounds` transactions of each of two writers and leaves the log as a crash would.
fn write(image: Image, checksums: NewChecksums, rounds: u32) -> Written {
    write_to(image, None, options(checksums), rounds)
}

/// As [`write`], with a journal that may be external.
fn write_to(image: Image, device: Option<Image>, options: JournalOptions, rounds: u32) -> Written {
    let journal = open(&image, device.as_ref(), options);
    let all = std::fs::metadata(&image.path).unwrap().len() >> image.block_size().bits();
    // After the tables and the journal, and before the end: unused blocks.
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
        journal: device,
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

    /// Changes some blocks, every third one to bytes that must be escaped, and frees one; returns
    /// their bytes once the transaction is durable.
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
            // Freed and used again as metadata: from now on its bytes are checked again.
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

/// Compares the blocks after a replay with the acknowledged ones.
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

/// A copy of an image and of its journal's device, and the option that names the latter.
struct Copies {
    image: Image,
    journal: Option<Image>,
}

impl Written {
    fn copy(&self, name: &str) -> Copies {
        Copies {
            image: self.image.copy(name),
            journal: self.journal.as_ref().map(|journal| journal.copy(name)),
        }
    }

    /// The output of debugfs for the log.
    fn dump(&self) -> String {
        match &self.journal {
            None => self.image.debugfs("logdump -a"),
            Some(journal) => self
                .image
                .debugfs(&format!("logdump -a -f {}", journal.path.display())),
        }
    }
}

impl Copies {
    fn e2fsck(&self) {
        let mut args = vec!["-fy"];
        if let Some(journal) = &self.journal {
            args.extend(["-j", journal.path.to_str().unwrap()]);
        }
        args.push(self.image.path.to_str().unwrap());
        run("e2fsck", &args, &[0, 1]);
    }

    /// Lets the kernel mount and unmount the image.
    fn mount(&self) {
        let device = self
            .journal
            .as_ref()
            .map(|journal| Loop::attach(&journal.path));
        let options = device.as_ref().map_or_else(
            || "rw".to_owned(),
            |device| format!("rw,journal_path={}", device.device),
        );
        drop(Mount::new(&self.image, &options));
    }
}

/// Checks the log with debugfs, and replays it with e2fsck, the kernel and our own code.
fn check(written: &Written) -> LogChecksums {
    let (dump, last) = (written.dump(), written.last);
    let commit = format!("Found expected sequence {last}, type 2 (commit block)");
    assert!(dump.contains(&commit), "{commit}: not in\n{dump}");
    // A UUID may have these letters.
    let mut lines = dump.lines().filter(|line| !line.contains("uuid="));
    let complains = |line: &str| line.contains("bad") || line.contains("checksum");
    assert!(!lines.any(complains), "{dump}");
    // Compares all blocks, ours with e2fsck's; e2fsck empties the journal, so it gets a copy.
    let Written { image, journal, .. } = written;
    let found = log(&kernel::device(&image.path), image, journal.as_ref());
    let copy = journal.as_ref().map(|journal| journal.copy("journal"));
    let path = copy.as_ref().and_then(|copy| copy.path.to_str());
    let place: Vec<_> = path.into_iter().flat_map(|path| ["-j", path]).collect();
    let (found, recovered) = compare(image, found, &place);
    assert_eq!(recovered.last_tid(), Some(written.last));

    let by_e2fsck = written.copy("e2fsck");
    by_e2fsck.e2fsck();
    check_blocks(&by_e2fsck.image, &written.acknowledged, "e2fsck");
    check_without_e2fsck(written);
    found.superblock().log_format().checksums
}

fn check_without_e2fsck(written: &Written) {
    let by_kernel = written.copy("kernel");
    by_kernel.mount();
    check_blocks(&by_kernel.image, &written.acknowledged, "the kernel");
    let stats = by_kernel.image.debugfs("stats -h");
    assert!(!stats.contains("needs_recovery"), "{stats}");

    let by_us = written.copy("us");
    let options = options(NewChecksums::None);
    drop(open(&by_us.image, by_us.journal.as_ref(), options));
    check_blocks(&by_us.image, &written.acknowledged, "our replay");
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
fn a_log_that_wrapped() {
    if can_run(TOOLS) {
        let image = Image::make(&["-b", "1024", "-J", "size=1"], "48M");
        let written = write(image, NewChecksums::V3, 150);
        check(&written);
        // Two writers with at least 7 blocks in each of 150 transactions, or half as many.
        assert!(written.last.0 > 150, "{}", written.last);
    }
}

#[test]
fn a_log_in_many_pieces() {
    if can_run(TOOLS) {
        // The tables of each small group split the journal.
        let layout = ["-b", "1024", "-g", "512", "-O", "^flex_bg,^resize_inode"];
        let image = Image::make(&[&layout[..], &["-J", "size=1"]].concat(), "48M");
        let pieces = image.debugfs("stat <8>").matches("):").count();
        assert!(pieces > 2, "in {pieces} pieces");
        let written = write(image, NewChecksums::V3, 150);
        check(&written);
        assert!(written.last.0 > 150, "went around: {}", written.last);
    }
}

#[test]
fn a_log_before_a_fast_commit_area_turns_only_when_it_is_empty() {
    if can_run(TOOLS) {
        let features = ["-b", "1024", "-O", "fast_commit", "-J", "size=1"];
        let image = Image::make(&features, "48M");
        let reserving = JournalOptions {
            fast_commits: FastCommitArea::Reserved,
            ..options(NewChecksums::V3)
        };
        // Only then does the journal's superblock have the feature.
        open(&image, None, reserving).close().unwrap();
        let before = fast_commit_area(&image);
        assert!(before.len() >= 32 << 10, "{} bytes", before.len());
        check(&write_to(image.copy("short"), None, reserving, 30));
        let written = write_to(image, None, reserving, 150);
        assert!(written.last.0 > 150, "went around: {}", written.last);
        assert!(fast_commit_area(&written.image) == before);
        // debugfs and e2fsck take the area for a part of the log: they would not follow a wrap.
        check(&written);
    }
}

fn fast_commit_area(image: &Image) -> Vec<u8> {
    let log = log(&kernel::device(&image.path), image, None);
    let area = log.superblock().fast_commit_area();
    let mut bytes = Vec::new();
    for block in area.start.0..area.end.0 {
        let mut block_bytes = vec![0; log.block_size().bytes()];
        let offset = log.offset(JournalBlock(block)).unwrap();
        log.device().read_at(&mut block_bytes, offset).unwrap();
        bytes.extend(block_bytes);
    }
    bytes
}

#[test]
fn an_external_log() {
    if !can_run(TOOLS) {
        return;
    }
    for (block_bytes, size, checksums, rounds) in [
        ("4096", "16M", NewChecksums::V3, 30),
        // The log wraps.
        ("1024", "1100k", NewChecksums::V3, 150),
        ("1024", "16M", NewChecksums::None, 30),
    ] {
        let journal = Image::make(&["-O", "journal_dev", "-b", block_bytes], size);
        let attached = Loop::attach(&journal.path);
        let device = format!("device={}", attached.device);
        let image = Image::make(&["-b", block_bytes, "-J", &device], "48M");
        drop(attached);
        let written = write_to(image, Some(journal), options(checksums), rounds);
        let found = check(&written);
        let wants_v3 = checksums == NewChecksums::V3;
        assert_eq!(matches!(found, LogChecksums::V3 { .. }), wants_v3);
    }
}

/// Blocks beyond 2^32: the log is in a real image, so that debugfs can read it. debugfs finds each
/// tag, but prints the low halves only; so the test reads the high half of the first one itself.
#[test]
fn block_numbers_of_64_bits() {
    const FAR: u64 = (1 << 32) + 77;
    if !can_run(TOOLS) {
        return;
    }
    for checksums in [NewChecksums::V3, NewChecksums::None] {
        let image = Image::make(&["-O", "^64bit,^metadata_csum"], "48M");
        let home: Arc<dyn BlockDevice> = Arc::new(RamDevice::new(17 << 40));
        let blocks = BlockCount(home.len_bytes() >> image.block_size().bits());
        let (hook, mut options) = (Arc::new(NoHook), options(checksums));
        options.block_numbers = BlockNumbers::Wide;
        let log_now = || log(&writable(&image), &image, None);
        let journal = Journal::open(log_now(), Arc::clone(&home), hook, options).unwrap();
        let writer = Writer::new(&image, FAR..FAR + BLOCKS);
        let mut acknowledged = Acknowledged::new();
        for round in 0..6 {
            acknowledged.extend(writer.transaction(&journal, round));
        }
        drop(journal);
        let (dump, mut log) = (image.debugfs("logdump -a"), log_now());
        let recovered = recover(&log, blocks).unwrap();
        for copy in recovered.copies() {
            let line = format!("FS block {} logged at", copy.block.0 - (1 << 32));
            assert!(dump.contains(&line), "{line}\n{dump}");
        }
        assert_eq!(recovered.copies().len(), acknowledged.len());
        let mut descriptor = [0; 32];
        let first = log.offset(log.superblock().log().start).unwrap();
        log.device().read_at(&mut descriptor, first).unwrap();
        assert_eq!(descriptor[4..8], [0, 0, 0, 1], "a descriptor");
        assert_eq!(descriptor[20..24], [0, 0, 0, 1], "t_blocknr_high");
        replay(&mut log, &recovered, &*home).unwrap();
        for (block, expected) in &acknowledged {
            let mut found = vec![0; expected.len()];
            let offset = image.block_size().offset(*block);
            home.read_at(&mut found, offset).unwrap();
            assert!(found == *expected, "block {block}");
        }
    }
}

#[test]
fn a_closed_journal_is_clean() {
    if can_run(TOOLS) {
        let image = Image::make(&[], "48M");
        let journal = open(&image, None, options(NewChecksums::V3));
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

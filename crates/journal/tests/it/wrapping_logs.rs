//! Crash states of a log in front of a fast-commit area, which is filled several times: e2fsck must
//! recover what was committed from each of them, although it does not know where the log ends.
//!
//! The transactions change unused blocks of a real image. Needs e2fsprogs; prints that the test was
//! skipped otherwise.

use std::collections::BTreeMap;
use std::fs;

use fourscore_block::{
    BlockDevice, Buffer, Durable, Event, RamDevice, RecordingDevice, Structure, Survival,
    VerifiedAs,
};
use fourscore_journal::{
    Background, Batching, Credits, FastCommitArea, Journal, JournalOptions, Log, NoHook, recover,
};
use fourscore_ondisk::{BlockCount, InodeNr, PhysBlock};
use fourscore_sync::Arc;

use crate::kernel::{Image, can_run, device, run};

/// The first block that the transactions change; all from there on are unused.
const FIRST: u64 = 7 << 10;

/// The last round that changed each block, after a number of rounds.
type Rounds = BTreeMap<u64, u8>;

/// A log that was filled several times, and what its blocks held after each round.
struct Filled {
    image: Image,
    recorded: Arc<RecordingDevice>,
    after: Vec<Rounds>,
}

/// What arrives of the writes that are not durable at a crash.
#[derive(Clone, Copy, Debug)]
enum Arrives {
    Nothing,
    EverySecond,
    Everything,
}

/// Rounds that fill the log to its last block, which a transaction can do that takes its whole
/// share: the log has 1023 blocks, a share is 255, and changing one block takes 3.
const TO_THE_LAST_BLOCK: u64 = 5;

/// The number of blocks that each round changes, at most `most`.
fn dirty_blocks(most: u64) -> Vec<u64> {
    let mut rounds = vec![most, most, most, 1, most];
    rounds.extend([most; 4]);
    rounds.extend((0..30).map(|round| 1 + round * 37 % (most - 1)));
    rounds.extend([most; 5]);
    rounds
}

fn fill() -> Filled {
    let features = ["-b", "1024", "-O", "fast_commit", "-J", "size=1"];
    let image = Image::make(&features, "8M");
    let path = image.path.to_str().unwrap();
    run(
        "debugfs",
        &["-w", "-R", "feature needs_recovery", path],
        &[0],
    );
    let recorded = Arc::new(RecordingDevice::new(device(&image.path)));
    let dynamic: Arc<dyn BlockDevice> = recorded.clone();
    let options = JournalOptions {
        background: Background::None,
        batching: Batching::Off,
        fast_commits: FastCommitArea::Reserved,
        ..JournalOptions::default()
    };
    let log = open_log(&image, &dynamic);
    let journal = Journal::open(log, Arc::clone(&dynamic), Arc::new(NoHook), options).unwrap();
    let most = u64::from(journal.most_credits().0);
    let buffers: Vec<_> = (FIRST..FIRST + most)
        .map(|block| Arc::new(Buffer::new(PhysBlock(block), vec![0; 1024].into())))
        .collect();
    let mut after = vec![(FIRST..FIRST + most).map(|block| (block, 0)).collect()];
    let mut now: Rounds = after.last().cloned().unwrap_or_default();
    for (round, dirty) in (1_u8..).zip(dirty_blocks(most)) {
        let mut handle = journal
            .start(Credits(u32::try_from(dirty).unwrap()))
            .unwrap();
        let tag = VerifiedAs::new(Structure::Xattrs, InodeNr(0));
        // Not always the same blocks, so that the log has the last copy of some for a long time.
        let changed = (0..most).cycle().skip(usize::from(round) * 53);
        for at in changed.take(usize::try_from(dirty).unwrap()) {
            let buffer = &buffers[usize::try_from(at).unwrap()];
            handle
                .modify(buffer, tag, |bytes| bytes.fill(round))
                .unwrap();
            now.insert(FIRST + at, round);
        }
        journal.commit_and_wait(handle.stop()).unwrap();
        recorded.note(u64::from(round));
        if u64::from(round) == TO_THE_LAST_BLOCK {
            let log = open_log(&image, &dynamic).superblock().log();
            let log_blocks = u64::from(log.end.0 - log.start.0);
            assert_eq!(journal.stats().log_blocks, log_blocks);
        }
        after.push(now.clone());
    }
    let written = journal.stats().log_blocks;
    assert!(written > 4 * 1024, "filled several times: {written}");
    drop(journal);
    Filled {
        image,
        recorded,
        after,
    }
}

fn open_log(image: &Image, device: &Arc<dyn BlockDevice>) -> Log {
    Log::open(Arc::clone(device), image.block_size(), image.journal_map()).unwrap()
}

impl Filled {
    /// Where a crash is of interest: before each flush and each write with FUA, and at the end.
    /// Each with the number of rounds that were acknowledged by then.
    fn cuts(&self) -> Vec<(usize, usize)> {
        let (mut rounds, mut cuts) = (0, Vec::new());
        for (cut, event) in self.recorded.events().iter().enumerate() {
            match event {
                Event::Note(round) => rounds = usize::try_from(*round).unwrap(),
                Event::Write {
                    durable: Durable::AfterFlush,
                    ..
                } => {}
                _ => cuts.push((cut, rounds)),
            }
        }
        cuts.push((self.recorded.cuts(), rounds));
        cuts
    }

    fn crashed(&self, cut: usize, arrives: Arrives) -> RamDevice {
        let survival = |index: usize, _: &Event| match arrives {
            Arrives::Everything => Survival::Kept,
            Arrives::EverySecond if index.is_multiple_of(2) => Survival::Kept,
            Arrives::EverySecond | Arrives::Nothing => Survival::Lost,
        };
        self.recorded.crashed(cut, survival).unwrap()
    }

    /// Reads the device as it is after our replay.
    fn replayed(&self, state: Arc<dyn BlockDevice>, content: &mut [u8]) {
        let log = open_log(&self.image, &state);
        let recovered = recover(&log, BlockCount(8 << 10)).unwrap();
        let overlay = recovered.overlay(&log, state).unwrap();
        overlay.read_at(content, 0).unwrap();
    }

    /// Whether the blocks of `content` are those after `rounds`, or after one more, whose commit
    /// was under way.
    fn holds(&self, content: &[u8], rounds: usize) -> bool {
        let candidates = self.after.iter().skip(rounds).take(2);
        candidates.into_iter().any(|expected| {
            expected.iter().all(|(block, round)| {
                let at = usize::try_from(*block).unwrap() * 1024;
                content[at..at + 1024].iter().all(|byte| byte == round)
            })
        })
    }
}

#[test]
fn e2fsck_recovers_all_that_was_committed_from_each_crash_state() {
    if !can_run(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let filled = fill();
    let crashed = filled.image.copy("crashed");
    let path = crashed.path.to_str().unwrap();
    let mut content = vec![0; 8 << 20];
    for (cut, rounds) in filled.cuts() {
        for arrives in [Arrives::Nothing, Arrives::EverySecond, Arrives::Everything] {
            let state = Arc::new(filled.crashed(cut, arrives));
            state.read_at(&mut content, 0).unwrap();
            fs::write(&crashed.path, &content).unwrap();
            run("e2fsck", &["-fy", path], &[0, 1]);
            let by_e2fsck = fs::read(&crashed.path).unwrap();
            let here = format!("cut {cut} after round {rounds}, {arrives:?}");
            assert!(filled.holds(&by_e2fsck, rounds), "e2fsck: {here}");
            filled.replayed(state, &mut content);
            assert!(filled.holds(&content, rounds), "ours: {here}");
        }
    }
}

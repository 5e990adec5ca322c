//! Other hosts are kept away while the size changes, and are left alone (feature `mmp`).

use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, Instant};

use fourscore::block::{BlockDevice, DeviceOptions, RamDevice, open_path};
use fourscore::{Fs, MountOptions};
use fourscore_block::RecordingDevice;
use fourscore_block::mmp::hurry;
use fourscore_ondisk::BlockCount;
use fourscore_ondisk::mmp::MmpSequence;
use fourscore_resize::{ResizeError, Resizer, Width};
use fourscore_sync::Arc;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::other_host::{self, OtherHost, check_claim};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

/// By how much the hosts of these tests are faster than real ones, and what they wait then.
const SPEED: u32 = 100;
const WAIT: Duration = Duration::from_millis(11_000 / SPEED as u64);
/// Less than one group less than the image has, so that nothing moves; and less than half.
const CUT: BlockCount = BlockCount(30 << 10);
const HALF: BlockCount = BlockCount(14 << 10);

type Work = fn(&mut Resizer) -> fourscore_resize::Result<()>;

const WORKS: [Work; 4] = [
    |resizer| resizer.resize(HALF).map(drop),
    |resizer| resizer.resize(CUT).map(drop),
    |resizer| resizer.shrink().map(drop),
    |resizer| resizer.set_width(Width::Narrow),
];

fn image() -> Image {
    hurry(NonZeroU32::new(SPEED).unwrap());
    let image = Image::builder(MiB(32)).kind("ext4").block_size_bytes(1024);
    image.features(&["mmp"]).make().unwrap()
}

fn opened(image: &Path) -> Resizer {
    let device = open_path(image, DeviceOptions::read_write()).unwrap();
    Resizer::open(Arc::new(device)).unwrap()
}

#[track_caller]
fn assert_refused<T>(result: fourscore_resize::Result<T>, expected: &str) {
    match result.map(drop) {
        Err(ResizeError::NotAtRest(text)) => assert!(text.contains(expected), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_host_that_is_alive_is_left_alone() {
    require!(Need::Program("mke2fs"));
    let image = image();
    let host = OtherHost::mounts(image.path(), WAIT / 11).unwrap();
    for work in WORKS {
        assert_refused(work(&mut opened(image.path())), "mounted on host elsewhere");
    }
    drop(host);
    // A check that runs elsewhere is refused at once.
    other_host::leave(image.path(), MmpSequence::Fsck).unwrap();
    for work in WORKS {
        assert_refused(
            work(&mut opened(image.path())),
            "a check of it runs on host",
        );
    }
    let mut resizer = opened(image.path());
    assert_refused(resizer.claim(), "a check of it runs on host");
    // What is only read needs no claim.
    let blocks = resizer.geometry().blocks();
    resizer.least().unwrap();
    assert_eq!(resizer.resize(blocks).unwrap(), blocks);
    other_host::leave(image.path(), MmpSequence::Clean).unwrap();
    assert_clean(image.path());
}

#[test]
fn what_a_host_left_that_died_is_taken_after_a_while() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    for work in WORKS {
        let image = image();
        other_host::leave(image.path(), MmpSequence::InUse(9)).unwrap();
        let began = Instant::now();
        work(&mut opened(image.path())).unwrap();
        assert!(began.elapsed() >= 2 * WAIT);
        let block = other_host::block(image.path()).unwrap();
        assert_eq!(block.sequence(), MmpSequence::Clean);
        assert_clean(image.path());
    }
}

/// All writes are under the claim, and nothing is mounted meanwhile. The block stays where it is.
#[test]
fn the_file_system_is_claimed_while_it_is_written() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let grows: Work = |resizer| resizer.resize(BlockCount(48 << 10)).map(drop);
    for work in WORKS.into_iter().chain([grows]) {
        let image = image();
        let mut bytes = std::fs::read(image.path()).unwrap();
        bytes.resize(48 << 20, 0);
        let recording = Arc::new(RecordingDevice::new(Arc::new(RamDevice::from_bytes(
            &bytes,
        ))));
        let device: Arc<dyn BlockDevice> = Arc::<RecordingDevice>::clone(&recording);
        let before = Fs::open(Arc::clone(&device), &fourscore::OpenOptions::new()).unwrap();
        let before = before.superblock().clone();
        work(&mut Resizer::open(device).unwrap()).unwrap();
        let during = check_claim(&recording.events(), &before).unwrap();
        for cut in [during.start, (during.start + during.end) / 2, during.end] {
            let state = Arc::new(recording.as_of(cut).unwrap());
            let error = Fs::mount(state, &MountOptions::new()).unwrap_err();
            assert!(matches!(error, fourscore::Error::InUse(_)), "{error}");
        }
        recording.read_at(&mut bytes, 0).unwrap();
        std::fs::write(image.path(), &bytes).unwrap();
        assert_clean(image.path());
        let fs = Fs::mount(recording, &MountOptions::new()).unwrap();
        assert_eq!(fs.superblock().mmp_block(), before.mmp_block());
        fs.unmount().unwrap();
    }
}

#[test]
fn a_caller_claims_it_for_more_than_one_call() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = image();
    let mut resizer = opened(image.path());
    resizer.claim().unwrap();
    resizer.resize(HALF).unwrap();
    let sequence = || other_host::block(image.path()).unwrap().sequence();
    assert_eq!(sequence(), MmpSequence::Fsck);
    // Another host has written all the same.
    other_host::leave(image.path(), MmpSequence::InUse(3)).unwrap();
    let grown = resizer.resize(CUT);
    assert_refused(grown, "mounted on host elsewhere");
    assert_refused(resizer.release(), "mounted on host elsewhere");
    other_host::leave(image.path(), MmpSequence::Clean).unwrap();
    resizer.claim().unwrap();
    resizer.resize(CUT).unwrap();
    resizer.release().unwrap();
    assert_eq!(sequence(), MmpSequence::Clean);
    drop(resizer);
    assert_clean(image.path());
}

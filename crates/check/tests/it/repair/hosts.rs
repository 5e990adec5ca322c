//! A repair and a change of features keep other hosts away, and are kept away by them.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use fourscore::{Fs, MountOptions};
use fourscore_block::mmp::hurry;
use fourscore_block::{BlockDevice, DeviceOptions, RamDevice, RecordingDevice, open_path};
use fourscore_check::{Change, CheckOptions, ConvertError, Scope, Switch, convert, repair};
use fourscore_ondisk::mmp::MmpSequence;
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, Superblock};
use fourscore_ondisk::{PhysBlock, RawSuperblock};
use fourscore_sync::Arc;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::other_host::{self, OtherHost, check_claim};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use zerocopy::IntoBytes;

/// By how much the hosts of these tests are faster than real ones, and what they wait then.
const SPEED: u32 = 100;
const WAIT: Duration = Duration::from_millis(11_000 / SPEED as u64);

/// A work on a file system that is not mounted.
type Work = fn(&Arc<dyn BlockDevice>) -> Result<()>;

const WORKS: [Work; 3] = [repaired, converted, tuned];

fn repaired(device: &Arc<dyn BlockDevice>) -> Result<()> {
    let repaired = repair(
        Arc::clone(device),
        &CheckOptions::default(),
        Scope::Everything,
    )?;
    ensure!(repaired.is_clean(), "{:?}", repaired.left);
    Ok(())
}

/// Checksums are computed again, that of the block among them.
fn converted(device: &Arc<dyn BlockDevice>) -> Result<()> {
    let changes = [Switch::Off, Switch::On].map(Change::MetadataCsum);
    let mut changes = changes.iter().map(std::slice::from_ref);
    changes.try_for_each(|change| converted_by(device, change))
}

fn converted_by(device: &Arc<dyn BlockDevice>, changes: &[Change]) -> Result<()> {
    let mut rest = |_: &dyn BlockDevice| Ok::<(), ConvertError<()>>(());
    let done = convert(
        Arc::clone(device),
        &CheckOptions::default(),
        changes,
        &mut rest,
    );
    done.map_err(|why| anyhow!("{why:?}"))
}

/// A change of the superblock alone.
fn tuned(device: &Arc<dyn BlockDevice>) -> Result<()> {
    let mut rest = |device: &dyn BlockDevice| {
        let mut raw = *superblock(device).raw();
        raw.s_volume_name = [b'x'; 16];
        if superblock(device).has_metadata_csum() {
            raw.seal();
        }
        device.write_at(raw.as_bytes(), SUPERBLOCK_OFFSET_BYTES)
    };
    let done = convert(Arc::clone(device), &CheckOptions::default(), &[], &mut rest);
    done.map_err(|why| anyhow!("{why}"))
}

fn image() -> Image {
    hurry(NonZeroU32::new(SPEED).unwrap());
    let image = Image::builder(MiB(8)).kind("ext4").features(&["mmp"]);
    image.make().unwrap()
}

/// Gives a repair something to mend. Written in place, as debugfs would wait for the block.
fn damage(image: &Image) {
    const GROUP_0_FREE_BLOCKS: u64 = 0xc;
    let device = opened(image.path());
    let sb = superblock(&*device);
    let table = sb.geometry().primary_table().start.0 + 1;
    let at = sb.geometry().block_size().offset(PhysBlock(table)) + GROUP_0_FREE_BLOCKS;
    device.write_at(&[1, 0], at).unwrap();
    device.flush().unwrap();
}

fn opened(image: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(open_path(image, DeviceOptions::read_write()).unwrap())
}

fn superblock(device: &dyn BlockDevice) -> Superblock {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES).unwrap();
    Superblock::try_from(RawSuperblock::from_bytes(&bytes).unwrap()).unwrap()
}

#[test]
fn a_host_that_is_alive_is_left_alone() {
    require!(Need::Program("mke2fs"));
    let image = image();
    let before = std::fs::read(image.path()).unwrap();
    for work in WORKS {
        let host = OtherHost::mounts(image.path(), WAIT / 11).unwrap();
        let error = work(&opened(image.path())).unwrap_err().to_string();
        assert!(error.contains("mounted on host elsewhere"), "{error}");
        drop(host);
        // A check that runs elsewhere is refused at once.
        other_host::leave(image.path(), MmpSequence::Fsck).unwrap();
        let error = work(&opened(image.path())).unwrap_err().to_string();
        assert!(error.contains("a check of it runs on host"), "{error}");
    }
    other_host::leave(image.path(), MmpSequence::Clean).unwrap();
    let after = std::fs::read(image.path()).unwrap();
    let differs = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    assert!(differs < 1024, "more than the block has changed");
}

#[test]
fn what_a_host_left_that_died_is_taken_after_a_while() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    for work in WORKS {
        let image = image();
        other_host::leave(image.path(), MmpSequence::InUse(9)).unwrap();
        let began = Instant::now();
        work(&opened(image.path())).unwrap();
        assert!(began.elapsed() >= 2 * WAIT);
        let block = other_host::block(image.path()).unwrap();
        assert_eq!(block.sequence(), MmpSequence::Clean);
        assert_ne!(block.node_name(), other_host::NAME.as_bytes());
        assert_clean(image.path());
    }
}

/// All writes are under the claim, and nothing is mounted meanwhile.
#[test]
fn the_file_system_is_claimed_while_it_is_written() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let without_csum: Work = |device| converted_by(device, &[Change::MetadataCsum(Switch::Off)]);
    for work in [repaired, without_csum, tuned] {
        let image = image();
        if std::ptr::fn_addr_eq(work, repaired as Work) {
            damage(&image);
        }
        let base = Arc::new(RamDevice::from_bytes(&std::fs::read(image.path()).unwrap()));
        let sb = superblock(&*base);
        let recording = Arc::new(RecordingDevice::new(base));
        let device: Arc<dyn BlockDevice> = Arc::<RecordingDevice>::clone(&recording);
        work(&device).unwrap();
        let events = recording.events();
        let during = check_claim(&events, &sb).unwrap();
        // A flush is before the release in any case.
        assert!(during.len() > 1, "nothing was written");
        for cut in [during.start, during.end] {
            let state = Arc::new(recording.as_of(cut).unwrap());
            let error = Fs::mount(state, &MountOptions::new()).unwrap_err();
            assert!(matches!(error, fourscore::Error::InUse(_)), "{error}");
        }
        let mut after = std::fs::read(image.path()).unwrap();
        recording.read_at(&mut after, 0).unwrap();
        std::fs::write(image.path(), after).unwrap();
        assert_clean(image.path());
        let fs = Fs::mount(recording, &MountOptions::new()).unwrap();
        fs.unmount().unwrap();
    }
}

/// A damaged block does not say which host has the file system. The repair writes a new one.
#[test]
fn a_damaged_block_keeps_no_repair_away() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = image();
    let device = opened(image.path());
    let sb = superblock(&*device);
    let at = sb.geometry().block_size().offset(sb.mmp_block().unwrap());
    device.write_at(b"????", at + 8).unwrap();
    tuned(&device).unwrap_err();
    repaired(&device).unwrap();
    drop(device);
    let block = other_host::block(image.path()).unwrap();
    assert_eq!(block.sequence(), MmpSequence::Clean);
    assert_clean(image.path());
}

/// A check does not claim anything.
#[test]
fn a_check_writes_nothing() {
    require!(Need::Program("mke2fs"));
    let image = image();
    other_host::leave(image.path(), MmpSequence::InUse(9)).unwrap();
    let before = std::fs::read(image.path()).unwrap();
    let report = crate::common::report(image.path(), 1).unwrap();
    assert!(report.findings().is_empty(), "{:?}", report.findings());
    assert!(std::fs::read(image.path()).unwrap() == before);
}

/// Another feature is switched while the block comes or goes.
#[test]
fn the_feature_itself_is_switched() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = image();
    for switch in [Switch::Off, Switch::On, Switch::Off] {
        let changes = [Change::Mmp(switch), Change::OrphanFile(switch)];
        converted_by(&opened(image.path()), &changes).unwrap();
        assert_clean(image.path());
    }
}

/// A damaged superblock names a block that belongs to something else, which a repair writes.
#[test]
fn a_block_that_is_also_an_inode_table_does_not_keep_the_claim() {
    require!(Need::Program("mke2fs"));
    hurry(NonZeroU32::new(SPEED).unwrap());
    let image = Image::builder(MiB(24))
        .kind("ext4")
        .block_size_bytes(1024)
        .features(&["mmp", "^metadata_csum"]);
    let image = image.make().unwrap();
    let device = opened(image.path());
    let sb = superblock(&*device);
    let size = sb.geometry().block_size();
    // Inodes that are not in use, behind those that are.
    let mut desc = [0; 32];
    let table = sb.geometry().primary_table().start.0 + 1;
    device
        .read_at(&mut desc, size.offset(PhysBlock(table)))
        .unwrap();
    let start = u64::from(u32::from_le_bytes(desc[8..12].try_into().unwrap()));
    let place = PhysBlock(start + 4);
    let mut block = [0; 1024];
    let mmp = sb.mmp_block().unwrap();
    device.read_at(&mut block, size.offset(mmp)).unwrap();
    device.write_at(&block, size.offset(place)).unwrap();
    let mut raw = *sb.raw();
    raw.s_mmp_block = place.0.into();
    device
        .write_at(raw.as_bytes(), SUPERBLOCK_OFFSET_BYTES)
        .unwrap();
    device.flush().unwrap();
    drop(device);
    for _ in 0..2 {
        let options = CheckOptions::default();
        let repaired = repair(opened(image.path()), &options, Scope::Everything).unwrap();
        assert!(repaired.is_clean(), "{:?}", repaired.left);
    }
}

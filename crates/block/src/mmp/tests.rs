//! A file system is claimed, and refused where another host has it. The other host writes the image
//! file, past the device of this one.

use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, Instant};

use fourscore_ondisk::RawSuperblock;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::mmp::MmpSequence;
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES};
use fourscore_sync::thread;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::other_host::{self, OtherHost};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::*;
use crate::{DeviceOptions, Durable, Event, RamDevice, RecordingDevice, open_path};

/// By how much the hosts of these tests are faster than real ones.
const SPEED: u32 = 100;
/// What is waited for a number: twice 5 seconds, and one more.
const WAIT: Duration = Duration::from_millis(11_000 / SPEED as u64);

fn image() -> Image {
    hurry(NonZeroU32::new(SPEED).unwrap());
    let image = Image::builder(MiB(8)).kind("ext4").features(&["mmp"]);
    image.make().unwrap()
}

fn opened(image: &Image) -> (Arc<dyn BlockDevice>, Superblock) {
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let sb = superblock(&device);
    (Arc::new(device), sb)
}

fn superblock(device: &dyn BlockDevice) -> Superblock {
    Superblock::try_from(&raw_superblock(device)).unwrap()
}

fn raw_superblock(device: &dyn BlockDevice) -> RawSuperblock {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES).unwrap();
    *RawSuperblock::from_bytes(&bytes).unwrap()
}

/// Changes the superblock, as a program does that has claimed the file system.
fn change_superblock(device: &dyn BlockDevice, change: impl FnOnce(&mut RawSuperblock)) {
    let mut raw = raw_superblock(device);
    change(&mut raw);
    raw.seal();
    let written = device.write_at(raw.as_bytes(), SUPERBLOCK_OFFSET_BYTES);
    written.unwrap();
}

fn sequence(image: &Path) -> MmpSequence {
    other_host::block(image).unwrap().sequence()
}

#[track_caller]
fn assert_refused<T>(result: Result<T>, expected: &str) {
    match result.map(drop) {
        Err(ClaimError::InUse(text)) => assert!(text.contains(expected), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_clean_file_system_is_claimed_at_once_and_is_as_before_in_the_end() {
    require!(Need::Program("mke2fs"));
    let image = image();
    let before = fs::read(image.path()).unwrap();
    let (device, sb) = opened(&image);
    let began = Instant::now();
    let claimed = Claimed::take(Arc::clone(&device), &sb).unwrap();
    assert!(began.elapsed() < WAIT);
    assert_eq!(sequence(image.path()), MmpSequence::Fsck);
    let host = String::from_utf8(node_name().unwrap()).unwrap();
    assert_refused(Claim::take(&device, &sb), &format!("on host {host}, from"));
    assert_refused(Claimed::take(Arc::clone(&device), &sb), "clear_mmp");
    claimed.confirm().unwrap();
    claimed.release().unwrap();
    assert!(fs::read(image.path()).unwrap() == before);
    // A drop releases it, too.
    drop(Claimed::take(Arc::clone(&device), &sb).unwrap());
    assert!(fs::read(image.path()).unwrap() == before);
}

#[test]
fn the_claim_is_durable_before_and_after_everything_else() {
    require!(Need::Program("mke2fs"));
    let image = image();
    let base: Arc<dyn BlockDevice> =
        Arc::new(RamDevice::from_bytes(&fs::read(image.path()).unwrap()));
    let sb = superblock(&base);
    let recording = Arc::new(RecordingDevice::new(base));
    let device: Arc<dyn BlockDevice> = Arc::<RecordingDevice>::clone(&recording);
    let claimed = Claimed::take(Arc::clone(&device), &sb).unwrap();
    let gate = Arc::clone(claimed.device());
    gate.write_at(&[1; 512], 512).unwrap();
    claimed.release().unwrap();
    let at_once = Durable::AtOnce;
    let durable: Vec<_> = recording
        .events()
        .iter()
        .map(|event| match event {
            Event::Write { durable, .. } => Some(*durable),
            _ => None,
        })
        .collect();
    let expected = [
        Some(at_once),
        Some(at_once),
        Some(Durable::AfterFlush),
        None,
        Some(at_once),
    ];
    assert_eq!(durable, expected);
    // A thread that still works cannot write any more.
    gate.write_at(&[2; 512], 512).unwrap_err();
    gate.write_fua(&[IoSlice::new(&[2; 512])], 512).unwrap_err();
    gate.write_zeroes(0..512).unwrap_err();
    gate.discard(0..512).unwrap_err();
    assert_eq!(recording.events().len(), expected.len());
}

#[test]
fn a_host_that_is_alive_is_left_alone() {
    require!(Need::Program("mke2fs"));
    let image = image();
    let (device, sb) = opened(&image);
    let host = OtherHost::mounts(image.path(), WAIT / 11).unwrap();
    assert_refused(
        Claimed::take(Arc::clone(&device), &sb),
        "on host elsewhere, from sdx",
    );
    assert_refused(Claim::take(&device, &sb), "on host elsewhere, from sdx");
    drop(host);
    let block = other_host::block(image.path()).unwrap();
    assert_eq!(block.node_name(), other_host::NAME.as_bytes());
}

#[test]
fn a_number_that_stays_the_same_is_waited_for_and_taken() {
    require!(Need::Program("mke2fs"));
    let image = image();
    let (device, sb) = opened(&image);
    other_host::leave(image.path(), MmpSequence::InUse(7)).unwrap();
    let began = Instant::now();
    let claimed = Claimed::take(Arc::clone(&device), &sb).unwrap();
    assert!(began.elapsed() >= 2 * WAIT);
    claimed.release().unwrap();
    let block = other_host::block(image.path()).unwrap();
    assert_eq!(block.sequence(), MmpSequence::Clean);
    assert_eq!(block.node_name(), node_name().unwrap());
}

#[test]
fn of_two_hosts_that_wait_for_a_number_one_takes_it() {
    require!(Need::Program("mke2fs"));
    let image = image();
    let (device, sb) = opened(&image);
    other_host::leave(image.path(), MmpSequence::InUse(7)).unwrap();
    let taken = thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| Claim::take(&device, &sb)));
        both.map(|host| host.join().unwrap().is_ok())
    });
    assert_eq!(taken.iter().filter(|&&is_ours| is_ours).count(), 1);
}

#[test]
fn what_a_check_left_is_refused_until_it_is_cleared() {
    require!(Need::Program("mke2fs"));
    let image = image();
    let (device, sb) = opened(&image);
    other_host::leave(image.path(), MmpSequence::Fsck).unwrap();
    assert_refused(
        Claimed::take(Arc::clone(&device), &sb),
        "a check of it runs on host else",
    );
    clear(&*device, &sb).unwrap();
    Claimed::take(Arc::clone(&device), &sb)
        .unwrap()
        .release()
        .unwrap();
    // A damaged block does not say which host has it.
    let at = sb.geometry().block_size().offset(sb.mmp_block().unwrap());
    device.write_at(b"????", at + 8).unwrap();
    let damaged = Claimed::take(Arc::clone(&device), &sb);
    assert!(
        matches!(damaged, Err(ClaimError::Corrupt(_))),
        "{damaged:?}"
    );
    clear(&*device, &sb).unwrap();
    Claimed::take(Arc::clone(&device), &sb)
        .unwrap()
        .release()
        .unwrap();
}

/// Two hosts that read the clean value at the same moment.
#[test]
fn what_another_host_writes_meanwhile_is_found_and_left_alone() {
    require!(Need::Program("mke2fs"));
    let image = image();
    let (device, sb) = opened(&image);
    let claimed = Claimed::take(Arc::clone(&device), &sb).unwrap();
    other_host::leave(image.path(), MmpSequence::InUse(3)).unwrap();
    assert_refused(claimed.confirm(), "mounted on host elsewhere");
    assert_refused(claimed.release(), "mounted on host elsewhere");
    assert_eq!(sequence(image.path()), MmpSequence::InUse(3));
    other_host::leave(image.path(), MmpSequence::Clean).unwrap();
    let claimed = Claimed::take(Arc::clone(&device), &sb).unwrap();
    // A user has cleared it although this program runs.
    other_host::leave(image.path(), MmpSequence::Clean).unwrap();
    assert_refused(claimed.confirm(), "was cleared");
}

#[test]
fn a_claim_ends_by_the_superblock_that_is_there_then() {
    require!(Need::Program("mke2fs"));
    let image = image();
    let (device, sb) = opened(&image);
    let place = sb.mmp_block().unwrap();
    // All checksums depend on the UUID.
    let claimed = Claimed::take(Arc::clone(&device), &sb).unwrap();
    let found = read(&*device, &sb, place).unwrap();
    change_superblock(&*device, |raw| raw.s_uuid = [7; 16]);
    let sb = superblock(&device);
    let mut raw = *found.raw();
    raw.seal(&sb);
    let at = sb.geometry().block_size().offset(place);
    device.write_at(raw.as_bytes(), at).unwrap();
    claimed.release().unwrap();
    assert_eq!(sequence(image.path()), MmpSequence::Clean);
    // Without the feature the block is free, and may have other content.
    let claimed = Claimed::take(Arc::clone(&device), &sb).unwrap();
    change_superblock(&*device, |raw| {
        let incompat = raw.features().incompat - Incompat::MMP;
        raw.s_feature_incompat = incompat.bits().into();
    });
    device.write_at(&[9; 1024], at).unwrap();
    claimed.release().unwrap();
    let mut bytes = [0; 1024];
    device.read_at(&mut bytes, at).unwrap();
    assert_eq!(bytes, [9; 1024]);
    // Then there is nothing to claim.
    let claimed = Claimed::take(Arc::clone(&device), &superblock(&device)).unwrap();
    assert!(Arc::ptr_eq(claimed.device(), &device));
    claimed.confirm().unwrap();
    claimed.release().unwrap();
}

#[test]
fn a_mount_renews_its_number() {
    require!(Need::Program("mke2fs"));
    let image = image();
    let (device, sb) = opened(&image);
    let mut claim = Claim::take(&device, &sb).unwrap().unwrap();
    let first = sequence(image.path());
    claim.renew().unwrap();
    assert_ne!(sequence(image.path()), first);
    // If it is not late, no other host can have taken the file system.
    other_host::leave(image.path(), MmpSequence::InUse(3)).unwrap();
    claim.renew().unwrap();
    claim.check_seconds = 0;
    other_host::leave(image.path(), MmpSequence::InUse(3)).unwrap();
    assert_refused(claim.renew(), "mounted on host elsewhere");
    assert_eq!(sequence(image.path()), MmpSequence::InUse(3));
    claim.release().unwrap();
    assert_eq!(sequence(image.path()), MmpSequence::Clean);
}

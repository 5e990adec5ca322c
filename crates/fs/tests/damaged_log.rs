//! A log whose last transaction is damaged: a read-write mount refuses what no crash explains, and
//! writes nothing; a torn commit block is what a crash leaves.

use fourscore::block::{BlockDevice, RamDevice};
use fourscore::{CorruptKind, Error, Fs, MountOptions, OpenOptions};
use fourscore_ondisk::jbd2::{Damage, JournalError};
use fourscore_sync::Arc;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, require};

const BLOCK: usize = 1024;
const MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];
const DESCRIPTOR: u8 = 1;
const COMMIT: u8 = 2;

/// The image of a file system that crashed after three files were synced, each in a transaction of
/// its own.
fn crashed() -> Vec<u8> {
    let image = Image::builder(MiB(16))
        .kind("ext4")
        .block_size_bytes(1024)
        .make()
        .unwrap();
    let device = RamDevice::from_bytes(&std::fs::read(image.path()).unwrap());
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let fs = Fs::mount(Arc::clone(&device), &MountOptions::new()).unwrap();
    for name in ["/f1", "/f2", "/f3"] {
        fs.paths().write(name, [7; 100]).unwrap();
        fs.sync().unwrap();
    }
    let mut bytes = vec![0; usize::try_from(device.len_bytes()).unwrap()];
    device.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Where the last block of this kind is in the log, in bytes.
fn last(bytes: &[u8], kind: u8) -> usize {
    let is_kind = |block: &[u8]| block.starts_with(&MAGIC) && block[4..8] == [0, 0, 0, kind];
    let tid = |block: &[u8]| u32::from_be_bytes(block[8..12].try_into().unwrap());
    let blocks = bytes.chunks(BLOCK).enumerate();
    let found = blocks.filter(|(_, block)| is_kind(block));
    found.max_by_key(|(_, block)| tid(block)).unwrap().0 * BLOCK
}

fn mount(bytes: &[u8]) -> (Arc<dyn BlockDevice>, fourscore::Result<Arc<Fs>>) {
    let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::from_bytes(bytes));
    let mounted = Fs::mount(Arc::clone(&device), &MountOptions::new());
    (device, mounted)
}

fn names(fs: &Fs) -> Vec<bool> {
    let names = ["/f1", "/f2", "/f3"];
    let is_there = |name: &&str| fs.paths().metadata(*name).is_ok();
    names.iter().map(is_there).collect()
}

#[test]
fn a_damaged_copy_in_a_committed_transaction_refuses_the_mount() {
    require!(Need::Program("mke2fs"));
    let intact = crashed();
    let (_, mounted) = mount(&intact);
    assert_eq!(names(&mounted.unwrap()), [true; 3]);

    let mut damaged = intact.clone();
    let descriptor = last(&intact, DESCRIPTOR);
    damaged[descriptor + BLOCK + 100] ^= 1;
    let (device, mounted) = mount(&damaged);
    let Err(Error::Corrupt(why)) = mounted else {
        panic!("synced changes are lost");
    };
    let CorruptKind::Journal(JournalError::DamagedLast { damage, .. }) = why.kind() else {
        panic!("{why}");
    };
    assert!(matches!(damage, Damage::Copy { .. }), "{damage}");
    let mut after = vec![0; damaged.len()];
    device.read_at(&mut after, 0).unwrap();
    assert!(after == damaged, "the refused mount has written");
    let readable = Fs::open(device, &OpenOptions::new()).unwrap();
    assert_eq!(names(&readable), [true, true, false]);
    assert!(readable.journal_damage().is_some());
}

#[test]
fn a_torn_commit_block_is_what_a_crash_leaves() {
    require!(Need::Program("mke2fs"));
    let mut torn = crashed();
    let commit = last(&torn, COMMIT);
    torn[commit + 700] ^= 1;
    let (_, mounted) = mount(&torn);
    assert_eq!(names(&mounted.unwrap()), [true, true, false]);
}

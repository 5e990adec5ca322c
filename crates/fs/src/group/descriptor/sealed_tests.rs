//! Bitmaps whose descriptors in memory lag behind them.

use fourscore_block::{BlockDevice, DeviceOptions, RamDevice, Structure, VerifiedAs, open_path};
use fourscore_journal::{Background, Credits, JournalOptions};
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock};
use fourscore_sync::{Arc, epoch, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{oracle, require};

use super::*;
use crate::{Fs, MountOptions, NewAttributes, OpenOptions};

const GROUP: GroupNr = GroupNr(0);

fn mounted(image: &Image) -> Arc<Fs> {
    let device: Arc<dyn BlockDevice> =
        Arc::new(open_path(image.path(), DeviceOptions::read_write()).unwrap());
    let journal = JournalOptions {
        background: Background::None,
        ..JournalOptions::default()
    };
    let open = OpenOptions::new().cache_bytes(0);
    Fs::mount(device, &MountOptions::new().open(open).journal(journal)).unwrap()
}

/// The block of descriptors of the group, and its two bitmaps.
fn places(fs: &Fs) -> (PhysBlock, [PhysBlock; 2]) {
    let table = fs.core.geometry().desc_place(GROUP).unwrap().block;
    let desc = desc(&fs.core, GROUP).unwrap();
    (table, [desc.block_bitmap(), desc.inode_bitmap()])
}

/// Adds the block of descriptors to the running transaction, as a change of any of its groups does.
fn join_descriptors(fs: &Fs) {
    let mount = fs.writable().unwrap();
    let (table, _) = places(fs);
    let buffer = mount.core.buffers.load(table).unwrap();
    let mut handle = mount.start(Credits(1)).unwrap();
    let tag = VerifiedAs::new(Structure::GroupDescriptors, InodeNr(0));
    handle.modify(&buffer, tag, |_| ()).unwrap();
    handle.stop();
}

#[test]
fn a_bitmap_is_read_again_while_its_descriptor_lags() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    for feature in ["has_journal", "^has_journal"] {
        let image = Image::builder(MiB(8)).kind("ext4").features(&[feature]);
        let image = image.make().unwrap();
        let fs = mounted(&image);
        let mount = fs.writable().unwrap();
        let owner = NewAttributes::owned_by(0, 0);
        fs.mkdir(InodeNr::ROOT, b"dir", &owner).unwrap();
        let mut handle = mount.start(Credits(1)).unwrap();
        let of_next = Arc::clone(&fs);
        handle.before_commit(Box::new(move || {
            // Handles of the next transaction are open by now, and nothing is sealed yet.
            let next = thread::spawn(move || join_descriptors(&of_next));
            next.join().unwrap();
            Ok(())
        }));
        handle.stop();
        mount.journal().commit().unwrap();
        mount.journal().checkpoint().unwrap();
        for block in 4000..5000 {
            mount.core.buffers.load(PhysBlock(block)).unwrap();
        }

        let (table, bitmaps) = places(&fs);
        let cached = |block| mount.core.buffers.cached(block, &epoch::pin()).is_some();
        let lags = mount.core.buffers.load(table).unwrap();
        assert!(lags.is_dirty_in(mount.journal().running_tid()));
        assert!(!bitmaps.into_iter().any(cached), "both have left the cache");
        fs.block_bitmap(GROUP).unwrap();
        fs.inode_bitmap(GROUP).unwrap();
        fs.unmount().unwrap();
        oracle::assert_clean(image.path());

        // By then the descriptor says the same, and is believed by a mount that sealed nothing.
        let fs = mounted(&image);
        fs.block_bitmap(GROUP).unwrap();
        fs.inode_bitmap(GROUP).unwrap();
        fs.unmount().unwrap();
    }
}

#[test]
fn a_bitmap_that_was_sealed_and_is_damaged_on_the_device_is_refused() {
    require!(Need::Program("mke2fs"));
    let image = Image::builder(MiB(8)).kind("ext4").make().unwrap();
    let base = open_path(image.path(), DeviceOptions::default()).unwrap();
    let device = Arc::new(RamDevice::over(Arc::new(base)));
    let options = MountOptions::new().open(OpenOptions::new().cache_bytes(0));
    let fs = Fs::mount(Arc::clone(&device) as _, &options).unwrap();
    let mount = fs.writable().unwrap();
    let owner = NewAttributes::owned_by(0, 0);
    fs.mkdir(InodeNr::ROOT, b"dir", &owner).unwrap();
    mount.journal().commit().unwrap();
    mount.journal().checkpoint().unwrap();
    for block in 4000..5000 {
        mount.core.buffers.load(PhysBlock(block)).unwrap();
    }
    let (_, bitmaps) = places(&fs);
    for block in bitmaps {
        let offset = fs.core.geometry().block_size().offset(block);
        device.write_at(&[0x55; 16], offset).unwrap();
    }
    assert!(matches!(fs.block_bitmap(GROUP), Err(Error::Corrupt(_))));
    assert!(matches!(fs.inode_bitmap(GROUP), Err(Error::Corrupt(_))));
}

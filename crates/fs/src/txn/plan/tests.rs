//! Plans whose blocks leave the cache before they are applied.

use fourscore_block::{DeviceOptions, open_path};
use fourscore_journal::{Background, Batching, JournalOptions};
use fourscore_ondisk::Timestamp;
use fourscore_sync::epoch;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::*;
use crate::inode::cache;
use crate::txn::slot;
use crate::{Fs, MountOptions, NewAttributes, OpenOptions};

const OWNER: NewAttributes = NewAttributes::owned_by(7, 8);

/// A file system with a small cache and without background work.
fn mount(image: &Image) -> Arc<Fs> {
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let journal = JournalOptions {
        background: Background::None,
        batching: Batching::Off,
        ..JournalOptions::default()
    };
    let options = MountOptions::new()
        .journal(journal)
        .open(OpenOptions::new().cache_bytes(1 << 18));
    Fs::mount(Arc::new(device), &options).unwrap()
}

/// Reads other blocks until `block` has left the cache.
fn push_out(fs: &Fs, block: PhysBlock) {
    let writer = fs.writable().unwrap();
    writer.journal().commit().unwrap();
    writer.journal().checkpoint().unwrap();
    fs.core.buffers.trim();
    // The block is looked up seldom, since blocks that are looked up stay longer.
    for first in (20_000..60_000).step_by(1000) {
        for other in (first..first + 1000).map(PhysBlock) {
            fs.core.buffers.load(other).unwrap();
        }
        if fs.core.buffers.cached(block, &epoch::pin()).is_none() {
            return;
        }
    }
    panic!("{block} stays in a cache of 256 KiB");
}

#[test]
fn a_plan_whose_block_has_left_the_cache_is_restarted_once() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = Image::builder(MiB(64)).kind("ext4").block_size_bytes(1024);
    let image = image.make().unwrap();
    let fs = mount(&image);
    let nr = fs.create(InodeNr::ROOT, b"file", &OWNER).unwrap();
    let pinned = cache::pin_inode(&fs.core, nr).unwrap();
    let locked = pinned.lock();
    let mtime = Timestamp::new(1_000_000, 7).unwrap();

    let mut plan = Plan::new(fs.writable().unwrap());
    let slot = slot::slot(&mut plan, nr).unwrap();
    slot::edit(&mut plan, slot, |inode| inode.set_mtime(mtime)).unwrap();
    let version = slot::version(&mut plan, slot).unwrap();
    let block = plan.memory.regions[0].buffer.block();
    push_out(&fs, block);
    let restarts = || fs.stats().mount.unwrap().plan_restarts;
    let before = restarts();
    plan.apply(&[&locked.last]).unwrap();
    assert_eq!(restarts(), before + 1);
    pinned.publish(Some(version));
    drop(locked);
    drop(pinned);
    fs.unmount().unwrap();
    assert_clean(image.path());
    let fs = mount(&image);
    assert_eq!(fs.stat(nr).unwrap().mtime, mtime);
    fs.unmount().unwrap();
}

#[test]
fn a_lock_that_comes_before_a_held_one_is_refused() {
    require!(Need::Program("mke2fs"));
    let image = Image::builder(MiB(64)).kind("ext4").block_size_bytes(1024);
    let image = image.make().unwrap();
    let fs = mount(&image);
    let dir = fs.mkdir(InodeNr::ROOT, b"dir", &OWNER).unwrap();
    let file = fs.create(InodeNr::ROOT, b"file", &OWNER).unwrap();
    let (dir, file) = (
        cache::pin_inode(&fs.core, dir).unwrap(),
        cache::pin_inode(&fs.core, file).unwrap(),
    );
    let refused = |wrong: &dyn Fn()| {
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wrong));
        refused.is_err() == cfg!(debug_assertions)
    };
    {
        let _file = file.lock();
        assert!(refused(&|| drop(dir.share())), "a directory after a file");
    }
    {
        let _leaf = fs.writable().unwrap().leaves().lock(1);
        assert!(refused(&|| drop(file.lock())), "an inode after a leaf");
    }
    {
        let _handle = fs
            .writable()
            .unwrap()
            .start(fourscore_journal::Credits(1))
            .unwrap();
        assert!(refused(&|| drop(file.lock())), "an inode under a handle");
    }
    drop((dir, file));
    fs.unmount().unwrap();
}

/// As where a file or the orphan file is mapped to a block of the inode table.
#[test]
fn a_part_that_begins_like_another_one_and_is_not_as_long_is_refused() {
    require!(Need::Program("mke2fs"));
    let image = Image::builder(MiB(64)).kind("ext4").block_size_bytes(1024);
    let image = image.make().unwrap();
    let fs = mount(&image);
    let mut plan = Plan::new(fs.writable().unwrap());
    // The first inode of the table.
    let nr = InodeNr(1);
    let slot = slot::slot(&mut plan, nr).unwrap();
    let block = slot::slot_place(&plan, nr).unwrap().block;
    for len in [4, 1024] {
        let refused = plan.part(block, 0..len, inode_table_tag());
        assert_eq!(refused.unwrap_err().errno(), 117, "{len} bytes");
    }
    let refused = plan.block(block, inode_table_tag(), |_| Ok(()));
    assert_eq!(refused.unwrap_err().errno(), 117);
    let choose = |_: &[u8]| Ok(Some(((), 0..8)));
    let refused = plan.chosen_part(block, inode_table_tag(), |_| Ok(()), choose);
    assert_eq!(refused.unwrap_err().errno(), 117);
    let again = slot::slot(&mut plan, nr).unwrap();
    assert_eq!(again.region(), slot.region());
    drop(plan);
    fs.unmount().unwrap();
}

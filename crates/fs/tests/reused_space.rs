//! Space that was freed and waits for a commit, or for somebody who reads: who needs it waits too,
//! instead of being told that there is none.

use std::time::Duration;

use fourscore::block::{DeviceOptions, open_path};
use fourscore::{Arc, Error, Fs, InodeNr, MountOptions, NewAttributes, SetXattr};
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{epoch, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

const ROOT: InodeNr = InodeNr::ROOT;
const OWNER: NewAttributes = NewAttributes {
    permissions: 0o755,
    umask: 0,
    uid: 0,
    gid: 0,
};

/// Fills all space with a file.
fn fill(fs: &Fs) {
    let file = fs.create(ROOT, b"filler", &OWNER).unwrap();
    for nth in 0.. {
        match fs.write_at(file, &[7; 4096], nth * 4096) {
            Ok(_) => {}
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    fs.sync().unwrap();
}

/// Does what needs a block while the only free ones wait for a reader.
fn needs_a_block(fs: &Fs, what: impl FnOnce()) {
    fill(fs);
    let (is_in, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = epoch::pin();
            is_in.store(true, Ordering::Release);
            while !is_over.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(15));
            drop(guard);
        });
        while !is_in.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
        fs.unlink(ROOT, b"filler").unwrap();
        is_over.store(true, Ordering::Release);
        what();
    });
}

#[test]
fn names_and_attributes_wait_for_space_that_is_freed() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = Image::builder(MiB(8)).kind("ext4").block_size_bytes(4096);
    let image = image.make().unwrap();
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let fs: Arc<Fs> = Fs::mount(Arc::new(device), &MountOptions::new()).unwrap();
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    needs_a_block(&fs, || {
        let value = [b'v'; 2000];
        fs.set_xattr(file, b"user.long", &value, SetXattr::Any)
            .unwrap();
    });
    needs_a_block(&fs, || {
        fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
    });
    let dir = fs.lookup(ROOT, b"dir").unwrap();
    let name = |number: u32| format!("{number:0>200}").into_bytes();
    let is_full = |number| {
        fs.link(file, dir, &name(number)).unwrap();
        fs.stat(dir).unwrap().size_bytes > 4096
    };
    let room = (0..).find(|&number| is_full(number)).unwrap();
    let other = fs.mkdir(ROOT, b"other", &OWNER).unwrap();
    (0..room).for_each(|number| fs.link(file, other, &name(number)).unwrap());
    needs_a_block(&fs, || fs.link(file, other, &name(room)).unwrap());
    assert!(fs.stat(other).unwrap().size_bytes > 4096);
    fs.unmount().unwrap();
    assert_clean(image.path());
}

//! Tests of the results that readers get when the inode that they read leaves memory.

use fourscore_block::{DeviceOptions, RamDevice, open_path};
use fourscore_journal::{Background, JournalOptions};
use fourscore_ondisk::LogicalBlock;
use fourscore_ondisk::relation::RelationError;
use fourscore_sync::{Arc, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::*;
use crate::dir::path;
use crate::inode::{cache, consistent};
use crate::{Fs, MountOptions, NewAttributes};

const OWNER: NewAttributes = NewAttributes::owned_by(0, 0).permissions(0o755);

fn mounted() -> (Image, Arc<Fs>) {
    let image = Image::builder(MiB(8)).kind("ext4").block_size_bytes(1024);
    let image = image.make().unwrap();
    let base = open_path(image.path(), DeviceOptions::default()).unwrap();
    let options = MountOptions::new().journal(JournalOptions {
        background: Background::None,
        ..JournalOptions::default()
    });
    let device = Arc::new(RamDevice::over(Arc::new(base)));
    (image, Fs::mount(device, &options).unwrap())
}

impl Fs {
    /// Evicts an inode that is not in use, as the clock hand does.
    fn evict(&self, nr: InodeNr) {
        let left = self.core.inodes.remove_if(&nr, |cell| cell.retire());
        assert!(left.is_some(), "it was in memory and not in use");
    }

    fn make_names(&self, dir: InodeNr) {
        for number in 0..200 {
            let name = format!("a name that is not short at all {number}");
            self.create(dir, name.as_bytes(), &OWNER).unwrap();
        }
    }
}

/// The names are made under a count that the reader does not know.
#[test]
fn a_reader_of_an_evicted_inode_retries() {
    require!(Need::Program("mke2fs"));
    let (_image, fs) = mounted();
    let dir = fs.mkdir(InodeNr::ROOT, b"dir", &OWNER).unwrap();
    let mut sizes = Vec::new();
    let found = consistent::read_consistent(&fs.core, dir, |inode, _| {
        if sizes.is_empty() {
            fs.evict(dir);
            thread::scope(|scope| {
                scope.spawn(|| fs.make_names(dir));
            });
        }
        sizes.push(inode.size_bytes());
        Ok(inode.size_bytes())
    });
    let now = fs.stat(dir).unwrap().size_bytes;
    assert_eq!(found.unwrap(), now);
    assert_eq!(sizes, [1024, now]);
}

/// Equally many names leave the directory before it leaves memory and after it is loaded again.
#[test]
fn a_moment_ends_when_the_directory_leaves_memory() {
    require!(Need::Program("mke2fs"));
    let (_image, fs) = mounted();
    let dir = fs.mkdir(InodeNr::ROOT, b"dir", &OWNER).unwrap();
    fs.make_names(dir);
    let remove = |number| {
        let name = format!("a name that is not short at all {number}");
        fs.unlink(dir, name.as_bytes()).unwrap();
    };
    let moment = || {
        with_guard(&fs.core, |guard| {
            Ok(cache::cell(&fs.core, dir, guard)?.departures().moment())
        })
        .unwrap()
    };
    remove(0);
    let before = moment();
    assert!(before.is_some() && path::has_kept_names(&fs.core, dir, before).unwrap());
    remove(1);
    fs.evict(dir);
    remove(2);
    assert!(!path::has_kept_names(&fs.core, dir, before).unwrap());
    assert!(path::has_kept_names(&fs.core, dir, moment()).unwrap());
}

/// A reader that found `Corrupt` under the lock reads again if the file system grew meanwhile, and
/// only then.
#[test]
fn damage_is_looked_at_again_after_a_growth() {
    require!(Need::Program("mke2fs"));
    let (_image, fs) = mounted();
    let read = |grows: bool| {
        let mut reads = 0;
        let found = consistent::read_locked(&fs.core, InodeNr::ROOT, |_, _| {
            reads += 1;
            if grows && reads == 1 {
                let grown = fs.core.superblock().clone();
                fs.core.superblock.publish(grown);
            }
            match grows && reads > 1 {
                true => Ok(()),
                false => Err(Error::Corrupt(
                    RelationError::DirectoryHole {
                        found: LogicalBlock(0),
                    }
                    .into(),
                )),
            }
        });
        (found.map_err(|error| error.errno()), reads)
    };
    let is_damaged = 117;
    assert_eq!(read(false), (Err(is_damaged), 1));
    assert_eq!(read(true), (Ok(()), 2));
}

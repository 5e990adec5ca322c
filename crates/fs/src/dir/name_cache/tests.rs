//! The name cache: which names it keeps, and that its entries hold whatever happens to the names.

use fourscore_block::{DeviceOptions, open_path};
use fourscore_ondisk::dirent::MAX_NAME_BYTES;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_sync::atomic::AtomicUsize;
use fourscore_sync::{epoch, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::*;
use crate::dir::departure;
use crate::inode::cache;
use crate::{Error, Follow, Fs, MountOptions, NewAttributes, OpenOptions, Replace, Result};

const ROOT: InodeNr = InodeNr::ROOT;
const OWNER: NewAttributes = NewAttributes::owned_by(7, 8).permissions(0o755);

fn image(features: &[&str]) -> Image {
    let image = Image::builder(MiB(64)).kind("ext4").block_size_bytes(1024);
    image.features(features).make().unwrap()
}

fn mount(image: &Image, cache_bytes: usize) -> Arc<Fs> {
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let open = OpenOptions::new().cache_bytes(cache_bytes);
    Fs::mount(Arc::new(device), &MountOptions::new().open(open)).unwrap()
}

const CACHE_BYTES: usize = 8 << 20;

fn name(number: usize) -> Vec<u8> {
    format!("a name of some length, number {number}").into_bytes()
}

/// A directory whose names fill its index.
fn large_directory(fs: &Fs, called: &[u8]) -> InodeNr {
    let dir = fs.mkdir(ROOT, called, &OWNER).unwrap();
    for number in 0..120 {
        fs.create(dir, &name(number), &OWNER).unwrap();
    }
    let flags = fs.stat(dir).unwrap().flags;
    assert!(flags.contains(InodeFlags::INDEX_FL));
    dir
}

/// Returns what a name refers to, if that is cached.
fn known(fs: &Fs, dir: InodeNr, name: &[u8]) -> Option<InodeNr> {
    let dir = cache::inode_copy(&fs.core, dir).unwrap();
    let key = departure::name_key(&fs.core, &dir, name)?;
    fs.core.names.get(&key, &epoch::pin())
}

/// Looks a name up, which is cached then.
fn find(fs: &Fs, dir: InodeNr, name: &[u8]) -> InodeNr {
    let inode = fs.lookup(dir, name).unwrap();
    assert_eq!(known(fs, dir, name), Some(inode));
    assert_eq!(fs.lookup(dir, name).unwrap(), inode);
    inode
}

fn assert_gone(fs: &Fs, dir: InodeNr, name: &[u8]) {
    assert_eq!(known(fs, dir, name), None);
    assert!(matches!(fs.lookup(dir, name), Err(Error::NotFound)));
    assert_eq!(known(fs, dir, name), None, "what is missing is not kept");
}

#[test]
fn names_are_known_until_they_depart() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = image(&[]);
    let fs = mount(&image, CACHE_BYTES);
    let small = fs.mkdir(ROOT, b"small", &OWNER).unwrap();
    for number in 0..8 {
        fs.create(small, &name(number), &OWNER).unwrap();
    }
    let other = large_directory(&fs, b"other");
    for dir in [small, large_directory(&fs, b"large")] {
        let of = |number| find(&fs, dir, &name(number));
        // A new name invalidates no entry.
        let first = of(0);
        fs.create(dir, b"new", &OWNER).unwrap();
        assert_eq!(known(&fs, dir, &name(0)), Some(first));
        fs.unlink(dir, &name(0)).unwrap();
        assert_gone(&fs, dir, &name(0));
        fs.link(of(1), dir, &name(0)).unwrap();
        assert_eq!(of(0), of(1));
        // Renamed over another name, to another directory, in an exchange, with a whiteout.
        let (second, third) = (of(2), of(3));
        fs.rename((dir, &name(2)), (dir, &name(3)), Replace::Yes)
            .unwrap();
        assert_gone(&fs, dir, &name(2));
        assert_eq!(of(3), second);
        assert!(fs.stat(third).is_err());
        find(&fs, other, &name(3));
        fs.rename((dir, &name(3)), (other, &name(3)), Replace::Yes)
            .unwrap();
        assert_gone(&fs, dir, &name(3));
        assert_eq!(find(&fs, other, &name(3)), second);
        let (fourth, fifth) = (of(4), of(5));
        fs.exchange((dir, &name(4)), (dir, &name(5))).unwrap();
        assert_eq!((of(4), of(5)), (fifth, fourth));
        fs.exchange((dir, &name(4)), (other, &name(3))).unwrap();
        assert_eq!((of(4), find(&fs, other, &name(3))), (second, fifth));
        let sixth = of(6);
        let moved = (other, &b"moved"[..]);
        fs.rename_leaving_whiteout((dir, &name(6)), moved, Replace::No, &OWNER)
            .unwrap();
        assert_ne!(of(6), sixth);
        assert_eq!(find(&fs, other, b"moved"), sixth);
        fs.unlink(other, b"moved").unwrap();
        fs.unlink(other, &name(3)).unwrap();
        fs.create(other, &name(3), &OWNER).unwrap();
    }
    fs.unmount().unwrap();
    assert_clean(image.path());
}

#[test]
fn a_number_that_is_used_again_brings_no_names_along() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = image(&[]);
    let fs = mount(&image, CACHE_BYTES);
    let dir = fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
    let below = fs.mkdir(dir, b"below", &OWNER).unwrap();
    for path in [&b"dir/below"[..], b"dir", b"dir/below/.."] {
        fs.resolve(path, Follow::Yes).unwrap();
    }
    assert_eq!(known(&fs, ROOT, b"dir"), Some(dir));
    assert_eq!(known(&fs, dir, b"below"), Some(below));
    assert_eq!(known(&fs, below, b".."), None, "dots are not names");
    fs.rmdir(dir, b"below").unwrap();
    fs.rmdir(ROOT, b"dir").unwrap();
    assert_gone(&fs, ROOT, b"dir");
    let again = fs.mkdir(ROOT, b"again", &OWNER).unwrap();
    assert_eq!(again, dir, "the number is used again");
    assert_gone(&fs, again, b"below");
    fs.unmount().unwrap();
    assert_clean(image.path());
}

#[test]
fn names_that_are_asked_for_once_are_not_kept_but_found() {
    require!(Need::Program("mke2fs"));
    let image = image(&[]);
    let fs = mount(&image, CACHE_BYTES);
    let dir = large_directory(&fs, b"dir");
    let one = fs.lookup_once(dir, &name(1)).unwrap();
    assert_eq!(known(&fs, dir, &name(1)), None);
    assert_eq!(find(&fs, dir, &name(1)), one);
    assert_eq!(fs.lookup_once(dir, &name(1)).unwrap(), one);
    // A removal does not cache the name first.
    let kept = fs.core.names.names.stats().insertions;
    fs.unlink(dir, &name(2)).unwrap();
    fs.rename((dir, &name(3)), (dir, b"three"), Replace::Yes)
        .unwrap();
    assert_eq!(fs.core.names.names.stats().insertions, kept);
    let long = [b'n'; MAX_NAME_BYTES + 1];
    assert!(matches!(fs.lookup(dir, &long), Err(Error::NameTooLong)));
    assert!(matches!(
        fs.lookup(one, &name(1)),
        Err(Error::NotADirectory)
    ));
    fs.unmount().unwrap();
}

#[test]
fn directories_inside_of_inodes_and_those_that_fold_names_are_left_out() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let folding = Image::builder(MiB(64))
        .kind("ext4")
        .extended("encoding=utf8");
    let folding = folding.features(&["casefold"]).make().unwrap();
    let fs = mount(&folding, CACHE_BYTES);
    let dir = fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
    fs.set_flags(dir, InodeFlags::CASEFOLD_FL | InodeFlags::EXTENTS_FL)
        .unwrap();
    let file = fs.create(dir, b"File", &OWNER).unwrap();
    assert_eq!(fs.lookup(dir, b"fILE").unwrap(), file);
    assert_eq!(known(&fs, dir, b"fILE"), None);
    fs.unlink(dir, b"FILE").unwrap();
    assert_gone(&fs, dir, b"fILE");
    fs.unmount().unwrap();
    assert_clean(folding.path());

    let inside = image(&["inline_data"]);
    let fs = mount(&inside, CACHE_BYTES);
    let dir = fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
    let file = fs.create(dir, b"one", &OWNER).unwrap();
    assert_eq!(fs.lookup(dir, b"one").unwrap(), file);
    assert_eq!(known(&fs, dir, b"one"), None);
    // From the first name on that has no space in the inode, names are cached.
    for number in 0..20 {
        fs.create(dir, &name(number), &OWNER).unwrap();
    }
    assert_eq!(find(&fs, dir, b"one"), file);
    fs.unlink(dir, b"one").unwrap();
    assert_gone(&fs, dir, b"one");
    fs.unmount().unwrap();
    assert_clean(inside.path());
}

#[test]
fn a_file_system_that_is_read_keeps_names() {
    require!(Need::Program("mke2fs"));
    let image = image(&[]);
    let fs = mount(&image, CACHE_BYTES);
    large_directory(&fs, b"dir");
    fs.unmount().unwrap();
    let device = open_path(image.path(), DeviceOptions::default()).unwrap();
    let fs = Fs::open(Arc::new(device), &OpenOptions::new()).unwrap();
    let path = [&b"dir/"[..], &name(7)].concat();
    let file = fs.resolve(&path, Follow::Yes).unwrap();
    let dir = fs.resolve(b"dir", Follow::Yes).unwrap();
    assert_eq!(known(&fs, dir, &name(7)), Some(file));
    assert_eq!(known(&fs, ROOT, b"dir"), Some(dir));
}

#[test]
fn of_two_names_with_one_hash_the_first_is_kept() {
    let names = NameCache::new(1 << 16);
    let guard = epoch::pin();
    let key = |dir, name| NameKey {
        hash: NameHash(77),
        dir: InodeNr(dir),
        name,
    };
    let (one, other, elsewhere) = (key(2, b"one"), key(2, b"other"), key(3, b"one"));
    names.put(&one, InodeNr(21), || true);
    names.put(&other, InodeNr(22), || true);
    names.put(&elsewhere, InodeNr(23), || true);
    assert_eq!(names.get(&one, &guard), Some(InodeNr(21)));
    assert_eq!(names.get(&other, &guard), None);
    assert_eq!(names.get(&elsewhere, &guard), None);
    names.forget(other.hash);
    assert_eq!(names.get(&one, &guard), None);
}

#[test]
fn what_is_put_in_while_a_name_departs_is_not_known() {
    let (names, guard) = (NameCache::new(1 << 16), epoch::pin());
    let departures = Departures::default();
    let key = names.key(InodeNr(2), b"name");
    let put = |moment: Moment| {
        names.put(&key, InodeNr(21), || departures.moment() == Some(moment));
        names.get(&key, &guard)
    };
    let moment = departures.moment().unwrap();
    departures.begin();
    assert_eq!(departures.moment(), None);
    assert_eq!(put(moment), None);
    departures.begin();
    departures.end();
    assert_eq!(departures.moment(), None, "another is under way");
    departures.end();
    assert_eq!(put(moment), None);
    assert!(names.names.is_empty());
    assert_ne!(departures.moment(), Some(moment));
    assert_eq!(put(departures.moment().unwrap()), Some(InodeNr(21)));
}

#[test]
fn names_take_no_more_memory_than_they_may() {
    const BUDGET_BYTES: usize = 1 << 18;
    let (names, guard) = (NameCache::new(BUDGET_BYTES), epoch::pin());
    for number in 0..20_000 {
        let name = name(number);
        names.put(&names.key(ROOT, &name), InodeNr(21), || true);
    }
    assert!(names.names.weight_bytes() <= BUDGET_BYTES);
    let is_known = |number: &usize| {
        names
            .get(&names.key(ROOT, &name(*number)), &guard)
            .is_some()
    };
    let left = (0..20_000).filter(is_known).count();
    assert!(left * (ENTRY_BYTES + 32) > BUDGET_BYTES / 2, "{left} names");
    assert!(left < 20_000);
}

/// A name that one thread makes refer to one inode and another: a lookup sees a state that was
/// current during the lookup.
struct Led {
    dir: InodeNr,
    name: Vec<u8>,
    /// How many changes have begun, and how many have ended.
    begun: AtomicUsize,
    ended: AtomicUsize,
}

/// Returns what the name refers to after this number of changes.
fn state(changes: usize, targets: [InodeNr; 2]) -> Option<InodeNr> {
    match changes % 3 {
        0 => None,
        1 => Some(targets[0]),
        _ => Some(targets[1]),
    }
}

impl Led {
    /// Makes the next change: the name is removed, made, or replaced by a rename of another name.
    fn change(&self, fs: &Fs, targets: [InodeNr; 2]) -> Result<()> {
        let next = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let other = [&self.name[..], b"'"].concat();
        match next % 3 {
            0 => fs.unlink(self.dir, &self.name)?,
            1 => fs.link(targets[0], self.dir, &self.name)?,
            _ => {
                fs.link(targets[1], self.dir, &other)?;
                fs.rename((self.dir, &other), (self.dir, &self.name), Replace::Yes)?;
            }
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn look(&self, fs: &Fs, targets: [InodeNr; 2]) {
        let first = self.ended.load(Ordering::SeqCst);
        let found = match fs.lookup(self.dir, &self.name) {
            Ok(found) => Some(found),
            Err(Error::NotFound) => None,
            Err(error) => panic!("{error}"),
        };
        let last = self.begun.load(Ordering::SeqCst);
        let is_one = (first..=last).any(|changes| state(changes, targets) == found);
        assert!(is_one, "{found:?} between the changes {first} and {last}");
    }
}

/// Runs threads that change what names refer to, and others that look the names up.
fn look_while_names_change(cache_bytes: usize, changes: usize) {
    let image = image(&[]);
    let fs = mount(&image, cache_bytes);
    let targets = [b"one", b"two"].map(|name| fs.create(ROOT, name, &OWNER).unwrap());
    let small = fs.mkdir(ROOT, b"small", &OWNER).unwrap();
    let large = large_directory(&fs, b"large");
    let led: Vec<Led> = (0..6)
        .map(|number| Led {
            dir: if number % 2 == 0 { small } else { large },
            name: format!("led {number}").into_bytes(),
            begun: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
        })
        .collect();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (fs, is_done) = (&fs, &is_done);
        for reader in 0..3 {
            let led = &led;
            scope.spawn(move || {
                let mut at = reader;
                while !is_done.load(Ordering::Acquire) {
                    led[at % led.len()].look(fs, targets);
                    // Others come in between, so that names and directories have to leave the
                    // caches.
                    let _ = fs.lookup(large, &name(at % 120)).unwrap();
                    at += 1;
                }
            });
        }
        let writers: Vec<_> = led
            .chunks(3)
            .map(|own| {
                scope.spawn(move || {
                    for change in 0..changes {
                        own[change % own.len()].change(fs, targets).unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        is_done.store(true, Ordering::Release);
    });
    for one in &led {
        one.look(&fs, targets);
        one.look(&fs, targets);
    }
    assert!(fs.core.names.names.stats().insertions > 0);
    fs.unmount().unwrap();
    assert_clean(image.path());
}

#[test]
fn lookups_beside_renames_find_the_current_inode() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    look_while_names_change(CACHE_BYTES, 3000);
}

#[test]
fn lookups_find_names_that_the_cache_does_not_keep() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    look_while_names_change(1 << 15, 600);
}

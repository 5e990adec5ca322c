//! Tests of the cache without plans, and of an outdated entry. The tests with plans are in
//! `tests/it/shared_xattrs.rs`.

use std::cell::Cell;

use fourscore_block::{DeviceOptions, open_path};
use fourscore_ondisk::xattr::{MAX_BLOCK_REFS, NameIndex, NewValue, XattrsMut};
use fourscore_ondisk::{InodeNr, PhysBlock};
use fourscore_sync::Arc;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use rustix::thread::CpuSet;

use super::*;
use crate::inode::cache;
use crate::xattr::offer;
use crate::{Error, Fs, MountOptions, NewAttributes, SetXattr};

fn sharing(budget_bytes: usize) -> Sharing {
    Sharing::new(XattrSharing::On, budget_bytes, Faults::default()).unwrap()
}

/// A block with attributes of the given names and values.
fn block(attributes: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut block = vec![0; 1024];
    let mut xattrs = XattrsMut::init_block(&mut block).unwrap();
    for (name, value) in attributes {
        let value = NewValue::Inline(value);
        xattrs.set(NameIndex::USER, name, &value).unwrap();
    }
    block
}

fn key(sharing: &Sharing, block: &[u8]) -> ShareKey {
    sharing.key_of_block(&SharedContent::of(block).unwrap())
}

fn found(sharing: &Sharing, key: ShareKey) -> Option<u64> {
    match sharing.look(Space::Enough, || key).0 {
        Look::Found(candidate) => Some(candidate.place()),
        Look::Absent(_) | Look::Bypassed => None,
    }
}

#[test]
fn a_key_is_made_of_names_and_values_and_not_of_their_places() {
    let sharing = sharing(1 << 16);
    let one = block(&[(b"a", b"first"), (b"b", b"second")]);
    let other_order = block(&[(b"b", b"second"), (b"a", b"first")]);
    assert_ne!(one, other_order, "the values lie elsewhere");
    assert_eq!(key(&sharing, &one), key(&sharing, &other_order));
    let different = [
        block(&[(b"a", b"first"), (b"b", b"secone")]),
        block(&[(b"a", b"firsts"), (b"b", b"econd")]),
        block(&[(b"a", b"first"), (b"c", b"second")]),
        block(&[(b"a", b"first")]),
    ];
    for other in different {
        assert_ne!(key(&sharing, &one), key(&sharing, &other));
        assert!(SharedContent::of(&one) != SharedContent::of(&other));
    }
    let value = |nr| {
        let mut block = vec![0; 1024];
        let value = NewValue::Inode {
            inode: InodeNr(nr),
            bytes: 5000,
            hash: 7,
        };
        let mut xattrs = XattrsMut::init_block(&mut block).unwrap();
        xattrs.set(NameIndex::USER, b"a", &value).unwrap();
        block
    };
    assert_ne!(key(&sharing, &value(20)), key(&sharing, &value(21)));
}

#[test]
fn a_place_is_found_until_it_ends() {
    let sharing = sharing(1 << 16);
    let key = key(&sharing, &block(&[(b"a", b"value")]));
    assert_eq!(found(&sharing, key), None);
    sharing.come(key, 77, Users::All);
    sharing.come(key, 78, Users::All);
    assert_eq!(found(&sharing, key), Some(77));
    sharing.end(key, 77);
    assert_eq!(found(&sharing, key), Some(78), "the spare place");
    sharing.leave(key, 78);
    assert_eq!(found(&sharing, key), None);
    sharing.come(key, 78, Users::All);
    assert_eq!(found(&sharing, key), Some(78), "it came back");
    sharing.end(key, 78);
    assert!(
        sharing.known.is_empty(),
        "an entry without places is removed"
    );
}

#[test]
fn a_candidate_is_valid_while_its_place_is_known() {
    let sharing = sharing(1 << 16);
    let key = key(&sharing, &block(&[(b"a", b"value")]));
    sharing.come(key, 77, Users::All);
    let Look::Found(candidate) = sharing.look(Space::Enough, || key).0 else {
        panic!("not found");
    };
    assert!(sharing.still_has(&candidate));
    sharing.end(key, 77);
    assert!(!sharing.still_has(&candidate));
    sharing.come(key, 79, Users::All);
    assert!(!sharing.still_has(&candidate), "another place");
}

/// The bitmap is looked into by the first plan that wants what a reader has found, and not again.
#[test]
fn what_a_reader_offers_is_proven_once() {
    for is_in_use in [true, false] {
        let sharing = sharing(1 << 16);
        let key = key(&sharing, &block(&[(b"a", b"value")]));
        sharing.come_unproven(key, 77);
        let Look::Found(candidate) = sharing.look(Space::Enough, || key).0 else {
            panic!("not found");
        };
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            Ok(is_in_use)
        };
        assert_eq!(sharing.has_proof(&candidate, look).unwrap(), is_in_use);
        assert_eq!(sharing.still_has(&candidate), is_in_use);
        assert!(sharing.has_proof(&candidate, look).unwrap());
        assert_eq!(looks.get(), 1, "in use: {is_in_use}");
    }
}

/// A look into the bitmap that fails proves nothing.
#[test]
fn a_proof_that_fails_is_looked_for_again() {
    let sharing = sharing(1 << 16);
    let key = key(&sharing, &block(&[(b"a", b"value")]));
    sharing.come_unproven(key, 77);
    let Look::Found(candidate) = sharing.look(Space::Enough, || key).0 else {
        panic!("not found");
    };
    let failed = sharing.has_proof(&candidate, || Err(crate::Error::NoSpace));
    assert!(failed.is_err());
    assert!(!sharing.has_proof(&candidate, || Ok(false)).unwrap());
    assert!(!sharing.still_has(&candidate));
}

#[test]
fn the_budget_is_kept() {
    let sharing = sharing(64 << 10);
    for nr in 0..10_000_u64 {
        sharing.come(sharing.key_of_value(7, nr), nr + 1, Users::All);
    }
    assert!(sharing.known.weight_bytes() <= 64 << 10);
    let stats = sharing.stats();
    assert_eq!(stats.offered, 10_000);
    assert!(stats.evictions > 9_000, "{stats:?}");
}

/// A core whose own place is used up waits for another; if there is no space for that, it takes one
/// that others use.
#[test]
fn a_core_makes_no_own_place_if_space_is_short() {
    let sharing = sharing(1 << 20);
    let key = key(&sharing, &block(&[(b"a", b"value")]));
    sharing.come(key, 77, Users::All);
    for core in (0..CoreNr::count()).filter_map(CoreNr::new) {
        sharing.come(key, 100 + core.index() as u64, Users::Own(core));
        sharing.leave(key, 100 + core.index() as u64);
    }
    assert_eq!(found(&sharing, key), None);
    let Look::Found(candidate) = sharing.look(Space::Short, || key).0 else {
        panic!("not found");
    };
    assert_eq!(candidate.place(), 77);
    assert!(!sharing.wants_own(&candidate, PER_OWN_PLACE, Space::Short));
}

/// A small file system that shares attributes.
fn file_system() -> (Image, Arc<Fs>) {
    let image = Image::builder(MiB(8)).kind("ext4").block_size_bytes(1024);
    let image = image.arguments(["-N", "1200", "-m", "0"]).make().unwrap();
    let fs = mount(&image);
    (image, fs)
}

fn mount(image: &Image) -> Arc<Fs> {
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let options = MountOptions::new().xattr_sharing(XattrSharing::On);
    Fs::mount(Arc::new(device), &options).unwrap()
}

fn create(fs: &Fs, nr: u32) -> InodeNr {
    let owner = NewAttributes::owned_by(0, 0).permissions(0o644);
    let name = nr.to_string();
    fs.create(InodeNr::ROOT, name.as_bytes(), &owner).unwrap()
}

/// Sets the attribute that all files of a test have.
fn set(fs: &Fs, file: InodeNr) -> crate::Result<()> {
    fs.set_xattr(file, b"user.same", &[7; 500], SetXattr::Any)
}

/// Returns the block of attributes of `file`, and its key.
fn place_of(fs: &Fs, file: InodeNr) -> (ShareKey, u64) {
    let inode = cache::inode_copy(&fs.core, file).unwrap();
    let block = inode.on_disk().file_acl().unwrap();
    let buffer = fs.core.buffers.load(block).unwrap();
    let sharing = fs.writable().unwrap().sharing().unwrap();
    (buffer.look(|bytes| key(sharing, bytes)), block.0)
}

/// Has this thread stay where it is: each core has a block of its own.
fn stay_on_one_core() {
    let mut here = CpuSet::new();
    here.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &here).unwrap();
}

/// Otherwise the next plan would find the full block again, and fail again.
#[test]
fn a_full_block_leaves_the_cache_even_if_the_plan_that_meets_it_fails() {
    require!(Need::Program("mke2fs"));
    stay_on_one_core();
    let (_image, fs) = file_system();
    let files: Vec<_> = (0..=MAX_BLOCK_REFS).map(|nr| create(&fs, nr)).collect();
    let (&last, sharers) = files.split_last().unwrap();
    sharers.iter().for_each(|&file| set(&fs, file).unwrap());
    let (key, place) = place_of(&fs, sharers[0]);
    let sharing = fs.writable().unwrap().sharing().unwrap();
    assert_eq!(found(sharing, key), None, "a full block is not known");

    sharing.come(key, place, Users::All);
    let large = create(&fs, 9999);
    let full = (0..).find_map(|nr| fs.write_at(large, &[1; 1024], nr * 1024).err());
    assert!(matches!(full, Some(Error::NoSpace)), "{full:?}");
    let outcome = set(&fs, last);
    assert!(matches!(outcome, Err(Error::NoSpace)), "{outcome:?}");
    assert_eq!(sharing.stats().at_limit, 1);
    assert_eq!(found(sharing, key), None);
}

/// A reader that looked at the inode before may offer the block after its last user has gone. It
/// may be in memory again by then, loaded for another such reader.
#[test]
fn a_reader_offers_no_block_that_its_inode_has_left() {
    require!(Need::Program("mke2fs"));
    let (image, fs) = file_system();
    let (file, other) = (create(&fs, 1), create(&fs, 2));
    stay_on_one_core();
    set(&fs, file).unwrap();
    set(&fs, other).unwrap();
    // So the block has its content on the device, too.
    fs.unmount().unwrap();
    let fs = mount(&image);
    let (key, place) = place_of(&fs, file);
    let sharing = fs.writable().unwrap().sharing().unwrap();
    assert_eq!(found(sharing, key), None);
    let offer = |file| offer::offer_block(&fs.core, file, PhysBlock(place));
    offer(file);
    assert_eq!(found(sharing, key), Some(place));

    for file in [file, other] {
        fs.remove_xattr(file, b"user.same").unwrap();
    }
    assert_eq!(found(sharing, key), None);
    fs.core.buffers.load(PhysBlock(place)).unwrap();
    offer(file);
    assert_eq!(found(sharing, key), None);
}

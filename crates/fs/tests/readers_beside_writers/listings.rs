//! Listings of directories that are split, emptied and removed at the same time.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use anyhow::{Result, bail, ensure};
use fourscore::{Error, Fs, InodeNr, MountOptions};
use fourscore_sync::atomic::{AtomicU32, Ordering};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::disk::{BLOCK_BYTES, Disk, OWNER, ROOT, SHORT, beside, quiet};

/// Names of this length fill a block soon.
fn name(kind: &str, number: u32) -> Vec<u8> {
    format!("{kind} {number:0>200}").into_bytes()
}

/// Links `target` to names of a kind until `dir` has `blocks` blocks. Returns the number of names.
fn grow(fs: &Fs, dir: InodeNr, target: InodeNr, kind: &str, blocks: usize) -> u32 {
    let is_large = || fs.stat(dir).unwrap().size_bytes >= (blocks * BLOCK_BYTES) as u64;
    let mut number = 0;
    while !is_large() {
        fs.link(target, dir, &name(kind, number)).unwrap();
        number += 1;
    }
    number
}

/// A listing of more than one piece. After the first piece all leaves are split.
fn list_beside_splits(options: &MountOptions) -> Result<()> {
    let disk = Disk::new();
    let fs = disk.mount(options);
    let target = fs.create(ROOT, b"target", &OWNER).unwrap();
    let dir = fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
    let names = grow(&fs, dir, target, "old", 80);
    let mut listed = Vec::new();
    fs.for_each_entry(dir, |entry| {
        if listed.is_empty() {
            grow(&fs, dir, target, "new", 240);
        }
        listed.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })?;
    let old = listed.iter().filter(|name| name.starts_with(b"old"));
    let (count, distinct) = (old.clone().count(), old.collect::<BTreeSet<_>>().len());
    ensure!(
        count == distinct,
        "{} names are listed twice",
        count - distinct
    );
    ensure!(distinct == names as usize, "{distinct} of {names} names");
    fs.unmount().unwrap();
    Ok(())
}

#[test]
fn names_that_stay_are_listed_once_while_leaves_are_split() {
    require!(Need::Program("mke2fs"));
    list_beside_splits(&quiet()).unwrap();
}

/// A directory of several blocks without a name in it.
fn emptied(fs: &Fs, target: InodeNr, blocks: usize) -> InodeNr {
    let dir = fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
    for number in 0..grow(fs, dir, target, "dir", blocks) {
        fs.unlink(dir, &name("dir", number)).unwrap();
    }
    dir
}

#[test]
fn a_listing_does_not_go_on_in_another_directory_with_the_same_number() {
    require!(Need::Program("mke2fs"));
    let disk = Disk::new();
    let fs = disk.mount(&quiet());
    let target = fs.create(ROOT, b"target", &OWNER).unwrap();
    let dir = emptied(&fs, target, 80);
    let mut listed = Vec::new();
    let came_to = fs.for_each_entry(dir, |entry| {
        if listed.is_empty() {
            fs.rmdir(ROOT, b"dir").unwrap();
            assert_eq!(fs.mkdir(ROOT, b"other", &OWNER).unwrap(), dir);
            grow(&fs, dir, target, "other", 80);
        }
        listed.push(entry.name.to_vec());
        ControlFlow::Continue(())
    });
    assert!(matches!(came_to, Err(Error::NotFound)), "{came_to:?}");
    assert_eq!(listed, [b".".to_vec(), b"..".to_vec()]);
    fs.unmount().unwrap();
}

/// The blocks of a directory are freed while it is listed by its inode number.
#[test]
fn a_listing_of_a_directory_that_is_removed_meets_no_damage() {
    require!(Need::Program("mke2fs"));
    let disk = Disk::new();
    let fs = disk.mount(&MountOptions::new());
    let target = fs.create(ROOT, b"target", &OWNER).unwrap();
    let number = AtomicU32::new(ROOT.0);
    let make_and_remove = || {
        let dir = emptied(&fs, target, 8);
        number.store(dir.0, Ordering::Release);
        fs.rmdir(ROOT, b"dir").unwrap();
        Ok(())
    };
    let list = || match fs.read_dir(InodeNr(number.load(Ordering::Acquire))) {
        Ok(_) | Err(Error::NotFound | Error::NotADirectory) => Ok(()),
        Err(error) => bail!(error),
    };
    beside(SHORT, 1, make_and_remove, list).unwrap();
    fs.unmount().unwrap();
}

#[cfg(feature = "sabotage")]
put_back! {
    a_listing_to_the_old_end_is_found: ListingToOldEnd, quiet(), list_beside_splits;
}

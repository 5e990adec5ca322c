//! Concurrent lookups, renames and replacements of names.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fourscore::{Error, Follow, Fs, InodeNr, MountOptions, Replace};
use fourscore_sync::atomic::{AtomicU32, Ordering};
use fourscore_sync::thread;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

#[cfg(feature = "sabotage")]
use crate::disk::LONG;
use crate::disk::{Disk, OWNER, ROOT, SHORT, beside};

/// Names that exist at the same time.
const NAMES: u32 = 64;

fn name(number: u32) -> Vec<u8> {
    format!("name {number}").into_bytes()
}

/// Looks up names while they are being created. No name is created twice.
fn look_up_new_names(options: &MountOptions, time: Duration) -> Result<()> {
    let disk = Disk::new();
    let fs = disk.mount(options);
    let next = AtomicU32::new(0);
    let make = || {
        let number = next.load(Ordering::Acquire);
        fs.create(ROOT, &name(number), &OWNER).unwrap();
        if let Some(old) = number.checked_sub(NAMES) {
            fs.unlink(ROOT, &name(old)).unwrap();
        }
        next.store(number + 1, Ordering::Release);
        Ok(())
    };
    let look = || {
        let name = name(next.load(Ordering::Acquire));
        let nr = match fs.lookup(ROOT, &name) {
            Err(Error::NotFound) => return Ok(()),
            found => found.context("looking up a new name")?,
        };
        match fs.stat(nr) {
            Err(Error::NotFound) => match fs.lookup(ROOT, &name) {
                Ok(_) => bail!("a name leads to no inode"),
                Err(_) => Ok(()),
            },
            stat => {
                let stat = stat.context("the inode of a new name")?;
                ensure!(stat.links <= 1, "{} links", stat.links);
                Ok(())
            }
        }
    };
    beside(time, 1, make, look)?;
    fs.unmount().unwrap();
    Ok(())
}

#[test]
fn a_name_is_seen_only_with_its_inode() {
    require!(Need::Program("mke2fs"));
    look_up_new_names(&MountOptions::new(), SHORT).unwrap();
}

/// Resolves a path whose last name is replaced over and over.
fn resolve_a_replaced_name(options: &MountOptions, time: Duration) -> Result<()> {
    let disk = Disk::new();
    let fs = disk.mount(options);
    fs.create(ROOT, b"name", &OWNER).unwrap();
    let replace = || {
        fs.create(ROOT, b"new", &OWNER).unwrap();
        let (from, to) = ((ROOT, &b"new"[..]), (ROOT, &b"name"[..]));
        fs.rename(from, to, Replace::Yes).unwrap();
        Ok(())
    };
    let resolve = || {
        let found = fs.resolve(b"/name", Follow::Yes);
        found.context("a name that is always there")?;
        Ok(())
    };
    beside(time, 1, replace, resolve)?;
    fs.unmount().unwrap();
    Ok(())
}

#[test]
fn a_path_leads_somewhere_while_its_last_name_is_replaced() {
    require!(Need::Program("mke2fs"));
    resolve_a_replaced_name(&MountOptions::new(), SHORT).unwrap();
}

/// Renames one file from here to there and back, `rounds` times. Returns how often the first
/// direction succeeded more often than the second.
fn to_and_fro(fs: &Fs, rounds: u32) -> i32 {
    let (here, there) = ((ROOT, &b"here"[..]), (ROOT, &b"there"[..]));
    let moved = |from, to| match fs.rename(from, to, Replace::Yes) {
        Ok(()) => 1,
        Err(Error::NotFound) => 0,
        Err(error) => panic!("{error}"),
    };
    (0..rounds)
        .map(|_| moved(here, there) - moved(there, here))
        .sum()
}

/// Of two threads that rename the same name only one succeeds.
#[test]
fn one_name_is_renamed_once() {
    require!(Need::Program("mke2fs"));
    let disk = Disk::new();
    let fs = disk.mount(&MountOptions::new());
    fs.create(ROOT, b"here", &OWNER).unwrap();
    let began = Instant::now();
    while began.elapsed() < SHORT {
        let before = i32::from(fs.lookup(ROOT, b"there").is_ok());
        let moved = thread::scope(|scope| {
            let other = scope.spawn(|| to_and_fro(&fs, 50));
            to_and_fro(&fs, 50) + other.join().unwrap()
        });
        let after = i32::from(fs.lookup(ROOT, b"there").is_ok());
        assert_eq!(after, before + moved, "a renaming that was none succeeded");
    }
    fs.unmount().unwrap();
}

/// Looks into directories by their numbers while they are created and removed. Their blocks are
/// large, so that creating one takes a moment.
#[test]
fn a_directory_is_seen_whole_or_not_at_all() {
    require!(Need::Program("mke2fs"));
    let image = Image::builder(MiB(128)).kind("ext4");
    let disk = Disk::of(&image.block_size_bytes(32_768));
    let fs = disk.mount(&MountOptions::new());
    let number = AtomicU32::new(ROOT.0);
    let make_and_remove = || {
        let dir = fs.mkdir(ROOT, b"dir", &OWNER)?;
        number.store(dir.0, Ordering::Release);
        Ok(fs.rmdir(ROOT, b"dir")?)
    };
    let look = || match fs.lookup(InodeNr(number.load(Ordering::Acquire)), b"name") {
        Err(Error::NotFound | Error::NotADirectory) => Ok(()),
        found => bail!("{found:?}"),
    };
    beside(2 * SHORT, 1, make_and_remove, look).unwrap();
    fs.unmount().unwrap();
}

/// A number alternates between a file and a directory, while names are removed from it. As a rule
/// there are more threads than cores, so that threads are interrupted anywhere.
#[test]
fn names_are_removed_from_numbers_that_change_their_kind() {
    require!(Need::Program("mke2fs"));
    let disk = Disk::new();
    let fs = disk.mount(&MountOptions::new());
    let number = AtomicU32::new(ROOT.0);
    let change = || {
        let file = fs.create(ROOT, b"file", &OWNER)?;
        number.store(file.0, Ordering::Release);
        fs.unlink(ROOT, b"file")?;
        let dir = fs.mkdir(ROOT, b"dir", &OWNER)?;
        fs.mkdir(dir, b"name", &OWNER)?;
        match fs.rmdir(dir, b"name") {
            Ok(()) | Err(Error::NotFound) => {}
            Err(error) => bail!(error),
        }
        Ok(fs.rmdir(ROOT, b"dir")?)
    };
    let remove = || match fs.rmdir(InodeNr(number.load(Ordering::Acquire)), b"name") {
        Ok(()) | Err(Error::NotFound | Error::NotADirectory) => Ok(()),
        Err(error) => bail!(error),
    };
    beside(2 * SHORT, 3, change, remove).unwrap();
    fs.unmount().unwrap();
}

#[cfg(feature = "sabotage")]
put_back! {
    a_name_before_its_inode_is_found:
        NameBeforeInode, MountOptions::new(), |options| look_up_new_names(options, LONG);
    a_path_that_is_not_revalidated_is_found: PathWithoutRevalidation, MountOptions::new(),
        |options| resolve_a_replaced_name(options, LONG);
}

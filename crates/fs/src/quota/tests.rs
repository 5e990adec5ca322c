//! Entries that come and go, and entries that cannot be changed.

use fourscore_block::{DeviceOptions, open_path};
use fourscore_journal::{Background, During, JournalOptions};
use fourscore_ondisk::quota::{QuotaKind, QuotaLimits};
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::{assert_clean, dumpe2fs_header};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::usage::Key;
use crate::{Error, Fs, InodeNr, MountOptions, NewAttributes};

const ROOT: InodeNr = InodeNr::ROOT;
const OWNER: NewAttributes = NewAttributes::owned_by(0, 0);

fn image() -> Image {
    let image = Image::builder(MiB(64))
        .kind("ext4")
        .block_size_bytes(4096)
        .features(&["quota", "project"])
        .extended("quotatype=usrquota:grpquota:prjquota");
    image.make().unwrap()
}

fn mount(image: &Image, words: &str) -> Arc<Fs> {
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let options = MountOptions::new().parse(words).unwrap();
    Fs::mount(Arc::new(device), &options).unwrap()
}

fn projects(fs: &Fs) -> Vec<u32> {
    let report = fs.quota(QuotaKind::Project).unwrap().unwrap();
    report.entries.into_keys().collect()
}

/// Numbers that are far apart, so that each needs nodes of its own in the tree.
fn scattered(seed: u32) -> impl Iterator<Item = u32> {
    let next = |&id: &u32| Some(id.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(Some(seed), next).skip(1)
}

#[test]
fn projects_without_files_do_not_fill_the_file_system() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = image();
    let fs = mount(&image, "");
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    fs.sync().unwrap();
    let before = fs.statfs().unwrap().free_blocks;
    let ids: Vec<_> = scattered(12_345).take(4000).collect();
    for &id in &ids {
        fs.set_project(file, id).unwrap();
    }
    let used = before - fs.statfs().unwrap().free_blocks;
    assert!(used < 600, "{used} blocks");
    let entries = projects(&fs).len();
    assert!(entries < 1100, "{entries} entries");
    fs.unmount().unwrap();
    assert_clean(image.path());
    let fs = mount(&image, "");
    assert_eq!(projects(&fs), [0, ids[ids.len() - 1]]);
    // The blocks are used again.
    let before = fs.statfs().unwrap().free_blocks;
    for id in scattered(77).take(400) {
        fs.set_project(file, id).unwrap();
    }
    assert_eq!(before, fs.statfs().unwrap().free_blocks);
    fs.unmount().unwrap();
    assert_clean(image.path());
}

#[test]
fn an_entry_that_was_added_for_nothing_is_removed() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = image();
    let fs = mount(&image, "usrquota,prjquota");
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    let limit = |kind, id, hard_inodes| {
        let limits = QuotaLimits {
            hard_inodes,
            ..QuotaLimits::default()
        };
        fs.set_quota(kind, id, limits).unwrap();
    };
    limit(QuotaKind::User, 5, 1);
    fs.create(ROOT, b"one", &NewAttributes::owned_by(5, 0))
        .unwrap();
    // Entries of the group are added before the limit of the user refuses the file.
    for gid in 100..110 {
        let refused = fs.create(ROOT, b"two", &NewAttributes::owned_by(5, gid));
        assert!(matches!(refused, Err(Error::QuotaExceeded)), "{refused:?}");
    }
    // Limits keep an entry, and one without any is removed.
    limit(QuotaKind::Project, 8, 10);
    limit(QuotaKind::Project, 9, 10);
    limit(QuotaKind::Project, 9, 0);
    fs.set_project(file, 8).unwrap();
    fs.set_project(file, 7).unwrap();
    fs.unmount().unwrap();
    assert_clean(image.path());
    let fs = mount(&image, "usrquota,prjquota");
    assert_eq!(projects(&fs), [0, 7, 8]);
    let groups = fs.quota(QuotaKind::Group).unwrap().unwrap();
    assert_eq!(groups.entries.into_keys().collect::<Vec<_>>(), [0]);
    fs.unmount().unwrap();
}

/// Removes all identifiers from memory that no thread uses, and idle entries, again and again.
fn forget_much(fs: &Fs, is_done: &AtomicBool) {
    let mount = fs.writable().unwrap();
    let quota = mount.quota.as_deref().unwrap();
    while !is_done.load(Ordering::Relaxed) {
        let inserting = quota.lock_insertion();
        quota.forget_unused();
        drop(inserting);
        quota.remove_all_idle(mount).unwrap();
        fs.statfs_at(ROOT).unwrap();
    }
}

#[test]
fn usage_and_limits_are_exact_while_entries_come_and_go() {
    const THREADS: u32 = 3;
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = image();
    let fs = mount(&image, "usrquota,prjquota");
    // A project that two of three threads can have at a time.
    let limits = QuotaLimits {
        hard_inodes: 2,
        ..QuotaLimits::default()
    };
    fs.set_quota(QuotaKind::Project, 50, limits).unwrap();
    let is_done = AtomicBool::new(false);
    let change = |fs: &Fs, nth: u32| {
        let name = format!("{nth}");
        let file = fs.create(ROOT, name.as_bytes(), &OWNER).unwrap();
        for round in 0..300 {
            for project in [1 + round % 3, 100 + nth, 50] {
                match fs.set_project(file, project) {
                    Err(Error::QuotaExceeded) if project == 50 => {}
                    other => other.unwrap(),
                }
            }
            if round % 50 == 0 {
                let report = fs.quota(QuotaKind::Project).unwrap().unwrap();
                let used = report.entries[&50].counts.inodes;
                assert!(used <= 2, "{used} files");
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| forget_much(&fs, &is_done));
        let threads: Vec<_> = (0..THREADS)
            .map(|nth| {
                let fs = &fs;
                scope.spawn(move || change(fs, nth))
            })
            .collect();
        let ended = threads.into_iter().all(|thread| thread.join().is_ok());
        is_done.store(true, Ordering::Relaxed);
        assert!(ended);
    });
    fs.unmount().unwrap();
    assert_clean(image.path());
}

#[test]
fn identifiers_that_are_not_in_use_are_forgotten() {
    require!(Need::Program("mke2fs"));
    let image = image();
    let fs = mount(&image, "");
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    fs.set_project(file, 3).unwrap();
    let quota = fs.writable().unwrap().quota.as_deref().unwrap();
    let project = |id| Key {
        kind: QuotaKind::Project,
        id,
    };
    let is_known = |id| quota.known.lock().contains_key(&project(id));
    let forget = || {
        let _inserting = quota.lock_insertion();
        quota.forget_unused()
    };
    assert!(is_known(3));
    forget();
    assert!(is_known(3), "a count waits for the seal");
    fs.sync().unwrap();
    assert_eq!(forget(), 0);
    fs.set_project(file, 4).unwrap();
    fs.sync().unwrap();
    let report = fs.quota(QuotaKind::Project).unwrap().unwrap();
    assert_eq!(report.entries[&4].counts.inodes, 1);
    fs.unmount().unwrap();
}

#[test]
fn an_entry_whose_block_is_freed_as_metadata_stops_writing() {
    require!(Need::Program("mke2fs"), Need::Program("dumpe2fs"));
    let image = image();
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let journal = JournalOptions {
        background: Background::None,
        ..JournalOptions::default()
    };
    let options = MountOptions::new().journal(journal);
    let fs = Fs::mount(Arc::new(device), &options).unwrap();
    let of = NewAttributes::owned_by(200, 0);
    fs.create(ROOT, b"file", &of).unwrap();
    let mount = fs.writable().unwrap();
    let key = Key {
        kind: QuotaKind::User,
        id: 200,
    };
    let quota = mount.quota.as_deref().unwrap();
    let place = quota.known.lock()[&key].place;
    let running = mount.journal().running_tid();
    mount.core.buffers.forget(place.block, running);
    let refused = fs.sync();
    assert!(matches!(refused, Err(Error::Io(_))), "{refused:?}");
    let cause = mount.journal().abort_cause().map(|cause| cause.during);
    assert_eq!(cause, Some(During::FileSystem));
    let refused = fs.create(ROOT, b"other", &of);
    assert!(matches!(refused, Err(Error::ReadOnly(_))), "{refused:?}");
    let header = dumpe2fs_header(image.path()).unwrap();
    assert_eq!(header["First error err"], "EFSCORRUPTED");
    assert_eq!(header["First error block #"], place.block.to_string());
    fs.unmount().unwrap_err();
}

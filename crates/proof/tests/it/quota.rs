//! Quota: usage in quota files is what e2fsck counts after any history, and limits hold.

use std::process::Command;

use fourscore::{
    AttributeChange, Error, Fallocate, Fs, InodeFlags, InodeNr, MountOptions, NewAttributes,
    OpenInode, QuotaCounts, QuotaKind, QuotaLimits, SetXattr, exempt_from_quota,
};
use fourscore_proof::{Model, Pair, Rules};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::common::{ROOT, mount, mount_words, open, require_e2fsprogs, unmount_clean};
use crate::random::history;

/// Arguments of mke2fs: the block size, the size of inodes, the features.
type Format = (u32, u32, &'static [&'static str]);

const FORMATS: [Format; 7] = [
    (4096, 256, &["quota", "project"]),
    (1024, 256, &["quota", "project"]),
    (4096, 512, &["quota", "project", "ea_inode", "inline_data"]),
    (1024, 256, &["quota", "ea_inode", "orphan_file"]),
    (4096, 256, &["quota", "project", "bigalloc"]),
    (1024, 256, &["quota", "project", "^extent", "^64bit"]),
    (4096, 256, &["quota", "project", "^has_journal"]),
];

fn image(nth: usize) -> Image {
    let (block_bytes, inode_bytes, features) = FORMATS[nth];
    let image = Image::builder(MiB(64)).kind("ext4");
    let image = image
        .block_size_bytes(block_bytes)
        .inode_size_bytes(inode_bytes)
        .features(features);
    let has_project = features.contains(&"project");
    let types = "quotatype=usrquota:grpquota:prjquota";
    match has_project {
        true => image.extended(types),
        false => image,
    }
    .make()
    .unwrap()
}

fn owned_by(uid: u32) -> NewAttributes {
    NewAttributes::owned_by(uid, uid + 1)
}

fn used(fs: &Fs, kind: QuotaKind, id: u32) -> QuotaCounts {
    let report = fs.quota(kind).unwrap().unwrap();
    let entry = report.entries.get(&id);
    entry.map(|entry| entry.counts).unwrap_or_default()
}

#[test]
fn usage_is_exact_after_random_histories() {
    require_e2fsprogs!();
    for nth in 0..FORMATS.len() {
        let image = image(nth);
        let mut model: Option<Model> = None;
        for seed in 1..3 {
            let fs = mount(&image);
            let links = u32::from(fs.stat(ROOT).unwrap().links);
            let before = model.take();
            let before = before.unwrap_or_else(|| Model::new(Rules::of(&fs), links));
            let mut pair = Pair::resume(fs.clone(), ROOT, before);
            for number in history(seed + 10 * nth as u64, 600) {
                pair.step(number);
            }
            model = Some(pair.finish());
            unmount_clean(fs, &image);
        }
    }
}

/// Has e2fsprogs write the quota files again. tune2fs counts an inode with the value of an
/// attribute for its owner, so e2fsck has to correct what it writes.
fn rebuild(image: &Image, has_project: bool) {
    let types = match has_project {
        true => "usrquota,grpquota,prjquota",
        false => "usrquota,grpquota",
    };
    for arguments in [&["-O", "^quota"][..], &["-O", "quota", "-Q", types]] {
        let mut command = Command::new("tune2fs");
        let ran = command.args(arguments).arg(image.path()).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
    }
    let mut command = Command::new("e2fsck");
    let ran = command.arg("-fy").arg(image.path()).output().unwrap();
    assert!(ran.status.code().is_some_and(|code| code <= 1), "{ran:?}");
    assert_clean(image.path());
}

/// Many owners, so that files of the tree grow, and all that changes what an inode is charged.
fn change_much(fs: &Fs, name: &[u8], has_project: bool) {
    let dir = fs.mkdir(ROOT, name, &owned_by(7)).unwrap();
    let mut files = Vec::new();
    for nth in 0..120_u32 {
        let owner = owned_by(nth * 70_001 + u32::from(name[0]));
        let file = fs.create(dir, format!("{nth}").as_bytes(), &owner).unwrap();
        fs.write_at(file, &vec![1; 3000 + nth as usize * 50], 0)
            .unwrap();
        files.push(file);
    }
    for (nth, &file) in files.iter().enumerate() {
        let value = vec![b'v'; [10, 300, 900][nth % 3]];
        fs.set_xattr(file, b"user.some", &value, SetXattr::Any)
            .unwrap();
        if nth % 2 == 0 {
            let uid = Some(100_000 + u32::try_from(nth % 5).unwrap());
            let change = AttributeChange {
                uid,
                gid: Some(9),
                ..AttributeChange::default()
            };
            fs.set_attributes(file, &change).unwrap();
        }
        if has_project && nth % 3 == 0 {
            fs.set_project(file, 5 + u32::try_from(nth % 4).unwrap())
                .unwrap();
        }
    }
    for (nth, &file) in files.iter().enumerate() {
        match nth % 6 {
            0 => fs.truncate(file, 100).unwrap(),
            1 => fs.remove_xattr(file, b"user.some").unwrap(),
            2 => fs
                .link(file, dir, format!("link {nth}").as_bytes())
                .unwrap(),
            3 => fs.unlink(dir, format!("{nth}").as_bytes()).unwrap(),
            4 => fs.write_at(file, &[3; 9000], 1 << 20).map(drop).unwrap(),
            _ => {}
        }
    }
}

#[test]
fn usage_is_exact_after_changes_of_owners_and_attributes() {
    require_e2fsprogs!();
    require!(Need::Program("tune2fs"));
    for (nth, (_, _, features)) in FORMATS.iter().enumerate() {
        let image = image(nth);
        let has_project = features.contains(&"project");
        let fs = mount(&image);
        change_much(&fs, b"one", has_project);
        unmount_clean(fs, &image);
        rebuild(&image, has_project);
        let fs = mount(&image);
        change_much(&fs, b"two", has_project);
        unmount_clean(fs, &image);
        let fs = open(&image);
        let counts = used(&fs, QuotaKind::User, 100_002);
        assert!(counts.inodes >= 10 && counts.bytes > 30_000, "{counts:?}");
        assert_eq!(fs.quota(QuotaKind::Project).unwrap().is_some(), has_project);
        let report = fs.quota(QuotaKind::User).unwrap().unwrap();
        assert!(report.entries.len() > 80);
    }
}

#[test]
fn values_in_inodes_count_for_each_file_that_has_them() {
    require_e2fsprogs!();
    let image = image(2);
    let fs = mount(&image);
    let count = |id| used(&fs, QuotaKind::User, id);
    let value = [7; 20_000];
    let mut files = Vec::new();
    for nth in 0..3 {
        let name = format!("{nth}");
        let file = fs.create(ROOT, name.as_bytes(), &owned_by(1)).unwrap();
        fs.set_xattr(file, b"user.large", &value, SetXattr::Any)
            .unwrap();
        files.push(file);
    }
    let three = QuotaCounts {
        inodes: 6,
        bytes: 3 * 20_480,
    };
    assert_eq!(count(1), three);
    let change = AttributeChange {
        uid: Some(2),
        ..AttributeChange::default()
    };
    fs.set_attributes(files[0], &change).unwrap();
    assert_eq!(count(2).inodes, 2);
    assert_eq!(count(1).inodes, 4);
    fs.unlink(ROOT, b"0").unwrap();
    fs.remove_xattr(files[1], b"user.large").unwrap();
    assert_eq!(count(2), QuotaCounts::default());
    assert_eq!(count(1).inodes, 3);
    unmount_clean(fs, &image);
}

#[test]
fn a_file_that_is_open_counts_until_it_is_closed() {
    require_e2fsprogs!();
    let image = image(0);
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &owned_by(1)).unwrap();
    fs.write_at(file, &[1; 8192], 0).unwrap();
    let open = OpenInode::new(&*fs, file).unwrap();
    fs.unlink(ROOT, b"file").unwrap();
    let counts = QuotaCounts {
        inodes: 1,
        bytes: 8192,
    };
    assert_eq!(used(&fs, QuotaKind::User, 1), counts);
    drop(open);
    assert_eq!(used(&fs, QuotaKind::User, 1), QuotaCounts::default());
    unmount_clean(fs, &image);
}

fn limit(fs: &Fs, kind: QuotaKind, id: u32, hard_bytes: u64, hard_inodes: u64) {
    let limits = QuotaLimits {
        hard_bytes,
        hard_inodes,
        ..QuotaLimits::default()
    };
    fs.set_quota(kind, id, limits).unwrap();
}

#[test]
fn limits_are_kept_if_the_mount_says_so_and_root_is_exempt() {
    require_e2fsprogs!();
    let image = image(0);
    let fs = mount(&image);
    limit(&fs, QuotaKind::User, 1, 40_960, 4);
    fs.create(ROOT, b"early", &owned_by(1)).unwrap();
    for nth in 0..10 {
        fs.create(ROOT, format!("{nth}").as_bytes(), &owned_by(1))
            .unwrap();
    }
    for nth in 2..10 {
        fs.unlink(ROOT, format!("{nth}").as_bytes()).unwrap();
    }
    unmount_clean(fs, &image);
    let fs = mount_words(&image, "usrquota,grpquota");
    let file = fs.create(ROOT, b"fourth", &owned_by(1)).unwrap();
    let refused = fs.create(ROOT, b"fifth", &owned_by(1));
    assert!(matches!(refused, Err(Error::QuotaExceeded)), "{refused:?}");
    assert_eq!(refused.unwrap_err().errno(), 122);
    fs.create(ROOT, b"of another", &owned_by(2)).unwrap();
    assert_eq!(fs.write_at(file, &[1; 100_000], 0).unwrap(), 40_960);
    let refused = fs.write_all_at(file, &[1; 100_000], 0);
    assert!(matches!(refused, Err(Error::QuotaExceeded)), "{refused:?}");
    let counts = used(&fs, QuotaKind::User, 1);
    assert_eq!(counts.bytes, 40_960, "a part at the front was written");
    fs.write_at(file, &[1; 40_960], 0).unwrap();
    let refused = fs.write_at(file, &[1; 1], 40_960);
    assert!(matches!(refused, Err(Error::QuotaExceeded)), "{refused:?}");
    fs.write_at(file, &[2; 40_960], 0).unwrap();
    fs.truncate(file, 36_864).unwrap();
    fs.write_at(file, &[1; 4096], 36_864).unwrap();
    exempt_from_quota(|| fs.write_at(file, &[1; 1], 40_960)).unwrap();
    let to_user = AttributeChange {
        uid: Some(1),
        ..AttributeChange::default()
    };
    let other = fs.create(ROOT, b"other", &owned_by(2)).unwrap();
    let refused = fs.set_attributes(other, &to_user);
    assert!(matches!(refused, Err(Error::QuotaExceeded)), "{refused:?}");
    limit(&fs, QuotaKind::User, 1, 0, 0);
    fs.set_attributes(other, &to_user).unwrap();
    limit(&fs, QuotaKind::Group, 77, 0, 1);
    let of_group = NewAttributes::owned_by(5, 77);
    fs.create(ROOT, b"group 1", &of_group).unwrap();
    let refused = fs.create(ROOT, b"group 2", &of_group);
    assert!(matches!(refused, Err(Error::QuotaExceeded)), "{refused:?}");
    unmount_clean(fs, &image);
    let report = open(&image).quota(QuotaKind::Group).unwrap().unwrap();
    assert_eq!(report.entries[&77].limits.hard_inodes, 1);
}

#[test]
fn options_need_the_quota_file() {
    require!(Need::Program("mke2fs"));
    let plain = Image::builder(MiB(16)).kind("ext4").make().unwrap();
    let options = |words| MountOptions::new().parse(words).unwrap();
    for word in ["usrquota", "grpquota", "prjquota"] {
        match crate::common::try_mount(&plain, &options(word)) {
            Err(Error::MountOption { word: found, .. }) => assert_eq!(found, word),
            other => panic!("{word}: {other:?}"),
        }
    }
    let noquota = "quota,grpquota,prjquota,noquota";
    let fs = crate::common::try_mount(&plain, &options(noquota)).unwrap();
    assert!(fs.quota(QuotaKind::User).unwrap().is_none());
    fs.unmount().unwrap();
}

#[test]
fn a_project_sees_its_limits_as_the_size_of_the_file_system() {
    require_e2fsprogs!();
    let image = image(0);
    let fs = mount_words(&image, "prjquota");
    let [dir, plain] = [b"dir", b"two"].map(|name| fs.mkdir(ROOT, name, &owned_by(0)).unwrap());
    for dir in [dir, plain] {
        fs.set_project(dir, 42).unwrap();
    }
    let flags = fs.stat(dir).unwrap().flags;
    fs.set_flags(dir, flags | InodeFlags::PROJINHERIT_FL)
        .unwrap();
    let whole = fs.statfs_at(dir).unwrap();
    assert_eq!(whole, fs.statfs().unwrap(), "no limits yet");
    limit(&fs, QuotaKind::Project, 42, 1 << 20, 10);
    let used = used(&fs, QuotaKind::Project, 42);
    let seen = fs.statfs_at(dir).unwrap();
    assert_eq!((seen.blocks, seen.inodes, seen.free_inodes), (256, 10, 8));
    assert_eq!(seen.free_blocks, 256 - used.bytes / 4096);
    let file = fs.create(dir, b"file", &owned_by(0)).unwrap();
    fs.write_at(file, &[1; 40_960], 0).unwrap();
    let less = fs.statfs_at(dir).unwrap();
    assert_eq!(less.free_blocks, seen.free_blocks - 10);
    assert_eq!(less.available_blocks, less.free_blocks);
    assert_eq!(less.free_inodes, 7);
    // New files do not inherit the project there.
    for other in [plain, ROOT] {
        assert_eq!(fs.statfs_at(other).unwrap(), fs.statfs().unwrap());
    }
    unmount_clean(fs, &image);
    // Nothing of the project has changed since this mount.
    let fs = mount_words(&image, "prjquota");
    assert_eq!(fs.statfs_at(dir).unwrap().free_blocks, less.free_blocks);
    limit(&fs, QuotaKind::Project, 42, 1 << 40, 0);
    assert_eq!(
        fs.statfs_at(dir).unwrap(),
        fs.statfs().unwrap(),
        "more than there is"
    );
    for bytes in [1024, 3072] {
        limit(&fs, QuotaKind::Project, 42, bytes, 0);
        let seen = fs.statfs_at(dir).unwrap();
        assert_eq!(seen, fs.statfs().unwrap(), "less than a block");
    }
    limit(&fs, QuotaKind::Project, 42, 4096, 0);
    let seen = fs.statfs_at(dir).unwrap();
    assert_eq!((seen.blocks, seen.free_blocks), (1, 0));
    unmount_clean(fs, &image);
    let fs = mount(&image);
    assert_eq!(fs.statfs_at(dir).unwrap(), fs.statfs().unwrap(), "not kept");
    unmount_clean(fs, &image);
}

/// A project with limits, into which threads write until they are refused.
#[test]
fn threads_fill_a_project_to_its_limit_and_not_above() {
    require_e2fsprogs!();
    const MOST_BYTES: u64 = 4 << 20;
    let image = image(0);
    let fs = mount_words(&image, "usrquota,prjquota");
    limit(&fs, QuotaKind::Project, 42, MOST_BYTES, 300);
    let dirs = [0, 1, 2, 3].map(|thread| {
        let dir = format!("dir {thread}");
        let dir = fs.mkdir(ROOT, dir.as_bytes(), &owned_by(thread)).unwrap();
        fs.set_project(dir, 42).unwrap();
        dir
    });
    let fill = |thread: u32| {
        let dir = dirs[thread as usize];
        let mut refusals = 0;
        for nth in 0..200_u32 {
            let name = format!("{nth}");
            let made = fs.create(dir, name.as_bytes(), &owned_by(thread));
            let file = match made {
                Ok(file) => file,
                Err(Error::QuotaExceeded) => {
                    refusals += 1;
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let filled = fs
                .set_project(file, 42)
                .and_then(|()| fs.write_at(file, &[1; 40_000], 0).map(drop));
            match filled {
                Ok(()) => {}
                Err(Error::QuotaExceeded) => refusals += 1,
                Err(error) => panic!("{error}"),
            }
            if nth % 7 == 0 {
                fs.unlink(dir, name.as_bytes()).unwrap();
            }
        }
        refusals
    };
    let refusals: u32 = thread::scope(|scope| {
        let fill = &fill;
        let threads: Vec<_> = (0..4).map(|nth| scope.spawn(move || fill(nth))).collect();
        let watch = || {
            let counts = used(&fs, QuotaKind::Project, 42);
            assert!(
                counts.bytes <= MOST_BYTES && counts.inodes <= 300,
                "{counts:?}"
            );
        };
        (0..20).for_each(|_| watch());
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    let counts = used(&fs, QuotaKind::Project, 42);
    assert!(
        counts.bytes <= MOST_BYTES && counts.inodes <= 300,
        "{counts:?}"
    );
    assert!(
        counts.bytes + 40_960 + 4096 > MOST_BYTES,
        "it was filled: {counts:?}"
    );
    assert!(refusals > 100);
    unmount_clean(fs, &image);
}

/// Threads that share owners and have some of their own; e2fsck counts afterwards.
#[test]
fn usage_of_many_threads_adds_up() {
    require_e2fsprogs!();
    let image = image(1);
    let fs = mount(&image);
    let work = |thread: u32| {
        let fs: &Arc<Fs> = &fs;
        let mut files: Vec<InodeNr> = Vec::new();
        for nth in 0..150_u32 {
            let owner = owned_by(if nth % 2 == 0 { 3 } else { thread * 1000 + nth });
            let name = format!("{thread} {nth}");
            let file = fs.create(ROOT, name.as_bytes(), &owner).unwrap();
            fs.write_at(file, &vec![1; nth as usize * 40], 0).unwrap();
            files.push(file);
            if nth % 5 == 0 {
                fs.unlink(ROOT, name.as_bytes()).unwrap();
                files.pop();
            }
            if nth % 11 == 0 {
                fs.sync().unwrap();
            }
        }
        for file in files.iter().step_by(3) {
            fs.fallocate(*file, Fallocate::Allocate, 0, 50_000).unwrap();
        }
    };
    thread::scope(|scope| {
        let work = &work;
        (1..5).for_each(|nth| {
            scope.spawn(move || work(nth));
        });
    });
    unmount_clean(fs, &image);
    assert_clean(image.path());
}

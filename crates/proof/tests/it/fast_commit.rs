//! Fast commits that the kernel wrote before a crash: a file system opened from such an image has
//! the tree as it was when the last fsync returned.

use fourscore::{Fs, InodeNr, MountOptions, NewAttributes, OpenOptions};
use fourscore_block::RecordingDevice;
use fourscore_sync::Arc;
use fourscore_testkit::image::Image;
use fourscore_testkit::mount::{Access, KernelMount, Log};
use fourscore_testkit::oracle::assert_clean;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, linkat};
use std::cell::RefCell;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use crate::common::{device_to_read, image_of, mount, open, pattern, require_kernel};
use crate::tree::{Object, Tree, assert_same, host_tree, our_tree};

const NEW: NewAttributes = NewAttributes::owned_by(0, 0).permissions(0o600);

/// Returns a number of `fc_info`, such as `commits`.
fn fc_info(mount: &KernelMount, what: &str) -> u64 {
    let path = format!("/proc/fs/ext4/{}/fc_info", mount.device_name().unwrap());
    let text = fs::read_to_string(path).unwrap();
    let line = text
        .lines()
        .find(|line| line.ends_with(&format!(" {what}")))
        .unwrap();
    line.split(' ').next().unwrap().parse().unwrap()
}

fn fsync(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

/// An image on which `setup` was run and checkpointed, then `change`, which ends in fast commits
/// only; and the tree as it was then.
fn crashed(options: &str, setup: impl FnOnce(&Path), change: impl FnOnce(&Path)) -> (Image, Tree) {
    let image = image_of(4096, &["fast_commit"]);
    let mount = KernelMount::new(image.path(), Access::ReadWrite, options).unwrap();
    let root = mount.path();
    setup(root);
    mount.sync().unwrap();
    // The first fsync after a mount is never a fast commit.
    fs::write(root.join("warm"), b"warm").unwrap();
    fsync(&root.join("warm"));
    mount.sync().unwrap();
    let (commits, ineligible) = (fc_info(&mount, "commits"), fc_info(&mount, "ineligible"));
    change(root);
    assert!(
        fc_info(&mount, "commits") > commits,
        "the kernel made no fast commit"
    );
    assert_eq!(
        fc_info(&mount, "ineligible"),
        ineligible,
        "the kernel made a full commit"
    );
    let tree = host_tree(root);
    mount.shut_down(Log::Lost).unwrap();
    mount.unmount().unwrap();
    (image, tree)
}

/// Runs the changes, and compares the tree before the crash with the tree that is read after it.
fn check(setup: impl FnOnce(&Path), change: impl FnOnce(&Path)) -> Image {
    check_mounted("", setup, change)
}

/// Does the same with a file system that the kernel mounts with `options`.
fn check_mounted(options: &str, setup: impl FnOnce(&Path), change: impl FnOnce(&Path)) -> Image {
    let (image, expected) = crashed(options, setup, change);
    let found = our_tree(&open(&image));
    assert_same(&found, &expected, "read after the crash");
    check_written(&image, found);
    image
}

/// A read-write mount writes the recovered state, and leaves nothing to recover. After a crash at
/// any point it can be repeated.
fn check_written(image: &Image, read: Tree) {
    let read = without_space(read);
    let device = Arc::new(RecordingDevice::new(device_to_read(image)));
    let mounted = Fs::mount(device.clone(), &MountOptions::new()).unwrap();
    mounted.unmount().unwrap();
    let cuts = device.cuts() - 1;
    for cut in (0..12).map(|part| cuts * part / 11) {
        let cut = Arc::new(device.as_of(cut).unwrap());
        let opened = Fs::open(cut.clone(), &OpenOptions::new()).unwrap();
        assert_same(&without_space(our_tree(&opened)), &read, "cut, and read");
        let again = Fs::mount(cut, &MountOptions::new()).unwrap();
        assert_same(&without_space(our_tree(&again)), &read, "cut, and mounted");
    }
    let recovered = image.copy().unwrap();
    let mounted = mount(&recovered);
    mounted.unmount().unwrap();
    assert_clean(recovered.path());
    let written = image.copy().unwrap();
    let mounted = mount(&written);
    assert_same(&without_space(our_tree(&mounted)), &read, "mounted");
    mounted.create(InodeNr::ROOT, b"one more", &NEW).unwrap();
    mounted.unlink(InodeNr::ROOT, b"one more").unwrap();
    mounted.unmount().unwrap();
    assert_clean(written.path());
    let found = without_space(our_tree(&open(&written)));
    assert_same(&found, &read, "written");
}

/// The name of a file that is on the orphan list at the crash. Recovery truncates it, which changes
/// its times.
const TRUNCATED: &str = "truncated by recovery";

/// Leaves out the space, which is computed from maps here and was stored in records there, and the
/// time of [`TRUNCATED`].
fn without_space(mut tree: Tree) -> Tree {
    let forget = |object: &mut Object| object.sectors = 0;
    tree.values_mut().for_each(forget);
    for (path, object) in &mut tree {
        if path.ends_with(TRUNCATED.as_bytes()) {
            object.mtime = None;
        }
    }
    tree
}

/// Does the same, and compares with the kernel's recovery.
fn check_as_kernel(setup: impl FnOnce(&Path), change: impl FnOnce(&Path)) {
    as_kernel(&check(setup, change));
}

fn as_kernel(image: &Image) {
    let ours = our_tree(&open(image));
    let recovered = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
    assert_eq!(host_tree(recovered.path()), ours);
}

#[test]
fn new_files_appear_with_content() {
    require_kernel!();
    check_as_kernel(
        |_| {},
        |root| {
            for nr in 0..10 {
                let path = root.join(format!("file{nr}"));
                fs::write(&path, pattern(nr, usize::from(nr) * 2500)).unwrap();
                fsync(&path);
            }
        },
    );
}

#[test]
fn files_grow_shrink_and_are_overwritten() {
    require_kernel!();
    check_as_kernel(
        |root| {
            for name in ["grow", "shrink", "over", "sparse", "deep"] {
                fs::write(root.join(name), pattern(1, 50_000)).unwrap();
            }
            let deep = File::options().write(true).open(root.join("deep")).unwrap();
            for nr in 0..400 {
                deep.write_at(&pattern(2, 4096), nr * 8192).unwrap();
            }
        },
        |root| {
            let at = |name: &str| File::options().write(true).open(root.join(name)).unwrap();
            at("grow").write_at(&pattern(3, 30_000), 50_000).unwrap();
            at("shrink").set_len(9_000).unwrap();
            at("over").write_at(&pattern(4, 10_000), 20_000).unwrap();
            at("sparse")
                .write_at(&pattern(5, 5_000), 3_000_000)
                .unwrap();
            at("deep").set_len(1_000_000).unwrap();
            for name in ["grow", "shrink", "over", "sparse", "deep"] {
                fsync(&root.join(name));
            }
            // A later fast commit undoes part of an earlier one.
            at("shrink").set_len(20_000).unwrap();
            fsync(&root.join("shrink"));
        },
    );
}

#[test]
fn preallocated_blocks_are_unwritten_until_written() {
    require_kernel!();
    check_as_kernel(
        |_| {},
        |root| {
            let file = File::create(root.join("allocated")).unwrap();
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
            file.write_at(&pattern(6, 12_288), 40_960).unwrap();
            file.sync_all().unwrap();
            file.write_at(&pattern(7, 8_192), 204_800).unwrap();
            file.sync_all().unwrap();
        },
    );
}

#[test]
fn names_are_added_moved_replaced_and_removed() {
    require_kernel!();
    check_as_kernel(
        |root| {
            fs::create_dir(root.join("dir")).unwrap();
            for name in ["a", "b", "c", "dir/d", "dir/e"] {
                fs::write(root.join(name), pattern(8, 100)).unwrap();
            }
            fs::hard_link(root.join("a"), root.join("a2")).unwrap();
            symlink("a", root.join("link")).unwrap();
        },
        |root| {
            fs::hard_link(root.join("b"), root.join("dir/b2")).unwrap();
            fs::rename(root.join("c"), root.join("dir/d")).unwrap();
            fs::rename(root.join("dir/e"), root.join("e")).unwrap();
            fs::remove_file(root.join("a2")).unwrap();
            fs::write(root.join("new"), b"new").unwrap();
            fs::rename(root.join("new"), root.join("newer")).unwrap();
            fsync(&root.join("newer"));
            fs::rename(root.join("newer"), root.join("newest")).unwrap();
            fsync(&root.join("newest"));
        },
    );
}

#[test]
fn a_number_can_be_used_again() {
    require_kernel!();
    check_as_kernel(
        |root| fs::write(root.join("old"), pattern(9, 200_000)).unwrap(),
        |root| {
            fs::remove_file(root.join("old")).unwrap();
            fs::write(root.join("new"), pattern(10, 5_000)).unwrap();
            fsync(&root.join("new"));
        },
    );
}

/// The kernel's own recovery leaves wrong link counts here, which e2fsck reports.
#[test]
fn directories_are_made_and_removed() {
    require_kernel!();
    check(
        |root| {
            fs::create_dir_all(root.join("gone/below")).unwrap();
            fs::remove_dir(root.join("gone/below")).unwrap();
        },
        |root| {
            fs::create_dir_all(root.join("one/two/three")).unwrap();
            fs::create_dir(root.join("one/four")).unwrap();
            fs::remove_dir(root.join("one/four")).unwrap();
            fs::remove_dir(root.join("gone")).unwrap();
            fs::write(root.join("one/two/file"), pattern(11, 3_000)).unwrap();
            fsync(&root.join("one/two/file"));
        },
    );
}

/// The kernel refuses to mount this image: the file has an INODE record, but no links.
#[test]
fn a_file_that_was_unlinked_but_open_is_gone() {
    require_kernel!();
    let mut gone = None;
    let mut held = None;
    let image = check(
        |root| fs::write(root.join("open"), pattern(12, 10_000)).unwrap(),
        |root| {
            let file = File::open(root.join("open")).unwrap();
            gone = Some(file.metadata().unwrap().ino());
            fs::remove_file(root.join("open")).unwrap();
            fs::write(root.join("other"), b"other").unwrap();
            file.sync_all().unwrap();
            fsync(&root.join("other"));
            // Closing the file would make the kernel free it, which does not concern fast commits.
            held = Some(file);
            drop(held.take());
        },
    );
    let gone = InodeNr(u32::try_from(gone.unwrap()).unwrap());
    let error = open(&image).stat(gone).unwrap_err();
    assert_eq!(error.errno(), fourscore::Error::NotFound.errno());
}

/// The name is in front of the inode in the log. The kernel and e2fsck leave the file without it.
#[test]
fn a_file_that_was_made_without_a_name_has_the_one_that_it_was_given() {
    require_kernel!();
    let mut made = None;
    let image = check(
        |root| fs::write(root.join("other"), b"before").unwrap(),
        |root| {
            let flags = OFlags::TMPFILE | OFlags::WRONLY;
            let file = File::from(rustix::fs::open(root, flags, Mode::RUSR).unwrap());
            file.write_all_at(&pattern(13, 10_000), 0).unwrap();
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, path, CWD, root.join("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
            file.sync_all().unwrap();
            made = Some(file.metadata().unwrap().ino());
        },
    );
    let fs = open(&image);
    let named = fs.lookup(InodeNr::ROOT, b"named").unwrap();
    assert_eq!(Some(u64::from(named.0)), made);
    assert_eq!(fs.stat(named).unwrap().links, 1);
}

/// The file is on the orphan list of the last full commit; the fast commit gives it a name, and has
/// no record of its blocks.
#[test]
fn a_file_on_the_orphan_list_gets_a_name_and_keeps_its_data() {
    require_kernel!();
    let held = RefCell::new(None);
    check(
        |root| {
            let flags = OFlags::TMPFILE | OFlags::WRONLY;
            let file = File::from(rustix::fs::open(root, flags, Mode::RUSR).unwrap());
            file.write_all_at(&pattern(5, 10_000), 0).unwrap();
            held.replace(Some(file));
        },
        |root| {
            let file = held.take().unwrap();
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(
                CWD,
                path,
                CWD,
                root.join(TRUNCATED),
                AtFlags::SYMLINK_FOLLOW,
            )
            .unwrap();
            file.sync_all().unwrap();
        },
    );
}

#[test]
fn names_in_an_indexed_directory() {
    require_kernel!();
    check_as_kernel(
        |root| {
            fs::create_dir(root.join("big")).unwrap();
            for nr in 0..1_500 {
                fs::write(root.join(format!("big/file number {nr}")), b"").unwrap();
            }
        },
        |root| {
            for nr in (0..60).map(|nr| nr * 20) {
                fs::remove_file(root.join(format!("big/file number {nr}"))).unwrap();
            }
            for nr in 0..50 {
                fs::write(root.join(format!("big/new {nr}")), b"").unwrap();
            }
            fs::rename(root.join("big/file number 7"), root.join("big/seven")).unwrap();
            fsync(&root.join("big/seven"));
        },
    );
}

/// The size in bytes of the pieces of a file that is going to lose blocks, and of the file that
/// needs them.
const PIECE: u64 = 1 << 20;

/// Fills a file system except for one MiB, which was the file "spare". The file "old" has four
/// pieces, and lies in front of the files that fill the rest.
fn fill(root: &Path) {
    let write = |name: &str, nth: u64, pieces: u64| -> std::io::Result<()> {
        let options = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .clone();
        let file = options.open(root.join(name))?;
        for piece in nth..nth + pieces {
            file.write_all_at(&pattern(15, 1 << 20), piece * PIECE)?;
        }
        file.sync_all()
    };
    write("spare", 0, 1).unwrap();
    write("warm", 0, 1).unwrap();
    for nth in 0..4 {
        write("old", 4 * nth, 4).unwrap();
        fs::write(root.join(format!("between {nth}")), [1; 4096]).unwrap();
        fsync(&root.join(format!("between {nth}")));
    }
    for nth in 0.. {
        if write("rest", nth, 1).is_err() {
            break;
        }
    }
    fs::remove_file(root.join("spare")).unwrap();
}

/// Creates a file that finds enough space only in blocks that another file has lost.
fn need(root: &Path) {
    fs::write(root.join("new"), pattern(16, 5 << 19)).unwrap();
    fsync(&root.join("new"));
}

/// With `data=writeback` the kernel gives blocks that one file loses to another file before it
/// commits.
#[test]
fn blocks_go_from_one_file_to_another() {
    require_kernel!();
    let losses: [fn(&File, &Path); 3] = [
        |_, old| fs::remove_file(old).unwrap(),
        |file, _| file.set_len(14 * PIECE).unwrap(),
        |file, _| {
            // One more extent than fits into the inode.
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, hole, 5 * PIECE, 2 * PIECE).unwrap();
        },
    ];
    for lose in losses {
        let image = check_mounted("data=writeback", fill, |root| {
            let old = root.join("old");
            let file = File::options().write(true).open(&old).unwrap();
            lose(&file, &old);
            drop(file);
            need(root);
        });
        as_kernel(&image);
    }
}

/// The same with a file that had lost its name before the last full commit.
#[test]
fn blocks_go_from_a_file_on_record_to_another() {
    require_kernel!();
    let held = std::cell::RefCell::new(None);
    let image = check_mounted(
        "data=writeback",
        |root| {
            fill(root);
            let old = root.join("old");
            *held.borrow_mut() = Some(File::open(&old).unwrap());
            fs::remove_file(old).unwrap();
        },
        |root| {
            drop(held.borrow_mut().take());
            need(root);
        },
    );
    as_kernel(&image);
}

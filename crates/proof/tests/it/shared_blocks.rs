//! Images in which two structures use one block, and both are changed in one transaction: an error,
//! and never a panic.

use std::fs::File;
use std::os::unix::fs::FileExt;

use fourscore::{Error, Fs, InodeNr, MountOptions, NewAttributes};
use fourscore_sync::atomic::{AtomicUsize, Ordering};
use fourscore_sync::thread;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::{debugfs, debugfs_write, dumpe2fs_header};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::common::{OWNER, ROOT, mount, mount_with, quiet, unmount_clean};

/// An extent in an inode maps this word of `i_block` to the block; so does an inner entry the word
/// before.
const FIRST_EXTENT: &str = "block[5]";
const FIRST_NODE: &str = "block[4]";

/// The directory of user 200 has its block where the entry of the user is.
#[test]
fn the_block_of_a_quota_entry_is_freed_as_a_directory() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let image = Image::builder(MiB(32)).kind("ext4").block_size_bytes(4096);
    let features = ["quota", "^metadata_csum", "^inline_data", "^fast_commit"];
    let image = image.features(&features).extended("quotatype=usrquota");
    let image = image.make().unwrap();
    let fs = mount(&image);
    let of = NewAttributes::owned_by(200, 0);
    let parent = fs.mkdir(ROOT, b"parent", &of).unwrap();
    let dir = fs.mkdir(parent, b"dir", &of).unwrap();
    let own = fs.extents(dir).unwrap()[0].physical.0;
    unmount_clean(fs, &image);
    let entries = debugfs(image.path(), &["bmap <3> 1"]).unwrap();
    let entries: u64 = entries.trim().parse().unwrap();
    let command = format!("sif <{}> {FIRST_EXTENT} {entries}", dir.0);
    debugfs_write(image.path(), &[command]).unwrap();
    // "." and "..": of the quota file these bytes are pointers to entries of the super-user and
    // the next five.
    let file = File::options().read(true).write(true).open(image.path());
    let (file, mut names) = (file.unwrap(), [0; 24]);
    file.read_exact_at(&mut names, own * 4096).unwrap();
    file.write_all_at(&names, entries * 4096).unwrap();

    let fs = mount_with(&image, &quiet());
    fs.rmdir(parent, b"dir").unwrap();
    let refused = fs.sync();
    assert!(matches!(refused, Err(Error::Io(_))), "{refused:?}");
    let refused = fs.create(parent, b"other", &of);
    assert!(matches!(refused, Err(Error::ReadOnly(_))), "{refused:?}");
    fs.unmount().unwrap_err();
    let header = dumpe2fs_header(image.path()).unwrap();
    assert_eq!(header["First error err"], "EFSCORRUPTED");
    assert_eq!(header["First error block #"], entries.to_string());
}

/// Makes pairs of files, of which the second one has the node of the first one's tree. Returns
/// their inodes.
fn pairs(image: &Image, count: usize) -> Vec<[InodeNr; 2]> {
    let fs = mount(image);
    let make = |name: String| {
        let file = fs.create(ROOT, name.as_bytes(), &OWNER).unwrap();
        for nth in 0..6 {
            fs.write_at(file, &[1; 1024], nth * 4096).unwrap();
        }
        file
    };
    let pairs: Vec<_> = (0..count)
        .map(|nth| ["a", "b"].map(|name| make(format!("{name}{nth}"))))
        .collect();
    unmount_clean(fs, image);
    let show: Vec<_> = pairs
        .iter()
        .map(|[one, _]| format!("ex -n <{}>", one.0))
        .collect();
    let shown = debugfs(image.path(), &show).unwrap();
    // ` 0/ 1   1/  1     0 - 4294967295  1234`: the block is the last but one word, or the last.
    let nodes = shown
        .lines()
        .filter(|line| line.trim_start().starts_with("0/"));
    let node = |line: &str| {
        let (_, range) = line.split_once('-').unwrap();
        range.split_whitespace().nth(1).unwrap().to_owned()
    };
    let share: Vec<_> = nodes
        .zip(&pairs)
        .map(|(line, [_, two])| format!("sif <{}> {FIRST_NODE} {}", two.0, node(line)))
        .collect();
    assert_eq!(share.len(), count);
    debugfs_write(image.path(), &share).unwrap();
    pairs
}

fn is_allowed<T>(changed: &fourscore::Result<T>) -> bool {
    let refused = changed.as_ref().err();
    refused.is_none_or(|error| !matches!(error, Error::Internal(_)))
}

#[test]
fn a_node_is_freed_while_another_file_changes_it() {
    const PAIRS: usize = 1500;
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let image = Image::builder(MiB(64)).kind("ext4").block_size_bytes(1024);
    let features = ["^metadata_csum", "^fast_commit", "^inline_data"];
    let image = image.features(&features).arguments(["-N", "4096"]);
    let image = image.make().unwrap();
    let pairs = pairs(&image, PAIRS);
    let fs = mount_with(&image, &MountOptions::new());
    let turn = AtomicUsize::new(0);
    // Both threads begin each pair together.
    let each = |change: &dyn Fn(&Fs, [InodeNr; 2])| {
        for (nth, &pair) in pairs.iter().enumerate() {
            turn.fetch_add(1, Ordering::AcqRel);
            while turn.load(Ordering::Acquire) < 2 * (nth + 1) {
                thread::yield_now();
            }
            change(&fs, pair);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| each(&|fs, [_, two]| assert!(is_allowed(&fs.truncate(two, 0)))));
        scope.spawn(|| {
            each(&|fs, [one, _]| assert!(is_allowed(&fs.write_at(one, &[7; 1024], 40 << 10))));
        });
    });
    // If the race was met, the journal was aborted.
    drop(fs);
}

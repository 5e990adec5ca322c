//! What the command does with an image whose superblock has a wrong field that e2fsck repairs.

mod common;

use common::{complained, fourscore, text};
use fourscore_testkit::oracle::debugfs_write;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, require, scratch};

/// A field that reading does not depend on is no reason not to read, and one not to write.
#[test]
fn a_wrong_field_of_the_superblock_is_read_around_and_not_written_beside() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = Image::builder(MiB(32)).kind("ext4").block_size_bytes(4096);
    let image = image.features(&["meta_bg", "^resize_inode"]);
    let image = image.make().expect("mke2fs runs");
    let path = text(image.path());
    let descriptors = || -> Vec<String> {
        let run = fourscore(&["info", "--groups", path]).output();
        let run = run.expect("the program exists");
        assert_eq!(run.status.code(), Some(0));
        let groups = String::from_utf8(run.stdout).expect("text");
        let lines = groups.lines().filter(|line| line.contains("descriptor"));
        lines.map(str::to_owned).collect()
    };
    debugfs_write(image.path(), &["ssv first_meta_bg 1"]).expect("debugfs runs");
    let greatest = descriptors();
    debugfs_write(image.path(), &["ssv first_meta_bg 4000"]).expect("debugfs runs");
    assert!(!greatest.is_empty());
    assert_eq!(descriptors(), greatest);
    let point = scratch::folder().expect("a folder");
    let arguments = ["mount", "-f", "-o", "rw", path, text(point.path())];
    let (status, complaint) = complained(&arguments);
    assert_eq!(status, Some(1), "{complaint}");
    let says = "s_first_meta_bg 4000 is over 1; open it for reading (ro), or let e2fsck repair";
    assert!(
        complaint.contains(path) && complaint.contains(says),
        "{complaint}"
    );
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
}

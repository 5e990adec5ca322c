//! An image whose superblock has a wrong field that e2fsck repairs.

use fourscore_testkit::oracle::debugfs_write;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, require, scratch};

use crate::common::{failing, fourscore, text};

/// A wrong field that is not needed for reading prevents writing only.
#[test]
fn an_image_with_a_wrong_field_is_read_and_not_mounted_for_writing() {
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
    let (status, message) = failing(&arguments);
    assert_eq!(status, Some(1), "{message}");
    let says = "s_first_meta_bg 4000 is over 1; open it for reading (ro), or let e2fsck repair";
    assert!(
        message.contains(path) && message.contains(says),
        "{message}"
    );
    assert_eq!(message.lines().count(), 1, "{message}");
}

//! **Purpose.** A directory that had a hash index has one after a repair, with all its names.

use std::collections::BTreeSet;
use std::fs;

use fourscore_testkit::oracle::{debugfs, debugfs_write};
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};

use super::assert_repaired;

/// Enough names for two levels of index blocks of 1 KiB.
const NAMES: usize = 6000;

#[test]
fn a_directory_gets_its_index_back() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let folder = scratch::folder().expect("a folder");
    let tree = folder.path().join("tree");
    let dir = tree.join("many");
    fs::create_dir_all(&dir).expect("a directory");
    for number in 0..NAMES {
        fs::write(
            dir.join(format!("a name of some length, number {number}")),
            "",
        )
        .expect("a file");
    }
    let image = folder.path().join("image");
    let mut command = tools::command("mke2fs").expect("found before");
    command.args(["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "8000", "-d"]);
    command.arg(&tree).arg(&image).arg("24M");
    tools::stdout_of(&mut command).expect("mke2fs runs");
    // mke2fs writes a linear directory; e2fsck gives it an index.
    let mut command = tools::command("e2fsck").expect("found before");
    tools::output_of(command.arg("-fyD").arg(&image)).expect("e2fsck runs");
    let names = |what: &str| -> BTreeSet<String> {
        let listed = debugfs(&image, &["ls -p /many"]).expect(what);
        listed.lines().map(str::to_owned).collect()
    };
    let has_index = || {
        let stat = debugfs(&image, &["stat /many"]).expect("debugfs runs");
        stat.contains("Flags: 0x81000")
    };
    let before = names("before");
    assert!(
        before.len() >= NAMES && has_index(),
        "the test needs an index"
    );
    // The count of the root's entries.
    debugfs_write(&image, &["zap_block -f /many -o 34 -l 2 -p 3 0"]).expect("it is damaged");
    let result = assert_repaired(&image).expect("it is repaired");
    assert!(!result.mended.is_empty());
    assert!(has_index(), "the index is gone");
    assert_eq!(names("after"), before);
}

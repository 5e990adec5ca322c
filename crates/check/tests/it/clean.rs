//! **Purpose.** Images that e2fsck finds clean are sound for the checker too, in every
//! configuration of the matrix and on any number of threads.

use std::ffi::OsStr;

use anyhow::ensure;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::e2fsck;
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{matrix, require};

use crate::common::{report, texts};

#[test]
fn clean_images_of_the_matrix_are_sound() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    matrix::assert_all(|config| {
        let populated = config.populated()?;
        let image = populated.image.path();
        let found = report(image, 2)?;
        ensure!(found.findings().is_empty(), "{:#?}", texts(&found));
        let tally = found.tally();
        ensure!(tally.directories > 3 && tally.entries > 2 * tally.directories);
        for threads in [1, 5] {
            let again = report(image, threads)?;
            ensure!(again.tally() == tally && again.findings().is_empty());
        }
        Ok(())
    });
}

/// The blocks of the value count for the link, whose target is in the inode all the same. e2fsck
/// 1.47.0 takes the target for block numbers (docs/FINDINGS.md, 30).
#[test]
fn the_value_of_a_short_link_makes_its_target_no_blocks() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("setfattr"),
        Need::KernelMount
    );
    let image = Image::builder(MiB(16)).kind("ext4").features(&["ea_inode"]);
    let image = image.make().unwrap();
    let kernel = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
    let link = kernel.path().join("link");
    std::os::unix::fs::symlink("ab", &link).unwrap();
    let value = "v".repeat(5000);
    let arguments = ["-h", "-n", "trusted.v", "-v", &value].map(OsStr::new);
    tools::run("setfattr", &[&arguments[..], &[link.as_os_str()]].concat()).unwrap();
    kernel.unmount().unwrap();
    let found = report(image.path(), 1).unwrap();
    assert!(found.findings().is_empty(), "{:#?}", texts(&found));
    assert_eq!(found.tally().inodes, 4, "the value has an inode");
    let theirs = e2fsck(image.path()).unwrap();
    assert!(
        theirs.is_clean() || theirs.output.contains("illegal block(s)"),
        "{}",
        theirs.output
    );
}

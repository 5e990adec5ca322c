//! **Purpose.** Fields of the superblock that readers do not depend on: they are reported, and the
//! rest is checked, as e2fsck continues after repairing them.

use std::path::Path;

use fourscore_testkit::oracle::{assert_clean, debugfs_write, e2fsck_repair};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, require};

use super::surgery::Surgery;
use super::{assert_found, checked};

use crate::common;

/// A field and the text of its finding, in a file system of one group, which has no backup of the
/// superblock.
struct Case {
    features: &'static [&'static str],
    field: &'static str,
    to: u64,
    says: &'static str,
}

/// With these e2fsck 1.47.0 ends with an error, after it has repaired all else or nothing else.
const ENDS_E2FSCK: [&str; 2] = ["s_orphan_file_inum", "s_mmp_block"];

const CASES: [Case; 8] = [
    Case {
        features: &["meta_bg", "^resize_inode"],
        field: "s_first_meta_bg",
        to: 4_000,
        says: "s_first_meta_bg 4000 is over 1",
    },
    Case {
        features: &["quota"],
        field: "s_usr_quota_inum",
        to: 4_000_000,
        says: "s_usr_quota_inum 4000000 is not from 1",
    },
    Case {
        features: &["quota"],
        field: "s_grp_quota_inum",
        to: 8,
        says: "s_grp_quota_inum 8 is an inode that has another role",
    },
    Case {
        features: &["quota", "project"],
        field: "s_prj_quota_inum",
        to: 2,
        says: "s_prj_quota_inum 2 is an inode that has another role",
    },
    Case {
        features: &[],
        field: "s_journal_inum",
        to: 4_000_000,
        says: "s_journal_inum 4000000 is not from 1",
    },
    Case {
        features: &[],
        field: "s_journal_inum",
        to: 0,
        says: "has_journal needs either s_journal_inum or an external journal",
    },
    Case {
        features: &["orphan_file"],
        field: "s_orphan_file_inum",
        to: 4_000_000,
        says: "s_orphan_file_inum 4000000 is not from 1",
    },
    Case {
        features: &["mmp"],
        field: "s_mmp_block",
        to: 4_000_000,
        says: "s_mmp_block 4000000 is outside the file system",
    },
];

fn image(case: &Case) -> Image {
    let image = Image::builder(MiB(32)).kind("ext4").block_size_bytes(4096);
    let image = image.features(case.features);
    let image = image.make().expect("mke2fs runs");
    // Another fault, which must be found, too.
    let other = "set_inode_field <11> links_count 9";
    debugfs_write(image.path(), &[other]).expect("debugfs runs");
    let mut surgery = Surgery::new(&image).expect("it can be read");
    surgery.sb(case.field, |_| case.to).expect("damage");
    image
}

/// The codes of the findings of an image.
fn codes(image: &Path) -> (Vec<&'static str>, String) {
    let report = checked(image).expect("a report");
    let texts = common::texts(&report).join("\n");
    (report.counts().keys().copied().collect(), texts)
}

#[test]
fn fields_that_e2fsck_repairs_do_not_end_a_check() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("e2fsck")
    );
    for case in &CASES {
        let image = image(case);
        let (codes, texts) = codes(image.path());
        assert!(codes.contains(&"superblock-field"), "{texts}");
        assert!(texts.contains(case.says), "{}: {texts}", case.says);
        assert!(!texts.contains("superblock: superblock"), "{texts}");
        assert!(codes.contains(&"links-count"), "{texts}");
        // There are no further findings, as there would be with a wrong geometry.
        assert!(codes.len() < 10, "{texts}");
        assert_found(image.path(), "superblock-field").expect("both find it");
        if ENDS_E2FSCK.contains(&case.field) {
            continue;
        }
        e2fsck_repair(image.path(), &[]).expect(case.says);
        assert_clean(image.path());
    }
}

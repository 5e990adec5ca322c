//! Tests that sizes are exact: for any tree and block size, everything fits, the waste is minimal,
//! and a size of one block less is too small.

use fourscore_build::tree::{Content, Kind, Meta, Tree, Xattrs};
use fourscore_build::{BuildError, Flow, Options, Overwrite, Size, Summary, Target, build};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{require, scratch};
use proptest::prelude::*;

use crate::cases::options;

/// Kinds of files in a tree: number, length, and bytes of an attribute.
type Kinds = Vec<(usize, usize, usize)>;

fn tree(kinds: &Kinds, longer: usize) -> Tree {
    let mut tree = Tree::new();
    for (number, &(count, len, xattr)) in kinds.iter().enumerate() {
        for file in 0..count {
            let path = format!("directory-{}/{number}/file-{file}", number % 3);
            let content = Content::Bytes(vec![7; len].into());
            let mut xattrs = Xattrs::new();
            if xattr > 0 {
                xattrs.set(b"user.attribute", &vec![b'x'; xattr * longer]);
            }
            let meta = Meta {
                uid: u32::try_from(file * number).expect("few files"),
                ..Meta::default()
            };
            let placed = tree.insert(path.as_bytes(), &meta, Kind::File(content), &xattrs);
            placed.expect("a good path");
        }
    }
    tree
}

fn kinds() -> impl Strategy<Value = Kinds> {
    let kind = (
        0..400usize,
        prop_oneof![0..200usize, 0..20_000usize, 100_000..900_000usize],
        prop_oneof![3 => Just(0usize), 1 => 1..800usize],
    );
    // Limits trees to a few dozen MiB.
    let bounded = kind.prop_map(|(count, len, xattr)| match len {
        100_000.. => (count % 20, len, xattr),
        _ => (count, len, xattr),
    });
    proptest::collection::vec(bounded, 0..6)
}

const FORMS: &[&str] = &[
    "-t ext4 -b 1024",
    "-t ext4 -b 2048",
    "-t ext4 -b 4096",
    "-t ext4 -b 8192",
    "-t ext4 -b 16384",
    "-t ext4 -b 32768",
    "-t ext4 -b 65536",
    "-t ext2 -b 1024",
    "-t ext3 -b 4096",
    "-t ext4 -b 4096 -O bigalloc",
    "-t ext4 -b 1024 -g 2048",
    "-t ext4 -b 4096 -O ^has_journal",
    "-t ext4 -b 4096 -O inline_data,quota",
    "-t ext4 -b 1024 -I 512 -O inline_data,ea_inode,quota,project",
    "-t ext4 -b 4096 -O bigalloc,ea_inode",
];

/// Factor for the length of attributes if large values have inodes of their own.
const LARGE_VALUES: usize = 17;

fn made(form: &Options, size: Size, kinds: &Kinds) -> Result<Summary, BuildError> {
    let features = form.format.features.as_deref().unwrap_or_default();
    let longer = match features.contains("ea_inode") {
        true => LARGE_VALUES,
        false => 1,
    };
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    let options = Options {
        size,
        ..form.clone()
    };
    let target = Target::find(&image, Overwrite::OwnImages)?;
    let summary = build(&options, tree(kinds, longer), &target, &|_| Flow::Continue)?;
    assert_clean(&image);
    Ok(summary)
}

fn smaller_size(made: &Summary, unit: u64) -> Size {
    Size::Bytes(made.size_bytes - unit)
}

/// The options that [`Size::Minimum`] implies, for builds with a given size.
fn minimum_options(options: &Options, least: &Summary) -> Options {
    let mut options = options.clone();
    let format = &mut options.format;
    let features = format.features.take();
    let features = features.map_or(String::new(), |features| features + ",");
    format.features = Some(features + "^resize_inode");
    // No more inodes than needed.
    format.inodes = Some(16);
    format.reserved_percent = Some(0.0);
    if least.size_bytes >= 64 << 20 {
        format.journal.size_mib = Some(4);
    }
    options
}

#[test]
fn sizes_are_exact() {
    require!(Need::Program("e2fsck"));
    let cases = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(100)
    };
    proptest!(cases, |(kinds in kinds(), form in 0..FORMS.len(), slack in 1..64u64)| {
        let form = FORMS[form];
        let options = options(form);
        let unit = match options.format.block_size {
            Some(fourscore_mkfs::BlockSizeWish::Exactly(size)) => size.bytes() as u64,
            _ => 4096,
        };
        let block = unit;
        // With bigalloc, the last cluster may be incomplete.
        let unit = if form.contains("bigalloc") { 16 * block } else { block };
        // A file system with a journal has at least 2048 blocks; and a last group must have 50
        // blocks besides its superblock, descriptors and reserved descriptors.
        let group_blocks = if form.contains("-g") { 2048 } else { 8 * block };
        let last_group = |made: &Summary| match made.size_bytes / block > group_blocks {
            true => (52 + block / 4) * block,
            false => 0,
        };
        let is_tight = |made: &Summary, slack: u64| {
            let waste = made.size_bytes / 100 + 4 * unit + last_group(made);
            made.free_bytes <= slack + waste || made.size_bytes <= 2048 * block
        };
        let auto = made(&options, Size::Auto, &kinds).expect("no limit was set");
        prop_assert!(is_tight(&auto, 0), "auto, {}: {:?}", form, auto);
        let least = made(&options, Size::Minimum, &kinds).expect("no limit was set");
        prop_assert!(least.size_bytes <= auto.size_bytes, "{}: {:?}", form, least);
        prop_assert!(is_tight(&least, 0), "least, {}: {:?}", form, least);
        let small = made(&options, Size::Bytes(least.size_bytes - unit), &kinds);
        match small {
            Err(BuildError::NoSpace { needed_bytes, .. }) => {
                let enough = made(&options, Size::Bytes(needed_bytes), &kinds);
                prop_assert!(enough.is_ok(), "{}: {:?}", form, enough.err());
            }
            Err(BuildError::Format(_)) => {}
            other => prop_assert!(false, "{}: {:?}", form, other),
        }
        let smaller = made(&minimum_options(&options, &least), smaller_size(&least, unit), &kinds);
        let does_not_fit = matches!(
            smaller,
            Err(BuildError::NoSpace { .. } | BuildError::Format(_))
        );
        prop_assert!(does_not_fit, "one unit open_below the least, {}: {:?}", form, smaller);
        let slack = slack << 20;
        let more = made(&options, Size::AutoPlusBytes(slack), &kinds).expect("no limit was set");
        prop_assert!(more.free_bytes >= slack, "{}: {:?}", form, more);
        prop_assert!(is_tight(&more, slack), "plus {}, {}: {:?}", slack, form, more);
        let more = made(&options, Size::AutoPlusPercent(20), &kinds).expect("no limit was set");
        let requested = auto.size_bytes / 5;
        prop_assert!(more.free_bytes >= requested, "{}: {:?}", form, more);
        prop_assert!(is_tight(&more, requested), "plus 20 %, {}: {:?}", form, more);
    });
}

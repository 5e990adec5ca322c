//! Options thrown together at random: each combination is either refused with an error that names
//! an option, and then mke2fs refuses it too, or makes the file system that mke2fs makes: equal
//! byte by byte, and clean for e2fsck.
//!
//! The cases come from a seed that failures print. `FOURSCORE_MKFS_CASES` and `FOURSCORE_MKFS_SEED`
//! make longer and other runs.

use std::path::Path;

use fourscore_mkfs::{FormatError, Layout, Profile};
use fourscore_ondisk::features::table;
use fourscore_testkit::{oracle, require, scratch, tools::Need};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::mkfs::{Case, case};

/// As many as take some 20 s.
const USUAL_CASES: u32 = 60;

/// What is refused here though mke2fs goes on: the beginning of the error, and what mke2fs does.
const STRICTER: &[(&str, &str)] = &[(
    "-E stripe_width: ",
    "warns of what is no multiple of the stride",
)];

fn pick(texts: &'static [&'static str]) -> impl Strategy<Value = String> {
    proptest::sample::select(texts).prop_map(str::to_owned)
}

fn sizes() -> impl Strategy<Value = String> {
    prop_oneof![
        // mke2fs takes whole pages of a device.
        (25u32..750).prop_map(|pages| format!("{}k", pages * 4)),
        (1u32..700).prop_map(|mib| format!("{mib}M")),
        (750u32..225_000).prop_map(|pages| format!("{}k", pages * 4)),
        pick(&["1G", "3G", "9G", "40G", "300G"]),
    ]
}

/// Each option about as often as it takes for several to meet.
fn words() -> impl Strategy<Value = String> {
    let kinds = pick(&["-t ext2", "-t ext3", "-t ext4", "-t ext4", "-t ext4"]);
    let parts = (kinds, features(), with_letters(), extended());
    parts.prop_map(|(kind, features, letters, extended)| {
        let mut words = vec![kind, features];
        words.extend(in_order(letters, ' '));
        words.push(extended);
        words.retain(|word| !word.is_empty());
        words.join(" ")
    })
}

/// `-O`, or nothing.
fn features() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        (
            pick(&["", "", "^"]),
            pick(&[
                "has_journal",
                "resize_inode",
                "dir_index",
                "ext_attr",
                "sparse_super2",
                "fast_commit",
                "stable_inodes",
                "orphan_file",
                "filetype",
                "extent",
                "meta_bg",
                "flex_bg",
                "ea_inode",
                "mmp",
                "64bit",
                "inline_data",
                "encrypt",
                "casefold",
                "metadata_csum_seed",
                "large_dir",
                "large_file",
                "huge_file",
                "dir_nlink",
                "extra_isize",
                "sparse_super",
                "uninit_bg",
                "bigalloc",
                "quota",
                "metadata_csum",
                "project",
                "verity",
            ]),
        ),
        0..5,
    )
    .prop_map(|list| {
        let list: Vec<_> = list.into_iter().map(|(no, name)| no + &name).collect();
        if list.is_empty() {
            String::new()
        } else {
            format!("-O {}", list.join(","))
        }
    })
}

/// Options with a letter of their own.
fn with_letters() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(
        prop_oneof![
            pick(&[
                "-b 1024", "-b 2048", "-b 4096", "-b 8192", "-b 65536", "-b 1024"
            ]),
            pick(&["-I 128", "-I 256", "-I 512", "-I 1024", "-I 2048"]),
            pick(&["-G 1", "-G 2", "-G 8", "-G 64", "-G 1024"]),
            (32u32..1100).prop_map(|units| format!("-g {}", units * 8)),
            pick(&["-C 4096", "-C 16384", "-C 65536", "-C 1048576"]),
            (1024u32..200_000).prop_map(|ratio| format!("-i {ratio}")),
            pick(&[
                "-i 1048576",
                "-i 67108864",
                "-g 0",
                "-I 0",
                "-J location=900"
            ]),
            (1u32..100_000).prop_map(|inodes| format!("-N {inodes}")),
            (0u32..51).prop_map(|percent| format!("-m {percent}")),
            (1u32..80).prop_map(|mib| format!("-J size={mib}")),
            (1u32..80, 0u32..90_000).prop_map(|(m, b)| format!("-J size={m},location={b}")),
            (100u32..9000).prop_map(|kib| format!("-J fast_commit_size={kib}")),
            pick(&[
                "-j", "-r 0", "-L name", "-M /mnt", "-T news", "-T small", "-T huge"
            ]),
        ],
        0..5,
    )
}

/// `-E`, or nothing.
fn extended() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![
            (0u32..100).prop_map(|blocks| format!("stride={blocks}")),
            (0u32..10).prop_map(|blocks| format!("stripe_width={}", blocks * 16)),
            pick(&["resize=2G", "resize=100G", "resize=4000000", "resize=16T"]),
            pick(&[
                "packed_meta_blocks",
                "packed_meta_blocks=0",
                "lazy_itable_init=0"
            ]),
            pick(&["num_backup_sb=0", "num_backup_sb=1", "num_backup_sb=2"]),
            pick(&["desc_size=64", "desc_size=128", "desc_size=1024"]),
            pick(&[
                "nodiscard",
                "test_fs",
                "root_owner=1:70000",
                "lazy_journal_init"
            ]),
            pick(&["quotatype=usrquota", "quotatype=grpquota:prjquota"]),
            pick(&[
                "orphan_file_size=32k",
                "orphan_file_size=1M",
                "orphan_file_size=20"
            ]),
            pick(&[
                "encoding=utf8",
                "encoding_flags=strict",
                "mmp_update_interval=7"
            ]),
            pick(&["assume_storage_prezeroed=1"]),
        ],
        0..4,
    )
    .prop_map(|list| match in_order(list, '=') {
        list if list.is_empty() => String::new(),
        list => format!("-E {}", list.join(",")),
    })
}

/// Each option once, in the order of their names: for mke2fs desc_size must stand before resize.
fn in_order(mut options: Vec<String>, behind_name: char) -> Vec<String> {
    let name = |option: &mut String| {
        let name = option.split(behind_name).next();
        name.unwrap_or_default().to_owned()
    };
    options.sort_by_key(|option| name(&mut option.clone()));
    options.dedup_by_key(name);
    options
}

fn number(variable: &str, usual: u32) -> u32 {
    let text = std::env::var(variable).ok();
    text.map_or(usual, |text| text.parse().expect("a number"))
}

/// How a case ended, or what is wrong.
fn check(case: &Case<'_>, refused: &mut u32) -> Result<(), String> {
    let folder = scratch::folder().map_err(|error| error.to_string())?;
    let theirs = folder.path().join("theirs");
    let options = case.options();
    let profile = Profile::system().map_err(|error| error.to_string())?;
    let layout = match &options {
        Ok(options) => Layout::new(options, &profile, case.size_bytes()),
        // What the options' own texts get wrong.
        Err(error) => return Err(format!("{error:#}")),
    };
    let made_by_mke2fs = case.make_with_mke2fs(&theirs);
    match (layout, made_by_mke2fs) {
        (Ok(_), Ok(())) => match case.check().map_err(|error| format!("{error:#}")) {
            // Some combinations mke2fs gets wrong itself.
            Err(why) if !why.starts_with("e2fsck") && !is_clean(&theirs)? => Ok(()),
            checked => checked,
        },
        (Ok(_), Err(theirs)) => Err(format!("mke2fs refuses: {theirs:#}")),
        (Err(FormatError::Invalid(why)), _) => Err(format!("a mistake of the module: {why}")),
        (Err(_), Err(_)) => {
            *refused += 1;
            Ok(())
        }
        (Err(ours), Ok(())) => {
            let text = ours.to_string();
            match STRICTER.iter().any(|(start, _)| text.starts_with(start)) {
                true => Ok(()),
                false => Err(format!("only ours refuses: {text}")),
            }
        }
    }
}

fn is_clean(image: &Path) -> Result<bool, String> {
    let fsck = oracle::e2fsck(image).map_err(|error| format!("{error:#}"))?;
    Ok(fsck.is_clean())
}

#[test]
fn random_options_make_what_mke2fs_makes_or_are_refused_by_both() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let cases = number("FOURSCORE_MKFS_CASES", USUAL_CASES);
    let seed = number("FOURSCORE_MKFS_SEED", 80);
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = (sizes(), words());
    let mut refused = 0;
    let mut failures = String::new();
    for nr in 0..cases {
        let tree = strategy.new_tree(&mut runner).expect("nothing is filtered");
        let (size, words) = tree.current();
        if let Err(why) = check(&case(&size, &words), &mut refused) {
            failures += &format!("{nr} of seed {seed}: {size} {words}\n    {why}\n");
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
    eprintln!("{cases} cases of seed {seed}: {refused} refused by both");
    // The rest was made: a run in which nothing is made, or nothing refused, shows little.
    assert!(
        refused > cases / 20 && refused < cases * 4 / 5,
        "{refused} of {cases} were refused"
    );
}

/// Every extended option of mke2fs(8), with a value, and some that do not exist.
const EXTENDED: &[&str] = &[
    "encoding=utf8",
    "encoding=utf8-12.1",
    "encoding=latin1",
    "encoding",
    "encoding=utf8,encoding_flags=strict",
    "encoding=utf8,encoding_flags=nostrict",
    "encoding_flags=strict",
    "encoding=utf8,encoding_flags=loose",
    "mmp_update_interval=7",
    "mmp_update_interval=x",
    "mmp_update_interval",
    "stride=4",
    "stride=x",
    "stride",
    "stripe_width=8",
    "stripe-width=8",
    "stripe_width=x",
    "offset=1048576",
    "offset=x",
    "offset",
    "resize=1G",
    "resize=1M",
    "resize=x",
    "resize",
    "lazy_itable_init",
    "lazy_itable_init=0",
    "lazy_itable_init=1",
    "lazy_journal_init",
    "lazy_journal_init=0",
    "lazy_journal_init=1",
    "assume_storage_prezeroed",
    "assume_storage_prezeroed=0",
    "assume_storage_prezeroed=1",
    "no_copy_xattrs",
    "num_backup_sb=1",
    "num_backup_sb=3",
    "num_backup_sb",
    "packed_meta_blocks",
    "packed_meta_blocks=0",
    "packed_meta_blocks=1",
    "root_owner",
    "root_owner=1:2",
    "root_owner=1",
    "root_owner=a:b",
    "root_owner=1:b",
    "test_fs",
    "orphan_file_size=64k",
    "orphan_file_size",
    "quotatype=usrquota",
    "quotatype=grpquota:prjquota",
    "quotatype=none",
    "quotatype",
    "desc_size=64",
    "desc-size=64",
    "desc_size=0",
    "desc_size=65",
    "desc_size",
    "hash_seed=0a55c09e-e4a0-4b1d-9c00-000000000008",
    "hash_seed=x",
    "hash_seed",
    "discard",
    "nodiscard",
    "nonsense",
    "nonsense=1",
    "revision=1",
];

#[test]
fn each_extended_option_is_taken_where_mke2fs_takes_it() {
    require!(Need::Program("mke2fs"));
    let arguments = |option: &str| format!("-t ext4 -E {option}");
    let differing = which_differ(EXTENDED, arguments);
    assert!(differing.is_empty(), "only one side takes {differing:?}");
}

#[test]
fn each_feature_is_set_and_cleared_where_mke2fs_does_it() {
    require!(Need::Program("mke2fs"));
    let names: Vec<_> = table::rows().map(|row| row.name).collect();
    assert!(names.len() > 40, "{names:?}");
    let mut changes = Vec::new();
    for name in names
        .iter()
        .chain(&["extents", "uninit_groups", "none", "clear", "nonsense"])
    {
        if *name != "journal_dev" {
            changes.extend([(*name).to_owned(), format!("^{name}")]);
        }
    }
    let changes: Vec<_> = changes.iter().map(String::as_str).collect();
    let differing = which_differ(&changes, |change| format!("-t ext4 -O {change}"));
    assert!(differing.is_empty(), "only one side takes {differing:?}");
}

/// Those that only one of the two programs takes.
fn which_differ<'a>(list: &[&'a str], arguments: impl Fn(&str) -> String) -> Vec<&'a str> {
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    let is_different = |one: &&str| {
        let arguments = arguments(one);
        let case = case("64M", &arguments);
        case.layout().is_ok() != case.make_with_mke2fs(&image).is_ok()
    };
    list.iter().copied().filter(is_different).collect()
}

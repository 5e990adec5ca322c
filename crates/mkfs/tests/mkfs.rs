//! File systems made by fourscore equal those of mke2fs byte by byte, and e2fsck finds nothing.
//!
//! The profile is that of the machine on both sides. What may differ: the bytes written that the
//! superblock counts, and in the MMP block the time and the names of host and device.

use fourscore_testkit::{require, tools::Need};

#[path = "mkfs/mod.rs"]
mod mkfs;
#[path = "mkfs/options.rs"]
mod options;

use mkfs::{Case, Limits, assert_all_equal_mke2fs, case};

const SIZES: &[Case<'_>] = &[
    case("1M", "-t ext2"),
    case("1M", "-t ext4"),
    case("2M", "-t ext3"),
    case("8M", "-t ext4"),
    case("9000k", "-t ext4"),
    case("16M", "-t ext3"),
    case("64M", "-t ext2"),
    case("64M", "-t ext4"),
    case("511M", "-t ext4"),
    case("512M", "-t ext4"),
    case("1G", "-t ext2"),
    case("1G", "-t ext3"),
    case("1G", "-t ext4"),
    case("40G", "-t ext2"),
    case("40G", "-t ext4"),
    case("129G", "-t ext4"),
    case("1T", "-t ext4"),
    case("1T", "-t ext4 -E lazy_itable_init=1 -m 0 -i 65536"),
    case("15T", "-t ext4"),
];

/// The whole matrix: each size with each feature set that can describe it.
const MATRIX_SIZES: &[&str] = &[
    "1M", "4M", "16M", "128M", "1G", "16G", "256G", "1T", "4T", "15T", "16T", "17T", "32T", "64T",
];
const MATRIX_FEATURES: &[&str] = &[
    "-t ext2",
    "-t ext3",
    "-t ext4",
    "-t ext4 -b 1024",
    "-t ext4 -b 65536",
    "-t ext4 -O ^64bit",
    "-t ext4 -O ^resize_inode,meta_bg",
    "-t ext4 -O ^resize_inode,sparse_super2",
    "-t ext4 -O ^flex_bg",
    "-t ext4 -O ^metadata_csum,uninit_bg",
    "-t ext4 -O bigalloc -C 65536",
    "-t ext4 -O orphan_file,quota,project",
    "-t ext4 -E packed_meta_blocks=1",
    "-t ext4 -G 1024 -I 512",
];
/// e2fsck takes a second for each terabyte of blocks, and as long for each 30 million inodes that
/// no checksum calls unused. Above this it is not asked of the matrix, since the image equals the
/// one that mke2fs made; [`LARGEST_MOUNTED`] has it read some of the largest.
const CHECKED: Limits = Limits {
    blocks: 1 << 30,
    inodes_read: 1 << 27,
};

/// Those that this kernel mounts, one of each kind.
const MOUNTED: &[Case<'_>] = &[
    case("8M", "-t ext4"),
    case("64M", "-t ext2"),
    case("64M", "-t ext3 -b 1024"),
    case("1G", "-t ext4"),
    case("1G", "-t ext4 -O bigalloc"),
    case("1G", "-t ext4 -O meta_bg,^resize_inode -I 512"),
    case("1G", "-t ext4 -O sparse_super2,inline_data,ea_inode"),
    case("1G", "-t ext4 -O ^64bit,^metadata_csum,uninit_bg -b 2048"),
    case(
        "1G",
        "-t ext4 -O orphan_file,fast_commit,metadata_csum_seed",
    ),
    case("40G", "-t ext4 -G 64 -J size=1024"),
    case("1T", "-t ext4"),
];

const OPTIONS: &[Case<'_>] = &[
    case("64M", "-t ext4 -b 1024"),
    case("64M", "-t ext4 -b 2048"),
    case("64M", "-t ext4 -b 4096"),
    case("256M", "-t ext4 -b 8192"),
    case("512M", "-t ext4 -b 16384"),
    case("1G", "-t ext4 -b 32768"),
    case("1G", "-t ext4 -b 65536"),
    case("1G", "-t ext2 -b 65536"),
    case("64M", "-t ext4 -I 128"),
    case("64M", "-t ext4 -I 512"),
    case("64M", "-t ext4 -I 1024 -b 1024"),
    case("64M", "-t ext4 -I 4096 -b 4096 -i 32768"),
    case("64M", "-t ext2 -I 128 -O none"),
    case("64M", "-t ext2 -r 0"),
    case("256M", "-t ext4 -g 8192 -G 4"),
    case("256M", "-t ext4 -g 1024 -G 1"),
    case("256M", "-t ext4 -g 2048 -G 64 -N 30000"),
    case("256M", "-t ext2 -g 4096 -E stride=16,stripe_width=64"),
    case("256M", "-t ext4 -E stride=16,stripe_width=64"),
    case("256M", "-t ext4 -O ^flex_bg -E stride=16"),
    case("1G", "-t ext4 -O bigalloc"),
    case("1G", "-t ext4 -O bigalloc -C 262144 -b 1024"),
    case("4G", "-t ext4 -O bigalloc,quota -C 65536"),
    case("1G", "-t ext4 -O meta_bg,^resize_inode"),
    case("1G", "-t ext4 -O meta_bg,^resize_inode,^flex_bg -b 1024"),
    case("1G", "-t ext4 -O sparse_super2"),
    case(
        "1G",
        "-t ext4 -O sparse_super2,^resize_inode -E num_backup_sb=1",
    ),
    case(
        "1G",
        "-t ext4 -O sparse_super2,^resize_inode -E num_backup_sb=0",
    ),
    case("1G", "-t ext2 -O ^sparse_super,^resize_inode"),
    case("1G", "-t ext4 -O ^has_journal"),
    case("1G", "-t ext4 -O ^64bit"),
    case("1G", "-t ext4 -O ^64bit,^metadata_csum,uninit_bg"),
    case("1G", "-t ext4 -O ^extent,^64bit"),
    case("1G", "-t ext4 -O ^resize_inode"),
    case("1G", "-t ext4 -E resize=20G"),
    case("1G", "-t ext4 -E packed_meta_blocks=1"),
    case("1G", "-t ext4 -E lazy_itable_init=0,nodiscard"),
    case("1G", "-t ext4 -E nodiscard"),
    case("1G", "-t ext4 -E desc_size=128"),
    // Smaller than the space for one inode.
    case("3M", "-t ext4 -T largefile4"),
    case("3M", "-t ext4 -T largefile4 -I 1024"),
    case("512k", "-t ext4 -i 1048576"),
    case("512k", "-t ext2 -b 1024 -i 67108864"),
    case("1M", "-t ext2 -b 8192 -i 4194304"),
    // 0 is "not given".
    case("64M", "-t ext4 -g 0 -I 0 -N 0 -E desc_size=0"),
    case("1G", "-t ext4 -g 0 -E resize=20G"),
    case("64M", "-t ext2 -r 0 -I 0"),
    // Options of what is not made.
    case("64M", "-t ext2 -J location=5000"),
    case("64M", "-t ext4 -O ^has_journal -J fast_commit_size=300"),
    case("64M", "-t ext2 -J size=0"),
    case("64M", "-t ext4 -E orphan_file_size=64k"),
    case("64M", "-t ext4 -E quotatype=usrquota"),
    case("64M", "-t ext4 -E quotatype=grpquota:prjquota"),
];

const FEATURES: &[Case<'_>] = &[
    case("1G", "-t ext4 -J size=64"),
    case("4G", "-t ext4 -J size=1024"),
    case("40G", "-t ext4 -O bigalloc -J size=4096"),
    case("40G", "-t ext4 -b 1024 -J size=2000"),
    case("1G", "-t ext4 -O fast_commit"),
    case(
        "1G",
        "-t ext4 -O fast_commit -J size=32,fast_commit_size=2048",
    ),
    case("1G", "-t ext4 -O fast_commit -J fast_commit_size=4096"),
    case("1G", "-t ext4 -J size=16,location=100000"),
    case("1G", "-t ext2 -j"),
    case("2G", "-t ext3 -b 1024 -J size=300"),
    case("1G", "-t ext4 -O orphan_file"),
    case("64M", "-t ext4 -O orphan_file -b 1024"),
    case("16G", "-t ext4 -O orphan_file,metadata_csum_seed"),
    case("1G", "-t ext3 -O orphan_file"),
    case("1G", "-t ext4 -O orphan_file -E orphan_file_size=64k"),
    case("1G", "-t ext4 -O mmp"),
    case("1G", "-t ext4 -O mmp -E mmp_update_interval=30"),
    case("1G", "-t ext4 -O quota"),
    case("1G", "-t ext4 -O quota,project,orphan_file"),
    case("1G", "-t ext3 -O quota"),
    case("64M", "-t ext4 -O quota,project -b 1024"),
    case("64M", "-t ext3 -O quota -b 1024"),
    case("1G", "-t ext4 -O quota -E quotatype=usrquota:prjquota"),
    case("1G", "-t ext4 -O inline_data"),
    case("64M", "-t ext4 -O inline_data -b 1024"),
    case(
        "1G",
        "-t ext4 -O casefold -E encoding=utf8,encoding_flags=strict",
    ),
    case(
        "1G",
        "-t ext4 -O encrypt,verity,stable_inodes,ea_inode,large_dir",
    ),
    case(
        "1G",
        "-t ext4 -L a_label -M /some/where -E test_fs,root_owner=1000:100000",
    ),
    case("1G", "-t ext4 -O quota -E root_owner=1000:1000"),
    case("1G", "-t ext4 -T news"),
    case("1G", "-t ext4 -T largefile4"),
    case("1G", "-t ext2 -T floppy"),
    case("1G", "-t ext4 -m 50 -i 4096"),
];

#[test]
fn sizes_from_a_megabyte_on_equal_mke2fs() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    assert_all_equal_mke2fs(SIZES);
}

#[test]
fn geometries_equal_mke2fs() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    assert_all_equal_mke2fs(OPTIONS);
}

#[test]
fn features_equal_mke2fs() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    assert_all_equal_mke2fs(FEATURES);
}

/// The matrix that docs/TESTING.md records; `FOURSCORE_MKFS_SIZES=1T,64T` restricts it.
#[test]
#[ignore = "takes an hour, most of it in mke2fs and e2fsck"]
fn the_whole_matrix_equals_mke2fs() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let wanted = std::env::var("FOURSCORE_MKFS_SIZES").ok();
    let wanted: Option<Vec<_>> = wanted.as_deref().map(|list| list.split(',').collect());
    let (mut failures, mut counts) = (String::new(), [0; 3]);
    for size in MATRIX_SIZES {
        if wanted.as_ref().is_some_and(|wanted| !wanted.contains(size)) {
            continue;
        }
        for arguments in MATRIX_FEATURES {
            let outcome = match case(size, arguments).outcome(CHECKED) {
                Ok(outcome) => outcome,
                Err(error) => {
                    failures += &format!("{size} {arguments}\n    {error:#}\n");
                    continue;
                }
            };
            eprintln!("{size} {arguments}: {outcome:?}");
            counts[outcome as usize] += 1;
        }
    }
    let [checked, equal, refused] = counts;
    eprintln!("{checked} equal and checked, {equal} equal, {refused} refused by both");
    assert!(failures.is_empty(), "\n{failures}");
    assert!(checked + equal > 0, "nothing was made");
}

/// Larger ones than fit into a usual run.
const LARGEST_MOUNTED: &[Case<'_>] = &[
    case("15T", "-t ext4"),
    case("17T", "-t ext4"),
    case("17T", "-t ext4 -O bigalloc"),
    case("64T", "-t ext4 -O sparse_super2"),
];

#[test]
fn the_kernel_mounts_and_fills_them() {
    assert_filled_by_the_kernel(MOUNTED);
}

#[test]
#[ignore = "takes minutes"]
fn the_kernel_mounts_and_fills_the_largest() {
    assert_filled_by_the_kernel(LARGEST_MOUNTED);
}

fn assert_filled_by_the_kernel(cases: &[Case<'_>]) {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    for case in cases {
        let name = format!("{} {}", case.size, case.arguments);
        case.mount_and_fill()
            .unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
}

/// What is on a device before does not show through, and what a cut leaves is no file system.
#[test]
fn old_content_is_gone() {
    require!(Need::Program("e2fsck"));
    for arguments in ["-t ext4", "-t ext3", "-t ext4 -E lazy_itable_init=0"] {
        case("40M", arguments)
            .over_noise()
            .unwrap_or_else(|error| panic!("{arguments}: {error:#}"));
    }
}

#[test]
fn a_cut_leaves_a_whole_file_system_or_none() {
    case("40M", "-t ext4").cut_everywhere().unwrap();
}

/// Each names the option and what is wrong with it; computing a layout writes nothing.
#[test]
fn what_cannot_be_is_refused() {
    for (size, arguments, expected) in [
        ("64M", "-t ext5", "-t: "),
        ("64M", "-T nonsense", "-T: "),
        ("64M", "-O 64bit,^extent", "-O: 64bit needs extent"),
        ("64M", "-O bigalloc,^extent", "-O: bigalloc needs extent"),
        (
            "64M",
            "-O meta_bg,resize_inode",
            "-O: meta_bg and resize_inode",
        ),
        (
            "64M",
            "-O ^sparse_super,resize_inode",
            "-O: resize_inode needs",
        ),
        (
            "64M",
            "-O metadata_csum_seed",
            "-O: metadata_csum_seed needs",
        ),
        ("64M", "-O orphan_file", "-O: orphan_file needs"),
        ("64M", "-C 65536", "-C: needs the feature bigalloc"),
        (
            "64M",
            "-t ext4 -O bigalloc -C 3000",
            "-C: 3000 is no power of 2",
        ),
        ("64M", "-G 8", "-G: needs the feature flex_bg"),
        ("64M", "-t ext4 -G 6", "-G: 6 groups"),
        ("64M", "-g 1001", "-g: 1001 blocks"),
        ("64M", "-g 128", "-g: 128 is not from 256"),
        ("64M", "-I 100", "-I: 100 is no power of 2"),
        (
            "64M",
            "-t ext4 -O project -I 128",
            "-I: 128 bytes are too few",
        ),
        ("64M", "-i 100", "-i: 100 is not from 1024"),
        ("64M", "-N 100000000", "-I, -i, -N: "),
        ("64M", "-N 5000000000", "-N: 5000000000 inodes"),
        ("64M", "-m 51", "-m: 51 is not from 0 to 50"),
        ("64M", "-L a_label_of_17_byte", "-L: "),
        ("64M", "-r 2", "-r: there is no revision 2"),
        (
            "64M",
            "-r 0 -O has_journal",
            "-r: revision 0 has no features",
        ),
        ("64M", "-t ext4 -b 4096 -J size=1", "-J size: "),
        ("64M", "-t ext4 -J size=60", "-J size: "),
        ("64M", "-E resize=10M", "-E resize: the limit is not above"),
        ("64M", "-E stride=16,stripe_width=24", "-E stripe_width: "),
        (
            "64M",
            "-E desc_size=64",
            "-E desc_size: needs the feature 64bit",
        ),
        (
            "64M",
            "-E encoding_flags=strict",
            "-E encoding_flags: needs an encoding",
        ),
        ("17T", "-t ext2 -b 4096", "-O: "),
        ("64k", "-t ext4", "size: "),
        ("0", "-t ext4", "size: "),
    ] {
        let error = case(size, arguments).layout().err();
        let error = error.unwrap_or_else(|| panic!("{size} {arguments} is accepted"));
        let text = error.to_string();
        assert!(text.starts_with(expected), "{size} {arguments}: {text}");
    }
}

//! File systems made by fourscore equal those of mke2fs byte by byte, and e2fsck finds nothing.
//!
//! The profile is that of the machine on both sides. What may differ: the bytes written that the
//! superblock counts, and in the MMP block the time and the names of host and device.

use fourscore_testkit::{require, tools::Need};

#[path = "mkfs/mod.rs"]
mod mkfs;

use mkfs::{Case, case, check_all};

const SIZES: &[Case] = &[
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
    case("17T", "-t ext4"),
    case("64T", "-t ext4"),
    case("64T", "-t ext4 -b 65536 -O bigalloc -C 1m"),
];

const OPTIONS: &[Case] = &[
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
];

const FEATURES: &[Case] = &[
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
    check_all(SIZES);
}

#[test]
fn geometries_equal_mke2fs() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    check_all(OPTIONS);
}

#[test]
fn features_equal_mke2fs() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    check_all(FEATURES);
}

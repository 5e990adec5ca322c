//! **Purpose.** The list of configurations.

use super::Finish::{Debugfs, Rehash, Tune};
use super::{Config, Finish, KernelNeed};
use crate::image::MiB;

/// The entries of the large directory in most configurations: enough for an index.
const ENTRIES: u32 = 3_000;

/// The entries of the large directory in one configuration: enough for an index of depth 2.
const MANY_ENTRIES: u32 = 200_000;

/// The pieces of the largest fragmented file in most configurations: a tree of depth 2.
const FRAGMENTS: u32 = 6_000;

/// The pieces in one configuration of 1 KiB blocks: a tree of depth 3.
const MANY_FRAGMENTS: u32 = 60_000;

/// All configurations.
pub(super) fn all() -> Vec<Config> {
    let ext4 = [
        block_and_inode_sizes(),
        layouts(),
        clusters(),
        checksums(),
        contents(),
    ];
    [ancestors(), ext4.concat(), directories()].concat()
}

/// A configuration of 192 MiB with nothing special; the methods below change that.
const fn config(
    name: &'static str,
    block_size_bytes: u32,
    inode_size_bytes: u32,
    mke2fs: &'static [&'static str],
) -> Config {
    Config {
        name,
        block_size_bytes,
        inode_size_bytes,
        size: MiB(192),
        entries: ENTRIES,
        fragments: FRAGMENTS,
        mke2fs,
        finish: &[],
        needs: &[],
    }
}

impl Config {
    const fn size(mut self, size: MiB) -> Self {
        self.size = size;
        self
    }

    const fn entries(mut self, entries: u32) -> Self {
        self.entries = entries;
        self
    }

    const fn fragments(mut self, fragments: u32) -> Self {
        self.fragments = fragments;
        self
    }

    const fn finish_with(mut self, steps: &'static [Finish]) -> Self {
        self.finish = steps;
        self
    }

    const fn needs(mut self, needs: &'static [KernelNeed]) -> Self {
        self.needs = needs;
        self
    }
}

/// ext2 and ext3, and ext4 without what made it ext4.
fn ancestors() -> Vec<Config> {
    vec![
        config("ext2-1k", 1024, 128, &["-t", "ext2"]),
        config("ext2-2k", 2048, 128, &["-t", "ext2"]),
        config("ext2-4k", 4096, 256, &["-t", "ext2"]),
        config(
            "ext2-rev1-no-filetype",
            4096,
            128,
            &["-t", "ext2", "-O", "^filetype"],
        ),
        config(
            "ext2-no-dir-index",
            1024,
            128,
            &["-t", "ext2", "-O", "^dir_index,^ext_attr"],
        ),
        config(
            "ext2-no-sparse-super",
            1024,
            128,
            &["-t", "ext2", "-O", "^sparse_super,^resize_inode"],
        ),
        config("ext3-1k", 1024, 128, &["-t", "ext3"]),
        config("ext3-4k", 4096, 256, &["-t", "ext3"]),
        // Without all that came after the first ext3.
        config(
            "ext3-first",
            1024,
            128,
            &[
                "-t",
                "ext3",
                "-O",
                "^filetype,^dir_index,^sparse_super,^resize_inode,^large_file,^ext_attr",
            ],
        ),
        config(
            "ext4-no-extent",
            4096,
            256,
            &["-t", "ext4", "-O", "^extent,^64bit"],
        ),
        config(
            "ext4-no-extent-1k",
            1024,
            256,
            &["-t", "ext4", "-O", "^extent,^64bit,^flex_bg,^huge_file"],
        ),
    ]
}

/// ext4 as mke2fs makes it, in every block size and inode size.
fn block_and_inode_sizes() -> Vec<Config> {
    vec![
        config("ext4-4k", 4096, 256, &["-t", "ext4"]),
        config("ext4-1k", 1024, 256, &["-t", "ext4"]).fragments(MANY_FRAGMENTS),
        config("ext4-1k-inode-128", 1024, 128, &["-t", "ext4"]),
        config("ext4-1k-inode-1024", 1024, 1024, &["-t", "ext4"]),
        config("ext4-2k", 2048, 256, &["-t", "ext4"]),
        config("ext4-4k-inode-128", 4096, 128, &["-t", "ext4"]),
        config("ext4-4k-inode-512", 4096, 512, &["-t", "ext4"]),
        config("ext4-4k-inode-1024", 4096, 1024, &["-t", "ext4"]),
        config(
            "ext4-4k-inode-4096",
            4096,
            4096,
            &["-t", "ext4", "-N", "8192"],
        ),
        config("ext4-8k", 8192, 256, &["-t", "ext4"]).size(MiB(256)),
        config("ext4-16k", 16384, 512, &["-t", "ext4"]).size(MiB(384)),
        config("ext4-32k", 32768, 256, &["-t", "ext4"]).size(MiB(512)),
        config("ext4-64k", 65536, 256, &["-t", "ext4"]).size(MiB(1024)),
        config(
            "ext4-64k-bigalloc",
            65536,
            1024,
            &["-t", "ext4", "-O", "bigalloc", "-C", "131072"],
        )
        .size(MiB(1024)),
        config(
            "ext4-8k-inline",
            8192,
            1024,
            &["-t", "ext4", "-O", "inline_data"],
        )
        .size(MiB(256)),
    ]
}

/// Where the metadata lies, and how blocks are counted.
fn layouts() -> Vec<Config> {
    vec![
        config("no-64bit", 4096, 256, &["-t", "ext4", "-O", "^64bit"]),
        config("64bit-1k", 1024, 256, &["-t", "ext4", "-O", "64bit"]),
        config("no-flex-bg", 1024, 256, &["-t", "ext4", "-O", "^flex_bg"]),
        config("flex-bg-128", 1024, 256, &["-t", "ext4", "-G", "128"]),
        config(
            "meta-bg",
            1024,
            256,
            &["-t", "ext4", "-O", "meta_bg,^resize_inode"],
        ),
        config(
            "meta-bg-32bit",
            1024,
            128,
            &["-t", "ext4", "-O", "meta_bg,^resize_inode,^64bit"],
        ),
        config(
            "no-resize-inode",
            4096,
            256,
            &["-t", "ext4", "-O", "^resize_inode"],
        ),
        config(
            "sparse-super2",
            1024,
            256,
            &["-t", "ext4", "-O", "sparse_super2,^resize_inode"],
        ),
        config(
            "small-groups",
            1024,
            256,
            &["-t", "ext4", "-g", "1024", "-O", "^resize_inode"],
        ),
        config("many-inodes", 4096, 256, &["-t", "ext4", "-i", "4096"]),
        config(
            "stripe",
            4096,
            256,
            &["-t", "ext4", "-E", "stride=16", "-E", "stripe_width=64"],
        ),
        config(
            "packed-meta",
            4096,
            256,
            &["-t", "ext4", "-E", "packed_meta_blocks=1"],
        ),
        config(
            "resize-room",
            1024,
            256,
            &["-t", "ext4", "-E", "resize=4194304"],
        ),
    ]
}

/// Blocks handed out in clusters.
fn clusters() -> Vec<Config> {
    vec![
        config(
            "bigalloc-16k",
            4096,
            256,
            &["-t", "ext4", "-O", "bigalloc", "-C", "16384"],
        ),
        config(
            "bigalloc-64k",
            4096,
            256,
            &["-t", "ext4", "-O", "bigalloc", "-C", "65536"],
        )
        .size(MiB(512)),
        config(
            "bigalloc-1k-16k",
            1024,
            256,
            &["-t", "ext4", "-O", "bigalloc", "-C", "16384"],
        ),
        config(
            "bigalloc-1m",
            4096,
            256,
            &["-t", "ext4", "-O", "bigalloc", "-C", "1048576"],
        )
        .size(MiB(8192)),
    ]
}

/// How metadata is protected, and the journal.
fn checksums() -> Vec<Config> {
    vec![
        config(
            "crc16",
            4096,
            256,
            &["-t", "ext4", "-O", "uninit_bg,^metadata_csum"],
        ),
        config(
            "crc16-32bit",
            1024,
            128,
            &["-t", "ext4", "-O", "uninit_bg,^metadata_csum,^64bit"],
        ),
        config(
            "no-checksums",
            4096,
            256,
            &["-t", "ext4", "-O", "^uninit_bg,^metadata_csum"],
        ),
        config(
            "csum-seed",
            4096,
            256,
            &["-t", "ext4", "-O", "metadata_csum_seed"],
        )
        .finish_with(&[Tune(&["-U", "00000000-1111-2222-3333-444444444444"])]),
        config(
            "no-journal",
            4096,
            256,
            &["-t", "ext4", "-O", "^has_journal"],
        ),
        config(
            "fast-commit",
            4096,
            256,
            &["-t", "ext4", "-O", "fast_commit"],
        ),
        config(
            "orphan-file",
            4096,
            256,
            &["-t", "ext4", "-O", "orphan_file"],
        ),
        config(
            "lazy-tables",
            4096,
            256,
            &["-t", "ext4", "-E", "lazy_itable_init=1"],
        ),
        config(
            "mmp",
            4096,
            256,
            &["-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"],
        ),
    ]
}

/// What inodes may hold.
fn contents() -> Vec<Config> {
    vec![
        config(
            "inline-data",
            4096,
            256,
            &["-t", "ext4", "-O", "inline_data"],
        ),
        config(
            "inline-data-1k",
            1024,
            512,
            &["-t", "ext4", "-O", "inline_data"],
        ),
        config(
            "inline-data-inode-1024",
            4096,
            1024,
            &["-t", "ext4", "-O", "inline_data"],
        ),
        config("ea-inode", 4096, 256, &["-t", "ext4", "-O", "ea_inode"]),
        config("ea-inode-1k", 1024, 256, &["-t", "ext4", "-O", "ea_inode"]),
        config("encrypt", 4096, 256, &["-t", "ext4", "-O", "encrypt"]).needs(&[KernelNeed::Keys]),
        config("verity", 4096, 256, &["-t", "ext4", "-O", "verity"])
            .finish_with(&[Debugfs(&[
                "set_inode_field /verity/file size 10000",
                "set_inode_field /verity/file flags 0x180000",
            ])])
            .needs(&[KernelNeed::Verity]),
        config("quota", 4096, 256, &["-t", "ext4"])
            .finish_with(&[Tune(&["-O", "quota"])])
            .needs(&[KernelNeed::QuotaFormat]),
        config("project", 4096, 256, &["-t", "ext4"])
            .finish_with(&[
                Debugfs(&[
                    "set_inode_field /plain projid 4294967294",
                    "set_inode_field /directories projid 77",
                    "set_inode_field /directories flags 0x20080000",
                ]),
                Tune(&["-O", "project,quota", "-Q", "usrquota,grpquota,prjquota"]),
            ])
            .needs(&[KernelNeed::QuotaFormat]),
        config("project-ids", 4096, 256, &["-t", "ext4"])
            .finish_with(&[Debugfs(&["feature project"])])
            .needs(&[KernelNeed::QuotaFormat]),
        config(
            "stable-inodes",
            4096,
            256,
            &["-t", "ext4", "-O", "stable_inodes"],
        ),
        config(
            "all-new-features",
            4096,
            512,
            &[
                "-t",
                "ext4",
                "-O",
                "inline_data,ea_inode,large_dir,orphan_file,fast_commit,metadata_csum_seed",
            ],
        ),
    ]
}

/// How directories are laid out and searched.
fn directories() -> Vec<Config> {
    vec![
        config(
            "no-dir-index",
            4096,
            256,
            &["-t", "ext4", "-O", "^dir_index"],
        ),
        config(
            "large-dir",
            1024,
            256,
            &["-t", "ext4", "-O", "large_dir", "-i", "1024"],
        )
        .size(MiB(512))
        .entries(MANY_ENTRIES),
        config("hash-legacy", 1024, 256, &["-t", "ext4"])
            .finish_with(&[Tune(&["-E", "hash_alg=legacy"]), Rehash]),
        config("hash-tea", 1024, 256, &["-t", "ext4"])
            .finish_with(&[Tune(&["-E", "hash_alg=tea"]), Rehash]),
        config("hash-half-md4-unsigned", 1024, 256, &["-t", "ext4"])
            .finish_with(&[Debugfs(&["set_super_value flags 2"]), Rehash]),
        config("hash-tea-unsigned", 1024, 256, &["-t", "ext4"]).finish_with(&[
            Tune(&["-E", "hash_alg=tea"]),
            Debugfs(&["set_super_value flags 2"]),
            Rehash,
        ]),
        config("casefold", 4096, 256, &["-t", "ext4"])
            .finish_with(&[
                Tune(&["-O", "casefold", "-E", "encoding=utf8-12.1"]),
                Debugfs(&["set_inode_field /directories/large flags 0x40081000"]),
                Rehash,
            ])
            .needs(&[KernelNeed::Casefold]),
        config("casefold-strict", 1024, 256, &["-t", "ext4"])
            .finish_with(&[
                Tune(&[
                    "-O",
                    "casefold",
                    "-E",
                    "encoding=utf8,encoding_flags=strict",
                ]),
                Debugfs(&["set_inode_field /directories/large flags 0x40081000"]),
                Rehash,
            ])
            .needs(&[KernelNeed::Casefold]),
    ]
}

//! Every configuration is made, filled, checked, and mounted where that is said to be possible.

use std::collections::BTreeSet;

use anyhow::ensure;

use super::*;
use crate::require;
use crate::tools::Need;

#[test]
fn names_are_unique_and_the_matrix_is_wide() {
    let configs = table::all();
    let names: BTreeSet<&str> = configs.iter().map(|config| config.name).collect();
    assert_eq!(names.len(), configs.len());
    assert!(configs.len() >= 44, "{}", configs.len());
    let block_sizes: BTreeSet<u32> = configs.iter().map(|c| c.block_size_bytes).collect();
    assert_eq!(
        block_sizes.into_iter().collect::<Vec<_>>(),
        [1, 2, 4, 8, 16, 32, 64].map(|k| k << 10)
    );
}

#[test]
fn every_configuration_can_be_made() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("tune2fs"),
        Need::Program("dumpe2fs")
    );
    assert_all(|config| {
        let image = config.base(None)?;
        let header = oracle::dumpe2fs_header(image.path())?;
        let found = (header["Block size"].parse()?, header["Inode size"].parse()?);
        ensure!(
            found == (config.block_size_bytes, config.inode_size_bytes),
            "{found:?}"
        );
        Ok(())
    });
}

#[test]
fn every_configuration_is_populated_and_the_kernel_does_with_it_what_is_said() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("setfacl"),
        Need::KernelMount
    );
    assert_all(|config| {
        let populated = config.populated()?;
        let mounted = |access| KernelMount::new(populated.image.path(), access, "");
        match config.kernel() {
            Kernel::Writes => mounted(Access::ReadWrite)?.unmount(),
            Kernel::Reads => {
                mounted(Access::ReadOnly)?.unmount()?;
                ensure!(mounted(Access::ReadWrite).is_err(), "mounted read-write");
                Ok(())
            }
            Kernel::Refuses => Ok(()),
        }
    });
}

/// One configuration by its name.
fn populated(name: &str) -> Populated {
    let found = table::all().into_iter().find(|config| config.name == name);
    found
        .unwrap_or_else(|| panic!("no {name}"))
        .populated()
        .unwrap()
}

/// What debugfs prints about an image.
#[track_caller]
fn debugfs(populated: &Populated, command: &str) -> String {
    oracle::debugfs(populated.image.path(), &[command]).unwrap()
}

/// The deepest level that debugfs names in its list of a file's extents, ` 0/ 2 ...`.
fn extent_depth(populated: &Populated, file: &str) -> u32 {
    let text = debugfs(populated, &format!("dump_extents {file}"));
    let depth = |line: &str| {
        line.split_once('/')?
            .1
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    };
    text.lines().skip(1).filter_map(depth).max().unwrap()
}

#[test]
fn the_tree_has_extents_of_every_kind_and_depth() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    let small_blocks = populated("ext4-1k");
    assert_eq!(extent_depth(&small_blocks, "/files/punched"), 3);
    let usual_blocks = populated("ext4-4k");
    assert_eq!(extent_depth(&usual_blocks, "/files/punched"), 2);
    assert_eq!(extent_depth(&usual_blocks, "/files/one-block"), 0);
    assert!(debugfs(&usual_blocks, "dump_extents /files/unwritten").contains("Uninit"));
    assert!(debugfs(&usual_blocks, "dump_extents /files/kept-size").contains("Uninit"));
    assert!(usual_blocks.tree.largest_file_bytes > 15 << 40);
    assert!(small_blocks.tree.largest_file_bytes > 3 << 40);
    let block_map = populated("ext2-1k");
    assert!(debugfs(&block_map, "stat /files/sparse").contains("(TIND)"));
}

#[test]
fn the_tree_has_directories_of_every_kind() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    let levels = |populated: &Populated| {
        let text = debugfs(populated, "htree_dump /directories/large");
        let line = text
            .lines()
            .find(|line| line.contains("Indirect levels"))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(levels(&populated("ext4-4k")), 0);
    assert_eq!(levels(&populated("ext4-1k")), 1);
    let large = populated("large-dir");
    assert_eq!(levels(&large), 2);
    assert_eq!(large.tree.large_directory_entries, 180_000);
    assert!(levels(&populated("casefold")) < 2);
    let inline = populated("inline-data");
    for path in ["/small/100", "/directories/few", "/directories/empty"] {
        let stat = debugfs(&inline, &format!("stat {path}"));
        assert!(stat.contains("Flags: 0x10000000"), "{stat}");
    }
}

#[test]
fn the_tree_has_hash_versions_checked_by_e2fsck() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    for (name, version) in [("hash-legacy", 0), ("ext4-1k", 1), ("hash-tea", 2)] {
        let text = debugfs(&populated(name), "htree_dump /directories/large");
        assert!(
            text.contains(&format!("Hash Version: {version}")),
            "{name}: {text:.300}"
        );
    }
}

#[test]
fn the_tree_has_large_xattrs_project_numbers_and_sealed_files() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    let large = debugfs(&populated("ea-inode"), "stat /xattrs/ea-inode-40000-0");
    assert!(large.contains("user.large (40000)"), "{large}");
    let project = debugfs(&populated("project"), "stat /plain");
    assert!(project.contains("Project:    -2"), "{project}");
    let verity = debugfs(&populated("verity"), "stat /verity/file");
    assert!(
        verity.contains("Flags: 0x180000") && verity.contains("Size: 10000"),
        "{verity}"
    );
    let encrypted = debugfs(&populated("encrypt"), "stat /encrypted");
    assert!(encrypted.contains("Flags: 0x80800"), "{encrypted}");
}

#[test]
fn mke2fs_copies_the_tree_where_the_kernel_cannot_mount() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    let large_blocks = populated("ext4-64k");
    let stage = large_blocks.stage.as_ref().expect("a staging image");
    assert_eq!(extent_depth(&large_blocks, "/files/written-in-pieces"), 1);
    for command in [
        "stat /links/first",
        "stat /special/block-4095-1048575",
        "cat /plain",
    ] {
        let [here, there] = [large_blocks.image.path(), stage.path()]
            .map(|image| oracle::debugfs(image, &[command]).unwrap());
        let kept = |text: &str| {
            let of_both = ["Links:", "Mode:", "Device major", "User:"];
            let keep = |line: &&str| {
                command.starts_with("cat") || of_both.iter().any(|word| line.contains(word))
            };
            text.lines()
                .filter(keep)
                .map(without_inode)
                .collect::<Vec<_>>()
        };
        assert_eq!(kept(&here), kept(&there));
        assert!(!kept(&here).is_empty());
    }
}

/// A line of debugfs's `stat` without what a copy does not keep: inode number, flags, block count.
fn without_inode(line: &str) -> String {
    let from = line.find("Type:").unwrap_or(0);
    let until = ["Flags:", "Blockcount:"]
        .iter()
        .filter_map(|word| line.find(word))
        .min();
    line[from..until.unwrap_or(line.len())].to_owned()
}

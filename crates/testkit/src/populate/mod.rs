//! **Purpose.** A tree with one of everything that ext4 can store.
//!
//! **Model.** The tree is written with ordinary system calls, so the kernel chooses the usual
//! layout. `Limits` holds what depends on the configuration; the rest is the same in all of them.
//! A call that the configuration allows must succeed. Content is a function of the file's name and
//! the offset, so that a block in the wrong place shows in the hash.
//!
//! | module | responsibility |
//! |---|---|
//! | `content` | files: extents, holes, preallocation, truncation, small and sparse ones |
//! | `names` | directories, long and strange names, links, special files |
//! | `attributes` | owners, modes, times, xattrs, ACLs, inode flags |
//! | `sealed` | encrypted directories and files with a verity descriptor |

mod attributes;
mod content;
mod names;
mod sealed;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::matrix::Config;
use crate::oracle;

/// The tree that was written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tree {
    /// The number of names below the root, without `lost+found`. Each hard link counts.
    pub names: u64,
    /// The directory with many entries, from the root.
    pub large_directory: PathBuf,
    /// The number of its entries after the deletions in its middle.
    pub large_directory_entries: u32,
    /// The offset of the last byte of the largest sparse file.
    pub largest_file_bytes: u64,
}

/// The limits of the file system and its configuration.
#[derive(Clone, Copy, Debug)]
struct Limits {
    block_size_bytes: u64,
    entries: u32,
    fragments: u64,
    extents: Supported,
    large_xattrs: Supported,
    encryption: Supported,
    verity: Supported,
}

/// Whether the configuration has a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Supported {
    Yes,
    No,
}

impl Supported {
    fn from_having(having: bool) -> Self {
        if having { Self::Yes } else { Self::No }
    }

    fn yes(self) -> bool {
        self == Self::Yes
    }
}

/// A tree that is being written.
struct Writer<'a> {
    root: &'a Path,
    limits: Limits,
    large_directory_entries: u32,
    largest_file_bytes: u64,
}

/// Fills an empty file system that the kernel has mounted, as root.
///
/// # Errors
/// If a call fails that the configuration allows.
pub fn through_kernel(root: &Path, config: &Config) -> Result<Tree> {
    let limits = Limits {
        block_size_bytes: u64::from(config.block_size_bytes),
        entries: config.entries,
        fragments: u64::from(config.fragments),
        extents: Supported::from_having(config.has_extents()),
        large_xattrs: Supported::from_having(config.has("ea_inode")),
        encryption: Supported::from_having(config.has("encrypt")),
        verity: Supported::from_having(config.has("verity")),
    };
    write_tree(root, limits)
}

/// Fills a staging tree for `mke2fs -d`, as root: the same, without what mke2fs does not copy
/// (unwritten extents, inode flags) or the image could not hold.
///
/// # Errors
/// If a call fails.
pub fn for_mke2fs(root: &Path, config: &Config) -> Result<Tree> {
    let limits = Limits {
        block_size_bytes: u64::from(config.block_size_bytes),
        entries: config.entries,
        fragments: u64::from(config.fragments).min((24 << 20) / u64::from(config.block_size_bytes)),
        extents: Supported::Yes,
        large_xattrs: Supported::No,
        encryption: Supported::No,
        verity: Supported::No,
    };
    write_tree(root, limits)
}

/// Adds what `mke2fs -d` does not copy, with debugfs: inode flags (among them the one for journaled
/// data, which only `CAP_SYS_RESOURCE` may set), and times before 1970 and
/// after 2038, creation times included.
///
/// # Errors
/// If debugfs complains.
pub fn through_debugfs(image: &Path) -> Result<()> {
    oracle::debugfs_write(
        image,
        &[
            "set_inode_field /flags/immutable flags 0x80010",
            "set_inode_field /flags/append flags 0x80020",
            "set_inode_field /flags/nodump-noatime flags 0x800c0",
            "set_inode_field /flags/sync flags 0x84000",
            "set_inode_field /times/2446-max mtime @0x7fffffff",
            "set_inode_field /times/2446-max mtime_extra 0xee6b27ff",
            "set_inode_field /times/1901 mtime @0x80000000",
            "set_inode_field /times/1901 crtime @0x80000000",
            "set_inode_field /times/epoch crtime_extra 3",
        ],
    )?;
    Ok(())
}

fn write_tree(root: &Path, limits: Limits) -> Result<Tree> {
    let mut writer = Writer {
        root,
        limits,
        large_directory_entries: 0,
        largest_file_bytes: 0,
    };
    writer.content()?;
    writer.names()?;
    writer.attributes()?;
    writer.sealed()?;
    rustix::fs::syncfs(File::open(root)?)?;
    Ok(Tree {
        names: count_names(root)?,
        large_directory: PathBuf::from("directories/large"),
        large_directory_entries: writer.large_directory_entries,
        largest_file_bytes: writer.largest_file_bytes,
    })
}

fn count_names(root: &Path) -> Result<u64> {
    let mut names = 0;
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if folder == root && entry.file_name() == "lost+found" {
                continue;
            }
            names += 1;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(names)
}

impl Writer<'_> {
    /// The path of a name below the root.
    fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Makes a directory.
    fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.at(name);
        fs::create_dir(&path).with_context(|| format!("directory {name}"))?;
        Ok(path)
    }

    /// Makes a file with `len_bytes` of content.
    fn file(&self, name: &str, len_bytes: u64) -> Result<File> {
        let file = File::create_new(self.at(name)).with_context(|| format!("file {name}"))?;
        content::fill(&file, name, 0, len_bytes)?;
        Ok(file)
    }
}

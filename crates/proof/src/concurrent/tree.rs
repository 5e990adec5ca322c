//! **Purpose.** Checks at the end of a round that the directories form a tree, by a walk of its
//! own: checkers that count links and owners of blocks do not see a cycle of directories.
//!
//! **Model.** From the root each directory is reached once, its `..` refers to the directory that
//! it was reached from, and its link count is two plus the number of directories in it. Each inode
//! in use is reached by as many names as it has links, unless it holds the value of an attribute:
//! no name refers to such an inode, and the checker counts the entries that do.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use fourscore::{FileType, Fs, InodeNr};
use fourscore_ondisk::GroupNr;

use super::in_process::in_use;

/// The first inode that is not reserved.
const FIRST_USUAL: u32 = 11;

/// Walks the tree.
///
/// # Errors
/// The first violation.
pub(super) fn check(fs: &Fs) -> Result<()> {
    let mut names: BTreeMap<InodeNr, u32> = BTreeMap::from([(InodeNr::ROOT, 1)]);
    let mut pending = vec![(InodeNr::ROOT, InodeNr::ROOT)];
    while let Some((dir, parent)) = pending.pop() {
        let mut below = 0_u32;
        let mut dots = (None, None);
        for entry in fs.read_dir(dir)? {
            match &entry.name[..] {
                b"." => dots.0 = Some(entry.inode),
                b".." => dots.1 = Some(entry.inode),
                name => {
                    let Some(stat) = in_use(fs, entry.inode)? else {
                        let name = String::from_utf8_lossy(name);
                        bail!(
                            "{name} in directory {dir} refers to inode {}, which is free",
                            entry.inode
                        );
                    };
                    let count = names.entry(entry.inode).or_default();
                    *count += 1;
                    if stat.file_type == FileType::Directory {
                        ensure!(*count == 1, "directory {} has two names", entry.inode);
                        below += 1;
                        pending.push((entry.inode, dir));
                    }
                }
            }
        }
        ensure!(
            dots == (Some(dir), Some(parent)),
            "'.' and '..' of directory {dir} refer to {dots:?}"
        );
        let links = u32::from(fs.stat(dir)?.links);
        ensure!(
            links == below + 2 || links == 1,
            "directory {dir} has {links} links and {below} directories"
        );
    }
    let per_group = fs.geometry().inodes_per_group();
    for number in FIRST_USUAL..=fs.geometry().inodes() {
        let inode = InodeNr(number);
        if fs.superblock().orphan_file_inode() == Some(inode) {
            continue;
        }
        let (group, bit) = (GroupNr((number - 1) / per_group), (number - 1) % per_group);
        let reached = names.get(&inode).copied().unwrap_or(0);
        if !fs.inode_bitmap(group)?.is_used(bit) {
            ensure!(
                reached == 0,
                "inode {inode} has {reached} names and is free"
            );
            continue;
        }
        if fs.holds_value(inode)? {
            ensure!(reached == 0, "inode {inode} holds a value and has a name");
            continue;
        }
        let stat = fs.stat(inode)?;
        let is_directory = stat.file_type == FileType::Directory;
        ensure!(
            reached > 0,
            "{:?} {inode} cannot be reached from the root",
            stat.file_type
        );
        ensure!(
            is_directory || u32::from(stat.links) == reached,
            "inode {inode} has {} links and {reached} names",
            stat.links
        );
    }
    Ok(())
}

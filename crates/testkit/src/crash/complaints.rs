//! **Purpose.** Parses the complaints of e2fsck about an image, so that known faults in the replay
//! of fast commits by the kernel and by e2fsck (docs/FINDINGS.md) are recognised.
//!
//! **Model.** The output is parsed line by line. A line is a heading, a complaint, or a question
//! after a complaint. If a line is unknown, nothing is returned. The caller decides which
//! complaints to forgive; those after a replay of fast commits by the kernel are judged here
//! ([`only_miscounted`]).

use std::path::Path;

use anyhow::Result;

use crate::oracle;

/// A complaint, with the numbers of inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// The link count of an inode is wrong.
    Links(u32),
    /// `i_blocks` of an inode is wrong, in sectors of 512 bytes.
    Space {
        /// The inode.
        inode: u32,
        /// The value found.
        said: u64,
        /// The right value.
        has: u64,
    },
    /// `i_blocks` of an inode was wrong, and was corrected.
    Recounted {
        /// The inode.
        inode: u32,
        /// The old value.
        said: u64,
        /// The right value.
        has: u64,
    },
    /// The directory count of a group is wrong.
    Group,
    /// A directory in use without a name.
    Unconnected(u32),
    /// A consequence of another complaint.
    InPieces(u32),
    /// Another inode in use without a name.
    Unattached(u32),
    /// A directory without blocks, which was cleared.
    Cleared(u32),
    /// A removed name of an inode that is not in use.
    NameOf(u32),
    /// An extent without blocks, in an inode.
    EmptyExtent(u32),
    /// Differences between block bitmaps and blocks in use, and their counts.
    Marks,
}

/// The complaints in the output of e2fsck; `None` if a line is unknown.
#[must_use]
pub fn complaints(output: &str) -> Option<Vec<Complaint>> {
    let mut complaints = Vec::new();
    for line in output.lines() {
        let line = without_path(line.trim());
        // The question may be on the line of its complaint.
        let line = line.strip_suffix("Fix? no").unwrap_or(line).trim();
        if !is_question(line) && !is_heading(line) {
            complaints.push(Complaint::of(line)?);
        }
    }
    Some(complaints)
}

/// A line without the path of the image at its start.
fn without_path(line: &str) -> &str {
    match line.split_once(": ") {
        Some((path, said)) if path.starts_with('/') && !path.contains(' ') => said,
        _ => line,
    }
}

/// Whether a line is a question, or says what was done without one.
fn is_question(line: &str) -> bool {
    matches!(line, "" | "Connect to /lost+found? no" | "Clear? no") || is_where(line)
}

/// Whether a line is a heading: it says what e2fsck does, not what it finds.
fn is_heading(line: &str) -> bool {
    line.starts_with("Pass ")
        || line.starts_with("e2fsck 1.")
        || ["e2fsck\" \"-f\"", "e2fsck\" \"-n\""]
            .iter()
            .any(|command| line.starts_with("LC_ALL=") && line.contains(command))
        || matches!(
            line,
            "********** WARNING: Filesystem still has errors **********"
                | "recovering journal"
                | "UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY."
                | "(i.e., without -a or -p options)"
        )
        || is_of_orphan(line)
        || is_summary(line)
}

/// Whether a line is the summary of files and blocks.
fn is_summary(line: &str) -> bool {
    line.ends_with(" blocks") && line.contains(" files (")
}

/// Whether a line is about an orphan whose deletion or truncation e2fsck completes.
fn is_of_orphan(line: &str) -> bool {
    line.starts_with("Clearing orphaned inode ") || line.starts_with("Truncating orphaned inode ")
}

/// Whether a line gives the place of an extent without blocks. Its length is printed as 0, or as
/// 32768 if the extent is unwritten.
fn is_where(line: &str) -> bool {
    line.starts_with("(logical block ")
        && [", invalid len 0)", ", invalid len 32768)"]
            .iter()
            .any(|end| line.ends_with(end))
}

/// The number between two parts of a line.
fn number<N: std::str::FromStr>(line: &str, before: &str, behind: &str) -> Option<N> {
    let (number, _) = line.strip_prefix(before)?.split_once(behind)?;
    number.parse().ok()
}

/// The found and the right value at the end of a line.
fn counts(line: &str, before: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.split_once(before)?;
    let (said, has) = counts.split_once(", should be ")?;
    Some((said.parse().ok()?, has.strip_suffix('.')?.parse().ok()?))
}

impl Complaint {
    fn of(line: &str) -> Option<Self> {
        let inode = |before: &str, behind: &str| number::<u32>(line, before, behind);
        if let Some(inode) = inode("Inode ", " ref count is ") {
            counts(line, " ref count is ")?;
            return Some(Self::Links(inode));
        }
        if let Some((said, has)) = counts(line, ", i_blocks is ") {
            let inode = inode("Inode ", ", i_blocks is ")?;
            return Some(Self::Space { inode, said, has });
        }
        if let Some(inode) = inode("Unconnected directory inode ", " (was in ") {
            return Some(Self::Unconnected(inode));
        }
        if let Some(inode) = inode("Directory inode ", ", block #") {
            let is_checksum = line.ends_with(": directory passes checks but fails checksum.");
            return is_checksum.then_some(Self::InPieces(inode));
        }
        if let Some(inode) = inode("'..' in ... (", ") is ") {
            return Some(Self::InPieces(inode));
        }
        if let Some(inode) = inode("Unattached zero-length inode ", ".  Clear? no") {
            return Some(Self::Unattached(inode));
        }
        if let Some(inode) = line.strip_prefix("Unattached inode ") {
            return Some(Self::Unattached(inode.parse().ok()?));
        }
        if line.ends_with(" has an invalid extent") {
            return inode("Inode ", " has an ").map(Self::EmptyExtent);
        }
        Self::of_group(line).or_else(|| Self::repaired(line))
    }
}

impl Complaint {
    /// Complaints about a group or the whole file system.
    fn of_group(line: &str) -> Option<Self> {
        if line.starts_with("Directories count wrong for group ") {
            return Some(Self::Group);
        }
        let marks = [
            "Block bitmap differences: ",
            "Free blocks count wrong ",
            "Illegal block number passed to ext2fs_mark_block_bitmap ",
        ];
        let is_of_marks = marks.iter().any(|begin| line.starts_with(begin));
        is_of_marks.then_some(Self::Marks)
    }

    /// Errors that were corrected without a question.
    fn repaired(line: &str) -> Option<Self> {
        if let Some(line) = line.strip_suffix("  FIXED.") {
            let inode = number(line, "Inode ", ", i_blocks is ")?;
            let (said, has) = counts(line, ", i_blocks is ")?;
            return Some(Self::Recounted { inode, said, has });
        }
        let repaired = line.strip_suffix(".  CLEARED.")?;
        if let Some(inode) = number(repaired, "Inode ", " is a zero-length directory") {
            return Some(Self::Cleared(inode));
        }
        let entry = repaired.strip_prefix("Entry '")?;
        let (_, inode) = entry.rsplit_once(" has deleted/unused inode ")?;
        Some(Self::NameOf(inode.parse().ok()?))
    }
}

/// The output of debugfs about an inode, in any state of the image.
///
/// # Errors
/// If debugfs cannot be run or complains.
pub fn shown(image: &Path, inode: u32) -> Result<String> {
    oracle::debugfs_without_bitmaps(image, &[format!("stat <{inode}>")])
}

/// Whether an inode is a directory.
///
/// # Errors
/// As [`shown`].
pub fn is_directory(image: &Path, inode: u32) -> Result<bool> {
    Ok(shown(image, inode)?.contains("Type: directory"))
}

/// Whether `e2fsck -fn` complains only of counts that the kernel's replay of fast commits does not
/// update: link counts of directories, `i_blocks` of new ones, and directory counts of groups.
///
/// # Errors
/// If debugfs fails.
pub fn only_miscounted(image: &Path, output: &str) -> Result<bool> {
    let complaints = complaints(output).unwrap_or_default();
    for complaint in &complaints {
        let is_forgiven = match *complaint {
            Complaint::Group => true,
            Complaint::Links(inode) | Complaint::Space { inode, said: 0, .. } => {
                is_directory(image, inode)?
            }
            _ => false,
        };
        if !is_forgiven {
            return Ok(false);
        }
    }
    Ok(!complaints.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Image, MiB};
    use crate::require;
    use crate::tools::Need;

    /// The output of `e2fsck -fn` after the kernel replayed fast commits that make directories.
    const MISCOUNTED: &str = "\
LC_ALL=\"C\" \"/usr/sbin/e2fsck\" \"-f\" \"-n\" \"/dev/shm/image\": exit status: 4
Pass 1: Checking inodes, blocks, and sizes
Inode 13, i_blocks is 0, should be 2.  Fix? no

Pass 4: Checking reference counts
Inode 12 ref count is 2, should be 3.  Fix? no

Pass 5: Checking group summary information
Directories count wrong for group #0 (3, counted=4).
Fix? no


/dev/shm/image: ********** WARNING: Filesystem still has errors **********

/dev/shm/image: 15/512 files (13.3% non-contiguous), 1239/6144 blocks
e2fsck 1.47.0 (5-Feb-2023)
";

    /// The same, for a removed directory.
    const IN_PIECES: &str = "\
Directory inode 13, block #0: directory passes checks but fails checksum.
Fix? no

Pass 3: Checking directory connectivity
Unconnected directory inode 13 (was in /t0/a)
Connect to /lost+found? no

'..' in ... (13) is /t0/a (12), should be <The NULL inode> (0).
Fix? no

Pass 4: Checking reference counts
Inode 13 ref count is 2, should be 1.  Fix? no
";

    /// The output of `e2fsck -fp` for a directory that it made from a fast commit, and a file that
    /// it left without a name.
    const PREENED: &str = "\
LC_ALL=\"C\" \"/usr/sbin/e2fsck\" \"-f\" \"-p\" \"/dev/shm/image\": exit status: 4
/dev/shm/image: recovering journal
/dev/shm/image: Clearing orphaned inode 16 (uid=0, gid=0, mode=0100600, size=3000)
/dev/shm/image: Inode 15 is a zero-length directory.  CLEARED.
/dev/shm/image: Entry 'newdir' in /a (12) has deleted/unused inode 15.  CLEARED.
/dev/shm/image: Unattached inode 19


/dev/shm/image: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY.
\t(i.e., without -a or -p options)
";

    /// The same, for an extent without blocks.
    const EMPTY_EXTENT: &str = "\
Inode 17 has an invalid extent
\t(logical block 0, physical block 1231, invalid len 32768)
Clear? no

Illegal block number passed to ext2fs_mark_block_bitmap #1231 for block bitmap for /dev/shm/image
Block bitmap differences:  -1231
Fix? no
";

    #[test]
    fn every_line_is_known_or_none_is() {
        use Complaint::{
            Cleared, EmptyExtent, Group, InPieces, Links, Marks, NameOf, Recounted, Space,
            Unattached, Unconnected,
        };
        let space = Space {
            inode: 13,
            said: 0,
            has: 2,
        };
        for (output, expected) in [
            (MISCOUNTED, vec![space, Links(12), Group]),
            (
                IN_PIECES,
                vec![InPieces(13), Unconnected(13), InPieces(13), Links(13)],
            ),
            (PREENED, vec![Cleared(15), NameOf(15), Unattached(19)]),
            (EMPTY_EXTENT, vec![EmptyExtent(17), Marks, Marks]),
            (
                "/dev/shm/image: Inode 12, i_blocks is 2, should be 4.  FIXED.\n",
                vec![Recounted {
                    inode: 12,
                    said: 2,
                    has: 4,
                }],
            ),
            ("", Vec::new()),
        ] {
            assert_eq!(complaints(output), Some(expected), "{output}");
            for other in [
                "'..' in /t0/a (13) is /a (12), should be /b.",
                "Inode 13 has corrupt extent header.  Clear inode? no",
                "\t(logical block 0, physical block 1231, len 5)",
                "Directory inode 13, block #0, offset 0: directory corrupted",
                "Entry 'd' in / (2) references inode 16 found in group 0's unused",
                "/dev/shm/image: Inode 12 ref count is 3, should be 2.  FIXED.",
                "Inode bitmap differences:  +1234",
                "FIXED.",
            ] {
                let output = format!("{output}{other}\n");
                assert_eq!(complaints(&output), None, "{other}");
            }
        }
    }

    #[test]
    fn only_counts_of_directories_are_forgiven() {
        require!(Need::Program("mke2fs"), Need::Program("debugfs"));
        // 12 and 13 are directories, 14 is not.
        let image = Image::builder(MiB(16)).make().unwrap();
        let commands = ["mkdir /a", "mkdir /a/b", "symlink /f target"];
        oracle::debugfs_write(image.path(), &commands).unwrap();
        let is_forgiven = |output: &str| only_miscounted(image.path(), output).unwrap();
        assert!(is_forgiven(MISCOUNTED));
        for of_file in [
            "Inode 14, i_blocks is 0, should be 2.  Fix? no",
            "Inode 14 ref count is 1, should be 2.  Fix? no",
        ] {
            assert!(!is_forgiven(of_file), "{of_file}");
            assert!(is_forgiven(&of_file.replace("14", "13")), "{of_file}");
        }
        for other in [
            "Inode 13, i_blocks is 2, should be 0.  Fix? no",
            "Inode 13 has corrupt extent header.  Clear inode? no",
            "Block bitmap differences:  +1234\nFix? no",
            IN_PIECES,
            PREENED,
            "",
        ] {
            assert!(!is_forgiven(other), "{other}");
            assert!(!is_forgiven(&format!("{MISCOUNTED}{other}\n")) || other.is_empty());
        }
    }
}

//! **Purpose.** What e2fsck says of an image, complaint by complaint, so that faults of the
//! kernel's and of e2fsck's replay of fast commits, which docs/FINDINGS.md tells of, are known
//! again.
//!
//! **Model.** What e2fsck prints is read line by line. A line is a heading, a question behind a
//! complaint, or a complaint; with a line that is not known nothing is known. What a complaint may
//! be forgiven for is for who asks; the complaints of a kernel that replayed fast commits are
//! judged here ([`only_miscounted`]).

use std::path::Path;

use anyhow::Result;

use crate::oracle;

/// A complaint, by what it is about: inodes by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// The links of an inode are not counted.
    Links(u32),
    /// The space of an inode is not, in sectors of 512 bytes.
    Space {
        /// Of which inode.
        inode: u32,
        /// What it says.
        said: u64,
        /// What it has.
        has: u64,
    },
    /// The space of an inode was not counted, and is now.
    Recounted {
        /// Of which inode.
        inode: u32,
        /// What it said.
        said: u64,
        /// What it has.
        has: u64,
    },
    /// A group's directories are not counted.
    Group,
    /// A directory in use that has no name.
    Unconnected(u32),
    /// What follows of it.
    InPieces(u32),
    /// Another inode in use that has no name.
    Unattached(u32),
    /// A directory without blocks, which was cleared.
    Cleared(u32),
    /// The name of an inode that is not in use, which was removed.
    NameOf(u32),
    /// An extent that has no blocks, in an inode.
    EmptyExtent(u32),
    /// Blocks that are in use and not marked, or marked and not in use, and their counts.
    Marks,
}

/// The complaints in what e2fsck printed; `None` if there is a line that is not known.
#[must_use]
pub fn complaints(output: &str) -> Option<Vec<Complaint>> {
    let mut complaints = Vec::new();
    for line in output.lines() {
        let line = said(line.trim());
        // The question may stand on the line of what it is about.
        let line = line.strip_suffix("Fix? no").unwrap_or(line).trim();
        if !is_question(line) && !is_heading(line) {
            complaints.push(Complaint::of(line)?);
        }
    }
    Some(complaints)
}

/// A line without the image's path, which it may begin with.
fn said(line: &str) -> &str {
    match line.split_once(": ") {
        Some((path, said)) if path.starts_with('/') && !path.contains(' ') => said,
        _ => line,
    }
}

/// Whether a line asks what to do, or says what was done without asking.
fn is_question(line: &str) -> bool {
    matches!(line, "" | "Connect to /lost+found? no" | "Clear? no") || is_where(line)
}

/// Whether a line says what e2fsck does, not what it finds.
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

/// Whether a line is the last one, which counts files and blocks.
fn is_summary(line: &str) -> bool {
    line.ends_with(" blocks") && line.contains(" files (")
}

/// Whether an inode that was removed or cut is finished, as the log has it.
fn is_of_orphan(line: &str) -> bool {
    line.starts_with("Clearing orphaned inode ") || line.starts_with("Truncating orphaned inode ")
}

/// Whether a line tells where an extent lies that has no blocks: such a length is written as 0, or
/// as 32768 if nothing was written to the extent.
fn is_where(line: &str) -> bool {
    line.starts_with("(logical block ")
        && [", invalid len 0)", ", invalid len 32768)"]
            .iter()
            .any(|end| line.ends_with(end))
}

/// What stands between two pieces of a line, if that is a number.
fn number<N: std::str::FromStr>(line: &str, before: &str, behind: &str) -> Option<N> {
    let (number, _) = line.strip_prefix(before)?.split_once(behind)?;
    number.parse().ok()
}

/// What is and what should be, at the end of a line.
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
    /// Of what belongs to a group or to the whole.
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

    /// What was wrong and was put right without a question.
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

/// What debugfs shows of an inode, whatever state the image is in.
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

/// Whether `e2fsck -fn` complains of nothing but what the kernel's replay of fast commits leaves as
/// it was: link counts of directories, the space of new ones, and the groups' counts of
/// directories.
///
/// # Errors
/// If debugfs cannot tell which inodes of the image are directories.
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

    /// What `e2fsck -fn` says of directories that the kernel has made of fast commits.
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

    /// And of one that it has removed.
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

    /// What `e2fsck -fp` says of a directory that it has made of a fast commit, and of a file that
    /// it has left without a name.
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

    /// Of an extent without blocks.
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
        // With directories 12 and 13, and 14, which is none.
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

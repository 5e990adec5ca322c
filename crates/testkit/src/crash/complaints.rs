//! **Purpose.** Whether all that e2fsck says of an image is what docs/FINDINGS.md tells of: faults
//! of the kernel's and of e2fsck's replay of fast commits, which our tests meet and go on behind.
//!
//! **Model.** What e2fsck prints is read line by line. A line is a heading, a question behind a
//! complaint, or a complaint; one complaint that is none of those told of, or a line that is not
//! known at all, and nothing is forgiven.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use crate::oracle;

/// A complaint that may be forgiven, by whom it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Complaint {
    /// The links or the space of an inode are not counted.
    Miscounted(u32),
    /// A group's directories are not counted.
    Group,
    /// An inode in use that has no name.
    Unconnected(u32),
    /// What follows of such an inode.
    InPieces(u32),
}

/// Whether `e2fsck -fn` complains of nothing but what the kernel's replay of fast commits leaves as
/// it was: link counts of directories, the space of new ones, and the groups' counts of
/// directories.
///
/// # Errors
/// If debugfs cannot tell which inodes of the image are directories.
pub fn only_miscounted(image: &Path, output: &str) -> Result<bool> {
    are_forgiven(image, output, |complaint, _| {
        matches!(complaint, Complaint::Miscounted(_) | Complaint::Group)
    })
}

/// As [`only_miscounted`], or of what that replay leaves of directories that were removed: their
/// inodes, without names.
///
/// # Errors
/// As there.
pub fn only_left_behind(image: &Path, output: &str) -> Result<bool> {
    are_forgiven(image, output, |complaint, unconnected| match complaint {
        Complaint::InPieces(inode) => unconnected.contains(&inode),
        Complaint::Miscounted(_) | Complaint::Group | Complaint::Unconnected(_) => true,
    })
}

/// Whether all complaints are known, about directories, and pass `may_be`, which is also given the
/// inodes without names.
fn are_forgiven(
    image: &Path,
    output: &str,
    may_be: impl Fn(Complaint, &BTreeSet<u32>) -> bool,
) -> Result<bool> {
    let Some(complaints) = complaints(output) else {
        return Ok(false);
    };
    let unconnected = complaints.iter().filter_map(|complaint| match *complaint {
        Complaint::Unconnected(inode) => Some(inode),
        _ => None,
    });
    let unconnected: BTreeSet<u32> = unconnected.collect();
    if !complaints
        .iter()
        .all(|&complaint| may_be(complaint, &unconnected))
    {
        return Ok(false);
    }
    let inodes = complaints.iter().filter_map(|complaint| match *complaint {
        Complaint::Group => None,
        Complaint::Miscounted(inode)
        | Complaint::Unconnected(inode)
        | Complaint::InPieces(inode) => Some(inode),
    });
    for inode in inodes.collect::<BTreeSet<u32>>() {
        let stat = format!("stat <{inode}>");
        let shown = oracle::debugfs_without_bitmaps(image, &[stat])?;
        if !shown.contains("Type: directory") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The complaints of `e2fsck -fn`; `None` if there is none, or anything else is said.
fn complaints(output: &str) -> Option<Vec<Complaint>> {
    let mut complaints = Vec::new();
    for line in output.lines() {
        let line = line.trim();
        // The question may stand on the line of what it is about.
        let complaint = line.strip_suffix("Fix? no").unwrap_or(line).trim();
        let is_asked = matches!(complaint, "" | "Connect to /lost+found? no");
        if !is_asked && !is_heading(complaint) {
            complaints.push(Complaint::of(complaint)?);
        }
    }
    (!complaints.is_empty()).then_some(complaints)
}

/// Whether a line says what e2fsck does, not what it finds.
fn is_heading(line: &str) -> bool {
    line.starts_with("Pass ")
        || line.starts_with("e2fsck 1.")
        || line.contains("e2fsck\" \"-f\"")
        || line.ends_with("********** WARNING: Filesystem still has errors **********")
        || is_summary(line)
}

/// Whether a line is the last one, which counts files and blocks.
fn is_summary(line: &str) -> bool {
    line.ends_with(" blocks") && line.contains(" files (")
}

impl Complaint {
    fn of(line: &str) -> Option<Self> {
        let about = |before: &str, behind: &str| {
            let (inode, said) = line.strip_prefix(before)?.split_once(behind)?;
            Some((inode.parse().ok()?, said))
        };
        if let Some((inode, _)) = about("Inode ", " ref count is ") {
            return Some(Self::Miscounted(inode));
        }
        if let Some((inode, _)) = about("Inode ", ", i_blocks is 0, should be ") {
            return Some(Self::Miscounted(inode));
        }
        if let Some((inode, _)) = about("Unconnected directory inode ", " (was in ") {
            return Some(Self::Unconnected(inode));
        }
        if let Some((inode, said)) = about("Directory inode ", ", block #") {
            let is_checksum = said.ends_with(": directory passes checks but fails checksum.");
            return is_checksum.then_some(Self::InPieces(inode));
        }
        if let Some((inode, _)) = about("'..' in ... (", ") is ") {
            return Some(Self::InPieces(inode));
        }
        let is_group = line.starts_with("Directories count wrong for group ");
        is_group.then_some(Self::Group)
    }
}

/// Whether `e2fsck -fp` did nothing but replay the log, finish what was begun, and clear
/// directories without blocks, which it had made of fast commits, and their names.
#[must_use]
pub fn only_cleared_directories(output: &str) -> bool {
    let mut cleared = Vec::new();
    for line in output.lines().filter(|line| !line.is_empty()) {
        // Each line that is said of the image begins with its path.
        let said = line.split_once(": ").map_or(line, |(_, said)| said);
        let inode = said.strip_prefix("Inode ");
        let inode = inode.and_then(|said| {
            let number = said.strip_suffix(" is a zero-length directory.  CLEARED.")?;
            number.parse::<u32>().ok()
        });
        let name = said.strip_prefix("Entry '").and_then(|said| {
            let (_, behind) = said.rsplit_once(" has deleted/unused inode ")?;
            behind.strip_suffix(".  CLEARED.")?.parse::<u32>().ok()
        });
        let is_known = match (inode, name) {
            (Some(inode), _) => {
                cleared.push(inode);
                true
            }
            (_, Some(inode)) => cleared.contains(&inode),
            _ => is_heading(line) || said == "recovering journal" || is_of_orphan(said),
        };
        if !is_known {
            return false;
        }
    }
    !cleared.is_empty()
}

/// Whether an inode that was removed or cut is finished, as the log has it.
fn is_of_orphan(said: &str) -> bool {
    said.starts_with("Clearing orphaned inode ") || said.starts_with("Truncating orphaned inode ")
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

    /// With directories 12 and 13, and 14, which is none.
    fn image() -> Image {
        let image = Image::builder(MiB(16)).make().unwrap();
        let commands = ["mkdir /a", "mkdir /a/b", "symlink /f target"];
        oracle::debugfs_write(image.path(), &commands).unwrap();
        image
    }

    #[test]
    fn only_counts_of_directories_are_forgiven() {
        require!(Need::Program("mke2fs"), Need::Program("debugfs"));
        let image = image();
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
            "'..' in ... (13) is /a (12), should be /b.\nFix? no",
            "Inode 13 has corrupt extent header.  Clear inode? no",
            "Block bitmap differences:  +1234\nFix? no",
            IN_PIECES,
            "",
        ] {
            assert!(!is_forgiven(other), "{other}");
            assert!(!is_forgiven(&format!("{MISCOUNTED}{other}\n")) || other.is_empty());
        }
    }

    #[test]
    fn what_is_left_of_a_removed_directory_is_forgiven_and_nothing_beside_it() {
        require!(Need::Program("mke2fs"), Need::Program("debugfs"));
        let image = image();
        let is_forgiven = |output: &str| only_left_behind(image.path(), output).unwrap();
        assert!(is_forgiven(IN_PIECES) && is_forgiven(MISCOUNTED));
        assert!(is_forgiven(&format!("{MISCOUNTED}{IN_PIECES}")));
        for other in [
            "Directory inode 12, block #0: directory passes checks but fails checksum.\nFix? no",
            "Directory inode 13, block #0, offset 0: directory corrupted\nSalvage? no",
            "Unattached inode 14\nConnect to /lost+found? no",
        ] {
            assert!(!is_forgiven(&format!("{IN_PIECES}{other}\n")), "{other}");
        }
        assert!(!is_forgiven(&IN_PIECES.replace("13", "14")), "no directory");
    }

    /// What `e2fsck -fp` says of a directory that it has made of a fast commit.
    const CLEARED: &str = "\
LC_ALL=\"C\" \"/usr/sbin/e2fsck\" \"-f\" \"-p\" \"/dev/shm/image\": exit status: 1
/dev/shm/image: recovering journal
/dev/shm/image: Clearing orphaned inode 16 (uid=0, gid=0, mode=0100600, size=3000)
/dev/shm/image: Inode 15 is a zero-length directory.  CLEARED.
/dev/shm/image: Entry 'newdir' in /a (12) has deleted/unused inode 15.  CLEARED.
/dev/shm/image: 14/512 files (14.3% non-contiguous), 1238/6144 blocks
";

    #[test]
    fn only_cleared_directories_and_their_names_are_forgiven() {
        assert!(only_cleared_directories(CLEARED));
        for other in [
            "/dev/shm/image: Entry 'file' in /a (12) has deleted/unused inode 17.  CLEARED.",
            "/dev/shm/image: Inode 12 ref count is 3, should be 2.  FIXED.",
            "/dev/shm/image: Entry 'd' in / (2) references inode 16 found in group 0's unused",
            "FIXED.",
        ] {
            assert!(
                !only_cleared_directories(&format!("{CLEARED}{other}\n")),
                "{other}"
            );
        }
        let without: Vec<&str> = CLEARED
            .lines()
            .filter(|line| !line.contains("15"))
            .collect();
        assert!(
            !only_cleared_directories(&without.join("\n")),
            "nothing was cleared"
        );
    }
}

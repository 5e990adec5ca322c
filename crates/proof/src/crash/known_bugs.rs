//! **Purpose.** Recognises the known bugs of the fast-commit replay of Linux and e2fsck, which
//! docs/FINDINGS.md lists, from the output of e2fsck.
//!
//! **Model.** Every line of the output is parsed ([`complaints`]), and each complaint must belong
//! to one of the bugs; otherwise no bug is recognised. A recognised bug is then checked against the
//! history ([`SinceCommit`]): it explains the output only if the workload did what triggers it.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use fourscore_testkit::crash::complaints::{Complaint, complaints, is_directory, shown};

/// A bug, with the inode that it is about where several inodes may show the same bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KnownBug {
    /// Linux takes the log for corrupted, and does not mount.
    NotMounted,
    /// Linux miscounts links of directories, and leaves remains of removed ones.
    LeftBehind,
    /// Linux leaves the xattr block of a file out of `i_blocks`; so does e2fsck, which then
    /// corrects it.
    Uncounted,
    /// Linux loses the name that was linked to an `O_TMPFILE` inode.
    Unnamed(u32),
    /// e2fsck takes the log for corrupted, and continues without it.
    NotReplayed,
    /// e2fsck does not find a name that it must remove, and skips the rest of the log.
    NoSuchName,
    /// e2fsck clears directories that it has created only in part.
    Cleared,
    /// e2fsck removes the last name of an inode but not the inode.
    Nameless(u32),
    /// e2fsck leaves an extent of no blocks in a file that lost its last extent.
    EmptyExtent(u32),
}

/// What a workload did since the last full commit, which makes earlier fast commits obsolete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SinceCommit {
    /// Whether the file system has fast commits.
    pub(super) has_fast_commits: bool,
    /// Whether an inode without a name was open.
    pub(super) nameless: bool,
    /// How many inodes have lost their last name.
    pub(super) removed: usize,
    /// Whether a name was created and removed again.
    pub(super) came_and_went: bool,
    /// Whether a file lost blocks.
    pub(super) cut: bool,
    /// Whether a directory was created.
    pub(super) made_directory: bool,
}

/// What e2fsck prints when it stops a replay because of an unexpected commit.
const UNEXPECTED: &str = ": Invalid argument while recovering journal of ";
/// What it prints when it cannot apply a record; another line gives the reason.
const NOT_FOLLOWED: &str = ": Bad address while recovering journal of ";
const NO_SUCH_NAME: &str = "Error \"No free space in the directory\" encountered in function \
                            ext4_fc_handle_unlink at line ";

/// The size of the largest block: the xattr block is all that an empty file may have.
const BLOCK_SECTORS: u64 = 8;

/// The bug because of which e2fsck stopped a replay; `None` if it did not. Its other output is then
/// about a file system without the changes of the log.
pub(super) fn of_stopped_replay(said: &str) -> Option<KnownBug> {
    let is_for = |why: &str| said.lines().any(|line| line.contains(why));
    if is_for(UNEXPECTED) {
        return Some(KnownBug::NotReplayed);
    }
    (is_for(NOT_FOLLOWED) && said.lines().any(|line| line.starts_with(NO_SUCH_NAME)))
        .then_some(KnownBug::NoSuchName)
}

/// The bugs of Linux that explain the output of `e2fsck -fn` for what Linux recovered; `None` if
/// there is anything else in it.
///
/// # Errors
/// If debugfs cannot show an inode.
pub(super) fn of_kernel(image: &Path, said: &str) -> Result<Option<BTreeSet<KnownBug>>> {
    let Some(complaints) = complaints(said) else {
        return Ok(None);
    };
    let unconnected = all(&complaints, |complaint| match complaint {
        Complaint::Unconnected(inode) => Some(inode),
        _ => None,
    });
    let mut faults = BTreeSet::new();
    for complaint in complaints {
        let (about, fault) = match complaint {
            Complaint::Group => (None, KnownBug::LeftBehind),
            Complaint::Links(inode) | Complaint::Unconnected(inode) => {
                (Some(inode), KnownBug::LeftBehind)
            }
            Complaint::InPieces(inode) if unconnected.contains(&inode) => {
                (Some(inode), KnownBug::LeftBehind)
            }
            Complaint::Unattached(inode) => (None, KnownBug::Unnamed(inode)),
            Complaint::Space { inode, said, has } if is_of_attributes(image, inode, said, has)? => {
                (None, KnownBug::Uncounted)
            }
            Complaint::Space { inode, said: 0, .. } => (Some(inode), KnownBug::LeftBehind),
            _ => return Ok(None),
        };
        if let Some(inode) = about
            && !is_directory(image, inode)?
        {
            return Ok(None);
        }
        faults.insert(fault);
    }
    Ok((!faults.is_empty()).then_some(faults))
}

/// Whether `i_blocks` of a file is one block too small, and the file has an xattr block.
fn is_of_attributes(image: &Path, inode: u32, said: u64, has: u64) -> Result<bool> {
    let shown = shown(image, inode)?;
    let block = shown.lines().find_map(|line| line.split_once("File ACL: "));
    let (_, block) = block.with_context(|| shown.clone())?;
    let has_block = !block.trim().starts_with('0');
    let missing = has.saturating_sub(said);
    let is_block = missing == BLOCK_SECTORS || missing == BLOCK_SECTORS / 4;
    Ok(has_block && is_block && !shown.contains("Type: directory"))
}

/// Whether e2fsck has met an extent of no blocks. `e2fsck -fn` must not be run then: it would go
/// through all block numbers in steps of 32768.
pub(super) fn is_endless(said: &str) -> bool {
    said.contains(" has an invalid extent")
}

/// Whether e2fsck removed a directory that it had created itself, whatever else it prints.
pub(super) fn is_cleared(said: &str) -> bool {
    said.contains(" is a zero-length directory")
}

/// The bugs of e2fsck that explain its own output when it recovered a log, with `-fp` and then
/// `-fn`; `None` if there is anything else in it.
///
/// # Errors
/// If debugfs cannot show an inode.
pub(super) fn of_e2fsck(image: &Path, said: &str) -> Result<Option<BTreeSet<KnownBug>>> {
    let Some(mut complaints) = complaints(said) else {
        return Ok(None);
    };
    let mut faults = BTreeSet::new();
    for complaint in &complaints {
        if let Complaint::Recounted { inode, said, has } = *complaint {
            if !is_of_attributes(image, inode, said, has)? {
                return Ok(None);
            }
            faults.insert(KnownBug::Uncounted);
        }
    }
    complaints.retain(|complaint| !matches!(complaint, Complaint::Recounted { .. }));
    Ok(of_replay(&complaints).map(|mut others| {
        others.extend(faults);
        others
    }))
}

fn of_replay(complaints: &[Complaint]) -> Option<BTreeSet<KnownBug>> {
    let cleared = all(complaints, |complaint| match complaint {
        Complaint::Cleared(inode) => Some(inode),
        _ => None,
    });
    let nameless = all(complaints, |complaint| match complaint {
        Complaint::Unattached(inode) | Complaint::Unconnected(inode) => Some(inode),
        _ => None,
    });
    let empty = all(complaints, |complaint| match complaint {
        Complaint::EmptyExtent(inode) => Some(inode),
        _ => None,
    });
    let fault = |complaint| match complaint {
        Complaint::Cleared(_) => Some(KnownBug::Cleared),
        Complaint::NameOf(inode) => cleared.contains(&inode).then_some(KnownBug::Cleared),
        Complaint::Unattached(inode) | Complaint::Unconnected(inode) => {
            Some(KnownBug::Nameless(inode))
        }
        Complaint::Links(inode) | Complaint::InPieces(inode) => nameless
            .contains(&inode)
            .then_some(KnownBug::Nameless(inode)),
        Complaint::EmptyExtent(inode) => Some(KnownBug::EmptyExtent(inode)),
        Complaint::Space { inode, .. } => empty
            .contains(&inode)
            .then_some(KnownBug::EmptyExtent(inode)),
        Complaint::Marks => empty.first().map(|&inode| KnownBug::EmptyExtent(inode)),
        Complaint::Group | Complaint::Recounted { .. } => None,
    };
    let faults: Option<BTreeSet<KnownBug>> = complaints.iter().copied().map(fault).collect();
    faults.filter(|faults| !faults.is_empty())
}

/// The inodes of all complaints of one kind.
fn all(complaints: &[Complaint], of_kind: fn(Complaint) -> Option<u32>) -> BTreeSet<u32> {
    complaints.iter().copied().filter_map(of_kind).collect()
}

impl SinceCommit {
    /// Whether the history can have triggered these bugs. `ours` returns the number of sectors of
    /// an inode after our own recovery of the same log, `None` if it is free: an inode that lost
    /// its last name must be free, and one that lost its last extent must have no data.
    pub(super) fn may_show(
        &self,
        faults: &BTreeSet<KnownBug>,
        ours: impl Fn(u32) -> Option<u64>,
    ) -> bool {
        let is_nameless = |fault: &&KnownBug| matches!(fault, KnownBug::Nameless(_));
        let nameless = faults.iter().filter(is_nameless).count();
        let may_be = |fault: &KnownBug| match *fault {
            KnownBug::NotMounted => self.nameless,
            KnownBug::Unnamed(inode) => self.nameless && ours(inode).is_some(),
            KnownBug::LeftBehind | KnownBug::Uncounted | KnownBug::NotReplayed => true,
            KnownBug::NoSuchName => self.came_and_went,
            KnownBug::Cleared => self.made_directory,
            KnownBug::Nameless(inode) => ours(inode).is_none(),
            KnownBug::EmptyExtent(inode) => {
                self.cut && ours(inode).is_some_and(|sectors| sectors <= BLOCK_SECTORS)
            }
        };
        self.has_fast_commits && nameless <= self.removed && faults.iter().all(may_be)
    }
}

#[cfg(test)]
mod tests {
    use fourscore_testkit::image::{Image, MiB};
    use fourscore_testkit::oracle::debugfs_write;
    use fourscore_testkit::require;
    use fourscore_testkit::tools::Need;

    use super::*;

    const COUNTS: &str = "\
Inode 13, i_blocks is 0, should be 2.  Fix? no

Inode 12 ref count is 2, should be 3.  Fix? no
";
    const REMAINS: &str = "\
Directory inode 13, block #0: directory passes checks but fails checksum.
Fix? no

Unconnected directory inode 13 (was in /t0/a)
Connect to /lost+found? no

'..' in ... (13) is /t0/a (12), should be <The NULL inode> (0).
Fix? no
";
    const CLEARED: &str = "\
/dev/shm/image: Inode 15 is a zero-length directory.  CLEARED.
/dev/shm/image: Entry 'newdir' in /a (12) has deleted/unused inode 15.  CLEARED.
";
    const NAMELESS: &str = "\
/dev/shm/image: Unattached inode 19


/dev/shm/image: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY.
Unconnected directory inode 14 (was in /a)
Connect to /lost+found? no

'..' in ... (14) is /a (12), should be <The NULL inode> (0).
Fix? no

Inode 14 ref count is 2, should be 1.  Fix? no
";
    const EMPTY_EXTENT: &str = "\
Illegal block number passed to ext2fs_mark_block_bitmap #1231 for block bitmap for /dev/shm/image
/dev/shm/image: Inode 17 has an invalid extent
\t(logical block 0, physical block 1231, invalid len 32768)
";
    const NO_SUCH_NAME: &str = "\
/dev/shm/image: recovering journal
Error \"No free space in the directory\" encountered in function ext4_fc_handle_unlink at line 654
/usr/sbin/e2fsck: Bad address while recovering journal of /dev/shm/image
";

    #[test]
    fn bugs_of_linux_are_recognised_and_nothing_else_is() {
        require!(Need::Program("mke2fs"), Need::Program("debugfs"));
        // Directories 12 and 13; file 14, which has an xattr block; symbolic link 15.
        let image = Image::builder(MiB(16)).make().unwrap();
        let large = format!("ea_set /f user.large {}", "v".repeat(600));
        let commands = [
            "mkdir /a",
            "mkdir /a/b",
            "write /dev/null f",
            &large,
            "symlink /l t",
        ];
        debugfs_write(image.path(), &commands).unwrap();
        let faults = |said: &str| of_kernel(image.path(), said).unwrap();
        let left = Some(BTreeSet::from([KnownBug::LeftBehind]));
        assert_eq!(faults(COUNTS), left);
        assert_eq!(faults(REMAINS), left);
        let uncounted = "Inode 14, i_blocks is 2, should be 10.  Fix? no\n";
        assert_eq!(faults(uncounted), Some([KnownBug::Uncounted].into()));
        let both = faults(&format!("{COUNTS}{uncounted}"));
        assert_eq!(
            both,
            Some([KnownBug::LeftBehind, KnownBug::Uncounted].into())
        );
        let unnamed = "Unattached zero-length inode 19.  Clear? no\n\n\
                       Unattached inode 19\nConnect to /lost+found? no\n";
        assert_eq!(faults(unnamed), Some([KnownBug::Unnamed(19)].into()));
        for other in [
            // These inodes are no directories.
            COUNTS.replace("12", "15"),
            COUNTS.replace("13", "15"),
            REMAINS.replace("13", "15"),
            // These are not all the complaints about one removed directory.
            REMAINS.replace(
                "Unconnected directory inode 13",
                "Unconnected directory inode 12",
            ),
            // More than a block is missing, or nothing, or the inode has no xattr block.
            uncounted.replace("10", "18"),
            uncounted.replace("10", "2"),
            uncounted.replace("14", "15"),
            uncounted.replace("14", "12"),
            NAMELESS.to_owned(),
            EMPTY_EXTENT.to_owned(),
            "Block bitmap differences:  +1234\nFix? no\n".to_owned(),
            "Inode 13 has corrupt extent header.  Clear inode? no\n".to_owned(),
        ] {
            assert_eq!(faults(&other), None, "{other}");
            assert_eq!(faults(&format!("{COUNTS}{other}")), None, "{other}");
        }
        assert_eq!(faults(""), None, "there is no output");
    }

    #[test]
    fn bugs_of_e2fsck_are_recognised_and_nothing_else_is() {
        require!(Need::Program("mke2fs"), Need::Program("debugfs"));
        // File 12 has an xattr block, 13 has none.
        let image = Image::builder(MiB(16)).make().unwrap();
        let large = format!("ea_set /f user.large {}", "v".repeat(600));
        let commands = ["write /dev/null f", &large, "write /dev/null g"];
        debugfs_write(image.path(), &commands).unwrap();
        let of_e2fsck = |said: &str| of_e2fsck(image.path(), said).unwrap();
        let nameless = [KnownBug::Nameless(14), KnownBug::Nameless(19)];
        let known = [
            (CLEARED, BTreeSet::from([KnownBug::Cleared])),
            (NAMELESS, BTreeSet::from(nameless)),
            (EMPTY_EXTENT, BTreeSet::from([KnownBug::EmptyExtent(17)])),
        ];
        for (said, faults) in known {
            assert_eq!(of_e2fsck(said), Some(faults), "{said}");
            for other in [
                "/dev/shm/image: Entry 'f' in /a (12) has deleted/unused inode 20.  CLEARED.",
                "Inode 12 ref count is 3, should be 2.  Fix? no",
                "Inode 12, i_blocks is 2, should be 4.  Fix? no",
                "'..' in ... (12) is /a (13), should be <The NULL inode> (0).",
                "Directories count wrong for group #0 (3, counted=4).",
                "Entry 'd' in / (2) references inode 16 found in group 0's unused inodes area.",
            ] {
                assert_eq!(of_e2fsck(&format!("{said}{other}\n")), None, "{other}");
            }
        }
        let marks = "Block bitmap differences:  -1231\nFix? no\n";
        assert_eq!(of_e2fsck(&format!("{NAMELESS}{marks}")), None);
        assert!(of_e2fsck(&format!("{EMPTY_EXTENT}{marks}")).is_some());
        assert_eq!(of_e2fsck(""), None, "there is no output");
        let recounted = "/dev/shm/image: Inode 12, i_blocks is 2, should be 10.  FIXED.\n";
        let faults = of_e2fsck(&format!("{recounted}{NAMELESS}")).unwrap();
        assert!(faults.contains(&KnownBug::Uncounted) && faults.contains(&KnownBug::Nameless(19)));
        for other in [recounted.replace("12", "13"), recounted.replace("10", "18")] {
            assert_eq!(of_e2fsck(&format!("{other}{NAMELESS}")), None, "{other}");
        }
    }

    #[test]
    fn a_stopped_replay_is_a_bug_only_for_a_commit_or_a_name() {
        let unexpected = "/usr/sbin/e2fsck: Invalid argument while recovering journal of /image\n";
        assert_eq!(of_stopped_replay(unexpected), Some(KnownBug::NotReplayed));
        assert_eq!(of_stopped_replay(NO_SUCH_NAME), Some(KnownBug::NoSuchName));
        for other in [
            NO_SUCH_NAME.replace("handle_unlink", "handle_inode"),
            NO_SUCH_NAME.replace("No free space in the directory", "Input/output error"),
            NO_SUCH_NAME.replace("Bad address", "Input/output error"),
            NAMELESS.to_owned(),
        ] {
            assert_eq!(of_stopped_replay(&other), None, "{other}");
        }
    }

    /// Each bug needs its own trigger in the history.
    #[test]
    fn a_bug_explains_the_output_only_if_the_history_triggers_it() {
        let fast = SinceCommit {
            has_fast_commits: true,
            ..SinceCommit::default()
        };
        let may_show = |since_commit: SinceCommit, fault: KnownBug| {
            since_commit.may_show(&[fault].into(), |_| None)
        };
        for fault in [
            KnownBug::LeftBehind,
            KnownBug::Uncounted,
            KnownBug::NotReplayed,
        ] {
            assert!(may_show(fast, fault) && !may_show(SinceCommit::default(), fault));
        }
        let all = SinceCommit {
            has_fast_commits: true,
            nameless: true,
            removed: 1,
            came_and_went: true,
            cut: true,
            made_directory: true,
        };
        let without = |change: fn(&mut SinceCommit)| {
            let mut since_commit = all;
            change(&mut since_commit);
            since_commit
        };
        let full_commits_only = without(|since| since.has_fast_commits = false);
        for (fault, without) in [
            (
                KnownBug::NotMounted,
                without(|since| since.nameless = false),
            ),
            (
                KnownBug::NoSuchName,
                without(|since| since.came_and_went = false),
            ),
            (
                KnownBug::Cleared,
                without(|since| since.made_directory = false),
            ),
            (KnownBug::Nameless(20), without(|since| since.removed = 0)),
        ] {
            assert!(may_show(all, fault), "{fault:?}");
            assert!(!may_show(without, fault), "{fault:?}");
            assert!(!may_show(full_commits_only, fault), "{fault:?}");
        }
        let two = BTreeSet::from([KnownBug::Nameless(20), KnownBug::Nameless(21)]);
        assert!(!all.may_show(&two, |_| None), "only one was removed");
        // In our own recovery an inode that kept its name is in use; one that lost its last extent
        // is in use as well, and empty.
        let nameless = BTreeSet::from([KnownBug::Nameless(20)]);
        assert!(!all.may_show(&nameless, |_| Some(8)));
        let unnamed = BTreeSet::from([KnownBug::Unnamed(20)]);
        assert!(all.may_show(&unnamed, |_| Some(0)));
        assert!(
            !all.may_show(&unnamed, |_| None),
            "no name was linked to it"
        );
        let without_open = without(|since| since.nameless = false);
        assert!(!without_open.may_show(&unnamed, |_| Some(0)));
        let empty = BTreeSet::from([KnownBug::EmptyExtent(20)]);
        let not_cut = without(|since| since.cut = false);
        for (sectors, expected) in [
            (None, false),
            (Some(0), true),
            (Some(8), true),
            (Some(10), false),
        ] {
            assert_eq!(all.may_show(&empty, |_| sectors), expected, "{sectors:?}");
            assert!(!not_cut.may_show(&empty, |_| sectors));
        }
    }
}

//! **Purpose.** What docs/FINDINGS.md tells of: the faults of Linux's and of e2fsck's replay of
//! fast commits, known by what e2fsck says, and by what the history must have for each.
//!
//! **Model.** All that is said is read ([`complaints`]), and each complaint must be that of one of
//! the faults; else none is known. Each fault that was known is then held against the history
//! ([`Lately`]): it is one only where something was done that leads to it.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use fourscore_testkit::crash::complaints::{Complaint, complaints, is_directory, shown};

/// A fault, by its number in docs/FINDINGS.md where two are like each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    /// Linux finds a log unsound, and does not mount.
    NotMounted,
    /// It miscounts directories, and leaves something of removed ones.
    LeftBehind,
    /// It does not count the block of attributes of a file; nor does e2fsck, which counts again.
    Uncounted,
    /// It does not give a file that was made without a name the one that it was given.
    Unnamed(u32),
    /// e2fsck finds a log unsound, and goes on without it.
    NotReplayed,
    /// It does not find a name that is to be removed, and goes on without the rest of the log.
    NoSuchName,
    /// It clears directories that it has made in part.
    Cleared,
    /// It removes the last name of an inode and leaves the inode.
    Nameless(u32),
    /// It leaves an extent without blocks in a file that lost its last one.
    EmptyExtent(u32),
}

/// What was done since the last commit of the usual kind, which makes fast ones void.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lately {
    /// Whether fast commits are made.
    pub(super) has_fast_commits: bool,
    /// Whether something without a name was open.
    pub(super) nameless: bool,
    /// How many inodes have lost their last name.
    pub(super) removed: usize,
    /// Whether a name was made and removed.
    pub(super) came_and_went: bool,
    /// Whether a file lost blocks.
    pub(super) cut: bool,
    /// Whether a directory was made.
    pub(super) made_directory: bool,
}

/// What e2fsck says where it gives a log up, for a commit that it did not expect.
const UNEXPECTED: &str = ": Invalid argument while recovering journal of ";
/// And for a record that it cannot follow; why, in a line of its own.
const NOT_FOLLOWED: &str = ": Bad address while recovering journal of ";
const NO_SUCH_NAME: &str = "Error \"No free space in the directory\" encountered in function \
                            ext4_fc_handle_unlink at line ";

/// The largest block: that of attributes, if a file without content has one.
const BLOCK_SECTORS: u64 = 8;

/// Why e2fsck gave a log up, as told of: all that it says then is about what lies beside the log.
/// `None` if it did not.
pub(super) fn given_up(said: &str) -> Option<Told> {
    let is_for = |why: &str| said.lines().any(|line| line.contains(why));
    if is_for(UNEXPECTED) {
        return Some(Told::NotReplayed);
    }
    (is_for(NOT_FOLLOWED) && said.lines().any(|line| line.starts_with(NO_SUCH_NAME)))
        .then_some(Told::NoSuchName)
}

/// The faults of Linux's that `e2fsck -fn` complains of in what it recovered; `None` if it
/// complains of anything else.
///
/// # Errors
/// If debugfs cannot say what an inode is.
pub(super) fn of_kernel(image: &Path, said: &str) -> Result<Option<BTreeSet<Told>>> {
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
            Complaint::Group => (None, Told::LeftBehind),
            Complaint::Links(inode) | Complaint::Unconnected(inode) => {
                (Some(inode), Told::LeftBehind)
            }
            Complaint::InPieces(inode) if unconnected.contains(&inode) => {
                (Some(inode), Told::LeftBehind)
            }
            Complaint::Unattached(inode) => (None, Told::Unnamed(inode)),
            Complaint::Space { inode, said, has } if is_of_attributes(image, inode, said, has)? => {
                (None, Told::Uncounted)
            }
            Complaint::Space { inode, said: 0, .. } => (Some(inode), Told::LeftBehind),
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

/// Whether a file says that it has one block less than it has, and has one of attributes.
fn is_of_attributes(image: &Path, inode: u32, said: u64, has: u64) -> Result<bool> {
    let shown = shown(image, inode)?;
    let block = shown.lines().find_map(|line| line.split_once("File ACL: "));
    let (_, block) = block.with_context(|| shown.clone())?;
    let has_block = !block.trim().starts_with('0');
    let missing = has.saturating_sub(said);
    let is_block = missing == BLOCK_SECTORS || missing == BLOCK_SECTORS / 4;
    Ok(has_block && is_block && !shown.contains("Type: directory"))
}

/// Whether e2fsck has met an extent without blocks. One that only looks then goes on to the end of
/// all block numbers, by pieces of 32768: it is not asked.
pub(super) fn is_endless(said: &str) -> bool {
    said.contains(" has an invalid extent")
}

/// Whether e2fsck took a directory away that it had made itself, whatever else it says.
pub(super) fn is_cleared(said: &str) -> bool {
    said.contains(" is a zero-length directory")
}

/// The faults of e2fsck's that it told of itself when it recovered a log, with `-fp` and then
/// `-fn`; `None` if it told of anything else.
///
/// # Errors
/// If debugfs cannot say what an inode is.
pub(super) fn of_e2fsck(image: &Path, said: &str) -> Result<Option<BTreeSet<Told>>> {
    let Some(mut complaints) = complaints(said) else {
        return Ok(None);
    };
    let mut faults = BTreeSet::new();
    for complaint in &complaints {
        if let Complaint::Recounted { inode, said, has } = *complaint {
            if !is_of_attributes(image, inode, said, has)? {
                return Ok(None);
            }
            faults.insert(Told::Uncounted);
        }
    }
    complaints.retain(|complaint| !matches!(complaint, Complaint::Recounted { .. }));
    Ok(of_replay(&complaints).map(|mut others| {
        others.extend(faults);
        others
    }))
}

fn of_replay(complaints: &[Complaint]) -> Option<BTreeSet<Told>> {
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
        Complaint::Cleared(_) => Some(Told::Cleared),
        Complaint::NameOf(inode) => cleared.contains(&inode).then_some(Told::Cleared),
        Complaint::Unattached(inode) | Complaint::Unconnected(inode) => Some(Told::Nameless(inode)),
        Complaint::Links(inode) | Complaint::InPieces(inode) => {
            nameless.contains(&inode).then_some(Told::Nameless(inode))
        }
        Complaint::EmptyExtent(inode) => Some(Told::EmptyExtent(inode)),
        Complaint::Space { inode, .. } => {
            empty.contains(&inode).then_some(Told::EmptyExtent(inode))
        }
        Complaint::Marks => empty.first().map(|&inode| Told::EmptyExtent(inode)),
        Complaint::Group | Complaint::Recounted { .. } => None,
    };
    let faults: Option<BTreeSet<Told>> = complaints.iter().copied().map(fault).collect();
    faults.filter(|faults| !faults.is_empty())
}

/// The inodes of complaints of a kind.
fn all(complaints: &[Complaint], of_kind: fn(Complaint) -> Option<u32>) -> BTreeSet<u32> {
    complaints.iter().copied().filter_map(of_kind).collect()
}

impl Lately {
    /// Whether faults may be there, where `ours` tells how many sectors an inode takes in what we
    /// made of the same log: one that lost its name is not in use, one that lost its last extent
    /// has no content.
    pub(super) fn may_lead_to(
        &self,
        faults: &BTreeSet<Told>,
        ours: impl Fn(u32) -> Option<u64>,
    ) -> bool {
        let is_nameless = |fault: &&Told| matches!(fault, Told::Nameless(_));
        let nameless = faults.iter().filter(is_nameless).count();
        let may_be = |fault: &Told| match *fault {
            Told::NotMounted => self.nameless,
            Told::Unnamed(inode) => self.nameless && ours(inode).is_some(),
            Told::LeftBehind | Told::Uncounted | Told::NotReplayed => true,
            Told::NoSuchName => self.came_and_went,
            Told::Cleared => self.made_directory,
            Told::Nameless(inode) => ours(inode).is_none(),
            Told::EmptyExtent(inode) => {
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
    fn what_linux_leaves_is_known_and_nothing_beside_it() {
        require!(Need::Program("mke2fs"), Need::Program("debugfs"));
        // Directories 12 and 13; file 14, which has a block of attributes; link 15.
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
        let left = Some(BTreeSet::from([Told::LeftBehind]));
        assert_eq!(faults(COUNTS), left);
        assert_eq!(faults(REMAINS), left);
        let uncounted = "Inode 14, i_blocks is 2, should be 10.  Fix? no\n";
        assert_eq!(faults(uncounted), Some([Told::Uncounted].into()));
        let both = faults(&format!("{COUNTS}{uncounted}"));
        assert_eq!(both, Some([Told::LeftBehind, Told::Uncounted].into()));
        let unnamed = "Unattached zero-length inode 19.  Clear? no\n\n\
                       Unattached inode 19\nConnect to /lost+found? no\n";
        assert_eq!(faults(unnamed), Some([Told::Unnamed(19)].into()));
        for other in [
            // No directories.
            COUNTS.replace("12", "15"),
            COUNTS.replace("13", "15"),
            REMAINS.replace("13", "15"),
            // Without the rest, no remains of a removed one.
            REMAINS.replace(
                "Unconnected directory inode 13",
                "Unconnected directory inode 12",
            ),
            // More than a block, or nothing, or of an inode without attributes.
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
        assert_eq!(faults(""), None, "nothing is said");
    }

    #[test]
    fn what_e2fsck_leaves_is_known_and_nothing_beside_it() {
        require!(Need::Program("mke2fs"), Need::Program("debugfs"));
        // File 12 has a block of attributes, 13 has none.
        let image = Image::builder(MiB(16)).make().unwrap();
        let large = format!("ea_set /f user.large {}", "v".repeat(600));
        let commands = ["write /dev/null f", &large, "write /dev/null g"];
        debugfs_write(image.path(), &commands).unwrap();
        let of_e2fsck = |said: &str| of_e2fsck(image.path(), said).unwrap();
        let nameless = [Told::Nameless(14), Told::Nameless(19)];
        let known = [
            (CLEARED, BTreeSet::from([Told::Cleared])),
            (NAMELESS, BTreeSet::from(nameless)),
            (EMPTY_EXTENT, BTreeSet::from([Told::EmptyExtent(17)])),
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
        assert_eq!(of_e2fsck(""), None, "nothing is said");
        let recounted = "/dev/shm/image: Inode 12, i_blocks is 2, should be 10.  FIXED.\n";
        let faults = of_e2fsck(&format!("{recounted}{NAMELESS}")).unwrap();
        assert!(faults.contains(&Told::Uncounted) && faults.contains(&Told::Nameless(19)));
        for other in [recounted.replace("12", "13"), recounted.replace("10", "18")] {
            assert_eq!(of_e2fsck(&format!("{other}{NAMELESS}")), None, "{other}");
        }
    }

    #[test]
    fn a_log_is_given_up_only_for_a_commit_or_a_name() {
        let unexpected = "/usr/sbin/e2fsck: Invalid argument while recovering journal of /image\n";
        assert_eq!(given_up(unexpected), Some(Told::NotReplayed));
        assert_eq!(given_up(NO_SUCH_NAME), Some(Told::NoSuchName));
        for other in [
            NO_SUCH_NAME.replace("handle_unlink", "handle_inode"),
            NO_SUCH_NAME.replace("No free space in the directory", "Input/output error"),
            NO_SUCH_NAME.replace("Bad address", "Input/output error"),
            NAMELESS.to_owned(),
        ] {
            assert_eq!(given_up(&other), None, "{other}");
        }
    }

    /// Each fault needs what leads to it, and nothing else will do.
    #[test]
    fn a_fault_is_one_only_where_something_was_done_that_leads_to_it() {
        let fast = Lately {
            has_fast_commits: true,
            ..Lately::default()
        };
        let may_lead = |lately: Lately, fault: Told| lately.may_lead_to(&[fault].into(), |_| None);
        for fault in [Told::LeftBehind, Told::Uncounted, Told::NotReplayed] {
            assert!(may_lead(fast, fault) && !may_lead(Lately::default(), fault));
        }
        let all = Lately {
            has_fast_commits: true,
            nameless: true,
            removed: 1,
            came_and_went: true,
            cut: true,
            made_directory: true,
        };
        let without = |change: fn(&mut Lately)| {
            let mut lately = all;
            change(&mut lately);
            lately
        };
        for (fault, without) in [
            (Told::NotMounted, without(|lately| lately.nameless = false)),
            (
                Told::NoSuchName,
                without(|lately| lately.came_and_went = false),
            ),
            (
                Told::Cleared,
                without(|lately| lately.made_directory = false),
            ),
            (Told::Nameless(20), without(|lately| lately.removed = 0)),
        ] {
            assert!(may_lead(all, fault), "{fault:?}");
            assert!(!may_lead(without, fault), "{fault:?}");
            assert!(
                !may_lead(
                    Lately {
                        has_fast_commits: false,
                        ..all
                    },
                    fault
                ),
                "{fault:?}"
            );
        }
        let two = BTreeSet::from([Told::Nameless(20), Told::Nameless(21)]);
        assert!(!all.may_lead_to(&two, |_| None), "only one was removed");
        // What has its name is in use in what we made of the log; what has lost its last extent is
        // too, and is empty.
        let nameless = BTreeSet::from([Told::Nameless(20)]);
        assert!(!all.may_lead_to(&nameless, |_| Some(8)));
        let unnamed = BTreeSet::from([Told::Unnamed(20)]);
        assert!(all.may_lead_to(&unnamed, |_| Some(0)));
        assert!(
            !all.may_lead_to(&unnamed, |_| None),
            "nobody gave it a name"
        );
        let without_open = without(|lately| lately.nameless = false);
        assert!(!without_open.may_lead_to(&unnamed, |_| Some(0)));
        let empty = BTreeSet::from([Told::EmptyExtent(20)]);
        let not_cut = without(|lately| lately.cut = false);
        for (sectors, expected) in [
            (None, false),
            (Some(0), true),
            (Some(8), true),
            (Some(10), false),
        ] {
            assert_eq!(
                all.may_lead_to(&empty, |_| sectors),
                expected,
                "{sectors:?}"
            );
            assert!(!not_cut.may_lead_to(&empty, |_| sectors));
        }
    }
}

//! **Purpose.** Checks of a crash state by other programs: e2fsck on what we recovered, and the
//! kernel's recovery of the same state compared with ours.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
#[cfg(test)]
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[cfg(test)]
use anyhow::Context;
use anyhow::{Result, bail, ensure};
use fourscore::{FileType, Fs, InodeNr, OpenOptions};
use fourscore_block::RamDevice;
use fourscore_ondisk::features::RoCompat;
#[cfg(test)]
use fourscore_ondisk::superblock::State;
use fourscore_sync::Arc;
use fourscore_testkit::crash::torn;
use fourscore_testkit::matrix::kernel_has_quota_format;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{e2fsck, e2fsck_preen, e2fsck_repair};
use fourscore_testkit::{scratch, tools};

use super::known_bugs::{self, KnownBug};

/// Inodes by path.
type Listing = BTreeMap<Vec<u8>, Listed>;

/// The attributes of an inode that the listings have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Listed {
    mode: u32,
    links: u64,
    uid: u32,
    gid: u32,
    /// The data of a file, or the target of a symbolic link.
    content: Vec<u8>,
}

/// Whether e2fsck is installed, and this user may mount.
pub(super) fn is_possible() -> bool {
    tools::find("e2fsck").is_some() && tools::is_root()
}

/// Everything below the root, in the form of the kernel's listing.
pub(super) fn ours(fs: &Fs) -> Result<Listing> {
    let mut listing = Listing::new();
    let mut pending = vec![(InodeNr::ROOT, Vec::new())];
    while let Some((dir, path)) = pending.pop() {
        for entry in fs.read_dir(dir)? {
            if matches!(&entry.name[..], b"." | b".." | b"lost+found") {
                continue;
            }
            let path = [&path[..], b"/", &entry.name].concat();
            let stat = fs.stat(entry.inode)?;
            let content = match stat.file_type {
                FileType::Regular => {
                    let mut bytes = vec![0; usize::try_from(stat.size_bytes)?];
                    let read = fs.read_at(entry.inode, &mut bytes, 0)?;
                    bytes.truncate(read);
                    bytes
                }
                FileType::Symlink => fs.read_link(entry.inode)?,
                FileType::Directory => {
                    pending.push((entry.inode, path.clone()));
                    Vec::new()
                }
                _ => Vec::new(),
            };
            let listed = Listed {
                mode: stat.mode.0.into(),
                links: stat.links.into(),
                uid: stat.uid,
                gid: stat.gid,
                content,
            };
            listing.insert(path, listed);
        }
    }
    Ok(listing)
}

fn theirs(root: &Path) -> Result<Listing> {
    let mut listing = Listing::new();
    let mut pending = vec![(root.to_owned(), Vec::new())];
    while let Some((dir, path)) = pending.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == "lost+found" {
                continue;
            }
            let path = [&path[..], b"/", name.as_bytes()].concat();
            let meta = fs::symlink_metadata(entry.path())?;
            let content = if meta.is_file() {
                fs::read(entry.path())?
            } else if meta.is_symlink() {
                fs::read_link(entry.path())?.as_os_str().as_bytes().to_vec()
            } else {
                if meta.is_dir() {
                    pending.push((entry.path(), path.clone()));
                }
                Vec::new()
            };
            let listed = Listed {
                mode: meta.mode(),
                links: meta.nlink(),
                uid: meta.uid(),
                gid: meta.gid(),
                content,
            };
            listing.insert(path, listed);
        }
    }
    Ok(listing)
}

fn compare(ours: &Listing, theirs: &Listing, whose: &str) -> Result<()> {
    for (path, listed) in ours {
        if theirs.get(path) != Some(listed) {
            bail!(
                "{} is different after recovery by {whose}",
                path.escape_ascii()
            );
        }
    }
    ensure!(ours.len() == theirs.len(), "{whose} recovers more names");
    Ok(())
}

/// Repairs a crash state with e2fsck, and returns the result.
///
/// # Errors
/// If e2fsck leaves errors.
pub(super) fn repair(crashed: &[u8]) -> Result<Vec<u8>> {
    let folder = scratch::folder()?;
    let image = folder.path().join("image");
    fs::write(&image, crashed)?;
    e2fsck_repair(&image, &[])?;
    Ok(fs::read(&image)?)
}

/// The result of the recovery of a crash state by another program.
#[derive(Debug)]
pub(super) enum Recovered {
    /// A file system in which e2fsck finds nothing.
    Whole(Vec<u8>),
    /// Bugs that docs/FINDINGS.md lists explain all of the output, which follows.
    KnownBugs(BTreeSet<KnownBug>, String),
    /// e2fsck finds other errors afterwards; with its output.
    Unsound(String),
}

impl Recovered {
    /// The result for an output that these bugs explain, if any.
    fn explained(faults: Option<BTreeSet<KnownBug>>, said: String) -> Self {
        match faults {
            Some(faults) => Self::KnownBugs(faults, said),
            None => Self::Unsound(said),
        }
    }
}

/// The message of mount(8) for a log that the kernel cannot replay. A missing loop device or too
/// little memory give other messages.
const NOT_MOUNTED: &str = "failed: Structure needs cleaning.";

/// Recovers a crash state with e2fsck as at a boot: it replays the journal and finishes pending
/// deletions and truncations. Where it leaves orphans behind a torn commit block, as
/// docs/FINDINGS.md says (23), it recovers the state without that block.
///
/// # Errors
/// Those of the host.
pub(super) fn recovered_by_e2fsck(crashed: &[u8]) -> Result<Recovered> {
    let folder = scratch::folder()?;
    let image = folder.path().join("image");
    fs::write(&image, crashed)?;
    let said = e2fsck_preen(&image)?.output;
    if let Some(tid) = torn::transaction_before_orphans(&said) {
        let mut without = crashed.to_vec();
        let removed = torn::remove_commit(&mut without, tid);
        ensure!(removed == 1, "{removed} commit blocks of one transaction");
        return recovered_by_e2fsck(&without);
    }
    if said.contains(" while recovering journal of ") {
        let fault = known_bugs::of_stopped_replay(&said).map(|fault| BTreeSet::from([fault]));
        return Ok(Recovered::explained(fault, said));
    }
    if known_bugs::is_endless(&said) {
        return Ok(Recovered::explained(
            known_bugs::of_e2fsck(&image, &said)?,
            said,
        ));
    }
    let result = e2fsck(&image)?;
    if result.is_clean() && !known_bugs::is_cleared(&said) {
        return Ok(Recovered::Whole(fs::read(&image)?));
    }
    let said = format!("{said}{}", result.output);
    Ok(Recovered::explained(
        known_bugs::of_e2fsck(&image, &said)?,
        said,
    ))
}

/// Recovers a crash state with the kernel.
///
/// # Errors
/// Those of the host; the error of the mount, unless the log is the reason.
pub(super) fn recovered_by_kernel(crashed: &[u8]) -> Result<Recovered> {
    let folder = scratch::folder()?;
    let image = folder.path().join("image");
    fs::write(&image, crashed)?;
    match KernelMount::new(&image, Access::ReadWrite, "noatime") {
        Ok(mounted) => mounted.unmount()?,
        Err(error) => match error.to_string() {
            said if said.contains(NOT_MOUNTED) => {
                return Ok(Recovered::KnownBugs([KnownBug::NotMounted].into(), said));
            }
            _ => return Err(error),
        },
    }
    let result = e2fsck(&image)?;
    if result.is_clean() {
        return Ok(Recovered::Whole(fs::read(&image)?));
    }
    let faults = known_bugs::of_kernel(&image, &result.output)?;
    Ok(Recovered::explained(faults, result.output))
}

/// Checks an image with `e2fsck -fn`.
///
/// # Errors
/// What e2fsck finds, and errors of the host.
pub(super) fn ensure_sound(bytes: &[u8]) -> Result<()> {
    let folder = scratch::folder()?;
    let image = folder.path().join("image");
    fs::write(&image, bytes)?;
    let result = e2fsck(&image)?;
    ensure!(result.is_clean(), "e2fsck -fn: {}", result.output);
    Ok(())
}

/// Checks a state with e2fsck and the kernel: `crashed` as the crash left it, and `recovered` by
/// us. `ours` is the tree that we found; if it is given, the kernel must find the same. Otherwise
/// returns the image that the kernel recovered.
///
/// # Errors
/// What e2fsck finds, or how the trees differ.
pub(super) fn compare_with_kernel(
    crashed: &[u8],
    recovered: &[u8],
    ours: Option<&Listing>,
) -> Result<Option<Vec<u8>>> {
    ensure_sound(recovered)?;
    let features = opened(recovered)?.superblock().features();
    if features.ro_compat.contains(RoCompat::QUOTA) && !kernel_has_quota_format() {
        // Such a kernel does not recover it. Then only e2fsck has a say.
        return Ok(None);
    }
    let folder = scratch::folder()?;
    let image = folder.path().join("image");
    fs::write(&image, crashed)?;
    let kernel = KernelMount::new(&image, Access::ReadWrite, "noatime")?;
    let theirs = theirs(kernel.path())?;
    kernel.unmount()?;
    if let Some(ours) = ours {
        compare(ours, &theirs, "the kernel")?;
    }
    let result = e2fsck(&image)?;
    ensure!(
        result.is_clean(),
        "e2fsck -fn after the kernel: {}",
        result.output
    );
    match ours {
        Some(_) => Ok(None),
        None => Ok(Some(fs::read(&image)?)),
    }
}

/// What has to hold after the mount that recovers a state has been filled.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// All that was written is there.
    Whole,
    /// The file system is sound. The kernel counts groups before it replays the log; if that adds
    /// groups, a write next to them fails until the next mount, as after a growth by the kernel
    /// itself.
    Sound,
}

/// Fills a crash state with files, in the mount of the kernel that recovers it. If the state is
/// marked as having errors, `e2fsck -fp` comes afterwards, as at a boot. `ours` is the tree that we
/// found, if it has to be the same.
///
/// # Errors
/// What fails or is different.
#[cfg(test)]
pub(super) fn fill_by_kernel(
    crashed: &[u8],
    ours: Option<&Listing>,
    expected: Filled,
) -> Result<()> {
    let is_marked = opened(crashed)?.superblock().state();
    let is_marked = is_marked.contains(State::ERROR_FS);
    let folder = scratch::folder()?;
    let image = folder.path().join("image");
    fs::write(&image, crashed)?;
    let kernel = KernelMount::new(&image, Access::ReadWrite, "noatime")?;
    if let Some(ours) = ours {
        compare(ours, &theirs(kernel.path())?, "the kernel")?;
    }
    fill(kernel.path(), expected).context("the mount that recovers it is filled")?;
    kernel.sync()?;
    let written = theirs(kernel.path())?;
    kernel.unmount()?;
    if is_marked || expected == Filled::Sound {
        let preened = e2fsck_preen(&image)?;
        ensure!(!preened.left_errors(), "e2fsck -fp: {}", preened.output);
    }
    let bytes = fs::read(&image)?;
    ensure_sound(&bytes).context("filled by the kernel")?;
    match expected {
        Filled::Whole => compare(&written, &self::ours(&*opened(&bytes)?)?, "us, filled,"),
        Filled::Sound => Ok(()),
    }
}

/// Writes files until the file system is full.
#[cfg(test)]
fn fill(root: &Path, expected: Filled) -> Result<()> {
    const FILE_BYTES: usize = 150_000;
    const EUCLEAN: i32 = 117;
    for nr in 0..1000_usize {
        let dir = root.join(format!("filled-{}", nr / 8));
        let made = match nr % 8 {
            0 => fs::create_dir(&dir),
            _ => Ok(()),
        };
        let content = vec![u8::try_from(nr % 255)?; FILE_BYTES];
        let made = made.and_then(|()| fs::write(dir.join(format!("file-{nr}")), content));
        match made {
            Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
            Err(error) if expected == Filled::Sound && error.raw_os_error() == Some(EUCLEAN) => {}
            made => made?,
        }
    }
    ensure!(expected == Filled::Sound, "it does not get full");
    Ok(())
}

/// What e2fsck makes of a crash state.
#[derive(Debug)]
pub(super) enum Opinion {
    /// The tree that we found.
    Same,
    /// An image with its tree, which was not compared.
    Other(Vec<u8>),
    /// It did not replay the log, because a usual commit follows fast ones there.
    KnownBug,
}

/// Compares what e2fsck recovers, by `-fp` and clean for `-fn`, with the tree that we found.
/// Without a tree to compare, its image is returned.
///
/// # Errors
/// What e2fsck finds, or how the trees differ.
pub(super) fn compare_with_e2fsck(crashed: &[u8], ours: Option<&Listing>) -> Result<Opinion> {
    match recovered_by_e2fsck(crashed)? {
        Recovered::Whole(theirs) => {
            let Some(ours) = ours else {
                return Ok(Opinion::Other(theirs));
            };
            let fs = opened(&theirs)?;
            compare(ours, &self::ours(&fs)?, "e2fsck")?;
            Ok(Opinion::Same)
        }
        Recovered::KnownBugs(faults, _)
            if faults == [KnownBug::NotReplayed].into() && has_fast_commits(crashed) =>
        {
            Ok(Opinion::KnownBug)
        }
        Recovered::KnownBugs(_, said) | Recovered::Unsound(said) => bail!("e2fsck -fp: {said}"),
    }
}

/// Whether an image has a block that begins with the HEAD record of a fast commit, which has no
/// features.
fn has_fast_commits(image: &[u8]) -> bool {
    const HEAD: [u8; 8] = [9, 0, 8, 0, 0, 0, 0, 0];
    image.chunks(1024).any(|block| block.starts_with(&HEAD))
}

/// Opens an image without recovery.
///
/// # Errors
/// If it is no file system that we read.
pub(super) fn opened(image: &[u8]) -> Result<Arc<Fs>> {
    let device = Arc::new(RamDevice::from_bytes(image));
    Ok(Fs::open(device, &OpenOptions::new().cache_bytes(1 << 20))?)
}

#[cfg(test)]
mod tests {
    use fourscore_ondisk::Tid;
    use fourscore_ondisk::fast_commit::FastCommitBlocks;
    use fourscore_testkit::image::{Image, MiB};
    use fourscore_testkit::require;
    use fourscore_testkit::tools::Need;

    use super::*;

    /// mount(8) refuses an image that is not ext4 with another message, which fails the run.
    #[test]
    fn only_a_corrupted_log_is_a_known_reason_not_to_mount() {
        require!(
            Need::Program("mke2fs"),
            Need::Program("e2fsck"),
            Need::KernelMount
        );
        let image = Image::builder(MiB(16)).make().unwrap();
        let sound = fs::read(image.path()).unwrap();
        ensure_sound(&sound).unwrap();
        for recovered in [recovered_by_kernel(&sound), recovered_by_e2fsck(&sound)] {
            assert!(matches!(recovered.unwrap(), Recovered::Whole(_)));
        }
        let blank = vec![0; 1 << 20];
        assert!(ensure_sound(&blank).is_err());
        assert!(recovered_by_kernel(&blank).is_err());
        assert!(recovered_by_e2fsck(&blank).is_err());
    }
    /// e2fsck must make the same tree; a log that it throws away is forgiven only where there are
    /// fast commits in it.
    #[test]
    fn a_tree_that_e2fsck_makes_is_compared() {
        require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
        let image = Image::builder(MiB(16)).make().unwrap();
        let sound = fs::read(image.path()).unwrap();
        let listing = ours(&opened(&sound).unwrap()).unwrap();
        let compared = |listing| compare_with_e2fsck(&sound, listing);
        assert!(matches!(compared(Some(&listing)).unwrap(), Opinion::Same));
        assert!(matches!(compared(None).unwrap(), Opinion::Other(_)));
        let listed = Listed {
            mode: 0o100_644,
            links: 1,
            uid: 0,
            gid: 0,
            content: Vec::new(),
        };
        let other = Listing::from([(b"/f".to_vec(), listed)]);
        assert!(compared(Some(&other)).is_err());
        assert!(compare_with_e2fsck(&vec![0; 1 << 20], None).is_err());
        assert!(!has_fast_commits(&sound));
        let log = [sound, FastCommitBlocks::head(1024, Tid(7))].concat();
        assert!(has_fast_commits(&log));
    }
}

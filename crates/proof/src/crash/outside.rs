//! **Purpose.** What other people's programs say of a crash state: e2fsck of what we recovered, and
//! the kernel's recovery of the same state beside ours.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use fourscore::{FileType, Fs, InodeNr};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{e2fsck, e2fsck_preen, e2fsck_repair};
use fourscore_testkit::{scratch, tools};

use super::told::{self, Told};

/// A name and what it leads to: mode, links, owner, and content or target.
type Listing = BTreeMap<Vec<u8>, (u32, u64, u32, u32, Vec<u8>)>;

/// Whether the programs are there, and this user may mount.
pub(super) fn is_possible() -> bool {
    tools::find("e2fsck").is_some() && tools::is_root()
}

/// Everything below the root, as the kernel is going to list it.
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
            let links = stat.links.into();
            let mode = stat.mode.0.into();
            listing.insert(path, (mode, links, stat.uid, stat.gid, content));
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
            let facts = (meta.mode(), meta.nlink(), meta.uid(), meta.gid(), content);
            listing.insert(path, facts);
        }
    }
    Ok(listing)
}

fn compare(ours: &Listing, theirs: &Listing) -> Result<()> {
    for (path, facts) in ours {
        if theirs.get(path) != Some(facts) {
            bail!("{} is otherwise for the kernel", path.escape_ascii());
        }
    }
    ensure!(ours.len() == theirs.len(), "the kernel finds more names");
    Ok(())
}

/// What e2fsck makes of a crash state.
///
/// # Errors
/// If it leaves errors.
pub(super) fn repair(crashed: &[u8]) -> Result<Vec<u8>> {
    let folder = scratch::folder()?;
    let image = folder.path().join("image");
    fs::write(&image, crashed)?;
    e2fsck_repair(&image, &[])?;
    Ok(fs::read(&image)?)
}

/// What another program makes of a crash state.
#[derive(Debug)]
pub(super) enum Recovered {
    /// A file system in which e2fsck finds nothing.
    Whole(Vec<u8>),
    /// What docs/FINDINGS.md may tell of, and all that is said.
    Told(BTreeSet<Told>, String),
    /// e2fsck finds something else afterwards, and what it says.
    Unsound(String),
}

impl Recovered {
    /// What explains all that is said, or nothing does.
    fn explained(faults: Option<BTreeSet<Told>>, said: String) -> Self {
        match faults {
            Some(faults) => Self::Told(faults, said),
            None => Self::Unsound(said),
        }
    }
}

/// What mount(8) says of a log that the kernel cannot replay; of a loop device that is missing, or
/// of too little memory, it says something else.
const NOT_MOUNTED: &str = "failed: Structure needs cleaning.";

/// Has e2fsck recover a crash state, as at a boot: the journal is replayed, and what was begun is
/// finished.
///
/// # Errors
/// Those of the host.
pub(super) fn recovered_by_e2fsck(crashed: &[u8]) -> Result<Recovered> {
    let folder = scratch::folder()?;
    let image = folder.path().join("image");
    fs::write(&image, crashed)?;
    let said = e2fsck_preen(&image)?.output;
    if said.contains(" while recovering journal of ") {
        let fault = told::given_up(&said).map(|fault| BTreeSet::from([fault]));
        return Ok(Recovered::explained(fault, said));
    }
    if told::is_endless(&said) {
        return Ok(Recovered::explained(told::of_e2fsck(&image, &said)?, said));
    }
    let result = e2fsck(&image)?;
    if result.is_clean() && !told::is_cleared(&said) {
        return Ok(Recovered::Whole(fs::read(&image)?));
    }
    let said = format!("{said}{}", result.output);
    Ok(Recovered::explained(told::of_e2fsck(&image, &said)?, said))
}

/// Has the kernel recover a crash state.
///
/// # Errors
/// Those of the host; what the mount fails with, if it is not the log.
pub(super) fn recovered_by_kernel(crashed: &[u8]) -> Result<Recovered> {
    let folder = scratch::folder()?;
    let image = folder.path().join("image");
    fs::write(&image, crashed)?;
    match KernelMount::new(&image, Access::ReadWrite, "noatime") {
        Ok(mounted) => mounted.unmount()?,
        Err(error) => match error.to_string() {
            said if said.contains(NOT_MOUNTED) => {
                return Ok(Recovered::Told([Told::NotMounted].into(), said));
            }
            _ => return Err(error),
        },
    }
    let result = e2fsck(&image)?;
    if result.is_clean() {
        return Ok(Recovered::Whole(fs::read(&image)?));
    }
    let faults = told::of_kernel(&image, &result.output)?;
    Ok(Recovered::explained(faults, result.output))
}

/// Fails with what e2fsck finds in an image.
///
/// # Errors
/// As said, and those of the host.
pub(super) fn ensure_sound(bytes: &[u8]) -> Result<()> {
    let folder = scratch::folder()?;
    let image = folder.path().join("image");
    fs::write(&image, bytes)?;
    let result = e2fsck(&image)?;
    ensure!(result.is_clean(), "e2fsck -fn: {}", result.output);
    Ok(())
}

/// Gives the state to e2fsck and to the kernel: `crashed` as the crash left it, `recovered` as we
/// did, and the tree that we found in it, if the kernel must find the same. Else gives what the
/// kernel made of it.
///
/// # Errors
/// What they complain of, or find otherwise.
pub(super) fn look(
    crashed: &[u8],
    recovered: &[u8],
    ours: Option<&Listing>,
) -> Result<Option<Vec<u8>>> {
    ensure_sound(recovered)?;
    let folder = scratch::folder()?;
    let image = folder.path().join("image");
    fs::write(&image, crashed)?;
    let kernel = KernelMount::new(&image, Access::ReadWrite, "noatime")?;
    let theirs = theirs(kernel.path())?;
    kernel.unmount()?;
    if let Some(ours) = ours {
        compare(ours, &theirs)?;
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

#[cfg(test)]
mod tests {
    use fourscore_testkit::image::{Image, MiB};
    use fourscore_testkit::require;
    use fourscore_testkit::tools::Need;

    use super::*;

    /// What is no ext4 at all is refused by mount(8) in other words, and is a failure of the run.
    #[test]
    fn only_a_log_that_is_unsound_is_refused() {
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
}

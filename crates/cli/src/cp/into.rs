//! **Purpose.** Copies objects of the host into an image.
//!
//! **Model.** One thread walks each source and creates its objects, a directory before its entries;
//! a directory gets its times after them. Hard links are kept. At the end the file system is
//! unmounted, so that everything is durable.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fourscore::{AttributeChange, Error, Follow, Fs, NewAttributes, SetXattr};
use fourscore_ondisk::inode::{DeviceNr, FileType};
use fourscore_ondisk::{InodeNr, Timestamp};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::facts::{Facts, Kind, Time};
use crate::failure::{Failure, Problems, Result};
use crate::image::{Image, ImageSpec};
use crate::tree::listing::Listing;
use crate::walk::host::{HostOpen, HostScratch, HostTree, Identity};
use crate::walk::line::Attributes;
use crate::walk::source::{Entry, Source};

/// Size of the copy buffer.
const COPY_BYTES: usize = 1 << 20;

/// Copies `sources` to the path `to` of an image.
pub(super) fn copy(spec: &ImageSpec, sources: &[&Path], to: &Path, archive: bool) -> Result<()> {
    let image = Image::open_to_write(spec)?;
    let copied = copy_all(&image, sources, to.as_os_str().as_bytes(), archive);
    let name = spec.path.display().to_string();
    let unmounted = image.fs.unmount().map_err(|why| Failure::new(name, why));
    copied.and(unmounted)
}

fn copy_all(image: &Image, sources: &[&Path], to: &[u8], archive: bool) -> Result<()> {
    let failed = |why: Error| image.failure(to, why);
    let into_dir = match image.fs.resolve(to, Follow::Yes) {
        Ok(inode) if image.fs.stat(inode).map_err(failed)?.file_type == FileType::Directory => {
            Some(inode)
        }
        Ok(_) | Err(Error::NotFound) => None,
        Err(why) => return Err(failed(why)),
    };
    if into_dir.is_none() && sources.len() > 1 {
        return Err(super::not_a_directory(Path::new(
            std::ffi::OsStr::from_bytes(to),
        )));
    }
    let mut copier = Copier {
        fs: &image.fs,
        archive,
        links: HashMap::new(),
        problems: Problems::default(),
        scratch: HostScratch::default(),
        attributes: Attributes::default(),
        content: vec![0; COPY_BYTES],
    };
    for source in sources {
        let (dir, name) = match into_dir {
            Some(dir) => (dir, name_of(source)?),
            None => {
                let (parent, name) = split(to);
                let dir = image.fs.resolve(parent, Follow::Yes).map_err(failed)?;
                (dir, name.to_vec())
            }
        };
        let (tree, named) = match (archive, source.file_name()) {
            // A symbolic link is copied as such.
            (true, Some(name)) => {
                let parent = source
                    .parent()
                    .filter(|parent| !parent.as_os_str().is_empty());
                (
                    HostTree::open(parent.unwrap_or(Path::new(".")))?,
                    Some(name),
                )
            }
            _ => (HostTree::open(source)?, None),
        };
        let object = HostObject {
            tree: &tree,
            open: &tree.root()?,
            entry: named.map_or(Entry::Itself, |name| Entry::Named(name.as_bytes(), 0)),
        };
        copier.object(object, source, NewName { dir, name: &name });
    }
    copier.problems.result()
}

/// The name of a source in the directory it is copied into.
fn name_of(source: &Path) -> Result<Vec<u8>> {
    if let Some(name) = source.file_name() {
        return Ok(name.as_bytes().to_vec());
    }
    // It ends with `.` or `..`.
    let failed = |why: &dyn std::fmt::Display| Failure::new(source.display().to_string(), why);
    let canonical = std::fs::canonicalize(source).map_err(|why| failed(&why))?;
    let name = canonical
        .file_name()
        .ok_or_else(|| failed(&"has no name for the copy"))?;
    Ok(name.as_bytes().to_vec())
}

/// The directory and the name of a path.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

struct Copier<'a> {
    fs: &'a Fs,
    archive: bool,
    /// Inodes of files with several names.
    links: HashMap<Identity, InodeNr>,
    problems: Problems,
    scratch: HostScratch,
    attributes: Attributes,
    content: Vec<u8>,
}

/// An object of the host.
#[derive(Clone, Copy)]
struct HostObject<'h> {
    tree: &'h HostTree,
    /// The directory that `entry` is in.
    open: &'h HostOpen,
    entry: Entry<'h>,
}

impl HostObject<'_> {
    fn file(&self) -> Result<File> {
        self.tree.file(self.open, self.entry)
    }
}

/// The name of a new object in the image.
#[derive(Clone, Copy)]
struct NewName<'n> {
    dir: InodeNr,
    name: &'n [u8],
}

impl Copier<'_> {
    /// Copies an object and, if it is a directory, everything below it. Reports problems.
    fn object(&mut self, from: HostObject<'_>, path: &Path, to: NewName<'_>) {
        if let Err(failure) = self.try_object(from, path, to) {
            self.problems
                .report_at(path.as_os_str().as_bytes(), &failure);
        }
    }

    fn try_object(&mut self, from: HostObject<'_>, path: &Path, to: NewName<'_>) -> Result<()> {
        let HostObject { tree, open, entry } = from;
        let facts = tree.facts(open, entry, &mut self.scratch)?;
        if !self.archive {
            if facts.kind != Kind::File {
                let why = format_args!("is a {}", facts.kind.name());
                return Err(Failure::new("", why).advise("use -a to copy it"));
            }
            let inode = self.open_empty_file(&facts, to).map_err(why)?;
            return self.fill(&from.file()?, &facts, inode);
        }
        let identity = (facts.links > 1 && facts.kind != Kind::Directory)
            .then(|| tree.identity(open, entry))
            .transpose()?;
        if let Some(identity) = identity
            && let Some(&inode) = self.links.get(&identity)
        {
            return self.fs.link(inode, to.dir, to.name).map_err(why);
        }
        let inode = self.create(from, &facts, to)?;
        if let Some(identity) = identity {
            self.links.insert(identity, inode);
        }
        self.clear_inherited(inode, &facts).map_err(why)?;
        match facts.kind {
            Kind::File => self.fill(&from.file()?, &facts, inode)?,
            Kind::Directory => self.children(from, path, inode)?,
            _ => {}
        }
        // After the children, which would inherit ACLs, and after the data.
        self.attributes.clear();
        tree.attributes(open, entry, &mut self.scratch, &mut self.attributes)?;
        for (name, value) in self.attributes.iter() {
            let set = self.fs.set_xattr(inode, name, value, SetXattr::Any);
            set.map_err(why)?;
        }
        let times = AttributeChange {
            atime: timestamp(facts.atime),
            mtime: timestamp(facts.mtime),
            ..AttributeChange::default()
        };
        self.fs.set_attributes(inode, &times).map_err(why)
    }

    /// Replaces the group, the ACLs and the mode that an object has inherited from its directory,
    /// or had before.
    fn clear_inherited(&self, inode: InodeNr, facts: &Facts) -> fourscore::Result<()> {
        let mut change = AttributeChange {
            uid: Some(facts.uid),
            gid: Some(facts.gid),
            ..AttributeChange::default()
        };
        if facts.kind != Kind::Symlink {
            self.fs.remove_xattr(inode, b"system.posix_acl_access")?;
            if facts.kind == Kind::Directory {
                self.fs.remove_xattr(inode, b"system.posix_acl_default")?;
            }
            change.permissions = Some(mode_bits(facts.permissions));
        }
        self.fs.set_attributes(inode, &change)
    }

    /// Truncates the existing file, or creates a new one.
    fn open_empty_file(&self, facts: &Facts, to: NewName<'_>) -> fourscore::Result<InodeNr> {
        match self.fs.lookup(to.dir, to.name) {
            Ok(inode) => self.fs.truncate(inode, 0).map(|()| inode),
            Err(Error::NotFound) => {
                let new = NewAttributes::owned_by(
                    rustix::process::geteuid().as_raw(),
                    rustix::process::getegid().as_raw(),
                )
                .permissions(mode_bits(facts.permissions & 0o777))
                .umask(0o022);
                self.fs.create(to.dir, to.name, &new)
            }
            Err(error) => Err(error),
        }
    }

    fn create(&self, from: HostObject<'_>, facts: &Facts, to: NewName<'_>) -> Result<InodeNr> {
        let NewName { dir, name } = to;
        let new =
            NewAttributes::owned_by(facts.uid, facts.gid).permissions(mode_bits(facts.permissions));
        let node = |file_type| {
            let (major, minor) = (facts.rdev_major, facts.rdev_minor);
            self.fs
                .mknod(dir, name, file_type, DeviceNr { major, minor }, &new)
        };
        let created = match facts.kind {
            Kind::File => self.fs.create(dir, name, &new),
            Kind::Directory => match self.fs.mkdir(dir, name, &new) {
                // An existing directory is merged.
                Err(Error::Exists) => self.fs.lookup(dir, name),
                created => created,
            },
            Kind::Symlink => {
                let mut target = Vec::new();
                from.tree
                    .target(from.open, from.entry, facts, &mut target)?;
                self.fs.symlink(dir, name, &target, &new)
            }
            Kind::CharDevice => node(FileType::CharDevice),
            Kind::BlockDevice => node(FileType::BlockDevice),
            Kind::Fifo => node(FileType::Fifo),
            Kind::Socket => node(FileType::Socket),
            Kind::Unknown => return Err(Failure::new("", "has an unknown file type")),
        };
        created.map_err(why)
    }

    /// Copies the entries of a directory into the directory `inode` of the image.
    fn children(&mut self, from: HostObject<'_>, path: &Path, inode: InodeNr) -> Result<()> {
        let HostObject { tree, open, entry } = from;
        let below = match entry {
            Entry::Itself => tree.root_directory(),
            Entry::Named(name, number) => tree.child(open, name, number)?,
        };
        let below = tree.open(&below)?;
        let mut listing = Listing::default();
        tree.list(&below, &mut listing, &mut self.scratch)?;
        for nr in 0..listing.len() {
            let name = listing.name(nr);
            let child = HostObject {
                tree,
                open: &below,
                entry: Entry::Named(name, listing.inode(nr)),
            };
            let path = path.join(std::ffi::OsStr::from_bytes(name));
            self.object(child, &path, NewName { dir: inode, name });
        }
        Ok(())
    }

    /// Copies the data of `file`; its holes stay holes.
    fn fill(&mut self, file: &File, facts: &Facts, inode: InodeNr) -> Result<()> {
        let failed = |error: std::io::Error| Failure::new("", error);
        let mut end = 0;
        while end < facts.size_bytes {
            let mut at = match rustix::fs::seek(file, SeekFrom::Data(end)) {
                Err(Errno::NXIO) => break,
                found => found.map_err(|errno| failed(errno.into()))?,
            };
            end =
                rustix::fs::seek(file, SeekFrom::Hole(at)).map_err(|errno| failed(errno.into()))?;
            while at < end {
                let wanted =
                    usize::try_from(end - at).map_or(COPY_BYTES, |len| len.min(COPY_BYTES));
                let count = file
                    .read_at(&mut self.content[..wanted], at)
                    .map_err(failed)?;
                if count == 0 {
                    return Err(Failure::new("", "the file was truncated while it was read"));
                }
                self.fs
                    .write_at(inode, &self.content[..count], at)
                    .map_err(why)?;
                at += count as u64;
            }
        }
        self.fs
            .truncate(inode, facts.size_bytes.max(end))
            .map_err(why)
    }
}

fn why(error: Error) -> Failure {
    Failure::new("", error)
}

fn timestamp(time: Time) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanoseconds)
}

/// Permissions, which have twelve bits.
fn mode_bits(permissions: u32) -> u16 {
    u16::try_from(permissions & 0o7777).unwrap_or(0)
}

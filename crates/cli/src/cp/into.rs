//! **Purpose.** Objects of the host, made in an image.
//!
//! **Model.** One thread goes down each source and makes what it meets, directories before what is
//! in them; they get their times when that is done. Files with several names are linked. At the
//! end the file system is unmounted, so that everything is durable.

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

/// How much content is copied at a time.
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
                (
                    image.fs.resolve(parent, Follow::Yes).map_err(failed)?,
                    name.to_vec(),
                )
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
        let open = tree.root()?;
        let entry = named.map_or(Entry::Itself, |name| Entry::Named(name.as_bytes(), 0));
        copier.object(&tree, (&open, entry), source, (dir, &name));
    }
    copier.problems.result()
}

/// The name that a source has in the directory it goes into.
fn name_of(source: &Path) -> Result<Vec<u8>> {
    if let Some(name) = source.file_name() {
        return Ok(name.as_bytes().to_vec());
    }
    // It ends with dots.
    let told = |why: &dyn std::fmt::Display| Failure::new(source.display().to_string(), why);
    let whole = std::fs::canonicalize(source).map_err(|why| told(&why))?;
    let name = whole.file_name().ok_or_else(|| told(&"has no name"))?;
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

/// Where an object is to be made.
type Place<'p> = (InodeNr, &'p [u8]);

impl Copier<'_> {
    /// Copies an object and, if it is a directory, all that is in it. Problems are told.
    fn object(
        &mut self,
        tree: &HostTree,
        at: (&HostOpen, Entry<'_>),
        path: &Path,
        place: Place<'_>,
    ) {
        if let Err(failure) = self.try_object(tree, at, path, place) {
            self.problems.tell_at(path.as_os_str().as_bytes(), &failure);
        }
    }

    fn try_object(
        &mut self,
        tree: &HostTree,
        (open, entry): (&HostOpen, Entry<'_>),
        path: &Path,
        (dir, name): Place<'_>,
    ) -> Result<()> {
        let facts = tree.facts(open, entry, &mut self.scratch)?;
        if !self.archive {
            if facts.kind != Kind::File {
                let why = format_args!("is a {}", facts.kind.name());
                return Err(Failure::new("", why).advise("-a copies everything"));
            }
            let inode = self.file_to_fill(&facts, (dir, name)).map_err(why)?;
            return self.fill(&tree.file(open, entry)?, &facts, inode);
        }
        let identity = (facts.links > 1 && facts.kind != Kind::Directory)
            .then(|| tree.identity(open, entry))
            .transpose()?;
        if let Some(identity) = identity
            && let Some(&inode) = self.links.get(&identity)
        {
            return self.fs.link(inode, dir, name).map_err(why);
        }
        let inode = self.make(tree, (open, entry), &facts, (dir, name))?;
        if let Some(identity) = identity {
            self.links.insert(identity, inode);
        }
        self.disinherit(inode, &facts).map_err(why)?;
        match facts.kind {
            Kind::File => self.fill(&tree.file(open, entry)?, &facts, inode)?,
            Kind::Directory => self.children(tree, (open, entry), path, inode)?,
            _ => {}
        }
        // Behind the children, which would inherit lists, and behind the content.
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

    /// Takes from an object what its directory gave it, or what it had: group, lists, modes.
    fn disinherit(&self, inode: InodeNr, facts: &Facts) -> fourscore::Result<()> {
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
            change.permissions = Some(low16(facts.permissions));
        }
        self.fs.set_attributes(inode, &change)
    }

    /// The regular file at a place, empty; it is made if it is not there.
    fn file_to_fill(&self, facts: &Facts, (dir, name): Place<'_>) -> fourscore::Result<InodeNr> {
        match self.fs.lookup(dir, name) {
            Ok(inode) => self.fs.truncate(inode, 0).map(|()| inode),
            Err(Error::NotFound) => {
                let new = NewAttributes {
                    permissions: low16(facts.permissions & 0o777),
                    umask: 0o022,
                    uid: rustix::process::geteuid().as_raw(),
                    gid: rustix::process::getegid().as_raw(),
                };
                self.fs.create(dir, name, &new)
            }
            Err(error) => Err(error),
        }
    }

    fn make(
        &self,
        tree: &HostTree,
        (open, entry): (&HostOpen, Entry<'_>),
        facts: &Facts,
        (dir, name): Place<'_>,
    ) -> Result<InodeNr> {
        let new = NewAttributes {
            permissions: low16(facts.permissions),
            umask: 0,
            uid: facts.uid,
            gid: facts.gid,
        };
        let node = |file_type| {
            let (major, minor) = (facts.rdev_major, facts.rdev_minor);
            self.fs
                .mknod(dir, name, file_type, DeviceNr { major, minor }, &new)
        };
        let made = match facts.kind {
            Kind::File => self.fs.create(dir, name, &new),
            Kind::Directory => match self.fs.mkdir(dir, name, &new) {
                // What is there is filled.
                Err(Error::Exists) => self.fs.lookup(dir, name),
                made => made,
            },
            Kind::Symlink => {
                let mut target = Vec::new();
                tree.target(open, entry, facts, &mut target)?;
                self.fs.symlink(dir, name, &target, &new)
            }
            Kind::CharDevice => node(FileType::CharDevice),
            Kind::BlockDevice => node(FileType::BlockDevice),
            Kind::Fifo => node(FileType::Fifo),
            Kind::Socket => node(FileType::Socket),
            Kind::Unknown => return Err(Failure::new("", "of no known type")),
        };
        made.map_err(why)
    }

    fn children(
        &mut self,
        tree: &HostTree,
        (open, entry): (&HostOpen, Entry<'_>),
        path: &Path,
        inode: InodeNr,
    ) -> Result<()> {
        let below = match entry {
            Entry::Itself => tree.root_directory(),
            Entry::Named(name, number) => tree.child(open, name, number)?,
        };
        let below = tree.open(&below)?;
        let mut listing = Listing::default();
        tree.list(&below, &mut listing, &mut self.scratch)?;
        for nr in 0..listing.len() {
            let name = listing.name(nr);
            let at = (&below, Entry::Named(name, listing.inode(nr)));
            let path = path.join(std::ffi::OsStr::from_bytes(name));
            self.object(tree, at, &path, (inode, name));
        }
        Ok(())
    }

    /// Writes the content of `file`; its holes stay holes.
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
                    return Err(Failure::new(
                        "",
                        "the file became shorter while it was read",
                    ));
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
fn low16(permissions: u32) -> u16 {
    u16::try_from(permissions & 0o7777).unwrap_or(0)
}

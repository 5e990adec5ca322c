//! **Purpose.** Copies an object, and everything below it, to a path inside an image.
//!
//! **Model.** What happens to something that exists at the path is as in GNU cp:
//!
//! | source | at the path | result |
//! |---|---|---|
//! | file | file, or a symbolic link to one | its data is replaced; with `-a` its attributes too |
//! | file | a symbolic link to nothing | error |
//! | file, with `-a` | a file with several names | the name is replaced, the others stay |
//! | file, with `-a` | a copy that gets more names | as above: they are those of its source |
//! | no directory, named itself | the copy of another source | error |
//! | link, device, .. | no directory | replaced |
//! | directory | directory | merged |
//! | directory | anything else, also a link to a directory | error |
//! | anything else | directory | error |
//!
//! Symbolic links are followed inside the image only. Errors about the source carry its path, and
//! those about the target its path in the image. A directory gets its attributes after its entries.
//!
//! The directories on the way to the current object are on a stack of their own, with one buffer
//! for each of the two paths: a tree of any depth takes memory in proportion to it. Of a tree of
//! the host each of them is open.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fourscore::{AttributeChange, Error, FileType, Follow, Fs, NewAttributes, SetXattr};
use fourscore_ondisk::inode::DeviceNr;
use fourscore_ondisk::{InodeNr, Timestamp};

use super::original::{Identity, Original};
use crate::facts::{Facts, Kind, Time};
use crate::failure::{Failure, Problems, Result};
use crate::image::Image;
use crate::tree::listing::Listing;
use crate::walk::line::Attributes;
use crate::walk::source::Entry;

/// The permissions that new objects do not get, unless all attributes are copied.
const UMASK: u16 = 0o022;
/// What a new directory inherits.
const SET_GROUP_ID: u16 = 0o2000;

/// How objects are copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub(super) recursive: bool,
    /// With all attributes and hard links.
    pub(super) archive: bool,
    /// What exists stays.
    pub(super) no_clobber: bool,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
}

/// Copies objects into an image.
pub(super) struct Copier<'i> {
    image: &'i Image,
    manner: Manner,
    /// The number of the image among those that are open.
    number: usize,
    /// Copies of files with several names.
    links: HashMap<Identity, InodeNr>,
    /// The inodes of these copies. Nothing else is written into them.
    linked: HashSet<InodeNr>,
    /// Names that were given to sources that are no directories: directory and name.
    named: HashSet<(InodeNr, Vec<u8>)>,
    /// Directories that were made, which must not be copied into themselves.
    made: HashSet<InodeNr>,
    pub(super) problems: Problems,
    attributes: Attributes,
    buffer: Vec<u8>,
}

/// An object of a source.
pub(super) struct From<'s, S: Original> {
    pub(super) tree: &'s S,
    /// The directory that `entry` is in.
    pub(super) open: &'s S::Open,
    pub(super) entry: Entry<'s>,
    /// For messages.
    pub(super) path: &'s Path,
}

/// A place in the image.
pub(super) struct To {
    /// The directory.
    pub(super) dir: InodeNr,
    pub(super) path: Vec<u8>,
    /// Whether there was a slash behind a path at which nothing is.
    pub(super) has_slash: bool,
}

impl To {
    fn name(&self) -> &[u8] {
        let slash = self.path.iter().rposition(|&byte| byte == b'/');
        &self.path[slash.map_or(0, |slash| slash + 1)..]
    }
}

/// An object of the image that has all but the attributes of its source.
struct Begun {
    facts: Facts,
    inode: InodeNr,
    is_new: bool,
}

/// A directory whose entries are copied.
struct Level<S: Original> {
    begun: Begun,
    open: S::Open,
    listing: Listing,
    /// How many of the entries were begun.
    entries: usize,
    /// The lengths of its paths in the source and in the image.
    from_bytes: usize,
    to_bytes: usize,
}

impl<S: Original> Level<S> {
    /// The entry that was begun last.
    fn entry(&self) -> Entry<'_> {
        let nr = self.entries.saturating_sub(1);
        Entry::Named(self.listing.name(nr), self.listing.inode(nr))
    }
}

/// What exists at a place.
#[derive(Clone, Copy)]
struct Existing {
    inode: InodeNr,
    file_type: FileType,
    links: u16,
}

impl<'i> Copier<'i> {
    pub(super) fn new(image: &'i Image, number: usize, manner: Manner) -> Self {
        Self {
            image,
            manner,
            number,
            links: HashMap::new(),
            linked: HashSet::new(),
            named: HashSet::new(),
            made: HashSet::new(),
            problems: Problems::default(),
            attributes: Attributes::default(),
            buffer: Vec::new(),
        }
    }

    fn fs(&self) -> &'i Fs {
        &self.image.fs
    }

    /// Copies an object and, if it is a directory, everything below it. Reports problems.
    pub(super) fn object<S: Original>(&mut self, from: &From<'_, S>, to: &To) {
        let mut path = from.path.as_os_str().as_bytes().to_vec();
        let mut place = To {
            dir: to.dir,
            path: to.path.clone(),
            has_slash: false,
        };
        let mut levels: Vec<Level<S>> = Vec::new();
        let begun = self
            .check_name(from, to)
            .and_then(|()| self.begin(from, to));
        if matches!(begun, Ok(None)) {
            self.named.insert((to.dir, to.name().to_vec()));
        }
        levels.extend(self.reported(from.path, begun).flatten());
        while let Some(level) = levels.last_mut() {
            path.truncate(level.from_bytes);
            place.path.truncate(level.to_bytes);
            if level.entries < level.listing.len() {
                level.entries += 1;
                let level = &*level;
                let Entry::Named(name, _) = level.entry() else {
                    continue;
                };
                if !path.is_empty() && !path.ends_with(b"/") {
                    path.push(b'/');
                }
                path.extend_from_slice(name);
                if !place.path.ends_with(b"/") {
                    place.path.push(b'/');
                }
                place.path.extend_from_slice(name);
                place.dir = level.begun.inode;
                let child = From {
                    tree: from.tree,
                    open: &level.open,
                    entry: level.entry(),
                    path: Path::new(OsStr::from_bytes(&path)),
                };
                let begun = self.begin(&child, &place);
                let below = self.reported(child.path, begun).flatten();
                levels.extend(below);
            } else if let Some(done) = levels.pop() {
                let parent = levels.last();
                place.dir = parent.map_or(to.dir, |parent| parent.begun.inode);
                let itself = From {
                    tree: from.tree,
                    open: parent.map_or(from.open, |parent| &parent.open),
                    entry: parent.map_or(from.entry, Level::entry),
                    path: Path::new(OsStr::from_bytes(&path)),
                };
                let finished = self.finish(&itself, &done.begun, &place);
                self.reported(itself.path, finished);
            }
        }
    }

    /// The value of a success; reports a failure, which is about the source at `path` unless it
    /// says what it is about.
    fn reported<T>(&self, path: &Path, done: Result<T>) -> Option<T> {
        done.map_err(|failure| {
            let is_about_source =
                matches!(&failure, Failure::Error { what, .. } if what.is_empty());
            match is_about_source {
                true => self
                    .problems
                    .report(&failure.named(path.as_os_str().as_bytes())),
                false => self.problems.report(&failure),
            }
        })
        .ok()
    }

    /// Refuses to write over the copy of another source, which would be lost, and to make a file at
    /// a path with a slash at its end. `from` is a source that was named itself.
    fn check_name<S: Original>(&self, from: &From<'_, S>, to: &To) -> Result<()> {
        let mut scratch = S::Scratch::default();
        let facts = from.tree.facts(from.open, from.entry, &mut scratch)?;
        if facts.kind == Kind::Directory || !self.manner.recursive && facts.kind != Kind::File {
            return Ok(());
        }
        if to.has_slash {
            return Err(self.at(to, Error::NotADirectory));
        }
        let is_copy = self.named.contains(&(to.dir, to.name().to_vec()));
        match is_copy && !self.manner.no_clobber && self.fs().lookup(to.dir, to.name()).is_ok() {
            true => {
                let source = crate::text::printable(from.path.as_os_str().as_bytes());
                let why = format_args!("was just made, and is not written over with {source}");
                Err(self.at(to, why))
            }
            false => Ok(()),
        }
    }

    /// Copies an object; of a directory only itself, whose entries are to be copied then.
    fn begin<S: Original>(&mut self, from: &From<'_, S>, to: &To) -> Result<Option<Level<S>>> {
        let mut scratch = S::Scratch::default();
        let mut facts = from.tree.facts(from.open, from.entry, &mut scratch)?;
        if self.manner.archive {
            // From the beginning: another owner later would take set-ID bits and capabilities away.
            facts.uid = self.manner.uid.unwrap_or(facts.uid);
            facts.gid = self.manner.gid.unwrap_or(facts.gid);
        }
        tracing::info!(
            from = crate::text::printable(from.path.as_os_str().as_bytes()),
            to = crate::text::printable(&to.path),
            "copy"
        );
        if facts.kind == Kind::Directory && !self.manner.recursive {
            return Err(Failure::new("", "is a directory").advise("use -r or -a to copy it"));
        }
        if facts.kind != Kind::File && !self.manner.recursive {
            let why = format!("is a {}", facts.kind.name());
            return Err(Failure::new("", why).advise("use -a to copy it"));
        }
        let found = self.existing(facts.kind, to)?;
        if found.is_some() && self.manner.no_clobber && facts.kind != Kind::Directory {
            return Ok(None);
        }
        let identity = from.tree.identity(from.open, from.entry)?;
        if let Some(found) = &found {
            self.check_types(facts.kind, found, to)?;
            if identity == Identity::Image(self.number, found.inode)
                && facts.kind != Kind::Directory
            {
                return Err(self.at(to, "is the source itself"));
            }
        }
        if let Identity::Image(number, inode) = identity
            && number == self.number
            && self.made.contains(&inode)
        {
            return Err(Failure::new("", "is not copied into itself"));
        }
        let has_links = self.manner.archive && facts.links > 1 && facts.kind != Kind::Directory;
        let copy = self.links.get(&identity).filter(|_| has_links).copied();
        if let (Some(copy), Some(found)) = (copy, &found)
            && found.inode == copy
        {
            return Ok(None);
        }
        let found = self.make_way(facts.kind, found, to)?;
        if let Some(copy) = copy {
            self.link(copy, found, to)?;
            return Ok(None);
        }
        let is_new = found.is_none();
        let inode = match found {
            Some(found) => found.inode,
            None => self.create(from, &facts, to)?,
        };
        if has_links {
            self.links.insert(identity, inode);
            self.linked.insert(inode);
        }
        let begun = Begun {
            facts,
            inode,
            is_new,
        };
        match begun.facts.kind {
            Kind::File => self.fill(from, &begun.facts, inode, to)?,
            Kind::Directory => return self.level(from, begun, to).map(Some),
            _ => {}
        }
        self.finish(from, &begun, to).map(|()| None)
    }

    /// Gives a copy its attributes.
    fn finish<S: Original>(&mut self, from: &From<'_, S>, begun: &Begun, to: &To) -> Result<()> {
        let (facts, inode) = (&begun.facts, begun.inode);
        match self.manner.archive {
            true => return self.keep_attributes(from, facts, inode, to),
            // A new directory could be filled whatever its mode is.
            false if begun.is_new && facts.kind == Kind::Directory => {
                let made = self.fs().stat(inode).map_err(|why| self.at(to, why))?;
                let inherited = made.mode.permissions() & SET_GROUP_ID;
                let permissions = Some(plain_bits(facts) & !UMASK | inherited);
                let change = AttributeChange {
                    permissions,
                    ..AttributeChange::default()
                };
                self.set(inode, &change, to)?;
            }
            false => {}
        }
        self.set_owner(inode, to)
    }

    /// What exists at `to`. A file is written through a symbolic link.
    fn existing(&self, kind: Kind, to: &To) -> Result<Option<Existing>> {
        let inode = match to.name() {
            // The target directory itself.
            b"" | b"." | b".." => self.fs().resolve(&to.path, Follow::Yes),
            name => self.fs().lookup(to.dir, name),
        };
        let mut inode = match inode {
            Err(Error::NotFound) => return Ok(None),
            found => found.map_err(|why| self.at(to, why))?,
        };
        let stat = |inode| self.fs().stat(inode).map_err(|why| self.at(to, why));
        let mut found = stat(inode)?;
        if found.file_type == FileType::Symlink && kind == Kind::File {
            inode = self
                .fs()
                .resolve(&to.path, Follow::Yes)
                .map_err(|why| match why {
                    Error::NotFound => {
                        let failure = self.at(to, "is a symbolic link to nothing");
                        failure.advise("remove the link first; nothing is written through it")
                    }
                    why => self.at(to, why),
                })?;
            found = stat(inode)?;
        }
        Ok(Some(Existing {
            inode,
            file_type: found.file_type,
            links: found.links,
        }))
    }

    fn check_types(&self, kind: Kind, found: &Existing, to: &To) -> Result<()> {
        let is_directory = found.file_type == FileType::Directory;
        match (kind == Kind::Directory, is_directory) {
            (true, false) => Err(self.at(to, "exists and is no directory, which the source is")),
            (false, true) => Err(self.at(to, "is a directory, which the source is not")),
            _ => Ok(()),
        }
    }

    /// Removes what is replaced and not written into; returns what is left.
    fn make_way(&self, kind: Kind, found: Option<Existing>, to: &To) -> Result<Option<Existing>> {
        let Some(found) = found else { return Ok(None) };
        let is_written_into = match kind {
            Kind::Directory => true,
            Kind::File => {
                let has_names = found.links > 1 || self.linked.contains(&found.inode);
                found.file_type == FileType::Regular && !(self.manner.archive && has_names)
            }
            _ => false,
        };
        if is_written_into || found.file_type == FileType::Directory {
            return Ok(Some(found));
        }
        let removed = self.fs().unlink(to.dir, to.name());
        removed.map_err(|why| self.at(to, why))?;
        Ok(None)
    }

    fn link(&self, copy: InodeNr, found: Option<Existing>, to: &To) -> Result<()> {
        if found.is_some() {
            let removed = self.fs().unlink(to.dir, to.name());
            removed.map_err(|why| self.at(to, why))?;
        }
        let linked = self.fs().link(copy, to.dir, to.name());
        linked.map_err(|why| self.at(to, why))
    }

    fn create<S: Original>(
        &mut self,
        from: &From<'_, S>,
        facts: &Facts,
        to: &To,
    ) -> Result<InodeNr> {
        let (dir, name) = (to.dir, to.name());
        let new = match self.manner.archive {
            true => NewAttributes::owned_by(facts.uid, facts.gid).permissions(bits(facts)),
            false => NewAttributes::owned_by(
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            )
            .permissions(plain_bits(facts))
            .umask(UMASK),
        };
        let node = |file_type| {
            let (major, minor) = (facts.rdev_major, facts.rdev_minor);
            let device = DeviceNr { major, minor };
            self.fs().mknod(dir, name, file_type, device, &new)
        };
        let created = match facts.kind {
            Kind::File => self.fs().create(dir, name, &new),
            Kind::Directory => self.fs().mkdir(dir, name, &new),
            Kind::Symlink => {
                let mut target = Vec::new();
                let read = from.tree.target(from.open, from.entry, facts, &mut target);
                read?;
                self.fs().symlink(dir, name, &target, &new)
            }
            Kind::CharDevice => node(FileType::CharDevice),
            Kind::BlockDevice => node(FileType::BlockDevice),
            Kind::Fifo => node(FileType::Fifo),
            Kind::Socket => node(FileType::Socket),
            Kind::Unknown => return Err(Failure::new("", "has an unknown file type")),
        };
        let inode = created.map_err(|why| self.at(to, why))?;
        if facts.kind == Kind::Directory {
            self.made.insert(inode);
        }
        Ok(inode)
    }

    /// Replaces the data of a file; holes stay holes.
    fn fill<S: Original>(
        &mut self,
        from: &From<'_, S>,
        facts: &Facts,
        inode: InodeNr,
        to: &To,
    ) -> Result<()> {
        let (fs, image) = (self.fs(), self.image);
        let failed = |why: Error| image.failure(&to.path, why);
        fs.truncate(inode, 0).map_err(failed)?;
        let mut end = 0;
        let mut sink = |at: u64, bytes: &[u8]| {
            fs.write_all_at(inode, bytes, at).map_err(failed)?;
            end = at + bytes.len() as u64;
            Ok(())
        };
        let (tree, open) = (from.tree, from.open);
        tree.data(open, from.entry, facts, &mut self.buffer, &mut sink)?;
        fs.truncate(inode, facts.size_bytes.max(end))
            .map_err(failed)
    }

    /// Opens the directory of the source that `begun` is a copy of.
    fn level<S: Original>(&self, from: &From<'_, S>, begun: Begun, to: &To) -> Result<Level<S>> {
        let tree = from.tree;
        let below = match from.entry {
            Entry::Itself => tree.root_directory(),
            Entry::Named(name, number) => tree.child(from.open, name, number)?,
        };
        let open = tree.open(&below)?;
        let mut listing = Listing::default();
        tree.list(&open, &mut listing, &mut S::Scratch::default())?;
        if begun.is_new && self.manner.archive {
            // Entries must not inherit what the new directory has inherited.
            self.remove_acls(begun.inode, Kind::Directory, to)?;
        }
        Ok(Level {
            begun,
            open,
            listing,
            entries: 0,
            from_bytes: from.path.as_os_str().len(),
            to_bytes: to.path.len(),
        })
    }

    /// Gives the copy all attributes of the source.
    fn keep_attributes<S: Original>(
        &mut self,
        from: &From<'_, S>,
        facts: &Facts,
        inode: InodeNr,
        to: &To,
    ) -> Result<()> {
        self.remove_acls(inode, facts.kind, to)?;
        let mut change = AttributeChange {
            uid: Some(facts.uid),
            gid: Some(facts.gid),
            ..AttributeChange::default()
        };
        if facts.kind != Kind::Symlink {
            change.permissions = Some(bits(facts));
        }
        self.set(inode, &change, to)?;
        let mut attributes = std::mem::take(&mut self.attributes);
        attributes.clear();
        let mut scratch = S::Scratch::default();
        let (tree, open) = (from.tree, from.open);
        tree.attributes(open, from.entry, &mut scratch, &mut attributes)?;
        for (name, value) in attributes.iter() {
            let set = self.fs().set_xattr(inode, name, value, SetXattr::Any);
            set.map_err(|why| self.at(to, why))?;
        }
        self.attributes = attributes;
        let times = AttributeChange {
            atime: timestamp(facts.atime),
            mtime: timestamp(facts.mtime),
            ..AttributeChange::default()
        };
        self.set(inode, &times, to)
    }

    fn set(&self, inode: InodeNr, change: &AttributeChange, to: &To) -> Result<()> {
        let set = self.fs().set_attributes(inode, change);
        set.map_err(|why| self.at(to, why))
    }

    fn remove_acls(&self, inode: InodeNr, kind: Kind, to: &To) -> Result<()> {
        let names: &[&[u8]] = match kind {
            Kind::Symlink => &[],
            Kind::Directory => &[b"system.posix_acl_access", b"system.posix_acl_default"],
            _ => &[b"system.posix_acl_access"],
        };
        for name in names {
            match self.fs().remove_xattr(inode, name) {
                Ok(()) | Err(Error::NoAttribute) => {}
                Err(why) => return Err(self.at(to, why)),
            }
        }
        Ok(())
    }

    /// Gives an object the owner that all copies get.
    pub(super) fn set_owner(&self, inode: InodeNr, to: &To) -> Result<()> {
        let Manner { uid, gid, .. } = self.manner;
        if uid.is_none() && gid.is_none() {
            return Ok(());
        }
        let change = AttributeChange {
            uid,
            gid,
            ..AttributeChange::default()
        };
        self.set(inode, &change, to)
    }

    /// An error about the place of a copy.
    fn at(&self, to: &To, why: impl std::fmt::Display) -> Failure {
        self.image.failure(&to.path, why)
    }

    /// Copies what `read` gives, to its end, to a file.
    pub(super) fn stream(&mut self, mut read: impl std::io::Read, to: &To) -> Result<()> {
        if to.has_slash {
            return Err(self.at(to, Error::NotADirectory));
        }
        let found = self.existing(Kind::File, to)?;
        if found.is_some() && self.manner.no_clobber {
            return Ok(());
        }
        if let Some(found) = &found {
            self.check_types(Kind::File, found, to)?;
        }
        let found = self.make_way(Kind::File, found, to)?;
        let new = NewAttributes::owned_by(
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        )
        .permissions(0o666)
        .umask(UMASK);
        let inode = match found {
            Some(found) => Ok(found.inode),
            None => self.fs().create(to.dir, to.name(), &new),
        };
        let inode = inode.map_err(|why| self.at(to, why))?;
        self.fs()
            .truncate(inode, 0)
            .map_err(|why| self.at(to, why))?;
        self.buffer.resize(super::original::COPY_BYTES, 0);
        let mut at = 0;
        loop {
            let count = match read.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::new("standard input", error)),
            };
            let written = self.fs().write_all_at(inode, &self.buffer[..count], at);
            written.map_err(|why| self.at(to, why))?;
            at += count as u64;
        }
        self.set_owner(inode, to)
    }
}

fn timestamp(time: Time) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanoseconds)
}

/// The permissions of a copy without all attributes. As in GNU cp, it does not act with the rights
/// of its new owner; of a directory the sticky bit stays.
fn plain_bits(facts: &Facts) -> u16 {
    bits(facts)
        & match facts.kind {
            Kind::Directory => 0o1777,
            _ => 0o777,
        }
}

/// Permissions, which have twelve bits.
fn bits(facts: &Facts) -> u16 {
    u16::try_from(facts.permissions & 0o7777).unwrap_or(0)
}

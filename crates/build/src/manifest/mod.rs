//! **Purpose.** Manifests: lists that say whose the objects of an image are, and what they are,
//! where a normal user's sources cannot; and the list of what an image holds.
//!
//! | module | responsibility |
//! |---|---|
//! | `mtree` | lines into entries |
//! | `keyword` | what the words of a line say |
//! | `vis` | names with escaped bytes |
//! | `saved` | the file that fakeroot saves |
//! | `write` | an image's own manifest |
//!
//! **Model.** Two forms are read. An mtree names paths: it changes what the sources have there, and
//! makes directories, devices, fifos, sockets and symbolic links that they do not have; regular
//! files it cannot make, since it has no contents. It counts more than `--owner` and maps of ids,
//! so it is applied last. What fakeroot saves (`fakeroot -s FILE`) names devices and inode numbers,
//! so it is asked while a directory is read.
//!
//! A list of an image's millions of files may be longer than all that is kept of these, so it is
//! read line by line when it is applied. One from a pipe, whose writer may have to end before the
//! sources begin, waits in a file without a name.
//!
//! Of a regular file the size is compared; digests, link counts and inode numbers are not.
//!
//! **References.** mtree(5) of FreeBSD and libarchive; faked(1).

mod keyword;
mod mtree;
mod saved;
mod vis;
mod write;

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use fourscore_ondisk::Timestamp;
use fourscore_ondisk::inode::FileType;

use crate::source::{Excludes, Fault, Parsed, SourceError, nameless};
use crate::tree::{Kind, Meta, NodeId, Tree, Xattrs};
use keyword::{Facts, kind_word};
use mtree::{Entry, Lines};

pub use saved::Saved;
pub(crate) use write::{Described, Sha256Sum, manifest_line, sums_line};

/// How many bytes tell the form.
const START_BYTES: u64 = 8;
/// How much of a manifest is read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// A manifest.
#[derive(Debug)]
pub struct Manifest {
    /// As the user named it.
    place: String,
    text: Text,
}

#[derive(Debug)]
enum Text {
    Mtree(File),
    Saved(Saved),
}

impl Manifest {
    /// Reads the manifest at `path`, of either form.
    ///
    /// # Errors
    /// A file that cannot be read, or a line of fakeroot's that is malformed.
    pub fn read(path: &Path) -> Result<Self, SourceError> {
        let place = path.display().to_string();
        let failed = |fault| SourceError {
            place: place.clone(),
            entry: None,
            fault,
        };
        let file = opened(path).map_err(|why| failed(why.into()))?;
        Self::parse(&place, file)
    }

    fn parse(place: &str, mut file: File) -> Result<Self, SourceError> {
        let failed = |why: io::Error| SourceError {
            place: place.to_owned(),
            entry: None,
            fault: why.into(),
        };
        let mut start = Vec::new();
        let read = (&mut file).take(START_BYTES).read_to_end(&mut start);
        read.and_then(|_| file.rewind()).map_err(failed)?;
        let text = if Saved::is_form_of(&start) {
            let saved = Saved::parse(BufReader::new(file));
            Text::Saved(saved.map_err(|(line, fault)| at_line(place, line, None, fault))?)
        } else {
            Text::Mtree(file)
        };
        Ok(Self {
            place: place.to_owned(),
            text,
        })
    }

    /// What is asked while directories are read, if the manifest is fakeroot's.
    #[must_use]
    pub fn saved(&self) -> Option<&Saved> {
        match &self.text {
            Text::Saved(saved) => Some(saved),
            Text::Mtree(_) => None,
        }
    }

    /// Changes the tree to what an mtree says. Entries of excluded paths do not count.
    ///
    /// # Errors
    /// A line that is malformed or does not fit the sources; the error names line, path and word.
    pub fn apply(&self, tree: &mut Tree, excludes: &Excludes) -> Result<(), SourceError> {
        let Text::Mtree(file) = &self.text else {
            return Ok(());
        };
        let mut file = file;
        file.rewind().map_err(|why| SourceError {
            place: self.place.clone(),
            entry: None,
            fault: why.into(),
        })?;
        let mut lines = Lines::new(BufReader::with_capacity(BUFFER_BYTES, file));
        loop {
            let next = lines.next_entry();
            let next = next.map_err(|fault| {
                let path = lines.path().map(<[u8]>::to_vec);
                at_line(&self.place, lines.line(), path, fault)
            })?;
            let Some(entry) = next else { return Ok(()) };
            if excludes.contain(&entry.path) {
                continue;
            }
            put(tree, &entry).map_err(|fault| {
                // The tree's errors name the path themselves.
                let path = (!matches!(fault, Fault::Tree(_))).then(|| entry.path.clone());
                at_line(&self.place, lines.line(), path, fault)
            })?;
        }
    }
}

/// The file at `path`, or its copy if it can be read only once.
fn opened(path: &Path) -> io::Result<File> {
    let mut file = File::open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let mut copy = nameless(&std::env::temp_dir())?;
    io::copy(&mut file, &mut copy)?;
    copy.rewind()?;
    Ok(copy)
}

fn at_line(place: &str, line: usize, entry: Option<Vec<u8>>, fault: Fault) -> SourceError {
    SourceError {
        place: format!("{place}: line {line}"),
        entry,
        fault,
    }
}

fn put(tree: &mut Tree, entry: &Entry) -> Parsed<()> {
    let facts = &entry.facts;
    match tree.lookup(&entry.path)? {
        Some(node) if !facts.is_kept => change(tree, node, entry),
        Some(_) => Ok(()),
        None if facts.is_optional || facts.is_kept => Ok(()),
        None => make(tree, entry),
    }
}

/// Gives what the sources have the attributes of the entry.
fn change(tree: &mut Tree, node: NodeId, entry: &Entry) -> Parsed<()> {
    let facts = &entry.facts;
    let found = tree.file_type(node);
    let wanted = facts.kind.unwrap_or(found);
    // Who may not make a device puts an empty file in its place.
    let stands_in = found == FileType::Regular && tree.len_bytes(node) == 0;
    let may_become = stands_in && !matches!(wanted, FileType::Directory);
    if wanted != found && !may_become {
        return Err(Fault::OtherKind {
            found: kind_word(found),
            wanted: kind_word(wanted),
        });
    }
    let len_bytes = tree.len_bytes(node);
    if let Some(size_bytes) = facts.size_bytes
        && wanted == FileType::Regular
        && size_bytes != len_bytes
    {
        return Err(Fault::OtherSize {
            found: len_bytes,
            wanted: size_bytes,
        });
    }
    match special(facts, wanted) {
        Some(kind) => tree.set_kind(node, kind, &entry.path)?,
        None if wanted == found => {}
        None => return Err(incomplete(wanted)),
    }
    let mut meta = tree.meta(node);
    facts.change(&mut meta)?;
    tree.set_meta(node, &meta);
    if !facts.xattrs.is_empty() {
        let mut xattrs = Xattrs::new();
        for (name, value) in tree.xattrs(node).chain(facts.xattrs.iter()) {
            xattrs.set(name, value);
        }
        tree.set_xattrs(node, &xattrs)?;
    }
    Ok(())
}

/// Makes what the sources do not have.
fn make(tree: &mut Tree, entry: &Entry) -> Parsed<()> {
    let facts = &entry.facts;
    let wanted = facts.kind.ok_or(Fault::NotInSources {
        why: "the manifest does not say what it is",
    })?;
    let kind = match wanted {
        FileType::Directory => Kind::Directory,
        FileType::Regular => {
            return Err(Fault::NotInSources {
                why: "a manifest holds no contents of files",
            });
        }
        _ => special(facts, wanted).ok_or(incomplete(wanted))?,
    };
    let time = facts.time.unwrap_or_default();
    let mut meta = Meta {
        permissions: match wanted {
            FileType::Directory => 0o755,
            FileType::Symlink => 0o777,
            _ => 0o644,
        },
        atime: time,
        mtime: time,
        ctime: time,
        ..Meta::default()
    };
    facts.change(&mut meta)?;
    tree.insert(&entry.path, &meta, kind, &facts.xattrs)?;
    Ok(())
}

/// What the entry makes of an object that is neither directory nor regular file.
fn special(facts: &Facts, wanted: FileType) -> Option<Kind> {
    match wanted {
        FileType::Directory | FileType::Regular => None,
        FileType::Symlink => facts.link.clone().map(Kind::Symlink),
        FileType::CharDevice => facts.device.map(Kind::CharDevice),
        FileType::BlockDevice => facts.device.map(Kind::BlockDevice),
        FileType::Fifo => Some(Kind::Fifo),
        FileType::Socket => Some(Kind::Socket),
    }
}

fn incomplete(wanted: FileType) -> Fault {
    Fault::Incomplete {
        keyword: match wanted {
            FileType::Symlink => "link",
            _ => "device",
        },
    }
}

impl Facts {
    /// Changes owner, permissions and time to what is said of them.
    fn change(&self, meta: &mut Meta) -> Parsed<()> {
        meta.permissions = self.permissions.unwrap_or(meta.permissions);
        meta.uid = self.user()?.unwrap_or(meta.uid);
        meta.gid = self.group()?.unwrap_or(meta.gid);
        let mtime: Timestamp = self.time.unwrap_or(meta.mtime);
        meta.mtime = mtime;
        Ok(())
    }
}

#[cfg(test)]
mod tests;

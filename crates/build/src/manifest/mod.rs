//! **Purpose.** Reads manifests, which give owner, mode and type of objects where an unprivileged
//! user's sources cannot, and writes the manifest of an image.
//!
//! | module | responsibility |
//! |---|---|
//! | `mtree` | parses the lines of an mtree |
//! | `keyword` | parses the keywords of a line |
//! | `vis` | escapes and unescapes names |
//! | `saved` | parses the file that `fakeroot -s` saves |
//! | `write` | writes the manifest of an image |
//!
//! **Model.** Two formats are read. An mtree names paths: it changes objects of the sources, and
//! creates directories, devices, fifos, sockets and symbolic links that the sources do not have. It
//! cannot create regular files, since it contains no file data. It takes precedence over `--owner`
//! and id maps, so it is applied last. The file that `fakeroot -s FILE` saves identifies objects by
//! device and inode number, so it is consulted while a directory is scanned.
//!
//! The manifest of an image with millions of files may be larger than the tree, so an mtree is
//! parsed line by line when it is applied. One from a pipe is first copied to an unlinked temporary
//! file, because its writer may have to finish before the sources can be read.
//!
//! The size of a regular file is compared with the manifest; digests, link counts and inode numbers
//! are ignored.
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

use crate::source::{Excludes, Fault, Parsed, SourceError, unlinked_file};
use crate::tree::{Kind, Meta, NodeId, Tree, Xattrs};
use keyword::{Keywords, kind_word};
use mtree::{Entry, Lines};

pub use saved::Saved;
pub(crate) use write::{ListedObject, Sha256Sum, manifest_line, sums_line};

/// How many bytes at the start distinguish the two formats.
const START_BYTES: u64 = 8;
/// Size of the read buffer.
const BUFFER_BYTES: usize = 256 << 10;

/// A manifest.
#[derive(Debug)]
pub struct Manifest {
    /// The path as the user gave it.
    place: String,
    text: Text,
}

#[derive(Debug)]
enum Text {
    Mtree(File),
    Saved(Saved),
}

impl Manifest {
    /// Reads the manifest at `path`, in either format.
    ///
    /// # Errors
    /// A file that cannot be read, or a malformed line in a fakeroot file.
    pub fn read(path: &Path) -> Result<Self, SourceError> {
        let place = path.display().to_string();
        let failed = |fault| SourceError {
            place: place.clone(),
            entry: None,
            fault,
        };
        let file = open_rewindable(path).map_err(|why| failed(why.into()))?;
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

    /// The fakeroot data, which is consulted while directories are scanned; `None` for an mtree.
    #[must_use]
    pub fn saved(&self) -> Option<&Saved> {
        match &self.text {
            Text::Saved(saved) => Some(saved),
            Text::Mtree(_) => None,
        }
    }

    /// Applies an mtree to the tree. Entries with excluded paths are skipped.
    ///
    /// # Errors
    /// A line that is malformed or does not match the sources; the error names line, path and
    /// keyword.
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
            apply_entry(tree, &entry).map_err(|fault| {
                // The tree's errors name the path already.
                let path = (!matches!(fault, Fault::Tree(_))).then(|| entry.path.clone());
                at_line(&self.place, lines.line(), path, fault)
            })?;
        }
    }
}

/// Opens the file at `path`; copies it to a temporary file first if it cannot be rewound.
fn open_rewindable(path: &Path) -> io::Result<File> {
    let mut file = File::open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let mut copy = unlinked_file(&std::env::temp_dir())?;
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

fn apply_entry(tree: &mut Tree, entry: &Entry) -> Parsed<()> {
    let keywords = &entry.keywords;
    match tree.lookup(&entry.path)? {
        Some(node) if !keywords.is_unchanged => change_object(tree, node, entry),
        Some(_) => Ok(()),
        None if keywords.is_optional || keywords.is_unchanged => Ok(()),
        None => create_object(tree, entry),
    }
}

/// Changes an object of the sources to the attributes of the entry.
fn change_object(tree: &mut Tree, node: NodeId, entry: &Entry) -> Parsed<()> {
    let keywords = &entry.keywords;
    let found = tree.file_type(node);
    let wanted = keywords.kind.unwrap_or(found);
    // An unprivileged user cannot create devices and leaves an empty file in their place.
    let is_placeholder = found == FileType::Regular && tree.len_bytes(node) == 0;
    let may_change_type = is_placeholder && !matches!(wanted, FileType::Directory);
    if wanted != found && !may_change_type {
        return Err(Fault::OtherKind {
            found: kind_word(found),
            wanted: kind_word(wanted),
        });
    }
    let len_bytes = tree.len_bytes(node);
    if let Some(size_bytes) = keywords.size_bytes
        && wanted == FileType::Regular
        && size_bytes != len_bytes
    {
        return Err(Fault::OtherSize {
            found: len_bytes,
            wanted: size_bytes,
        });
    }
    match special_file(keywords, wanted) {
        Some(kind) => tree.set_kind(node, kind, &entry.path)?,
        None if wanted == found => {}
        None => return Err(missing_keyword(wanted)),
    }
    let mut meta = tree.meta(node);
    keywords.apply_to(&mut meta)?;
    tree.set_meta(node, &meta);
    if !keywords.xattrs.is_empty() {
        let mut xattrs = Xattrs::new();
        for (name, value) in tree.xattrs(node).chain(keywords.xattrs.iter()) {
            xattrs.set(name, value);
        }
        tree.set_xattrs(node, &xattrs)?;
    }
    Ok(())
}

/// Creates an object that the sources do not have.
fn create_object(tree: &mut Tree, entry: &Entry) -> Parsed<()> {
    let keywords = &entry.keywords;
    let wanted = keywords.kind.ok_or(Fault::NotInSources {
        why: "the manifest has no type= for it",
    })?;
    let kind = match wanted {
        FileType::Directory => Kind::Directory,
        FileType::Regular => {
            return Err(Fault::NotInSources {
                why: "a manifest cannot create regular files",
            });
        }
        _ => special_file(keywords, wanted).ok_or(missing_keyword(wanted))?,
    };
    let time = keywords.time.unwrap_or_default();
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
    keywords.apply_to(&mut meta)?;
    tree.insert(&entry.path, &meta, kind, &keywords.xattrs)?;
    Ok(())
}

/// The object that the entry describes, if it is neither a directory nor a regular file.
fn special_file(keywords: &Keywords, wanted: FileType) -> Option<Kind> {
    match wanted {
        FileType::Directory | FileType::Regular => None,
        FileType::Symlink => keywords.link.clone().map(Kind::Symlink),
        FileType::CharDevice => keywords.device.map(Kind::CharDevice),
        FileType::BlockDevice => keywords.device.map(Kind::BlockDevice),
        FileType::Fifo => Some(Kind::Fifo),
        FileType::Socket => Some(Kind::Socket),
    }
}

fn missing_keyword(wanted: FileType) -> Fault {
    Fault::Incomplete {
        keyword: match wanted {
            FileType::Symlink => "link",
            _ => "device",
        },
    }
}

impl Keywords {
    /// Sets owner, permissions and time to the values of the entry.
    fn apply_to(&self, meta: &mut Meta) -> Parsed<()> {
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

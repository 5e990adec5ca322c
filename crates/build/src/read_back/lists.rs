//! **Purpose.** Writes checksum lists and manifests, which get their names after the image.
//!
//! **Model.** Names are listed depth first, each directory in the byte order of its names.

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fourscore_ondisk::inode::FileType;

use super::Sums;
use crate::error::{BuildError, BuildResult};
use crate::layout::ImageLayout;
use crate::manifest::{ListedObject, Sha256Sum, manifest_line, sums_line};
use crate::options::Options;
use crate::target::{Overwrite, replaces};
use crate::tree::NodeId;
use crate::write::{HiddenFile, Replaces};

/// The destination of a list: a file that is replaced after the image; a pipe or terminal that is
/// written; or the file of standard output or standard error, which may have other output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListTarget {
    /// The path as the caller gave it.
    given_path: PathBuf,
    place: PathBuf,
    way: Way,
}

/// How a list gets to its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A new file replaces what is there.
    Replaces(Replaces),
    /// The path is opened and written.
    Written,
    StandardOutput,
    StandardError,
}

impl Way {
    /// The open file that `found` is, if this process has it as standard output or error.
    fn standard(found: &Metadata) -> Option<Self> {
        let is_found = |open: BorrowedFd<'_>| {
            rustix::fs::fstat(open)
                .is_ok_and(|open| (open.st_dev, open.st_ino) == (found.dev(), found.ino()))
        };
        if is_found(io::stdout().as_fd()) {
            return Some(Self::StandardOutput);
        }
        is_found(io::stderr().as_fd()).then_some(Self::StandardError)
    }
}

impl ListTarget {
    /// Resolves `path`. By default, [`Overwrite::OwnImages`], only an empty file is replaced, since
    /// a list does not show where it came from.
    ///
    /// # Errors
    /// [`BuildError::Occupied`] if the file has content; [`BuildError::Output`] if the path is a
    /// directory or cannot be examined.
    pub fn find(path: &Path, overwrite: Overwrite) -> BuildResult<Self> {
        let failed = |why| failed(path, why);
        let target = |place, way| Self {
            given_path: path.to_owned(),
            place,
            way,
        };
        let found = match std::fs::metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // It may be a symbolic link to nothing.
                let link = std::fs::symlink_metadata(path).ok();
                let replaces = replaces(link.as_ref(), overwrite);
                return Ok(target(path.to_owned(), Way::Replaces(replaces)));
            }
            Err(error) => return Err(failed(error)),
        };
        if found.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        if !found.is_file() {
            return Ok(target(path.to_owned(), Way::Written));
        }
        if let Some(way) = Way::standard(&found) {
            return Ok(target(path.to_owned(), way));
        }
        if found.len() > 0 && overwrite == Overwrite::OwnImages {
            return Err(BuildError::Occupied {
                path: path.to_owned(),
                what: "data".to_owned(),
            });
        }
        let place = path.canonicalize().map_err(failed)?;
        let replaces = replaces(Some(&found), overwrite);
        Ok(target(place, Way::Replaces(replaces)))
    }
}

/// Lists that are written but do not have their names yet.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pending: Vec<Pending>,
}

#[derive(Debug)]
struct Pending {
    hidden: HiddenFile,
    target: ListTarget,
    replaces: Replaces,
}

impl Lists {
    /// Writes the lists that the options request.
    pub(super) fn begin(layout: &ImageLayout, options: &Options, sums: &Sums) -> BuildResult<Self> {
        let listing = Listing {
            layout,
            options,
            sums,
        };
        let mut lists = Self::default();
        if let Some(target) = &options.read_back.sums {
            lists.write(target, |out| listing.write_sums(out))?;
        }
        if let Some(target) = &options.read_back.manifest {
            lists.write(target, |out| listing.write_manifest(out))?;
        }
        Ok(lists)
    }

    fn write(
        &mut self,
        target: &ListTarget,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> BuildResult<()> {
        let written = || {
            let mut pending = None;
            let file = match target.way {
                Way::Replaces(replaces) => {
                    let hidden = HiddenFile::create(&target.place)?;
                    let file = hidden.file().try_clone()?;
                    pending = Some((hidden, replaces));
                    file
                }
                // A pipe or terminal cannot be replaced.
                Way::Written => File::options().write(true).open(&target.place)?,
                // What is written to them before and after must stay, so they are not opened again.
                Way::StandardOutput => File::from(io::stdout().as_fd().try_clone_to_owned()?),
                Way::StandardError => File::from(io::stderr().as_fd().try_clone_to_owned()?),
            };
            let mut out = BufWriter::with_capacity(1 << 20, file);
            fill(&mut out)?;
            let file = out.into_inner()?;
            if pending.is_some() {
                file.sync_all()?;
            }
            Ok(pending)
        };
        let written = written().map_err(|why| failed(&target.given_path, why))?;
        self.pending
            .extend(written.map(|(hidden, replaces)| Pending {
                hidden,
                target: target.clone(),
                replaces,
            }));
        Ok(())
    }

    /// Gives the lists their names. They are durable when this returns.
    pub(crate) fn commit(self) -> BuildResult<()> {
        for Pending {
            hidden,
            target,
            replaces,
        } in self.pending
        {
            let named = hidden.put_in_place(&target.place, replaces);
            named.map_err(|why| failed(&target.given_path, why))?;
        }
        Ok(())
    }
}

fn failed(path: &Path, why: io::Error) -> BuildError {
    BuildError::Output {
        path: path.to_owned(),
        why,
    }
}

struct Listing<'a> {
    layout: &'a ImageLayout,
    options: &'a Options,
    sums: &'a Sums,
}

impl Listing<'_> {
    fn write_sums(&self, out: &mut dyn Write) -> io::Result<()> {
        self.for_each_name(&mut |path, node| match self.sum(node) {
            Some(sum) => out.write_all(&sums_line(path, &sum)),
            None => Ok(()),
        })
    }

    fn write_manifest(&self, out: &mut dyn Write) -> io::Result<()> {
        let tree = &self.layout.forms.tree;
        out.write_all(b"#mtree\n")?;
        self.for_each_name(&mut |path, node| {
            let object = ListedObject {
                meta: self.options.clamped(tree.meta(node)),
                kind: &tree.kind(node),
                links: tree.links(node),
                inode: self.layout.forms.numbers.inode(node),
                xattrs: tree.xattrs(node),
                sum: self.sum(node),
            };
            out.write_all(&manifest_line(path, &object))
        })
    }

    /// The checksum of a regular file.
    fn sum(&self, node: NodeId) -> Option<Sha256Sum> {
        let forms = &self.layout.forms;
        if forms.tree.file_type(node) != FileType::Regular {
            return None;
        }
        self.sums.get(forms.numbers.position(node)?).copied()
    }

    fn for_each_name(
        &self,
        visit: &mut dyn FnMut(&[u8], NodeId) -> io::Result<()>,
    ) -> io::Result<()> {
        let tree = &self.layout.forms.tree;
        let sorted = |directory| {
            let mut entries = tree.entries_of(directory).to_vec();
            entries.sort_unstable_by_key(|entry| tree.entry_name(entry));
            entries.into_iter()
        };
        let mut path = b".".to_vec();
        visit(&path, NodeId::ROOT)?;
        // Open directories: the length of their paths, and their remaining entries.
        let mut open = vec![(path.len(), sorted(NodeId::ROOT))];
        while let Some((len, rest)) = open.last_mut() {
            path.truncate(*len);
            let Some(entry) = rest.next() else {
                open.pop();
                continue;
            };
            path.push(b'/');
            path.extend_from_slice(tree.entry_name(&entry));
            let node = NodeId(entry.node);
            visit(&path, node)?;
            if tree.file_type(node) == FileType::Directory {
                open.push((path.len(), sorted(node)));
            }
        }
        Ok(())
    }
}

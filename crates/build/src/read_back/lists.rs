//! **Purpose.** Writes checksum lists and manifests, which get their names after the image.
//!
//! **Model.** Names are listed depth first, each directory in the byte order of its names.

use std::fs::File;
use std::io::{self, BufWriter, Write};
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

/// The destination of a list: a file that is replaced after the image, or a pipe or terminal that
/// is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListTarget {
    /// The path as the caller gave it.
    given_path: PathBuf,
    place: PathBuf,
    /// `None` if it is no file.
    replaces: Option<Replaces>,
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
        let target = |place, replaces| Self {
            given_path: path.to_owned(),
            place,
            replaces,
        };
        let found = match std::fs::metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // It may be a symbolic link to nothing.
                let link = std::fs::symlink_metadata(path).ok();
                let replaces = replaces(link.as_ref(), overwrite);
                return Ok(target(path.to_owned(), Some(replaces)));
            }
            Err(error) => return Err(failed(error)),
        };
        if found.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        if !found.is_file() {
            return Ok(target(path.to_owned(), None));
        }
        if found.len() > 0 && overwrite == Overwrite::OwnImages {
            return Err(BuildError::Occupied {
                path: path.to_owned(),
                what: "data".to_owned(),
            });
        }
        let place = path.canonicalize().map_err(failed)?;
        Ok(target(place, Some(replaces(Some(&found), overwrite))))
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
            let hidden = match target.replaces {
                // A pipe or terminal cannot be replaced.
                None => None,
                Some(_) => Some(HiddenFile::create(&target.place)?),
            };
            let file = match &hidden {
                None => File::options().write(true).open(&target.place)?,
                Some(hidden) => hidden.file().try_clone()?,
            };
            let mut out = BufWriter::with_capacity(1 << 20, file);
            fill(&mut out)?;
            let file = out.into_inner()?;
            if hidden.is_some() {
                file.sync_all()?;
            }
            Ok(hidden.zip(target.replaces))
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

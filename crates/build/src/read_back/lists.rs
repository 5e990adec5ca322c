//! **Purpose.** Writes checksum lists and manifests, which are renamed into place after the image.
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
use crate::tree::NodeId;
use crate::write::{HiddenFile, sync_directory_of};

/// Lists that are written but not renamed into place yet.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pending: Vec<(PathBuf, HiddenFile)>,
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
        if let Some(path) = &options.read_back.sums {
            lists.write(path, |out| listing.write_sums(out))?;
        }
        if let Some(path) = &options.read_back.manifest {
            lists.write(path, |out| listing.write_manifest(out))?;
        }
        Ok(lists)
    }

    fn write(
        &mut self,
        path: &Path,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> BuildResult<()> {
        let written = || {
            // A pipe or terminal cannot be replaced.
            let is_special = std::fs::metadata(path).is_ok_and(|found| !found.is_file());
            let hidden = match is_special {
                true => None,
                false => Some(HiddenFile::create(path)?),
            };
            let place = hidden.as_ref().map_or(path, HiddenFile::path);
            let file = File::options().write(true).open(place)?;
            let mut out = BufWriter::with_capacity(1 << 20, file);
            fill(&mut out)?;
            let file = out.into_inner()?;
            if hidden.is_some() {
                file.sync_all()?;
            }
            Ok(hidden)
        };
        let hidden = written().map_err(|why| failed(path, why))?;
        self.pending
            .extend(hidden.map(|hidden| (path.to_owned(), hidden)));
        Ok(())
    }

    /// Renames the lists into place. They are durable when this returns.
    pub(crate) fn commit(self) -> BuildResult<()> {
        for (path, hidden) in self.pending {
            let named =
                std::fs::rename(hidden.path(), &path).and_then(|()| sync_directory_of(&path));
            named.map_err(|why| failed(&path, why))?;
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

//! **Purpose.** Sums and manifests as files, which get their names when the image has its.
//!
//! **Model.** Names are listed depth first, by the bytes of the names of each directory.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::Sums;
use crate::error::{BuildError, BuildResult};
use crate::layout::Settled;
use crate::manifest::{Described, Sha256Sum, manifest_line, sums_line};
use crate::options::Options;
use crate::tree::NodeId;
use crate::write::{HiddenFile, sync_folder};

/// Lists that are written and have no names yet.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pending: Vec<(PathBuf, HiddenFile)>,
}

impl Lists {
    /// Writes what the options ask for.
    pub(super) fn begin(settled: &Settled, options: &Options, sums: &Sums) -> BuildResult<Self> {
        let listing = Listing {
            settled,
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

    /// Gives the lists their names. Durable when it returns.
    pub(crate) fn commit(self) -> BuildResult<()> {
        for (path, hidden) in self.pending {
            let named = std::fs::rename(hidden.path(), &path).and_then(|()| sync_folder(&path));
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
    settled: &'a Settled,
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
        let tree = &self.settled.forms.tree;
        out.write_all(b"#mtree\n")?;
        self.for_each_name(&mut |path, node| {
            let object = Described {
                meta: self.options.clamped(tree.meta(node)),
                kind: &tree.kind(node),
                links: tree.links(node),
                inode: self.settled.forms.numbers.inode(node),
                xattrs: tree.xattrs(node),
                sum: self.sum(node),
            };
            out.write_all(&manifest_line(path, &object))
        })
    }

    fn sum(&self, node: NodeId) -> Option<Sha256Sum> {
        let numbers = &self.settled.forms.numbers;
        let position = numbers.position(node)?;
        let at = self.sums.binary_search_by_key(&position, |(own, _)| *own);
        at.ok()
            .and_then(|at| self.sums.get(at))
            .map(|(_, sum)| *sum)
    }

    fn for_each_name(
        &self,
        visit: &mut dyn FnMut(&[u8], NodeId) -> io::Result<()>,
    ) -> io::Result<()> {
        let tree = &self.settled.forms.tree;
        let mut left = vec![(b".".to_vec(), NodeId::ROOT)];
        while let Some((path, node)) = left.pop() {
            visit(&path, node)?;
            let from = left.len();
            for (name, child) in tree.children(node) {
                left.push(([&path, name].join(&b'/'), child));
            }
            // The last is the next: the first name comes last.
            left[from..].sort_unstable_by(|a, b| b.0.cmp(&a.0));
        }
        Ok(())
    }
}

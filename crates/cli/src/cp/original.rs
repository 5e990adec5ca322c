//! **Purpose.** The source of a copy into an image: a tree of the host or of an image.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::content::{Stopped, for_each_run, read_exactly};
use crate::facts::Facts;
use crate::failure::{Failure, Result};
use crate::image::Image;
use crate::walk::host::{HostOpen, HostTree};
use crate::walk::image::{ImageTree, inode_of};
use crate::walk::source::{Entry, Source};
use fourscore_ondisk::InodeNr;

/// Size of the copy buffer.
pub(super) const COPY_BYTES: usize = 1 << 20;

/// What distinguishes an object from all others: for hard links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Identity {
    /// Device and inode number of an object of the host.
    Host(crate::walk::host::Identity),
    /// The number of an open image, and the inode in it.
    Image(usize, InodeNr),
}

/// Takes a piece of a file's data: its offset, and the bytes.
pub(super) type Sink<'s> = dyn FnMut(u64, &[u8]) -> Result<()> + 's;

/// A tree that can be copied.
pub(super) trait Original: Source {
    /// What distinguishes the object from all others.
    fn identity(&self, open: &Self::Open, entry: Entry<'_>) -> Result<Identity>;

    /// Passes the data of a file to `sink`, without its holes.
    fn data(
        &self,
        open: &Self::Open,
        entry: Entry<'_>,
        facts: &Facts,
        buffer: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<()>;
}

impl Original for HostTree {
    fn identity(&self, open: &HostOpen, entry: Entry<'_>) -> Result<Identity> {
        HostTree::identity(self, open, entry).map(Identity::Host)
    }

    fn data(
        &self,
        open: &HostOpen,
        entry: Entry<'_>,
        facts: &Facts,
        buffer: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        file_data(&self.file(open, entry)?, facts.size_bytes, buffer, sink)
    }
}

fn file_data(file: &File, size: u64, buffer: &mut Vec<u8>, sink: &mut Sink<'_>) -> Result<()> {
    let failed = |error: std::io::Error| Failure::new("", error);
    buffer.resize(COPY_BYTES, 0);
    let mut end = 0;
    if size == 0 {
        return unsized_data(file, buffer, sink);
    }
    while end < size {
        let mut at = match rustix::fs::seek(file, SeekFrom::Data(end)) {
            Err(Errno::NXIO) => break,
            found => found.map_err(|errno| failed(errno.into()))?,
        };
        end = rustix::fs::seek(file, SeekFrom::Hole(at)).map_err(|errno| failed(errno.into()))?;
        while at < end {
            let wanted = usize::try_from(end - at).map_or(COPY_BYTES, |len| len.min(COPY_BYTES));
            let count = file.read_at(&mut buffer[..wanted], at).map_err(failed)?;
            if count == 0 {
                return Err(Failure::new("", "the file was truncated while it was read"));
            }
            sink(at, &buffer[..count])?;
            at += count as u64;
        }
    }
    Ok(())
}

/// Passes on the data of a file whose size is 0: it may be one of procfs, which has some.
fn unsized_data(file: &File, buffer: &mut [u8], sink: &mut Sink<'_>) -> Result<()> {
    let mut at = 0;
    loop {
        let count = file.read_at(buffer, at);
        let count = count.map_err(|error| Failure::new("", error))?;
        if count == 0 {
            return Ok(());
        }
        sink(at, &buffer[..count])?;
        at += count as u64;
    }
}

/// A tree of an image, with the number of the image among those that are open.
pub(super) struct InImage<'i> {
    pub(super) tree: ImageTree<'i>,
    pub(super) image: &'i Image,
    pub(super) number: usize,
}

impl Source for InImage<'_> {
    const KINDS_AGREE: bool = true;
    type Directory = InodeNr;
    type Open = InodeNr;
    type Scratch = Vec<u8>;

    fn root(&self) -> Result<InodeNr> {
        self.tree.root()
    }

    fn root_directory(&self) -> InodeNr {
        self.tree.root_directory()
    }

    fn open(&self, directory: &InodeNr) -> Result<InodeNr> {
        self.tree.open(directory)
    }

    fn list(
        &self,
        open: &InodeNr,
        listing: &mut crate::tree::listing::Listing,
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        self.tree.list(open, listing, scratch)
    }

    fn facts(&self, open: &InodeNr, entry: Entry<'_>, scratch: &mut Vec<u8>) -> Result<Facts> {
        self.tree.facts(open, entry, scratch)
    }

    fn target(
        &self,
        open: &InodeNr,
        entry: Entry<'_>,
        facts: &Facts,
        target: &mut Vec<u8>,
    ) -> Result<()> {
        self.tree.target(open, entry, facts, target)
    }

    fn attributes(
        &self,
        open: &InodeNr,
        entry: Entry<'_>,
        scratch: &mut Vec<u8>,
        attributes: &mut crate::walk::line::Attributes,
    ) -> Result<()> {
        self.tree.attributes(open, entry, scratch, attributes)
    }

    fn sha256(
        &self,
        open: &InodeNr,
        entry: Entry<'_>,
        facts: &Facts,
        scratch: &mut Vec<u8>,
    ) -> Result<[u8; 32]> {
        self.tree.sha256(open, entry, facts, scratch)
    }

    fn child(&self, open: &InodeNr, name: &[u8], inode: u64) -> Result<InodeNr> {
        self.tree.child(open, name, inode)
    }
}

impl Original for InImage<'_> {
    fn identity(&self, open: &InodeNr, entry: Entry<'_>) -> Result<Identity> {
        Ok(Identity::Image(self.number, inode_of(*open, entry)?))
    }

    fn data(
        &self,
        open: &InodeNr,
        entry: Entry<'_>,
        _: &Facts,
        buffer: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let fs = &self.image.fs;
        let why = |error: fourscore::Error| Failure::new("", error);
        let stat = fs.stat(inode_of(*open, entry)?).map_err(why)?;
        buffer.resize(COPY_BYTES, 0);
        let visited = for_each_run(fs, &stat, |run| {
            let (mut at, end) = (run.offset, run.offset + run.len_bytes);
            while at < end {
                let len = usize::try_from(end - at).map_or(COPY_BYTES, |len| len.min(COPY_BYTES));
                let part = &mut buffer[..len];
                read_exactly(fs, stat.inode, part, at).map_err(why)?;
                sink(at, part)?;
                at += len as u64;
            }
            Ok(())
        });
        visited.map_err(|stopped| match stopped {
            Stopped::Fs(error) => why(error),
            Stopped::Visitor(failure) => failure,
        })
    }
}

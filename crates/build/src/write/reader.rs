//! **Purpose.** Reads file data from its source.
//!
//! **Model.** Files of a source directory are opened relative to their directory, which stays open
//! for the next files in it; symbolic links are never followed. A file that changed after it was
//! scanned is an error: its length must be the same, and so must its mtime or its ctime.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use fourscore::Fs;
use fourscore_ondisk::{InodeNr, Timestamp};
use fourscore_sync::Arc;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::BuildError;
use crate::host::beneath;
use crate::tree::{Content, DataPlace, HostDirId, HostPath, ImageId, NodeId, Stored, Tree};

/// Why file data cannot be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// An error of the host.
    Io(io::Error),
    /// The file changed.
    Changed,
}

impl ReadError {
    /// Converts the error, for the object at `path`.
    pub(crate) fn of(self, path: Vec<u8>) -> BuildError {
        match self {
            Self::Io(why) => BuildError::Source { path, why },
            Self::Changed => BuildError::Changed { path },
        }
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for ReadError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// Reads file data, for one thread.
pub(crate) struct Reader<'a> {
    tree: &'a Tree,
    directory: Option<(HostDirId, OwnedFd)>,
}

/// An open source of file data.
pub(crate) enum OpenContent<'a> {
    Bytes(&'a [u8]),
    /// A file of a source directory, to be checked after reading.
    Host(File),
    /// A range of a file that other threads read too.
    Range(&'a File, u64),
    /// A file of a file system image.
    Image(&'a Fs, InodeNr),
}

impl OpenContent<'_> {
    /// The file whose blocks the host may share with the image, and the offset of the data in it;
    /// `None` if the data is not stored there contiguously, including holes.
    pub(crate) fn shareable(&self, tree: &Tree, node: NodeId) -> Option<(BorrowedFd<'_>, u64)> {
        let is_dense = !matches!(&tree.node(node).stored, Stored::File(Content::Sparse(_)));
        match self {
            Self::Host(file) => Some((file.as_fd(), 0)),
            Self::Range(file, offset) if is_dense => Some((file.as_fd(), *offset)),
            Self::Range(..) | Self::Bytes(_) | Self::Image(..) => None,
        }
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(tree: &'a Tree) -> Self {
        Self {
            tree,
            directory: None,
        }
    }

    /// Opens the data of a regular file or symbolic link.
    pub(crate) fn open(&mut self, node: NodeId) -> Result<OpenContent<'a>, ReadError> {
        let tree = self.tree;
        match &tree.node(node).stored {
            Stored::File(Content::Bytes(bytes)) => Ok(OpenContent::Bytes(bytes)),
            Stored::File(Content::Host { path, .. }) => self.open_host(*path),
            Stored::File(Content::Range { file, offset, .. }) => {
                Ok(OpenContent::Range(open_file(tree, *file)?, *offset))
            }
            Stored::File(Content::Image { image, inode, .. }) => open_image(tree, *image, *inode),
            Stored::File(Content::Sparse(sparse)) => match sparse.data {
                DataPlace::Image(image, inode) => open_image(tree, image, inode),
                DataPlace::Host(path) => self.open_host(path),
                DataPlace::Open(file) => Ok(OpenContent::Range(open_file(tree, file)?, 0)),
            },
            Stored::Symlink(target) => Ok(OpenContent::Bytes(tree.text(*target))),
            _ => Ok(OpenContent::Bytes(&[])),
        }
    }

    fn open_host(&mut self, path: HostPath) -> Result<OpenContent<'a>, ReadError> {
        if self
            .directory
            .as_ref()
            .is_none_or(|(id, _)| *id != path.directory)
        {
            let directory = open_directory(self.tree, path.directory)?;
            self.directory = Some((path.directory, directory));
        }
        let (_, directory) = self.directory.as_ref().ok_or(ReadError::Changed)?;
        let opened = beneath::open(directory, self.tree.host_name(path), OFlags::empty());
        let fd = opened.map_err(|errno| match errno {
            // The file, or a directory in its path, was replaced by a symbolic link.
            Errno::LOOP | Errno::NOTDIR => ReadError::Changed,
            errno => ReadError::from(errno),
        })?;
        Ok(OpenContent::Host(File::from(fd)))
    }

    /// Fills `buffer` with data from byte `at` on; holes and bytes after the end are zeroes.
    pub(crate) fn read(
        &self,
        node: NodeId,
        content: &OpenContent<'_>,
        at: u64,
        buffer: &mut [u8],
    ) -> Result<(), ReadError> {
        let Stored::File(stored) = &self.tree.node(node).stored else {
            let OpenContent::Bytes(bytes) = content else {
                return Err(ReadError::Changed);
            };
            copy_from(bytes, at, buffer);
            return Ok(());
        };
        if let Content::Sparse(sparse) = stored {
            buffer.fill(0);
            let end = at + buffer.len() as u64;
            let first = sparse
                .pieces
                .partition_point(|piece| piece.at + piece.len_bytes <= at);
            for piece in sparse
                .pieces
                .iter()
                .skip(first)
                .take_while(|piece| piece.at < end)
            {
                let from = piece.at.max(at);
                let to = (piece.at + piece.len_bytes).min(end);
                let place = to_index(from - at)..to_index(to - at);
                let part = buffer.get_mut(place).unwrap_or_default();
                read_exact(content, piece.from + (from - piece.at), part)?;
            }
            return Ok(());
        }
        let here = stored
            .len_bytes()
            .saturating_sub(at)
            .min(buffer.len() as u64);
        let (part, rest) = buffer.split_at_mut(to_index(here));
        rest.fill(0);
        read_exact(content, at, part)
    }

    /// Checks that a file did not change while it was read.
    pub(crate) fn check(&self, node: NodeId, content: &OpenContent<'_>) -> Result<(), ReadError> {
        let OpenContent::Host(file) = content else {
            return Ok(());
        };
        let found = file.metadata()?;
        let meta = self.tree.meta(node);
        let time = |seconds, nanoseconds: i64| {
            Timestamp::new(seconds, u32::try_from(nanoseconds).unwrap_or(0)).unwrap_or_default()
        };
        // One of them may differ legitimately: a manifest changes the mtime, a new hard link the
        // ctime.
        let content_changed = time(found.mtime(), found.mtime_nsec()) != meta.mtime;
        let object_changed = time(found.ctime(), found.ctime_nsec()) != meta.ctime;
        if found.len() != self.tree.len_bytes(node) || (content_changed && object_changed) {
            return Err(ReadError::Changed);
        }
        Ok(())
    }
}

/// Reads a regular file of a tree, from wherever its data is.
///
/// # Errors
/// `NotFound` if the tree has no regular file at `path`, `FileTooLarge` if it has more than
/// `most_bytes`, and those of reading the source.
pub fn read_file(tree: &mut Tree, path: &[u8], most_bytes: u64) -> io::Result<Vec<u8>> {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let found = tree.lookup(path).map_err(io::Error::other)?;
    let node = found.ok_or_else(missing)?;
    let tree = &*tree;
    if !matches!(tree.node(node).stored, Stored::File(_)) {
        return Err(missing());
    }
    let len_bytes = tree.len_bytes(node);
    if len_bytes > most_bytes {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut data = vec![0; to_index(len_bytes)];
    let mut reader = Reader::new(tree);
    let read = reader.open(node).and_then(|content| {
        reader.read(node, &content, 0, &mut data)?;
        reader.check(node, &content)
    });
    read.map(|()| data).map_err(|why| match why {
        ReadError::Io(why) => why,
        ReadError::Changed => io::Error::other("it changed while it was read"),
    })
}

fn open_file(tree: &Tree, id: crate::tree::FileId) -> Result<&File, ReadError> {
    tree.file(id).map(Arc::as_ref).ok_or(ReadError::Changed)
}

fn open_image(tree: &Tree, image: ImageId, inode: InodeNr) -> Result<OpenContent<'_>, ReadError> {
    let fs = tree.image(image).ok_or(ReadError::Changed)?;
    Ok(OpenContent::Image(fs, inode))
}

fn read_exact(content: &OpenContent<'_>, at: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
    let read = match content {
        OpenContent::Bytes(bytes) => {
            copy_from(bytes, at, buffer);
            return Ok(());
        }
        OpenContent::Host(file) => file.read_exact_at(buffer, at),
        OpenContent::Range(file, offset) => file.read_exact_at(buffer, offset + at),
        OpenContent::Image(fs, inode) => match fs.read_at(*inode, buffer, at) {
            Ok(count) if count == buffer.len() => return Ok(()),
            Ok(_) => return Err(ReadError::Changed),
            Err(why) => return Err(io::Error::other(why.to_string()).into()),
        },
    };
    match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(ReadError::Changed),
        other => Ok(other?),
    }
}

fn copy_from(bytes: &[u8], at: u64, buffer: &mut [u8]) {
    let rest = bytes.get(to_index(at)..).unwrap_or_default();
    let here = rest.len().min(buffer.len());
    let (part, after) = buffer.split_at_mut(here);
    part.copy_from_slice(&rest[..here]);
    after.fill(0);
}

fn to_index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Opens a directory of a source.
fn open_directory(tree: &Tree, id: HostDirId) -> Result<OwnedFd, ReadError> {
    let (root, names) = tree.host_dir(id).ok_or(ReadError::Changed)?;
    Ok(beneath::open_directory(root, &names.join(&b'/'))?)
}

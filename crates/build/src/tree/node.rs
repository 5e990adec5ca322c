//! **Purpose.** The representation of one object.
//!
//! **Model.** [`Meta`], [`Kind`] and [`Content`] are the public form. A `Node` stores the same in
//! 88 bytes, so that a million files cost about 150 MiB.

use fourscore_ondisk::inode::{DeviceNr, FileType};
use fourscore_ondisk::{InodeNr, Timestamp};

use super::arena::Text;
use super::xattrs::XattrSet;

/// Owner, permissions and times of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Permissions with set-user, set-group and sticky bits: the low 12 bits of a mode.
    pub permissions: u16,
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The project id; stored only with the feature `project`.
    pub project: u32,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last change of the data.
    pub mtime: Timestamp,
    /// Time of the last change of the inode.
    pub ctime: Timestamp,
}

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory; its entries are inserted on their own.
    Directory,
    /// A regular file.
    File(Content),
    /// A symbolic link with its target: 1 to 4095 bytes, no NUL.
    Symlink(Vec<u8>),
    /// A character device.
    CharDevice(DeviceNr),
    /// A block device.
    BlockDevice(DeviceNr),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// Where the data of a regular file is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The file is empty.
    Empty,
    /// In memory.
    Bytes(Box<[u8]>),
    /// In a file of a source directory, without holes.
    Host {
        /// The file.
        path: HostPath,
        /// Its length in bytes.
        len_bytes: u64,
    },
    /// In one range of an open file, such as an entry of a tar.
    Range {
        /// The file, see [`Tree::add_file`](super::Tree::add_file).
        file: FileId,
        /// The offset of the range in bytes.
        offset: u64,
        /// Its length in bytes.
        len_bytes: u64,
    },
    /// In a file of a file system image, without holes.
    Image {
        /// The file system, see [`Tree::add_image`](super::Tree::add_image).
        image: ImageId,
        /// The file.
        inode: InodeNr,
        /// Its length in bytes.
        len_bytes: u64,
    },
    /// In pieces, with holes.
    Sparse(Box<Sparse>),
}

impl Content {
    /// The length of the file in bytes, holes included.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Host { len_bytes, .. }
            | Self::Range { len_bytes, .. }
            | Self::Image { len_bytes, .. } => *len_bytes,
            Self::Sparse(sparse) => sparse.len_bytes,
        }
    }
}

/// A file with holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sparse {
    /// Where its data is stored.
    pub data: DataPlace,
    /// Its length in bytes, holes included.
    pub len_bytes: u64,
    /// The ranges with data: sorted, disjoint, below `len_bytes`.
    pub pieces: Vec<Piece>,
}

/// Unit to which ranges of data are rounded where they must not depend on how a source reports
/// holes.
pub(crate) const HOLE_UNIT_BYTES: u64 = 4096;

impl Sparse {
    /// The ranges with data, rounded to whole units: start and end.
    pub(crate) fn units(&self) -> Vec<(u64, u64)> {
        let mut units: Vec<(u64, u64)> = Vec::new();
        for piece in self.pieces.iter().filter(|piece| piece.len_bytes > 0) {
            let start = piece.at / HOLE_UNIT_BYTES * HOLE_UNIT_BYTES;
            let end = (piece.at + piece.len_bytes).next_multiple_of(HOLE_UNIT_BYTES);
            let end = end.min(self.len_bytes);
            match units.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => units.push((start, end)),
            }
        }
        units
    }
}

/// A range of a file with data. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the file.
    pub at: u64,
    /// Offset of the data where it is stored.
    pub from: u64,
    /// Its length.
    pub len_bytes: u64,
}

/// Where the data of a sparse file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlace {
    /// A file of a source directory.
    Host(HostPath),
    /// An open file.
    Open(FileId),
    /// A file of a file system image.
    Image(ImageId, InodeNr),
}

/// A file of a source directory, as a directory and a name in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPath {
    pub(crate) directory: HostDirId,
    pub(crate) name: Text,
}

/// A directory of the host at or below the root of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostDirId(pub(crate) u32);

/// An open file that holds file data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId(pub(crate) u32);

/// An open file system whose files are file data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageId(pub(crate) u32);

/// The same as [`Kind`], as the tree stores it.
#[derive(Debug)]
pub(crate) enum Stored {
    /// The number of its entry list.
    Directory(u32),
    File(Content),
    Symlink(Text),
    CharDevice(DeviceNr),
    BlockDevice(DeviceNr),
    Fifo,
    Socket,
}

impl Stored {
    pub(crate) fn file_type(&self) -> FileType {
        match self {
            Self::Directory(_) => FileType::Directory,
            Self::File(_) => FileType::Regular,
            Self::Symlink(_) => FileType::Symlink,
            Self::CharDevice(_) => FileType::CharDevice,
            Self::BlockDevice(_) => FileType::BlockDevice,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
        }
    }
}

/// An object of the tree. Seconds and nanoseconds are separate arrays to avoid padding.
#[derive(Debug)]
pub(crate) struct Node {
    seconds: [i64; 3],
    nanoseconds: [u32; 3],
    uid: u32,
    gid: u32,
    project: u32,
    pub(crate) xattrs: XattrSet,
    /// Number of names.
    pub(crate) links: u32,
    permissions: u16,
    pub(crate) stored: Stored,
}

const _: () = assert!(size_of::<Node>() <= 88);

impl Node {
    pub(crate) fn new(meta: &Meta, stored: Stored, xattrs: XattrSet) -> Self {
        let mut node = Self {
            seconds: [0; 3],
            nanoseconds: [0; 3],
            uid: 0,
            gid: 0,
            project: 0,
            xattrs,
            links: 0,
            permissions: 0,
            stored,
        };
        node.set_meta(meta);
        node
    }

    pub(crate) fn set_meta(&mut self, meta: &Meta) {
        let times = [meta.atime, meta.mtime, meta.ctime];
        self.seconds = times.map(Timestamp::seconds);
        self.nanoseconds = times.map(Timestamp::nanoseconds);
        (self.uid, self.gid, self.project) = (meta.uid, meta.gid, meta.project);
        self.permissions = meta.permissions & 0o7777;
    }

    pub(crate) fn meta(&self) -> Meta {
        let [a, b, c] = self.seconds;
        let [x, y, z] = self.nanoseconds;
        let time = |seconds, nanoseconds| Timestamp::new(seconds, nanoseconds).unwrap_or_default();
        Meta {
            permissions: self.permissions,
            uid: self.uid,
            gid: self.gid,
            project: self.project,
            atime: time(a, x),
            mtime: time(b, y),
            ctime: time(c, z),
        }
    }
}

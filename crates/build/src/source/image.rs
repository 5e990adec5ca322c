//! **Purpose.** Reads a file system of ext2, ext3 or ext4 as a source.
//!
//! **Model.** The image is opened read-only; a journal that is not empty is replayed in memory. One
//! thread walks the tree; file data is read later by all threads, through the same open file
//! system. An object with several names is inserted at the first of them.
//!
//! Inode flags that users set (`chattr`) have no place in the tree; they are left out with a
//! notice. Encrypted directories and files cannot be read without their key and are an error.
//!
//! **Invariants.** The walk of a damaged image terminates, since each directory is entered at most
//! once.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use fourscore::{FileType, Fs, OpenOptions, Seek, Stat};
use fourscore_block::{Access, BlockDevice, DeviceOptions, Window, open_path};
use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::{DeviceNr, InodeFlags};
use fourscore_sync::Arc;

use crate::source::Context;
use crate::source::fault::{Fault, SourceError};
use crate::target::Location;
use crate::tree::{
    Content, DataPlace, ImageId, Kind, Meta, NodeId, Piece, Sparse, Tree, Xattrs, is_supported,
};

/// Size of the metadata cache for the walk and for reading file data.
const CACHE_BYTES: usize = 256 << 20;

/// Adds the file system at byte `offset` of an image file or block device to the tree.
///
/// # Errors
/// An image that cannot be opened, is damaged, or has an object that cannot be stored; the error
/// names the object.
pub(super) fn add(
    tree: &mut Tree,
    path: &Path,
    offset: u64,
    context: &mut Context<'_>,
) -> Result<(), SourceError> {
    let place = match offset {
        0 => path.display().to_string(),
        offset => format!("{}@{offset}", path.display()),
    };
    let whole = |fault| SourceError {
        place: place.clone(),
        entry: None,
        fault,
    };
    let fs = open(tree, path, offset, &place, context).map_err(whole)?;
    let image = tree.add_image(Arc::clone(&fs)).map_err(Fault::from);
    let mut walk = Walk {
        fs: &fs,
        image: image.map_err(whole)?,
        tree,
        context,
        names: HashMap::new(),
        entered: HashSet::new(),
        buffer: Vec::new(),
    };
    let mut path = Vec::new();
    walk.run(&mut path).map_err(|fault| SourceError {
        place: place.clone(),
        entry: Some(if path.is_empty() { b"/".to_vec() } else { path }),
        fault,
    })
}

fn open(
    tree: &mut Tree,
    path: &Path,
    offset: u64,
    place: &str,
    context: &Context<'_>,
) -> Result<Arc<Fs>, Fault> {
    let device = Arc::new(open_path(path, DeviceOptions::default())?);
    let len_bytes = device.len_bytes();
    if offset >= len_bytes {
        return Err(Fault::BeyondEnd { len_bytes, offset });
    }
    let window = Window::from_offset(device, offset, Access::ReadOnly)?;
    let options = OpenOptions::new().cache_bytes(CACHE_BYTES);
    let fs = Fs::open(Arc::new(window), &options).map_err(Fault::FileSystem)?;
    let file = std::fs::File::open(path)?;
    let end = offset.saturating_add(fs.geometry().size_bytes());
    let location = Location::of(&file, offset..end)?;
    context.refuse_output(&location)?;
    // The image changes if the output is another partition of the same disk.
    let is_unchanging =
        !file.metadata()?.file_type().is_block_device() && !context.changes(&location);
    if is_unchanging {
        tree.watch_file(Arc::new(file), place)?;
    }
    Ok(fs)
}

/// Flags that users set and that the image does not preserve.
fn left_out_flags() -> InodeFlags {
    InodeFlags::SECRM_FL
        | InodeFlags::UNRM_FL
        | InodeFlags::COMPR_FL
        | InodeFlags::SYNC_FL
        | InodeFlags::IMMUTABLE_FL
        | InodeFlags::APPEND_FL
        | InodeFlags::NODUMP_FL
        | InodeFlags::NOATIME_FL
        | InodeFlags::JOURNAL_DATA_FL
        | InodeFlags::NOTAIL_FL
        | InodeFlags::DIRSYNC_FL
        | InodeFlags::TOPDIR_FL
        | InodeFlags::VERITY_FL
        | InodeFlags::DAX_FL
        | InodeFlags::PROJINHERIT_FL
        | InodeFlags::CASEFOLD_FL
}

struct Walk<'a, 'c> {
    fs: &'a Fs,
    image: ImageId,
    tree: &'a mut Tree,
    context: &'a mut Context<'c>,
    /// Nodes of objects with several names.
    names: HashMap<InodeNr, NodeId>,
    entered: HashSet<InodeNr>,
    /// Buffer for directory blocks.
    buffer: Vec<u8>,
}

/// A directory that is still to be walked.
struct Directory {
    inode: InodeNr,
    node: NodeId,
    path: Vec<u8>,
}

impl Walk<'_, '_> {
    /// Walks the whole tree. `at` is set to the path of the current object, for messages.
    fn run(&mut self, at: &mut Vec<u8>) -> Result<(), Fault> {
        let stat = self.fs.stat(InodeNr::ROOT).map_err(Fault::FileSystem)?;
        self.tree.set_meta(NodeId::ROOT, &meta(&stat));
        let xattrs = self.xattrs(&stat, b"/")?;
        self.tree.set_xattrs(NodeId::ROOT, &xattrs)?;
        let mut left = vec![Directory {
            inode: InodeNr::ROOT,
            node: NodeId::ROOT,
            path: Vec::new(),
        }];
        while let Some(directory) = left.pop() {
            at.clone_from(&directory.path);
            if !self.entered.insert(directory.inode) {
                return Err(Fault::EnteredTwice);
            }
            for (name, inode) in self.entries(directory.inode)? {
                at.clone_from(&directory.path);
                if !at.is_empty() {
                    at.push(b'/');
                }
                at.extend_from_slice(&name);
                if self.context.excludes.matches(at) {
                    continue;
                }
                if let Some(node) = self.object(&directory, &name, inode, at)? {
                    left.push(Directory {
                        inode,
                        node,
                        path: at.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    fn entries(&mut self, directory: InodeNr) -> Result<Vec<(Vec<u8>, InodeNr)>, Fault> {
        let mut entries = Vec::new();
        let listed = self.fs.scan_entries(directory, &mut self.buffer, |entry| {
            if !matches!(entry.name, b"." | b"..") {
                entries.push((entry.name.to_vec(), entry.inode));
            }
            ControlFlow::Continue(())
        });
        listed.map_err(Fault::FileSystem)?;
        Ok(entries)
    }

    /// Inserts the object of an entry; returns its node if it is a directory.
    fn object(
        &mut self,
        directory: &Directory,
        name: &[u8],
        inode: InodeNr,
        path: &[u8],
    ) -> Result<Option<NodeId>, Fault> {
        if let Some(&node) = self.names.get(&inode) {
            let before = self.tree.find(directory.node, name);
            self.tree.link_in(directory.node, name, before, node)?;
            return Ok(None);
        }
        let stat = self.fs.scan(inode).map_err(Fault::FileSystem)?.stat;
        let kind = self.kind(&stat)?;
        let xattrs = self.xattrs(&stat, path)?;
        let is_directory = matches!(kind, Kind::Directory);
        let node = self
            .tree
            .insert_in(directory.node, name, &meta(&stat), kind, &xattrs)?;
        if stat.links > 1 && !is_directory {
            self.names.insert(inode, node);
        }
        self.context.read_objects.add(1);
        Ok(is_directory.then_some(node))
    }

    fn kind(&self, stat: &Stat) -> Result<Kind, Fault> {
        if stat.flags.contains(InodeFlags::ENCRYPT_FL) {
            return Err(Fault::Encrypted);
        }
        let device = stat.device.unwrap_or(DeviceNr { major: 0, minor: 0 });
        Ok(match stat.file_type {
            FileType::Directory => Kind::Directory,
            FileType::Regular => Kind::File(self.content(stat)?),
            FileType::Symlink => {
                let target = self.fs.read_link(stat.inode);
                Kind::Symlink(target.map_err(Fault::FileSystem)?)
            }
            FileType::CharDevice => Kind::CharDevice(device),
            FileType::BlockDevice => Kind::BlockDevice(device),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
        })
    }

    /// Finds the data and holes of a file.
    fn content(&self, stat: &Stat) -> Result<Content, Fault> {
        let (image, inode, len_bytes) = (self.image, stat.inode, stat.size_bytes);
        let seek = |at, what| self.fs.seek(inode, at, what).map_err(Fault::FileSystem);
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < len_bytes {
            let Some(data) = seek(at, Seek::Data)? else {
                break;
            };
            let end = seek(data, Seek::Hole)?.unwrap_or(len_bytes).min(len_bytes);
            if end <= data {
                break;
            }
            pieces.push(Piece {
                at: data,
                from: data,
                len_bytes: end - data,
            });
            at = end;
        }
        Ok(match pieces.as_slice() {
            _ if len_bytes == 0 => Content::Empty,
            [whole] if whole.len_bytes == len_bytes => Content::Image {
                image,
                inode,
                len_bytes,
            },
            _ => Content::Sparse(Box::new(Sparse {
                data: DataPlace::Image(image, inode),
                len_bytes,
                pieces,
            })),
        })
    }

    /// The extended attributes of an object; adds notices for attributes and flags that are left
    /// out.
    fn xattrs(&mut self, stat: &Stat, path: &[u8]) -> Result<Xattrs, Fault> {
        let mut xattrs = Xattrs::new();
        for found in self.fs.xattrs(stat.inode).map_err(Fault::FileSystem)? {
            if is_supported(&found.name) {
                xattrs.set(&found.name, &found.value);
                continue;
            }
            let name = found.name.escape_ascii().to_string();
            self.context.notices.push_left_out(path, &name);
        }
        let flags = stat.flags & left_out_flags();
        if !flags.is_empty() {
            let bits = flags.bits();
            let path = path.escape_ascii();
            let notice = format!("{path}: its flags (chattr, {bits:#x}) are left out");
            self.context.notices.push(notice);
        }
        Ok(xattrs)
    }
}

fn meta(stat: &Stat) -> Meta {
    Meta {
        permissions: stat.mode.permissions(),
        uid: stat.uid,
        gid: stat.gid,
        project: stat.project_id,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
    }
}

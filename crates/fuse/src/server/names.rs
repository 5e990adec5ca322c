//! **Purpose.** Names: looking up, creating, linking, renaming and removing them.

use fourscore::{FileType, InodeNr, NewAttributes, OpenInode, Replace};
use fourscore_ondisk::inode::{FileMode, InodeFlags};

use super::attributes::decoded;
use super::{Call, Server, VALID_SECS};
use crate::abi::{
    CreateIn, EntryOut, InHeader, LinkIn, MkdirIn, MknodIn, OpenOut, Rename2In, RenameIn, fopen,
};
use crate::reply::{Errno, Reply};

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 1 << 1;
const RENAME_WHITEOUT: u32 = 1 << 2;

/// The attributes of a new inode. The kernel has cleared the set-group bit where necessary.
fn new_attributes(header: &InHeader, mode: u32, umask: u32) -> NewAttributes {
    let bits = |mode: u32, mask| u16::try_from(mode & mask).unwrap_or_default();
    NewAttributes::owned_by(header.uid, header.gid)
        .permissions(bits(mode, 0o7777))
        .umask(bits(umask, 0o777))
}

impl Server<'_> {
    /// How long a name in `dir` is valid in the kernel's cache, in seconds. In a case-insensitive
    /// directory the kernel does not know which cached names a change affects, so it is 0.
    pub(super) fn name_valid_secs(&self, dir: InodeNr) -> Result<u64, Errno> {
        let ignores_case =
            self.folds_case && self.fs.stat(dir)?.flags.contains(InodeFlags::CASEFOLD_FL);
        Ok(if ignores_case { 0 } else { VALID_SECS })
    }

    /// Replies with the inode that was found or created under a name in `dir`.
    fn push_entry_of(&self, dir: InodeNr, inode: InodeNr, reply: &mut Reply) -> Result<(), Errno> {
        let entry = self.entry(inode, self.name_valid_secs(dir)?, reply)?;
        reply.push(&entry)
    }

    pub(super) fn lookup(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let name = call.arguments.name()?;
        match self.fs.lookup(call.inode, name) {
            Ok(inode) => self.push_entry_of(call.inode, inode, reply),
            // A negative entry is valid for as long as a name, unless the directory may become
            // case-insensitive while the kernel has it: chattr(1) sends no notice of names.
            Err(fourscore::Error::NotFound) if self.fs.stat(call.inode).is_ok() => {
                reply.push(&EntryOut {
                    entry_valid: if self.folds_case { 0 } else { VALID_SECS },
                    ..EntryOut::default()
                })
            }
            // A lookup by inode number, for a file handle; the inode need not be a directory.
            Err(fourscore::Error::NotADirectory) if name == b"." => {
                let entry = self.entry(call.inode, VALID_SECS, reply)?;
                reply.push(&entry)
            }
            Err(fourscore::Error::NotFound) => Err(Errno::STALE),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn symlink(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let (name, target) = (call.arguments.name()?, call.arguments.name()?);
        let new = new_attributes(&call.header, 0o777, 0);
        let inode = self.fs.symlink(call.inode, name, target, &new)?;
        self.push_entry_of(call.inode, inode, reply)
    }

    pub(super) fn mknod(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: MknodIn = call.arguments.take()?;
        let name = call.arguments.name()?;
        let mode = FileMode(u16::try_from(wanted.mode).map_err(|_| Errno::INVAL)?);
        let file_type = FileType::from_mode(mode).ok_or(Errno::INVAL)?;
        let new = new_attributes(&call.header, wanted.mode, wanted.umask);
        let device = decoded(wanted.rdev);
        let inode = self.fs.mknod(call.inode, name, file_type, device, &new)?;
        self.push_entry_of(call.inode, inode, reply)
    }

    pub(super) fn mkdir(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: MkdirIn = call.arguments.take()?;
        let name = call.arguments.name()?;
        let new = new_attributes(&call.header, wanted.mode, wanted.umask);
        let inode = self.fs.mkdir(call.inode, name, &new)?;
        self.push_entry_of(call.inode, inode, reply)
    }

    pub(super) fn create(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: CreateIn = call.arguments.take()?;
        let name = call.arguments.name()?;
        let new = new_attributes(&call.header, wanted.mode, wanted.umask);
        let file = OpenInode::created(self.fs, call.inode, name, &new)?;
        let entry = self.entry_of_new(file, self.name_valid_secs(call.inode)?, reply)?;
        reply.push(&entry)?;
        reply.push(&OpenOut {
            open_flags: fopen::KEEP_CACHE,
            ..OpenOut::default()
        })
    }

    /// Creates a file without a name. The name in the request has no meaning.
    pub(super) fn tmpfile(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: CreateIn = call.arguments.take()?;
        let new = new_attributes(&call.header, wanted.mode, wanted.umask);
        let file = OpenInode::unnamed(self.fs, call.inode, &new)?;
        let entry = self.entry_of_new(file, VALID_SECS, reply)?;
        reply.push(&entry)?;
        reply.push(&OpenOut {
            open_flags: fopen::KEEP_CACHE,
            ..OpenOut::default()
        })
    }

    pub(super) fn link(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: LinkIn = call.arguments.take()?;
        let name = call.arguments.name()?;
        let inode = self.nodes.inode(wanted.oldnodeid)?;
        self.fs.link(inode, call.inode, name)?;
        self.push_entry_of(call.inode, inode, reply)
    }

    pub(super) fn unlink(&self, mut call: Call<'_>) -> Result<(), Errno> {
        Ok(self.fs.unlink(call.inode, call.arguments.name()?)?)
    }

    pub(super) fn rmdir(&self, mut call: Call<'_>) -> Result<(), Errno> {
        Ok(self.fs.rmdir(call.inode, call.arguments.name()?)?)
    }

    pub(super) fn rename(&self, mut call: Call<'_>) -> Result<(), Errno> {
        let wanted: RenameIn = call.arguments.take()?;
        self.renamed(call, wanted.newdir, 0)
    }

    pub(super) fn rename2(&self, mut call: Call<'_>) -> Result<(), Errno> {
        let wanted: Rename2In = call.arguments.take()?;
        self.renamed(call, wanted.newdir, wanted.flags)
    }

    fn renamed(&self, mut call: Call<'_>, to: u64, flags: u32) -> Result<(), Errno> {
        let from = (call.inode, call.arguments.name()?);
        let to = (self.nodes.inode(to)?, call.arguments.name()?);
        let replace = match flags & RENAME_NOREPLACE {
            0 => Replace::Yes,
            _ => Replace::No,
        };
        match flags & !RENAME_NOREPLACE {
            0 => Ok(self.fs.rename(from, to, replace)?),
            RENAME_EXCHANGE if flags == RENAME_EXCHANGE => Ok(self.fs.exchange(from, to)?),
            RENAME_WHITEOUT => {
                let owner = new_attributes(&call.header, 0, 0);
                Ok(self.fs.rename_leaving_whiteout(from, to, replace, &owner)?)
            }
            _ => Err(Errno::INVAL),
        }
    }
}

//! **Purpose.** Listing directories.

use fourscore::{Error, FileType};

use super::{Call, Server};
use crate::abi::{DIRENT_ALIGN, Dirent, EntryOut, OpenOut, ReadIn, ReleaseIn};
use crate::listing::Listed;
use crate::reply::{Errno, Reply};

/// The type of an entry, as getdents(2) tells it.
fn kind(file_type: Option<FileType>) -> u32 {
    file_type.map_or(0, |file_type| u32::from(file_type.mode_bits() >> 12))
}

/// The bytes of an entry's name and what follows it up to the next entry.
fn padded(name: &[u8]) -> usize {
    name.len().next_multiple_of(DIRENT_ALIGN)
}

fn push_entry(entry: &Listed<'_>, reply: &mut Reply) -> Result<(), Errno> {
    reply.push(&Dirent {
        ino: entry.inode.0.into(),
        off: entry.cookie,
        namelen: u32::try_from(entry.name.len()).unwrap_or(u32::MAX),
        kind: kind(entry.file_type),
    })?;
    reply.push_bytes(entry.name)?;
    reply.push_bytes(&[0; DIRENT_ALIGN][..padded(entry.name) - entry.name.len()])
}

impl Server<'_> {
    pub(super) fn opendir(&self, call: &Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        if self.fs.stat(call.inode)?.file_type != FileType::Directory {
            return Err(Error::NotADirectory.into());
        }
        // The kernel is not told that it may keep the list (`FOPEN_CACHE_DIR`): beside changes,
        // what it keeps is put together from replies to several lists, and lacks names.
        reply.push(&OpenOut {
            fh: self.listings.open(),
            ..OpenOut::default()
        })
    }

    pub(super) fn releasedir(&self, mut call: Call<'_>) -> Result<(), Errno> {
        let released: ReleaseIn = call.arguments.take()?;
        self.listings.close(released.fh);
        Ok(())
    }

    pub(super) fn readdir(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: ReadIn = call.arguments.take()?;
        let listing = self.listings.get(wanted.fh)?;
        let mut listing = listing.lock();
        listing.prepare(self.fs, call.inode, wanted.offset)?;
        for entry in listing.after(wanted.offset) {
            let bytes = size_of::<Dirent>() + padded(entry.name);
            if reply.len() + bytes > wanted.size as usize {
                break;
            }
            push_entry(&entry, reply)?;
        }
        self.was_read(call.inode, wanted.flags);
        Ok(())
    }

    pub(super) fn readdirplus(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: ReadIn = call.arguments.take()?;
        let listing = self.listings.get(wanted.fh)?;
        let mut listing = listing.lock();
        listing.prepare(self.fs, call.inode, wanted.offset)?;
        let name_valid_secs = self.name_valid_secs(call.inode)?;
        for mut entry in listing.after(wanted.offset) {
            let bytes = size_of::<EntryOut>() + size_of::<Dirent>() + padded(entry.name);
            if reply.len() + bytes > wanted.size as usize {
                break;
            }
            let mut told = EntryOut::default();
            if entry.name != b"." && entry.name != b".." {
                // The list may be older than the name: the kernel is told where it leads now.
                match self.fs.lookup_once(call.inode, entry.name) {
                    Ok(inode) => entry.inode = inode,
                    Err(Error::NotFound) => continue,
                    Err(error) => return Err(error.into()),
                }
                // An inode that cannot be read does not keep the others from being listed: who
                // asks for it is told why.
                let counted = reply.counted.len();
                match self.entry(entry.inode, name_valid_secs, reply) {
                    Ok(found) => told = found,
                    Err(_) => {
                        for inode in reply.counted.drain(counted..) {
                            self.nodes.forget(inode, 1);
                        }
                    }
                }
            }
            reply.push(&told)?;
            push_entry(&entry, reply)?;
        }
        self.was_read(call.inode, wanted.flags);
        Ok(())
    }
}

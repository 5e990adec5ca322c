//! **Purpose.** Listing directories: OPENDIR, READDIR, READDIRPLUS, RELEASEDIR.

use fourscore::{Error, FileType};

use super::{Call, Server};
use crate::abi::{DIRENT_ALIGN, Dirent, EntryOut, OpenOut, ReadIn, ReleaseIn};
use crate::listing::Listed;
use crate::reply::{Errno, Reply};

/// The type of an entry, as in getdents(2).
fn kind(file_type: Option<FileType>) -> u32 {
    file_type.map_or(0, |file_type| u32::from(file_type.mode_bits() >> 12))
}

/// The length of an entry's name with the padding up to the next entry.
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
        // The kernel must not cache the listing (`FOPEN_CACHE_DIR`): with concurrent changes it
        // would combine replies of several listings into one that lacks names.
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
        self.note_access(call.inode, wanted.flags);
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
            let mut entry_out = EntryOut::default();
            if entry.name != b"." && entry.name != b".." {
                // The listing may be outdated: look up the inode to which the name refers now.
                match self.fs.lookup_once(call.inode, entry.name) {
                    Ok(inode) => entry.inode = inode,
                    Err(Error::NotFound) => continue,
                    Err(error) => return Err(error.into()),
                }
                // An inode that cannot be read does not fail the listing; a lookup of it returns
                // the error.
                let lookups = reply.lookups.len();
                match self.entry(entry.inode, name_valid_secs, reply) {
                    Ok(found) => entry_out = found,
                    Err(_) => {
                        for inode in reply.lookups.drain(lookups..) {
                            self.nodes.forget(inode, 1);
                        }
                    }
                }
            }
            reply.push(&entry_out)?;
            push_entry(&entry, reply)?;
        }
        self.note_access(call.inode, wanted.flags);
        Ok(())
    }
}

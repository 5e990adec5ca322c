//! **Purpose.** Reads data that is kept inside the inode: that of small files and directories.
//!
//! **Model.** The first 60 bytes are `i_block`, the rest is the value of the attribute
//! `system.data` inside the inode.

use std::ops::ControlFlow;

use fourscore_ondisk::Corrupt;
use fourscore_ondisk::dirent::{DirFormat, Entry, EntryType};
use fourscore_ondisk::inline::{InlineData, InlineError};
use fourscore_ondisk::xattr::{self, Xattrs};

use crate::Result;
use crate::core::Core;
use crate::inode::cached::CachedInode;
use crate::xattr::format;

/// Returns the data of an inode that keeps it inside.
pub(crate) fn inline_data<'i>(core: &Core, inode: &'i CachedInode) -> Result<InlineData<'i>> {
    let area = inode.on_disk().xattr_area().unwrap_or_default();
    xattr::check_in_inode(area, format::ea_inodes(core))
        .map_err(|error| Corrupt::from(error).in_inode(inode.nr()))?;
    let data = InlineData::find(inode.i_block(), &Xattrs::in_inode(area));
    Ok(data.map_err(|error| Corrupt::from(error).in_inode(inode.nr()))?)
}

/// Calls `visit` for each entry of a directory inside its inode, first for `.` and `..`, which are
/// not stored as entries.
pub(crate) fn visit_inline_entries(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    visit: &mut dyn FnMut(&Entry<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    if dir.size_bytes() == 0 {
        // The directory was removed while it was open.
        return Ok(());
    }
    let place = |error: InlineError| Corrupt::from(error).in_inode(dir.nr());
    let entries = inline_data(core, dir)?.directory(format).map_err(place)?;
    entries.check().map_err(place)?;
    for (name, inode) in [(&b"."[..], dir.nr()), (b"..", entries.parent)] {
        let kind = EntryType::Directory;
        if visit(&Entry {
            at: 0,
            rec_len: 0,
            inode,
            name,
            kind,
            hash: None,
        })?
        .is_break()
        {
            return Ok(());
        }
    }
    for entry in entries.entries() {
        if visit(&entry.map_err(|error| place(error.into()))?)?.is_break() {
            return Ok(());
        }
    }
    Ok(())
}

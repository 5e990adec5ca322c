//! **Purpose.** The forms of extended attributes that the features of a file system allow: whether
//! values may be in inodes, and which numbers these inodes may have. Also the errors of refused
//! changes.

use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::xattr::{EaInodes, XattrEditError};
use fourscore_ondisk::{Corrupt, InodeNr};

use crate::Error;
use crate::core::Core;

pub(crate) fn ea_inodes(core: &Core) -> EaInodes {
    let sb = core.superblock();
    if sb.features().incompat.contains(Incompat::EA_INODE) {
        EaInodes::Between {
            first: sb.first_inode(),
            last: InodeNr(core.geometry().inodes()),
        }
    } else {
        EaInodes::Absent
    }
}

/// Returns the error of a change of the attributes of inode `nr` that was refused.
pub(crate) fn edit_error(error: XattrEditError, nr: InodeNr) -> Error {
    match error {
        XattrEditError::Area(error) => Corrupt::from(error).in_inode(nr).into(),
        XattrEditError::NoSpace { .. } => Error::NoSpace,
        XattrEditError::Name => Error::OutOfRange,
        XattrEditError::Absent => Error::NoAttribute,
    }
}

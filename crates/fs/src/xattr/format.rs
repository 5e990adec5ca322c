//! **Purpose.** The forms of extended attributes that the features of a file system allow: whether
//! values may be in inodes, and the range of valid inode numbers for these.

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::xattr::EaInodes;

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

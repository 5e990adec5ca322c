//! **Purpose.** Which forms of extended attributes a file system may have.

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

//! **Purpose.** Inodes, and what lies inside them: attributes, inline data, the roots of maps.
//!
//! **Input.** A seed image, a byte of switches, the number, the inode.

use fourscore_ondisk::inline::InlineData;
use fourscore_ondisk::inode::{self, Inode, InodeError};
use fourscore_ondisk::time::Timestamp;
use fourscore_ondisk::xattr::{self, EaInode, EaInodes, Xattrs};
use fourscore_ondisk::{InodeNr, PhysBlock, blockmap, extent};

use crate::images;
use crate::input::Input;
use crate::targets::SEAL;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let sb = &images::nth(input.u8()).superblock;
    let switches = input.u8();
    let nr = InodeNr(1 + u32::from(input.u16()) % sb.geometry().inodes());
    let mut bytes = input.bytes(sb.geometry().inode_size_bytes()).to_vec();
    let sealed = switches & SEAL != 0 && inode::seal(&mut bytes, nr, sb).is_ok();
    let inode = match Inode::parse(&bytes, nr, sb) {
        Ok(inode) => inode,
        Err(error) => {
            let wrong = matches!(error, InodeError::Checksum { .. });
            assert!(!(sealed && wrong), "{error}");
            return;
        }
    };
    read_fields(&inode);
    let blocks = PhysBlock(1)..PhysBlock(sb.geometry().blocks().0);
    let _roots = (
        extent::check_root(inode.i_block(), &blocks),
        blockmap::check_root(inode.i_block(), &blocks),
    );
    let Some(area) = inode.xattr_area() else {
        return;
    };
    let range = inode.xattr_range().expect("there is an area");
    assert!(range.len() == area.len() && range.end <= bytes.len());
    if xattr::check_in_inode(area, EaInodes::Absent).is_ok() {
        let xattrs = Xattrs::in_inode(area);
        for entry in xattrs.entries() {
            let entry = entry.expect("checked");
            assert!(
                xattrs
                    .find(entry.index, entry.name)
                    .expect("checked")
                    .is_some()
            );
        }
        if let Ok(inline) = InlineData::find(inode.i_block(), &xattrs) {
            let mut content = vec![1; inline.capacity_bytes() + 8];
            inline.read_at(u64::from(switches), &mut content);
            assert_eq!(content.last(), Some(&0));
        }
    }
}

/// Asks for everything an inode tells.
fn read_fields(inode: &Inode) {
    let owners = (
        inode.mode(),
        inode.file_type(),
        inode.uid(),
        inode.gid(),
        inode.project_id(),
    );
    let counts = (
        inode.size_bytes(),
        inode.sectors(),
        inode.links_count(),
        inode.flags(),
    );
    let identity = (
        inode.generation(),
        inode.version(),
        inode.dtime(),
        inode.file_acl(),
    );
    let device = (inode.device(), inode.extra_isize_bytes());
    assert!(!format!("{owners:?}{counts:?}{identity:?}{device:?}").is_empty());
    let _ea_inode = EaInode::of(inode.raw());
    for time in [inode.atime(), inode.mtime(), inode.ctime()]
        .into_iter()
        .chain(inode.crtime())
    {
        assert!(time.nanoseconds() < 1_000_000_000, "{time:?}");
        let (word, extra) = time.to_inode_words();
        assert_eq!(Timestamp::from_inode(word, Some(extra)), time);
    }
}

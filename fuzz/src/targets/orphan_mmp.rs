//! **Purpose.** Blocks of the orphan file, and MMP blocks.
//!
//! **Input.** A seed image, a byte of switches, the block.

use fourscore_ondisk::checksum::InodeGeneration;
use fourscore_ondisk::mmp::{MmpBlock, MmpError, RawMmp};
use fourscore_ondisk::orphan::{self, OrphanError};
use fourscore_ondisk::{InodeNr, PhysBlock};
use zerocopy::FromBytes;

use crate::images;
use crate::input::Input;
use crate::targets::SEAL;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let sb = &images::nth(input.u8()).superblock;
    let switches = input.u8();
    let mut block = input.bytes(sb.geometry().block_size().bytes()).to_vec();
    if let Ok((raw, _)) = RawMmp::mut_from_prefix(&mut block)
        && switches & SEAL != 0
    {
        raw.seal(sb);
    }
    match MmpBlock::parse(&block, sb) {
        Ok(mmp) => {
            assert!(mmp.node_name().len() <= 64 && mmp.device_name().len() <= 32);
            let _facts = (mmp.sequence(), mmp.time(), mmp.check_interval_seconds());
        }
        Err(MmpError::Checksum(error)) => assert_eq!(switches & SEAL, 0, "{error}"),
        Err(_) => {}
    }
    let seed = sb
        .checksum_seed()
        .for_inode(InodeNr(12), InodeGeneration(1));
    let place = PhysBlock(100);
    if switches & SEAL != 0 {
        let _has_a_place = orphan::seal(&mut block, place, seed, sb);
    }
    match orphan::parse(&block, place, seed, sb) {
        Ok(orphans) => {
            for (_, orphan) in orphans {
                assert!(orphan.0 > 0 && orphan.0 <= sb.geometry().inodes());
            }
        }
        Err(OrphanError::Checksum(error)) => assert_eq!(switches & SEAL, 0, "{error}"),
        Err(_) => {}
    }
}

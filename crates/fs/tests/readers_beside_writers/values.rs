//! Reads of attributes whose values are in inodes of their own, while the values are replaced.

use anyhow::{Context as _, Result, ensure};
use fourscore::{Fs, GroupNr, PhysBlock, SetXattr};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use std::ops::Range;

use crate::content::fill;
use crate::disk::{Disk, OWNER, ROOT, quiet, usual};

const NAME: &[u8] = b"user.value";
const BYTES: usize = 5000;

/// The blocks of the only group behind its metadata.
fn data_blocks(fs: &Fs) -> Range<PhysBlock> {
    let geometry = fs.geometry();
    let table = fs.group(GroupNr(0)).unwrap().inode_table();
    let blocks = geometry.inodes_per_group() / geometry.inodes_per_block();
    PhysBlock(table.0 + u64::from(blocks))..PhysBlock(geometry.blocks().0)
}

/// A read that has found the blocks of a value, and reads them after the value was replaced and its
/// blocks belong to another file.
#[test]
fn a_value_that_is_replaced_is_read_as_one_of_both() {
    require!(Need::Program("mke2fs"));
    read_beside_a_replacement().unwrap();
}

fn read_beside_a_replacement() -> Result<()> {
    let disk = Disk::of(&usual().features(&["ea_inode"]));
    let fs = disk.mount(&quiet());
    let file = fs.create(ROOT, b"file", &OWNER)?;
    fs.set_xattr(file, NAME, &[b'a'; BYTES], SetXattr::Any)?;
    fs.unmount()?;

    let fs = disk.mount(&quiet());
    let read = disk.stopped_at(
        data_blocks(&fs),
        || fs.xattr(file, NAME),
        || {
            fs.set_xattr(file, NAME, &[b'b'; BYTES], SetXattr::Any)
                .unwrap();
            fs.sync().unwrap();
            fill(&fs, b's');
        },
    );
    let read = read.context("the read")?;
    ensure!(
        read == [b'a'; BYTES] || read == [b'b'; BYTES],
        "neither value"
    );
    fs.unmount()?;
    Ok(())
}

//! **Purpose.** Tests that populated images of the kernel, mke2fs and debugfs are accepted: each
//! descriptor, bitmap and inode in use, with its checksum.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use fourscore_ondisk::group::GroupFlags;
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES};
use fourscore_ondisk::{
    GroupDesc, GroupNr, GroupOffset, Inode, PhysBlock, RawSuperblock, Superblock, inode,
};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{matrix, require};

/// Configurations with all formats of inodes, descriptors and checksums.
const SAMPLE: &[&str] = &[
    "ext4-1k-inode-1024",
    "ext4-4k-inode-128",
    "ext4-4k-inode-4096",
    "meta-bg",
    "bigalloc-1k-16k",
    "crc16",
    "crc16-32bit",
    "no-checksums",
    "csum-seed",
    "orphan-file",
    "project",
    "all-new-features",
];

fn read_at(file: &File, offset: u64, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn read_block(file: &File, sb: &Superblock, block: PhysBlock) -> Result<Vec<u8>> {
    let size = sb.geometry().block_size();
    read_at(file, size.offset(block), size.bytes())
}

/// Checks every inode whose bit is set; returns their number.
fn check_inodes(file: &File, sb: &Superblock, group: GroupNr, desc: &GroupDesc) -> Result<u32> {
    let geometry = sb.geometry();
    let bitmap = read_block(file, sb, desc.inode_bitmap())?;
    desc.verify_inode_bitmap(&bitmap, sb)?;
    let mut parsed = 0;
    for index in 0..geometry.inodes_per_group() {
        let number = geometry.inode_at(group, GroupOffset(index));
        let Some(number) = number.filter(|_| bitmap[index as usize / 8] >> (index % 8) & 1 == 1)
        else {
            continue;
        };
        let place = geometry.inode_place(desc.inode_table(), GroupOffset(index));
        let offset = geometry.block_size().offset(place.block) + place.offset_bytes as u64;
        let bytes = read_at(file, offset, geometry.inode_size_bytes())?;
        // Unused reserved inodes were never written.
        if bytes.iter().all(|&byte| byte == 0) {
            continue;
        }
        Inode::parse(&bytes, number, sb).with_context(|| format!("inode {number}"))?;
        let mut sealed = bytes.clone();
        inode::seal(&mut sealed, number, sb)?;
        anyhow::ensure!(sealed == bytes, "sealing changed inode {number}");
        parsed += 1;
    }
    Ok(parsed)
}

fn check(config: &matrix::Config) -> Result<()> {
    if !SAMPLE.contains(&config.name) {
        return Ok(());
    }
    let populated = config.populated()?;
    let file = File::open(populated.image.path())?;
    let bytes = read_at(&file, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES)?;
    let sb = Superblock::try_from(RawSuperblock::from_bytes(&bytes)?)?;
    let mut parsed = 0;
    for group in (0..sb.geometry().groups()).map(GroupNr) {
        let place = sb
            .geometry()
            .desc_place(group)
            .context("the group exists")?;
        let block = read_block(&file, &sb, place.block)?;
        let desc = GroupDesc::parse(&block[place.offset_bytes..], group, &sb)?;
        desc.check_counts(group, &sb)?;
        if !desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
            let bitmap = read_block(&file, &sb, desc.block_bitmap())?;
            desc.verify_block_bitmap(&bitmap, &sb)?;
        }
        if !desc.flags().contains(GroupFlags::INODE_UNINIT) {
            parsed +=
                check_inodes(&file, &sb, group, &desc).with_context(|| format!("group {group}"))?;
        }
    }
    anyhow::ensure!(parsed >= 100, "only {parsed} inodes were found");
    Ok(())
}

#[test]
fn populated_images_are_valid() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    matrix::assert_all(check);
}

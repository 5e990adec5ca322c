//! **Purpose.** Renews the checksums around a damage. A structure that no longer has a place for
//! its checksum is left unchanged.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::Result;
use fourscore_ondisk::dirent::DirFormat;
use fourscore_ondisk::group::{self, RawGroupDesc, RawGroupDescHigh};
use fourscore_ondisk::inode::{self, RawInode};
use fourscore_ondisk::jbd2::{JournalIncompat, RawJournalSuperblock};
use fourscore_ondisk::{
    Crc32c, InodeGeneration, InodeSeed, PhysBlock, RawSuperblock, extent, htree, orphan, xattr,
};
use zerocopy::{FromBytes, IntoBytes};

use super::anatomy::{Anatomy, Kind, Site};

/// Renews a checksum that depends on the structure alone.
pub(super) fn site(anatomy: &Anatomy, site: &Site, bytes: &mut [u8]) {
    let sb = anatomy.superblock();
    if site.kind == Kind::Descriptor {
        let _shape_is_gone = group::seal(bytes, site.group.unwrap_or_default(), sb).is_err();
    }
    if !sb.has_metadata_csum() {
        return;
    }
    match site.kind {
        Kind::Superblock => {
            if let Ok((raw, _)) = RawSuperblock::mut_from_prefix(bytes) {
                raw.seal();
            }
        }
        Kind::Journal => log(bytes),
        Kind::Inode => {
            let number = site.inode.unwrap_or_default();
            let _shape_is_gone = inode::seal(bytes, number, sb).is_err();
        }
        Kind::Xattrs => {
            let block = PhysBlock(site.at >> sb.geometry().block_size().bits());
            let _shape_is_gone = xattr::seal_block(bytes, block, sb.checksum_seed()).is_err();
        }
        _ => {}
    }
}

/// Renews the checksum of the journal's superblock, if its features require one.
fn log(bytes: &mut [u8]) {
    let has = JournalIncompat::CSUM_V2.union(JournalIncompat::CSUM_V3);
    let Ok((raw, _)) = RawJournalSuperblock::mut_from_prefix(bytes) else {
        return;
    };
    if JournalIncompat::from_bits_retain(raw.s_feature_incompat.get()).intersects(has) {
        raw.s_checksum = 0.into();
        let sum = Crc32c::START.update(raw.as_bytes()).value();
        raw.s_checksum = sum.into();
    }
}

/// Other bytes that change with a structure: offsets and new bytes.
pub(super) fn around(anatomy: &Anatomy, site: &Site, file: &File) -> Result<Vec<(u64, Vec<u8>)>> {
    if !anatomy.superblock().has_metadata_csum() {
        return Ok(Vec::new());
    }
    match site.kind {
        Kind::BlockBitmap | Kind::InodeBitmap => bitmap(anatomy, site, file),
        Kind::ExtentNode | Kind::Leaf | Kind::IndexRoot | Kind::IndexNode | Kind::Orphans => {
            own_block(anatomy, site, file)
        }
        _ => Ok(Vec::new()),
    }
}

/// Renews the checksum of a block that is seeded by its inode.
fn own_block(anatomy: &Anatomy, site: &Site, file: &File) -> Result<Vec<(u64, Vec<u8>)>> {
    let Some(seed) = seed(anatomy, site, file)? else {
        return Ok(Vec::new());
    };
    let mut bytes = vec![0; site.length];
    file.read_exact_at(&mut bytes, site.at)?;
    let sb = anatomy.superblock();
    let block = PhysBlock(site.at >> sb.geometry().block_size().bits());
    let _shape_is_gone = match site.kind {
        Kind::ExtentNode => extent::seal(&mut bytes, seed).is_err(),
        Kind::IndexRoot => htree::seal_root(&mut bytes, seed).is_err(),
        Kind::IndexNode => htree::seal_node(&mut bytes, seed).is_err(),
        Kind::Orphans => orphan::seal(&mut bytes, block, seed, sb).is_err(),
        _ => DirFormat::seal(&mut bytes, seed).is_err(),
    };
    Ok(vec![(site.at, bytes)])
}

fn seed(anatomy: &Anatomy, site: &Site, file: &File) -> Result<Option<InodeSeed>> {
    let Some((number, at)) = site
        .inode
        .and_then(|number| Some((number, anatomy.inode(number)?)))
    else {
        return Ok(None);
    };
    let mut bytes = [0; size_of::<RawInode>()];
    file.read_exact_at(&mut bytes, at)?;
    let generation = RawInode::ref_from_bytes(&bytes).map_or(0, |raw| raw.i_generation.get());
    let seed = anatomy.superblock().checksum_seed();
    Ok(Some(seed.for_inode(number, InodeGeneration(generation))))
}

/// Renews the checksum of a bitmap in its descriptor.
fn bitmap(anatomy: &Anatomy, site: &Site, file: &File) -> Result<Vec<(u64, Vec<u8>)>> {
    let sb = anatomy.superblock();
    let geometry = sb.geometry();
    let group = site.group.unwrap_or_default();
    let Some(at) = anatomy.descriptor(group) else {
        return Ok(Vec::new());
    };
    let bits = match site.kind {
        Kind::BlockBitmap => geometry.clusters_per_group(),
        _ => geometry.inodes_per_group(),
    };
    let mut covered = vec![0; bits as usize / 8];
    file.read_exact_at(&mut covered, site.at)?;
    let sum = sb.checksum_seed().start().update(&covered).value();
    let [a, b, c, d] = sum.to_le_bytes();
    let (low_half, high_half) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
    let mut desc = vec![0; geometry.desc_size_bytes()];
    file.read_exact_at(&mut desc, at)?;
    if let Ok((low, rest)) = RawGroupDesc::mut_from_prefix(&mut desc) {
        let high = RawGroupDescHigh::mut_from_prefix(rest).ok();
        if site.kind == Kind::BlockBitmap {
            low.bg_block_bitmap_csum_lo = low_half.into();
        } else {
            low.bg_inode_bitmap_csum_lo = low_half.into();
        }
        if let Some((high, _)) = high {
            if site.kind == Kind::BlockBitmap {
                high.bg_block_bitmap_csum_hi = high_half.into();
            } else {
                high.bg_inode_bitmap_csum_hi = high_half.into();
            }
        }
    }
    let _shape_is_gone = group::seal(&mut desc, group, sb).is_err();
    Ok(vec![(at, desc)])
}

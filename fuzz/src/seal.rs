//! **Purpose.** Which checksums a seed image has, and renewing them after changes.
//!
//! **Model.** The unchanged image tells what each block is; a changed block is sealed as what it
//! was. So a change inside a structure gets past its checksum, while a block that a change put to
//! another use keeps a wrong one. (Images without checksums have that freedom.)
//!
//! The copies in a log are blocks with a home: they are sealed as what their home is, then the log
//! around them.

use std::collections::BTreeMap;

use fourscore::Fs;
use fourscore_ondisk::checksum::{ChecksumSeed, InodeGeneration, InodeSeed};
use fourscore_ondisk::dirent::DirFormat;
use fourscore_ondisk::extent::{self, LOGICAL_END, Node};
use fourscore_ondisk::geometry::{BytePlace, Geometry};
use fourscore_ondisk::group::{self, RawGroupDesc, RawGroupDescHigh};
use fourscore_ondisk::inode::{self, FileType, Inode, InodeFlags, RawInode};
use fourscore_ondisk::mmp::RawMmp;
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, Superblock};
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock, RawSuperblock, htree, orphan, xattr};
use zerocopy::FromBytes;

use crate::device::Patched;
use crate::images::SeedImage;

mod log;
mod values;

pub use log::seal_log;
use values::Value;

/// Something with a checksum in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seal {
    Superblock(usize),
    Group(GroupNr, usize),
    Inode(InodeNr, usize),
    ExtentNode(InodeNr),
    DirectoryLeaf(InodeNr),
    IndexRoot(InodeNr),
    IndexNode(InodeNr),
    Orphans(InodeNr),
    Xattrs,
    Mmp,
}

/// The bitmaps of a group, and where its descriptor is.
#[derive(Clone, Copy, Debug)]
struct Bitmaps {
    desc: BytePlace,
    block_bitmap: PhysBlock,
    inode_bitmap: PhysBlock,
}

/// The checksums of an image.
#[derive(Debug, Default)]
pub struct Seals {
    by_block: BTreeMap<u32, Vec<Seal>>,
    inodes: BTreeMap<InodeNr, BytePlace>,
    bitmaps: Vec<Bitmaps>,
    values: Vec<Value>,
}

impl Seals {
    /// Finds them by walking every structure of a file system without faults.
    #[must_use]
    pub fn find(fs: &Fs) -> Self {
        let mut seals = Self::default();
        if !fs.superblock().has_metadata_csum() {
            return seals;
        }
        let geometry = fs.geometry();
        let (block, at) = super_place(geometry);
        seals.add(block, Seal::Superblock(at));
        if let Some(block) = fs.superblock().mmp_block() {
            seals.add(block, Seal::Mmp);
        }
        for nr in 0..geometry.groups() {
            let group = GroupNr(nr);
            let (Some(desc), Ok(parsed)) = (geometry.desc_place(group), fs.group(group)) else {
                continue;
            };
            seals.add(desc.block, Seal::Group(group, desc.offset_bytes));
            seals.bitmaps.push(Bitmaps {
                desc,
                block_bitmap: parsed.block_bitmap(),
                inode_bitmap: parsed.inode_bitmap(),
            });
        }
        for nr in 1..=geometry.inodes() {
            seals.find_in_inode(fs, InodeNr(nr));
        }
        seals
    }

    fn add(&mut self, block: PhysBlock, seal: Seal) {
        let seals = self.by_block.entry(u32::try_from(block.0).unwrap_or(0));
        seals.or_default().push(seal);
    }

    fn find_in_inode(&mut self, fs: &Fs, nr: InodeNr) -> Option<()> {
        let (group, index) = fs.geometry().inode_group(nr)?;
        let table = fs.group(group).ok()?.inode_table();
        let place = fs.geometry().inode_place(table, index);
        let block = read_block(fs, place.block)?;
        let bytes = block
            .get(place.offset_bytes..)?
            .get(..fs.geometry().inode_size_bytes())?;
        if bytes.iter().all(|&byte| byte == 0) {
            return None;
        }
        self.add(place.block, Seal::Inode(nr, place.offset_bytes));
        self.inodes.insert(nr, place);
        let inode = Inode::parse(bytes, nr, fs.superblock()).ok()?;
        if let Some(block) = inode.file_acl() {
            self.add(block, Seal::Xattrs);
        }
        if inode.flags().contains(InodeFlags::EXTENTS_FL) {
            self.find_nodes(fs, nr, inode.i_block());
        }
        if inode.flags().contains(InodeFlags::EA_INODE_FL) {
            self.values.extend(Value::find(&inode, place));
        }
        let is_orphan_file = fs.superblock().orphan_file_inode() == Some(nr);
        let is_directory = inode.file_type() == Some(FileType::Directory);
        if !is_directory && !is_orphan_file {
            return None;
        }
        for extent in fs.extents(nr).unwrap_or_default() {
            for nth in 0..extent.blocks {
                let block = PhysBlock(extent.physical.0 + u64::from(nth));
                let seal = if is_orphan_file {
                    Seal::Orphans(nr)
                } else if !inode.flags().contains(InodeFlags::INDEX_FL) {
                    Seal::DirectoryLeaf(nr)
                } else if extent.logical.0 + nth == 0 {
                    Seal::IndexRoot(nr)
                } else if htree::looks_like_node(&read_block(fs, block)?) {
                    Seal::IndexNode(nr)
                } else {
                    Seal::DirectoryLeaf(nr)
                };
                self.add(block, seal);
            }
        }
        None
    }

    /// The nodes below one whose bytes are `node`.
    fn find_nodes(&mut self, fs: &Fs, nr: InodeNr, node: &[u8]) -> Option<()> {
        let Ok(Node::Inner(inner)) = Node::parse(node) else {
            return None;
        };
        for position in 0..inner.len() {
            let child = inner.get(position, LOGICAL_END)?;
            self.add(child.block, Seal::ExtentNode(nr));
            self.find_nodes(fs, nr, &read_block(fs, child.block)?);
        }
        None
    }
}

/// The block with the primary superblock, and where it begins in it.
fn super_place(geometry: &Geometry) -> (PhysBlock, usize) {
    let block = geometry.super_block();
    let at = SUPERBLOCK_OFFSET_BYTES - geometry.block_size().offset(block);
    (block, usize::try_from(at).unwrap_or(0))
}

fn read_block(fs: &Fs, block: PhysBlock) -> Option<Vec<u8>> {
    let mut bytes = vec![0; fs.geometry().block_size().bytes()];
    let offset = fs.geometry().block_size().offset(block);
    fs.device().read_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

/// Renews the checksums of everything that was changed in `device`, whose base is `image`.
pub fn reseal(device: &mut Patched, image: &SeedImage) {
    let seals = &image.seals;
    let sealer = Sealer::new(device, image);
    for bitmaps in &seals.bitmaps {
        sealer.bitmaps(device, bitmaps);
    }
    // The checksum of a value is covered by that of its inode.
    if let Some(sb) = &sealer.superblock {
        for value in &seals.values {
            value.seal(device, sb.checksum_seed(), sealer.everything_changed);
        }
    }
    let in_place: Vec<u32> = seals.by_block.keys().copied().collect();
    for block in in_place {
        let was_changed = device.is_changed(block as usize);
        if was_changed || sealer.everything_changed {
            sealer.block(block, device.block_mut(block as usize));
        }
    }
    seal_log(
        device,
        &image.journal,
        image.superblock.geometry().inode_size_bytes(),
        |home, copy| {
            sealer.block(home, copy);
        },
    );
}

/// What is needed to seal the blocks of one image after its changes.
struct Sealer<'a> {
    seals: &'a Seals,
    superblock: Option<Superblock>,
    generations: BTreeMap<InodeNr, InodeGeneration>,
    everything_changed: bool,
}

impl<'a> Sealer<'a> {
    fn new(device: &mut Patched, image: &'a SeedImage) -> Self {
        let (block, at) = super_place(image.superblock.geometry());
        let block = usize::try_from(block.0).unwrap_or(1);
        let superblock = if device.is_changed(block) {
            let bytes = device.block_mut(block).get_mut(at..).unwrap_or_default();
            let raw = RawSuperblock::mut_from_prefix(bytes).ok();
            raw.and_then(|(raw, _)| {
                raw.seal();
                Superblock::try_from(&*raw).ok()
            })
        } else {
            Some(image.superblock.clone())
        };
        let seed = superblock.as_ref().map(Superblock::checksum_seed);
        let everything_changed =
            seed.is_some_and(|seed| seed.value() != image.superblock.checksum_seed().value());
        let generation = |place: &BytePlace| {
            let block = device.block(usize::try_from(place.block.0).unwrap_or(0));
            let inode = block.get(place.offset_bytes..)?;
            let (raw, _) = RawInode::ref_from_prefix(inode).ok()?;
            Some(InodeGeneration(raw.i_generation.get()))
        };
        let generations = image.seals.inodes.iter();
        let generations = generations
            .filter_map(|(&nr, place)| Some((nr, generation(place)?)))
            .collect();
        Self {
            seals: &image.seals,
            superblock,
            generations,
            everything_changed,
        }
    }

    /// Stores the checksums of a group's bitmaps in its descriptor.
    fn bitmaps(&self, device: &mut Patched, group: &Bitmaps) {
        let Some(sb) = &self.superblock else { return };
        let at = |block: PhysBlock| usize::try_from(block.0).unwrap_or(0);
        let blocks = [group.block_bitmap, group.inode_bitmap].map(at);
        let changed = blocks.iter().any(|&block| device.is_changed(block));
        if !changed && !self.everything_changed {
            return;
        }
        let bits = [
            sb.geometry().clusters_per_group(),
            sb.geometry().inodes_per_group(),
        ];
        let [blocks, inodes] = [(blocks[0], bits[0]), (blocks[1], bits[1])].map(|(block, bits)| {
            let covered = device.block(block).get(..bits as usize / 8);
            sb.checksum_seed()
                .start()
                .update(covered.unwrap_or_default())
                .value()
        });
        let block = device.block_mut(at(group.desc.block));
        let Some(desc) = block.get_mut(group.desc.offset_bytes..) else {
            return;
        };
        let halves = |sum: u32| {
            let [a, b, c, d] = sum.to_le_bytes();
            (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
        };
        if let Ok((low, rest)) = RawGroupDesc::mut_from_prefix(desc) {
            low.bg_block_bitmap_csum_lo = halves(blocks).0.into();
            low.bg_inode_bitmap_csum_lo = halves(inodes).0.into();
            if sb.geometry().desc_size_bytes() >= 64
                && let Ok((high, _)) = RawGroupDescHigh::mut_from_prefix(rest)
            {
                high.bg_block_bitmap_csum_hi = halves(blocks).1.into();
                high.bg_inode_bitmap_csum_hi = halves(inodes).1.into();
            }
        }
    }

    fn inode_seed(&self, nr: InodeNr, seed: ChecksumSeed) -> InodeSeed {
        let generation = self.generations.get(&nr);
        seed.for_inode(nr, generation.copied().unwrap_or(InodeGeneration(0)))
    }

    /// Seals `bytes` as the content of block `home`. What no longer has the shape that a checksum
    /// is kept in stays as it is.
    fn block(&self, home: u32, bytes: &mut [u8]) {
        let Some(sb) = &self.superblock else { return };
        let place = PhysBlock(home.into());
        for &seal in self.seals.by_block.get(&home).into_iter().flatten() {
            let seed = |nr| self.inode_seed(nr, sb.checksum_seed());
            let _shape_is_gone = match seal {
                Seal::Superblock(at) => {
                    RawSuperblock::mut_from_prefix(bytes.get_mut(at..).unwrap_or_default())
                        .map(|(raw, _)| raw.seal())
                        .is_err()
                }
                Seal::Mmp => RawMmp::mut_from_prefix(bytes)
                    .map(|(raw, _)| raw.seal(sb))
                    .is_err(),
                Seal::Group(nr, at) => {
                    group::seal(bytes.get_mut(at..).unwrap_or_default(), nr, sb).is_err()
                }
                Seal::Inode(nr, at) => {
                    inode::seal(bytes.get_mut(at..).unwrap_or_default(), nr, sb).is_err()
                }
                Seal::ExtentNode(nr) => extent::seal(bytes, seed(nr)).is_err(),
                Seal::DirectoryLeaf(nr) => DirFormat::seal(bytes, seed(nr)).is_err(),
                Seal::IndexRoot(nr) => htree::seal_root(bytes, seed(nr)).is_err(),
                Seal::IndexNode(nr) => htree::seal_node(bytes, seed(nr)).is_err(),
                Seal::Orphans(nr) => orphan::seal(bytes, place, seed(nr), sb).is_err(),
                Seal::Xattrs => xattr::seal_block(bytes, place, sb.checksum_seed()).is_err(),
            };
        }
    }
}

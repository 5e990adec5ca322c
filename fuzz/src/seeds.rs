//! **Purpose.** First inputs for every target, cut out of the seed images.
//!
//! They are made when they are needed instead of being kept in git: the images are the source.

use std::collections::BTreeSet;

use fourscore_ondisk::geometry::BytePlace;
use fourscore_ondisk::group::GroupDesc;
use fourscore_ondisk::inode::Inode;
use fourscore_ondisk::jbd2::MAGIC;
use fourscore_ondisk::{GroupNr, InodeNr};

use crate::device::BLOCK_BYTES;
use crate::images::{self, SeedImage};
use crate::targets::SEAL;

/// Two bytes that begin an input of most targets.
fn head(image: usize, switches: u8) -> [u8; 2] {
    [u8::try_from(image).unwrap_or(0), switches]
}

/// The first inputs of the target with this name; each different from the others.
///
/// # Panics
/// If there is no such target.
#[must_use]
pub fn of(target: &str) -> BTreeSet<Vec<u8>> {
    let mut inputs = BTreeSet::new();
    for (nth, image) in images::all().iter().enumerate() {
        match target {
            "superblock" => {
                inputs.insert([&[SEAL][..], &image.bytes[1024..2048]].concat());
            }
            "group" => inputs.extend(groups(nth, image)),
            "inode" => inputs.extend(inodes(image).map(|(nr, bytes)| {
                let nr = u16::try_from(nr.0 - 1).unwrap_or(0).to_le_bytes();
                [&head(nth, SEAL)[..], &nr, bytes].concat()
            })),
            "map" => inputs.extend(maps(image)),
            "directory" => inputs.extend(
                blocks(image)
                    .flat_map(|block| [0, 3].map(|switches| [&[switches, 0][..], block].concat())),
            ),
            "attributes" => inputs.extend(attributes(image)),
            "jbd2" => inputs.extend(log_blocks(image).flat_map(|block| {
                [0, 2, 7, 14].map(|switches| [&[switches | SEAL][..], block].concat())
            })),
            "fast_commit" => {
                inputs.extend(log_blocks(image).map(|block| [&[1][..], block].concat()));
            }
            "orphan_mmp" => {
                inputs.extend(blocks(image).map(|block| [&head(nth, SEAL)[..], block].concat()));
            }
            "image" | "check" => {
                inputs.extend([0, SEAL, 2].map(|switches| head(nth, switches).to_vec()));
                inputs.insert([&head(nth, SEAL)[..], &CHANGES].concat());
            }
            "recovery" => {
                inputs.insert([&head(nth, SEAL)[..], &CHANGES].concat());
            }
            other => panic!("no target {other}"),
        }
    }
    inputs
}

/// One change of each kind that tells block numbers, so that a mutation finds the form.
const CHANGES: [u8; 24] = [
    0x04, 9, 40, 0, 1, 0, 0, 0, 0x07, 10, 60, 0, 12, 0, 0, 0, 0x09, 11, 0, 0, 12, 0, 0, 0,
];

/// The blocks that the targets for single blocks take: theirs are small.
fn blocks(image: &SeedImage) -> impl Iterator<Item = &'static [u8]> {
    let blocks = image.blocks.iter().map(|&nr| image.block(nr as usize));
    blocks.filter(|block| block.len() == BLOCK_BYTES)
}

fn log_blocks(image: &SeedImage) -> impl Iterator<Item = &'static [u8]> {
    let log = image.log_blocks().into_iter();
    let blocks = log.map(|nr| image.block(nr as usize));
    blocks
        .filter(|block| block.starts_with(&MAGIC.to_be_bytes()) || block[1] == 0)
        .take(40)
}

fn groups(nth: usize, image: &SeedImage) -> impl Iterator<Item = Vec<u8>> {
    let geometry = image.superblock.geometry();
    let places = (0..geometry.groups().min(8)).filter_map(move |nr| {
        let place = geometry.desc_place(GroupNr(nr))?;
        let desc = in_place(image, place)?;
        Some((nr, desc.get(..geometry.desc_size_bytes())?))
    });
    places.map(move |(nr, desc)| {
        let nr = u8::try_from(nr).unwrap_or(0);
        [&head(nth, SEAL)[..], &[nr], desc, &[0xff; 256]].concat()
    })
}

/// What begins at `place`, to the end of the block.
fn in_place(image: &SeedImage, place: BytePlace) -> Option<&'static [u8]> {
    let block = usize::try_from(place.block.0).ok()?;
    image.block(block).get(place.offset_bytes..)
}

/// The inodes in use, as they are in place.
fn inodes(image: &SeedImage) -> impl Iterator<Item = (InodeNr, &'static [u8])> {
    let geometry = image.superblock.geometry();
    (1..=geometry.inodes().min(4096)).filter_map(move |nr| {
        let (group, index) = geometry.inode_group(InodeNr(nr))?;
        let desc = in_place(image, geometry.desc_place(group)?)?;
        let desc = GroupDesc::parse(desc, group, &image.superblock).ok()?;
        let place = geometry.inode_place(desc.inode_table(), index);
        let inode = in_place(image, place)?.get(..geometry.inode_size_bytes())?;
        inode
            .iter()
            .any(|&byte| byte != 0)
            .then_some((InodeNr(nr), inode))
    })
}

/// The roots of maps, each with the blocks that its first words point to.
fn maps(image: &SeedImage) -> impl Iterator<Item = Vec<u8>> {
    inodes(image).filter_map(move |(nr, inode)| {
        let inode = Inode::parse(inode, nr, &image.superblock).ok()?;
        let i_block = inode.i_block();
        // The child of the first index entry, and the three indirect blocks.
        let words = [4, 12, 13, 14].map(|word| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|byte| i_block[word * 4 + byte]);
            u32::from_le_bytes([a, b, c, d]) as usize
        });
        let below = words.map(|block| {
            let mut below = image.block(block).to_vec();
            below.resize(BLOCK_BYTES, 0);
            below
        });
        Some([&[SEAL | 2, 0, 0, 0, 0][..], i_block, &below.concat()].concat())
    })
}

fn attributes(image: &SeedImage) -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    let mut put = |what: u8, bytes: &[u8]| {
        inputs.push([&[SEAL | 6, what, 0, 0, 0, 0][..], bytes].concat());
    };
    for (nr, bytes) in inodes(image) {
        let Ok(inode) = Inode::parse(bytes, nr, &image.superblock) else {
            continue;
        };
        if let Some(area) = inode.xattr_area() {
            put(0, area);
            put(5, &[&inode.i_block()[..], area].concat());
        }
        put(3, inode.i_block());
    }
    for block in blocks(image).filter(|block| block.starts_with(&[0, 0, 2, 0xea])) {
        put(1, block);
        for at in (32..BLOCK_BYTES).step_by(52) {
            put(2, &block[at..]);
            put(4, &block[at..]);
        }
    }
    inputs
}

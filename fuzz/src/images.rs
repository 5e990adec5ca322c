//! **Purpose.** The seed images: small real file systems, made by mke2fs and the kernel, each for a
//! few features. `cargo run -p fourscore-fuzz --example make_images` made them.
//!
//! **Model.** Most have blocks of 1 KiB, so that a mutation is likely to hit what matters; `4k` and
//! `64k` are there for what depends on the block size: where the superblock lies, lengths of
//! records that do not fit 16 bits, bitmaps longer than their group.

use std::collections::BTreeSet;

use fourscore::{Fs, OpenOptions};
use fourscore_ondisk::RawSuperblock;
use fourscore_ondisk::superblock::{
    JournalPlace, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, Superblock,
};
use fourscore_sync::{Arc, OnceLock};

use crate::device::Patched;
use crate::seal::Seals;
use crate::sparse;

macro_rules! images {
    ($($name:literal)+) => {
        /// The names of the images and their files.
        const FILES: &[(&str, &[u8])] = &[
            $(($name, include_bytes!(concat!("../images/", $name, ".sparse"))),)+
        ];
    };
}

images! {
    "ext2" "ext3-dirty" "ext4" "ext4-dirty" "fast-commit" "inline" "bigalloc" "casefold" "encrypt"
    "meta-bg" "htree" "orphan-file" "checksum-v1" "large-inode" "htree-deep" "4k" "64k"
}

/// A seed image.
#[derive(Debug)]
pub struct SeedImage {
    /// Its name.
    pub name: &'static str,
    /// All of it.
    pub bytes: &'static [u8],
    /// Its superblock, as it is in place.
    pub superblock: Superblock,
    /// The blocks that are not all zeroes, in order.
    pub blocks: Vec<u32>,
    /// The blocks of the journal, in journal order; none without a journal.
    pub journal: Vec<u32>,
    /// Its checksums.
    pub seals: Seals,
}

/// All seed images.
pub fn all() -> &'static [SeedImage] {
    static ALL: OnceLock<Vec<SeedImage>> = OnceLock::new();
    ALL.get_or_init(|| {
        FILES
            .iter()
            .map(|&(name, file)| SeedImage::new(name, file))
            .collect()
    })
}

/// The seed image that a byte of an input chooses.
#[must_use]
pub fn nth(byte: u8) -> &'static SeedImage {
    &all()[usize::from(byte) % FILES.len()]
}

/// The seed image of this name.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn named(name: &str) -> &'static SeedImage {
    let image = all().iter().find(|image| image.name == name);
    image.unwrap_or_else(|| panic!("no seed image {name}"))
}

/// The seed images with a journal to be replayed.
pub fn dirty() -> &'static [&'static SeedImage] {
    static DIRTY: OnceLock<Vec<&SeedImage>> = OnceLock::new();
    DIRTY.get_or_init(|| all().iter().filter(|image| image.is_dirty()).collect())
}

impl SeedImage {
    fn new(name: &'static str, file: &[u8]) -> Self {
        let bytes: &'static [u8] = Vec::leak(sparse::decode(file));
        let superblock = superblock(bytes).unwrap_or_else(|| panic!("seed image {name}"));
        let block_size = superblock.geometry().block_size();
        let options = OpenOptions::new().cache_bytes(1 << 20);
        let fs = Fs::open(Arc::new(Patched::new(bytes, block_size)), &options)
            .unwrap_or_else(|error| panic!("seed image {name}: {error}"));
        let has_content =
            |(nr, block): (u32, &[u8])| block.iter().any(|&byte| byte != 0).then_some(nr);
        let blocks = (0..).zip(bytes.chunks(block_size.bytes()));
        Self {
            name,
            bytes,
            superblock,
            blocks: blocks.filter_map(has_content).collect(),
            journal: journal(&fs),
            seals: Seals::find(&fs),
        }
    }

    /// Whether its journal must be replayed.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let incompat = self.superblock.features().incompat;
        incompat.contains(fourscore_ondisk::features::Incompat::RECOVER)
    }

    /// The image without changes, as a device.
    #[must_use]
    pub fn device(&self) -> Patched {
        Patched::new(self.bytes, self.superblock.geometry().block_size())
    }

    /// The bytes of a block; none outside of the image.
    #[must_use]
    pub fn block(&self, block: usize) -> &'static [u8] {
        let block_bytes = self.superblock.geometry().block_size().bytes();
        let start = block.saturating_mul(block_bytes);
        let block = self.bytes.get(start..start.saturating_add(block_bytes));
        block.unwrap_or_default()
    }

    /// The blocks of the journal that are not all zeroes.
    #[must_use]
    pub fn log_blocks(&self) -> Vec<u32> {
        let journal: BTreeSet<u32> = self.journal.iter().copied().collect();
        let in_journal = |block: &&u32| journal.contains(*block);
        self.blocks.iter().filter(in_journal).copied().collect()
    }
}

/// The superblock of an image, if it is one that can be read.
#[must_use]
pub fn superblock(image: &[u8]) -> Option<Superblock> {
    let start = usize::try_from(SUPERBLOCK_OFFSET_BYTES).ok()?;
    let bytes = image.get(start..start + SUPERBLOCK_SIZE_BYTES)?;
    Superblock::try_from(RawSuperblock::from_bytes(bytes).ok()?).ok()
}

fn journal(fs: &Fs) -> Vec<u32> {
    let Some(JournalPlace::Inode(inode)) = fs.superblock().journal() else {
        return Vec::new();
    };
    let extents = fs.extents(inode).unwrap_or_default();
    let blocks = extents
        .iter()
        .flat_map(|extent| extent.physical.0..extent.physical.0 + u64::from(extent.blocks));
    blocks
        .filter_map(|block| u32::try_from(block).ok())
        .collect()
}

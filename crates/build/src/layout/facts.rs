//! **Purpose.** What the superblock says about the form of everything that is laid out.

use fourscore_mkfs::Skeleton;
use fourscore_ondisk::checksum::InodeGeneration;
use fourscore_ondisk::dirent::{DirFormat, NameForm, TypeByte};
use fourscore_ondisk::dirhash::{HashAlgorithm, NameHasher};
use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::inode::GOOD_OLD_INODE_SIZE_BYTES;
use fourscore_ondisk::{BlockSize, ChecksumSeed, InodeNr, InodeSeed};

/// Bytes of fields behind the first 128 of an inode: all that are defined.
pub(crate) const EXTRA_ISIZE: u16 = 32;

/// The form of what is laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) block_size: BlockSize,
    pub(crate) block_bits: u32,
    /// log2 of the blocks in a cluster.
    pub(crate) cluster_log: u32,
    pub(crate) inode_bytes: usize,
    pub(crate) extents: bool,
    pub(crate) dir_index: bool,
    pub(crate) type_byte: TypeByte,
    pub(crate) inodes_count: InodeNr,
    pub(crate) dir_nlink: bool,
    pub(crate) large_dir: bool,
    pub(crate) metadata_csum: bool,
    pub(crate) project: bool,
    pub(crate) huge_file: bool,
    pub(crate) ea_inode: bool,
    pub(crate) inline_data: bool,
    /// With `inline_data`, whether links too long for `i_block` are kept in inodes, as mke2fs makes
    /// them. The kernel gives them blocks; so they have them here where there is quota, for which
    /// e2fsck forgets to count a link without.
    pub(crate) inline_links: bool,
    pub(crate) hasher: NameHasher,
    pub(crate) hash_algorithm: HashAlgorithm,
    seed: ChecksumSeed,
}

impl Facts {
    /// `None` for a hash function that needs a key, which no file system has as its default.
    pub(crate) fn of(skeleton: &Skeleton) -> Option<Self> {
        let sb = skeleton.superblock();
        let features = sb.features();
        let hash_algorithm = HashAlgorithm::from_disk(sb.def_hash_version())?;
        let geometry = sb.geometry();
        Some(Self {
            block_size: geometry.block_size(),
            block_bits: geometry.block_size().bits(),
            cluster_log: geometry.blocks_per_cluster_log(),
            inode_bytes: geometry.inode_size_bytes(),
            extents: features.incompat.contains(Incompat::EXTENTS),
            dir_index: features.compat.contains(Compat::DIR_INDEX),
            type_byte: match features.incompat.contains(Incompat::FILETYPE) {
                true => TypeByte::Present,
                false => TypeByte::Absent,
            },
            inodes_count: InodeNr(geometry.inodes()),
            dir_nlink: features.ro_compat.contains(RoCompat::DIR_NLINK),
            large_dir: features.incompat.contains(Incompat::LARGEDIR),
            metadata_csum: sb.has_metadata_csum(),
            project: features.ro_compat.contains(RoCompat::PROJECT),
            huge_file: features.ro_compat.contains(RoCompat::HUGE_FILE),
            ea_inode: features.incompat.contains(Incompat::EA_INODE),
            inline_data: features.incompat.contains(Incompat::INLINE_DATA),
            inline_links: !skeleton.has_quota_files(),
            hasher: NameHasher::seeded(hash_algorithm, sb.hash_sign(), sb.hash_seed())?,
            hash_algorithm,
            seed: sb.checksum_seed(),
        })
    }

    pub(crate) fn block_bytes(&self) -> usize {
        1 << self.block_bits
    }

    /// Blocks that so many bytes take.
    pub(crate) fn blocks(&self, bytes: u64) -> u64 {
        bytes.div_ceil(1 << self.block_bits)
    }

    /// Blocks, rounded up to whole clusters.
    pub(crate) fn whole_clusters(&self, blocks: u64) -> u64 {
        blocks.next_multiple_of(1 << self.cluster_log)
    }

    /// Clusters that so many blocks in a row from the start of one take.
    pub(crate) fn clusters(&self, blocks: u64) -> u64 {
        blocks.div_ceil(1 << self.cluster_log)
    }

    /// The format of a directory's blocks. Lengths in it are the same for all directories.
    pub(crate) fn dir_format(&self, own: InodeNr) -> DirFormat {
        DirFormat {
            names: NameForm::Plain,
            type_byte: self.type_byte,
            inodes_count: self.inodes_count,
            seed: self.metadata_csum.then(|| self.seed(own)),
        }
    }

    /// The seed of an inode's checksums. All inodes made here are of generation 0.
    pub(crate) fn seed(&self, inode: InodeNr) -> InodeSeed {
        self.seed.for_inode(inode, InodeGeneration(0))
    }

    pub(crate) fn fs_seed(&self) -> ChecksumSeed {
        self.seed
    }

    /// Bytes for extended attributes inside an inode, the magic included.
    pub(crate) fn xattr_area_bytes(&self) -> usize {
        let fixed = GOOD_OLD_INODE_SIZE_BYTES + usize::from(EXTRA_ISIZE);
        self.inode_bytes.saturating_sub(fixed)
    }

    /// Whether inodes have the fields behind the first 128 bytes.
    pub(crate) fn has_extra(&self) -> bool {
        self.inode_bytes >= GOOD_OLD_INODE_SIZE_BYTES + usize::from(EXTRA_ISIZE)
    }
}

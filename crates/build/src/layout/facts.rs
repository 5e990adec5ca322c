//! **Purpose.** Parameters of the file system that the layout depends on.

use fourscore_mkfs::Skeleton;
use fourscore_ondisk::checksum::InodeGeneration;
use fourscore_ondisk::dirent::{DirFormat, NameForm, TypeByte};
use fourscore_ondisk::dirhash::{HashAlgorithm, NameHasher};
use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::inode::GOOD_OLD_INODE_SIZE_BYTES;
use fourscore_ondisk::{BlockSize, ChecksumSeed, InodeNr, InodeSeed};

/// Value of `i_extra_isize`: all fields after the first 128 bytes that are defined.
pub(crate) const EXTRA_ISIZE: u16 = 32;

/// Parameters of the file system.
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
    pub(crate) hasher: NameHasher,
    pub(crate) hash_algorithm: HashAlgorithm,
    seed: ChecksumSeed,
}

impl Facts {
    /// `None` for a hash function that needs a key, which is never the default of a file system.
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
            hasher: NameHasher::seeded(hash_algorithm, sb.hash_sign(), sb.hash_seed())?,
            hash_algorithm,
            seed: sb.checksum_seed(),
        })
    }

    pub(crate) fn block_bytes(&self) -> usize {
        1 << self.block_bits
    }

    /// Number of blocks of `bytes` bytes.
    pub(crate) fn blocks(&self, bytes: u64) -> u64 {
        bytes.div_ceil(1 << self.block_bits)
    }

    /// Rounds up to a multiple of the cluster size, in blocks.
    pub(crate) fn whole_clusters(&self, blocks: u64) -> u64 {
        blocks.next_multiple_of(1 << self.cluster_log)
    }

    /// Number of clusters of `blocks` contiguous blocks from the start of a cluster.
    pub(crate) fn clusters(&self, blocks: u64) -> u64 {
        blocks.div_ceil(1 << self.cluster_log)
    }

    /// The format of a directory's blocks. The sizes in it are the same for all directories.
    pub(crate) fn dir_format(&self, own: InodeNr) -> DirFormat {
        DirFormat {
            names: NameForm::Plain,
            type_byte: self.type_byte,
            inodes_count: self.inodes_count,
            seed: self.metadata_csum.then(|| self.seed(own)),
        }
    }

    /// The checksum seed of an inode. All new inodes have generation 0.
    pub(crate) fn seed(&self, inode: InodeNr) -> InodeSeed {
        self.seed.for_inode(inode, InodeGeneration(0))
    }

    pub(crate) fn fs_seed(&self) -> ChecksumSeed {
        self.seed
    }

    /// Size of the space for extended attributes in an inode, including the magic.
    pub(crate) fn xattr_area_bytes(&self) -> usize {
        let fixed = GOOD_OLD_INODE_SIZE_BYTES + usize::from(EXTRA_ISIZE);
        self.inode_bytes.saturating_sub(fixed)
    }

    /// Whether inodes have the fields after the first 128 bytes.
    pub(crate) fn has_extra(&self) -> bool {
        self.inode_bytes >= GOOD_OLD_INODE_SIZE_BYTES + usize::from(EXTRA_ISIZE)
    }
}

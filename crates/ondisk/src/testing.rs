//! **Purpose.** Structures made in memory for this crate's tests, which so need no other program.

/// Superblocks as mke2fs would make them.
pub(crate) mod image {
    use zerocopy::FromZeros;

    use crate::features::{Compat, Incompat, RoCompat};
    use crate::superblock::{RawSuperblock, Superblock};

    /// 4 groups of 32 768 blocks of 4 KiB, `flex_bg`, `64bit`, `metadata_csum`, no journal. Sealed.
    pub(crate) fn raw() -> RawSuperblock {
        let mut raw = RawSuperblock::new_zeroed();
        raw.s_magic = 0xef53.into();
        raw.s_rev_level = 1.into();
        raw.s_log_block_size = 2.into();
        raw.s_log_cluster_size = 2.into();
        raw.s_blocks_count_lo = (3 * 32_768 + 20_000).into();
        raw.s_blocks_per_group = 32_768.into();
        raw.s_clusters_per_group = 32_768.into();
        raw.s_inodes_per_group = 8_192.into();
        raw.s_inodes_count = (4 * 8_192).into();
        raw.s_inode_size = 256.into();
        raw.s_first_ino = 11.into();
        raw.s_desc_size = 64.into();
        raw.s_log_groups_per_flex = 4;
        raw.s_checksum_type = 1;
        raw.s_uuid = *b"fourscore's test";
        raw.s_reserved_gdt_blocks = 31.into();
        raw.s_feature_compat = (Compat::EXT_ATTR | Compat::RESIZE_INODE).bits().into();
        raw.s_feature_incompat =
            (Incompat::FILETYPE | Incompat::EXTENTS | Incompat::BIT64 | Incompat::FLEX_BG)
                .bits()
                .into();
        raw.s_feature_ro_compat = (RoCompat::SPARSE_SUPER
            | RoCompat::LARGE_FILE
            | RoCompat::HUGE_FILE
            | RoCompat::EXTRA_ISIZE
            | RoCompat::METADATA_CSUM)
            .bits()
            .into();
        raw.seal();
        raw
    }

    /// [`raw`] with a change, sealed again.
    pub(crate) fn changed(change: impl FnOnce(&mut RawSuperblock)) -> RawSuperblock {
        let mut raw = raw();
        change(&mut raw);
        raw.seal();
        raw
    }

    /// [`raw`], parsed.
    pub(crate) fn metadata_csum() -> Superblock {
        Superblock::try_from(&raw()).expect("a valid superblock")
    }

    /// [`changed`], parsed.
    pub(crate) fn with(change: impl FnOnce(&mut RawSuperblock)) -> Superblock {
        Superblock::try_from(&changed(change)).expect("a valid superblock")
    }
}

/// Directories.
pub(crate) mod dirs {
    use crate::checksum::{ChecksumSeed, InodeGeneration, InodeSeed};
    use crate::dirent::{DirFormat, NameForm, StoredHash, TypeByte};
    use crate::types::InodeNr;

    /// The seed of the directory.
    pub(crate) fn seed() -> InodeSeed {
        ChecksumSeed::from_stored(7).for_inode(InodeNr(2), InodeGeneration(0))
    }

    /// Every format there is.
    pub(crate) fn formats() -> Vec<DirFormat> {
        let names = [
            NameForm::Plain,
            NameForm::Encrypted,
            NameForm::EncryptedHashed,
        ];
        let with = |names, type_byte, seed| DirFormat {
            names,
            type_byte,
            inodes_count: InodeNr(100_000),
            seed,
        };
        let types = [TypeByte::Present, TypeByte::Absent];
        let seeds = [None, Some(seed())];
        let of = |names| types.map(|of| seeds.map(|seed| with(names, of, seed)));
        names.map(of).into_iter().flatten().flatten().collect()
    }

    /// A name of at least `bytes` bytes that is unique for `id`.
    pub(crate) fn name(id: u16, bytes: usize) -> Vec<u8> {
        let mut name = format!("{id:x}-").into_bytes();
        name.resize(bytes.clamp(name.len(), 255), b'x');
        name
    }

    /// A hash that a directory may store after a name.
    pub(crate) fn stored(name: &[u8]) -> StoredHash {
        let hash = name.iter().fold(5_u32, |hash, &byte| {
            hash.wrapping_mul(33).wrapping_add(byte.into())
        });
        let minor_hash = !hash;
        StoredHash {
            hash: hash & !1,
            minor_hash,
        }
    }

    /// Whether a block has space for a record of `bytes`.
    pub(crate) fn has_capacity(format: &DirFormat, block: &[u8], bytes: usize) -> bool {
        format.room(block, bytes).unwrap().is_some()
    }
}

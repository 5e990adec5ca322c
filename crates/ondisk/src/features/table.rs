//! **Purpose.** The one table of feature bits: from its rows come the flag types, the checks
//! before a mount, what `fourscore info --features` prints, and the table of docs/COMPAT.md.

use bitflags::bitflags;

use super::{FeatureClass, FeatureRow, Support};

macro_rules! features {
    ($($(#[$doc:meta])* $class:ident, $rows:ident {
        $($flag:ident = $bit:literal, $name:literal, $support:ident, $note:literal;)*
    })*) => {$(
        bitflags! {
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            pub struct $class: u32 {
                $(
                    #[doc = concat!("`", $name, "`: ", $note, ".")]
                    const $flag = $bit;
                )*
            }
        }

        const $rows: &[FeatureRow] = &[$(FeatureRow {
            class: FeatureClass::$class,
            bit: $bit,
            name: $name,
            support: Support::$support,
            note: $note,
        },)*];
    )*};
}

features! {
    /// `s_feature_compat`. Unknown bits are kept.
    Compat, COMPAT {
        DIR_PREALLOC = 0x1, "dir_prealloc", Write, "a hint for allocation that may be ignored";
        IMAGIC_INODES = 0x2, "imagic_inodes", Write, "inodes of AFS servers, which may have no name";
        HAS_JOURNAL = 0x4, "has_journal", Write, "a journal, in an inode or on a device of its own";
        EXT_ATTR = 0x8, "ext_attr", Write, "extended attributes";
        RESIZE_INODE = 0x10, "resize_inode", Write, "descriptor blocks reserved for growth, held by inode 7";
        DIR_INDEX = 0x20, "dir_index", Write, "hash trees in directories";
        LAZY_BG = 0x40, "lazy_bg", Write, "a test feature from before uninit_bg";
        SNAPSHOT_BITMAP = 0x100, "snapshot_bitmap", Write, "exclude bitmaps of Next3 snapshots";
        SPARSE_SUPER2 = 0x200, "sparse_super2", Write, "at most two backup superblocks, in groups that the superblock names";
        FAST_COMMIT = 0x400, "fast_commit", Write, "fast commits in the journal";
        STABLE_INODES = 0x800, "stable_inodes", Write, "inode numbers and the UUID never change, for encryption keys bound to them";
        ORPHAN_FILE = 0x1000, "orphan_file", Write, "orphan inodes listed in a file instead of a chain";
    }

    /// `s_feature_incompat`. Unknown bits are kept, and refuse reading.
    Incompat, INCOMPAT {
        COMPRESSION = 0x1, "compression", Refuse, "compressed files, which no Linux kernel release could read";
        FILETYPE = 0x2, "filetype", Write, "file types in directory entries";
        RECOVER = 0x4, "needs_recovery", Write, "the journal holds transactions to replay";
        JOURNAL_DEV = 0x8, "journal_dev", Refuse, "not a file system, but the journal of another one";
        META_BG = 0x10, "meta_bg", Write, "group descriptors spread over the groups they describe";
        EXTENTS = 0x40, "extent", Write, "extent trees";
        BIT64 = 0x80, "64bit", Write, "block numbers of 64 bits";
        MMP = 0x100, "mmp", Write, "protection against two hosts mounting at once";
        FLEX_BG = 0x200, "flex_bg", Write, "bitmaps and inode tables outside their group";
        EA_INODE = 0x400, "ea_inode", Write, "values of large extended attributes in inodes of their own";
        DIRDATA = 0x1000, "dirdata", Refuse, "data after names in directory entries, as Lustre writes it";
        CSUM_SEED = 0x2000, "metadata_csum_seed", Write, "a checksum seed in the superblock, so that the UUID can change";
        LARGEDIR = 0x4000, "large_dir", Write, "directories over 2 GiB and hash trees of depth 3";
        INLINE_DATA = 0x8000, "inline_data", Write, "small files and directories inside their inode";
        ENCRYPT = 0x10000, "encrypt", Write, "encrypted files; names and contents stay encrypted";
        CASEFOLD = 0x20000, "casefold", Write, "directories that ignore case";
    }

    /// `s_feature_ro_compat`. Unknown bits are kept, and refuse writing.
    RoCompat, RO_COMPAT {
        SPARSE_SUPER = 0x1, "sparse_super", Write, "backup superblocks only in groups 0, 1 and powers of 3, 5 and 7";
        LARGE_FILE = 0x2, "large_file", Write, "files over 2 GiB";
        BTREE_DIR = 0x4, "btree_dir", Read, "reserved for a directory format that never came; nothing to do";
        HUGE_FILE = 0x8, "huge_file", Write, "i_blocks of 48 bits, in units of blocks if an inode has HUGE_FILE_FL";
        GDT_CSUM = 0x10, "uninit_bg", Write, "crc16 of group descriptors, and groups not yet initialised";
        DIR_NLINK = 0x20, "dir_nlink", Write, "directories with more than 65 000 subdirectories";
        EXTRA_ISIZE = 0x40, "extra_isize", Write, "space guaranteed after the first 128 bytes of an inode";
        HAS_SNAPSHOT = 0x80, "snapshot", Read, "a Next3 snapshot exists";
        QUOTA = 0x100, "quota", Write, "quota files in hidden inodes";
        BIGALLOC = 0x200, "bigalloc", Write, "allocation in clusters of several blocks";
        METADATA_CSUM = 0x400, "metadata_csum", Write, "crc32c of all metadata";
        REPLICA = 0x800, "replica", Read, "copies of metadata, in no kernel";
        READONLY = 0x1000, "read-only", Read, "its creator forbids writing";
        PROJECT = 0x2000, "project", Write, "project identifiers in inodes, and their quota";
        SHARED_BLOCKS = 0x4000, "shared_blocks", Read, "blocks that several files share, as Android's deduplication makes them";
        VERITY = 0x8000, "verity", Write, "files sealed with a Merkle tree";
        ORPHAN_PRESENT = 0x10000, "orphan_present", Write, "the orphan file has entries";
    }
}

/// All rows: COMPAT, INCOMPAT, RO_COMPAT, each from the lowest bit up.
pub fn rows() -> impl Iterator<Item = &'static FeatureRow> {
    [COMPAT, INCOMPAT, RO_COMPAT].into_iter().flatten()
}

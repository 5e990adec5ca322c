//! **Purpose.** The table of damages: for each invariant one that breaks it.
//!
//! **Model.** A case names the invariant's code, the configuration of the image, and the damage.
//! The trees are those of `testkit::populate`.

use std::mem::offset_of;

use anyhow::{Context, Result};
use fourscore_ondisk::inode::RawInode;
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock};
use fourscore_testkit::damage::{Kind, Site};

use super::surgery::Surgery;

const EXT4: &str = "ext4-4k";
/// Without checksums, with block pointers, blocks of 1 KiB.
const EXT2: &str = "ext2-1k";
/// A directory of one block with the files `a`, `bb` and `ccc`.
const FEW: &str = "directories/few";
/// A directory with an index.
const LARGE: &str = "directories/large";

const RESIZE: InodeNr = InodeNr(7);
const LOST_AND_FOUND: InodeNr = InodeNr(11);

const REGULAR: u64 = 0x8000;
const FIFO: u64 = 0x1000;

const EXTENTS_FL: u64 = 0x8_0000;
const IMMUTABLE_FL: u64 = 0x10;
const INDEX_FL: u64 = 0x1000;
const ENCRYPT_FL: u32 = 0x800;
const EA_INODE_FL: u32 = 0x20_0000;

const HAS_JOURNAL: u64 = 0x4;
const RESIZE_INODE: u64 = 0x10;
const LARGE_FILE: u64 = 0x2;
const GDT_CSUM: u64 = 0x10;

/// A damage, and the invariant that it breaks.
pub(crate) struct Case {
    pub(crate) code: &'static str,
    pub(crate) config: &'static str,
    pub(crate) damage: fn(&mut Surgery) -> Result<()>,
}

macro_rules! cases {
    ($name:ident($s:ident): $($code:literal on $config:expr => $damage:expr;)*) => {
        const $name: &[Case] = &[$(Case {
            code: $code,
            config: $config,
            damage: |$s: &mut Surgery| $damage,
        },)*];
    };
}

/// The offset of a record in a directory block.
fn record_at(s: &Surgery, leaf: &Site, nth: usize) -> Result<usize> {
    let mut at = 0;
    for before in 0..nth {
        at += usize::try_from(s.value(leaf, "rec_len", before)?)?;
    }
    Ok(at)
}

/// A leaf block of the encrypted directory.
fn encrypted_leaf(s: &Surgery) -> Result<Site> {
    let nr = s.inode_with(0x4000, ENCRYPT_FL)?.inode;
    let mut leaves = s.sites(Kind::Leaf).into_iter();
    leaves
        .find(|leaf| leaf.inode == nr)
        .context("an encrypted directory without a block")
}

/// An inode with an attribute whose value is in another inode, and the index of the entry.
fn entry_with_value_inode(s: &Surgery) -> Result<(Site, usize)> {
    for kind in [Kind::Inode, Kind::Xattrs] {
        for site in s.sites(kind) {
            let mut nth = 0;
            while let Ok(value) = s.value(&site, "e_value_inum", nth) {
                if value != 0 {
                    return Ok((site, nth));
                }
                nth += 1;
            }
        }
    }
    anyhow::bail!("no value is in another inode")
}

/// The first byte of a bitmap without a set bit.
fn first_free_byte(s: &Surgery, bitmap: &Site) -> Result<usize> {
    let bytes = s.bytes(bitmap)?;
    let free = bytes.iter().position(|&byte| byte == 0);
    free.context("a bitmap without a free byte")
}

/// All cases.
pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    [PASS_0, PASS_1, PASS_2, PASS_3_TO_6].into_iter().flatten()
}

cases! { PASS_0(s):
    "superblock" on EXT4 => s.sb("s_magic", |_| 0);
    "superblock-backup-used" on EXT4 => s.sb("s_magic", |_| 0);
    "superblock-count" on EXT4 => s.sb("s_r_blocks_count_lo", |_| u64::MAX);
    "superblock-features" on EXT4 => s.sb("s_feature_ro_compat", |old| old | GDT_CSUM);
    "superblock-unknown-features" on EXT4 => s.sb("s_feature_compat", |old| old | 1 << 27);
    "superblock-unknown-features" on EXT4 => s.sb("s_feature_ro_compat", |old| old | 0x800);
    "superblock-extra-isize" on EXT4 => s.sb("s_want_extra_isize", |_| 5);
    "reserved-gdt-blocks" on EXT4 => s.sb("s_feature_compat", |old| old & !RESIZE_INODE);
    "resize-inode" on EXT4 => s.reserved(RESIZE, "i_block", |_| 5000);
    "group-checksum" on EXT4 => {
        let site = s.descriptor(GroupNr(0))?;
        s.unsealed(&site, "bg_used_dirs_count_lo", 0, |old| old + 1)
    };
    "group-place" on EXT4 => s.desc("bg_inode_bitmap_lo", |_| 0xffff_ff00);
    "group-flags" on EXT2 => s.desc("bg_flags", |_| 1);
    "last-group-uninit" on EXT4 => {
        let last = GroupNr(s.superblock().geometry().groups() - 1);
        let site = s.descriptor(last)?;
        s.change(&site, "bg_flags", 0, |old| old | 2)
    };
    "itable-unused" on EXT4 => s.desc("bg_itable_unused_lo", |_| 0xffff);
    "metadata-overlap" on EXT4 => {
        let first = s.nth(Kind::InodeBitmap, 0)?.at / 4096;
        let second = s.descriptor(GroupNr(1))?;
        s.change(&second, "bg_block_bitmap_lo", 0, |_| first)
    };
    "backup-superblock" on EXT4 => {
        let backup = s.block(s.superblock().geometry().group_first_block(GroupNr(1)));
        // The UUID; the checksum no longer matches either.
        s.overwrite(&backup, 0x68, &[7; 16])
    };
    "backup-descriptors" on EXT4 => {
        let first = s.superblock().geometry().group_first_block(GroupNr(1));
        let backup = s.block(PhysBlock(first.0 + 1));
        s.overwrite(&backup, 0, &[1, 2, 3, 4])
    };
    "superblock-field" on EXT4 => s.sb("s_journal_inum", |_| 0xffff_ffff);
    "journal-copy-used" on EXT4 => s.reserved(InodeNr::JOURNAL, "i_links_count", |_| 0);
    "journal-inode" on EXT4 => s.reserved(InodeNr::JOURNAL, "i_links_count", |_| 0);
    "journal-unreadable" on EXT4 => {
        let log = s.nth(Kind::Journal, 0)?;
        s.change(&log, "s_header", 0, |_| 0)
    };
    "journal-unmarked" on EXT4 => {
        let log = s.nth(Kind::Journal, 0)?;
        s.change(&log, "s_start", 0, |_| 0x0100_0000)
    };
    "journal-errno" on EXT4 => {
        let log = s.nth(Kind::Journal, 0)?;
        s.change(&log, "s_errno", 0, |_| 0xffff_fffb)
    };
    "journal-elsewhere" on "no-journal" => {
        s.sb("s_feature_compat", |old| old | HAS_JOURNAL)?;
        s.sb("s_journal_dev", |_| 0x0701)
    };
    "not-clean" on EXT4 => s.sb("s_state", |_| 0);
    "mmp" on "mmp" => {
        let block = s.superblock().mmp_block().context("no block")?;
        s.overwrite(&s.block(block), 0, &[0; 4])
    };
}

cases! { PASS_1(s):
    "inode-checksum" on EXT4 => {
        let site = s.inode_site(s.number("plain")?)?;
        s.unsealed(&site, "i_atime", 0, |old| old + 1)
    };
    "inode-low-dtime" on EXT4 => {
        s.inode("plain", "i_links_count", |_| 0)?;
        s.inode("plain", "i_dtime", |_| 20)
    };
    "inode-zero-dtime" on EXT4 => s.inode("plain", "i_links_count", |_| 0);
    "inode-dtime-in-use" on EXT4 => s.inode("plain", "i_dtime", |_| 0x6000_0000);
    "root-mode" on EXT4 => s.reserved(InodeNr::ROOT, "i_mode", |_| REGULAR | 0o644);
    "reserved-mode" on EXT4 => s.reserved(InodeNr(6), "i_mode", |_| FIFO | 0o600);
    "reserved-in-use" on EXT4 => s.reserved(InodeNr(3), "i_links_count", |_| 1);
    "bad-blocks-inode" on EXT4 => s.reserved(InodeNr(1), "i_uid", |_| 5);
    "inode-mode" on EXT4 => s.inode("plain", "i_mode", |_| 0x3000);
    "special-mapped" on EXT4 => s.inode("special/fifo", "i_flags", |old| old | EXTENTS_FL);
    "special-immutable" on EXT4 => s.inode("special/fifo", "i_flags", |old| old | IMMUTABLE_FL);
    "special-size" on EXT4 => s.inode("special/fifo", "i_size_lo", |_| 5);
    "symlink" on EXT4 => s.inode("links/to-first", "i_size_lo", |old| old + 1);
    "inode-reserved-field" on EXT4 => s.inode("plain", "i_obso_faddr", |_| 1);
    "inode-flags" on EXT4 => s.inode("plain", "i_flags", |old| old | INDEX_FL);
    "inode-extra-isize" on EXT4 => s.inode("plain", "i_extra_isize", |_| 3);
    "inode-time-range" on EXT4 => {
        let site = s.inode_site(s.number("plain")?)?;
        s.overwrite(&site, offset_of!(RawInode, i_ctime), &[0xff; 4])?;
        s.change(&site, "i_ctime_extra", 0, |old| old | 3)
    };
    "xattr-inode" on EXT4 => s.inode("xattrs/value-of-60", "e_name_len", |_| 255);
    "xattr-collision" on EXT4 => {
        let site = s.inode_site(s.number("xattrs/namespaces")?)?;
        let [first, second] = [0, 1].map(|nth| s.value(&site, "e_value_offs", nth));
        let (first, second) = (first?, second?);
        // There is space for both at the lower place.
        let higher = usize::from(second > first);
        s.change(&site, "e_value_offs", higher, |_| first.min(second))
    };
    "xattr-hash" on EXT4 => {
        let block = s.of(Kind::Xattrs, "xattrs/sharer-0")?;
        s.change(&block, "e_hash", 0, |old| old ^ 1)
    };
    "xattr-name" on EXT4 => {
        let block = s.of(Kind::Xattrs, "xattrs/sharer-0")?;
        s.change(&block, "e_name_index", 0, |_| 0)
    };
    "xattr-value-inode" on "ea-inode" => {
        let other = s.number("plain")?;
        let (site, nth) = entry_with_value_inode(s)?;
        s.change(&site, "e_value_inum", nth, |_| other.0.into())
    };
    "xattr-block-place" on EXT4 => s.inode("plain", "i_file_acl_lo", |_| 0xffff_fff0);
    "xattr-block" on EXT4 => {
        let block = s.of(Kind::Xattrs, "xattrs/sharer-0")?;
        s.change(&block, "h_magic", 0, |_| 0)
    };
    "xattr-refcount" on EXT4 => {
        let block = s.of(Kind::Xattrs, "xattrs/sharer-0")?;
        s.change(&block, "h_refcount", 0, |old| old + 1)
    };
    "extent-root" on EXT4 => s.inode("files/one-block", "eh_entries", |_| 7);
    "extent-node" on EXT4 => {
        let node = s.nth(Kind::ExtentNode, 0)?;
        s.change(&node, "eh_entries", 0, |_| 0xffff)
    };
    "extent-max" on EXT4 => s.inode("files/one-block", "eh_max", |_| 1);
    "cluster-align" on "bigalloc-16k" => s.inode("files/five-mib", "ee_start_lo", |old| old + 1);
    "block-outside" on EXT2 => s.inode("files/five-mib", "i_block", |_| 0xffff_0000);
    "map-on-metadata" on EXT2 => {
        let bitmap = s.nth(Kind::BlockBitmap, 0)?.at / 1024;
        let site = s.inode_site(s.number("files/five-mib")?)?;
        s.change(&site, "i_block", 12, |_| bitmap)
    };
    "shared-beyond-measure" on EXT2 => {
        // An indirect block whose pointers all refer to itself, three levels deep.
        let pointers = s.of(Kind::Indirect, "files/five-mib")?;
        let block = u32::try_from(pointers.at / 1024)?;
        s.overwrite(&pointers, 0, &block.to_le_bytes().repeat(256))?;
        let site = s.inode_site(s.number("files/five-mib")?)?;
        s.change(&site, "i_block", 14, |_| block.into())
    };
    "dir-unwritten" on EXT4 => s.inode("directories/few", "ee_len", |old| old | 0x8000);
    "dir-hole" on EXT2 => s.reserved(LOST_AND_FOUND, "i_block", |_| 0);
    "dir-empty" on EXT4 => s.inode("directories/few", "eh_entries", |_| 0);
    "dir-too-big" on EXT4 => s.inode("directories/few", "ee_block", |_| 0x10_0000);
    "inode-size" on EXT4 => s.inode("directories/few", "i_size_lo", |old| old + 1);
    "inode-blocks" on EXT4 => s.inode("plain", "i_blocks_lo", |old| old + 8);
    "large-file" on EXT4 => s.sb("s_feature_ro_compat", |old| old & !LARGE_FILE);
    "bigalloc-block-map" on "bigalloc-16k" => {
        let site = s.inode_site(s.number("files/five-mib")?)?;
        s.change(&site, "i_flags", 0, |old| old & !EXTENTS_FL)
    };
    "inline-data" on "inline-data" => s.inode("small/100", "e_name_index", |_| 6);
    "encryption-context" on "encrypt" => {
        let site = s.inode_with(0x4000, ENCRYPT_FL)?;
        s.change(&site, "e_name_index", 0, |_| 6)
    };
    "orphan-file" on "orphan-file" => {
        let block = s.nth(Kind::Orphans, 0)?;
        s.overwrite_unsealed(&block, block.length - 8, &[0; 4])
    };
    "orphan-list" on EXT4 => {
        // The first orphan refers to an inode that cannot be one.
        let orphan = s.number("plain")?;
        s.inode("plain", "i_dtime", |_| 5)?;
        s.sb("s_last_orphan", |_| orphan.0.into())
    };
    "shared-blocks" on EXT4 => {
        let one = s.inode_site(s.number("files/one-block")?)?;
        let start = s.value(&one, "ee_start_lo", 0)?;
        s.inode("files/one-byte-more", "ee_start_lo", |_| start)
    };
    "shared-with-metadata" on EXT4 => {
        let bitmap = s.nth(Kind::BlockBitmap, 0)?.at / 4096;
        s.inode("files/one-block", "ee_start_lo", |_| bitmap)
    };
}

cases! { PASS_2(s):
    "dir-checksum" on EXT4 => {
        let leaf = s.leaf(FEW)?;
        s.overwrite_unsealed(&leaf, leaf.length - 4, &[1, 2, 3, 4])
    };
    "dir-record" on EXT4 => s.record(FEW, 2, "rec_len", |_| 3);
    "dir-inline" on "inline-data" => {
        // The first record follows the parent: its inode, and its length.
        let site = s.inode_site(s.number(FEW)?)?;
        s.change(&site, "i_block", 2, |_| 0xffff_ffff)
    };
    "dir-dot" on EXT4 => s.record(FEW, 0, "inode", |old| old + 1);
    "dir-dotdot" on EXT4 => s.record(FEW, 1, "name", |_| u64::from(b'x'));
    "dir-dots-again" on EXT4 => s.record(FEW, 2, "name", |_| u64::from(b'.'));
    "entry-inode" on EXT4 => s.record(FEW, 2, "inode", |_| 8);
    "entry-unused" on EXT4 => {
        let deleted = s.deleted()?;
        s.record(FEW, 2, "inode", |_| deleted.0.into())
    };
    "entry-in-unused" on EXT4 => {
        let last = s.superblock().geometry().inodes();
        s.record(FEW, 2, "inode", |_| last.into())
    };
    "entry-root" on EXT4 => s.record(FEW, 2, "inode", |_| 2);
    "entry-no-name" on EXT4 => s.record(FEW, 2, "name_len", |_| 0);
    "entry-name" on EXT4 => s.record(FEW, 2, "name", |_| u64::from(b'/'));
    "entry-encrypted" on "encrypt" => {
        let leaf = encrypted_leaf(s)?;
        s.change(&leaf, "name_len", 2, |_| 8)
    };
    "entry-type" on EXT4 => s.record(FEW, 2, "file_type", |_| 2);
    "entry-type-open" on EXT4 => s.record(FEW, 2, "file_type", |_| 0);
    "entry-twice" on EXT4 => {
        let leaf = s.leaf("modes")?;
        let [one, two] = [2, 3].map(|nth| record_at(s, &leaf, nth));
        let name = s.bytes(&leaf)?[one? + 8..][..4].to_vec();
        s.overwrite(&leaf, two? + 8, &name)
    };
    "dir-two-names" on EXT4 => {
        let other = s.number("directories/empty")?;
        s.record(FEW, 2, "inode", |_| other.0.into())
    };
    "entry-not-encrypted" on "encrypt" => {
        let (leaf, other) = (encrypted_leaf(s)?, s.number("plain")?);
        s.change(&leaf, "inode", 2, |_| other.0.into())
    };
    "entry-policy" on "encrypt" => {
        let leaf = encrypted_leaf(s)?;
        let nr = u32::try_from(s.value(&leaf, "inode", 2)?)?;
        let site = s.inode_site(InodeNr(nr))?;
        // The value lies behind the entries' start; byte 8 of it is the first of the key's name.
        let area = 128 + usize::try_from(s.value(&site, "i_extra_isize", 0)?)? + 4;
        let value = usize::try_from(s.value(&site, "e_value_offs", 0)?)?;
        s.overwrite(&site, area + value + 8, &[0xaa; 4])
    };
    "index-root" on EXT4 => {
        let root = s.of(Kind::IndexRoot, LARGE)?;
        s.change(&root, "hash_version", 0, |_| 77)
    };
    "index-unreferenced" on EXT4 => {
        let root = s.of(Kind::IndexRoot, LARGE)?;
        s.change(&root, "count", 0, |old| old - 1)
    };
    "index-twice" on EXT4 => {
        let root = s.of(Kind::IndexRoot, LARGE)?;
        let first = s.value(&root, "block", 0)?;
        s.change(&root, "block", 1, |_| first)
    };
    "index-hash" on EXT4 => {
        let root = s.of(Kind::IndexRoot, LARGE)?;
        // Above the next leaf's lowest hash no name of this one is left in its place.
        let next = s.value(&root, "hash", 1)?;
        s.change(&root, "hash", 0, |_| next - 2)
    };
}

cases! { PASS_3_TO_6(s):
    "no-root" on EXT4 => s.reserved(InodeNr::ROOT, "i_mode", |_| REGULAR | 0o644);
    "dir-lost" on EXT4 => {
        let leaf = s.leaf("directories/deep/level-0")?;
        s.change(&leaf, "inode", 2, |_| 0)
    };
    "dir-loop" on EXT4 => {
        let own = s.number("directories/deep/level-0")?;
        s.record("directories/deep", 2, "inode", |_| 0)?;
        s.record("directories/deep/level-0/level-1", 2, "inode", |_| own.0.into())
    };
    "dotdot-inode" on EXT4 => {
        let other = s.number("links")?;
        s.record(FEW, 1, "inode", |_| other.0.into())
    };
    "unattached" on EXT4 => s.record(FEW, 2, "inode", |_| 0);
    "links-count" on EXT4 => s.inode("plain", "i_links_count", |old| old + 1);
    "value-refs" on "ea-inode" => {
        let site = s.inode_with(0x8000, EA_INODE_FL)?;
        s.overwrite(&site, offset_of!(RawInode, i_version), &[77, 0, 0, 0])
    };
    "bitmap-checksum" on EXT4 => s.desc("bg_block_bitmap_csum_lo", |old| old ^ 1);
    "block-not-marked" on EXT4 => {
        let bitmap = s.nth(Kind::BlockBitmap, 0)?;
        s.overwrite(&bitmap, 0, &[0xfe])
    };
    "block-not-used" on EXT4 => {
        let bitmap = s.nth(Kind::BlockBitmap, 0)?;
        let free = first_free_byte(s, &bitmap)?;
        s.overwrite(&bitmap, free, &[0xff])
    };
    "inode-not-marked" on EXT4 => {
        let bitmap = s.nth(Kind::InodeBitmap, 0)?;
        s.overwrite(&bitmap, 0, &[0xfd])
    };
    "inode-not-used" on EXT4 => {
        let bitmap = s.nth(Kind::InodeBitmap, 0)?;
        let free = first_free_byte(s, &bitmap)?;
        s.overwrite(&bitmap, free, &[0xff])
    };
    "bitmap-padding" on EXT4 => {
        let bitmap = s.nth(Kind::InodeBitmap, 0)?;
        let behind = s.superblock().geometry().inodes_per_group() as usize / 8;
        s.overwrite(&bitmap, behind, &[0])
    };
    "group-free-blocks" on EXT4 => s.desc("bg_free_blocks_count_lo", |old| old + 1);
    "group-free-inodes" on EXT4 => s.desc("bg_free_inodes_count_lo", |old| old - 1);
    "group-dirs" on EXT4 => s.desc("bg_used_dirs_count_lo", |old| old + 1);
    "free-blocks" on EXT4 => s.sb("s_free_blocks_count_lo", |old| old + 1);
    "free-inodes" on EXT4 => s.sb("s_free_inodes_count", |old| old + 1);
    "quota-file" on "quota" => {
        let header = s.nth(Kind::Quota, 0)?;
        // The version, since e2fsck rebuilds a file whose magic number alone is wrong.
        s.overwrite(&header, 4, &[9, 0, 0, 0])
    };
    "quota-usage" on "quota" => {
        // The second block of the file begins with the last level of the tree, of 1 KiB; behind it
        // come the entries: their head, and in the first the bytes that are used.
        let entries = s.nth(Kind::Quota, 1)?;
        s.overwrite(&entries, 1024 + 16 + 48, &[1, 2, 3])
    };
}

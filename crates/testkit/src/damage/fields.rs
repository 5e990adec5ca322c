//! **Purpose.** The fields of each structure: offset and length.

use std::mem::offset_of;

use fourscore_ondisk::RawSuperblock;
use fourscore_ondisk::dirent::decode_rec_len;
use fourscore_ondisk::group::{RawGroupDesc, RawGroupDescHigh};
use fourscore_ondisk::inode::{InodeFlags, RawInode, RawInodeExtra};
use fourscore_ondisk::jbd2::RawJournalSuperblock;

use super::anatomy::{Anatomy, Kind, Site};

/// A little-endian number in the bytes of a structure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) at: usize,
    pub(super) length: usize,
}

impl Field {
    pub(super) fn get(self, bytes: &[u8]) -> u64 {
        let own = bytes.get(self.at..self.at + self.length).unwrap_or(&[]);
        own.iter()
            .rev()
            .fold(0, |value, &byte| value << 8 | u64::from(byte))
    }

    pub(super) fn put(self, bytes: &mut [u8], value: u64) {
        if let Some(own) = bytes.get_mut(self.at..self.at + self.length) {
            own.copy_from_slice(&value.to_le_bytes()[..self.length]);
        }
    }

    pub(super) fn bits(self) -> u64 {
        self.length as u64 * 8
    }

    pub(super) fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }
}

macro_rules! fields_of {
    ($raw:ty, $shift:expr, $($name:ident: $length:literal),* $(,)?) => {
        [$(Field {
            name: stringify!($name),
            at: $shift + offset_of!($raw, $name),
            length: $length,
        }),*]
    };
}

/// The fields of a structure whose bytes are `bytes`.
pub(super) fn of(anatomy: &Anatomy, site: &Site, bytes: &[u8]) -> Vec<Field> {
    match site.kind {
        Kind::Superblock => superblock(),
        Kind::Descriptor => descriptor(bytes.len()),
        Kind::BlockBitmap => {
            let group = site.group.unwrap_or_default();
            bits(anatomy.superblock().geometry().group_clusters(group))
        }
        Kind::InodeBitmap => bits(anatomy.superblock().geometry().inodes_per_group()),
        Kind::Inode => inode(bytes),
        Kind::ExtentNode => extents(bytes, 0),
        Kind::Indirect => words("pointer", 0, bytes.len().min(64)),
        Kind::Leaf => records(bytes),
        Kind::IndexRoot => index_root(bytes),
        Kind::IndexNode => index(bytes, 8),
        Kind::Xattrs => xattr_block(bytes),
        Kind::Orphans => words("orphan", 0, 32),
        Kind::Journal => journal(),
        Kind::Quota => used_words("quota", bytes),
    }
}

fn superblock() -> Vec<Field> {
    fields_of!(RawSuperblock, 0,
        s_inodes_count: 4, s_blocks_count_lo: 4, s_r_blocks_count_lo: 4,
        s_free_blocks_count_lo: 4, s_free_inodes_count: 4, s_first_data_block: 4,
        s_log_block_size: 4, s_log_cluster_size: 4, s_blocks_per_group: 4,
        s_clusters_per_group: 4, s_inodes_per_group: 4, s_magic: 2, s_rev_level: 4,
        s_first_ino: 4, s_inode_size: 2, s_feature_compat: 4, s_feature_incompat: 4,
        s_feature_ro_compat: 4, s_reserved_gdt_blocks: 2, s_journal_inum: 4, s_last_orphan: 4,
        s_desc_size: 2, s_first_meta_bg: 4, s_log_groups_per_flex: 1, s_checksum_type: 1,
        s_hash_seed: 4, s_flags: 4, s_mtime: 4, s_wtime: 4, s_state: 2, s_creator_os: 4,
        s_uuid: 4, s_prealloc_dir_blocks: 1, s_journal_dev: 4, s_def_hash_version: 1,
        s_jnl_backup_type: 1, s_min_extra_isize: 2, s_want_extra_isize: 2, s_mmp_block: 4,
        s_encryption_level: 1, s_usr_quota_inum: 4, s_grp_quota_inum: 4, s_prj_quota_inum: 4,
        s_backup_bgs: 4, s_lpf_ino: 4, s_checksum_seed: 4, s_encoding: 2, s_encoding_flags: 2,
        s_orphan_file_inum: 4, s_blocks_count_hi: 4, s_r_blocks_count_hi: 4,
        s_free_blocks_count_hi: 4, s_wtime_hi: 1,
    )
    .to_vec()
}

fn journal() -> Vec<Field> {
    fields_of!(RawJournalSuperblock, 0,
        s_header: 4, s_blocksize: 4, s_maxlen: 4, s_first: 4, s_sequence: 4, s_start: 4,
        s_errno: 4, s_feature_compat: 4, s_feature_incompat: 4, s_feature_ro_compat: 4,
        s_uuid: 4, s_nr_users: 4, s_checksum_type: 1, s_num_fc_blks: 4,
    )
    .to_vec()
}

/// The nonzero words of a block.
fn used_words(name: &'static str, bytes: &[u8]) -> Vec<Field> {
    let mut words = words(name, 0, bytes.len());
    words.retain(|word| word.get(bytes) != 0);
    words
}

fn descriptor(length: usize) -> Vec<Field> {
    let mut fields = fields_of!(RawGroupDesc, 0,
        bg_block_bitmap_lo: 4, bg_inode_bitmap_lo: 4, bg_inode_table_lo: 4,
        bg_free_blocks_count_lo: 2, bg_free_inodes_count_lo: 2, bg_used_dirs_count_lo: 2,
        bg_flags: 2, bg_itable_unused_lo: 2, bg_block_bitmap_csum_lo: 2,
        bg_inode_bitmap_csum_lo: 2,
    )
    .to_vec();
    if length >= 64 {
        fields.extend(fields_of!(RawGroupDescHigh, 32,
            bg_block_bitmap_hi: 4, bg_inode_table_hi: 4, bg_free_blocks_count_hi: 2,
            bg_itable_unused_hi: 2,
        ));
    }
    fields
}

/// The bytes of a bitmap of `count` bits.
fn bits(count: u32) -> Vec<Field> {
    let whole = count as usize / 8;
    let step = (whole / 256).max(1);
    (0..whole)
        .step_by(step)
        .map(|at| Field {
            name: "bits",
            at,
            length: 1,
        })
        .collect()
}

fn words(name: &'static str, from: usize, length: usize) -> Vec<Field> {
    (from..from + length)
        .step_by(4)
        .map(|at| Field {
            name,
            at,
            length: 4,
        })
        .collect()
}

fn inode(bytes: &[u8]) -> Vec<Field> {
    let mut fields = fields_of!(RawInode, 0,
        i_mode: 2, i_size_lo: 4, i_dtime: 4, i_links_count: 2, i_blocks_lo: 4, i_flags: 4,
        i_generation: 4, i_file_acl_lo: 4, i_size_high: 4, i_obso_faddr: 4, i_blocks_high: 2,
        i_file_acl_high: 2, i_uid: 2, i_gid: 2, i_atime: 4,
    )
    .to_vec();
    let block_at = offset_of!(RawInode, i_block);
    let flags = Field {
        name: "i_flags",
        at: offset_of!(RawInode, i_flags),
        length: 4,
    };
    let flags = u32::try_from(flags.get(bytes)).unwrap_or(0);
    let has_extents = InodeFlags::from_bits_retain(flags).contains(InodeFlags::EXTENTS_FL);
    if has_extents {
        let root = bytes.get(block_at..block_at + 60).unwrap_or(&[]);
        fields.extend(extents(root, block_at));
    } else {
        fields.extend(words("i_block", block_at, 60));
    }
    if bytes.len() > 160 {
        let extra = Field {
            name: "i_extra_isize",
            at: 128,
            length: 2,
        };
        fields.push(extra);
        let area = 128 + usize::try_from(extra.get(bytes)).unwrap_or(0);
        if area >= 160 {
            fields.extend(fields_of!(RawInodeExtra, 128,
                i_ctime_extra: 4, i_crtime: 4, i_crtime_extra: 4, i_projid: 4,
            ));
        }
        if bytes.get(area..area + 4) == Some(&[0, 0, 2, 0xea]) {
            fields.extend(xattr_entries(bytes, area + 4));
        }
    }
    fields
}

/// Header and the first entries of a node whose bytes begin at `shift` of the structure.
fn extents(node: &[u8], shift: usize) -> Vec<Field> {
    let header = [
        ("eh_magic", 0),
        ("eh_entries", 2),
        ("eh_max", 4),
        ("eh_depth", 6),
    ];
    let mut fields: Vec<_> = header
        .into_iter()
        .map(|(name, at)| Field {
            name,
            at: shift + at,
            length: 2,
        })
        .collect();
    let entries = fields[1];
    let local = Field { at: 2, ..entries };
    let count = usize::try_from(local.get(node)).unwrap_or(0);
    for entry in 0..count.min(8) {
        let at = shift + 12 + entry * 12;
        for (name, offset, length) in [
            ("ee_block", 0, 4),
            ("ee_len", 4, 2),
            ("ee_start_hi", 6, 2),
            ("ee_start_lo", 8, 4),
        ] {
            fields.push(Field {
                name,
                at: at + offset,
                length,
            });
        }
    }
    fields
}

/// The records of a block.
fn records(bytes: &[u8]) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut at = 0;
    while at + 12 <= bytes.len() && fields.len() < 512 {
        fields.extend(record(at));
        let length = Field {
            name: "rec_len",
            at: at + 4,
            length: 2,
        };
        let length = u16::try_from(length.get(bytes)).unwrap_or(0);
        at += decode_rec_len(length, bytes.len()).max(12);
    }
    fields
}

fn record(at: usize) -> [Field; 5] {
    let field = |name, offset, length| Field {
        name,
        at: at + offset,
        length,
    };
    [
        field("inode", 0, 4),
        field("rec_len", 4, 2),
        field("name_len", 6, 1),
        field("file_type", 7, 1),
        field("name", 8, 1),
    ]
}

fn index_root(bytes: &[u8]) -> Vec<Field> {
    let mut fields = [record(0), record(12)].concat();
    for (name, at) in [
        ("hash_version", 28),
        ("info_length", 29),
        ("indirect_levels", 30),
        ("unused_flags", 31),
    ] {
        fields.push(Field {
            name,
            at,
            length: 1,
        });
    }
    fields.extend(index(bytes, 32));
    fields
}

/// The entries of an index block, which begin at `at`.
fn index(bytes: &[u8], at: usize) -> Vec<Field> {
    let mut fields = vec![
        Field {
            name: "limit",
            at,
            length: 2,
        },
        Field {
            name: "count",
            at: at + 2,
            length: 2,
        },
    ];
    let count = usize::try_from(fields[1].get(bytes))
        .unwrap_or(1)
        .clamp(1, 8);
    for entry in 0..count {
        let at = at + entry * 8;
        let hash = Field {
            name: "hash",
            at,
            length: 4,
        };
        let block = Field {
            name: "block",
            at: at + 4,
            length: 4,
        };
        fields.extend((entry > 0).then_some(hash));
        fields.push(block);
    }
    fields
}

fn xattr_block(bytes: &[u8]) -> Vec<Field> {
    let header = [("h_magic", 0), ("h_refcount", 4), ("h_blocks", 8)];
    let mut fields: Vec<_> = header
        .into_iter()
        .map(|(name, at)| Field {
            name,
            at,
            length: 4,
        })
        .collect();
    fields.extend(xattr_entries(bytes, 32));
    fields
}

/// The entries of an area of attributes that begin at `at`.
fn xattr_entries(bytes: &[u8], mut at: usize) -> Vec<Field> {
    let mut fields = Vec::new();
    while bytes.get(at..at + 4).is_some_and(|word| word != [0; 4]) && fields.len() < 64 {
        for (name, offset, length) in [
            ("e_name_len", 0, 1),
            ("e_name_index", 1, 1),
            ("e_value_offs", 2, 2),
            ("e_value_inum", 4, 4),
            ("e_value_size", 8, 4),
            ("e_hash", 12, 4),
        ] {
            fields.push(Field {
                name,
                at: at + offset,
                length,
            });
        }
        let name_len = bytes.get(at).copied().unwrap_or(0);
        at += 16 + usize::from(name_len).next_multiple_of(4);
    }
    fields.retain(|field| field.at + field.length <= bytes.len());
    fields
}

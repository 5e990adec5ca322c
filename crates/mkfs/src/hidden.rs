//! **Purpose.** Metadata outside the fixed tables, apart from the journal and quota files: resize
//! inode, MMP block, orphan file.

use fourscore_ondisk::features::Compat;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::mmp::RawMmp;
use fourscore_ondisk::words::put;
use fourscore_ondisk::{PhysBlock, blockmap, orphan};
use zerocopy::{FromZeros, IntoBytes};

use crate::draft::LayoutDraft;
use crate::error::{FormatError, FormatResult};
use crate::inodes::{File, hidden_file, put_file};
use crate::mapping::{Mapped, map_sequence};
use crate::superblock::put_text;

const RESIZE_INO: u32 = 7;
const MMP_MAGIC: u32 = 0x004d_4d50;
const MMP_SEQ_CLEAN: u32 = 0xff4d_4d50;
/// The slot of the double indirect block in `i_block`.
const DOUBLE_INDIRECT: u16 = 13;

/// Makes the inode that holds the blocks reserved for more descriptors: its double indirect block
/// points to the reserved blocks of group 0, each of which points to its counterparts in the groups
/// with backups.
pub(crate) fn make_resize_inode(draft: &mut LayoutDraft) -> FormatResult<()> {
    let reserved = u64::from(draft.raw.s_reserved_gdt_blocks.get());
    let geometry = *draft.geometry();
    let desc_blocks = u64::from(geometry.desc_blocks());
    let table_blocks = u64::from(geometry.inode_table_blocks());
    let first = geometry.first_data_block().0;
    let dind = draft.new_block(first + 2 + reserved + desc_blocks + table_blocks)?;
    let pointers = draft.block_bytes() as u64 / 4;
    let backups: Vec<u64> = (geometry.groups_with_super().skip(1))
        .map(|group| u64::from(group.0) * u64::from(geometry.blocks_per_group()))
        .collect();
    let mut top = vec![0; draft.block_bytes()];
    for index in 0..reserved {
        let block = geometry.super_block().0 + 1 + desc_blocks + index;
        let slot = (desc_blocks + index) % pointers;
        set_pointer(&mut top, slot, block)?;
        let mut content = vec![0; draft.block_bytes()];
        for (slot, backup) in (0..).zip(&backups) {
            set_pointer(&mut content, slot, block + backup)?;
        }
        draft.blocks.insert(block, content);
    }
    draft.blocks.insert(dind, top);
    let mut i_block = [0; 60];
    set_pointer(&mut i_block, DOUBLE_INDIRECT.into(), dind)?;
    let largest = pointers * pointers + pointers + u64::from(blockmap::DIRECT);
    let mapped = Mapped {
        i_block,
        blocks: Vec::new(),
        clusters: 1 + reserved * (1 + backups.len() as u64),
    };
    let size_bytes = largest << geometry.block_size().bits();
    let file = File {
        flags: InodeFlags::empty(),
        ..hidden_file(draft, size_bytes, mapped)
    };
    put_file(draft, RESIZE_INO, &file)
}

/// Makes the block of multi-mount protection, in its state of a file system that is not mounted.
pub(crate) fn make_mmp_block(draft: &mut LayoutDraft) -> FormatResult<()> {
    let block = draft.new_block(0)?;
    let mut raw = RawMmp::new_zeroed();
    raw.mmp_magic = MMP_MAGIC.into();
    raw.mmp_seq = MMP_SEQ_CLEAN.into();
    raw.mmp_time = draft.id.time_seconds.into();
    let (host, device) = &draft.p.options.mmp_names;
    put_text(&mut raw.mmp_nodename, host);
    put_text(&mut raw.mmp_bdevname, device);
    raw.mmp_check_interval = draft.raw.s_mmp_update_interval.get().max(5).into();
    raw.seal(&draft.sb);
    let mut content = vec![0; draft.block_bytes()];
    put(&mut content, 0, raw.as_bytes());
    draft.blocks.insert(block, content);
    draft.raw.s_mmp_block = block.into();
    Ok(())
}

/// Makes the orphan file, all of whose entries are free.
pub(crate) fn make_orphan_file(draft: &mut LayoutDraft) -> FormatResult<()> {
    if !draft.raw.features().compat.contains(Compat::HAS_JOURNAL) {
        // The journal was left out because the file system is too small.
        let features = draft.raw.features().compat - Compat::ORPHAN_FILE;
        draft.raw.s_feature_compat = features.bits().into();
        return Ok(());
    }
    let blocks = draft.geometry().blocks().0;
    let bits = draft.geometry().block_size().bits();
    let count = match draft.p.options.orphan_file_size {
        Some(size) => size.blocks(draft.geometry().block_size()),
        None if blocks < 128 << 10 => 32,
        None => (blocks / 4096).min(512),
    };
    // The kernel refuses more than 512 blocks; mke2fs makes at least 2.
    if !(2..=512).contains(&count) {
        let why = format!("{count} blocks are not from 2 to 512");
        return Err(FormatError::option("-E orphan_file_size", why));
    }
    let cluster_log = draft.geometry().blocks_per_cluster_log();
    let count = count.next_multiple_of(1 << cluster_log);
    let number = draft.new_inode()?;
    let mapped = map_sequence(draft, number, count)?;
    let seed = draft.seed(number);
    for &block in &mapped.blocks {
        let mut content = vec![0; 1 << bits];
        orphan::seal(&mut content, PhysBlock(block), seed, &draft.sb)
            .map_err(FormatError::invalid)?;
        draft.blocks.insert(block, content);
    }
    draft.raw.s_orphan_file_inum = number.into();
    let file = hidden_file(draft, count << bits, mapped);
    put_file(draft, number, &file)
}

/// Sets a pointer of an indirect block or of `i_block`.
fn set_pointer(pointers: &mut [u8], slot: u64, block: u64) -> FormatResult<()> {
    let slot = u16::try_from(slot).map_err(FormatError::invalid)?;
    blockmap::set_pointer(pointers, slot, PhysBlock(block)).map_err(FormatError::invalid)?;
    Ok(())
}

//! **Purpose.** Places and fills quota files.
//!
//! **Not here.** The format of quota files (crate `ondisk`).
//!
//! **Model.** The size of a quota file follows from its identifiers alone. So the files are placed
//! for a set of identifiers first, and filled when it is known what these use.

use fourscore_ondisk::blockmap;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::quota::{
    self, QUOTA_BLOCK_BYTES, QuotaCounts, QuotaIds, QuotaKind, QuotaUsage,
};

use crate::draft::LayoutDraft;
use crate::error::{FormatError, FormatResult};
use crate::inodes::{File, hidden_file, put_file};
use crate::mapping::{map_sequence, map_writes};

const USER_INO: u32 = 3;
const GROUP_INO: u32 = 4;

/// A quota file that is placed, but not filled yet.
#[derive(Debug)]
pub(crate) struct QuotaFile {
    kind: QuotaKind,
    blocks: Vec<u64>,
}

/// Places the quota files of the wanted types for the identifiers in `usage`. There is no reserved
/// inode for the one of projects.
pub(crate) fn make_quota_files(
    draft: &mut LayoutDraft,
    usage: &QuotaUsage,
) -> FormatResult<Vec<QuotaFile>> {
    let mut files = Vec::new();
    let types = draft.p.quota_types;
    if types.user {
        files.push(make_quota_file(draft, USER_INO, QuotaKind::User, usage)?);
        draft.raw.s_usr_quota_inum = USER_INO.into();
    }
    if types.group {
        files.push(make_quota_file(draft, GROUP_INO, QuotaKind::Group, usage)?);
        draft.raw.s_grp_quota_inum = GROUP_INO.into();
    }
    if types.project {
        let number = draft.new_inode()?;
        files.push(make_quota_file(draft, number, QuotaKind::Project, usage)?);
        draft.raw.s_prj_quota_inum = number.into();
    }
    Ok(files)
}

/// What the root directory and lost+found use.
pub(crate) fn root_usage(draft: &LayoutDraft) -> QuotaUsage {
    let owner = draft.p.options.root_owner.unwrap_or_default();
    let root = QuotaIds {
        user: owner.uid,
        group: owner.gid,
        project: 0,
    };
    let mut usage = QuotaUsage::default();
    for (ids, number) in [(root, 2), (QuotaIds::default(), 11)] {
        let bytes = space_of(draft, number);
        usage.add(ids, QuotaCounts { inodes: 1, bytes });
    }
    usage
}

/// The space of an inode in bytes, from its `i_blocks_lo`.
fn space_of(draft: &LayoutDraft, number: u32) -> u64 {
    let sectors = draft
        .inodes
        .get(&number)
        .and_then(|bytes| bytes.get(0x1c..0x20));
    let sectors = sectors.and_then(|bytes| bytes.try_into().ok());
    u64::from(sectors.map_or(0, u32::from_le_bytes)) * 512
}

/// Places a quota file.
fn make_quota_file(
    draft: &mut LayoutDraft,
    number: u32,
    kind: QuotaKind,
    usage: &QuotaUsage,
) -> FormatResult<QuotaFile> {
    let quota_blocks = quota::count_blocks(usage.of(kind).keys().copied());
    let block_bytes = draft.block_bytes();
    let len_bytes = quota_blocks * QUOTA_BLOCK_BYTES;
    // mke2fs makes files of at most two identifiers.
    let mapped = if quota_blocks <= blockmap::DIRECT as usize {
        // The order in which libext2fs writes: header, tree from the leaves up, root of the tree.
        let order = std::iter::once(0).chain(2..quota_blocks).chain([1]);
        let writes: Vec<u64> = order
            .map(|block| (block * QUOTA_BLOCK_BYTES / block_bytes) as u64)
            .collect();
        map_writes(draft, number, &writes)?
    } else {
        map_sequence(draft, number, len_bytes.div_ceil(block_bytes) as u64)?
    };
    let blocks = mapped.blocks.clone();
    let file = hidden_file(draft, len_bytes as u64, mapped);
    let file = File {
        flags: file.flags | InodeFlags::IMMUTABLE_FL,
        ..file
    };
    put_file(draft, number, &file)?;
    Ok(QuotaFile { kind, blocks })
}

/// Fills quota files with `usage`.
///
/// # Errors
/// `Invalid` if it has other identifiers than the files were placed for.
pub(crate) fn fill_quota_files(
    draft: &mut LayoutDraft,
    files: &[QuotaFile],
    usage: &QuotaUsage,
) -> FormatResult<()> {
    let block_bytes = draft.block_bytes();
    for QuotaFile { kind, blocks } in files {
        let mut content = quota::write(*kind, usage.of(*kind));
        content.resize(content.len().next_multiple_of(block_bytes), 0);
        if content.len() / block_bytes != blocks.len() {
            let why = "quota files were placed for other identifiers";
            return Err(FormatError::Invalid(why.to_owned()));
        }
        for (bytes, &block) in content.chunks(block_bytes).zip(blocks) {
            draft.blocks.insert(block, bytes.to_vec());
        }
    }
    Ok(())
}

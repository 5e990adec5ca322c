//! **Purpose.** The directories of an empty file system: root, and lost+found in it.

use fourscore_ondisk::dirent::{
    DirFormat, RawDirentHeader, RawTail, TAIL_BYTES, TAIL_FILE_TYPE, encode_rec_len,
};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::words::{low16, put};
use fourscore_ondisk::{GroupNr, InodeNr, blockmap};
use zerocopy::IntoBytes;

use crate::draft::LayoutDraft;
use crate::error::{FormatError, FormatResult};
use crate::inodes::{File, change_inode, extents_flag, put_file};
use crate::mapping::{Mapped, map_directory};
use crate::sizes::FIRST_INO;
use crate::superblock::EXTRA_ISIZE;

/// The initial size of lost+found: e2fsck can use its blocks without allocating any.
const LOST_AND_FOUND_BYTES: usize = 16 << 10;
const XATTR_MAGIC: u32 = 0xea02_0000;
/// The file type of directories in directory entries.
const DIR_TYPE: u8 = 2;

/// A directory entry.
#[derive(Clone, Copy)]
struct Entry<'a> {
    name: &'a [u8],
    /// 0 for a free entry.
    inode: u32,
}

const fn entry(name: &[u8], inode: u32) -> Entry<'_> {
    Entry { name, inode }
}

const FREE: Entry<'_> = entry(b"", 0);

/// Makes the root directory and lost+found.
pub(crate) fn make_root(draft: &mut LayoutDraft) -> FormatResult<()> {
    let root = InodeNr::ROOT.0;
    let lost_and_found = FIRST_INO;
    let block_bytes = draft.block_bytes();
    let mapped = map_directory(draft, root, 1)?;
    let entries = [
        entry(b".", root),
        entry(b"..", root),
        entry(b"lost+found", lost_and_found),
    ];
    let block = directory_block(draft, &entries, root)?;
    draft.blocks.insert(mapped.blocks[0], block);
    let directory = |mode, links, mapped: Mapped, flags| File {
        mode,
        links,
        flags,
        size_bytes: (mapped.blocks.len() * block_bytes) as u64,
        mapped,
    };
    let flags = extents_flag(draft);
    put_file(draft, root, &directory(0o40_755, 3, mapped, flags))?;
    let owner = draft.p.options.root_owner.unwrap_or_default();
    change_owner(draft, root, owner.uid, owner.gid)?;

    draft.use_new_inode(lost_and_found)?;
    let inline = draft
        .raw
        .features()
        .incompat
        .contains(Incompat::INLINE_DATA);
    let usual = LOST_AND_FOUND_BYTES
        .div_ceil(block_bytes)
        .clamp(2, blockmap::DIRECT as usize);
    // With inline data it begins inside its inode, and its first growth only moves it to a block.
    let count = usual - usize::from(inline);
    let mapped = map_directory(draft, lost_and_found, count)?;
    let dots = [entry(b".", lost_and_found), entry(b"..", root), FREE];
    let dots = if inline { &dots[..] } else { &dots[..2] };
    let first = directory_block(draft, dots, lost_and_found)?;
    let empty = directory_block(draft, &[], lost_and_found)?;
    for (index, &block) in mapped.blocks.iter().enumerate() {
        let content = if index == 0 { &first } else { &empty };
        draft.blocks.insert(block, content.clone());
    }
    put_file(
        draft,
        lost_and_found,
        &directory(0o40_700, 2, mapped, flags),
    )?;
    if inline {
        leave_empty_xattrs(draft, lost_and_found)?;
    }
    for number in [root, lost_and_found] {
        let place = draft.geometry().inode_group(InodeNr(number));
        if let Some((GroupNr(group), _)) = place {
            draft.groups[group as usize].dirs += 1;
        }
    }
    Ok(())
}

/// Sets the owner of a stored inode.
fn change_owner(draft: &mut LayoutDraft, number: u32, uid: u32, gid: u32) -> FormatResult<()> {
    change_inode(draft, number, |raw, _| {
        (raw.i_uid, raw.i_uid_high) = (low16(uid.into()), low16(u64::from(uid) >> 16));
        (raw.i_gid, raw.i_gid_high) = (low16(gid.into()), low16(u64::from(gid) >> 16));
    })
}

/// Sets the magic number of the attributes inside an inode: it stays when inline data, which is an
/// attribute, moves to a block.
fn leave_empty_xattrs(draft: &mut LayoutDraft, number: u32) -> FormatResult<()> {
    change_inode(draft, number, |_, tail| {
        let at = usize::from(EXTRA_ISIZE);
        if let Some(head) = tail.get_mut(at..at + 4) {
            head.copy_from_slice(&XATTR_MAGIC.to_le_bytes());
        }
    })
}

/// Makes a directory block with these entries, all of them directories; with one free entry if
/// there are none.
fn directory_block(
    draft: &LayoutDraft,
    entries: &[Entry<'_>],
    owner: u32,
) -> FormatResult<Vec<u8>> {
    let block_bytes = draft.block_bytes();
    let mut block = vec![0; block_bytes];
    let tail = if draft.sb.has_metadata_csum() {
        TAIL_BYTES
    } else {
        0
    };
    let file_type = match draft.raw.features().incompat.contains(Incompat::FILETYPE) {
        true => DIR_TYPE,
        false => 0,
    };
    let entries = if entries.is_empty() {
        &[FREE][..]
    } else {
        entries
    };
    let mut at = 0;
    for (index, &Entry { name, inode }) in entries.iter().enumerate() {
        let needed = (size_of::<RawDirentHeader>() + name.len()).next_multiple_of(4);
        let last = index + 1 == entries.len();
        let length = if last {
            block_bytes - tail - at
        } else {
            needed
        };
        let header = RawDirentHeader {
            inode: inode.into(),
            rec_len: encode_rec_len(length, block_bytes)
                .unwrap_or(u16::MAX)
                .into(),
            // A name of at most 255 bytes.
            name_len: low16(name.len() as u64).to_bytes()[0],
            file_type: if inode == 0 { 0 } else { file_type },
        };
        put(&mut block, at, header.as_bytes());
        put(&mut block, at + size_of::<RawDirentHeader>(), name);
        at += length;
    }
    if tail > 0 {
        let raw = RawTail {
            det_reserved_zero1: 0.into(),
            det_rec_len: 12.into(),
            det_reserved_zero2: 0,
            det_reserved_ft: TAIL_FILE_TYPE,
            det_checksum: 0.into(),
        };
        put(&mut block, at, raw.as_bytes());
        DirFormat::seal(&mut block, draft.seed(owner)).map_err(FormatError::invalid)?;
    }
    Ok(block)
}

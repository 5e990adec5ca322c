//! **Purpose.** Takes `dir_index` away: indexed directories become linear ones.
//!
//! **Model.** The leaves of an index are blocks of names as every directory has them, and stay as
//! they are. The index blocks are written as blocks of names in their places:
//! ```text
//! logical block   0                   1            2..
//! before          `.` `..` index      index node   names
//! after           `.` `..`            no name      names
//! ```
//! So no name moves, and no block is added or freed.
//!
//! **Invariants.** A directory without an index counts its subdirectories. With one it may have
//! the link count 1, for more than [`LINK_MAX`] of them now or once; then it gets the right count,
//! or is refused if it still has too many.
//!
//! **Crash safety.** The leaves are not written. The index blocks and the flag of the inode may
//! disagree after a crash; then a check finds a broken index, and all names in the leaves.
//!
//! Memory: the places of the blocks of one directory, and a copy of each index block.

use std::collections::BTreeMap;

use fourscore_ondisk::dirent::write::LeafWriter;
use fourscore_ondisk::features::Compat;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{GroupNr, GroupOffset, InodeNr, PhysBlock};

use super::super::editor::{Editor, Left, Patch};
use super::Ranges;
use super::checksums::index_nodes;
use crate::inode::InodeView;
use crate::pass4::LINK_MAX;

/// Makes every directory a linear one, and takes the feature away.
pub(super) fn remove(editor: &Editor<'_>) -> Patch<Ranges> {
    for dir in indexed_directories(editor)? {
        unindex(editor, dir)?;
    }
    editor.edit_super(|raw| {
        let compat = raw.features().compat - Compat::DIR_INDEX;
        raw.s_feature_compat = compat.bits().into();
    })?;
    Ok(Ranges::new())
}

/// The directories in use that have an index.
fn indexed_directories(editor: &Editor<'_>) -> Patch<Vec<InodeNr>> {
    let (volume, geometry) = (editor.volume, editor.volume.geometry());
    let is_indexed = |inode: &InodeView<'_>| {
        inode.links() > 0 && inode.is_directory() && inode.has(InodeFlags::INDEX_FL)
    };
    let mut found = Vec::new();
    for (nr, group) in (0..).map(GroupNr).zip(&volume.groups) {
        let inodes = (0..volume.inodes_to_read(group)).map(GroupOffset);
        let numbers = inodes.filter_map(|index| geometry.inode_at(nr, index));
        for number in numbers.filter(|nr| editor.state.directories.contains(nr.0.into())) {
            if editor.with_inode(number, is_indexed)? {
                found.push(number);
            }
        }
    }
    Ok(found)
}

/// Makes a directory a linear one.
fn unindex(editor: &Editor<'_>, dir: InodeNr) -> Patch {
    // Its name in the parent, its `.`, and `..` of each subdirectory.
    let links = editor.state.names.get(dir);
    let links = u16::try_from(links).ok().filter(|_| links <= LINK_MAX);
    let links = links.ok_or_else(|| {
        Left(format!(
            "directory inode {dir} has more subdirectories than can be counted without an index"
        ))
    })?;
    let format = editor.format_of(dir)?;
    let places = places_of(editor, dir)?;
    let nodes = index_nodes(editor, &places)?;
    for (&logical, &place) in &places {
        if logical != 0 && !nodes.contains(&logical) {
            continue;
        }
        let old = editor.read_block(place)?;
        let mut fresh = vec![0; old.len()];
        let writer = match logical {
            0 => {
                let dots = format.dots(&old);
                let dots = dots.map_err(|error| Left(error.to_string()))?;
                LeafWriter::with_dots(&format, &mut fresh, &dots)
            }
            _ => LeafWriter::new(&format, &mut fresh),
        };
        writer.finish();
        editor.write_dir_block(&format, place, &mut fresh)?;
    }
    editor.edit_base(dir, |base| base.i_links_count = links.into())?;
    editor.clear_flags(dir, InodeFlags::INDEX_FL)
}

/// Where the blocks of a directory are.
fn places_of(editor: &Editor<'_>, dir: InodeNr) -> Patch<BTreeMap<u64, PhysBlock>> {
    let mut places = BTreeMap::new();
    for extent in editor.extents_of(dir)? {
        let first = u64::from(extent.logical.0);
        let blocks = (0..u64::from(extent.blocks))
            .map(|nth| (first + nth, PhysBlock(extent.physical.0 + nth)));
        places.extend(blocks);
    }
    Ok(places)
}

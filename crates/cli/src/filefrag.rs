//! **Purpose.** `fourscore filefrag`: the extents of a file, in the format of `filefrag -v`.
//!
//! **Model.** An extent is *expected* at the physical block after the extent before it, with holes
//! counted as if they took space. An extent at another block begins a new fragment, and the last
//! line has the number of fragments. Inline data is shown in bytes, at the offset of the inode's
//! `i_block`. A file without an extent tree gets two more facts: the number of groups, and the
//! fewest fragments it could have if each filled its group.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use fourscore::{Extent, ExtentState, Follow, Stat};
use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::InodeFlags;
use serde_json::json;

use crate::args::OnePath;
use crate::failure::Result;
use crate::image::Image;
use crate::output::Stdout;
use crate::text::printable;

/// Offset of `i_block` in an inode.
const I_BLOCK_OFFSET_BYTES: u64 = 0x28;

/// One row of the table. Numbers are blocks, or bytes for inline data.
struct Piece {
    logical: u64,
    physical: u64,
    len: u64,
    unwritten: bool,
    inline: bool,
    /// Merged from the pointers of a block map.
    merged: bool,
}

impl From<Extent> for Piece {
    fn from(extent: Extent) -> Self {
        Self {
            logical: extent.logical.0.into(),
            physical: extent.physical.0,
            len: extent.blocks.into(),
            unwritten: extent.state == ExtentState::Unwritten,
            inline: false,
            merged: false,
        }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &OnePath) -> Result<()> {
    let image = Image::open(&args.image)?;
    let path = args.path.as_os_str().as_bytes();
    let inode = image.resolve(&args.path, Follow::Yes)?;
    let stat = image
        .fs
        .stat(inode)
        .map_err(|why| image.failure(path, why))?;
    let pieces = pieces(&image, &stat).map_err(|why| image.failure(path, why))?;
    let block_bytes = image.fs.geometry().block_size().bytes() as u64;
    let file = File {
        name: printable(path),
        stat: &stat,
        block_bytes,
        pieces: &pieces,
        data_blocks: image
            .fs
            .statfs()
            .map_err(|why| image.failure(path, why))?
            .blocks,
    };
    let mut out = Stdout::open()?;
    if args.json {
        out.write(format!("{:#}\n", file.as_json()).as_bytes())?;
    } else {
        out.write(file.as_text().as_bytes())?;
    }
    out.flush()
}

fn pieces(image: &Image, stat: &Stat) -> fourscore::Result<Vec<Piece>> {
    if !stat.flags.contains(InodeFlags::INLINE_DATA_FL) {
        let merged = !stat.flags.contains(InodeFlags::EXTENTS_FL);
        let extents = image.fs.extents(stat.inode)?.into_iter();
        let piece = |extent| Piece {
            merged,
            ..Piece::from(extent)
        };
        return Ok(extents.map(piece).collect());
    }
    Ok(vec![Piece {
        logical: 0,
        physical: inode_offset(image, stat.inode)? + I_BLOCK_OFFSET_BYTES,
        len: stat.size_bytes,
        unwritten: false,
        inline: true,
        merged: false,
    }])
}

/// Offset of an inode in the file system, in bytes.
fn inode_offset(image: &Image, inode: InodeNr) -> fourscore::Result<u64> {
    let geometry = image.fs.geometry();
    let (group, index) = geometry
        .inode_group(inode)
        .ok_or(fourscore::Error::NotFound)?;
    let place = geometry.inode_place(image.fs.group(group)?.inode_table(), index);
    Ok(geometry.block_size().offset(place.block) + place.offset_bytes as u64)
}

/// A file and its extents.
struct File<'a> {
    name: String,
    stat: &'a Stat,
    block_bytes: u64,
    pieces: &'a [Piece],
    /// Blocks of the file system without metadata, as statfs counts them.
    data_blocks: u64,
}

impl File<'_> {
    fn as_text(&self) -> String {
        let (name, block_bytes) = (&self.name, self.block_bytes);
        let mut text = String::from("Filesystem type is: ef53\n");
        // Writing into a String cannot fail.
        if !self.has_extent_tree() {
            let groups = self.data_blocks.div_ceil(block_bytes * 8);
            let _ = writeln!(text, "Filesystem cylinder groups approximately {groups}");
        }
        let blocks = self.stat.size_bytes.div_ceil(block_bytes);
        let _ = writeln!(
            text,
            "File size of {name} is {} ({blocks} block{} of {block_bytes} bytes)",
            self.stat.size_bytes,
            plural(blocks),
        );
        if !self.pieces.is_empty() {
            text.push_str(
                " ext:     logical_offset:        physical_offset: length:   expected: flags:\n",
            );
        }
        let found = self.table(&mut text);
        let _ = write!(text, "{name}: {found} extent{} found", plural(found));
        let group_bytes = block_bytes * 8 * block_bytes;
        let best = self.stat.size_bytes / group_bytes + 1;
        if !self.has_extent_tree() && best < found {
            let _ = write!(text, ", perfection would be {best} extent{}", plural(best));
        }
        text.push('\n');
        text
    }

    fn has_extent_tree(&self) -> bool {
        self.stat.flags.contains(InodeFlags::EXTENTS_FL)
    }

    /// Writes a row for each piece. Returns the number of pieces at unexpected blocks.
    fn table(&self, text: &mut String) -> u64 {
        let (mut expected, mut logical_end, mut found) = (0_u64, 0_u64, 0_u64);
        for (nr, piece) in self.pieces.iter().enumerate() {
            let expected_here = expected.saturating_add(piece.logical - logical_end);
            let elsewhere = piece.physical != expected_here;
            found += u64::from(elsewhere);
            let shown = if elsewhere && piece.logical != 0 {
                format!("{expected_here:>11}:")
            } else {
                " ".repeat(12)
            };
            // Writing into a String cannot fail.
            let _ = write!(
                text,
                "{nr:4}: {:8}..{:8}: {:10}..{:10}: {:6}:{shown}",
                piece.logical,
                piece.logical + piece.len.saturating_sub(1),
                piece.physical,
                piece.physical + piece.len.saturating_sub(1),
                piece.len,
            );
            let flags = self.flags(piece, nr + 1 == self.pieces.len());
            if !flags.is_empty() {
                let _ = write!(text, " {}", flags.join(","));
            }
            text.push('\n');
            expected = piece.physical + piece.len;
            logical_end = piece.logical + piece.len;
        }
        found
    }

    fn flags(&self, piece: &Piece, last: bool) -> Vec<&'static str> {
        let mut flags = Vec::new();
        if last {
            flags.push("last");
        }
        if piece.inline {
            flags.extend(["not_aligned", "inline"]);
        }
        if piece.unwritten {
            flags.push("unwritten");
        }
        if piece.merged {
            flags.push("merged");
        }
        let unit = if piece.inline { 1 } else { self.block_bytes };
        let end = piece.logical.saturating_add(piece.len).saturating_mul(unit);
        if end >= self.stat.size_bytes {
            flags.push("eof");
        }
        flags
    }

    fn as_json(&self) -> serde_json::Value {
        let extents: Vec<_> = self
            .pieces
            .iter()
            .map(|piece| {
                json!({
                    "logical": piece.logical,
                    "physical": piece.physical,
                    "length": piece.len,
                    "state": if piece.unwritten { "unwritten" } else { "written" },
                    "unit": if piece.inline { "bytes" } else { "blocks" },
                })
            })
            .collect();
        json!({
            "path": self.name,
            "size_bytes": self.stat.size_bytes,
            "block_bytes": self.block_bytes,
            "extents": extents,
        })
    }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

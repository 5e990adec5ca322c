//! **Purpose.** `fourscore filefrag`: the extents of a file, as `filefrag -v` prints them.
//!
//! **Model.** An extent is *expected* where the one before it would go on, holes counted as if
//! they took space; each that is elsewhere begins a new piece, and the number of pieces is the
//! last line. Inline data is shown in bytes, at the place of the inode's `i_block`.

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
use crate::text::for_people;

/// Where `i_block` begins in an inode.
const I_BLOCK_OFFSET_BYTES: u64 = 0x28;

/// One line of the table. Numbers are blocks, or bytes for inline data.
struct Piece {
    logical: u64,
    physical: u64,
    len: u64,
    unwritten: bool,
    inline: bool,
}

impl From<Extent> for Piece {
    fn from(extent: Extent) -> Self {
        Self {
            logical: extent.logical.0.into(),
            physical: extent.physical.0,
            len: extent.blocks.into(),
            unwritten: extent.state == ExtentState::Unwritten,
            inline: false,
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
    let mut out = Stdout::open()?;
    if args.json {
        let value = as_json(&pieces, &stat, block_bytes, path);
        out.write(format!("{value:#}\n").as_bytes())?;
    } else {
        out.write(as_text(&pieces, &stat, block_bytes, path).as_bytes())?;
    }
    out.flush()
}

fn pieces(image: &Image, stat: &Stat) -> fourscore::Result<Vec<Piece>> {
    if !stat.flags.contains(InodeFlags::INLINE_DATA_FL) {
        return Ok(image
            .fs
            .extents(stat.inode)?
            .into_iter()
            .map(Piece::from)
            .collect());
    }
    Ok(vec![Piece {
        logical: 0,
        physical: inode_place(image, stat.inode)? + I_BLOCK_OFFSET_BYTES,
        len: stat.size_bytes,
        unwritten: false,
        inline: true,
    }])
}

/// The byte of the file system where an inode begins.
fn inode_place(image: &Image, inode: InodeNr) -> fourscore::Result<u64> {
    let geometry = image.fs.geometry();
    let (group, index) = geometry
        .inode_group(inode)
        .ok_or(fourscore::Error::NotFound)?;
    let place = geometry.inode_place(image.fs.group(group)?.inode_table(), index);
    Ok(geometry.block_size().offset(place.block) + place.offset_bytes as u64)
}

fn as_text(pieces: &[Piece], stat: &Stat, block_bytes: u64, path: &[u8]) -> String {
    let name = for_people(path);
    let blocks = stat.size_bytes.div_ceil(block_bytes);
    let plural = if blocks == 1 { "" } else { "s" };
    let mut text = format!(
        "Filesystem type is: ef53\nFile size of {name} is {} ({blocks} block{plural} of \
         {block_bytes} bytes)\n",
        stat.size_bytes
    );
    if !pieces.is_empty() {
        text.push_str(
            " ext:     logical_offset:        physical_offset: length:   expected: flags:\n",
        );
    }
    let (mut expected, mut logical_end, mut found) = (0_u64, 0_u64, 0_u64);
    for (nr, piece) in pieces.iter().enumerate() {
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
        let last = nr + 1 == pieces.len();
        let flags = flags(piece, last, stat.size_bytes, block_bytes);
        if !flags.is_empty() {
            let _ = write!(text, " {}", flags.join(","));
        }
        text.push('\n');
        expected = piece.physical + piece.len;
        logical_end = piece.logical + piece.len;
    }
    let plural = if found == 1 { "" } else { "s" };
    let _ = writeln!(text, "{name}: {found} extent{plural} found");
    text
}

fn flags(piece: &Piece, last: bool, size_bytes: u64, block_bytes: u64) -> Vec<&'static str> {
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
    let unit = if piece.inline { 1 } else { block_bytes };
    if piece.logical.saturating_add(piece.len).saturating_mul(unit) >= size_bytes {
        flags.push("eof");
    }
    flags
}

fn as_json(pieces: &[Piece], stat: &Stat, block_bytes: u64, path: &[u8]) -> serde_json::Value {
    let extents: Vec<_> = pieces
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
        "path": for_people(path),
        "size_bytes": stat.size_bytes,
        "block_bytes": block_bytes,
        "extents": extents,
    })
}

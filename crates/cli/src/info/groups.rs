//! **Purpose.** `fourscore info --groups`: the block groups in the format of dumpe2fs.

use std::fmt::{Display, Write as _};
use std::ops::Range;

use fourscore::Bitmap;
use fourscore_ondisk::features::{Incompat, RoCompat};
use fourscore_ondisk::group::{GroupDesc, GroupFlags};
use fourscore_ondisk::superblock::{MetadataChecksum, Superblock};
use fourscore_ondisk::{GroupNr, PhysBlock};
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::image::Image;
use crate::output::Stdout;

/// How numbers of blocks and inodes are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    Decimal,
    /// With at least so many digits.
    Hex {
        digits: usize,
    },
}

impl Numbers {
    /// As in dumpe2fs, hexadecimal numbers are longer with `64bit`.
    fn of(sb: &Superblock, is_hex: bool) -> Self {
        let is_wide = sb.features().incompat.contains(Incompat::BIT64);
        match (is_hex, is_wide) {
            (false, _) => Self::Decimal,
            (true, false) => Self::Hex { digits: 4 },
            (true, true) => Self::Hex { digits: 8 },
        }
    }

    fn text(self, number: u64) -> String {
        match self {
            Self::Decimal => number.to_string(),
            Self::Hex { digits } => format!("0x{number:0digits$x}"),
        }
    }

    fn range(self, first: u64, last: u64) -> String {
        format!("{}-{}", self.text(first), self.text(last))
    }
}

/// What is done with a bitmap whose checksum is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BitmapCheck {
    /// It is an error.
    Refused,
    /// It is shown, and an error afterwards.
    Shown,
}

/// Prints an empty line and all groups.
pub(crate) fn print(
    image: &Image,
    is_hex: bool,
    check: BitmapCheck,
    out: &mut Stdout,
) -> Result<()> {
    let numbers = Numbers::of(image.fs.superblock(), is_hex);
    let mut wrong = None;
    out.write(b"\n")?;
    for nr in (0..image.fs.geometry().groups()).map(GroupNr) {
        let group = match check {
            BitmapCheck::Refused => Group::read(image, nr)?,
            BitmapCheck::Shown => Group::read_unchecked(image, nr, &mut wrong)?,
        };
        out.write(group.to_text(numbers).as_bytes())?;
    }
    let Some(wrong) = wrong else { return Ok(()) };
    out.write(b"\n*** Run e2fsck now!\n\n")?;
    out.flush()?;
    Err(wrong)
}

/// Prints the table of `dumpe2fs -g`: where the metadata of each group is, -1 where there is none.
pub(crate) fn print_table(image: &Image, is_hex: bool, out: &mut Stdout) -> Result<()> {
    let numbers = Numbers::of(image.fs.superblock(), is_hex);
    out.write(b"\ngroup:block:super:gdt:bbitmap:ibitmap:itable\n")?;
    for nr in (0..image.fs.geometry().groups()).map(GroupNr) {
        // Nothing of the bitmaps is printed.
        let group = Group::read_unchecked(image, nr, &mut None)?;
        out.write(group.to_row(numbers).as_bytes())?;
    }
    Ok(())
}

/// All groups as an array.
pub(crate) fn as_json(image: &Image, check: BitmapCheck) -> Result<Value> {
    let groups = (0..image.fs.geometry().groups()).map(GroupNr);
    let read = |nr| match check {
        BitmapCheck::Refused => Group::read(image, nr),
        // Nothing of the bitmaps is printed.
        BitmapCheck::Shown => Group::read_unchecked(image, nr, &mut None),
    };
    groups.map(|nr| Ok(read(nr)?.to_json())).collect()
}

/// A group and its bitmaps.
struct Group<'i> {
    sb: &'i Superblock,
    nr: GroupNr,
    blocks: Range<PhysBlock>,
    desc: GroupDesc,
    block_bitmap: Bitmap,
    inode_bitmap: Bitmap,
}

impl<'i> Group<'i> {
    fn read(image: &'i Image, nr: GroupNr) -> Result<Self> {
        let fs = &image.fs;
        let failed = |why: fourscore::Error| image.failure(format!("group {nr}").as_bytes(), why);
        Ok(Self {
            sb: fs.superblock(),
            nr,
            blocks: fs.geometry().group_blocks(nr),
            desc: fs.group(nr).map_err(failed)?,
            block_bitmap: fs.block_bitmap(nr).map_err(failed)?,
            inode_bitmap: fs.inode_bitmap(nr).map_err(failed)?,
        })
    }

    /// Reads a group whose bitmaps may have other checksums. The first such is noted in `wrong`.
    fn read_unchecked(image: &'i Image, nr: GroupNr, wrong: &mut Option<Failure>) -> Result<Self> {
        let (fs, geometry) = (&image.fs, image.fs.geometry());
        let failure = |why: &dyn Display| image.failure(format!("group {nr}").as_bytes(), why);
        let desc = fs.group(nr).map_err(|why| failure(&why))?;
        let block = |at: PhysBlock| {
            let mut bytes = vec![0; geometry.block_size().bytes()];
            let read = fs
                .device()
                .read_at(&mut bytes, geometry.block_size().offset(at));
            read.map(|()| bytes).map_err(|why| failure(&why))
        };
        let (blocks, inodes) = (block(desc.block_bitmap())?, block(desc.inode_bitmap())?);
        let sb = fs.superblock();
        let verified = desc.verify_block_bitmap(&blocks, sb);
        let verified = verified.and_then(|()| desc.verify_inode_bitmap(&inodes, sb));
        if let (None, Err(why)) = (&wrong, verified) {
            *wrong = Some(failure(&why));
        }
        Ok(Self {
            sb,
            nr,
            blocks: geometry.group_blocks(nr),
            desc,
            block_bitmap: Bitmap::new(&blocks, geometry.group_clusters(nr)),
            inode_bitmap: Bitmap::new(&inodes, geometry.inodes_per_group()),
        })
    }

    fn flags(&self) -> Vec<&'static str> {
        let names = [
            (GroupFlags::INODE_UNINIT, "INODE_UNINIT"),
            (GroupFlags::BLOCK_UNINIT, "BLOCK_UNINIT"),
            (GroupFlags::INODE_ZEROED, "ITABLE_ZEROED"),
        ];
        let has = |flag| self.desc.flags().contains(flag);
        names
            .iter()
            .filter(|(flag, _)| has(*flag))
            .map(|(_, name)| *name)
            .collect()
    }

    /// Whether the descriptor has a checksum; only then are its flags valid.
    fn has_checksum(&self) -> bool {
        self.sb.metadata_checksum() != MetadataChecksum::None
    }

    /// The row of `dumpe2fs -g`, which has hexadecimal numbers only in ranges.
    fn to_row(&self, numbers: Numbers) -> String {
        let none = || "-1".to_owned();
        let superblock = self.superblock().map(|(_, block)| block.0.to_string());
        let place = self.descriptors();
        let descriptors = match place.end.0.checked_sub(1) {
            Some(last) if !place.is_empty() && !self.is_in_meta_group() => {
                numbers.range(place.start.0, last)
            }
            _ if place.is_empty() => none(),
            _ => place.start.0.to_string(),
        };
        format!(
            "{}:{}:{}:{descriptors}:{}:{}:{}\n",
            self.nr,
            self.blocks.start,
            superblock.unwrap_or_else(none),
            self.desc.block_bitmap(),
            self.desc.inode_bitmap(),
            self.desc.inode_table(),
        )
    }

    /// The kind and the place of the superblock in this group.
    fn superblock(&self) -> Option<(&'static str, PhysBlock)> {
        let geometry = self.sb.geometry();
        geometry.has_super(self.nr).then(|| match self.nr {
            GroupNr(0) => ("Primary", geometry.super_block()),
            _ => ("Backup", self.blocks.start),
        })
    }

    fn to_text(&self, numbers: Numbers) -> String {
        let (first, last) = (self.blocks.start.0, self.blocks.end.0.saturating_sub(1));
        let blocks = numbers.range(first, last);
        let mut text = format!("Group {}: (Blocks {blocks})", self.nr);
        // Writing into a String cannot fail.
        if self.has_checksum() {
            let _ = write!(text, " csum 0x{:04x}", self.desc.checksum());
            if !self.flags().is_empty() {
                let _ = write!(text, " [{}]", self.flags().join(", "));
            }
        }
        text.push('\n');
        self.superblock_and_descriptors(numbers, &mut text);
        let (block_csum, inode_csum) = self.bitmap_checksums();
        let bitmap =
            |block: PhysBlock| format!("{}{}", numbers.text(block.0), self.relative(block));
        let _ = writeln!(
            text,
            "  Block bitmap at {}{block_csum}",
            bitmap(self.desc.block_bitmap())
        );
        let _ = writeln!(
            text,
            "  Inode bitmap at {}{inode_csum}",
            bitmap(self.desc.inode_bitmap())
        );
        let table = self.desc.inode_table();
        let end = table.0 + u64::from(self.sb.geometry().inode_table_blocks()).saturating_sub(1);
        let _ = writeln!(
            text,
            "  Inode table at {}{}",
            numbers.range(table.0, end),
            self.relative(table)
        );
        self.counts(numbers, &mut text);
        text
    }

    fn superblock_and_descriptors(&self, numbers: Numbers, text: &mut String) {
        let place = self.descriptors();
        let mut parts = Vec::new();
        if let Some((kind, block)) = self.superblock() {
            let block = numbers.text(block.0);
            parts.push(format!("{kind} superblock at {block}"));
        }
        if !place.is_empty() {
            let (first, last) = (place.start.0, place.end.0.saturating_sub(1));
            parts.push(if self.is_in_meta_group() {
                format!("Group descriptor at {}", numbers.text(first))
            } else {
                format!("Group descriptors at {}", numbers.range(first, last))
            });
        }
        if !parts.is_empty() {
            let _ = writeln!(text, "  {}", parts.join(", "));
        }
        let reserved = u64::from(self.sb.reserved_gdt_blocks());
        if reserved > 0 && !place.is_empty() && !self.is_in_meta_group() {
            let start = place.end.0;
            let _ = writeln!(
                text,
                "  Reserved GDT blocks at {}",
                numbers.range(start, start + reserved - 1)
            );
        }
    }

    /// The descriptor blocks that this group holds a copy of.
    fn descriptors(&self) -> Range<PhysBlock> {
        let geometry = self.sb.geometry();
        let super_block = match self.nr {
            GroupNr(0) => geometry.super_block(),
            _ => self.blocks.start,
        };
        let has_super = geometry.has_super(self.nr);
        let (start, count) = if self.is_in_meta_group() {
            let per_block = geometry.descs_per_block();
            let place = self.nr.0 % per_block;
            let here = place == 0 || place == 1 || place == per_block - 1;
            (super_block.0 + u64::from(has_super), u64::from(here))
        } else if has_super {
            let before = geometry.first_meta_bg();
            let count = before.unwrap_or_else(|| geometry.desc_blocks());
            (super_block.0 + 1, u64::from(count))
        } else {
            (super_block.0, 0)
        };
        PhysBlock(start)..PhysBlock(start + count)
    }

    fn is_in_meta_group(&self) -> bool {
        let geometry = self.sb.geometry();
        let meta_group = self.nr.0 / geometry.descs_per_block();
        geometry
            .first_meta_bg()
            .is_some_and(|first| meta_group >= first)
    }

    /// The position of a block relative to this group, or to the group it is in.
    fn relative(&self, block: PhysBlock) -> String {
        if self.blocks.contains(&block) {
            let offset = block.0 - self.blocks.start.0;
            return format!(" (+{offset})");
        }
        let geometry = self.sb.geometry();
        let flex = self.sb.features().incompat.contains(Incompat::FLEX_BG);
        geometry
            .block_group(block)
            .filter(|_| flex)
            .map_or_else(String::new, |(group, _)| {
                let offset = block.0 - geometry.group_first_block(group).0;
                format!(" (bg #{group} + {offset})")
            })
    }

    fn bitmap_checksums(&self) -> (String, String) {
        if self.sb.metadata_checksum() != MetadataChecksum::Crc32c {
            return (String::new(), String::new());
        }
        let (low, high) = (self.desc.raw(), self.desc.raw_high());
        let wide = |low: u16, high: Option<u16>| {
            let value = u32::from(low) | u32::from(high.unwrap_or(0)) << 16;
            format!(", csum 0x{value:08x}")
        };
        (
            wide(
                low.bg_block_bitmap_csum_lo.get(),
                high.map(|high| high.bg_block_bitmap_csum_hi.get()),
            ),
            wide(
                low.bg_inode_bitmap_csum_lo.get(),
                high.map(|high| high.bg_inode_bitmap_csum_hi.get()),
            ),
        )
    }

    fn counts(&self, numbers: Numbers, text: &mut String) {
        let bigalloc = self.sb.features().ro_compat.contains(RoCompat::BIGALLOC);
        let unit = if bigalloc { "clusters" } else { "blocks" };
        let _ = write!(
            text,
            "  {} free {unit}, {} free inodes, {} directories",
            self.desc.free_clusters(),
            self.desc.free_inodes(),
            self.desc.used_dirs(),
        );
        if self.has_checksum() && self.desc.itable_unused() > 0 {
            let _ = write!(text, ", {} unused inodes", self.desc.itable_unused());
        }
        let _ = writeln!(text, "\n  Free blocks: {}", self.free_blocks(numbers));
        let first = u64::from(self.nr.0) * u64::from(self.sb.geometry().inodes_per_group()) + 1;
        let _ = writeln!(
            text,
            "  Free inodes: {}",
            runs(&self.inode_bitmap, first, 0, numbers)
        );
    }

    fn free_blocks(&self, numbers: Numbers) -> String {
        let cluster_log = self.sb.geometry().blocks_per_cluster_log();
        runs(
            &self.block_bitmap,
            self.blocks.start.0,
            cluster_log,
            numbers,
        )
    }

    fn to_json(&self) -> Value {
        json!({
            "group": self.nr.0,
            "first_block": self.blocks.start.0,
            "last_block": self.blocks.end.0.saturating_sub(1),
            "flags": self.flags(),
            "checksum": self.desc.checksum(),
            "block_bitmap": self.desc.block_bitmap().0,
            "inode_bitmap": self.desc.inode_bitmap().0,
            "inode_table": self.desc.inode_table().0,
            "free_clusters": self.desc.free_clusters(),
            "free_inodes": self.desc.free_inodes(),
            "directories": self.desc.used_dirs(),
            "unused_inodes": self.desc.itable_unused(),
        })
    }
}

/// The free runs of a bitmap as `first-last`, in the numbers that begin with `start`; a cluster
/// is named by its first block.
fn runs(bitmap: &Bitmap, start: u64, cluster_log: u32, numbers: Numbers) -> String {
    let number = |bit: u32| start + (u64::from(bit) << cluster_log);
    let mut text = String::new();
    for run in bitmap.free_runs() {
        if !text.is_empty() {
            text.push_str(", ");
        }
        let (first, last) = (number(run.start), number(run.end.saturating_sub(1)));
        text.push_str(&match first == last {
            true => numbers.text(first),
            false => numbers.range(first, last),
        });
    }
    text
}

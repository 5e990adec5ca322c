//! **Purpose.** `fourscore freefrag`: the fragmentation of the free space, in the format of
//! e2freefrag.
//!
//! **Model.** The free runs of all groups are visited in order. A run at the end of a group and a
//! run at the start of the next one are one extent. Extents are counted by the power of two of
//! their length.

use std::fmt::Write as _;

use fourscore_ondisk::GroupNr;
use serde_json::json;

use crate::args::Freefrag;
use crate::failure::{Failure, Result};
use crate::image::Image;
use crate::output::Stdout;

/// Powers of two of a length in blocks.
const BUCKETS: usize = 64;

/// A histogram of the free extents.
pub(crate) struct Histogram {
    /// `[i]` counts extents of `2^i` to `2^(i+1) - 1` blocks.
    pub(crate) extents: [u64; BUCKETS],
    /// The blocks of these extents.
    pub(crate) blocks: [u64; BUCKETS],
    pub(crate) min: u64,
    pub(crate) max: u64,
    chunks: Option<Chunks>,
}

/// Aligned pieces of a fixed size that are entirely free.
struct Chunks {
    blocks: u64,
    free: u64,
}

impl Histogram {
    pub(crate) fn new(chunk_blocks: Option<u64>) -> Self {
        Self {
            extents: [0; BUCKETS],
            blocks: [0; BUCKETS],
            min: u64::MAX,
            max: 0,
            chunks: chunk_blocks.map(|blocks| Chunks { blocks, free: 0 }),
        }
    }

    fn add(&mut self, start: u64, end: u64) {
        let len = end - start;
        let Some(bucket) = len.checked_ilog2() else {
            return;
        };
        self.extents[bucket as usize] += 1;
        self.blocks[bucket as usize] += len;
        self.min = self.min.min(len);
        self.max = self.max.max(len);
        if let Some(chunks) = &mut self.chunks {
            let (first, last) = (start.div_ceil(chunks.blocks), end / chunks.blocks);
            chunks.free += last.saturating_sub(first);
        }
    }

    fn count(&self) -> u64 {
        self.extents.iter().sum()
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Freefrag) -> Result<()> {
    let image = Image::open(&args.image)?;
    let block_bytes = image.fs.geometry().block_size().bytes() as u64;
    let chunk_blocks = args
        .chunk_kb
        .map(|kib| chunk_blocks(kib, block_bytes))
        .transpose()?;
    let histogram = scan(&image, chunk_blocks)?;
    let mut out = Stdout::open()?;
    if args.json {
        out.write(format!("{:#}\n", as_json(&image, &histogram)).as_bytes())?;
    } else {
        let device = args.image.path.display().to_string();
        out.write(as_text(&image, &histogram, &device).as_bytes())?;
    }
    out.flush()
}

fn chunk_blocks(kib: u64, block_bytes: u64) -> Result<u64> {
    let bytes = kib
        .checked_mul(1024)
        .filter(|bytes| bytes.is_power_of_two());
    bytes
        .map(|bytes| bytes / block_bytes)
        .filter(|&blocks| blocks > 0)
        .ok_or_else(|| {
            let why = format_args!("{kib} KiB is not a power of two of at least the block size");
            Failure::new("--chunk-kb", why)
        })
}

fn scan(image: &Image, chunk_blocks: Option<u64>) -> Result<Histogram> {
    let geometry = image.fs.geometry();
    let cluster_log = geometry.blocks_per_cluster_log();
    let mut histogram = Histogram::new(chunk_blocks);
    let mut open = 0..0;
    for group in (0..geometry.groups()).map(GroupNr) {
        let bitmap = image
            .fs
            .block_bitmap(group)
            .map_err(|why| image.failure(b"/", why))?;
        let blocks = geometry.group_blocks(group);
        for run in bitmap.free_runs() {
            let at = |cluster: u32| {
                let block = blocks.start.0 + (u64::from(cluster) << cluster_log);
                block.min(blocks.end.0)
            };
            let (start, end) = (at(run.start), at(run.end));
            if start == open.end {
                open.end = end;
            } else {
                histogram.add(open.start, open.end);
                open = start..end;
            }
        }
    }
    histogram.add(open.start, open.end);
    Ok(histogram)
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 * 100.0 / whole as f64
    }
}

fn as_text(image: &Image, histogram: &Histogram, device: &str) -> String {
    let geometry = image.fs.geometry();
    let (total, free) = (geometry.blocks().0, image.fs.superblock().free_blocks().0);
    let block_bytes = geometry.block_size().bytes() as u64;
    let mut text = format!(
        "Device: {device}\nBlocksize: {block_bytes} bytes\nTotal blocks: {total}\n\
         Free blocks: {free} ({:.1}%)\n",
        percent(free, total)
    );
    // Writing into a String cannot fail.
    if let Some(chunks) = &histogram.chunks {
        let all = (total + chunks.blocks) / chunks.blocks;
        let _ = write!(
            text,
            "\nChunksize: {} bytes ({} blocks)\nTotal chunks: {all}\nFree chunks: {} ({:.1}%)\n",
            chunks.blocks * block_bytes,
            chunks.blocks,
            chunks.free,
            percent(chunks.free, all)
        );
    }
    text.push_str(&histogram_text(histogram, block_bytes, free));
    text
}

/// The part about the sizes of the free extents.
pub(crate) fn histogram_text(histogram: &Histogram, block_bytes: u64, free: u64) -> String {
    let mut text = String::new();
    let count = histogram.count();
    let kib = |blocks: u64| blocks.saturating_mul(block_bytes) >> 10;
    let min = if count == 0 { 0 } else { histogram.min };
    let average = histogram
        .blocks
        .iter()
        .sum::<u64>()
        .checked_div(count)
        .unwrap_or(0);
    // Writing into a String cannot fail.
    let _ = write!(
        text,
        "\nMin. free extent: {} KB \nMax. free extent: {} KB\nAvg. free extent: {} KB\n\
         Num. free extent: {count}\n\nHISTOGRAM OF FREE EXTENT SIZES:\n\
         Extent Size Range :  Free extents   Free Blocks  Percent\n",
        kib(min),
        kib(histogram.max),
        kib(average),
    );
    for (log, (&extents, &blocks)) in histogram.extents.iter().zip(&histogram.blocks).enumerate() {
        if extents > 0 {
            let (start, end, unit) = range(log, block_bytes);
            let share = percent(blocks, free);
            let _ = writeln!(
                text,
                "{start:5}{unit}...{end:5}{unit}-  :  {extents:12}  {blocks:12}  {share:6.2}%"
            );
        }
    }
    text
}

/// The extent sizes of a bucket in the largest unit of which the lower one is a multiple.
fn range(log: usize, block_bytes: u64) -> (u64, u64, char) {
    let mut kib = block_bytes
        .checked_shl(u32::try_from(log).unwrap_or(0))
        .unwrap_or(0)
        >> 10;
    let mut units = "KMGTPE".chars();
    let mut unit = units.next().unwrap_or('K');
    while kib >= 1024 {
        kib /= 1024;
        unit = units.next().unwrap_or('E');
    }
    (kib, kib * 2, unit)
}

fn as_json(image: &Image, histogram: &Histogram) -> serde_json::Value {
    let geometry = image.fs.geometry();
    let buckets: Vec<_> = histogram
        .extents
        .iter()
        .zip(&histogram.blocks)
        .enumerate()
        .filter(|(_, (extents, _))| **extents > 0)
        .map(|(log, (extents, blocks))| {
            json!({ "min_blocks": 1_u64 << log, "free_extents": extents, "free_blocks": blocks })
        })
        .collect();
    json!({
        "block_bytes": geometry.block_size().bytes(),
        "total_blocks": geometry.blocks().0,
        "free_blocks": image.fs.superblock().free_blocks().0,
        "free_extents": histogram.count(),
        "min_free_extent_blocks": if histogram.count() == 0 { 0 } else { histogram.min },
        "max_free_extent_blocks": histogram.max,
        "free_chunks": histogram.chunks.as_ref().map(|chunks| chunks.free),
        "histogram": buckets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_change_units() {
        assert_eq!(range(0, 1024), (1, 2, 'K'));
        assert_eq!(range(9, 1024), (512, 1024, 'K'));
        assert_eq!(range(10, 1024), (1, 2, 'M'));
        assert_eq!(range(8, 4096), (1, 2, 'M'));
        assert_eq!(range(20, 65536), (64, 128, 'G'));
    }

    #[test]
    fn chunks_are_aligned() {
        let mut histogram = Histogram::new(Some(8));
        histogram.add(1, 8);
        histogram.add(9, 33);
        histogram.add(40, 48);
        assert_eq!(histogram.chunks.as_ref().map(|chunks| chunks.free), Some(3));
        assert_eq!(
            (histogram.count(), histogram.min, histogram.max),
            (3, 7, 24)
        );
        assert_eq!(chunk_blocks(64, 1024).ok(), Some(64));
        assert!(chunk_blocks(3, 1024).is_err() && chunk_blocks(1, 4096).is_err());
    }
}

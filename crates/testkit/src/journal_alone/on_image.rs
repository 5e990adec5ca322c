//! **Purpose.** The same client on an ext4 image: the journal is that of the file system and the
//! slots are unused blocks of it, so that other programs can recover a crash state and the results
//! can be compared.
//!
//! The log of such a journal has at least 1024 blocks. Transactions that change nothing
//! come first, so that the rest of the history wraps.

use anyhow::{Context, Result, ensure};
use fourscore_journal::JournalRun;
use fourscore_ondisk::jbd2::JournalBlock;
use fourscore_ondisk::{BlockCount, BlockSize, PhysBlock};

use super::place::{Place, SLOTS};
use crate::image::{Image, ImageBuilder, MiB};
use crate::oracle;

/// The size of the images.
const SIZE: MiB = MiB(8);
/// Their block size: the smallest, for a small log.
const BLOCK_BYTES: u32 = 1024;

/// Makes an image with the smallest journal, `features` beside the defaults, and needs_recovery
/// set.
///
/// # Errors
/// mke2fs or debugfs is missing or refuses.
pub(super) fn make(features: &[&str]) -> Result<(Image, Place)> {
    let builder: ImageBuilder = Image::builder(SIZE)
        .kind("ext4")
        .block_size_bytes(BLOCK_BYTES)
        .journal(MiB(1))
        .features(features);
    let image = builder.make()?;
    oracle::debugfs_write(image.path(), &["feature needs_recovery"])?;
    let place = Place {
        block_size: BlockSize::from_log(0).context("1 KiB")?,
        slots: numbers(&image, &format!("ffb {SLOTS} 6000"))?,
        journal: runs(&oracle::debugfs(image.path(), &["stat <8>"])?),
        blocks: BlockCount(SIZE.bytes() / u64::from(BLOCK_BYTES)),
    };
    ensure!(place.slots.len() == SLOTS, "{:?}", place.slots);
    Ok((image, place))
}

/// The block numbers that a command of debugfs prints.
fn numbers(image: &Image, command: &str) -> Result<Vec<PhysBlock>> {
    let text = oracle::debugfs(image.path(), &[command])?;
    let words = text.split_whitespace();
    let numbers: Vec<_> = words
        .filter_map(|word| word.parse().ok().map(PhysBlock))
        .collect();
    (!numbers.is_empty())
        .then_some(numbers)
        .with_context(|| format!("'{command}' prints no numbers: {text}"))
}

/// Parses the runs in the output of debugfs `stat`: words like `(0-11):80-91`. Blocks of the map
/// itself have no number in front, such as `(IND):92`.
fn runs(stat: &str) -> Vec<JournalRun> {
    let run = |word: &str| {
        let (logical, physical) = word
            .trim_end_matches(',')
            .strip_prefix('(')?
            .split_once("):")?;
        let (first, last) = logical.split_once('-').unwrap_or((logical, logical));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        Some(JournalRun {
            journal_block: JournalBlock(first),
            block: PhysBlock(physical.split('-').next()?.parse().ok()?),
            blocks: last - first + 1,
        })
    };
    stat.split_whitespace().filter_map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_read_from_what_debugfs_prints() {
        let stat = "BLOCKS:\n(0-11):48-59, (IND):60, (12):61, (ETB0):81, (13-15):90-92\nTOTAL: 18";
        let runs = runs(stat);
        let found: Vec<_> = runs
            .iter()
            .map(|run| (run.journal_block.0, run.block.0, run.blocks))
            .collect();
        assert_eq!(found, [(0, 48, 12), (12, 61, 1), (13, 90, 3)]);
    }
}

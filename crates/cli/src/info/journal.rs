//! **Purpose.** The journal's superblock as labels and values.

use fourscore_ondisk::features::Compat;
use fourscore_ondisk::jbd2::superblock::{
    JournalCompat, JournalIncompat, JournalSuperblock, RawJournalSuperblock,
};
use fourscore_ondisk::superblock::JournalPlace;

use super::Lines;
use crate::content::read_exactly;
use crate::failure::Result;
use crate::image::Image;

/// Blocks for fast commits of a journal whose superblock has no number.
const DEFAULT_FAST_COMMIT_BLOCKS: u64 = 256;

/// Adds the lines about a journal inside the file system; one on another device is not shown.
pub(crate) fn describe(image: &Image, lines: &mut Lines) -> Result<()> {
    let Some(JournalPlace::Inode(inode)) = image.fs.superblock().journal() else {
        return Ok(());
    };
    let mut bytes = [0; size_of::<RawJournalSuperblock>()];
    read_exactly(&image.fs, inode, &mut bytes, 0).map_err(|why| image.failure(b"journal", why))?;
    let raw: RawJournalSuperblock = zerocopy::transmute!(bytes);
    let journal =
        JournalSuperblock::try_from(&raw).map_err(|why| image.failure(b"journal", why))?;
    let blocks = u64::from(journal.maxlen());
    let kib = blocks * u64::from(journal.block_size_bytes()) / 1024;
    let fast_commit = fast_commit_blocks(image, &journal);
    lines.text("Journal features", features(&journal));
    let size = if kib < 8192 {
        format!("{kib}k")
    } else {
        format!("{}M", kib >> 10)
    };
    lines.text("Total journal size", size);
    lines.number("Total journal blocks", blocks);
    lines.number("Max transaction length", blocks.saturating_sub(fast_commit));
    lines.number("Fast commit length", fast_commit);
    lines.text(
        "Journal sequence",
        format!("0x{:08x}", journal.sequence().0),
    );
    lines.number("Journal start", journal.start().map_or(0, |start| start.0));
    if journal.compat().contains(JournalCompat::CHECKSUM) {
        lines.text("Journal checksum type", "crc32");
    }
    if journal
        .incompat()
        .intersects(JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3)
    {
        lines.text("Journal checksum type", "crc32c");
        lines.text(
            "Journal checksum",
            format!("0x{:08x}", journal.raw().s_checksum.get()),
        );
    }
    if journal.errno() != 0 {
        lines.text("Journal errno", journal.errno().to_string());
    }
    Ok(())
}

/// The blocks reserved for fast commits. A journal that was never mounted has no feature flag for
/// them yet.
fn fast_commit_blocks(image: &Image, journal: &JournalSuperblock) -> u64 {
    if !image
        .fs
        .superblock()
        .features()
        .compat
        .contains(Compat::FAST_COMMIT)
    {
        return 0;
    }
    match journal.raw().s_num_fc_blks.get() {
        0 => DEFAULT_FAST_COMMIT_BLOCKS,
        blocks => blocks.into(),
    }
}

fn features(journal: &JournalSuperblock) -> String {
    let compat = journal.compat().contains(JournalCompat::CHECKSUM);
    let incompat = [
        (JournalIncompat::REVOKE, "journal_incompat_revoke"),
        (JournalIncompat::_64BIT, "journal_64bit"),
        (JournalIncompat::ASYNC_COMMIT, "journal_async_commit"),
        (JournalIncompat::CSUM_V2, "journal_checksum_v2"),
        (JournalIncompat::CSUM_V3, "journal_checksum_v3"),
        (JournalIncompat::FAST_COMMIT, "fast_commit"),
    ];
    let set = incompat
        .iter()
        .filter(|(bit, _)| journal.incompat().contains(*bit));
    let names: Vec<_> = compat
        .then_some("journal_checksum")
        .into_iter()
        .chain(set.map(|(_, name)| *name))
        .collect();
    if names.is_empty() {
        "(none)".into()
    } else {
        names.join(" ")
    }
}

//! **Purpose.** An extent at a wrong place of its file: what the other extents map stays.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore::{FileType, Fs, OpenOptions};
use fourscore_ondisk::InodeNr;
use fourscore_testkit::damage::{Kind, Site};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{matrix, require};

use super::assert_repaired;
use crate::common::opened;
use crate::invariants::surgery::Surgery;

const CONFIGS: [&str; 2] = ["ext4-1k", "bigalloc-16k"];
/// The most bytes of a file that are compared.
const MOST_BYTES: u64 = 128 << 20;
/// First blocks that are too high to exist, far too high, and too low.
const WRONG: [u64; 3] = [0xffff_ffff, 0x7fff_fff0, 0];

/// At most so many bytes of a regular file.
fn content(image: &Path, nr: InodeNr, most: u64) -> Result<Vec<u8>> {
    let fs = Fs::open(opened(image)?, &OpenOptions::new())?;
    let stat = fs.stat(nr)?;
    ensure!(stat.file_type == FileType::Regular, "not a file");
    let mut bytes = vec![0; usize::try_from(stat.size_bytes.min(most))?];
    let read = fs.read_at(nr, &mut bytes, 0)?;
    ensure!(read == bytes.len(), "{read} bytes");
    Ok(bytes)
}

/// A leaf with several extents of a regular file, and the inode.
fn leaf(surgery: &Surgery, image: &Path) -> Result<(Site, InodeNr)> {
    for site in surgery.sites(Kind::ExtentNode) {
        let Some(inode) = site.inode else { continue };
        let is_leaf = surgery.value(&site, "eh_depth", 0)? == 0;
        let has_some = is_leaf && surgery.value(&site, "eh_entries", 0)? > 4;
        if has_some && content(image, inode, 1).is_ok() {
            return Ok((site, inode));
        }
    }
    anyhow::bail!("no file with many extents")
}

fn wrong_places(config: &matrix::Config) -> Result<()> {
    let populated = config.populated()?;
    let mut surgery = Surgery::new(&populated.image)?;
    let (site, inode) = leaf(&surgery, populated.image.path())?;
    let before = content(populated.image.path(), inode, MOST_BYTES)?;
    let block_bytes = surgery.superblock().geometry().block_size().bytes();
    let last = usize::try_from(surgery.value(&site, "eh_entries", 0)? - 1)?;
    for (nth, wrong) in WRONG
        .map(|wrong| (2, wrong))
        .into_iter()
        .chain([(last, WRONG[0])])
    {
        let start = usize::try_from(surgery.value(&site, "ee_block", nth)?)? * block_bytes;
        let length = usize::try_from(surgery.value(&site, "ee_len", nth)?)? * block_bytes;
        surgery.change(&site, "ee_block", nth, |_| wrong)?;
        let image = populated.image.copy()?;
        surgery.undo()?;
        let what = || format!("{inode}: extent {nth} at block {wrong}");
        assert_repaired(image.path()).with_context(what)?;
        let after = content(image.path(), inode, MOST_BYTES).with_context(what)?;
        let differs = |at: &usize| before.get(*at) != after.get(*at);
        let other = (0..before.len()).filter(|at| !(start..start + length).contains(at));
        let lost = other.filter(differs).count();
        ensure!(
            lost == 0,
            "{}: {lost} bytes of other extents are lost",
            what()
        );
    }
    Ok(())
}

#[test]
fn an_extent_at_a_wrong_place_hides_no_other_one() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    matrix::assert_each(&matrix::named(&CONFIGS), wrong_places);
}

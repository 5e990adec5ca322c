//! A repair leaves the same bytes whether its checks remember anything of each other or not.
//!
//! `FOURSCORE_REPAIR_SEEDS=300` draws more damages, `FOURSCORE_REPAIR_FIRST=1000` other ones.

use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore_block::{DeviceOptions, RamDevice, open_path};
use fourscore_testkit::damage::Patient;
use fourscore_testkit::matrix;
use fourscore_testkit::tools::{self, Need};

use super::*;

/// Of images with `bigalloc` and `quota` nothing is remembered.
const CONFIGS: [&str; 3] = ["ext4-4k", "ext3-4k", "ea-inode"];
/// Damaged images of each configuration.
const SEEDS: u64 = 6;
/// The time of the repairs.
const NOW: u32 = 1_800_000_000;

fn number(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(otherwise, |given| given.parse().expect("a number"))
}

/// An image after a repair, in memory, and what was mended and left.
fn repaired(image: &Path, memory: Memory) -> Result<(Arc<RamDevice>, Vec<String>)> {
    let device = open_path(image, DeviceOptions::default())?;
    let device = Arc::new(RamDevice::over(Arc::new(device)));
    let options = CheckOptions {
        threads: NonZeroUsize::new(2).context("two")?,
        ..CheckOptions::default()
    };
    let base: Arc<dyn BlockDevice> = Arc::<RamDevice>::clone(&device);
    let lines = match repair_with(base, &options, Scope::Everything, NOW, memory) {
        Ok(done) => {
            let left = done.left.iter().map(|(finding, _)| finding);
            let all = done.mended.iter().chain(left);
            all.map(ToString::to_string).collect()
        }
        Err(error) => vec![error.to_string()],
    };
    Ok((device, lines))
}

/// Compares repairs of an image with one to three damages; returns how many findings there were.
fn compare(patient: &Patient, image: &Path, seed: u64) -> Result<usize> {
    let mut damages = Vec::new();
    for nth in 0..=seed % 3 {
        damages.push(patient.damage(seed * 4 + nth)?);
    }
    let text = format!("seed {seed}: {damages:?}");
    let (with, found) = repaired(image, Memory::default())?;
    let (without, found_without) = repaired(image, Memory::off())?;
    ensure!(found == found_without, "{text}: other patches");
    for range in with
        .written_ranges()
        .into_iter()
        .chain(without.written_ranges())
    {
        let length = usize::try_from(range.end - range.start)?;
        let mut bytes = [(); 2].map(|()| vec![0; length]);
        with.read_at(&mut bytes[0], range.start)?;
        without.read_at(&mut bytes[1], range.start)?;
        ensure!(
            bytes[0] == bytes[1],
            "{text}: other bytes at {}",
            range.start
        );
    }
    while let Some(damage) = damages.pop() {
        patient.undo(damage)?;
    }
    Ok(found.len())
}

#[test]
fn a_repair_by_memory_leaves_the_same_bytes() {
    if !tools::are_met(&[Need::Program("mke2fs"), Need::KernelMount]) {
        return;
    }
    let first = number("FOURSCORE_REPAIR_FIRST", 0);
    let seeds = number("FOURSCORE_REPAIR_SEEDS", SEEDS * CONFIGS.len() as u64);
    let each = seeds.div_ceil(CONFIGS.len() as u64);
    matrix::assert_each(&matrix::named(&CONFIGS), |config| {
        let populated = config.populated()?;
        let path = populated.image.path();
        let patient = Patient::new(path)?;
        let mut findings = 0;
        for seed in first..first + each {
            findings += compare(&patient, path, seed).context(config.name)?;
        }
        ensure!(findings > 0, "{}: nothing was found", config.name);
        println!("{}: {each} seeds, {findings} findings", config.name);
        Ok(())
    });
}

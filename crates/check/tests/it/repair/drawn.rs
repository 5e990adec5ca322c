//! **Purpose.** Drawn damage: one to three structures of an image are damaged as a seed chooses.
//! After a repair neither checker finds anything, and each file of whose metadata nothing was
//! damaged has its path, its type, its size and its content.
//!
//! `FOURSCORE_REPAIR_SEEDS=500` runs more seeds, `FOURSCORE_REPAIR_FIRST=1000` other ones.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use fourscore::{FileType, Fs, OpenOptions};
use fourscore_check::CheckError;
use fourscore_ondisk::InodeNr;
use fourscore_sync::Arc;
use fourscore_testkit::damage::{Damage, Patient};
use fourscore_testkit::matrix::Config;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{matrix, require};

use super::assert_repaired;
use crate::common::{number, opened};

/// The configurations that are damaged: each form of every structure is in one of them.
const CONFIGS: [&str; 12] = [
    "ext4-4k",
    "ext4-1k",
    "ext2-1k",
    "ext3-4k",
    "inline-data",
    "bigalloc-16k",
    "ea-inode",
    "crc16",
    "orphan-file",
    "hash-legacy",
    "quota",
    "meta-bg",
];
const SEEDS: u64 = 24;

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) inode: InodeNr,
    pub(super) file_type: FileType,
    size: u64,
    content: u64,
}

/// All paths of an image.
pub(super) fn paths(image: &Path) -> Result<BTreeMap<Vec<u8>, Object>> {
    let fs = Fs::open(opened(image)?, &OpenOptions::new())?;
    let mut found = BTreeMap::new();
    let mut contents: BTreeMap<InodeNr, u64> = BTreeMap::new();
    for entry in fs.paths().walk("/") {
        let entry = entry?;
        let stat = fs.stat(entry.inode)?;
        let content = match contents.get(&entry.inode) {
            Some(known) => *known,
            None => content_of(&fs, entry.inode, stat.file_type)?,
        };
        contents.insert(entry.inode, content);
        let object = Object {
            inode: entry.inode,
            file_type: stat.file_type,
            size: match stat.file_type {
                FileType::Directory => 0,
                _ => stat.size_bytes,
            },
            content,
        };
        found.insert(entry.path, object);
    }
    Ok(found)
}

fn content_of(fs: &Arc<Fs>, inode: InodeNr, file_type: FileType) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    match file_type {
        FileType::Regular => {
            let mut buf = vec![0; 1 << 20];
            let mut at = 0;
            // The end of a sparse file is far away; its first 64 MiB hold what was written.
            while at < 64 << 20 {
                let read = fs.read_at(inode, &mut buf, at)?;
                if read == 0 {
                    break;
                }
                buf[..read].hash(&mut hasher);
                at += read as u64;
            }
        }
        FileType::Symlink => fs.read_link(inode)?.hash(&mut hasher),
        _ => {}
    }
    Ok(hasher.finish())
}

/// The inode whose metadata a damage is in, if it is that of one.
fn touched(patient: &Patient, damage: &Damage) -> Option<InodeNr> {
    let sites = patient.anatomy().sites(damage.kind).iter();
    let mut own = sites.filter(|site| (site.at..site.at + site.length as u64).contains(&damage.at));
    own.next().and_then(|site| site.inode)
}

/// Whether a path leads through nothing that was damaged.
fn is_untouched(
    path: &[u8],
    before: &BTreeMap<Vec<u8>, Object>,
    damaged: &BTreeSet<InodeNr>,
) -> bool {
    let ends = (1..=path.len()).filter(|&end| end == path.len() || path[end] == b'/');
    let mut inodes = ends.filter_map(|end| before.get(&path[..end]).map(|object| object.inode));
    !damaged.contains(&InodeNr::ROOT) && inodes.all(|inode| !damaged.contains(&inode))
}

pub(super) fn compare(
    before: &BTreeMap<Vec<u8>, Object>,
    image: &Path,
    damaged: &BTreeSet<InodeNr>,
) -> Result<usize> {
    let after = paths(image)?;
    let mut lost = Vec::new();
    let mut kept = 0;
    for (path, object) in before {
        if !is_untouched(path, before, damaged) {
            continue;
        }
        kept += 1;
        if after.get(path) != Some(object) {
            let text = String::from_utf8_lossy(path).into_owned();
            lost.push(format!("{text}: {object:?} is {:?}", after.get(path)));
        }
    }
    lost.truncate(5);
    ensure!(lost.is_empty(), "lost: {lost:#?}");
    Ok(kept)
}

/// The first seed of the damages of a round: other ones for each configuration.
fn drawn(config: &str, seed: u64) -> u64 {
    let name = config
        .bytes()
        .fold(0, |sum: u64, byte| sum * 31 % 10_007 + u64::from(byte));
    (name + seed * 20_011) * 4
}

fn run(config: &Config, seeds: std::ops::Range<u64>) -> Result<usize> {
    let populated = config.populated()?;
    let before = paths(populated.image.path())?;
    let patient = Patient::new(populated.image.path())?;
    let mut faults = Vec::new();
    let mut kept = 0;
    for seed in seeds {
        let count = 1 + seed % 3;
        let mut damages = Vec::new();
        for nth in 0..count {
            damages.push(patient.damage(drawn(config.name, seed) + nth)?);
        }
        let image = populated.image.copy()?;
        let damaged = damages
            .iter()
            .filter_map(|damage| touched(&patient, damage));
        let damaged: BTreeSet<InodeNr> = damaged.collect();
        let texts: Vec<String> = damages.iter().map(ToString::to_string).collect();
        while let Some(damage) = damages.pop() {
            patient.undo(damage)?;
        }
        let outcome = match assert_repaired(image.path()) {
            Ok(_) => compare(&before, image.path(), &damaged),
            // Both refuse a superblock with unknown features, which may mean anything.
            Err(error) if is_refused(&error) => Ok(0),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(count) => kept += count,
            Err(error) => faults.push(format!(
                "{} seed {seed}: {texts:#?}\n{error:#}",
                config.name
            )),
        }
    }
    if !faults.is_empty() {
        bail!("{} fail\n{}", faults.len(), faults.join("\n\n"));
    }
    Ok(kept)
}

/// Whether a repair could not begin, or met features that are not known.
fn is_refused(error: &anyhow::Error) -> bool {
    let is_check = matches!(error.downcast_ref(), Some(CheckError::Refused(_)));
    is_check || error.to_string().contains("unknown features")
}

#[test]
fn drawn_damage_is_repaired_and_sound_files_are_kept() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    let seeds = number("FOURSCORE_REPAIR_SEEDS", SEEDS);
    let first = number("FOURSCORE_REPAIR_FIRST", 0);
    let each = seeds.div_ceil(CONFIGS.len() as u64);
    matrix::assert_each(&matrix::named(&CONFIGS), |config| {
        let kept = run(config, first..first + each).context(config.name)?;
        println!("{}: {each} seeds, {kept} paths kept", config.name);
        ensure!(kept > 100, "only {kept} paths were compared");
        Ok(())
    });
}

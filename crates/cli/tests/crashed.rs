//! A crashed image reads as the kernel's own recovery of a copy leaves it, and is not changed by
//! being read.

mod oracle;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore::block::{DeviceOptions, open_path};
use fourscore::{Arc, Fs, OpenOptions};
use fourscore_testkit::crash::load::Seed;
use fourscore_testkit::crash::{Crashed, Death, JOURNALS};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use oracle::{field, same, walk_host, walk_image};

#[test]
fn crashed_images_read_as_the_kernel_recovers_them() {
    require!(Need::KernelMount, Need::Program("mke2fs"));
    let mut faults = Vec::new();
    for journal in JOURNALS {
        for (nr, death) in Death::ALL.into_iter().enumerate() {
            let outcome = journal
                .crashed(death, Seed(nr as u64 + 1))
                .and_then(|crashed| check(&crashed))
                .with_context(|| format!("journal {}, {death:?}", journal.name));
            if let Err(error) = outcome {
                faults.push(format!("{error:#}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn check(crashed: &Crashed) -> Result<()> {
    let image = crashed.image.path();
    let before = std::fs::read(image)?;
    let ours = walk_image(&["--full", "--hash"], image)?;
    ensure!(before == std::fs::read(image)?, "the image was changed by being read");
    drop(before);

    let orphans = orphans(image)?;
    let recovered = crashed.recovered()?;
    let mount = KernelMount::new(recovered.path(), Access::ReadOnly, "")?;
    let theirs = walk_host(&["--full", "--hash"], mount.path())?;
    mount.unmount()?;
    same(&settled(&ours, &orphans), &settled(&theirs, &orphans))
}

/// The numbers of the inodes that the crash left on the list of orphans.
fn orphans(image: &Path) -> Result<BTreeSet<String>> {
    let device = open_path(image, DeviceOptions::default())?;
    let fs = Fs::open(Arc::new(device), &OpenOptions::new())?;
    Ok(fs.orphans()?.iter().map(ToString::to_string).collect())
}

/// A walk without what finishing a truncation changes in an orphan: the blocks it takes and the
/// time of the change.
fn settled(walk: &str, orphans: &BTreeSet<String>) -> String {
    let line = |line: &str| {
        let mut fields: Vec<&str> = line.split(' ').collect();
        if fields.get(field::INODE).is_some_and(|inode| orphans.contains(*inode)) {
            for position in [field::MTIME, field::BLOCKS, field::CTIME] {
                fields[position] = "*";
            }
        }
        fields.join(" ") + "\n"
    };
    walk.lines().map(line).collect()
}

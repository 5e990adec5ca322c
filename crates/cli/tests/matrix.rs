//! Every configuration reads as the kernel's own mount of the image does: each object, each
//! attribute, each byte. Where this kernel cannot mount an image, what debugfs takes out of it is
//! the oracle, and e2fsck has found it clean.

mod oracle;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore_testkit::matrix::{self, Config, Kernel, Populated};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{oracle as programs, require, scratch};

use oracle::{same, walk_host, walk_image};

#[test]
fn every_configuration_reads_as_the_kernel_mounts_it() {
    require!(Need::KernelMount, Need::Program("mke2fs"), Need::Program("debugfs"));
    assert!(matrix::configs().len() >= 40 || std::env::var_os("FOURSCORE_CONFIGS").is_some());
    matrix::assert_all(|config| check(config, &config.populated()?));
}

fn check(config: &Config, populated: &Populated) -> Result<()> {
    let image = populated.image.path();
    let whole = walk_image(&["--full", "--hash"], image);
    if config.kernel() > Kernel::Refuses {
        let mount = KernelMount::new(image, Access::ReadOnly, "")?;
        same(&whole?, &walk_host(&["--full", "--hash"], mount.path())?)?;
        return mount.unmount();
    }
    // Encrypted and sealed files cannot be opened, but the kernel shows everything else of them.
    if let Ok(mount) = KernelMount::new(image, Access::ReadOnly, "") {
        same(&walk_image(&["--full"], image)?, &walk_host(&["--full"], mount.path())?)?;
        return mount.unmount();
    }
    if let Some(stage) = &populated.stage {
        let mount = KernelMount::new(stage.path(), Access::ReadOnly, "")?;
        let theirs = walk_host(&["--hash"], mount.path())?;
        same(&without_times(&walk_image(&["--hash"], image)?), &without_times(&theirs))
            .context("against the image that the tree was copied from")?;
        mount.unmount()?;
    }
    against_debugfs(image, &whole?)
}

/// A portable walk without the field `mtime`, of which `mke2fs -d` keeps whole seconds, and
/// without what mke2fs makes itself.
fn without_times(walk: &str) -> String {
    let line = |line: &str| {
        let mut fields: Vec<&str> = line.split(' ').collect();
        if fields.len() > oracle::field::MTIME {
            fields.remove(oracle::field::MTIME);
        }
        fields.join(" ") + "\n"
    };
    let made_by_mke2fs = |line: &&str| line.starts_with("/ ") || line.starts_with("/lost+found ");
    walk.lines().filter(|text| !made_by_mke2fs(text)).map(line).collect()
}

/// Compares names, types, owners, sizes and contents with what debugfs writes to a directory.
fn against_debugfs(image: &Path, whole: &str) -> Result<()> {
    let folder = scratch::folder()?;
    let dump = format!("rdump / {}", folder.path().display());
    programs::debugfs(image, &[dump])?;
    let theirs = walk_host(&["--full", "--hash"], folder.path())?;
    let (ours, theirs) = (essence(whole), essence(&theirs));
    ensure!(ours.lines().count() > 50, "a tree of {} objects", ours.lines().count());
    same(&ours, &theirs).context("against debugfs rdump")
}

/// Path, type, size or target and hash of files, directories and symbolic links: what `rdump`
/// keeps. It makes no devices, pipes or sockets.
fn essence(walk: &str) -> String {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let (&path, &kind, &size, &target) =
            (fields.first()?, fields.get(1)?, fields.get(6)?, fields.get(9)?);
        let hash = fields.last().filter(|_| kind == "f").unwrap_or(&"-");
        let size = if kind == "d" { "-" } else { size };
        (matches!(kind, "f" | "d" | "l") && path != "/")
            .then(|| format!("{path} {kind} {size} {target} {hash}\n"))
    };
    walk.lines().filter_map(line).collect()
}

//! **Purpose.** The named image configurations that tests run on: feature sets, block sizes and
//! inode sizes.
//!
//! **Model.** A [`Config`] holds the options of mke2fs and the steps after the image is populated.
//! Some features (quota without a quota format in the kernel, casefold without its Unicode tables)
//! make the kernel refuse to write or to mount, so tune2fs or debugfs enables them last, when the
//! kernel has populated the image. [`Config::kernel`] says how the running kernel can mount the
//! finished image.
//!
//! | module | responsibility |
//! |---|---|
//! | `table` | the list |
//! | `store` | populated images that the programs of one run share |
//!
//! `FOURSCORE_CONFIGS=ext4-1k,quota` restricts a run to these names.

mod store;
mod table;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use fourscore_sync::atomic::{AtomicUsize, Ordering};
use fourscore_sync::{Mutex, thread};

use crate::image::{Image, MiB};
use crate::mount::{Access, KernelMount};
use crate::populate::{self, Tree};
use crate::{oracle, tools};

use self::store::Store;

/// How far a kernel's mount of an image can serve as the oracle for all of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kernel {
    /// It cannot mount the image.
    Refuses,
    /// It can mount the image read-only.
    Reads,
    /// It can mount the image read-write.
    Writes,
}

/// A feature that not every kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelNeed {
    /// `CONFIG_UNICODE`; without it casefold images are refused.
    Casefold,
    /// `CONFIG_FS_VERITY`; without it files with verity are not opened.
    Verity,
    /// The keys of encrypted files, which are gone: the kernel shows encoded names and does not
    /// open the files.
    Keys,
    /// `CONFIG_QFMT_V2`; without it images with quota are mounted read-only.
    QuotaFormat,
}

/// A step that finishes an image after it is populated.
#[derive(Clone, Copy, Debug)]
enum Finish {
    /// `tune2fs` with arguments.
    Tune(&'static [&'static str]),
    /// Commands of `debugfs -w`.
    Debugfs(&'static [&'static str]),
    /// `e2fsck -fyD`: all directories are packed and indexed again.
    Rehash,
}

/// A named image configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// A unique name, `[a-z0-9-]`.
    pub name: &'static str,
    /// The block size in bytes, 1024 to 65536.
    pub block_size_bytes: u32,
    /// The inode size in bytes, 128 to the block size.
    pub inode_size_bytes: u32,
    /// The size of the image.
    pub size: MiB,
    /// The number of entries of the large directory in the populated tree.
    pub entries: u32,
    /// The number of pieces of the most fragmented file.
    pub fragments: u32,
    mke2fs: &'static [&'static str],
    finish: &'static [Finish],
    needs: &'static [KernelNeed],
}

/// An image with a tree in it.
#[derive(Debug)]
pub struct Populated {
    /// The image, unmounted and clean.
    pub image: Image,
    /// The tree in it.
    pub tree: Tree,
    /// Where the kernel cannot mount the image itself because of its block size: an image that it
    /// can mount, with the tree that `mke2fs -d` copied. Names, types, modes, owners, links,
    /// contents and xattrs are the same in both; times, inode numbers and flags are not.
    pub stage: Option<Image>,
}

impl Config {
    /// The image without a tree, all features on.
    ///
    /// # Errors
    /// If a tool is missing or fails.
    pub fn empty(&self) -> Result<Image> {
        let image = self.base(None)?;
        self.finish(&image)?;
        Ok(image)
    }

    /// The image with a rich tree in it, e2fsck-clean: written by the kernel where it can, else by
    /// `mke2fs -d` from a tree that the kernel keeps on an image of another configuration. It is
    /// made once in a run of `cargo xtask test`; others get copies. Needs
    /// [`tools::Need::KernelMount`].
    ///
    /// # Errors
    /// If a tool is missing or refuses, or e2fsck finds a fault in what was made.
    pub fn populated(&self) -> Result<Populated> {
        self.shared_or_new()
            .with_context(|| format!("configuration {}", self.name))
    }

    fn shared_or_new(&self) -> Result<Populated> {
        let Some(store) = Store::of_run() else {
            return self.populate();
        };
        if let Some(populated) = store.find(self.name)? {
            return Ok(populated);
        }
        let populated = self.populate()?;
        store.keep(self.name, &populated)?;
        Ok(populated)
    }

    fn populate(&self) -> Result<Populated> {
        let populated = if u64::from(self.block_size_bytes) > page_size_bytes() {
            self.populated_by_mke2fs()?
        } else {
            let image = self.base(None)?;
            let mount = KernelMount::new(image.path(), Access::ReadWrite, "")?;
            let tree = populate::through_kernel(mount.path(), self)?;
            mount.unmount()?;
            Populated {
                image,
                tree,
                stage: None,
            }
        };
        self.finish(&populated.image)?;
        let fsck = oracle::e2fsck(populated.image.path())?;
        if !fsck.is_clean() {
            bail!("the populated image is not clean: {}", fsck.output);
        }
        Ok(populated)
    }

    fn populated_by_mke2fs(&self) -> Result<Populated> {
        let stage = Image::builder(MiB(1024)).kind("ext4").make()?;
        let mount = KernelMount::new(stage.path(), Access::ReadWrite, "")?;
        let tree = populate::for_mke2fs(mount.path(), self)?;
        let image = self.base(Some(mount.path()))?;
        mount.unmount()?;
        populate::through_debugfs(image.path())?;
        Ok(Populated {
            image,
            tree,
            stage: Some(stage),
        })
    }

    /// How the running kernel can mount the finished image.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        let mut best = Kernel::Writes;
        if u64::from(self.block_size_bytes) > page_size_bytes() {
            best = Kernel::Refuses;
        }
        for need in self.needs {
            best = best.min(match need {
                KernelNeed::Casefold if !kernel_has_feature("casefold") => Kernel::Refuses,
                KernelNeed::QuotaFormat if !kernel_has_quota_format() => Kernel::Reads,
                KernelNeed::Verity if !kernel_has_feature("verity") => Kernel::Refuses,
                KernelNeed::Keys => Kernel::Refuses,
                KernelNeed::Casefold | KernelNeed::QuotaFormat | KernelNeed::Verity => {
                    Kernel::Writes
                }
            });
        }
        best
    }

    /// Whether the options of mke2fs contain a word, such as a feature: `has("bigalloc")`.
    #[must_use]
    pub fn has(&self, feature: &str) -> bool {
        self.mke2fs
            .iter()
            .any(|argument| argument.split(',').any(|word| word == feature))
    }

    /// Whether files are mapped by extents.
    #[must_use]
    pub fn has_extents(&self) -> bool {
        self.has("ext4") && !self.has("^extent")
    }

    fn base(&self, source: Option<&Path>) -> Result<Image> {
        let mut builder = Image::builder(self.size)
            .block_size_bytes(self.block_size_bytes)
            .inode_size_bytes(self.inode_size_bytes);
        let mut arguments = self.mke2fs.iter();
        while let Some(&argument) = arguments.next() {
            builder = match (argument, argument == "-E") {
                (_, true) => builder.extended(arguments.next().context("-E without an option")?),
                (argument, false) => builder.arguments([argument]),
            };
        }
        if let Some(source) = source {
            builder = builder.source(source);
        }
        builder.make()
    }

    fn finish(&self, image: &Image) -> Result<()> {
        for step in self.finish {
            match step {
                Finish::Tune(arguments) => {
                    let mut tune2fs = tools::command("tune2fs")?;
                    tools::stdout_of(tune2fs.args(*arguments).arg(image.path()))?;
                }
                Finish::Debugfs(commands) => {
                    oracle::debugfs_write(image.path(), commands)?;
                }
                Finish::Rehash => {
                    oracle::e2fsck_repair(image.path(), &["-D"])?;
                }
            }
        }
        Ok(())
    }
}

/// The configurations, or those that the variable `FOURSCORE_CONFIGS` names.
///
/// # Panics
/// If the variable names one that does not exist.
#[must_use]
pub fn configs() -> Vec<Config> {
    wanted(table::all())
}

/// The configurations of these names, in this order; or those of them that the variable
/// `FOURSCORE_CONFIGS` names as well.
///
/// # Panics
/// If there is no configuration of one of these names, or of one in the variable.
#[must_use]
pub fn named(names: &[&str]) -> Vec<Config> {
    let all = table::all();
    let wanted = wanted(all.clone());
    let is_wanted = |config: &Config| wanted.iter().any(|wanted| wanted.name == config.name);
    let mut found: Vec<Config> = names.iter().map(|name| by_name(&all, name)).collect();
    found.retain(is_wanted);
    found
}

fn wanted(all: Vec<Config>) -> Vec<Config> {
    let Ok(wanted) = std::env::var("FOURSCORE_CONFIGS") else {
        return all;
    };
    wanted.split(',').map(|name| by_name(&all, name)).collect()
}

fn by_name(all: &[Config], name: &str) -> Config {
    let found = all.iter().find(|config| config.name == name);
    found
        .unwrap_or_else(|| panic!("there is no configuration '{name}'"))
        .clone()
}

/// Runs a check on every configuration, on as many threads as there are cores, and fails with the
/// names and faults of all that failed.
///
/// # Panics
/// If a check fails or panics.
#[track_caller]
pub fn assert_all(check: impl Fn(&Config) -> Result<()> + Sync) {
    assert_each(&configs(), check);
}

/// As [`assert_all`], for some of them.
///
/// # Panics
/// As [`assert_all`].
#[track_caller]
pub fn assert_each(configs: &[Config], check: impl Fn(&Config) -> Result<()> + Sync) {
    let next = AtomicUsize::new(0);
    let faults = Mutex::new(Vec::new());
    let worker = || {
        while let Some(config) = configs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let begin = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| check(config)));
            eprintln!("{}: {:.1} s", config.name, begin.elapsed().as_secs_f64());
            match outcome {
                Ok(Ok(())) => {}
                Ok(Err(error)) => faults.lock().push(format!("{}: {error:#}", config.name)),
                Err(_) => faults
                    .lock()
                    .push(format!("{}: panicked, see above", config.name)),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(worker);
        }
    });
    let faults = faults.into_inner();
    assert!(
        faults.is_empty(),
        "{} of {} fail:\n{}",
        faults.len(),
        configs.len(),
        faults.join("\n")
    );
}

/// The size of a page: the largest block size that kernels without large folios for ext4 mount.
fn page_size_bytes() -> u64 {
    u64::try_from(rustix::param::page_size()).unwrap_or(4096)
}

/// Whether the running kernel says that its ext4 has a feature.
fn kernel_has_feature(name: &str) -> bool {
    Path::new("/sys/fs/ext4/features").join(name).exists()
}

/// Whether the kernel was built with the quota format of ext4, without which it writes nothing with
/// the features `quota` and `project`; unknown counts as no.
#[must_use]
pub fn kernel_has_quota_format() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let on_disk = fs::read_to_string(format!("/boot/config-{}", release.trim()));
    let text = on_disk.or_else(|_| tools::run("zcat", &["/proc/config.gz".as_ref()]));
    text.is_ok_and(|text| text.lines().any(|line| line == "CONFIG_QFMT_V2=y"))
}

#[cfg(test)]
mod tests;

//! **Purpose.** Images of file systems that crashed under load, with a dirty journal.
//!
//! **Model.** The kernel mounts an image, several threads work on it ([`load`]), and then it
//! crashes in one of two ways ([`Death`]):
//!
//! - *shutdown*: the file system is shut down while the writers run, with its log flushed or not.
//!   Nothing reaches the device any more, so it is as after a power failure.
//! - *copied*: the writers pause between two calls, and the file behind the loop device is
//!   copied. With the commit interval set to an hour, nothing but an fsync commits, so no part of
//!   the journal is written during the copy. If it happens nevertheless (the transactions of jbd2
//!   are counted before and after), the copy is taken again. Blocks that the kernel checkpoints
//!   meanwhile are in the log already, so either version in the copy is right.
//!
//! The oracle is the kernel's own recovery of a second copy: [`Crashed::recovered`].
//!
//! | module | responsibility |
//! |---|---|
//! | [`load`] | the writers |
//! | [`complaints`] | parses the output of e2fsck, and knows the faults of docs/FINDINGS.md |
//! | [`torn`] | torn commit blocks, behind which e2fsck leaves orphans |

pub mod complaints;
pub mod load;
pub mod torn;

use std::fs;
use std::path::Path;

use anyhow::{Context, Error, Result, anyhow, bail};

use crate::image::{Image, ImageBuilder, MiB};
use crate::mount::{Access, KernelMount, Log};
use crate::{oracle, tools};

use complaints::only_miscounted;
use load::{Load, Mix, Seed};

/// How often a copy is retried because of a commit during it.
const COPY_TRIES: u32 = 10;

/// How many seeds are tried until the kernel can replay what it wrote.
const REPLAY_TRIES: u32 = 5;

/// The option that leaves commits to fsync (in seconds).
const NO_PERIODIC_COMMIT: &str = "commit=3600";

/// How the file system crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Shut down while writing, after the running transaction was committed.
    ShutdownLogFlushed,
    /// Shut down while writing; the running transaction is lost.
    ShutdownLogLost,
    /// The device was copied while the writers paused.
    Copied,
}

impl Death {
    /// All of them.
    pub const ALL: [Self; 3] = [
        Self::ShutdownLogFlushed,
        Self::ShutdownLogLost,
        Self::Copied,
    ];
}

/// A configuration of the journal and of its writers.
#[derive(Clone, Copy, Debug)]
pub struct Journal {
    /// A unique name, `[a-z0-9-]`.
    pub name: &'static str,
    mke2fs: &'static [&'static str],
    mount_options: &'static str,
    layout: Layout,
    mix: Mix,
}

/// The layout of the journal's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Where mke2fs puts them: in one piece.
    Whole,
    /// In the gaps between files.
    Fragmented,
}

/// All kinds of journals.
pub const JOURNALS: &[Journal] = &[
    journal("ordered", &["-t", "ext4"], "data=ordered"),
    journal("data-journal", &["-t", "ext4"], "data=journal"),
    journal(
        "data-journal-1k",
        &["-t", "ext4", "-b", "1024"],
        "data=journal",
    ),
    journal("writeback", &["-t", "ext4"], "data=writeback"),
    journal("ext3-1k", &["-t", "ext3", "-b", "1024"], "data=ordered"),
    journal(
        "no-checksums-32bit",
        &["-t", "ext4", "-O", "^metadata_csum,^64bit"],
        "data=ordered",
    ),
    journal(
        "no-checksums-64bit",
        &["-t", "ext4", "-O", "^metadata_csum,64bit"],
        "data=journal",
    ),
    journal(
        "checksum-v1",
        &["-t", "ext4", "-O", "^metadata_csum"],
        "journal_checksum",
    ),
    journal(
        "async-commit",
        &["-t", "ext4"],
        "data=writeback,journal_async_commit",
    ),
    fast_commit(
        "fast-commit",
        &["-t", "ext4", "-O", "fast_commit"],
        "data=ordered",
    ),
    fast_commit(
        "fast-commit-1k",
        &["-t", "ext4", "-b", "1024", "-O", "fast_commit"],
        "data=ordered",
    ),
    fast_commit(
        "fast-commit-inline",
        &[
            "-t",
            "ext4",
            "-I",
            "512",
            "-O",
            "fast_commit,inline_data,orphan_file",
        ],
        "data=writeback",
    ),
    journal(
        "orphan-file",
        &["-t", "ext4", "-O", "orphan_file"],
        "data=ordered",
    ),
    journal(
        "inline-ea-inode",
        &["-t", "ext4", "-O", "inline_data,ea_inode"],
        "data=ordered",
    ),
    journal(
        "bigalloc",
        &["-t", "ext4", "-O", "bigalloc", "-C", "16384"],
        "data=ordered",
    ),
    Journal {
        layout: Layout::Fragmented,
        ..journal("fragmented", &["-t", "ext4", "-b", "1024"], "data=journal")
    },
];

const fn journal(
    name: &'static str,
    mke2fs: &'static [&'static str],
    mount_options: &'static str,
) -> Journal {
    Journal {
        name,
        mke2fs,
        mount_options,
        layout: Layout::Whole,
        mix: Mix::Everything,
    }
}

/// A journal whose writers only make changes that a fast commit can record.
const fn fast_commit(
    name: &'static str,
    mke2fs: &'static [&'static str],
    mount_options: &'static str,
) -> Journal {
    Journal {
        mix: Mix::FastCommit,
        ..journal(name, mke2fs, mount_options)
    }
}

/// An image with a dirty journal.
#[derive(Debug)]
pub struct Crashed {
    /// The image after the crash.
    pub image: Image,
    /// The number of completed calls of the writers.
    pub operations: u64,
    /// The number of fast commits that the kernel had made.
    pub fast_commits: u64,
}

impl Crashed {
    /// A copy of the image that the kernel has recovered, unmounted again.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn recovered(&self) -> Result<Image> {
        let copy = self.image.copy()?;
        KernelMount::new(copy.path(), Access::ReadWrite, "")?.unmount()?;
        Ok(copy)
    }

    /// A copy of the image that e2fsck has recovered.
    ///
    /// # Errors
    /// If e2fsck leaves errors.
    pub fn recovered_by_e2fsck(&self) -> Result<Image> {
        let copy = self.image.copy()?;
        oracle::e2fsck_repair(copy.path(), &[])?;
        Ok(copy)
    }
}

impl Journal {
    /// Whether its writers leave fast commits behind.
    #[must_use]
    pub fn has_fast_commits(&self) -> bool {
        self.mix == Mix::FastCommit
    }

    /// Crashes a file system under load, as root. The seed determines the calls of each writer, not
    /// their interleaving.
    ///
    /// Once in some dozens of times the kernel cannot replay its own fast commits, or e2fsck finds
    /// a fault in the result (a duplicate name). More rarely, on a busy machine, it refuses a log
    /// with file data, because a block changed between its checksum and its write to the log. Then
    /// there is no oracle, and the next seed is tried.
    ///
    /// # Errors
    /// If a tool is missing, the kernel refuses, or the image did not get a dirty journal.
    pub fn crashed(&self, death: Death, seed: Seed) -> Result<Crashed> {
        let mut seed = seed;
        for _ in 0..REPLAY_TRIES {
            let crashed = self
                .crash(death, seed)
                .with_context(|| format!("journal {}, death {death:?}, {seed:?}", self.name))?;
            match self.known_fault(&crashed)? {
                None => return Ok(crashed),
                Some(error) => {
                    eprintln!("the kernel does not replay its log ({seed:?}): {error:#}");
                }
            }
            seed.0 += 1;
        }
        bail!("{REPLAY_TRIES} times the kernel did not replay its own log")
    }

    /// A known fault of the kernel that makes its recovery useless as an oracle: the recovery
    /// fails, or e2fsck finds errors after it.
    ///
    /// # Errors
    /// If e2fsck finds a fault where none is known, or a program fails.
    fn known_fault(&self, crashed: &Crashed) -> Result<Option<Error>> {
        let logs_content = self.mount_options.contains("data=journal");
        let recovered = match crashed.recovered() {
            Err(error) if self.has_fast_commits() || logs_content => return Ok(Some(error)),
            recovered => recovered?,
        };
        let fsck = oracle::e2fsck(recovered.path())?;
        if fsck.is_clean() {
            return Ok(None);
        }
        let fault = anyhow!("not clean after the kernel's recovery: {}", fsck.output);
        match self.has_fast_commits() {
            true if only_miscounted(recovered.path(), &fsck.output)? => Ok(None),
            true => Ok(Some(fault)),
            false => Err(fault),
        }
    }

    fn crash(&self, death: Death, seed: Seed) -> Result<Crashed> {
        let image = self.make()?;
        let options = format!("{NO_PERIODIC_COMMIT},{}", self.mount_options);
        let mount = KernelMount::new(image.path(), Access::ReadWrite, &options)?;
        let load = Load::new(mount.path(), seed, self.mix)?;
        let (copy, fast_commits) = load.run(|load| {
            let fast_commits = fast_commits(&mount)?;
            if death == Death::Copied {
                let _writers_paused = load.pause();
                return Ok((Some(copy_between_commits(&image, &mount)?), fast_commits));
            }
            shut_down(&mount, death)?;
            Ok((None, fast_commits))
        })?;
        mount.unmount()?;
        let image = copy.unwrap_or(image);
        let crashed = Crashed {
            image,
            operations: load.operations(),
            fast_commits,
        };
        let features = oracle::dumpe2fs_header(crashed.image.path())?
            .remove("Filesystem features")
            .unwrap_or_default();
        if !features.contains("needs_recovery") {
            bail!("the journal is not dirty: {features}");
        }
        Ok(crashed)
    }

    fn make(&self) -> Result<Image> {
        const SIZE: MiB = MiB(96);
        let builder = || Image::builder(SIZE).arguments(self.mke2fs.iter().copied());
        match self.layout {
            Layout::Whole => builder().journal(MiB(8)).make(),
            Layout::Fragmented => with_fragmented_journal(&builder()),
        }
    }
}

/// Makes a file system without a journal, fills it with files, removes every second one, and adds
/// the journal with tune2fs, which puts it into the gaps.
fn with_fragmented_journal(builder: &ImageBuilder) -> Result<Image> {
    const FILE_BYTES: usize = 24 << 10;
    let image = builder.clone().features(&["^has_journal"]).make()?;
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "")?;
    let file = |mount: &KernelMount, nr: u32| mount.path().join(format!("gap-{nr}"));
    let mut files = 0;
    while fs::write(file(&mount, files), vec![0x5a; FILE_BYTES]).is_ok() {
        files += 1;
    }
    fs::remove_file(file(&mount, files))?;
    mount.sync()?;
    for nr in (0..files).step_by(2) {
        fs::remove_file(file(&mount, nr))?;
    }
    mount.unmount()?;
    let mut tune2fs = tools::command("tune2fs")?;
    tools::stdout_of(tune2fs.args(["-J", "size=8"]).arg(image.path()))?;
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "")?;
    for nr in (1..files).step_by(2) {
        fs::remove_file(file(&mount, nr))?;
    }
    mount.unmount()?;
    Ok(image)
}

/// The first number of the kernel's `fc_info`.
fn fast_commits(mount: &KernelMount) -> Result<u64> {
    let path = Path::new("/proc/fs/ext4")
        .join(mount.device_name()?)
        .join("fc_info");
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let commits = text.lines().find_map(|line| line.strip_suffix(" commits"));
    let commits = commits.with_context(|| format!("fc_info names no commits: {text}"))?;
    Ok(commits.trim().parse()?)
}

fn shut_down(mount: &KernelMount, death: Death) -> Result<()> {
    mount.shut_down(match death {
        Death::ShutdownLogFlushed => Log::Flushed,
        Death::ShutdownLogLost | Death::Copied => Log::Lost,
    })
}

/// Copies the file behind a mount, again if jbd2 committed meanwhile.
fn copy_between_commits(image: &Image, mount: &KernelMount) -> Result<Image> {
    let device = mount.device_name()?;
    let commits = || -> Result<String> {
        let path = Path::new("/proc/fs/jbd2")
            .join(format!("{device}-8"))
            .join("info");
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    };
    for _ in 0..COPY_TRIES {
        let before = commits()?;
        let copy = image.copy()?;
        if commits()? == before {
            return Ok(copy);
        }
    }
    bail!("a commit came into each of {COPY_TRIES} copies")
}

#[cfg(test)]
mod tests;

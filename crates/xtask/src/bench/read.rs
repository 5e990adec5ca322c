//! **Purpose.** Measures how fast images are read: side by side with tar and find over the kernel's
//! mount of the same image, and one process with two threads side by side with two processes.
//!
//! **Model.** The kernel fills an image on tmpfs with a real tree and mounts it read-only. Both
//! sides then read the same image through the same page cache, which a warm-up round fills. The
//! mount needs root.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use fourscore_lab::comparison::Rounds;
use fourscore_lab::{
    CommandLine, Comparison, ComparisonReport, MachineFacts, MonotonicClock, Report, Side,
    ThreadCount,
};

use super::Options;
use super::folder::Folder;
use crate::run::run as run_command;
use crate::workspace::Workspace;

/// The smallest tree that counts as a real one.
const LEAST_OBJECTS: u64 = 60_000;
const LEAST_BYTES: u64 = 2 << 30;
const PASSES: u64 = 20;
/// What `walk` prints, as a format of find.
const FIND_FORMAT: &str = r"%p %y %m %U %G %n %s %T@ %D %l\n";

/// Makes the images, measures, and removes them.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<Report> {
    let fourscore = super::build_command(workspace)?;
    let bench = Bench::new(&options.tree)?;
    let machine = MachineFacts::collect()
        .with_option("tree", &options.tree.display())
        .with_option("objects", &bench.objects)
        .with_option("content, MiB", &(bench.bytes >> 20))
        .with_option(
            "image",
            &"ext4 of mke2fs's defaults on tmpfs, page cache warm",
        );

    let (image, mount) = (bench.image.display(), bench.mount.display());
    let program = fourscore.display();
    let steps = bench.objects * PASSES;
    let pairs = [
        (
            "extract to a pipe",
            (
                "tar over the kernel's mount",
                format!("tar cf - -C {mount} . | cat >/dev/null"),
            ),
            (
                "fourscore extract IMAGE -",
                format!("{program} extract {image} - | cat >/dev/null"),
            ),
        ),
        (
            "walk",
            (
                "find -printf over the kernel's mount",
                format!("find {mount} -printf '{FIND_FORMAT}' >/dev/null"),
            ),
            (
                "fourscore walk IMAGE",
                format!("{program} walk {image} >/dev/null"),
            ),
        ),
        (
            "two threads on one file system against two processes on two",
            (
                "two processes",
                format!(
                    "{program} bench read-tree {image} --threads 1 --steps {steps} >/dev/null & \
                     {program} bench read-tree {copy} --threads 1 --steps {steps} >/dev/null & wait",
                    copy = bench.copy.display(),
                ),
            ),
            (
                "two threads",
                format!("{program} bench read-tree {image} --threads 2 --steps {steps} >/dev/null"),
            ),
        ),
    ];
    let mut comparisons = Vec::new();
    for (name, kernel, ours) in pairs {
        comparisons.push(compare(name, options, [kernel, ours])?);
    }
    comparisons.push(info_of_a_large_image(&fourscore, &bench, options)?);
    Ok(Report {
        machine,
        comparisons,
    })
}

fn compare(name: &str, options: &Options, sides: [(&str, String); 2]) -> Result<ComparisonReport> {
    let mut comparison = Comparison::new(name)
        .rounds(Rounds(options.rounds))
        .threads(&[ThreadCount::new(2)]);
    for (side, line) in sides {
        comparison = comparison.side(Side::process(side, CommandLine::shell(&line)));
    }
    Ok(comparison.run(&MonotonicClock::default())?)
}

/// Measures `info` of a sparse image of 15 TiB, side by side with `dumpe2fs -h`.
fn info_of_a_large_image(
    fourscore: &Path,
    bench: &Bench,
    options: &Options,
) -> Result<ComparisonReport> {
    let image = bench.folder.join("large.img");
    run_command(
        Command::new("mke2fs")
            .args([
                "-q",
                "-F",
                "-t",
                "ext4",
                "-E",
                "lazy_itable_init=1,nodiscard",
            ])
            .arg(&image)
            .arg("15T"),
    )?;
    let sides = [
        (
            "dumpe2fs -h",
            format!("dumpe2fs -h {} >/dev/null 2>&1", image.display()),
        ),
        (
            "fourscore info IMAGE",
            format!(
                "{} info {} >/dev/null",
                fourscore.display(),
                image.display()
            ),
        ),
    ];
    let report = compare("info of 15 TiB", options, sides);
    fs::remove_file(&image)?;
    report
}

/// The images and the mount.
struct Bench {
    folder: Folder,
    image: PathBuf,
    /// A copy of the image.
    copy: PathBuf,
    mount: PathBuf,
    objects: u64,
    bytes: u64,
}

impl Bench {
    fn new(tree: &Path) -> Result<Self> {
        let folder = Folder::on_tmpfs()?;
        let mut bench = Self {
            image: folder.join("image"),
            copy: folder.join("copy"),
            mount: folder.join("mount"),
            objects: 0,
            bytes: 0,
            folder,
        };
        fs::create_dir_all(&bench.mount)?;
        bench.fill(tree)?;
        Ok(bench)
    }

    /// Copies the tree into a new file system through the kernel's mount.
    fn fill(&mut self, tree: &Path) -> Result<()> {
        let used = Command::new("du")
            .args(["-sx", "--block-size=1M"])
            .arg(tree)
            .output()?;
        let text = String::from_utf8_lossy(&used.stdout);
        let used_mib: u64 = text.split_whitespace().next().unwrap_or("").parse()?;
        File::create(&self.image)?.set_len((used_mib + used_mib / 4 + 256) << 20)?;
        run_command(
            Command::new("mke2fs")
                .args(["-q", "-F", "-t", "ext4", "-i", "8192"])
                .arg(&self.image),
        )?;
        self.mount("rw")?;
        run_command(Command::new("cp").args(["-ax"]).arg(tree).arg(&self.mount))?;
        self.unmount()?;
        run_command(
            Command::new("cp")
                .arg("--sparse=always")
                .arg(&self.image)
                .arg(&self.copy),
        )?;
        self.mount("ro")?;
        let list = Command::new("find")
            .arg(&self.mount)
            .args(["-printf", "%s %y\n"])
            .output()?;
        for line in String::from_utf8_lossy(&list.stdout).lines() {
            self.objects += 1;
            if let Some(size) = line.strip_suffix(" f") {
                self.bytes += size.parse::<u64>()?;
            }
        }
        if self.objects < LEAST_OBJECTS || self.bytes < LEAST_BYTES {
            bail!(
                "{} has {} objects and {} bytes; give --tree a directory of at least {LEAST_OBJECTS} \
                 objects and {LEAST_BYTES} bytes",
                tree.display(),
                self.objects,
                self.bytes
            );
        }
        Ok(())
    }

    fn mount(&self, access: &str) -> Result<()> {
        let options = format!("loop,{access}");
        run_command(
            Command::new("mount")
                .args(["-t", "ext4", "-o", &options])
                .arg(&self.image)
                .arg(&self.mount),
        )
        .context("the comparison with the kernel needs root and loop devices")
    }

    fn unmount(&self) -> Result<()> {
        run_command(Command::new("umount").arg(&self.mount))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // It is not mounted if an earlier step failed. The folder goes after this.
        let _ = self.unmount();
    }
}

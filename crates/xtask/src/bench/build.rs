//! **Purpose.** How fast images are built: against `mke2fs -d`, against the kernel (an empty file
//! system, a loop mount and `cp -a`), against `cp -a` alone, and against reading and writing the
//! same bytes with as many processes as there are cores.
//!
//! **Model.** Source behind a warm page cache, output on tmpfs; what a side wrote is removed before
//! it runs again, outside of the measured time. Every side ends when its output is whole and, for
//! an image, unmounted. The kernel's side needs root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use fourscore_lab::comparison::Rounds;
use fourscore_lab::{
    CommandLine, Comparison, ComparisonReport, MachineFacts, MonotonicClock, Report, Side,
    ThreadCount,
};

use super::Options;
use crate::run::{cargo, run as run_command};
use crate::workspace::Workspace;

/// The least that counts as a real tree.
const LEAST_OBJECTS: u64 = 60_000;
const LEAST_BYTES: u64 = 2 << 30;
/// Names in the one large directory.
const NAMES: u64 = 120_000;
/// Directories and files of the many small files.
const SMALL_DIRECTORIES: u64 = 1000;
const SMALL_FILES: u64 = 1000;

/// Makes the trees, measures, and takes everything away again.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<Report> {
    let build = ["build", "--release", "--package", "fourscore-build"];
    run_command(
        cargo(workspace)
            .args(build)
            .args(["--example", "build_tree"]),
    )?;
    let program = workspace.target().join("release/examples/build_tree");
    let bench = Bench::new()?;
    let real = Tree::look(&options.tree)?;
    if real.objects < LEAST_OBJECTS || real.bytes < LEAST_BYTES {
        let (objects, bytes) = (real.objects, real.bytes);
        bail!(
            "{} is too small: {objects} objects, {bytes} bytes",
            real.path.display()
        );
    }
    let machine = MachineFacts::collect()
        .with_option("tree", &options.tree.display())
        .with_option("objects", &real.objects)
        .with_option("content, MiB", &(real.bytes >> 20))
        .with_option("output", &"tmpfs; source behind a warm page cache");
    let mut comparisons =
        vec![bench.compare("a real tree", options, bench.all_sides(&program, &real))?];
    let names = bench.folder.join("names");
    make_files(&names, 1, NAMES, b"")?;
    let sides = bench.two_sides(&program, &Tree::look(&names)?);
    comparisons.push(bench.compare("120 000 empty files in one directory", options, sides)?);
    fs::remove_dir_all(&names)?;
    let small = bench.folder.join("small");
    make_files(&small, SMALL_DIRECTORIES, SMALL_FILES, &[b'x'; 1024])?;
    let sides = bench.two_sides(&program, &Tree::look(&small)?);
    comparisons.push(bench.compare("1 000 000 files of 1 KiB", options, sides)?);
    Ok(Report {
        machine,
        comparisons,
    })
}

/// A tree to build images of.
struct Tree {
    path: PathBuf,
    objects: u64,
    bytes: u64,
}

impl Tree {
    /// Counts it, and so brings its metadata into the cache.
    fn look(path: &Path) -> Result<Self> {
        let listed = Command::new("find")
            .arg(path)
            .args(["-printf", "%s %y\n"])
            .output()
            .context("find")?;
        let (mut objects, mut bytes) = (0, 0);
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            objects += 1;
            if let Some(size) = line.strip_suffix(" f") {
                bytes += size.parse::<u64>()?;
            }
        }
        let path = path.to_owned();
        Ok(Self {
            path,
            objects,
            bytes,
        })
    }

    /// A size in MiB with room for everything, as somebody must guess it for mke2fs.
    fn guess_mib(&self) -> u64 {
        let content = self.bytes + self.objects * 4096;
        ((content + content / 4) >> 20) + 256
    }
}

/// Makes `directories` directories of `files` files each.
fn make_files(path: &Path, directories: u64, files: u64, content: &[u8]) -> Result<()> {
    for directory in 0..directories {
        let directory = path.join(format!("directory-{directory}"));
        fs::create_dir_all(&directory)?;
        for file in 0..files {
            fs::write(
                directory.join(format!("a-file-with-a-name-{file}")),
                content,
            )?;
        }
    }
    Ok(())
}

/// Name and command line of a side.
type Line = (&'static str, String);

struct Bench {
    folder: PathBuf,
    output: PathBuf,
}

impl Bench {
    fn new() -> Result<Self> {
        let folder = PathBuf::from(format!("/dev/shm/fourscore-bench-{}", std::process::id()));
        let output = folder.join("output");
        fs::create_dir_all(&output)?;
        Ok(Self { folder, output })
    }

    fn compare(&self, name: &str, options: &Options, lines: Vec<Line>) -> Result<ComparisonReport> {
        let mut comparison = Comparison::new(name)
            .rounds(Rounds(options.rounds))
            .threads(&[ThreadCount::new(2)]);
        for (side, line) in lines {
            let output = self.output.clone();
            let clean = move || {
                fs::remove_dir_all(&output)?;
                fs::create_dir(&output)?;
                Ok(())
            };
            let side = Side::process(side, CommandLine::shell(&line)).prepared_by(clean);
            comparison = comparison.side(side);
        }
        Ok(comparison.run(&MonotonicClock::default())?)
    }

    /// The two programs that make an image of a directory as an ordinary user.
    fn two_sides(&self, program: &Path, tree: &Tree) -> Vec<Line> {
        let (from, output) = (tree.path.display(), self.output.display());
        let (mib, objects) = (tree.guess_mib(), tree.objects + tree.objects / 8 + 1024);
        vec![
            (
                "mke2fs -d",
                format!("mke2fs -q -F -t ext4 -N {objects} -d {from} {output}/image {mib}M"),
            ),
            (
                "fourscore",
                format!("{} {from} {output}/image >/dev/null", program.display()),
            ),
        ]
    }

    /// These, the kernel, and what bounds them all.
    fn all_sides(&self, program: &Path, tree: &Tree) -> Vec<Line> {
        let (from, output) = (tree.path.display(), self.output.display());
        let mib = tree.guess_mib();
        let mut sides = self.two_sides(program, tree);
        sides.push((
            "the kernel: mke2fs, loop mount, cp -a, umount",
            format!(
                "mkdir {output}/mount && mke2fs -q -F -t ext4 -i 8192 {output}/image {mib}M && \
                 mount -o loop {output}/image {output}/mount && \
                 {{ cp -ax {from} {output}/mount; umount {output}/mount; }}"
            ),
        ));
        sides.push(("cp -a to tmpfs", format!("cp -ax {from} {output}/copy")));
        sides.push((
            "the limit: reading and writing the bytes, a process for each core",
            format!(
                "find {from} -xdev -type f -print0 | \
                 xargs -0 -P \"$(nproc)\" -n 1000 sh -c 'cat \"$@\" >{output}/part.$$' sh"
            ),
        ));
        sides
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("bench: {} is left behind: {error}", self.folder.display());
        }
    }
}

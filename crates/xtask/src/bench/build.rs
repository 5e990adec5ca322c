//! **Purpose.** Measures how fast images are built, side by side with `mke2fs -d`, the kernel (an
//! empty file system, a loop mount and `cp -a`), `cp -a` alone, the crate mkext4, and reading the
//! same files and writing as many bytes into one file, with a thread for each core, which is the
//! upper bound.
//!
//! **Model.** The host's page cache is emptied first, so that no side has to evict pages, and then
//! holds the source; output goes to tmpfs. The output of a side is removed before it runs again,
//! outside of the measured time. A side ends when its output is complete and, for an image,
//! unmounted. The kernel's side needs root. mke2fs takes minutes (hours for one large directory);
//! it runs once and is stopped at a limit: its time stands in every round, and the side's name
//! says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use fourscore_lab::comparison::Rounds;
use fourscore_lab::{
    CommandLine, Comparison, ComparisonReport, MachineFacts, MonotonicClock, Report, Side,
    ThreadCount, Work,
};

use super::Options;
use super::folder::Folder;
use crate::workspace::Workspace;

/// The smallest tree that counts as a real one.
const LEAST_OBJECTS: u64 = 60_000;
const LEAST_BYTES: u64 = 2 << 30;
/// Names in the one large directory.
const NAMES: u64 = 120_000;
/// Limit of a side that runs once, in seconds.
const SECONDS_MAX: u32 = 150;
/// Exit status of `timeout` when it has stopped the program.
const TIMED_OUT: i32 = 124;
/// Directories of the tree of small files, and files in each.
const SMALL_DIRECTORIES: u64 = 1000;
const SMALL_FILES: u64 = 1000;

/// Makes the trees, measures, and removes them.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<Report> {
    let bench = Bench::new(workspace)?;
    empty_the_cache();
    let real = Tree::read(&options.tree)?;
    if real.objects < LEAST_OBJECTS || real.bytes < LEAST_BYTES {
        let (objects, bytes) = (real.objects, real.bytes);
        bail!(
            "{} has {objects} objects and {bytes} bytes; give --tree a directory of at least \
             {LEAST_OBJECTS} objects and {LEAST_BYTES} bytes",
            real.path.display()
        );
    }
    let machine = MachineFacts::collect()
        .with_option("tree", &options.tree.display())
        .with_option("objects", &real.objects)
        .with_option("content, MiB", &(real.bytes >> 20))
        .with_option("output", &"tmpfs; source behind a warm page cache");
    let mut comparisons = vec![bench.compare("a real tree", options, bench.all_sides(&real))?];
    let names = bench.folder.join("names");
    make_files(&names, 1, NAMES, b"")?;
    let sides = bench.image_sides(&Tree::read(&names)?);
    comparisons.push(bench.compare("120 000 empty files in one directory", options, sides)?);
    fs::remove_dir_all(&names)?;
    let small = bench.folder.join("small");
    make_files(&small, SMALL_DIRECTORIES, SMALL_FILES, &[b'x'; 1024])?;
    let sides = bench.image_sides(&Tree::read(&small)?);
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
    /// Counts the tree, and reads it into the page cache.
    fn read(path: &Path) -> Result<Self> {
        let read = ["-xdev", "-type", "f", "-exec", "cat", "{}", "+"];
        let read = Command::new("find")
            .arg(path)
            .args(read)
            .stdout(Stdio::null())
            .status();
        if !read.context("find")?.success() {
            bail!("{} cannot be read", path.display());
        }
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

    /// An image size in MiB that the tree fits into, which mke2fs has to be given.
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

/// Empties the host's page cache of clean pages, if the user may do that.
fn empty_the_cache() {
    if let Err(error) = fs::write("/proc/sys/vm/drop_caches", "1") {
        eprintln!("bench: the host's page cache is not emptied, which needs root: {error}");
    }
}

/// A command line that is measured.
struct Line {
    name: &'static str,
    line: String,
    runs: Runs,
}

/// How often a command line is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    EveryRound,
    /// Once, and not longer than [`SECONDS_MAX`]; the other rounds report the same time.
    Once,
}

impl Line {
    fn new(name: &'static str, line: String) -> Self {
        Self {
            name,
            line,
            runs: Runs::EveryRound,
        }
    }

    /// The side of a comparison. `clean` removes its output. A side that runs once is cleaned up
    /// after it as well, so that no other side is measured with a full memory.
    fn side(self, clean: impl Fn() -> std::io::Result<()> + 'static) -> Side<'static> {
        let line = CommandLine::shell(&self.line);
        if self.runs == Runs::EveryRound {
            return Side::process(self.name, line).prepared_by(move || Ok(clean()?));
        }
        let mut taken = None;
        Side::closure(self.name, move |_| {
            let wall = match taken {
                Some(wall) => wall,
                None => {
                    clean()?;
                    let begin = Instant::now();
                    let limit = SECONDS_MAX.to_string();
                    let mut command = Command::new("timeout");
                    let status = command.args([&*limit, "sh", "-c", &self.line]).status()?;
                    if !status.success() && status.code() != Some(TIMED_OUT) {
                        return Err(format!("{}: ended with {status}", self.line).into());
                    }
                    *taken.insert(begin.elapsed())
                }
            };
            clean()?;
            Ok(Work {
                wall: Some(wall),
                ..Work::ONCE
            })
        })
    }
}

/// The folder on tmpfs, and the measured programs.
struct Bench {
    folder: Folder,
    output: PathBuf,
    build_tree: PathBuf,
    mkext4_tree: PathBuf,
    read_and_write: PathBuf,
}

impl Bench {
    fn new(workspace: &Workspace) -> Result<Self> {
        let build_tree = super::build_program(workspace, "build_tree")?;
        let mkext4_tree = super::build_program(workspace, "mkext4_tree")?;
        let read_and_write = super::build_program(workspace, "read_and_write")?;
        let folder = Folder::on_tmpfs()?;
        let output = folder.join("output");
        fs::create_dir_all(&output)?;
        Ok(Self {
            folder,
            output,
            build_tree,
            mkext4_tree,
            read_and_write,
        })
    }

    fn compare(&self, name: &str, options: &Options, lines: Vec<Line>) -> Result<ComparisonReport> {
        let mut comparison = Comparison::new(name)
            .warm_up(Rounds(0))
            .rounds(Rounds(options.rounds))
            .threads(&[ThreadCount::new(2)]);
        for line in lines {
            let output = self.output.clone();
            let clean = move || {
                fs::remove_dir_all(&output)?;
                fs::create_dir(&output)
            };
            comparison = comparison.side(line.side(clean));
        }
        Ok(comparison.run(&MonotonicClock::default())?)
    }

    /// The programs that make an image of a directory without root.
    fn image_sides(&self, tree: &Tree) -> Vec<Line> {
        let (from, output) = (tree.path.display(), self.output.display());
        let (mib, objects) = (tree.guess_mib(), tree.objects + tree.objects / 8 + 1024);
        let bytes = mib << 20;
        let (build_tree, mkext4_tree) = (self.build_tree.display(), self.mkext4_tree.display());
        let mke2fs = format!("mke2fs -q -F -t ext4 -N {objects} -d {from} {output}/image {mib}M");
        vec![
            Line {
                runs: Runs::Once,
                ..Line::new("mke2fs -d (ran once, for at most 150 s)", mke2fs)
            },
            Line::new(
                "fourscore",
                format!("{build_tree} {from} {output}/image >/dev/null"),
            ),
            Line::new(
                "mkext4 0.0.3",
                format!("{mkext4_tree} {from} {output}/image {bytes} {objects}"),
            ),
        ]
    }

    /// [`Self::image_sides`], the kernel, and the upper bounds.
    fn all_sides(&self, tree: &Tree) -> Vec<Line> {
        let (from, output) = (tree.path.display(), self.output.display());
        let mib = tree.guess_mib();
        let mut sides = self.image_sides(tree);
        sides.push(Line::new(
            "the kernel: mke2fs, loop mount, cp -a, umount",
            format!(
                "mkdir {output}/mount && mke2fs -q -F -t ext4 -i 8192 {output}/image {mib}M && \
                 mount -o loop {output}/image {output}/mount && \
                 {{ cp -ax {from} {output}/mount; umount {output}/mount; }}"
            ),
        ));
        sides.push(Line::new(
            "cp -a to tmpfs",
            format!("cp -ax {from} {output}/copy"),
        ));
        let read_and_write = self.read_and_write.display();
        sides.push(Line::new(
            "the limit: reading and writing the bytes, into one file, a thread for each core",
            format!("{read_and_write} {from} {output}/bytes"),
        ));
        sides
    }
}

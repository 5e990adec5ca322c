//! **Purpose.** Measures how fast a file system shrinks to its least size, side by side with
//! `resize2fs -M`.
//!
//! **Model.** A tree of 2 GiB, or of as many files as `--files` says, is in an image on tmpfs
//! twice: at the end of a large one, so that all of it has to move (while the tree is copied, a
//! file takes the blocks in front of it), and where `fourscore build` puts it, so that hardly
//! anything moves. Each run has a fresh sparse copy, made outside of the measured time. `fourscore
//! resize` checks the file system first, and resize2fs does not; with `-f` neither does.
//!
//! Before anything is measured each side runs once, and e2fsck must find its result clean.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use fourscore_lab::comparison::Rounds;
use fourscore_lab::{
    CommandLine, Comparison, ComparisonReport, MachineFacts, MonotonicClock, Report, Side,
    ThreadCount,
};

use super::Options;
use super::folder::{Folder, run_quietly};
use crate::workspace::Workspace;

/// Files in the tree, unless `--files` is given.
const FILES: u32 = 60_000;
const FILES_PER_DIRECTORY: u32 = 250;
/// The size of the image at whose end the tree lies, and the blocks of 4 KiB in front of the tree.
const LARGE: &str = "16G";
const BLOCKS_IN_FRONT: u32 = 13 << 18;
/// The size of the image in which hardly anything moves.
const SMALL: &str = "4G";

/// Makes the images, measures, and removes them.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<Report> {
    let fourscore = super::build_command(workspace)?;
    let folder = Folder::on_tmpfs()?;
    let bench = Bench {
        original: folder.join("original"),
        image: folder.join("image"),
        fourscore,
    };
    let files = options.files.unwrap_or(FILES);
    let tree = folder.join("tree");
    let bytes = make_tree(&tree, files)?;
    let machine = MachineFacts::collect()
        .with_option("files", &files)
        .with_option("content, MiB", &(bytes >> 20))
        .with_option("image", &"a sparse file on tmpfs");
    bench.place_at_end(&tree)?;
    let moved = bench.compare(&format!("all moves, from the end of {LARGE}"), options)?;
    fs::remove_file(&bench.original)?;
    let tree = tree.display().to_string();
    let original = bench.original.display().to_string();
    let built = ["build", "-q", &*tree, "--size", SMALL, "-o", &*original];
    run_quietly(Command::new(&bench.fourscore).args(built))?;
    let cut = bench.compare(&format!("hardly anything moves, from {SMALL}"), options)?;
    Ok(Report {
        machine,
        comparisons: vec![moved, cut],
    })
}

struct Bench {
    original: PathBuf,
    /// What is resized: a copy of the original.
    image: PathBuf,
    fourscore: PathBuf,
}

impl Bench {
    /// Makes the image that has the tree at its end.
    fn place_at_end(&self, tree: &Path) -> Result<()> {
        let image = self.original.display().to_string();
        let made = ["-q", "-F", "-t", "ext4", &*image, LARGE];
        run_quietly(Command::new("mke2fs").args(made))?;
        let last = BLOCKS_IN_FRONT - 1;
        for request in [
            "write /dev/null in-front".to_owned(),
            format!("fallocate /in-front 0 {last}"),
        ] {
            run_quietly(Command::new("debugfs").args(["-w", "-R", &*request, &*image]))?;
        }
        let (tree, root) = (tree.display().to_string(), format!("{image}:/"));
        let fourscore = || Command::new(&self.fourscore);
        run_quietly(fourscore().args(["cp", "-a", &*tree, &*root]))?;
        run_quietly(fourscore().args(["edit", &*image, "rm", "/in-front"]))
    }

    fn compare(&self, title: &str, options: &Options) -> Result<ComparisonReport> {
        let (program, image) = (self.fourscore.display(), self.image.display());
        let sides = [
            (
                "resize2fs -f -M",
                format!("resize2fs -f -M {image} >/dev/null 2>&1"),
            ),
            (
                "fourscore resize -f -M",
                format!("{program} resize -q -f -M {image}"),
            ),
            (
                "fourscore resize -M (checks first)",
                format!("{program} resize -q -M {image}"),
            ),
        ];
        let mut comparison = Comparison::new(format!("least size: {title}"))
            .warm_up(Rounds(0))
            .rounds(Rounds(options.rounds))
            .threads(&[ThreadCount::new(2)]);
        for (name, line) in sides {
            self.copy()?;
            run_quietly(Command::new("sh").args(["-c", &*line]))?;
            let check = run_quietly(Command::new("e2fsck").arg("-fn").arg(&self.image));
            check.with_context(|| format!("after {name}"))?;
            let prepare = || self.copy().map_err(Into::into);
            let side = Side::process(name, CommandLine::shell(&line));
            comparison = comparison.side(side.prepared_by(prepare));
        }
        Ok(comparison.run(&MonotonicClock::default())?)
    }

    /// A fresh copy, with the holes of the original.
    fn copy(&self) -> Result<()> {
        super::folder::copy_sparse(&self.original, &self.image)
    }
}

/// Makes files of 1 to 255 KiB, three of four of them smaller than 9 KiB; returns their bytes.
fn make_tree(tree: &Path, files: u32) -> Result<u64> {
    let content: Vec<u8> = (0..300 << 10).map(content_at).collect();
    let mut bytes = 0;
    for directory in 0..files.div_ceil(FILES_PER_DIRECTORY) {
        let group = tree.join(format!("group-{}", directory / 20));
        let path = group.join(format!("directory-{directory}"));
        fs::create_dir_all(&path)?;
        for file in 0..FILES_PER_DIRECTORY {
            let number = (file * 7 + directory) as usize;
            let kib = match number % 4 {
                0 => 16 + number * 37 % 240,
                _ => 1 + number % 8,
            };
            let start = number % 4096;
            let own = content.get(start..start + (kib << 10)).unwrap_or_default();
            fs::write(path.join(format!("a-file-with-a-name-{file}")), own)?;
            bytes += own.len() as u64;
        }
    }
    Ok(bytes)
}

/// Bytes that do not repeat soon.
fn content_at(at: u32) -> u8 {
    at.wrapping_mul(2_654_435_761).to_be_bytes()[0]
}

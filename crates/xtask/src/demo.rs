//! **Purpose.** The tour that a newcomer starts with one command: an image of a real tree of this
//! machine is made by `mke2fs -d`, read back through fourscore, and compared with the tree itself.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::run::{cargo, find_program, run as run_command};
use crate::setup;
use crate::workspace::Workspace;

/// Which field of a line of `walk`, counted from 0, is the modification time.
const MTIME_FIELD: usize = 7;

/// What to tour.
#[derive(Args)]
pub(crate) struct Options {
    /// The tree to take.
    #[arg(default_value = "/usr/share")]
    tree: PathBuf,
}

/// Makes the image, reads it, compares, prints what was done and how fast.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    setup::run()?;
    let mke2fs = find_program("mke2fs").context("mke2fs is missing (install e2fsprogs)")?;
    run_command(cargo(workspace).args(["build", "--release", "--package", "fourscore-cli"]))?;
    let fourscore = workspace.target().join("release/fourscore");
    let tree = options
        .tree
        .canonicalize()
        .with_context(|| format!("{}", options.tree.display()))?;
    let scratch = Scratch::new()?;
    let image = scratch.0.join("demo.img");

    println!("\nmke2fs makes an ext4 image of {}", tree.display());
    let made = seconds(|| make_image(&mke2fs, &tree, &image))?;
    let image_bytes = fs::metadata(&image)?.len();

    println!("fourscore reads every byte of it; then the same walk over the original");
    let of_image = scratch.0.join("image.walk");
    let of_tree = scratch.0.join("tree.walk");
    let read = seconds(|| {
        walk(
            &fourscore,
            &["--hash".as_ref(), image.as_os_str()],
            &of_image,
        )
    })?;
    let host_arguments = ["--hash".as_ref(), "--host".as_ref(), tree.as_os_str()];
    let walked = seconds(|| walk(&fourscore, &host_arguments, &of_tree))?;
    let objects = compare(&of_tree, &of_image)?;
    let listed = seconds(|| walk(&fourscore, &[image.as_os_str()], &of_image))?;
    let extracted = seconds(|| tar_to_nowhere(&fourscore, &image))?;

    println!();
    println!("{objects} objects, image of {} MiB", image_bytes >> 20);
    println!("{made:8.2} s  mke2fs -d {}", tree.display());
    println!("{read:8.2} s  fourscore walk --hash IMAGE");
    println!(
        "{walked:8.2} s  fourscore walk --hash --host {}",
        tree.display()
    );
    println!("{listed:8.2} s  fourscore walk IMAGE");
    println!("{extracted:8.2} s  fourscore extract IMAGE - >/dev/null");
    println!(
        "the two walks agree: type, mode, owner, links, size, mtime (s), xattrs, SHA-256 of all"
    );
    Ok(())
}

/// A folder that disappears with the value; in memory where the machine has /dev/shm.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let shared_memory = Path::new("/dev/shm");
        let base = if shared_memory.is_dir() {
            shared_memory.into()
        } else {
            std::env::temp_dir()
        };
        let folder = base.join(format!("fourscore-demo-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("{}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("demo: {} is left behind: {error}", self.0.display());
        }
    }
}

fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed().as_secs_f64())
}

/// An image with room for the tree: `du` plus half for tables, small files and the journal.
fn make_image(mke2fs: &Path, tree: &Path, image: &Path) -> Result<()> {
    let du = Command::new("du")
        .args(["-s", "--block-size=1K"])
        .arg(tree)
        .output()?;
    let text = String::from_utf8_lossy(&du.stdout);
    let used_kib: u64 = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .with_context(|| format!("du did not say how large {} is", tree.display()))?;
    run_command(
        Command::new(mke2fs)
            .args(["-q", "-t", "ext4", "-i", "8192", "-d"])
            .arg(tree)
            .arg(image)
            .arg(format!("{}K", used_kib + used_kib / 2 + (64 << 10))),
    )
}

fn walk(fourscore: &Path, arguments: &[&std::ffi::OsStr], into: &Path) -> Result<()> {
    run_command(
        Command::new(fourscore)
            .arg("walk")
            .args(arguments)
            .stdout(File::create(into)?),
    )
}

fn tar_to_nowhere(fourscore: &Path, image: &Path) -> Result<()> {
    run_command(
        Command::new(fourscore)
            .arg("extract")
            .arg(image)
            .arg("-")
            .stdout(Stdio::null()),
    )
}

/// Compares two walks of the same tree and returns how many lines they have in common.
fn compare(of_tree: &Path, of_image: &Path) -> Result<u64> {
    let mut tree = lines_to_compare(of_tree)?;
    let mut image = lines_to_compare(of_image)?;
    let mut lines = 0;
    loop {
        match (tree.next().transpose()?, image.next().transpose()?) {
            (None, None) if lines > 0 => return Ok(lines),
            (left, right) if left == right && left.is_some() => lines += 1,
            (left, right) => {
                let show = |line: Option<String>| line.unwrap_or("(no more lines)".to_owned());
                bail!(
                    "the walks differ:\n  tree:  {}\n  image: {}",
                    show(left),
                    show(right)
                );
            }
        }
    }
}

/// The lines of a walk without what `mke2fs -d` does not copy: the root's attributes, and
/// fractions of seconds. It adds `/lost+found`.
fn lines_to_compare(walk: &Path) -> Result<impl Iterator<Item = Result<String>>> {
    let lines = BufReader::new(File::open(walk)?).lines();
    let kept = |line: &std::io::Result<String>| {
        line.as_ref().map_or(true, |line| {
            !["/ ", "/lost+found "]
                .iter()
                .any(|own| line.starts_with(own))
        })
    };
    Ok(lines.filter(kept).map(|line| Ok(without_fraction(&line?))))
}

/// A line with whole seconds in its field of the modification time.
fn without_fraction(line: &str) -> String {
    let seconds = |(nr, field): (usize, &str)| match field.split_once('.') {
        Some((seconds, _)) if nr == MTIME_FIELD => seconds.to_owned(),
        _ => field.to_owned(),
    };
    line.split(' ')
        .enumerate()
        .map(seconds)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_are_compared_line_by_line() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        let image = folder.path().join("image");
        let walk = "/ d 0755 0 0 - - 5.1 - - -\n/a.b f 0644 0 0 1 3 7.123456789 - - -\n";
        fs::write(&tree, walk).unwrap();
        let copied = "/ d 0700 0 0 - - 9.0 - - -\n/a.b f 0644 0 0 1 3 7.000000000 - - -\n\
                      /lost+found d 0700 0 0 - - 9.0 - - -\n";
        fs::write(&image, copied).unwrap();
        assert_eq!(compare(&tree, &image).unwrap(), 1);
        for wrong in [
            copied.replace("7.0", "8.0"),
            copied.replace("a.b", "a.c"),
            walk[..27].into(),
        ] {
            fs::write(&image, wrong).unwrap();
            assert!(compare(&tree, &image).is_err());
        }
        fs::write(&tree, "").unwrap();
        fs::write(&image, "").unwrap();
        assert!(
            compare(&tree, &image).is_err(),
            "two empty walks prove nothing"
        );
    }
}

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
        "every line of the two walks is the same: type, mode, owner, size, times, xattrs, SHA-256"
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

/// Compares two walks of the same tree and returns how many lines they have. `mke2fs` adds
/// `/lost+found`, which is left out.
fn compare(of_tree: &Path, of_image: &Path) -> Result<u64> {
    let mut tree = BufReader::new(File::open(of_tree)?).split(b'\n');
    let mut image = BufReader::new(File::open(of_image)?)
        .split(b'\n')
        .filter(|line| {
            !line
                .as_ref()
                .is_ok_and(|line| line.starts_with(b"/lost+found"))
        });
    let mut lines = 0;
    loop {
        match (tree.next().transpose()?, image.next().transpose()?) {
            (None, None) => return Ok(lines),
            (left, right) if left == right => lines += 1,
            (left, right) => {
                let show = |line: Option<Vec<u8>>| {
                    line.map_or("(no more lines)".into(), |line| {
                        String::from_utf8_lossy(&line).into_owned()
                    })
                };
                bail!(
                    "the walks differ:\n  tree:  {}\n  image: {}",
                    show(left),
                    show(right)
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_are_compared_line_by_line() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        let image = folder.path().join("image");
        fs::write(&tree, "/ d\n/a f\n").unwrap();
        fs::write(&image, "/ d\n/a f\n/lost+found d\n").unwrap();
        assert_eq!(compare(&tree, &image).unwrap(), 2);
        fs::write(&image, "/ d\n/a g\n").unwrap();
        assert!(compare(&tree, &image).is_err());
        fs::write(&image, "/ d\n").unwrap();
        assert!(compare(&tree, &image).is_err());
    }
}

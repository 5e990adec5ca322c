//! **Purpose.** The tour that a newcomer starts with one command: fourscore builds an image of a
//! real tree of this machine, e2fsck checks it, fourscore reads it back, and what it reads is
//! compared with the tree itself. Only e2fsck is needed for it, which almost every machine has.

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
    setup::offer(&["e2fsprogs"])?;
    let e2fsck = find_program("e2fsck").context("e2fsck is missing (install e2fsprogs)")?;
    run_command(cargo(workspace).args(["build", "--release", "--package", "fourscore-cli"]))?;
    let fourscore = workspace.target().join("release/fourscore");
    let tree = options
        .tree
        .canonicalize()
        .with_context(|| format!("{}", options.tree.display()))?;
    let scratch = Scratch::new()?;
    let image = scratch.0.join("demo.img");

    println!("\nfourscore makes an ext4 image of {}", tree.display());
    let made = seconds(|| build(&fourscore, &tree, &image))?;
    let image_bytes = fs::metadata(&image)?.len();
    println!("e2fsck checks it");
    let checked = seconds(|| run_command(Command::new(&e2fsck).args(["-f", "-n"]).arg(&image)))?;

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
    println!("{made:8.2} s  fourscore build {} -o IMAGE", tree.display());
    println!("{checked:8.2} s  e2fsck -f -n IMAGE: clean");
    println!("{read:8.2} s  fourscore walk --hash IMAGE");
    println!(
        "{walked:8.2} s  fourscore walk --hash --host {}",
        tree.display()
    );
    println!("{listed:8.2} s  fourscore walk IMAGE");
    println!("{extracted:8.2} s  fourscore extract IMAGE - >/dev/null");
    println!(
        "the two walks agree: type, mode, owner, links, size, mtime (ns), xattrs, SHA-256 of all"
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

fn build(fourscore: &Path, tree: &Path, image: &Path) -> Result<()> {
    run_command(
        Command::new(fourscore)
            .arg("build")
            .arg(tree)
            .arg("-o")
            .arg(image),
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

/// The lines of a walk without the one that an image has of its own, `/lost+found`, and the root,
/// which has one link more for it.
fn lines_to_compare(walk: &Path) -> Result<impl Iterator<Item = Result<String>>> {
    let lines = BufReader::new(File::open(walk)?).lines();
    let kept = |line: &std::io::Result<String>| {
        line.as_ref().map_or(true, |line| {
            !["/ ", "/lost+found "]
                .iter()
                .any(|own| line.starts_with(own))
        })
    };
    Ok(lines.filter(kept).map(|line| Ok(line?)))
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
        let copied = "/ d 0700 0 0 - - 9.0 - - -\n/a.b f 0644 0 0 1 3 7.123456789 - - -\n\
                      /lost+found d 0700 0 0 - - 9.0 - - -\n";
        fs::write(&image, copied).unwrap();
        assert_eq!(compare(&tree, &image).unwrap(), 1);
        for wrong in [
            copied.replace("7.1", "7.2"),
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

//! **Purpose.** How fast a file system is checked, beside `e2fsck -fn`: one million files, unless
//! fewer are asked for, in an image of 100 GiB.
//!
//! **Model.** A tar with directories of a hundred files each is made on the fly and built into a
//! sparse image. All sides read the same image, whose metadata a warm-up round brings
//! into the page cache; both programs must call it sound.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use fourscore_lab::comparison::Rounds;
use fourscore_lab::{
    CommandLine, Comparison, MachineFacts, MonotonicClock, Report, Side, ThreadCount,
};

use super::Options;
use crate::run::{cargo, run as run_command};
use crate::workspace::Workspace;

const FILES_EACH: u32 = 100;
const SIZE: &str = "100G";
/// The unit of a tar.
const RECORD_BYTES: usize = 512;

/// Builds the image, measures, and removes it.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<Report> {
    run_command(cargo(workspace).args(["build", "--release", "--package", "fourscore-cli"]))?;
    let fourscore = workspace.target().join("release/fourscore");
    let folder = Folder::new(&workspace.target())?;
    let image = folder.0.join("image");
    let directories = options.files.div_ceil(FILES_EACH);
    let files = directories * FILES_EACH;
    build(&fourscore, &image, directories)?;
    let machine = MachineFacts::collect()
        .with_option(
            "image",
            &format!("{SIZE}, sparse, metadata in the page cache"),
        )
        .with_option("files", &files)
        .with_option("directories", &directories);
    let (program, image) = (fourscore.display(), image.display());
    let mut comparison = Comparison::new(format!("check, 100 GiB with {files} files"))
        .warm_up(Rounds(1))
        .rounds(Rounds(options.rounds))
        .threads(&[ThreadCount::new(2)]);
    let sides = [
        ("e2fsck -fn", format!("e2fsck -fn {image} >/dev/null 2>&1")),
        (
            "fourscore check -n --threads 1",
            format!("{program} check -n --threads 1 {image} >/dev/null"),
        ),
        (
            "fourscore check -n --threads 2",
            format!("{program} check -n --threads 2 {image} >/dev/null"),
        ),
    ];
    for (name, line) in sides {
        comparison = comparison.side(Side::process(name, CommandLine::shell(&line)));
    }
    Ok(Report {
        machine,
        comparisons: vec![comparison.run(&MonotonicClock::default())?],
    })
}

/// Pipes the tar into the builder.
fn build(fourscore: &Path, image: &Path, directories: u32) -> Result<()> {
    let mut builder = Command::new(fourscore)
        .args(["build", "-", "--size", SIZE, "-o"])
        .arg(image)
        .stdin(Stdio::piped())
        .spawn()
        .context("fourscore build")?;
    let pipe = builder.stdin.take().context("no pipe to the builder")?;
    write_tar(BufWriter::with_capacity(1 << 20, pipe), directories)?;
    ensure!(builder.wait()?.success(), "fourscore build failed");
    Ok(())
}

fn write_tar(mut out: impl Write, directories: u32) -> Result<()> {
    let mut content = [0; RECORD_BYTES];
    for directory in 0..directories {
        let parent = format!("directory-{directory}/");
        out.write_all(&header(&parent, b'5', 0))?;
        for file in 0..FILES_EACH {
            let name = format!("{parent}a-file-with-a-name-{file}");
            out.write_all(&header(&name, b'0', name.len()))?;
            content.fill(0);
            for (to, from) in content.iter_mut().zip(name.bytes()) {
                *to = from;
            }
            out.write_all(&content)?;
        }
    }
    out.write_all(&[0; 2 * RECORD_BYTES])?;
    Ok(out.flush()?)
}

/// A header of POSIX 1003.1-1988.
fn header(name: &str, kind: u8, size_bytes: usize) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    let mut put = |at: usize, text: &str| {
        for (to, from) in bytes.iter_mut().skip(at).zip(text.bytes()) {
            *to = from;
        }
    };
    put(0, name);
    put(100, if kind == b'5' { "0000755" } else { "0000644" });
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size_bytes:011o}"));
    put(136, "00000000000");
    put(148, "        ");
    put(257, "ustar");
    put(263, "00");
    bytes[156] = kind;
    let sum: u32 = bytes.iter().map(|&byte| u32::from(byte)).sum();
    for (to, from) in bytes
        .iter_mut()
        .skip(148)
        .zip(format!("{sum:06o}\0 ").bytes())
    {
        *to = from;
    }
    bytes
}

/// A folder that disappears in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(target: &Path) -> Result<Self> {
        let folder = target.join(format!("bench-check-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("bench: {} is left behind: {error}", self.0.display());
        }
    }
}

//! Trees: the walk and the kernel's mount, round trips of extraction and of tar archives.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Access, KernelMount, matrix, require, scratch};

use crate::common::{fourscore, text};

/// The output of a run.
fn walked(arguments: &[&str]) -> Result<String> {
    let output = fourscore(arguments).output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?}: {message}");
    Ok(String::from_utf8(output.stdout)?)
}

fn ensure_same(ours: &str, theirs: &str) -> Result<()> {
    let mut differences = ours
        .lines()
        .zip(theirs.lines())
        .filter(|(ours, theirs)| ours != theirs);
    if let Some((ours, theirs)) = differences.next() {
        let cut = |line: &str| line.chars().take(600).collect::<String>();
        anyhow::bail!("ours:   {}\ntheirs: {}", cut(ours), cut(theirs));
    }
    ensure!(
        ours.len() == theirs.len(),
        "{} and {} bytes",
        ours.len(),
        theirs.len()
    );
    Ok(())
}

/// The lines without sockets, which a tar archive cannot store.
fn without_sockets(walk: &str) -> String {
    let is_socket = |line: &str| line.split(' ').nth(1) == Some("s");
    walk.lines()
        .filter(|line| !is_socket(line))
        .flat_map(|line| [line, "\n"])
        .collect()
}

#[test]
fn an_image_walks_like_the_kernels_mount() {
    require!(Need::Program("mke2fs"), Need::KernelMount);
    let names = [
        "ext4-4k",
        "ext2-1k",
        "inline-data",
        "ea-inode",
        "bigalloc-16k",
    ];
    for config in matrix::configs() {
        if names.contains(&config.name) {
            walks_as_the_kernel(&config).expect(config.name);
        }
    }
}

fn walks_as_the_kernel(config: &matrix::Config) -> Result<()> {
    let populated = config.populated()?;
    let image = text(populated.image.path());
    let mount = KernelMount::new(populated.image.path(), Access::ReadOnly, "")?;
    let (host, files) = (text(mount.path()), mount.path().join("files"));
    let theirs = walked(&["walk", "--full", "--hash", "--host", host])?;
    let theirs_below = walked(&["walk", "--host", text(&files)])?;
    mount.unmount()?;
    for threads in ["1", "2", "5"] {
        let ours = walked(&["walk", "--full", "--hash", "--threads", threads, image])?;
        ensure_same(&ours, &theirs)?;
    }
    ensure_same(&walked(&["walk", image, "files"])?, &theirs_below)
}

/// The image of one configuration extracted by `extract`, compared with its own walk.
fn round_trip(name: &str, extract: impl Fn(&Path, &Path) -> Result<()>, tar: bool) -> Result<()> {
    let configs = matrix::configs();
    let Some(config) = configs.iter().find(|config| config.name == name) else {
        return Ok(());
    };
    let populated = config.populated()?;
    // A file system that supports everything in the image, including large sparse files.
    let place = tempfile::tempdir_in("/var/tmp")?;
    let target = place.path().join("tree");
    extract(populated.image.path(), &target)?;
    let mut ours = walked(&["walk", "--hash", text(populated.image.path())])?;
    if tar {
        ours = without_sockets(&ours);
    }
    ensure_same(
        &ours,
        &walked(&["walk", "--hash", "--host", text(&target)])?,
    )
}

#[test]
fn extraction_keeps_everything() {
    require!(Need::Program("mke2fs"), Need::KernelMount);
    let extract = |image: &Path, target: &Path| {
        let output = fourscore(&["extract", text(image), text(target)]).output()?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && message.is_empty(), "{message}");
        Ok(())
    };
    for config in ["ext4-4k", "ext2-1k"] {
        round_trip(config, extract, false).expect(config);
    }
}

#[test]
fn gnu_tar_restores_everything() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("tar"),
        Need::KernelMount
    );
    let extract = |image: &Path, target: &Path| {
        std::fs::create_dir(target)?;
        let mut archive = fourscore(&["extract", text(image), "-"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = Command::new("tar")
            .args([
                "-xp",
                "--numeric-owner",
                "--acls",
                "--xattrs",
                "--xattrs-include=*",
                "-f",
                "-",
            ])
            .arg("--warning=no-timestamp")
            .current_dir(target)
            .stdin(archive.stdout.take().context("a pipe")?)
            .output()?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success() && message.is_empty(),
            "tar: {message}"
        );
        ensure!(archive.wait()?.success(), "the archive is not complete");
        Ok(())
    };
    round_trip("ext4-4k", extract, true).expect("ext4-4k");
}

#[test]
fn the_archive_is_independent_of_threads_and_output() {
    require!(Need::Program("mke2fs"), Need::KernelMount);
    let config = matrix::configs()
        .into_iter()
        .find(|config| config.name == "ext4-1k");
    let populated = config.map(|config| config.populated().expect("ext4-1k"));
    let Some(populated) = populated else {
        return;
    };
    let image = text(populated.image.path());
    let place = scratch::folder().expect("a folder");
    let archive = place.path().join("tar");
    // Into a file nothing is spliced, into a pipe it is.
    let file = std::fs::File::create(&archive).expect("space");
    let written = fourscore(&["extract", "--threads", "1", image, "-"])
        .stdout(file)
        .status();
    assert!(written.expect("it runs").success());
    let archive = std::fs::read(&archive).expect("the archive");
    assert_eq!(archive.len() % 10_240, 0);
    for threads in ["2", "7"] {
        let piped = fourscore(&["extract", "--threads", threads, image, "-"]).output();
        assert!(
            piped.expect("it runs").stdout == archive,
            "differs with {threads} threads"
        );
    }
}

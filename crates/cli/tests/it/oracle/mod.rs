//! Walks of images and of the kernel's mounts of them, which are compared line by line.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The position of the field `links` in a line.
pub(crate) const LINKS: usize = 5;
/// The position of the field `mtime` in a line.
pub(crate) const MTIME: usize = 7;

/// The output of `fourscore walk`.
pub(crate) fn walk<A: AsRef<OsStr>>(arguments: &[A]) -> Result<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fourscore"));
    let output = command.arg("walk").args(arguments).output()?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).context("a walk is ASCII")
}

/// The output of `walk` for an image.
pub(crate) fn walk_image(options: &[&str], image: &Path) -> Result<String> {
    let mut arguments: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    arguments.push(image.as_os_str());
    walk(&arguments)
}

/// The output of `walk --host` for a directory.
pub(crate) fn walk_host(options: &[&str], directory: &Path) -> Result<String> {
    let mut arguments: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    arguments.extend([OsStr::new("--host"), directory.as_os_str()]);
    walk(&arguments)
}

/// Fails with the first differing lines if the walks differ.
pub(crate) fn same(ours: &str, theirs: &str) -> Result<()> {
    if ours == theirs {
        return Ok(());
    }
    let by_path = |text: &str| -> BTreeMap<String, String> {
        text.lines()
            .map(|line| {
                (
                    line.split(' ').next().unwrap_or("").to_owned(),
                    line.to_owned(),
                )
            })
            .collect()
    };
    let (a, b) = (by_path(ours), by_path(theirs));
    let mut report = String::new();
    let paths: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differing = paths
        .into_iter()
        .filter(|path| a.get(*path) != b.get(*path));
    let mut count = 0;
    for path in differing {
        count += 1;
        if count <= 8 {
            let show = |line: Option<&String>| {
                line.map_or("(absent)".to_owned(), |line| {
                    line.chars().take(400).collect()
                })
            };
            report += &format!(
                "\n  ours   {}\n  theirs {}",
                show(a.get(path)),
                show(b.get(path))
            );
        }
    }
    bail!(
        "{count} of {} lines differ (or only their order does):{report}",
        b.len()
    )
}

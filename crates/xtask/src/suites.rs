//! **Purpose.** The test suites: each alone, and `test`, which runs all of them and sums up.
//!
//! Builds with other features share the target folder: cargo keeps them apart by hash, and their
//! common dependencies are compiled once. Only builds with other compiler flags (fuzzing) have a
//! folder of their own.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::run::{Steps, cargo, on_ci, run as run_command};
use crate::workspace::Workspace;
use crate::{check, crash, fuzz, oracle, setup, torture};

/// The variable through which the test kit learns where to note what it skipped.
const SKIP_LOG: &str = "FOURSCORE_SKIP_LOG";

/// A build of the crates whose shared memory is something else than the machine's.
#[derive(Clone, Copy)]
pub(crate) enum Feature {
    /// Every interleaving that the scheduler of shuttle thinks of.
    Shuttle,
    /// Transfers of cache lines between virtual cores are counted.
    Count,
}

impl Feature {
    fn name(self) -> &'static str {
        match self {
            Self::Shuttle => "shuttle",
            Self::Count => "count",
        }
    }
}

/// Set-up, check, every suite; all are run even if one fails.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    let skip_log = workspace.target().join("skipped-tests.log");
    fs::create_dir_all(workspace.target())?;
    fs::write(&skip_log, "").with_context(|| format!("{}", skip_log.display()))?;

    let mut steps = Steps::default();
    steps.step("setup", || setup::run(workspace));
    check::add_to(&mut steps, workspace);
    steps.step("tests of the workspace", || {
        run_command(
            cargo(workspace)
                .args(["test", "--workspace", "--no-fail-fast"])
                .env(SKIP_LOG, &skip_log),
        )
    });
    steps.step("tests with faults put back", || put_back(workspace));
    for feature in [Feature::Shuttle, Feature::Count] {
        steps.step(format!("{} suites", feature.name()), || {
            self::feature(workspace, feature)
        });
    }
    steps.step("crash states of the journal", || {
        crash::smoke_journal(workspace)
    });
    steps.step("crash states of the file system", || {
        crash::smoke_fs(workspace)
    });
    steps.step("crash states of the kernel's ext4", || {
        crash::smoke_kernel(workspace, Some((SKIP_LOG, skip_log.as_path())))
    });
    steps.step("concurrent oracle", || oracle::smoke(workspace));
    steps.step("torture", || torture::smoke(workspace));
    steps.step("fuzz smoke", || fuzz::smoke(workspace));
    let skipped = summarise_skips(&mut steps, &skip_log)?;
    if on_ci() && skipped > 0 {
        steps.step("nothing skipped on CI", || {
            bail!("{skipped} tests were skipped")
        });
    }
    steps.finish()
}

/// Lists every skip once in the summary, and says how many different ones there were.
fn summarise_skips(steps: &mut Steps, skip_log: &Path) -> Result<usize> {
    let text = fs::read_to_string(skip_log)?;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    steps.note(if lines.is_empty() {
        "skipped: nothing".to_owned()
    } else {
        format!("skipped: {} (each listed below)", lines.len())
    });
    for line in &lines {
        steps.note(format!("skipped  {line}"));
    }
    Ok(lines.len())
}

/// The library's tests that put a fault back and expect that it is seen, in a build that can.
fn put_back(workspace: &Workspace) -> Result<()> {
    let mut command = cargo(workspace);
    command.args(["test", "--no-fail-fast", "--package", "fourscore"]);
    command.args(["--features", "sabotage", "--lib"]);
    run_command(command.args(["--test", "readers_beside_writers", "put_back"]))
}

/// Tests with `model` in their name, in all crates.
pub(crate) fn model(workspace: &Workspace) -> Result<()> {
    run_command(cargo(workspace).args(["test", "--workspace", "--", "model"]))
}

/// The library's tests of every crate that has the feature, built with it, and the integration
/// tests named after the feature (`count`, `count_*`). Other integration tests are left to the
/// ordinary build: they drive whole images, where nothing is counted and shuttle's scheduler is
/// not at home. One call of cargo for all: for each crate by itself it would compile the crates
/// below anew.
pub(crate) fn feature(workspace: &Workspace, feature: Feature) -> Result<()> {
    let name = feature.name();
    let mut command = cargo(workspace);
    command.args(["test", "--no-fail-fast", "--lib", "--features", name]);
    for manifest in workspace.manifests()? {
        if !manifest.has_feature(name) {
            continue;
        }
        command.args(["--package", manifest.name()]);
        for test in tests_named_after(name, &manifest.path.with_file_name("tests"))? {
            command.args(["--test", &test]);
        }
    }
    run_command(&mut command)
}

/// The integration tests in `folder`, if there is one, that are named after a feature, in order.
fn tests_named_after(feature: &str, folder: &Path) -> Result<Vec<String>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let test = name.to_str().and_then(|name| name.strip_suffix(".rs"));
        let rest = test.and_then(|test| test.strip_prefix(feature));
        if let Some(test) = test
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        {
            found.push(test.to_owned());
        }
    }
    found.sort_unstable();
    Ok(found)
}

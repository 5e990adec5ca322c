//! **Purpose.** The test suites: each alone, and `test`, which runs all and prints a summary.
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

/// The environment variable that names the file to which the test kit appends skipped tests.
const SKIP_LOG: &str = "FOURSCORE_SKIP_LOG";

/// A build of the crates in which a model replaces locks and atomics.
#[derive(Clone, Copy)]
pub(crate) enum Feature {
    /// Shuttle's scheduler decides which thread runs next.
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
    // Not earlier: some tests of the workspace have limits of time.
    let fuzz_build = fuzz::BuildBeside::begin(workspace);
    steps.step("tests with injected faults", || injected_faults(workspace));
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
    steps.step("fuzz smoke", || {
        fuzz_build?.wait()?;
        fuzz::smoke(workspace)
    });
    let skipped = summarise_skips(&mut steps, &skip_log)?;
    if on_ci() && skipped > 0 {
        steps.step("nothing skipped on CI", || {
            bail!("{skipped} tests were skipped")
        });
    }
    steps.finish()
}

/// Lists every skipped test once in the summary, and returns their number.
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

/// The library's tests that inject a known fault and expect to find it, in a build with the feature
/// `sabotage`.
fn injected_faults(workspace: &Workspace) -> Result<()> {
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
/// ordinary build: they use whole images, where nothing is counted and shuttle's scheduler does not
/// run. One call of cargo builds all: calls for single crates would compile the crates below them
/// again.
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

//! **Purpose.** The test suites: each alone, and `test`, which runs all and prints a summary.
//!
//! Builds with other features share the target folder: cargo keeps them apart by hash, and their
//! common dependencies are compiled once. Only builds with other compiler flags (fuzzing) have a
//! folder of their own.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::builds::{Build, Programs};
use crate::run::{Steps, cargo, on_ci, run as run_command};
use crate::workspace::{Workspace, files_below};
use crate::{check, crash, fuzz, leftovers, oracle, package, setup, torture};

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
///
/// The build of the ordinary tests comes first. It is that of the programs which inject faults,
/// too: a fault is an option of a mount or of a journal, and off unless a test switches it on.
/// Each other build begins beside steps before the one that needs it.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    let skip_log = workspace.target().join("skipped-tests.log");
    fs::create_dir_all(workspace.target())?;
    fs::write(&skip_log, "").with_context(|| format!("{}", skip_log.display()))?;
    let run = leftovers::Run::begin();
    let workspace = &workspace.with(&[(SKIP_LOG, &skip_log), (leftovers::RUN, run.label())]);

    let mut steps = Steps::default();
    steps.step("setup", || setup::run(workspace));
    check::add_to(&mut steps, workspace);
    let ordinary = steps.value("build of the tests", || build_ordinary(workspace));
    // It calls cargo, so it comes before the builds beside others.
    steps.step("tests in documentation", || {
        let arguments = [
            "test",
            "--workspace",
            crash::FAULTS,
            "--doc",
            "--no-fail-fast",
        ];
        run_command(cargo(workspace).args(arguments))
    });
    let fuzz_targets = fuzz::build_beside(workspace);
    let features = [Feature::Shuttle, Feature::Count];
    let features = features.map(|feature| (feature, build_beside(workspace, feature)));
    steps.step("tests of the workspace", || {
        let ordinary = ordinary.as_ref().context(NOT_BUILT)?;
        ordinary.test(workspace, None)
    });
    steps.step("package", || {
        let ordinary = ordinary.as_ref().context(NOT_BUILT)?;
        package::smoke(workspace, ordinary.path("fourscore")?)
    });
    injected_faults(&mut steps, workspace, ordinary.as_ref());
    for (feature, build) in features {
        let name = feature.name();
        let built = steps.value(format!("rest of the build for {name}"), || build?.wait());
        steps.step(format!("{name} suites"), || {
            built.context(NOT_BUILT)?.test(workspace, None)
        });
    }
    steps.step("fuzz smoke", || {
        fuzz_targets?.wait()?;
        fuzz::write_seeds(workspace, ordinary.as_ref().context(NOT_BUILT)?)?;
        fuzz::smoke(workspace)
    });
    steps.step("nothing left behind", || run.finish());
    let skipped = summarise_skips(&mut steps, &skip_log)?;
    if on_ci() && skipped > 0 {
        steps.step("nothing skipped on CI", || {
            bail!("{skipped} tests were skipped")
        });
    }
    steps.finish()
}

/// Why a step fails whose programs are missing.
const NOT_BUILT: &str = "the build has failed, see above";

/// Builds the tests of the workspace. Examples are not run; clippy has compiled them.
fn build_ordinary(workspace: &Workspace) -> Result<Programs> {
    let targets = ["--lib", "--bins", "--tests"];
    let call = ["test", "--workspace", crash::FAULTS, "--no-run"];
    Programs::build(workspace, &[&call[..], &targets].concat())
}

/// The steps whose programs inject faults.
fn injected_faults(steps: &mut Steps, workspace: &Workspace, programs: Option<&Programs>) {
    type Work = fn(&Workspace, &Programs) -> Result<()>;
    let works: [(&str, Work); 5] = [
        ("crash states of the journal", crash::smoke_journal),
        ("crash states of the file system", crash::smoke_fs),
        ("crash states of the kernel's ext4", crash::smoke_kernel),
        ("concurrent oracle", oracle::smoke),
        ("torture", torture::smoke),
    ];
    for (name, work) in works {
        steps.step(name, || work(workspace, programs.context(NOT_BUILT)?));
    }
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

/// Tests with `model` in their name, in all crates.
pub(crate) fn model(workspace: &Workspace) -> Result<()> {
    run_command(cargo(workspace).args(["test", "--workspace", "--", "model"]))
}

/// The tests of a feature, in the crates that have some for it: the library's tests, and the
/// integration tests named after the feature (`count`, `count_*`). All other tests are left to the
/// ordinary build: they find nothing else in this one. One call of cargo builds all: calls for
/// single crates would compile the crates below them again.
pub(crate) fn feature(workspace: &Workspace, feature: Feature) -> Result<()> {
    run_command(cargo(workspace).args(feature_arguments(workspace, feature)?))
}

/// Begins the build of these tests beside other steps.
fn build_beside(workspace: &Workspace, feature: Feature) -> Result<Build> {
    let mut command = cargo(workspace);
    command.args(feature_arguments(workspace, feature)?);
    command.arg("--no-run");
    Build::beside(workspace, feature.name(), command)
}

/// The arguments with which cargo runs these tests.
fn feature_arguments(workspace: &Workspace, feature: Feature) -> Result<Vec<String>> {
    let name = feature.name();
    let first = ["test", "--no-fail-fast", "--lib", "--features", name];
    let mut arguments = first.map(str::to_owned).to_vec();
    for manifest in workspace.manifests()? {
        let folder = |name: &str| manifest.path.with_file_name(name);
        let tests = tests_named_after(name, &folder("tests"))?;
        let has_tests = !tests.is_empty() || has_tests_of(name, &folder("src"))?;
        if manifest.has_feature(name) && has_tests {
            arguments.extend(["--package".to_owned(), manifest.name().to_owned()]);
            arguments.extend(
                tests
                    .into_iter()
                    .flat_map(|test| ["--test".to_owned(), test]),
            );
        }
    }
    Ok(arguments)
}

/// Whether a file below `sources` declares tests for a feature, in the form that the head of
/// `fourscore-sync` prescribes.
fn has_tests_of(feature: &str, sources: &Path) -> Result<bool> {
    let attribute = format!("#[cfg(all(test, feature = \"{feature}\"))]");
    for path in files_below(sources, "rs")? {
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        if text.lines().any(|line| line.trim_start() == attribute) {
            return Ok(true);
        }
    }
    Ok(false)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_has_tests_of_a_feature_if_a_file_declares_them() {
        let folder = tempfile::tempdir().unwrap();
        let write = |text: &str| fs::write(folder.path().join("lib.rs"), text).unwrap();
        let has = |feature: &str| has_tests_of(feature, folder.path()).unwrap();
        write("#[cfg(all(test, feature = \"count\"))]\nmod count_tests;\n");
        assert!(has("count") && !has("shuttle"));
        write("//! Tests are marked `#[cfg(all(test, feature = \"count\"))]`.\n");
        assert!(!has("count"));
    }

    #[test]
    fn crates_without_tests_of_a_feature_are_not_built_with_it() {
        let workspace = Workspace::locate().unwrap();
        let arguments = feature_arguments(&workspace, Feature::Count).unwrap();
        let has = |name: &str| arguments.iter().any(|argument| argument == name);
        assert!(has("fourscore-cache") && has("fourscore") && has("count_apart"));
        assert!(!has("fourscore-mballoc") && !has("fourscore-cli"));
    }
}

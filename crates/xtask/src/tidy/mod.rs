//! **Purpose.** The rules of style that a program can check. Each has a name, and each finding is
//! one line `file:line: name: what was found (what to do)`.
//!
//! | module | rules |
//! |---|---|
//! | [`finding`] | none: what rules report |
//! | [`source`] | none: splits Rust text into code, comments and functions |
//! | [`doors`] | `sync-door`, `forbid-unsafe`, `host-door` |
//! | [`size`] | `file-length`, `function-length`, `line-width` |
//! | [`words`] | `module-purpose`, `no-todo`, `todo-docs`, `no-phase-names`, `machine-paths` |
//! | [`api`] | `test-has-assert`, `bare-bool` |
//! | [`params`] | `tuple-parameter` |
//! | [`dialect`] | `words` |
//! | [`manifests`] | `downward-deps`, `licence-fields` |
//! | [`tokens`] | none: splits code into tokens, without what only tests compile |
//! | [`modules`] | none: the modules of a crate, and what paths refer to |
//! | [`circles`] | `file-circles` |

mod api;
mod circles;
mod dialect;
mod doors;
mod finding;
mod manifests;
mod modules;
mod params;
mod size;
mod source;
mod tokens;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::workspace::{Workspace, files_below};
use finding::Finding;
use source::Source;

/// Rules that look at one Rust file.
const SOURCE_RULES: &[fn(&Source, &mut Vec<Finding>)] = &[
    doors::sync_door,
    doors::forbid_unsafe,
    doors::host_door,
    size::file_length,
    size::function_length,
    size::line_width,
    words::module_purpose,
    words::no_todo,
    words::no_phase_names,
    words::machine_paths,
    api::test_has_assert,
    api::bare_bool,
    params::tuple_parameter,
    dialect::words,
];

/// Folders with Rust sources and documents, below the root.
const SOURCE_FOLDERS: &[&str] = &["crates", "fuzz"];

/// The command line of `tidy`.
#[derive(Args)]
pub(crate) struct Options {
    /// Prints which files of a crate (a folder below crates/) depend on each other in circles,
    /// instead of checking the rules.
    #[arg(long, value_name = "CRATE")]
    circles: Option<String>,
}

/// Checks the whole tree, or prints what the options ask for.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    match &options.circles {
        Some(crate_folder) => print_circles(workspace, crate_folder),
        None => check(workspace),
    }
}

fn print_circles(workspace: &Workspace, crate_folder: &str) -> Result<()> {
    let folder = format!("crates/{crate_folder}");
    let sources = sources_below(workspace, &folder)?;
    if sources.is_empty() {
        bail!("{folder} has no Rust files (name a folder below crates/)");
    }
    println!("{}", circles::Report::new(&sources, crate_folder));
    Ok(())
}

/// The Rust files below a folder of the tree.
fn sources_below(workspace: &Workspace, folder: &str) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for path in files_below(&workspace.path(folder), "rs")? {
        let name = below_root(workspace, &path);
        let text = fs::read_to_string(&path).with_context(|| name.clone())?;
        sources.push(Source::new(&name, &text));
    }
    Ok(sources)
}

/// Checks the whole tree; an error if anything was found.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let mut findings = Vec::new();
    let mut files = 0;
    for folder in SOURCE_FOLDERS {
        let sources = sources_below(workspace, folder)?;
        files += sources.len();
        for source in &sources {
            for rule in SOURCE_RULES {
                let mut found = Vec::new();
                rule(source, &mut found);
                let with_name = |finding| (source.path.clone(), finding);
                findings.extend(found.into_iter().map(with_name));
            }
        }
        circles::file_circles(&sources, &mut findings);
    }
    for path in documents(workspace)? {
        let name = below_root(workspace, &path);
        let text = fs::read_to_string(&path).with_context(|| name.clone())?;
        files += 1;
        let mut found = Vec::new();
        words::document(&name, &text, &mut found);
        dialect::document(&name, &text, &mut found);
        findings.extend(found.into_iter().map(|finding| (name.clone(), finding)));
    }
    for manifest in workspace.manifests()? {
        let name = below_root(workspace, &manifest.path);
        files += 1;
        let mut found = Vec::new();
        manifests::downward_deps(&manifest, &mut found);
        manifests::sync_door(&manifest, &mut found);
        manifests::licence_fields(&manifest, &mut found);
        findings.extend(found.into_iter().map(|finding| (name.clone(), finding)));
    }
    findings.sort_by(|a, b| (&a.0, a.1.line, a.1.rule).cmp(&(&b.0, b.1.line, b.1.rule)));
    for (name, finding) in &findings {
        println!(
            "{name}:{}: {}: {}",
            finding.line, finding.rule, finding.what
        );
    }
    println!("tidy: {files} files, {} findings", findings.len());
    if findings.is_empty() {
        Ok(())
    } else {
        bail!("tidy found {} violations of its rules", findings.len())
    }
}

fn below_root(workspace: &Workspace, path: &Path) -> String {
    path.strip_prefix(&workspace.root)
        .unwrap_or(path)
        .to_string_lossy()
        .into_owned()
}

/// The Markdown files of the root and of docs/.
fn documents(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut paths = files_below(&workspace.path("docs"), "md")?;
    for entry in fs::read_dir(&workspace.root)? {
        let path = entry?.path();
        if path.is_file() && path.extension().is_some_and(|extension| extension == "md") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

//! **Purpose.** The licences of all crates that the command contains: their names, and each text
//! once. Licences such as MIT require that a copy comes with the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::run::cargo;
use crate::workspace::Workspace;

/// The text of the file that names them.
pub(super) fn notices(workspace: &Workspace) -> Result<Vec<u8>> {
    let linked = linked(workspace)?;
    let mut metadata = cargo(workspace);
    metadata.args(["metadata", "--format-version", "1", "--locked"]);
    let metadata: Value = serde_json::from_str(&printed(&mut metadata)?)?;
    let mut list = String::from("The command contains these crates:\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let packages = metadata["packages"].as_array().context("no packages")?;
    for package in packages {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let name = format!("{} v{}", text("name"), text("version"));
        // Those without a source are ours.
        if !linked.contains(&name) || package["source"].is_null() {
            continue;
        }
        let licence = text("license");
        ensure!(!licence.is_empty(), "{name} has no licence in its manifest");
        list.push_str(&format!("{name}: {licence}\n"));
        let folder = Path::new(text("manifest_path")).with_file_name("");
        for text in texts_in(&folder)? {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    let mut notices = list;
    for (text, names) in texts {
        notices.push_str(&format!(
            "\n==== {}\n\n{}\n",
            names.join(", "),
            text.trim_end()
        ));
    }
    Ok(notices.into_bytes())
}

/// The crates that are linked into the command, as `NAME vVERSION`.
fn linked(workspace: &Workspace) -> Result<BTreeSet<String>> {
    let mut tree = cargo(workspace);
    tree.args([
        "tree",
        "--locked",
        "--package",
        "fourscore-cli",
        "--edges",
        "normal",
    ]);
    tree.args(["--prefix", "none", "--format", "{p}"]);
    let lines = printed(&mut tree)?;
    let name = |line: &str| {
        let mut words = line.split(' ');
        Some(format!("{} {}", words.next()?, words.next()?))
    };
    Ok(lines.lines().filter_map(name).collect())
}

/// The licences in the folder of a crate.
fn texts_in(folder: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_one = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];
        if entry.file_type()?.is_file() && is_one.iter().any(|one| name.starts_with(one)) {
            texts.push(String::from_utf8_lossy(&fs::read(entry.path())?).into_owned());
        }
    }
    Ok(texts)
}

fn printed(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    Ok(String::from_utf8(output.stdout)?)
}

//! **Purpose.** Locates the sources, and reads their manifests.
//!
//! Manifests are read line by line instead of through a TOML parser: xtask is the first thing a
//! newcomer compiles and should be there in seconds. What is understood is what this workspace
//! uses: section headers and `key = value` or `key.workspace = true` lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The source tree.
pub(crate) struct Workspace {
    /// The directory that holds the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Environment variables of all programs that are run for it.
    environment: Vec<(&'static str, PathBuf)>,
}

impl Workspace {
    /// The tree that this program was compiled from.
    pub(crate) fn locate() -> Result<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = here
            .ancestors()
            .nth(2)
            .context("xtask does not lie in crates/xtask")?;
        Ok(Self::at(root))
    }

    /// The tree in this folder.
    pub(crate) fn at(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
            environment: Vec::new(),
        }
    }

    /// The same tree, with more environment variables for the programs that are run for it.
    pub(crate) fn with(&self, environment: &[(&'static str, &Path)]) -> Self {
        let more = environment.iter();
        let more = more.map(|&(name, value)| (name, value.to_path_buf()));
        Self {
            root: self.root.clone(),
            environment: self.environment.iter().cloned().chain(more).collect(),
        }
    }

    /// A command that runs a program for this tree.
    pub(crate) fn program(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// A path below the root.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    /// Where builds and results go; honours `CARGO_TARGET_DIR`.
    pub(crate) fn target(&self) -> PathBuf {
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.path("target"), PathBuf::from)
    }

    /// The manifests of all crates, sorted by folder name.
    pub(crate) fn manifests(&self) -> Result<Vec<Manifest>> {
        let mut manifests = Vec::new();
        for entry in fs::read_dir(self.path("crates")).context("crates/ cannot be listed")? {
            let path = entry?.path().join("Cargo.toml");
            if path.is_file() {
                let text = fs::read_to_string(&path)
                    .with_context(|| format!("{} cannot be read", path.display()))?;
                manifests.push(Manifest::parse(path, text));
            }
        }
        manifests.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(manifests)
    }
}

/// One crate's `Cargo.toml`.
pub(crate) struct Manifest {
    /// Where it lies.
    pub(crate) path: PathBuf,
    entries: Vec<Entry>,
}

/// A `key = value` line.
pub(crate) struct Entry {
    /// The section it stands in, without brackets.
    pub(crate) section: String,
    /// The key, without `.workspace` and quotes.
    pub(crate) key: String,
    /// The rest of the line, with `.workspace` in front where the key had it.
    pub(crate) value: String,
    /// Line number, from 1.
    pub(crate) line: usize,
}

impl Manifest {
    /// Reads the lines of a manifest.
    pub(crate) fn parse(path: PathBuf, text: impl AsRef<str>) -> Self {
        let mut section = String::new();
        let mut entries = Vec::new();
        for (index, line) in text.as_ref().lines().enumerate() {
            let line_text = line.trim();
            if let Some(header) = line_text.strip_prefix('[') {
                section = header.trim_matches(|c| c == '[' || c == ']').to_owned();
            } else if let Some((left, right)) = line_text.split_once('=')
                && !line_text.starts_with('#')
            {
                let (key, suffix) = left.trim().split_once('.').unwrap_or((left.trim(), ""));
                entries.push(Entry {
                    section: section.clone(),
                    key: key.trim_matches('"').to_owned(),
                    value: format!("{suffix} {}", right.trim()).trim().to_owned(),
                    line: index + 1,
                });
            }
        }
        Self { path, entries }
    }

    /// The package's name, or an empty string.
    pub(crate) fn name(&self) -> &str {
        self.find("package", "name")
            .map_or("", |entry| entry.value.trim_matches('"'))
    }

    /// The entry of a section.
    pub(crate) fn find(&self, section: &str, key: &str) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| entry.section == section && entry.key == key)
    }

    /// Whether the crate offers a feature.
    pub(crate) fn has_feature(&self, feature: &str) -> bool {
        self.find("features", feature).is_some()
    }

    /// Entries of `[dependencies]` and its target-specific forms.
    pub(crate) fn dependencies(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| {
            entry.section == "dependencies" || entry.section.ends_with(".dependencies")
        })
    }

    /// Entries of all dependency sections, those for tests and build scripts included.
    pub(crate) fn all_dependencies(&self) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(|entry| entry.section.ends_with("dependencies"))
    }
}

/// All files below a folder with an extension, sorted; build results are left out. A folder that
/// does not exist has none.
pub(crate) fn files_below(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&folder).with_context(|| format!("{}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_lines_are_understood() {
        let manifest = Manifest::parse(
            PathBuf::from("Cargo.toml"),
            "[package]\nname = \"a\"\n[dependencies]\nb.workspace = true\n\
             [target.'cfg(unix)'.dependencies]\nc = \"1\"\n[dev-dependencies]\nd = { path = \"x\" }\n\
             [features]\nshuttle = []\n# count = []\n",
        );
        assert_eq!(manifest.name(), "a");
        let keys = |entries: Vec<&Entry>| -> Vec<String> {
            entries.iter().map(|entry| entry.key.clone()).collect()
        };
        assert_eq!(keys(manifest.dependencies().collect()), ["b", "c"]);
        assert_eq!(keys(manifest.all_dependencies().collect()), ["b", "c", "d"]);
        assert!(manifest.has_feature("shuttle"));
        assert!(!manifest.has_feature("count"));
        assert_eq!(manifest.find("dependencies", "b").map(|e| e.line), Some(4));
    }

    #[test]
    fn only_files_with_the_extension_outside_of_target_are_found() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.rs", "b/c.rs", "b/d.md", "target/e.rs"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let found = files_below(folder.path(), "rs").unwrap();
        assert_eq!(
            found,
            [folder.path().join("a.rs"), folder.path().join("b/c.rs")]
        );
        assert!(
            files_below(&folder.path().join("nothing"), "rs")
                .unwrap()
                .is_empty()
        );
    }
}

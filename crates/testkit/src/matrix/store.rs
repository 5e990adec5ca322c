//! **Purpose.** Populated images that the programs of one run of the tests share, so that each
//! configuration is populated once and not by every program that looks at it.
//!
//! **Model.** `cargo xtask test` gives its run a label (`FOURSCORE_RUN`), and the store is a folder
//! with that label in its name, which the run removes at its end. Without a label nothing is kept.
//! An entry is a folder with the name of the configuration; it holds the images and the tree. It is
//! made under another name and renamed, so an entry that is found is complete. Two programs may
//! populate the same configuration at the same time: the entry that is there first stays. Each test
//! gets copies, so it may change them.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Populated;
use crate::image::Image;
use crate::scratch;

const IMAGE: &str = "image";
const STAGE: &str = "stage";
const TREE: &str = "tree.json";

/// The folder of the entries.
pub(super) struct Store {
    folder: PathBuf,
}

impl Store {
    /// The store of this run, if the tests are those of a run.
    pub(super) fn of_run() -> Option<Self> {
        let folder = scratch::base().join(scratch::named_after_run("images")?);
        Some(Self { folder })
    }

    /// Copies of an entry, if there is one.
    pub(super) fn find(&self, name: &str) -> Result<Option<Populated>> {
        let entry = self.folder.join(name);
        if !entry.exists() {
            return Ok(None);
        }
        let stage = entry.join(STAGE);
        Ok(Some(Populated {
            image: Image::copy_of(&entry.join(IMAGE))?,
            tree: serde_json::from_reader(BufReader::new(File::open(entry.join(TREE))?))?,
            stage: stage.exists().then(|| Image::copy_of(&stage)).transpose()?,
        }))
    }

    /// Keeps copies as an entry, unless there is one.
    pub(super) fn keep(&self, name: &str, populated: &Populated) -> Result<()> {
        fs::create_dir_all(&self.folder)?;
        let draft = tempfile::Builder::new().tempdir_in(&self.folder)?;
        populated.image.copy_to(&draft.path().join(IMAGE))?;
        if let Some(stage) = &populated.stage {
            stage.copy_to(&draft.path().join(STAGE))?;
        }
        let tree = serde_json::to_string(&populated.tree)?;
        fs::write(draft.path().join(TREE), tree)?;
        self.publish(name, draft.path())
    }

    fn publish(&self, name: &str, draft: &Path) -> Result<()> {
        let entry = self.folder.join(name);
        match fs::rename(draft, &entry) {
            // A folder that is not empty is not replaced: another program was first.
            Err(_) if entry.exists() => Ok(()),
            renamed => renamed.with_context(|| format!("{} cannot be made", entry.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::MiB;
    use crate::populate::Tree;

    fn populated(content: &str, stage: Option<Image>) -> Populated {
        let image = Image::blank(MiB(1)).unwrap();
        fs::write(image.path(), content).unwrap();
        let tree = Tree {
            names: 7,
            large_directory: "large".into(),
            large_directory_entries: 5,
            largest_file_bytes: 1 << 40,
        };
        Populated { image, tree, stage }
    }

    #[test]
    fn an_entry_is_found_whole_and_the_first_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store {
            folder: folder.path().join("images"),
        };
        assert!(store.find("ext4-1k").unwrap().is_none());
        let stage = Image::blank(MiB(2)).unwrap();
        store
            .keep("ext4-1k", &populated("first", Some(stage)))
            .unwrap();
        store.keep("ext4-1k", &populated("second", None)).unwrap();
        let found = store.find("ext4-1k").unwrap().unwrap();
        assert_eq!(fs::read(found.image.path()).unwrap(), b"first");
        assert_eq!(
            found.stage.unwrap().path().metadata().unwrap().len(),
            2 << 20
        );
        assert_eq!(
            (found.tree.names, found.tree.large_directory_entries),
            (7, 5)
        );
        assert!(store.find("ext4-4k").unwrap().is_none());
        let entries = fs::read_dir(&store.folder).unwrap().count();
        assert_eq!(entries, 1, "a draft was left behind");
    }

    #[test]
    fn a_test_that_changes_its_copy_does_not_change_the_entry() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store {
            folder: folder.path().to_path_buf(),
        };
        store.keep("quota", &populated("content", None)).unwrap();
        let mine = store.find("quota").unwrap().unwrap();
        fs::write(mine.image.path(), "changed").unwrap();
        let again = store.find("quota").unwrap().unwrap();
        assert_eq!(fs::read(again.image.path()).unwrap(), b"content");
    }
}

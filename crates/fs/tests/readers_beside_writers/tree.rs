//! Renames of directories whose numbers are reused meanwhile.

use anyhow::{Context as _, Result, ensure};
use fourscore::{Error, Fs, InodeNr, MountOptions, Replace};
use fourscore_sync::Arc;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::disk::{Disk, OWNER, ROOT, quiet, table_block};

type Name<'n> = (InodeNr, &'n [u8]);

/// Inodes that are read from the table at once, and more.
const FAR_INODES: u32 = 200;

/// A file system with `a/x`, a file, and `b/y`, an empty directory whose inode lies far from the
/// others in the inode table. There is no free number below theirs, and nothing is in a cache.
struct Tree {
    disk: Disk,
    fs: Arc<Fs>,
    a: InodeNr,
    b: InodeNr,
    x: InodeNr,
    y: InodeNr,
}

impl Tree {
    fn new(options: &MountOptions) -> Self {
        let disk = Disk::new();
        let fs = disk.mount(options);
        let a = fs.mkdir(ROOT, b"a", &OWNER).unwrap();
        let b = fs.mkdir(ROOT, b"b", &OWNER).unwrap();
        let x = fs.create(a, b"x", &OWNER).unwrap();
        for nth in 0..FAR_INODES {
            fs.create(ROOT, format!("between {nth}").as_bytes(), &OWNER)
                .unwrap();
        }
        let y = fs.mkdir(b, b"y", &OWNER).unwrap();
        assert!(y.0 > x.0 + FAR_INODES);
        fs.unmount().unwrap();
        let fs = disk.mount(options);
        Self {
            disk,
            fs,
            a,
            b,
            x,
            y,
        }
    }

    /// Has `rename` look up the inode of `b/y` while `a/x` becomes a directory with the same
    /// number, and `b` a directory in it. The rename must be refused.
    fn rename_while_x_becomes_a_parent(
        self,
        rename: impl FnOnce(&Fs, Name<'_>, Name<'_>) -> fourscore::Result<()> + Send,
    ) -> Result<()> {
        let Self {
            disk,
            fs,
            a,
            b,
            x,
            y,
        } = self;
        let renamed = disk.stopped_at(
            table_block(&fs, y),
            || rename(&fs, (a, b"x"), (b, b"y")),
            || {
                fs.unlink(a, b"x").unwrap();
                assert_eq!(fs.mkdir(a, b"x", &OWNER).unwrap(), x, "another number");
                fs.rename((ROOT, b"b"), (x, b"b"), Replace::No).unwrap();
            },
        );
        // The tree is checked first: the result of the rename does not matter if the tree is
        // broken.
        let found = fs.lookup(a, b"x").context("a/x is in no directory")?;
        ensure!(found == x && fs.lookup(x, b"b")? == b && fs.lookup(b, b"y")? == y);
        ensure!(
            matches!(renamed, Err(Error::InvalidArgument(_))),
            "{renamed:?}"
        );
        fs.unmount().unwrap();
        Ok(())
    }
}

fn rename(options: &MountOptions) -> Result<()> {
    Tree::new(options)
        .rename_while_x_becomes_a_parent(|fs, from, to| fs.rename(from, to, Replace::Yes))
}

fn exchange(options: &MountOptions) -> Result<()> {
    Tree::new(options).rename_while_x_becomes_a_parent(Fs::exchange)
}

#[test]
fn no_directory_is_renamed_into_itself_while_numbers_are_used_again() {
    require!(Need::Program("mke2fs"));
    rename(&quiet()).unwrap();
}

#[test]
fn no_directory_is_exchanged_into_itself_while_numbers_are_used_again() {
    require!(Need::Program("mke2fs"));
    exchange(&quiet()).unwrap();
}

/// The number of a directory that was removed may be a file's by now.
#[test]
fn a_file_is_no_directory_for_a_new_name_of_itself() {
    require!(Need::Program("mke2fs"));
    let disk = Disk::new();
    let fs = disk.mount(&quiet());
    let [low, high] = [&b"low"[..], b"high"].map(|name| fs.create(ROOT, name, &OWNER).unwrap());
    for (inode, dir) in [(low, low), (low, high), (high, low)] {
        let linked = fs.link(inode, dir, b"name");
        assert!(matches!(linked, Err(Error::NotADirectory)), "{linked:?}");
        let removed = [fs.unlink(dir, b"name"), fs.rmdir(dir, b"name")];
        let refused = |removed: &_| matches!(removed, Err(Error::NotADirectory));
        assert!(removed.iter().all(refused), "{removed:?}");
    }
    fs.unmount().unwrap();
}

#[cfg(feature = "sabotage")]
put_back! {
    renaming_by_number_is_found: RenameByNumber, quiet(), rename;
    exchanging_by_number_is_found: RenameByNumber, quiet(), exchange;
}

//! **Purpose.** The device that other systems than Linux have opens a whole image: what mke2fs put
//! there is read, checked and changed through it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore::{FileType, Fs, MountOptions, OpenOptions};
use fourscore_block::portable::open_path;
use fourscore_block::{BlockDevice, DeviceOptions};
use fourscore_sync::Arc;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::e2fsck;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::common::{report_on, texts};

/// What a path refers to.
#[derive(Debug, PartialEq, Eq)]
enum Object {
    Directory,
    File(Vec<u8>),
    Link(Vec<u8>),
}

/// Everything below a directory, by its path in the image.
type Tree = BTreeMap<Vec<u8>, Object>;

/// Makes a tree of the host: a directory with several blocks, long and sparse files, links.
fn make_tree(root: &Path) -> Result<()> {
    let many = root.join("many");
    fs::create_dir_all(root.join("a/b/c"))?;
    fs::create_dir(&many)?;
    for number in 0..400_u32 {
        let name = format!("a file whose name takes some space, {number}");
        fs::write(many.join(name), number.to_le_bytes())?;
    }
    let pattern: Vec<u8> = (0..=250).cycle().take(3_000_001).collect();
    fs::write(root.join("a/b/long"), pattern)?;
    fs::write(root.join("a/b/c/empty"), "")?;
    let sparse = fs::File::create(root.join("a/sparse"))?;
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"far away", 5_000_000)?;
    std::os::unix::fs::symlink("b/long", root.join("a/short link"))?;
    std::os::unix::fs::symlink("x".repeat(200), root.join("a/long link"))?;
    Ok(())
}

fn tree_of_host(folder: &Path, path: &[u8], tree: &mut Tree) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = [path, b"/", entry.file_name().as_bytes()].concat();
        let kind = entry.file_type()?;
        let object = if kind.is_dir() {
            tree_of_host(&entry.path(), &path, tree)?;
            Object::Directory
        } else if kind.is_symlink() {
            Object::Link(fs::read_link(entry.path())?.as_os_str().as_bytes().to_vec())
        } else {
            Object::File(fs::read(entry.path())?)
        };
        tree.insert(path, object);
    }
    Ok(())
}

fn tree_of_image(image: &Arc<Fs>) -> Result<Tree> {
    let paths = image.paths();
    let mut tree = Tree::new();
    for entry in paths.walk("/") {
        let entry = entry?;
        if entry.path == b"/" || entry.name() == b"lost+found" {
            continue;
        }
        let object = match entry.file_type {
            FileType::Directory => Object::Directory,
            FileType::Symlink => Object::Link(paths.read_link(&entry.path)?),
            _ => Object::File(paths.read(&entry.path)?),
        };
        tree.insert(entry.path, object);
    }
    Ok(tree)
}

fn opened(image: &Image, options: DeviceOptions) -> Result<Arc<dyn BlockDevice>> {
    Ok(Arc::new(open_path(image.path(), options)?))
}

fn read_back(image: &Image) -> Result<Tree> {
    let device = opened(image, DeviceOptions::default())?;
    let found = report_on(Arc::clone(&device), 2)?;
    ensure!(found.findings().is_empty(), "{:#?}", texts(&found));
    tree_of_image(&Fs::open(device, &OpenOptions::new())?)
}

#[test]
fn a_whole_image_is_read_checked_and_changed() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    use_whole_images().unwrap();
}

fn use_whole_images() -> Result<()> {
    let source = tempfile::tempdir()?;
    make_tree(source.path())?;
    let mut expected = Tree::new();
    tree_of_host(source.path(), b"", &mut expected)?;
    ensure!(expected.len() == 409, "{}", expected.len());
    for block_size_bytes in [1024, 4096] {
        let image = Image::builder(MiB(24))
            .kind("ext4")
            .block_size_bytes(block_size_bytes)
            .source(source.path())
            .make()?;
        ensure!(read_back(&image)? == expected, "{block_size_bytes}");

        let device = opened(&image, DeviceOptions::read_write())?;
        let mounted = Fs::mount(device, &MountOptions::new())?;
        let paths = mounted.paths();
        paths.write("/a/new", vec![7; 100_000])?;
        paths.rename("/a/b/c", "/a/moved")?;
        paths.remove_file("/a/b/long")?;
        mounted.sync()?;
        mounted.unmount().context("unmounted")?;

        let theirs = e2fsck(image.path())?;
        ensure!(theirs.is_clean(), "{theirs:?}");
        let after = read_back(&image)?;
        let new = after.get(&b"/a/new"[..]);
        ensure!(new == Some(&Object::File(vec![7; 100_000])), "new");
        ensure!(after.contains_key(&b"/a/moved/empty"[..]), "moved");
        ensure!(!after.contains_key(&b"/a/b/long"[..]), "removed");
        ensure!(after.len() == expected.len(), "{}", after.len());
    }
    Ok(())
}

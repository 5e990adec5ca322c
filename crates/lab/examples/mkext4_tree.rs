//! Builds an image of a directory with the crate mkext4, for the comparison in
//! `cargo xtask bench build`: names in sorted order, with attributes and hard links, without
//! extended attributes.
//!
//! ```text
//! mkext4_tree DIRECTORY IMAGE BYTES INODES
//! ```
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::error::Error;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use mkext4::sink::FileSink;
use mkext4::{FsBuilder, InodeCount, InodeHandle, Meta, Options, ROOT, SpecialKind};

type BoxedResult<T> = Result<T, Box<dyn Error>>;

/// The part of the tree that has been added to the builder.
struct Scan {
    builder: FsBuilder,
    /// Files with more than one name, by device and inode number.
    hard_links: HashMap<(u64, u64), InodeHandle>,
    /// Files whose data is to be copied.
    data: Vec<(InodeHandle, PathBuf)>,
}

impl Scan {
    /// Adds everything in the directory `path` to the directory `parent` of the image.
    fn directory(&mut self, parent: InodeHandle, path: &Path) -> BoxedResult<()> {
        let mut entries = fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            let name = name
                .to_str()
                .ok_or(format!("{}: the name is not UTF-8", path.display()))?;
            self.object(parent, name, &entry.path())?;
        }
        Ok(())
    }

    /// Adds the object at `path` to the directory `parent` of the image.
    fn object(&mut self, parent: InodeHandle, name: &str, path: &Path) -> BoxedResult<()> {
        let found = fs::symlink_metadata(path)?;
        let (kind, meta) = (found.file_type(), meta(&found)?);
        let builder = &mut self.builder;
        if kind.is_dir() {
            let inside = builder.mkdir(parent, name, meta)?;
            return self.directory(inside, path);
        }
        if kind.is_symlink() {
            let target = fs::read_link(path)?;
            let target = target
                .to_str()
                .ok_or(format!("{}: the target is not UTF-8", path.display()))?;
            builder.symlink(parent, name, target, meta)?;
        } else if kind.is_file() {
            let key = (found.dev(), found.ino());
            if let Some(&other) = self.hard_links.get(&key) {
                builder.hardlink(parent, name, other)?;
                return Ok(());
            }
            let file = builder.file(parent, name, meta, found.len())?;
            if found.nlink() > 1 {
                self.hard_links.insert(key, file);
            }
            if found.len() > 0 {
                self.data.push((file, path.to_owned()));
            }
        } else {
            let (major, minor) = (
                rustix::fs::major(found.rdev()),
                rustix::fs::minor(found.rdev()),
            );
            let special = if kind.is_char_device() {
                SpecialKind::Char { major, minor }
            } else if kind.is_block_device() {
                SpecialKind::Block { major, minor }
            } else if kind.is_fifo() {
                SpecialKind::Fifo
            } else {
                SpecialKind::Socket
            };
            builder.mknod(parent, name, meta, special)?;
        }
        Ok(())
    }
}

fn meta(found: &Metadata) -> BoxedResult<Meta> {
    let permissions = u16::try_from(found.mode() & 0o7777)?;
    let time =
        |seconds, nanoseconds: i64| Ok::<_, Box<dyn Error>>((seconds, u32::try_from(nanoseconds)?));
    let mtime = time(found.mtime(), found.mtime_nsec())?;
    let mut meta = Meta::new(permissions, found.uid(), found.gid(), mtime);
    meta.atime = Some(time(found.atime(), found.atime_nsec())?);
    meta.ctime = Some(time(found.ctime(), found.ctime_nsec())?);
    Ok(meta)
}

fn main() -> BoxedResult<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, target, bytes, inodes] = arguments.as_slice() else {
        return Err("usage: mkext4_tree DIRECTORY IMAGE BYTES INODES".into());
    };
    let mut options = Options::new(bytes.parse()?, [7; 16], 1_700_000_000);
    options.inodes = InodeCount::Exact(inodes.parse()?);
    let mut scan = Scan {
        builder: FsBuilder::new(options)?,
        hard_links: HashMap::new(),
        data: Vec::new(),
    };
    scan.directory(ROOT, source.as_ref())?;
    let layout = scan.builder.seal()?;
    let mut sink = FileSink::create(target.as_ref(), layout.image_len())?;
    let mut writer = layout.writer(&mut sink)?;
    for (file, path) in &scan.data {
        writer.fill(*file, &mut File::open(path)?)?;
    }
    writer.finish()?;
    Ok(())
}

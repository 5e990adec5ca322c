//! Makes an image of a directory with the crate mkext4, so that `cargo xtask bench build` can
//! compare: names in sorted order, attributes and hard links kept, extended attributes left out.
//!
//! `mkext4_tree DIRECTORY IMAGE BYTES INODES`
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::error::Error;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use mkext4::sink::FileSink;
use mkext4::{FsBuilder, InodeCount, InodeHandle, Meta, Options, ROOT, SpecialKind};

type Done<T> = Result<T, Box<dyn Error>>;

/// The tree as far as it is told to the builder.
struct Telling {
    builder: FsBuilder,
    /// Files with more than one name, by device and inode.
    shared: HashMap<(u64, u64), InodeHandle>,
    contents: Vec<(InodeHandle, PathBuf)>,
}

impl Telling {
    fn directory(&mut self, place: InodeHandle, path: &Path) -> Done<()> {
        let mut entries = fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            let name = name.to_str().ok_or("a name that is not UTF-8")?;
            self.object(place, name, &entry.path())?;
        }
        Ok(())
    }

    fn object(&mut self, place: InodeHandle, name: &str, path: &Path) -> Done<()> {
        let found = fs::symlink_metadata(path)?;
        let (kind, meta) = (found.file_type(), meta(&found)?);
        let builder = &mut self.builder;
        if kind.is_dir() {
            let inside = builder.mkdir(place, name, meta)?;
            return self.directory(inside, path);
        }
        if kind.is_symlink() {
            let target = fs::read_link(path)?;
            let target = target.to_str().ok_or("a target that is not UTF-8")?;
            builder.symlink(place, name, target, meta)?;
        } else if kind.is_file() {
            let key = (found.dev(), found.ino());
            if let Some(&other) = self.shared.get(&key) {
                builder.hardlink(place, name, other)?;
                return Ok(());
            }
            let file = builder.file(place, name, meta, found.len())?;
            if found.nlink() > 1 {
                self.shared.insert(key, file);
            }
            if found.len() > 0 {
                self.contents.push((file, path.to_owned()));
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
            builder.mknod(place, name, meta, special)?;
        }
        Ok(())
    }
}

fn meta(found: &Metadata) -> Done<Meta> {
    let permissions = u16::try_from(found.mode() & 0o7777)?;
    let time =
        |seconds, nanoseconds: i64| Ok::<_, Box<dyn Error>>((seconds, u32::try_from(nanoseconds)?));
    let mtime = time(found.mtime(), found.mtime_nsec())?;
    let mut meta = Meta::new(permissions, found.uid(), found.gid(), mtime);
    meta.atime = Some(time(found.atime(), found.atime_nsec())?);
    meta.ctime = Some(time(found.ctime(), found.ctime_nsec())?);
    Ok(meta)
}

fn main() -> Done<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, target, bytes, inodes] = arguments.as_slice() else {
        return Err("mkext4_tree DIRECTORY IMAGE BYTES INODES".into());
    };
    let mut options = Options::new(bytes.parse()?, [7; 16], 1_700_000_000);
    options.inodes = InodeCount::Exact(inodes.parse()?);
    let mut telling = Telling {
        builder: FsBuilder::new(options)?,
        shared: HashMap::new(),
        contents: Vec::new(),
    };
    telling.directory(ROOT, source.as_ref())?;
    let layout = telling.builder.seal()?;
    let mut sink = FileSink::create(target.as_ref(), layout.image_len())?;
    let mut writer = layout.writer(&mut sink)?;
    for (file, path) in &telling.contents {
        writer.fill(*file, &mut File::open(path)?)?;
    }
    writer.finish()?;
    Ok(())
}

//! Error cases of copies, of open files, of flags, and of calls on the file system as a whole.

use std::fs::File;
use std::io;
use std::path::Path;

use fourscore::block::RamDevice;
use fourscore::{Fs, MountOptions, OpenOptions, Trim};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_sync::Arc;

pub(crate) mod anywhere;

use super::{Case, END_BYTES, OWNER, ROOT, at, open_write, set_flags};

pub(crate) const COPIES: [Case; 6] = [
    (
        "copy_file_range",
        "a directory",
        |fs| {
            let file = at(fs, "file");
            fs.copy_file_range(ROOT, 0, file, 0, 1).map(drop)
        },
        Some(|root| copy(root, 0, &root.join("file"), 0, 1)),
    ),
    (
        "copy_file_range",
        "no file",
        |fs| {
            let (fifo, file) = (at(fs, "fifo"), at(fs, "file"));
            fs.copy_file_range(fifo, 0, file, 0, 1).map(drop)
        },
        None,
    ),
    (
        "copy_file_range",
        "the ranges overlap",
        |fs| {
            let file = at(fs, "frozen");
            let other = fs.create(ROOT, b"copied", &OWNER)?;
            fs.copy_file_range(file, 0, other, 0, 7)?;
            let copied = fs.copy_file_range(other, 0, other, 6, 7);
            fs.unlink(ROOT, b"copied")?;
            copied.map(drop)
        },
        Some(|root| {
            std::fs::write(root.join("copied"), "content")?;
            let copied = copy(&root.join("copied"), 0, &root.join("copied"), 6, 7);
            std::fs::remove_file(root.join("copied"))?;
            copied
        }),
    ),
    (
        "copy_file_range",
        "a range without an end",
        |fs| {
            let (from, to) = (at(fs, "frozen"), at(fs, "file"));
            fs.copy_file_range(from, 1, to, 0, u64::MAX).map(drop)
        },
        Some(|root| {
            let (from, to) = (root.join("frozen"), root.join("file"));
            copy(&from, 1, &to, 0, usize::MAX)
        }),
    ),
    (
        "copy_file_range",
        "past the largest file",
        |fs| {
            let (from, to) = (at(fs, "frozen"), at(fs, "file"));
            fs.copy_file_range(from, 0, to, END_BYTES, 1).map(drop)
        },
        Some(|root| {
            let (from, to) = (root.join("frozen"), root.join("file"));
            copy(&from, 0, &to, END_BYTES, 1)
        }),
    ),
    (
        "copy_file_range",
        "to what is immutable",
        |fs| {
            let (from, to) = (at(fs, "grows"), at(fs, "frozen"));
            fs.copy_file_range(from, 0, to, 0, 1).map(drop)
        },
        Some(|root| copy(&root.join("grows"), 0, &root.join("frozen"), 0, 1)),
    ),
];

fn copy(from: &Path, mut at: u64, to: &Path, mut into: u64, len: usize) -> io::Result<()> {
    let (from, to) = (File::open(from)?, open_write(to)?);
    let copied = rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut into), len);
    Ok(copied.map(drop)?)
}

pub(crate) const FILES: [Case; 3] = [
    (
        "File::read_at",
        "not open for reading",
        |fs| {
            let file = fs.paths().create("written")?;
            let read = file.read_at(&mut [0], 0);
            fs.paths().remove_file("written")?;
            read.map(drop)
        },
        Some(|root| {
            let file = File::create(root.join("written"))?;
            let read = rustix::io::pread(&file, &mut [0_u8; 1], 0);
            std::fs::remove_file(root.join("written"))?;
            Ok(read.map(drop)?)
        }),
    ),
    (
        "File::write_at",
        "not open for writing",
        |fs| fs.paths().open("file")?.write_at(b"x", 0).map(drop),
        Some(|root| {
            let file = File::open(root.join("file"))?;
            Ok(rustix::io::pwrite(&file, b"x", 0).map(drop)?)
        }),
    ),
    (
        "Paths::read_to_string",
        "the content is not UTF-8",
        |fs| {
            fs.paths().write("bytes", [0xff])?;
            let read = fs.paths().read_to_string("bytes");
            fs.paths().remove_file("bytes")?;
            read.map(drop)
        },
        None,
    ),
];

pub(crate) const WHOLE: [Case; 6] = [
    (
        "Fs::open",
        "no ext2, ext3 or ext4, or of a kind that is not opened",
        |_| {
            let zeroes = Arc::new(RamDevice::new(1 << 20));
            Fs::open(zeroes, &OpenOptions::new()).map(drop)
        },
        None,
    ),
    (
        "MountOptions::parse",
        "an option that is not known, or does not accept the value",
        |_| MountOptions::new().parse("data=none").map(drop),
        None,
    ),
    (
        "Tunables::set",
        "a value that the tunable does not accept, or no such tunable",
        |fs| Ok(fs.tunables()?.set_by_name("no_tunable", 1)?),
        None,
    ),
    (
        "freeze",
        "it is frozen already",
        |fs| {
            fs.freeze()?;
            let again = fs.freeze();
            fs.thaw()?;
            again
        },
        None,
    ),
    ("thaw", "it is not frozen", Fs::thaw, None),
    (
        "trim",
        "behind the end, less than a block, or longer than a group",
        |fs| {
            let what = Trim {
                start_bytes: 1 << 60,
                ..Trim::default()
            };
            fs.trim(&what).map(drop)
        },
        None,
    ),
];

pub(crate) const FLAGS: [Case; 4] = [
    (
        "set_flags",
        "flags that are not shown",
        |fs| fs.set_flags(at(fs, "file"), InodeFlags::IMAGIC_FL),
        Some(|root| set_flags(root, "file", 0x2000)),
    ),
    (
        "set_flags",
        "flags that the type does not have",
        |fs| fs.set_flags(at(fs, "file"), InodeFlags::TOPDIR_FL),
        Some(|root| set_flags(root, "file", 0x2_0000)),
    ),
    (
        "set_flags",
        "another flag of what stays immutable",
        |fs| {
            fs.set_flags(
                at(fs, "frozen"),
                InodeFlags::IMMUTABLE_FL | InodeFlags::EXTENTS_FL | InodeFlags::NODUMP_FL,
            )
        },
        Some(|root| set_flags(root, "frozen", 0x8_0050)),
    ),
    (
        "set_generation",
        "with checksums",
        |fs| fs.set_generation(at(fs, "file"), fourscore_ondisk::InodeGeneration(1)),
        None,
    ),
];

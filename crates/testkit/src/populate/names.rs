//! **Purpose.** Directories, long and strange names, links, special files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::Writer;

/// Lengths of symlink targets: around the 60 bytes of `i_block`, and the longest one.
const SYMLINK_LENGTHS: &[usize] = &[1, 58, 59, 60, 61, 100, 160, 1000, 4095];

/// The longest target: a block with the final NUL, and at most what the kernel accepts.
fn longest_symlink(block_size_bytes: u64) -> usize {
    usize::try_from(block_size_bytes - 1).map_or(4095, |longest| longest.min(4095))
}

/// Device numbers: the old 8:8 form, the first that need the new one, and the largest of Linux.
const DEVICES: &[(u32, u32)] = &[
    (1, 3),
    (255, 255),
    (256, 0),
    (8, 256),
    (259, 1_048_575),
    (4095, 1_048_575),
];

/// Names that programs often handle wrongly.
const STRANGE_NAMES: &[&[u8]] = &[
    b" ",
    b"-",
    b"...",
    b".hidden",
    b"a",
    b"a-b",
    b"a.b",
    b"new\nline",
    b"tab\tback\\slash",
    b"quote\"'`$",
    b"\x01\x7f",
    b"\xff\xfe not UTF-8 \x80",
    b"latin-\xe4\xf6\xfc",
    "decomposed-u\u{308}".as_bytes(),
    "composed-\u{fc}".as_bytes(),
    "\u{1f980}".as_bytes(),
    b"UPPER",
    b"upper",
];

impl Writer<'_> {
    /// Writes all names.
    pub(super) fn names(&mut self) -> Result<()> {
        self.directories()?;
        self.strange_names()?;
        self.links()?;
        self.special_files()
    }

    fn directories(&mut self) -> Result<()> {
        self.directory("directories")?;
        self.directory("directories/empty")?;
        let mut deep = self.directory("directories/deep")?;
        for level in 0..40 {
            deep.push(format!("level-{level}"));
            fs::create_dir(&deep)?;
        }
        File::create_new(deep.join("bottom"))?;
        self.directory("directories/many-directories")?;
        for nr in 0..200 {
            self.directory(&format!("directories/many-directories/{nr}"))?;
        }
        // Small enough for inline data until the last entry, which is then removed.
        self.directory("directories/few")?;
        for name in ["a", "bb", "ccc"] {
            self.file(&format!("directories/few/{name}"), 3)?;
        }
        self.directory("directories/shrunk")?;
        for nr in 0..150 {
            self.file(&format!("directories/shrunk/entry-{nr:040}"), 0)?;
        }
        for nr in 3..149 {
            fs::remove_file(self.at(&format!("directories/shrunk/entry-{nr:040}")))?;
        }
        self.large_directory()
    }

    /// Names of 47 to 166 bytes; a tenth of them is deleted in the middle.
    fn large_directory(&mut self) -> Result<()> {
        let folder = self.directory("directories/large")?;
        let name = |nr: u32| {
            let padding = usize::try_from(nr % 120).unwrap_or(0) + 40;
            folder.join(format!("{nr:06}-{:x<padding$}", ""))
        };
        for nr in 0..self.limits.entries {
            File::create_new(name(nr)).context("entry of the large directory")?;
        }
        let (first, length) = (self.limits.entries / 3, self.limits.entries / 10);
        for nr in first..first + length {
            fs::remove_file(name(nr))?;
        }
        self.large_directory_entries = self.limits.entries - length;
        Ok(())
    }

    fn strange_names(&self) -> Result<()> {
        let folder = self.directory("names")?;
        let longest_text = [b'n'; 255];
        let longest_binary = [0xfe; 255];
        let longest = [&longest_text[..], &longest_text[..254], &longest_binary[..]];
        for name in STRANGE_NAMES.iter().copied().chain(longest) {
            let path = folder.join(OsStr::from_bytes(name));
            fs::write(&path, name).with_context(|| format!("{}", path.display()))?;
        }
        // `a` is a file, and `a-b` sorts between it and the names below `a.d`.
        self.directory("names/a.d")?;
        self.file("names/a.d/x", 1)?;
        Ok(())
    }

    fn links(&self) -> Result<()> {
        self.directory("links")?;
        self.directory("links/elsewhere")?;
        self.file("links/first", 100)?;
        for name in ["second", "elsewhere/third"] {
            fs::hard_link(self.at("links/first"), self.at("links").join(name))?;
        }
        let symlink = |target: &[u8], name: &str| {
            let target = Path::new(OsStr::from_bytes(target));
            std::os::unix::fs::symlink(target, self.at("links").join(name))
                .with_context(|| format!("symlink {name}"))
        };
        symlink(b"first", "to-first")?;
        symlink(b"nothing/here", "dangling")?;
        symlink(b"to-itself", "to-itself")?;
        symlink(b"/absolute/../x", "absolute")?;
        symlink(b"\xff\n\x01", "binary")?;
        let longest = longest_symlink(self.limits.block_size_bytes);
        for &length in SYMLINK_LENGTHS.iter().filter(|length| **length <= longest) {
            symlink(&vec![b't'; length], &format!("target-of-{length}"))?;
        }
        symlink(&vec![b'u'; longest], "longest-target")?;
        fs::hard_link(self.at("links/to-first"), self.at("links/to-first-again"))?;
        Ok(())
    }

    fn special_files(&self) -> Result<()> {
        let folder = self.directory("special")?;
        let make = |name: String, kind: FileType, device: u64| {
            mknodat(
                CWD,
                folder.join(&name),
                kind,
                Mode::from_raw_mode(0o640),
                device,
            )
            .with_context(|| format!("special file {name}"))
        };
        make("fifo".into(), FileType::Fifo, 0)?;
        make("socket".into(), FileType::Socket, 0)?;
        for &(major, minor) in DEVICES {
            let device = makedev(major, minor);
            make(
                format!("character-{major}-{minor}"),
                FileType::CharacterDevice,
                device,
            )?;
            make(
                format!("block-{major}-{minor}"),
                FileType::BlockDevice,
                device,
            )?;
        }
        Ok(())
    }
}

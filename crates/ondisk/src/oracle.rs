//! **Purpose.** Images made by e2fsprogs, from which the tests of this crate take real blocks.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::NamedTempFile;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::checksum::{ChecksumSeed, InodeGeneration, InodeSeed};
use crate::superblock::{RawSuperblock, Superblock};
use crate::types::{BlockSize, InodeNr, LogicalBlock, PhysBlock};

const UUID: &str = "01020304-0506-0708-090a-0b0c0d0e0f10";
const UUID_BYTES: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// An image in a temporary file.
pub(crate) struct Image {
    file: NamedTempFile,
    block_size: BlockSize,
}

/// A block or part of one as it is in the image.
pub(crate) type Bytes = Vec<u8>;

/// Runs a program and returns its output; `None`, with a message, if it is not installed.
fn run(program: &str, args: &[&str]) -> Option<String> {
    output(program, args).map(|output| String::from_utf8_lossy(&output).into_owned())
}

/// As [`run`], for programs that print bytes which are not text.
fn output(program: &str, args: &[&str]) -> Option<Bytes> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) => Some(output.stdout),
        Err(error) => {
            eprintln!("SKIPPED: {program} cannot be run: {error}");
            assert!(
                std::env::var_os("CI").is_none(),
                "{program} must be there on CI"
            );
            None
        }
    }
}

impl Image {
    /// Makes an image of `mebibytes` with a tree in it; `None` if e2fsprogs are not installed.
    pub(crate) fn make(args: &[&str], tree: &Path, mebibytes: u64) -> Option<Self> {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(mebibytes << 20).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let mut all = vec![
            "-q",
            "-F",
            "-t",
            "ext4",
            "-U",
            UUID,
            "-d",
            tree.to_str().unwrap(),
        ];
        all.extend(args);
        all.push(&path);
        run("mke2fs", &all)?;
        let mut image = Self {
            file,
            block_size: BlockSize::from_log(0).unwrap(),
        };
        let superblock = image.bytes(1024, 1024);
        image.block_size = BlockSize::from_log(le32(&superblock, 0x18)).unwrap();
        Some(image)
    }

    /// An image of 16 MiB, without a journal, that holds one `/file` with this content.
    pub(crate) fn of_file(block_bytes: u32, features: &str, content: &[u8]) -> Option<Self> {
        let tree = tempfile::tempdir().unwrap();
        std::fs::write(tree.path().join("file"), content).unwrap();
        let features = format!("{features},^has_journal");
        let block_bytes = block_bytes.to_string();
        let args = ["-b", &block_bytes, "-I", "256", "-O", &features];
        Self::make(&args, tree.path(), 16)
    }

    fn path(&self) -> String {
        self.file.path().to_str().unwrap().to_owned()
    }

    /// Runs e2fsck, which may also rewrite the image.
    pub(crate) fn e2fsck(&self, args: &[&str]) {
        let path = self.path();
        run("e2fsck", &[args, &[path.as_str()]].concat()).unwrap();
    }

    /// The problems that `e2fsck -fn` prints, without its other lines.
    pub(crate) fn fsck_problems(&self) -> String {
        let path = self.path();
        let output = run("e2fsck", &["-fn", &path]).unwrap();
        let is_problem = |line: &&str| {
            let summary = line.starts_with(&path) || line.starts_with("Pass ");
            !(summary || line.is_empty())
        };
        output
            .lines()
            .filter(is_problem)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Runs requests of debugfs and returns its output.
    pub(crate) fn debugfs(&self, requests: &str) -> String {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(requests.as_bytes()).unwrap();
        run(
            "debugfs",
            &["-w", "-f", file.path().to_str().unwrap(), &self.path()],
        )
        .unwrap()
    }

    pub(crate) fn bytes(&self, offset: u64, length: usize) -> Bytes {
        use std::os::unix::fs::FileExt as _;
        let mut bytes = vec![0; length];
        self.file
            .as_file()
            .read_exact_at(&mut bytes, offset)
            .unwrap();
        bytes
    }

    pub(crate) fn block(&self, block: PhysBlock) -> Bytes {
        self.bytes(self.block_size.offset(block), self.block_size.bytes())
    }

    pub(crate) fn seed(&self) -> ChecksumSeed {
        ChecksumSeed::from_uuid(&UUID_BYTES)
    }

    /// The inode of a path.
    pub(crate) fn inode_nr(&self, path: &str) -> InodeNr {
        let output = self.debugfs(&format!("stat {path}\n"));
        InodeNr(number_after(&output, "Inode: "))
    }

    /// The raw inode of 256 bytes, and the seed of its checksums.
    pub(crate) fn inode(&self, nr: InodeNr) -> (Bytes, InodeSeed) {
        let raw = self.bytes(self.inode_at(nr), 256);
        let seed = self.seed().for_inode(nr, InodeGeneration(le32(&raw, 0x64)));
        (raw, seed)
    }

    /// Writes an inode of 256 bytes.
    pub(crate) fn write_inode(&self, nr: InodeNr, bytes: &[u8]) {
        self.write(self.inode_at(nr), bytes);
    }

    /// The offset of an inode in the image.
    fn inode_at(&self, nr: InodeNr) -> u64 {
        let output = self.debugfs(&format!("imap <{nr}>\n"));
        let block = PhysBlock(number_after::<u64>(&output, "located at block "));
        let offset = output.split("offset 0x").nth(1).unwrap();
        let offset = u64::from_str_radix(offset.trim(), 16).unwrap();
        self.block_size.offset(block) + offset
    }

    pub(crate) fn write_block(&self, block: PhysBlock, bytes: &[u8]) {
        self.write(self.block_size.offset(block), bytes);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        use std::os::unix::fs::FileExt as _;
        self.file.as_file().write_all_at(bytes, offset).unwrap();
    }

    pub(crate) fn superblock(&self) -> Superblock {
        let raw = RawSuperblock::read_from_bytes(&self.bytes(1024, 1024)).unwrap();
        Superblock::try_from(&raw).unwrap()
    }

    /// The physical blocks of a file without holes up to `end`, by debugfs.
    pub(crate) fn map_all(&self, inode: InodeNr, end: LogicalBlock) -> Vec<PhysBlock> {
        let requests: String = (0..end.0)
            .map(|nr| format!("bmap <{inode}> {nr}\n"))
            .collect();
        let output = self.debugfs(&requests);
        let numbers = output.lines().filter_map(|line| line.trim().parse().ok());
        let blocks: Vec<_> = numbers.map(PhysBlock).collect();
        assert_eq!(blocks.len(), end.0 as usize, "{output}");
        blocks
    }

    /// The physical block of a block of a file, by debugfs; `None` for a hole.
    pub(crate) fn map(&self, inode: InodeNr, logical: LogicalBlock) -> Option<PhysBlock> {
        let output = self.debugfs(&format!("bmap <{inode}> {logical}\n"));
        let last = output.lines().last().unwrap().trim();
        let block = PhysBlock(last.parse().unwrap_or_else(|_| panic!("{output}")));
        (block.0 != 0).then_some(block)
    }
}

/// Runs requests of debugfs that need no image; `None` if it is not installed.
pub(crate) fn debugfs(requests: &[u8]) -> Option<Bytes> {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(requests).unwrap();
    output("debugfs", &["-f", file.path().to_str().unwrap()])
}

/// A 32-bit field.
pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    U32::ref_from_prefix(&bytes[at..]).unwrap().0.get()
}

/// The number that follows a text.
pub(crate) fn number_after<N: std::str::FromStr>(output: &str, text: &str) -> N {
    let rest = output
        .split(text)
        .nth(1)
        .unwrap_or_else(|| panic!("no {text:?} in {output}"));
    let digits: String = rest
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits
        .parse()
        .ok()
        .unwrap_or_else(|| panic!("no number after {text:?} in {output}"))
}

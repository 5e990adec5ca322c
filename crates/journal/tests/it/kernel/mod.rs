//! Fixtures: images with a log that the kernel wrote.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fourscore_block::{BlockDevice, DeviceOptions, open_path};
use fourscore_journal::{JournalMap, JournalRun, Log, Recovered, recover};
use fourscore_ondisk::jbd2::JournalBlock;
use fourscore_ondisk::{BlockCount, BlockSize, PhysBlock};
use fourscore_sync::Arc;
use tempfile::TempDir;
use uuid::Uuid;

/// Whether the test can run on this machine; prints what is missing otherwise. On CI a missing tool
/// is a failure.
pub(crate) fn can_run(programs: &[&str]) -> bool {
    let mut missing: Vec<&str> = programs
        .iter()
        .copied()
        .filter(|program| find(program).is_none())
        .collect();
    if programs.contains(&"losetup") && !rustix_is_root() {
        missing.push("root");
    }
    if missing.is_empty() {
        return true;
    }
    let message = format!("SKIPPED: needs {}", missing.join(", "));
    assert!(std::env::var_os("CI").is_none(), "{message}");
    eprintln!("{message}");
    false
}

fn rustix_is_root() -> bool {
    run("id", &["-u"], &[0]).trim() == "0"
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path
        .split(':')
        .chain(["/sbin", "/usr/sbin", "/bin", "/usr/bin"]);
    dirs.map(|dir| Path::new(dir).join(program))
        .find(|file| file.is_file())
}

/// Runs a program and returns its output; panics unless it exits with one of `exits`.
pub(crate) fn run(program: &str, args: &[&str], exits: &[i32]) -> String {
    let path = find(program).unwrap_or_else(|| PathBuf::from(program));
    let output = Command::new(path).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let ended = output
        .status
        .code()
        .is_some_and(|code| exits.contains(&code));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        ended,
        "{program} {args:?}: {:?}\n{text}{errors}",
        output.status
    );
    text
}

/// What happens to the log when the file system is shut down.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Crash {
    /// It stays as it is.
    KeepLog,
    /// The running transaction is committed first.
    FlushLog,
}

/// An image file in a directory of its own.
pub(crate) struct Image {
    pub(crate) dir: TempDir,
    pub(crate) path: PathBuf,
}

impl Image {
    pub(crate) fn make(mke2fs: &[&str], size: &str) -> Self {
        let shm = Path::new("/dev/shm");
        let dir = if shm.is_dir() {
            TempDir::new_in(shm)
        } else {
            TempDir::new()
        }
        .unwrap();
        let path = dir.path().join("image");
        let mut args = vec!["-q", "-F"];
        args.extend(if mke2fs.contains(&"-t") {
            &[][..]
        } else {
            &["-t", "ext4"]
        });
        args.extend(if mke2fs.contains(&"-b") {
            &[][..]
        } else {
            &["-b", "4096"]
        });
        args.extend(mke2fs);
        args.extend([path.to_str().unwrap(), size]);
        run("mke2fs", &args, &[0]);
        Self { dir, path }
    }

    /// A copy in a directory of its own.
    pub(crate) fn copy(&self, name: &str) -> Self {
        let parent = self.dir.path().parent().unwrap();
        let dir = TempDir::new_in(parent).unwrap();
        let path = dir.path().join(name);
        fs::copy(&self.path, &path).unwrap();
        Self { dir, path }
    }

    pub(crate) fn debugfs(&self, request: &str) -> String {
        run(
            "debugfs",
            &["-R", request, self.path.to_str().unwrap()],
            &[0],
        )
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        let stats = self.debugfs("stats -h");
        let line = stats
            .lines()
            .find(|line| line.starts_with("Block size:"))
            .unwrap();
        let bytes: usize = line.split_whitespace().last().unwrap().parse().unwrap();
        (0..=6)
            .filter_map(BlockSize::from_log)
            .find(|size| size.bytes() == bytes)
            .unwrap()
    }

    /// `s_journal_uuid`, the UUID of an external journal.
    pub(crate) fn journal_uuid(&self) -> Uuid {
        let stats = self.debugfs("stats -h");
        let line = stats
            .lines()
            .find(|line| line.starts_with("Journal UUID:"))
            .unwrap();
        line.split_whitespace().last().unwrap().parse().unwrap()
    }

    /// The map of the journal's inode, from the output of debugfs: `(0-1023):33-1056, (1024):..`.
    pub(crate) fn journal_map(&self) -> JournalMap {
        let stat = self.debugfs("stat <8>");
        let runs = stat.split_whitespace().filter_map(|word| {
            let (logical, physical) = word
                .trim_end_matches(',')
                .strip_prefix('(')?
                .split_once("):")?;
            let (first, last) = logical.split_once('-').unwrap_or((logical, logical));
            let block = physical.split('-').next()?.parse().ok()?;
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            Some(JournalRun {
                journal_block: JournalBlock(first),
                block: PhysBlock(block),
                blocks: last - first + 1,
            })
        });
        let blocks = fs::metadata(&self.path).unwrap().len() >> self.block_size().bits();
        JournalMap::from_runs(runs.collect::<Vec<_>>(), BlockCount(blocks)).unwrap()
    }

    /// Lets debugfs write a log with checksums of version 2, which current kernels do not write.
    pub(crate) fn log_with_version_2(&self) {
        let data = self.dir.path().join("data");
        // Two blocks of 1 KiB, the second of which must be escaped.
        let mut bytes = vec![0x11; 2048];
        bytes[1024..1028].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
        fs::write(&data, &bytes).unwrap();
        let write = |blocks: &str| format!("jw -b {blocks} {}\n", data.display());
        let script = format!(
            "jo -c -v 2\n{}{}jw -r 16001\n{}jc\n",
            write("16000,16001"),
            write("16002,16003"),
            write("16003,16004")
        );
        let commands = self.dir.path().join("commands");
        fs::write(&commands, script).unwrap();
        let (commands, image) = (commands.to_str().unwrap(), self.path.to_str().unwrap());
        run("debugfs", &["-w", "-f", commands, image], &[0]);
    }

    /// Mounts the image, runs `load` on it, and shuts the file system down as in a crash.
    pub(crate) fn crash(&self, options: &str, crash: Crash, load: impl FnOnce(&Path)) {
        let mount = Mount::new(self, options);
        load(&mount.dir);
        let dir = mount.dir.to_str().unwrap();
        let shutdown = match crash {
            Crash::KeepLog => "shutdown",
            Crash::FlushLog => "shutdown -f",
        };
        run("xfs_io", &["-x", "-c", shutdown, dir], &[0]);
    }
}

/// A loop device; detached when dropped.
pub(crate) struct Loop {
    pub(crate) device: String,
}

impl Loop {
    pub(crate) fn attach(path: &Path) -> Self {
        let output = run("losetup", &["-f", "--show", path.to_str().unwrap()], &[0]);
        Self {
            device: output.trim().to_owned(),
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let status = Command::new("losetup").args(["-d", &self.device]).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("could not detach {}", self.device);
        }
    }
}

/// A mounted image; unmounted when dropped.
pub(crate) struct Mount {
    pub(crate) dir: PathBuf,
}

impl Mount {
    pub(crate) fn new(image: &Image, options: &str) -> Self {
        let dir = image.dir.path().join("mnt");
        fs::create_dir_all(&dir).unwrap();
        let options = format!("loop,{options}");
        let (from, to) = (image.path.to_str().unwrap(), dir.to_str().unwrap());
        run("mount", &["-o", &options, from, to], &[0]);
        Self { dir }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let status = Command::new("umount").arg(&self.dir).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("could not unmount {}", self.dir.display());
        }
    }
}

/// Makes several transactions with every kind of change to metadata, and at the end some changes
/// without a sync.
pub(crate) fn churn(root: &Path) {
    let dir = root.join("churn");
    fs::create_dir(&dir).unwrap();
    let sync = || run("sync", &["-f", root.to_str().unwrap()], &[0]);
    // Blocks that begin with the journal's magic number.
    let mut magic = vec![0x42; 24 << 10];
    for block in magic.chunks_mut(1024) {
        block[..4].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
    }
    for nr in 0..120 {
        fs::write(
            dir.join(format!("file{nr}")),
            vec![nr; usize::from(nr) * 40],
        )
        .unwrap();
    }
    sync();
    for round in 0..4 {
        fs::write(dir.join(format!("magic{round}")), &magic).unwrap();
        let deep = dir.join(format!("dir{round}"));
        fs::create_dir(&deep).unwrap();
        for nr in 0..60 {
            let name = format!("a rather long name, so that blocks fill quickly {nr}");
            fs::write(deep.join(name), b"x").unwrap();
        }
        sync();
        // Freed directory blocks and, with data=journal, file blocks are revoked.
        fs::remove_dir_all(&deep).unwrap();
        fs::remove_file(dir.join(format!("file{round}"))).unwrap();
        fs::write(dir.join(format!("new{round}")), vec![0x77; 9000]).unwrap();
        fs::hard_link(dir.join("file50"), dir.join(format!("link{round}"))).unwrap();
        std::os::unix::fs::symlink("target", dir.join(format!("symlink{round}"))).unwrap();
        sync();
    }
    fs::write(dir.join("not synced"), b"lost").unwrap();
}

pub(crate) fn device(path: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(open_path(path, DeviceOptions::default()).unwrap())
}

pub(crate) fn open_log(image: &Image) -> Log {
    let map = image.journal_map();
    Log::open(device(&image.path), image.block_size(), map).unwrap()
}

/// Replays `log` into a copy of the image's bytes.
pub(crate) fn replay(image: &Image, log: &Log) -> (Vec<u8>, Recovered) {
    let blocks = std::fs::metadata(&image.path).unwrap().len() >> log.block_size().bits();
    let recovered = recover(log, BlockCount(blocks)).unwrap();
    let overlay = recovered.overlay(log, device(&image.path)).unwrap();
    let mut bytes = vec![0; usize::try_from(overlay.len_bytes()).unwrap()];
    overlay.read_at(&mut bytes, 0).unwrap();
    (bytes, recovered)
}

/// Blocks that differ, without those of the journal and the one with the superblock (e2fsck
/// notes in both that it was there).
fn differences(ours: &[u8], theirs: &[u8], log: &Log) -> Vec<usize> {
    let block_bytes = log.block_size().bytes();
    let superblock = 1024 / block_bytes;
    let blocks = ours
        .chunks(block_bytes)
        .zip(theirs.chunks(block_bytes))
        .enumerate();
    blocks
        .filter(|(_, (ours, theirs))| ours != theirs)
        .map(|(block, _)| block)
        .filter(|&block| block != superblock)
        .filter(|&block| !log.map().contains(PhysBlock(block as u64)))
        .collect()
}

/// Compares our replay of the log in `image` with that of e2fsprogs.
pub(crate) fn compare_with_e2fsck(image: &Image) -> (Log, Recovered) {
    compare(image, open_log(image), &[])
}

/// Compares our replay of `log` with that of e2fsck, called with `options` in addition.
pub(crate) fn compare(image: &Image, log: Log, options: &[&str]) -> (Log, Recovered) {
    let (ours, recovered) = replay(image, &log);
    let oracle = image.copy("oracle");
    let path = oracle.path.to_str().unwrap();
    if options.is_empty() && has_orphans(&ours) {
        // e2fsck would also free the orphans that it finds in the replayed superblock.
        run("debugfs", &["-w", "-R", "journal_run", path], &[0]);
    } else {
        let mut args = vec!["-y", "-E", "journal_only"];
        args.extend(options);
        args.push(path);
        run("e2fsck", &args, &[0, 1]);
    }
    let theirs = std::fs::read(&oracle.path).unwrap();
    assert_eq!(differences(&ours, &theirs, &log), Vec::<usize>::new());
    assert_eq!(recovered.damage(), None);
    (log, recovered)
}

/// Whether the superblock of a file system names an orphan (`s_last_orphan`).
pub(crate) fn has_orphans(image: &[u8]) -> bool {
    let at = 1024 + 0xe8;
    image[at..at + 4] != [0; 4]
}

//! **Purpose.** A mount as the file system under test: threads use system calls, which the kernel
//! turns into requests to a server in this process.
//!
//! **Model.** A mount must satisfy all rules for the library; the kernel's caches of names,
//! attributes and pages are part of what is judged. A directory is an open descriptor, so its
//! number is not reused as long as a thread knows it. Each file has three descriptors: for I/O
//! through the page cache, for direct I/O (`O_DIRECT`) and for appending. FUSE has no calls to get
//! extents, to access an inode by its number, or to move ranges; those calls are not made.
//!
//! The **mirror** is the kernel's own ext4: when all threads have ended, the tree is read through
//! the mount, then the server ends, and Linux has to find the same tree in the image (names, inode
//! numbers, types, sizes, links, targets, data and attributes).
//!
//! **Crash safety.** Dropping it unmounts, also when a round fails or panics.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use fourscore::Fs;
use fourscore_fuse::{Cache, Session, SessionOptions, Unmounter};
use fourscore_sync::Arc;
use fourscore_sync::thread::{self, JoinHandle};
use fourscore_testkit::{scratch, tools};
use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, RawDir, RenameFlags, SeekFrom, XattrFlags,
};
use rustix::io::Errno;
use tempfile::TempDir;

use super::call::{Failure, Kind, Listed, Name, Range, Space};
use super::in_process::{InProcess, link_target};
use super::target::{Answer, IoMode, Target};

/// The source of this mount in `/proc/mounts`, which identifies one that was left behind.
const SOURCE: &str = "fourscore-oracle";
/// The size of the buffer for a listing in bytes: small, so that listings take several calls.
const LISTED_BYTES: usize = 2048;

/// A mount with its server.
pub(super) struct Mounted {
    folder: TempDir,
    fs: Arc<Fs>,
    unmounter: Unmounter,
    server: Option<JoinHandle<io::Result<()>>>,
}

impl Mounted {
    /// Mounts `fs` in a new folder, and serves it.
    pub(super) fn new(fs: &Arc<Fs>, cache: Cache) -> Result<Self> {
        let folder = scratch::folder()?;
        let options = SessionOptions {
            source: SOURCE.into(),
            cache,
            ..SessionOptions::default()
        };
        let session = Session::mount(folder.path(), &options).context("mounting")?;
        let unmounter = session.unmounter();
        let (served, fs) = (Arc::clone(fs), Arc::clone(fs));
        let server = thread::spawn(move || {
            // Only this process uses the device, so the file system may be used after the mount
            // ends.
            let thaw = |_| drop(fs.thaw());
            session.serve(&fs, || Ok(()), thaw)
        });
        Ok(Self {
            folder,
            fs: served,
            unmounter,
            server: Some(server),
        })
    }

    /// The target for the threads.
    pub(super) fn target(&self) -> Result<Mount> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = rustix::fs::open(self.folder.path(), flags, Mode::empty())?;
        Ok(Mount {
            root: Dir::new(root).map_err(|failure| anyhow::anyhow!(failure.text))?,
            point: self.folder.path().to_owned(),
            served: InProcess {
                fs: Arc::clone(&self.fs),
            },
        })
    }

    /// The tree as seen through the mount.
    pub(super) fn tree(&self) -> Result<Tree> {
        Tree::read(self.folder.path())
    }

    /// Unmounts it, and waits for the server.
    pub(super) fn end(mut self) -> Result<()> {
        self.undo()
    }

    fn undo(&mut self) -> Result<()> {
        let Some(server) = self.server.take() else {
            return Ok(());
        };
        if let Err(error) = self.unmounter.unmount() {
            self.unmounter.abandon();
            bail!("unmounting: {error}");
        }
        match server.join() {
            Ok(served) => served.context("serving"),
            Err(_) => bail!("the server panicked"),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.undo() {
            eprintln!("{}: {error:#}", self.folder.path().display());
        }
    }
}

/// The root of a mount, and the file system behind it.
pub(super) struct Mount {
    root: Dir,
    point: PathBuf,
    served: InProcess,
}

/// Calls `EXT4_IOC_RESIZE_FS` and prints the number of its error, in Perl: the crate has no unsafe
/// code, and the ioctls of others that are safe do not include it.
const GROW: &str = r#"sysopen(my $dir, $ARGV[0], 0) or die $!+0, "\n";
    my $size = pack("Q", $ARGV[1]);
    ioctl($dir, 0x40086610, $size) or die $!+0, "\n";"#;

/// An `O_PATH` descriptor, mostly of a directory.
#[derive(Clone)]
pub(super) struct Dir {
    fd: Arc<OwnedFd>,
    number: u64,
}

impl Dir {
    fn new(fd: OwnedFd) -> Answer<Self> {
        let number = answer(rustix::fs::fstat(&fd))?.st_ino;
        Ok(Self {
            fd: Arc::new(fd),
            number,
        })
    }
}

/// A file with three descriptors.
pub(super) struct OpenFile {
    cached: OwnedFd,
    direct: OwnedFd,
    appending: OwnedFd,
    number: u64,
}

impl OpenFile {
    fn new(cached: OwnedFd) -> Answer<Self> {
        let number = answer(rustix::fs::fstat(&cached))?.st_ino;
        let path = format!("/proc/self/fd/{}", cached.as_raw_fd());
        let again = |more: OFlags| {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | more;
            answer(rustix::fs::open(&path, flags, Mode::empty()))
        };
        Ok(Self {
            direct: again(OFlags::DIRECT)?,
            appending: again(OFlags::APPEND)?,
            cached,
            number,
        })
    }

    fn by(&self, how: IoMode) -> &OwnedFd {
        match how {
            IoMode::Buffered => &self.cached,
            IoMode::Direct => &self.direct,
        }
    }
}

fn answer<T>(result: Result<T, Errno>) -> Answer<T> {
    result.map_err(|errno| Failure {
        errno: errno.raw_os_error(),
        text: format!("{errno}"),
    })
}

/// Reports a short write as a failure: writes to regular files are never short.
fn check_whole(done: usize, wanted: usize) -> Answer<()> {
    if done == wanted {
        return Ok(());
    }
    let text = format!("{done} bytes instead of {wanted} were written");
    Err(Failure { errno: 0, text })
}

impl Target for Mount {
    type Dir = Dir;
    type File = OpenFile;

    const HAS_PAGE_CACHE: bool = true;
    const HAS_MOVES: bool = false;

    fn root(&self) -> Dir {
        self.root.clone()
    }

    fn number(&self, dir: &Dir) -> u64 {
        dir.number
    }

    /// Opens an inode of any type; later calls fail if it is not a directory.
    fn open_dir(&self, dir: &Dir, name: Name) -> Answer<Dir> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Dir::new(answer(rustix::fs::openat(
            &dir.fd,
            name.text(),
            flags,
            Mode::empty(),
        ))?)
    }

    fn make(&self, dir: &Dir, name: Name, kind: Kind) -> Answer<Option<u64>> {
        let text = name.text();
        match kind {
            Kind::File => Ok(Some(self.create(dir, name)?.1)),
            Kind::Directory => {
                let mode = Mode::from_raw_mode(0o755);
                answer(rustix::fs::mkdirat(&dir.fd, text, mode)).map(|()| None)
            }
            Kind::Symlink => {
                let target = link_target(text.as_bytes());
                answer(rustix::fs::symlinkat(target, &dir.fd, text)).map(|()| None)
            }
        }
    }

    fn create(&self, dir: &Dir, name: Name) -> Answer<(OpenFile, u64)> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        let file = answer(rustix::fs::openat(&dir.fd, name.text(), flags, mode))?;
        let file = OpenFile::new(file)?;
        let number = file.number;
        Ok((file, number))
    }

    fn unnamed(&self, dir: &Dir) -> Answer<OpenFile> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        OpenFile::new(answer(rustix::fs::openat(&dir.fd, ".", flags, mode))?)
    }

    fn link(&self, file: &OpenFile, dir: &Dir, name: Name) -> Answer<u64> {
        let flags = AtFlags::EMPTY_PATH;
        answer(rustix::fs::linkat(
            &file.cached,
            "",
            &dir.fd,
            name.text(),
            flags,
        ))?;
        Ok(file.number)
    }

    fn file_number(&self, file: &OpenFile) -> u64 {
        file.number
    }

    fn unlink(&self, dir: &Dir, name: Name) -> Answer<()> {
        answer(rustix::fs::unlinkat(&dir.fd, name.text(), AtFlags::empty()))
    }

    fn rmdir(&self, dir: &Dir, name: Name) -> Answer<()> {
        answer(rustix::fs::unlinkat(
            &dir.fd,
            name.text(),
            AtFlags::REMOVEDIR,
        ))
    }

    fn rename(&self, from: (&Dir, Name), to: (&Dir, Name), replaces: bool) -> Answer<()> {
        let flags = match replaces {
            true => RenameFlags::empty(),
            false => RenameFlags::NOREPLACE,
        };
        renamed(from, to, flags)
    }

    fn exchange(&self, one: (&Dir, Name), other: (&Dir, Name)) -> Answer<()> {
        renamed(one, other, RenameFlags::EXCHANGE)
    }

    fn lookup(&self, dir: &Dir, name: Name) -> Answer<u64> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        answer(rustix::fs::statat(&dir.fd, name.text(), flags)).map(|stat| stat.st_ino)
    }

    fn resolve(&self, path: &[Name]) -> Answer<u64> {
        let path: Vec<_> = path.iter().map(|name| name.text()).collect();
        let stat = rustix::fs::statat(&self.root.fd, path.join("/"), AtFlags::empty());
        answer(stat).map(|stat| stat.st_ino)
    }

    fn list(&self, dir: &Dir, most: Option<usize>) -> Answer<(Vec<(Name, u64)>, Listed)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = answer(rustix::fs::openat(&dir.fd, ".", flags, Mode::empty()))?;
        let mut buffer = [MaybeUninit::uninit(); LISTED_BYTES];
        let mut listing = RawDir::new(opened, &mut buffer);
        let mut entries = Vec::new();
        while let Some(entry) = listing.next() {
            let entry = answer(entry)?;
            if most == Some(entries.len()) {
                return Ok((entries, Listed::Part));
            }
            entries.push((Name::parse(entry.file_name().to_bytes()), entry.ino()));
        }
        Ok((entries, Listed::Whole))
    }

    fn stat_number(&self, _: u64) -> Answer<()> {
        Ok(())
    }

    fn read(&self, file: &OpenFile, bytes: &mut [u8], offset: u64, how: IoMode) -> Answer<usize> {
        answer(rustix::io::pread(file.by(how), bytes, offset))
    }

    fn write(&self, file: &OpenFile, bytes: &[u8], offset: u64, how: IoMode) -> Answer<()> {
        let done = answer(rustix::io::pwrite(file.by(how), bytes, offset))?;
        check_whole(done, bytes.len())
    }

    fn append(&self, file: &OpenFile, bytes: &[u8]) -> Answer<u64> {
        let done = answer(rustix::io::write(&file.appending, bytes))?;
        check_whole(done, bytes.len())?;
        // Threads append to a file one after the other.
        let end = answer(rustix::fs::seek(&file.appending, SeekFrom::Current(0)))?;
        Ok(end - bytes.len() as u64)
    }

    fn truncate(&self, file: &OpenFile, size: u64) -> Answer<()> {
        answer(rustix::fs::ftruncate(&file.cached, size))
    }

    fn change(&self, file: &OpenFile, what: Range, offset: u64, len: u64) -> Answer<()> {
        let keep = FallocateFlags::KEEP_SIZE;
        let flags = match what {
            Range::Allocate => FallocateFlags::empty(),
            Range::AllocateKeepSize => keep,
            Range::Punch => FallocateFlags::PUNCH_HOLE | keep,
            Range::Zero => FallocateFlags::ZERO_RANGE,
            Range::ZeroKeepSize => FallocateFlags::ZERO_RANGE | keep,
            Range::Collapse => FallocateFlags::COLLAPSE_RANGE,
            Range::Insert => FallocateFlags::INSERT_RANGE,
        };
        answer(rustix::fs::fallocate(&file.cached, flags, offset, len))
    }

    fn copy(&self, from: (&OpenFile, u64), to: (&OpenFile, u64), len: u64) -> Answer<u64> {
        let (mut at, mut into) = (from.1, to.1);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let (source, target) = (&from.0.cached, &to.0.cached);
        let copied =
            rustix::fs::copy_file_range(source, Some(&mut at), target, Some(&mut into), len);
        answer(copied).map(|copied| copied as u64)
    }

    fn extents(&self, _: &OpenFile) -> Answer<u64> {
        Ok(0)
    }

    fn seek(&self, file: &OpenFile, offset: u64, data: bool) -> Answer<Option<u64>> {
        let from = match data {
            true => SeekFrom::Data(offset),
            false => SeekFrom::Hole(offset),
        };
        match rustix::fs::seek(&file.cached, from) {
            Err(Errno::NXIO) => Ok(None),
            found => answer(found).map(Some),
        }
    }

    fn size(&self, file: &OpenFile) -> Answer<u64> {
        let stat = answer(rustix::fs::fstat(&file.cached))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(u64::MAX))
    }

    fn set_xattr(&self, file: &OpenFile, name: &str, value: &[u8]) -> Answer<()> {
        let flags = XattrFlags::empty();
        answer(rustix::fs::fsetxattr(&file.cached, name, value, flags))
    }

    fn remove_xattr(&self, file: &OpenFile, name: &str) -> Answer<()> {
        answer(rustix::fs::fremovexattr(&file.cached, name))
    }

    fn xattr(&self, file: &OpenFile, name: &str) -> Answer<Vec<u8>> {
        answer(value_of(file.cached.as_fd(), name))
    }

    fn fsync(&self, file: &OpenFile) -> Answer<()> {
        answer(rustix::fs::fsync(&file.cached))
    }

    fn sync(&self) -> Answer<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = answer(rustix::fs::openat(&self.root.fd, ".", flags, Mode::empty()))?;
        answer(rustix::fs::syncfs(root))
    }

    fn stat_fs(&self) -> Answer<Space> {
        let stat = answer(rustix::fs::fstatvfs(&self.root.fd))?;
        Ok(Space {
            block_bytes: stat.f_frsize,
            blocks: stat.f_blocks,
            free_blocks: stat.f_bfree,
            available_blocks: stat.f_bavail,
            inodes: stat.f_files,
            free_inodes: stat.f_ffree,
        })
    }

    fn fs_blocks(&self) -> u64 {
        self.served.fs_blocks()
    }

    fn grow_fs(&self, blocks: u64) -> Answer<u64> {
        let Ok(mut perl) = tools::command("perl") else {
            return self.served.grow_fs(blocks);
        };
        perl.args(["-e", GROW])
            .arg(&self.point)
            .arg(blocks.to_string());
        let failed = |errno, text| Err(Failure { errno, text });
        match tools::output_of(&mut perl) {
            Ok(output) if output.status.success() => Ok(self.fs_blocks()),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                failed(text.trim().parse().unwrap_or(0), text)
            }
            Err(error) => failed(0, format!("{error:#}")),
        }
    }
}

fn renamed(from: (&Dir, Name), to: (&Dir, Name), flags: RenameFlags) -> Answer<()> {
    let (old, new) = (from.1.text(), to.1.text());
    answer(rustix::fs::renameat_with(
        &from.0.fd, old, &to.0.fd, new, flags,
    ))
}

fn value_of(file: impl AsFd, name: impl rustix::path::Arg) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 64 << 10];
    let len = rustix::fs::fgetxattr(file, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

/// Everything in a mounted file system, by path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tree(BTreeMap<PathBuf, Entry>);

/// An inode: number, attributes and data.
#[derive(PartialEq, Eq)]
struct Entry {
    number: u64,
    mode: u32,
    links: u64,
    size_bytes: u64,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = self.content.iter().fold(0_u64, |sum, &byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        write!(
            f,
            "inode {} mode {:o} links {} size {} content {sum:x} attributes {:?}",
            self.number, self.mode, self.links, self.size_bytes, self.xattrs
        )
    }
}

impl Tree {
    /// Reads the tree below `root`.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut entries = BTreeMap::new();
        let mut pending = vec![PathBuf::new()];
        while let Some(path) = pending.pop() {
            let entry = Entry::read(&root.join(&path));
            let entry = entry.with_context(|| format!("{}", path.display()))?;
            if fs::symlink_metadata(root.join(&path))?.is_dir() {
                for name in fs::read_dir(root.join(&path))? {
                    pending.push(path.join(name?.file_name()));
                }
            }
            entries.insert(path, entry);
        }
        Ok(Self(entries))
    }

    /// Fails if `other`, the same file system read by Linux, differs.
    pub(super) fn check_is(&self, other: &Self) -> Result<()> {
        for (path, entry) in &self.0 {
            let theirs = other.0.get(path);
            ensure!(
                theirs == Some(entry),
                "{} is {entry:?} through the mount, and {theirs:?} for Linux",
                path.display()
            );
        }
        let more = other.0.keys().find(|path| !self.0.contains_key(*path));
        ensure!(more.is_none(), "only Linux finds {more:?}");
        Ok(())
    }
}

impl Entry {
    fn read(path: &Path) -> Result<Self> {
        let stat = fs::symlink_metadata(path)?;
        let mut xattrs = BTreeMap::new();
        let mut content = Vec::new();
        if stat.is_symlink() {
            content = fs::read_link(path)?.into_os_string().into_encoded_bytes();
        } else {
            let file = File::open(path)?;
            if stat.is_file() {
                content = fs::read(path)?;
            }
            let mut names = vec![0; 64 << 10];
            let len = rustix::fs::flistxattr(&file, &mut names[..])?;
            let names = names[..len].split(|&byte| byte == 0);
            for name in names.filter(|name| !name.is_empty()) {
                let text = OsStr::from_bytes(name);
                xattrs.insert(name.to_vec(), value_of(&file, text)?);
            }
        }
        Ok(Self {
            number: stat.ino(),
            mode: stat.mode(),
            links: stat.nlink(),
            size_bytes: stat.size(),
            content,
            xattrs,
        })
    }
}

//! **Purpose.** State that the threads of a round share: the clock, and the directories and files
//! that they all use.

use fourscore_sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use fourscore_sync::{Arc, Mutex, RwLock};

use super::call::{Kind, Name, Place, Time};
use super::shape::Shape;
use super::stamp::FileId;
use super::target::{Answer, IoMode, Target};

/// The number of names that are only replaced, in each permanent directory.
pub(super) const STEADY: usize = 3;
/// The number of directories that are known to all threads.
const KNOWN_DIRS: usize = 5;
/// The index of the permanent directory that holds the growing directories.
pub(super) const GROWS_IN: usize = 2;

/// The path that all symbolic links contain: from the root, into the directory within the first
/// permanent one.
pub(super) fn linked() -> [Name; 3] {
    [Name::fixed(0), Name::fixed(3), Name::steady(0)]
}

/// A directory that exists during the whole round, and its path.
pub(super) struct PermanentDir<T: Target> {
    pub(super) dir: T::Dir,
    pub(super) number: u64,
    pub(super) path: Vec<Name>,
}

/// A file that all threads use.
pub(super) struct SharedFile<T: Target> {
    pub(super) id: FileId,
    pub(super) file: T::File,
    /// Held by calls that change the file: exclusive by those that move data, shared by others.
    pub(super) order: RwLock<()>,
}

/// A directory in which names are created while it is listed.
pub(super) struct Growing<T: Target> {
    pub(super) dir: T::Dir,
    pub(super) number: u64,
    /// The number of names that were created in it.
    pub(super) names: AtomicUsize,
}

/// State that the threads of a round share.
pub(super) struct Shared<T: Target> {
    pub(super) target: T,
    pub(super) shape: Shape,
    clock: AtomicU64,
    next_file: AtomicU32,
    pub(super) permanent: Vec<PermanentDir<T>>,
    /// Directories that any thread has looked up lately; they may be removed.
    pub(super) known_dirs: Mutex<Vec<T::Dir>>,
    pub(super) files: Vec<RwLock<Arc<SharedFile<T>>>>,
    pub(super) growing: RwLock<Arc<Growing<T>>>,
    /// The number of growing directories so far.
    pub(super) grown: AtomicUsize,
    /// The file that the names in the growing directory are links to.
    pub(super) anchor: T::File,
    /// The inode numbers of files that are only read.
    pub(super) bystanders: Vec<u64>,
    /// The blocks of a group.
    pub(super) group_blocks: u64,
}

impl<T: Target> Shared<T> {
    /// Creates the files and directories. These calls are not judged, only their results.
    pub(super) fn new(target: T, shape: Shape, group_blocks: u64) -> Answer<(Self, Made)> {
        let root = target.root();
        let (permanent, mut made) = permanent(&target)?;
        let link = Name::fixed(permanent.len());
        target.make(&root, link, Kind::Symlink)?;
        let (anchor, anchor_nr) = target.create(&root, Name::steady(0))?;
        made.push((
            Place {
                dir: target.number(&root),
                name: Name::steady(0),
            },
            anchor_nr,
        ));
        if let Some(spare) = shape.spare_bytes {
            let files = shape.file_bytes * shape.files as u64;
            take(&target, &anchor, spare + files)?;
        }
        let mut next_file = 0;
        let mut files = Vec::new();
        for _ in 0..shape.files {
            let file = target.unnamed(&root)?;
            files.push(RwLock::new(Arc::new(SharedFile::new(
                FileId(next_file),
                file,
            ))));
            next_file += 1;
        }
        let within = &permanent[GROWS_IN];
        let name = Name::fixed(10);
        target.make(&within.dir, name, Kind::Directory)?;
        let dir = target.open_dir(&within.dir, name)?;
        let number = target.number(&dir);
        made.push((
            Place {
                dir: within.number,
                name,
            },
            number,
        ));
        let bystanders = bystanders(&target, shape.bystanders, &mut made)?;
        let shared = Self {
            target,
            shape,
            clock: AtomicU64::new(1),
            next_file: AtomicU32::new(next_file),
            permanent,
            known_dirs: Mutex::new(Vec::new()),
            files,
            growing: RwLock::new(Arc::new(Growing {
                dir,
                number,
                names: AtomicUsize::new(0),
            })),
            grown: AtomicUsize::new(1),
            anchor,
            bystanders,
            group_blocks,
        };
        Ok((shared, made))
    }

    pub(super) fn now(&self) -> Time {
        self.clock.fetch_add(1, Ordering::AcqRel)
    }

    pub(super) fn next_file(&self) -> FileId {
        FileId(self.next_file.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes a directory known to all threads.
    pub(super) fn publish_dir(&self, dir: T::Dir, at: usize) {
        let mut known_dirs = self.known_dirs.lock();
        if known_dirs.len() < KNOWN_DIRS {
            known_dirs.push(dir);
        } else {
            known_dirs[at % KNOWN_DIRS] = dir;
        }
    }
}

/// Names that were created, with their inode numbers.
type Made = Vec<(Place, u64)>;

/// Creates the permanent directories, the last of them within the first, with names that are never
/// removed.
fn permanent<T: Target>(target: &T) -> Answer<(Vec<PermanentDir<T>>, Made)> {
    let root = target.root();
    let mut permanent: Vec<PermanentDir<T>> = Vec::new();
    let mut made = Vec::new();
    for (number, parent) in [None, None, None, Some(0)].into_iter().enumerate() {
        let (within, mut path) = match parent {
            None => (root.clone(), Vec::new()),
            Some(parent) => {
                let parent: &PermanentDir<T> = &permanent[parent];
                (parent.dir.clone(), parent.path.clone())
            }
        };
        let name = Name::fixed(number);
        target.make(&within, name, Kind::Directory)?;
        let dir = target.open_dir(&within, name)?;
        path.push(name);
        let nr = target.number(&dir);
        made.push((
            Place {
                dir: target.number(&within),
                name,
            },
            nr,
        ));
        for steady in 0..STEADY {
            let name = Name::steady(steady);
            target.make(&dir, name, Kind::File)?;
            made.push((Place { dir: nr, name }, target.lookup(&dir, name)?));
        }
        permanent.push(PermanentDir {
            dir,
            number: nr,
            path,
        });
    }
    Ok((permanent, made))
}

/// Creates files that are only read, in a directory of their own, and adds them to `made`.
fn bystanders<T: Target>(target: &T, count: usize, made: &mut Made) -> Answer<Vec<u64>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let (root, name) = (target.root(), Name::fixed(9));
    target.make(&root, name, Kind::Directory)?;
    let dir = target.open_dir(&root, name)?;
    let within = target.number(&dir);
    let at = |dir, name| Place { dir, name };
    made.push((at(target.number(&root), name), within));
    let mut numbers = Vec::new();
    for nth in 0..count {
        let name = Name::bystander(nth);
        target.make(&dir, name, Kind::File)?;
        let number = target.lookup(&dir, name)?;
        made.push((at(within, name), number));
        numbers.push(number);
    }
    Ok(numbers)
}

/// Writes to a file until only `spare` bytes of the file system are available to data.
fn take<T: Target>(target: &T, file: &T::File, spare: u64) -> Answer<()> {
    const PIECE: usize = 64 << 10;
    let zeroes = vec![0; PIECE];
    let mut at = 0;
    while target.stat_fs()?.available_bytes() > spare + PIECE as u64 {
        target.write(file, &zeroes, at, IoMode::Buffered)?;
        at += PIECE as u64;
    }
    Ok(())
}

impl<T: Target> SharedFile<T> {
    pub(super) fn new(id: FileId, file: T::File) -> Self {
        Self {
            id,
            file,
            order: RwLock::new(()),
        }
    }
}

//! **Purpose.** What the threads of a round share: the clock, the directories and files that they
//! meet in, and how these come to be.

use fourscore::Arc;
use fourscore_sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use fourscore_sync::{Mutex, RwLock};

use super::call::{Kind, Name, Place, Time};
use super::shape::Shape;
use super::stamp::FileId;
use super::target::{Answer, Reach, Target};

/// Names that are only ever replaced, in each directory that lasts.
pub(super) const STEADY: usize = 3;
/// Directories that somebody heard of lately.
const HEARD_OF: usize = 5;
/// In which of the directories that last the one lies that is listed while it grows.
pub(super) const GROWS_IN: usize = 2;

/// Where all symbolic links lead: from the root, into the directory in the first one that lasts.
pub(super) fn linked() -> [Name; 3] {
    [Name::fixed(0), Name::fixed(3), Name::steady(0)]
}

/// A directory that lasts, and the path to it.
pub(super) struct Lasting<T: Target> {
    pub(super) dir: T::Dir,
    pub(super) number: u64,
    pub(super) path: Vec<Name>,
}

/// A file that everybody uses.
pub(super) struct SharedFile<T: Target> {
    pub(super) id: FileId,
    pub(super) file: T::File,
    /// Held by who changes it: alone by who moves content, by all others together.
    pub(super) order: RwLock<()>,
}

/// The directory that grows.
pub(super) struct Growing<T: Target> {
    pub(super) dir: T::Dir,
    pub(super) number: u64,
    /// How many names were made in it.
    pub(super) names: AtomicUsize,
}

pub(super) struct Shared<T: Target> {
    pub(super) target: T,
    pub(super) shape: Shape,
    clock: AtomicU64,
    next_file: AtomicU32,
    pub(super) lasting: Vec<Lasting<T>>,
    /// Numbers of directories that may be gone by now.
    pub(super) heard_of: Mutex<Vec<T::Dir>>,
    pub(super) files: Vec<RwLock<Arc<SharedFile<T>>>>,
    pub(super) growing: RwLock<Arc<Growing<T>>>,
    pub(super) grown: AtomicUsize,
    /// What the names in the growing directory lead to.
    pub(super) anchor: T::File,
    /// The numbers of files that are only looked at.
    pub(super) bystanders: Vec<u64>,
}

impl<T: Target> Shared<T> {
    /// Makes what lasts. Nothing of that is judged but what it leaves.
    pub(super) fn new(target: T, shape: Shape) -> Answer<(Self, Made)> {
        let root = target.root();
        let (lasting, mut made) = lasting(&target)?;
        let link = Name::fixed(lasting.len());
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
        let within = &lasting[GROWS_IN];
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
            lasting,
            heard_of: Mutex::new(Vec::new()),
            files,
            growing: RwLock::new(Arc::new(Growing {
                dir,
                number,
                names: AtomicUsize::new(0),
            })),
            grown: AtomicUsize::new(1),
            anchor,
            bystanders,
        };
        Ok((shared, made))
    }

    pub(super) fn now(&self) -> Time {
        self.clock.fetch_add(1, Ordering::AcqRel)
    }

    pub(super) fn next_file(&self) -> FileId {
        FileId(self.next_file.fetch_add(1, Ordering::Relaxed))
    }

    /// Others may come to a directory now.
    pub(super) fn hear_of(&self, dir: T::Dir, at: usize) {
        let mut heard_of = self.heard_of.lock();
        if heard_of.len() < HEARD_OF {
            heard_of.push(dir);
        } else {
            heard_of[at % HEARD_OF] = dir;
        }
    }
}

/// Names that were made, with the numbers of what they lead to.
type Made = Vec<(Place, u64)>;

/// Makes the directories that last, the last of them inside of the first, with names that nobody
/// changes.
fn lasting<T: Target>(target: &T) -> Answer<(Vec<Lasting<T>>, Made)> {
    let root = target.root();
    let mut lasting: Vec<Lasting<T>> = Vec::new();
    let mut made = Vec::new();
    for (number, parent) in [None, None, None, Some(0)].into_iter().enumerate() {
        let (within, mut path) = match parent {
            None => (root.clone(), Vec::new()),
            Some(parent) => {
                let parent: &Lasting<T> = &lasting[parent];
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
        lasting.push(Lasting {
            dir,
            number: nr,
            path,
        });
    }
    Ok((lasting, made))
}

/// Makes so many files that are only looked at, in a directory of their own, and notes them in
/// `made`.
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

/// Has a file take all that is free but so many bytes.
fn take<T: Target>(target: &T, file: &T::File, spare: u64) -> Answer<()> {
    const PIECE: usize = 64 << 10;
    let zeroes = vec![0; PIECE];
    let mut at = 0;
    while target.stat_fs()? > spare + PIECE as u64 {
        target.write(file, &zeroes, at, Reach::Usual)?;
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

//! **Purpose.** Reading a directory of the host into the tree.
//!
//! | module | responsibility |
//! |---|---|
//! | [`beneath`] | opening what lies below a directory, and nothing else |
//! | `work` | what is to be looked at next |
//! | `look` | what one object is |
//!
//! **Not here.** Contents, which are read when the image is written (`write::reader`).
//!
//! **Model.** A task is a directory to list or some hundreds of names to look at, so that one large
//! directory keeps all cores busy too. Objects are asked for relative to their open directory and
//! never through a symbolic link. A file counts as sparse if it has fewer blocks than bytes; only
//! then is the host asked where its holes are. Names of one object are told by device and inode
//! number.
//!
//! **Locking.** The tree is behind one lock, taken once for each task's findings and never across
//! a call to the host; the list of tasks behind another.

pub mod beneath;
mod look;
mod work;

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use fourscore_sync::{Arc, Counter, Mutex, thread};
use rustix::fs::{Mode, OFlags, RawDir};

use crate::error::{BuildError, BuildResult};
use crate::layout::XattrProblem;
use crate::manifest::Saved;
use crate::source::Notices;
use crate::tree::{HostDirId, NodeId, Tree};
use look::{Look, ObjectKey};
use work::Work;

/// Names that are one task.
const TASK_NAMES: usize = 512;
/// The buffer for entries of a directory.
const LIST_BYTES: usize = 64 << 10;

/// How a directory is read.
#[derive(Clone, Copy)]
pub struct Scan<'a> {
    /// How many threads may work at once.
    pub threads: usize,
    /// Whether the object at a path goes into the tree; what is in a directory that does not
    /// stays out too. Paths have names joined by single slashes, and none at their ends.
    pub keep: &'a (dyn Fn(&[u8]) -> bool + Sync),
    /// What fakeroot said of the files.
    pub saved: Option<&'a Saved>,
    /// Counts objects as they are found.
    pub found: Option<&'a Counter>,
    /// Is told of attributes that stay out because ext4 has no place for them, as those of NFS and
    /// btrfs have none. Without it they are an error.
    pub left_out: Option<&'a Mutex<Notices>>,
}

impl Scan<'_> {
    /// Everything.
    #[must_use]
    pub fn all(threads: usize) -> Self {
        Self {
            threads,
            keep: &|_| true,
            saved: None,
            found: None,
            left_out: None,
        }
    }

    fn tell_left_out(&self, path: &[u8], names: Vec<Vec<u8>>) -> BuildResult<()> {
        for name in names {
            let name = name.escape_ascii().to_string();
            let Some(notices) = self.left_out else {
                let (path, why) = (path.to_vec(), XattrProblem::Name { name });
                return Err(BuildError::Xattr { path, why });
            };
            notices.lock().push_left_out(path, &name);
        }
        Ok(())
    }
}

/// Reads all that is in the directory at `path` into the tree, over what is there. The root takes
/// the attributes of the directory.
///
/// # Errors
/// [`BuildError::Source`] for what cannot be read, and what the tree cannot hold.
pub fn add_directory(tree: &mut Tree, path: &Path, scan: &Scan<'_>) -> BuildResult<()> {
    let failed = |why: io::Error| BuildError::Source {
        path: path.as_os_str().as_encoded_bytes().to_vec(),
        why,
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|why| failed(why.into()))?;
    let root = File::from(root);
    let mut look = Look::default();
    let (meta, xattrs, left_out) = look.root(&root, scan.saved).map_err(failed)?;
    scan.tell_left_out(b"/", left_out)?;
    tree.set_meta(NodeId::ROOT, &meta);
    tree.set_xattrs(NodeId::ROOT, &xattrs)?;
    let root = Arc::new(root);
    let first = Directory {
        node: NodeId::ROOT,
        host: tree.add_host_root(Arc::clone(&root))?,
        path: Vec::new(),
        is_new: tree.children(NodeId::ROOT).len() == 0,
    };
    let scanning = Scanning {
        scan,
        root,
        work: Work::new(Task::List(first)),
        found: Mutex::new(Found {
            tree,
            objects: HashMap::new(),
        }),
        failed: Mutex::new(None),
    };
    thread::scope(|scope| {
        // None of them is the caller's, whose working directory must stay what it is.
        for _ in 0..scan.threads.max(1) {
            scope.spawn(|| scanning.run());
        }
    });
    match scanning.failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// A directory that is to be listed.
#[derive(Clone)]
struct Directory {
    node: NodeId,
    host: HostDirId,
    /// From the root, without a slash in front.
    path: Vec<u8>,
    /// Whether the tree has nothing in it yet.
    is_new: bool,
}

impl Directory {
    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        if self.path.is_empty() {
            return name.to_vec();
        }
        [&self.path, name].join(&b'/')
    }
}

/// Something one thread does.
enum Task {
    List(Directory),
    /// Names in an open directory, each with a NUL behind it.
    Look(Arc<(Directory, OwnedFd)>, Vec<u8>),
}

/// What was found so far.
struct Found<'a> {
    tree: &'a mut Tree,
    /// Objects with more than one name.
    objects: HashMap<ObjectKey, NodeId>,
}

struct Scanning<'a> {
    scan: &'a Scan<'a>,
    root: Arc<File>,
    work: Work<Task>,
    found: Mutex<Found<'a>>,
    failed: Mutex<Option<BuildError>>,
}

impl Scanning<'_> {
    fn run(&self) {
        let mut look = Look::of_worker();
        while let Some(task) = self.work.next() {
            let done = match task {
                Task::List(directory) => self.list(directory, &mut look),
                Task::Look(directory, names) => self.look(&directory, &names, &mut look),
            };
            if let Err(error) = done {
                self.failed.lock().get_or_insert(error);
                self.work.stop();
            }
            self.work.done();
        }
    }

    fn list(&self, directory: Directory, look: &mut Look) -> BuildResult<()> {
        let path = directory.path.clone();
        let failed = |why: io::Error| BuildError::Source {
            path: path.clone(),
            why,
        };
        let fd =
            beneath::open_directory(&self.root, &path).map_err(|errno| failed(errno.into()))?;
        let open = Arc::new((directory, fd));
        let mut buffer = vec![MaybeUninit::uninit(); LIST_BYTES];
        let mut entries = RawDir::new(&open.1, &mut buffer);
        let mut names = Vec::new();
        let mut count = 0;
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|why| failed(why.into()))?;
            let name = entry.file_name().to_bytes_with_nul();
            if matches!(name, b".\0" | b"..\0") {
                continue;
            }
            names.extend_from_slice(name);
            count += 1;
            if count == TASK_NAMES {
                count = 0;
                let full = std::mem::take(&mut names);
                self.work.add([Task::Look(Arc::clone(&open), full)]);
            }
        }
        self.look(&open, &names, look)
    }

    /// Looks at names, and puts what they are into the tree.
    fn look(&self, open: &(Directory, OwnedFd), names: &[u8], look: &mut Look) -> BuildResult<()> {
        let (directory, fd) = open;
        look.begin(fd);
        let mut all = Vec::new();
        for name in names.split_inclusive(|&byte| byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else {
                continue;
            };
            let path = || directory.path_of(name.to_bytes());
            if !(self.scan.keep)(&path()) {
                continue;
            }
            let object = look.object(fd, name, self.scan.saved);
            let mut object = object.map_err(|why| BuildError::Source { path: path(), why })?;
            let left_out = std::mem::take(&mut object.left_out);
            if !left_out.is_empty() {
                self.scan.tell_left_out(&path(), left_out)?;
            }
            all.push(object);
        }
        if let Some(counter) = self.scan.found {
            counter.add(all.len() as u64);
        }
        let mut tasks = Vec::new();
        let mut found = self.found.lock();
        let Found { tree, objects } = &mut *found;
        for object in all {
            let name = object.name.to_bytes();
            let put = object.put(tree, objects, directory);
            let node = put.map_err(|error| error.in_directory(&directory.path))?;
            if let Some(node) = node
                && tree.list_of(node).is_some()
            {
                tasks.push(Task::List(Directory {
                    node,
                    host: tree.add_host_dir(directory.host, name)?,
                    path: directory.path_of(name),
                    is_new: tree.children(node).len() == 0,
                }));
            }
        }
        drop(found);
        self.work.add(tasks);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

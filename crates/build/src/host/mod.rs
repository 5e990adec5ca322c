//! **Purpose.** Reads a directory of the host into the tree.
//!
//! | module | responsibility |
//! |---|---|
//! | [`beneath`] | opens files below a directory without leaving it |
//! | `tasks` | the queue of directories and names that are still to be read |
//! | `inspect` | reads the attributes of one object |
//!
//! **Not here.** File data, which is read when the image is written (`write::reader`).
//!
//! **Model.** A task is a directory to list or a few hundred names to inspect, so that one large
//! directory also keeps all cores busy. Objects are accessed relative to their open directory and
//! never through a symbolic link. A file is taken as sparse if its blocks are fewer than its length
//! requires; only then are its holes looked up. Hard links are recognised by device and inode
//! number.
//!
//! **Locking.** One lock protects the tree; it is taken once for the results of each task and never
//! held across a system call. The task queue has its own lock.

pub mod beneath;
mod inspect;
mod tasks;

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
use inspect::{Inspector, ObjectKey};
use tasks::Tasks;

/// Number of names in one task.
const TASK_NAMES: usize = 512;
/// Size of the buffer for directory entries.
const LIST_BYTES: usize = 64 << 10;

/// Options for reading a directory.
#[derive(Clone, Copy)]
pub struct Scan<'a> {
    /// Number of threads.
    pub threads: usize,
    /// Whether the object at a path goes into the tree; a directory that does not is not entered.
    /// Paths have single slashes between names, and none at their ends.
    pub keep: &'a (dyn Fn(&[u8]) -> bool + Sync),
    /// The file that fakeroot saved.
    pub saved: Option<&'a Saved>,
    /// Counter of found objects.
    pub found: Option<&'a Counter>,
    /// Receives a notice for each attribute that is left out because ext4 cannot store it, such as
    /// those of NFS and btrfs. If `None`, such an attribute is an error.
    pub left_out: Option<&'a Mutex<Notices>>,
}

impl Scan<'_> {
    /// Reads everything.
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

    fn report_left_out(&self, path: &[u8], names: Vec<Vec<u8>>) -> BuildResult<()> {
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

/// Reads all objects of the directory at `path` into the tree, over existing ones. The root gets
/// the attributes of the directory.
///
/// # Errors
/// [`BuildError::Source`] for an object that cannot be read; errors of the tree.
pub fn add_directory(tree: &mut Tree, path: &Path, scan: &Scan<'_>) -> BuildResult<()> {
    let failed = |why: io::Error| BuildError::Source {
        path: path.as_os_str().as_encoded_bytes().to_vec(),
        why,
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|why| failed(why.into()))?;
    let root = File::from(root);
    let mut inspector = Inspector::default();
    let (meta, xattrs, left_out) = inspector.root(&root, scan.saved).map_err(failed)?;
    scan.report_left_out(b"/", left_out)?;
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
        tasks: Tasks::new(Task::List(first)),
        found: Mutex::new(Found {
            tree,
            objects: HashMap::new(),
        }),
        failed: Mutex::new(None),
    };
    thread::scope(|scope| {
        // The caller's thread is not one of them, because its working directory must not change.
        for _ in 0..scan.threads.max(1) {
            scope.spawn(|| scanning.run());
        }
    });
    match scanning.failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// A directory to be listed.
#[derive(Clone)]
struct Directory {
    node: NodeId,
    host: HostDirId,
    /// Path from the root, without a leading slash.
    path: Vec<u8>,
    /// Whether the directory is still empty in the tree.
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

/// A directory with its open descriptor.
struct OpenDirectory {
    directory: Directory,
    fd: OwnedFd,
}

/// A unit of work for one thread.
enum Task {
    List(Directory),
    /// Names in an open directory, each followed by a NUL.
    Inspect(Arc<OpenDirectory>, Vec<u8>),
}

/// The results so far.
struct Found<'a> {
    tree: &'a mut Tree,
    /// Nodes of objects with more than one name.
    objects: HashMap<ObjectKey, NodeId>,
}

struct Scanning<'a> {
    scan: &'a Scan<'a>,
    root: Arc<File>,
    tasks: Tasks<Task>,
    found: Mutex<Found<'a>>,
    failed: Mutex<Option<BuildError>>,
}

impl Scanning<'_> {
    fn run(&self) {
        let mut inspector = Inspector::for_worker();
        while let Some(task) = self.tasks.next() {
            let done = match task {
                Task::List(directory) => self.list(directory, &mut inspector),
                Task::Inspect(directory, names) => self.inspect(&directory, &names, &mut inspector),
            };
            if let Err(error) = done {
                self.failed.lock().get_or_insert(error);
                self.tasks.stop();
            }
            self.tasks.done();
        }
    }

    fn list(&self, directory: Directory, inspector: &mut Inspector) -> BuildResult<()> {
        let path = directory.path.clone();
        let failed = |why: io::Error| BuildError::Source {
            path: path.clone(),
            why,
        };
        let fd =
            beneath::open_directory(&self.root, &path).map_err(|errno| failed(errno.into()))?;
        let open = Arc::new(OpenDirectory { directory, fd });
        let mut buffer = vec![MaybeUninit::uninit(); LIST_BYTES];
        let mut entries = RawDir::new(&open.fd, &mut buffer);
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
                self.tasks.add([Task::Inspect(Arc::clone(&open), full)]);
            }
        }
        self.inspect(&open, &names, inspector)
    }

    /// Inspects names of a directory and puts the objects into the tree.
    fn inspect(
        &self,
        open: &OpenDirectory,
        names: &[u8],
        inspector: &mut Inspector,
    ) -> BuildResult<()> {
        let OpenDirectory { directory, fd } = open;
        inspector.enter(fd);
        let mut all = Vec::new();
        for name in names.split_inclusive(|&byte| byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else {
                continue;
            };
            let path = || directory.path_of(name.to_bytes());
            if !(self.scan.keep)(&path()) {
                continue;
            }
            let object = inspector.object(fd, name, self.scan.saved);
            let mut object = object.map_err(|why| BuildError::Source { path: path(), why })?;
            let left_out = std::mem::take(&mut object.left_out);
            if !left_out.is_empty() {
                self.scan.report_left_out(&path(), left_out)?;
            }
            all.push(object);
        }
        if let Some(counter) = self.scan.found {
            counter.add(all.len() as u64);
        }
        let mut subdirectories = Vec::new();
        let mut found = self.found.lock();
        let Found { tree, objects } = &mut *found;
        for object in all {
            let name = object.name.to_bytes();
            let put = object.put(tree, objects, directory);
            let node = put.map_err(|error| error.in_directory(&directory.path))?;
            if let Some(node) = node
                && tree.list_of(node).is_some()
            {
                subdirectories.push(Task::List(Directory {
                    node,
                    host: tree.add_host_dir(directory.host, name)?,
                    path: directory.path_of(name),
                    is_new: tree.children(node).len() == 0,
                }));
            }
        }
        drop(found);
        self.tasks.add(subdirectories);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! **Purpose.** `fourscore extract IMAGE DIR`: copies the tree of an image to a directory of the
//! host.
//!
//! **Not here.** The tar archive on standard output ([`crate::tar`]).
//!
//! | module | responsibility |
//! |---|---|
//! | [`host`] | creates objects below one directory, and never outside of it |
//!
//! **Model.** All threads create objects. Until everything in a directory is complete, only its
//! owner can enter it. The first thread that finds a name of a file with several hard links creates
//! the file. The other names are linked after all objects exist. The directories get their owners,
//! attributes, modes and times last, since every new entry changes these.
//!
//! **Locking.** The lists of links and directories are locked once per task. The map of inodes with
//! several hard links is sharded by inode number, and a shard is locked once for each such name.

pub(crate) mod host;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use fourscore::{Follow, Stat};
use fourscore_ondisk::InodeNr;
use fourscore_sync::{Arc, CachePadded, Counter, Mutex};
use rustix::io::Errno;

use crate::content::{Run, Stopped, for_each_run, read_exactly};
use crate::facts::{Facts, Kind};
use crate::failure::{Failure, Problems, Result, message};
use crate::image::Image;
use crate::progress::Progress;
use crate::tree::listing::Listing;
use crate::tree::{self, Output, Received, Walker};
use crate::walk::image::{Seen, attributes, list};
use crate::walk::line::Attributes;
use host::{Privilege, TargetDir, TargetTree, finish_open};

/// Entries of one task.
const CHUNK_OBJECTS: usize = 256;
/// Size of the copy buffer.
const COPY_BYTES: usize = 1 << 20;
/// The kernel copies or shares runs of at least this length.
const KERNEL_COPY_BYTES_MIN: u64 = 128 << 10;
/// Paths longer than this are not followed.
const PATH_BYTES_MAX: usize = 64 << 10;
const SHARDS: usize = 64;

/// Extracts the tree of `image` to the directory `to` with `threads` threads.
pub(crate) fn to_directory(image: &Image, to: &Path, threads: usize) -> Result<()> {
    let root = Task::Directory {
        inode: InodeNr::ROOT,
        path: Vec::new(),
    };
    Extractor::new(image, TargetTree::open(to)?).run_all(root, threads)
}

/// Extracts the objects at `paths` of `image` to the directory `to`. They keep the directories that
/// they are in, which get the attributes of new directories if they are missing. These are opened
/// name by name below `to`, so that no link, neither an older one nor one of the image, leads out.
/// An error with the objects of one directory does not keep those of others from being extracted.
pub(crate) fn paths(image: &Image, to: &Path, paths: &[PathBuf], threads: usize) -> Result<()> {
    let chosen = chosen(image, paths)?;
    // By directory, so that hard links among the objects of one are kept.
    let mut by_parent: BTreeMap<Vec<u8>, Vec<(InodeNr, Vec<u8>)>> = BTreeMap::new();
    for (path, inode) in &chosen {
        let parent = path.parent().unwrap_or(Path::new(""));
        let name = path.file_name().unwrap_or_default();
        let objects = by_parent
            .entry(parent.as_os_str().as_bytes().to_vec())
            .or_default();
        objects.push((*inode, name.as_bytes().to_vec()));
    }
    let named = |why| Failure::new(to.display().to_string(), why);
    std::fs::create_dir_all(to).map_err(named)?;
    let tree = TargetTree::existing(to)?;
    let mut result = Ok(());
    for (parent, found) in &by_parent {
        let below = tree.below(parent).map_err(|failure| {
            let path = to.join(OsStr::from_bytes(parent));
            failure.named(path.as_os_str().as_bytes())
        });
        let extracted = below.and_then(|below| objects_in(image, found, below, threads));
        if let Err(failure) = extracted {
            if !matches!(failure, Failure::AlreadyReported) {
                message(&failure.to_string());
            }
            result = Err(Failure::AlreadyReported);
        }
    }
    result
}

/// The objects that `paths` name, by their paths in the image without a leading slash. One that is
/// named twice, or is in a directory that is named, is extracted once.
fn chosen(image: &Image, paths: &[PathBuf]) -> Result<BTreeMap<PathBuf, InodeNr>> {
    let mut chosen = BTreeMap::new();
    let mut directories = HashSet::new();
    for path in paths {
        for path in image.expand(path)? {
            let inode = image.resolve(&path, Follow::No)?;
            let is_name = |part: &Component<'_>| matches!(part, Component::Normal(_));
            let parts: PathBuf = path.components().filter(is_name).collect();
            let climbs = path.components().any(|part| part == Component::ParentDir);
            if climbs || parts.file_name().is_none() {
                let why = "has no name that can be extracted; leave the path out for everything";
                return Err(image.failure(path.as_os_str().as_bytes(), why));
            }
            let stat = image.fs.stat(inode);
            let stat = stat.map_err(|why| image.failure(path.as_os_str().as_bytes(), why))?;
            if Facts::from(&stat).kind == Kind::Directory {
                directories.insert(parts.clone());
            }
            chosen.insert(parts, inode);
        }
    }
    chosen.retain(|path, _| {
        !path
            .ancestors()
            .skip(1)
            .any(|above| directories.contains(above))
    });
    Ok(chosen)
}

/// Extracts objects of `image`, with everything below them, into the directory `parent`, in which
/// their names must not exist. Symbolic links in `parent` are followed.
pub(crate) fn objects(
    image: &Image,
    objects: &[(InodeNr, Vec<u8>)],
    parent: &Path,
    threads: usize,
) -> Result<()> {
    objects_in(image, objects, TargetTree::existing(parent)?, threads)
}

/// As [`objects`], into an open directory.
fn objects_in(
    image: &Image,
    objects: &[(InodeNr, Vec<u8>)],
    parent: TargetTree,
    threads: usize,
) -> Result<()> {
    let extractor = Extractor::new(image, parent);
    let mut listing = Listing::default();
    for (inode, name) in objects {
        listing.push(name, inode.0.into(), None);
    }
    let shared = Shared {
        dir: extractor.target.directory(b"")?,
        listing,
        path: Vec::new(),
    };
    let all = Task::Chunk {
        shared: Arc::new(shared),
        from: 0,
        to: objects.len(),
    };
    extractor.run_all(all, threads)
}

struct Extractor<'i> {
    image: &'i Image,
    target: TargetTree,
    problems: Problems,
    progress: Progress,
    seen: Seen,
    first_names: FirstNames,
    /// Further names of files, which are linked at the end.
    more_names: Mutex<Vec<(InodeNr, Vec<u8>)>>,
    /// Directories by path, which are finished at the end.
    directories: Mutex<Vec<(Vec<u8>, InodeNr)>>,
    /// Number of attributes, devices and set-id modes that were left out, since only root can
    /// create them.
    left_out: Counter,
}

/// Paths by inode.
type Paths = HashMap<InodeNr, Vec<u8>>;

/// The path at which each file with several hard links was created.
struct FirstNames {
    shards: [CachePadded<Mutex<Paths>>; SHARDS],
}

impl Default for FirstNames {
    fn default() -> Self {
        let shards = std::array::from_fn(|_| CachePadded::default());
        Self { shards }
    }
}

impl FirstNames {
    fn shard(&self, inode: InodeNr) -> &Mutex<Paths> {
        &self.shards[inode.0 as usize % SHARDS]
    }
}

enum Task {
    /// Fills the directory `path`, which exists and is empty.
    Directory { inode: InodeNr, path: Vec<u8> },
    /// Creates some of the entries of a large directory.
    Chunk {
        shared: Arc<Shared>,
        from: usize,
        to: usize,
    },
}

struct Shared {
    dir: TargetDir,
    listing: Listing,
    path: Vec<u8>,
}

#[derive(Default)]
struct Buffers {
    content: Vec<u8>,
    listed: Vec<u8>,
    attributes: Attributes,
    links: Vec<(InodeNr, Vec<u8>)>,
}

impl Walker for Extractor<'_> {
    type Task = Task;
    type Special = std::convert::Infallible;
    type Scratch = Buffers;

    fn run(&self, task: Task, buffers: &mut Buffers, out: &mut Output<Self>) {
        match task {
            Task::Directory { inode, path } => {
                let filled = self.fill(inode, path.clone(), buffers, out);
                if let Err(failure) = filled {
                    self.report(&path, b"", &failure);
                }
                self.directories.lock().push((path, inode));
            }
            Task::Chunk { shared, from, to } => {
                for nr in from..to {
                    self.entry(&shared, nr, buffers, out);
                }
                self.progress.add(to - from);
            }
        }
        if !buffers.links.is_empty() {
            self.more_names.lock().append(&mut buffers.links);
        }
    }
}

impl<'i> Extractor<'i> {
    fn new(image: &'i Image, target: TargetTree) -> Self {
        Self {
            image,
            target,
            problems: Problems::default(),
            progress: Progress::of_objects(image.objects()),
            seen: Seen::default(),
            first_names: FirstNames::default(),
            more_names: Mutex::default(),
            directories: Mutex::default(),
            left_out: Counter::default(),
        }
    }

    fn run_all(self, first: Task, threads: usize) -> Result<()> {
        tree::walk(&self, first, threads, |received| match received {
            Received::Bytes(_) => Ok(()),
            Received::Special(never) => match never {},
        })?;
        self.finish()
    }

    fn fill(
        &self,
        inode: InodeNr,
        path: Vec<u8>,
        buffers: &mut Buffers,
        out: &mut Output<Self>,
    ) -> Result<()> {
        self.seen.visit(inode)?;
        let dir = self.target.directory(&path)?;
        let mut listing = Listing::default();
        // The entries that were listed before an error are extracted.
        let listed = list(self.image, inode, &mut listing, &mut buffers.listed);
        let len = listing.len();
        let shared = Shared { dir, listing, path };
        if len <= CHUNK_OBJECTS {
            for nr in 0..len {
                self.entry(&shared, nr, buffers, out);
            }
            self.progress.add(len);
        } else {
            let shared = Arc::new(shared);
            for from in (0..len).step_by(CHUNK_OBJECTS) {
                out.child(Task::Chunk {
                    shared: Arc::clone(&shared),
                    from,
                    to: len.min(from + CHUNK_OBJECTS),
                });
            }
        }
        listed
    }

    /// Creates one entry and reports a problem with it.
    fn entry(&self, shared: &Shared, nr: usize, buffers: &mut Buffers, out: &mut Output<Self>) {
        let name = shared.listing.name(nr);
        let created = u32::try_from(shared.listing.inode(nr))
            .map_err(|error| Failure::new("", error))
            .and_then(|inode| self.create(shared, name, InodeNr(inode), buffers, out));
        if let Err(failure) = created {
            self.report(&shared.path, name, &failure);
        }
    }

    fn create(
        &self,
        shared: &Shared,
        name: &[u8],
        inode: InodeNr,
        buffers: &mut Buffers,
        out: &mut Output<Self>,
    ) -> Result<()> {
        host::check_name(name)?;
        let stat = self
            .image
            .fs
            .stat(inode)
            .map_err(|error| Failure::new("", error))?;
        let facts = Facts::from(&stat);
        let path = join(&shared.path, name);
        if facts.kind == Kind::Directory {
            if path.len() > PATH_BYTES_MAX {
                let why = format_args!("the path has more than {PATH_BYTES_MAX} bytes");
                return Err(Failure::new("", why));
            }
            shared.dir.create_directory(name)?;
            out.child(Task::Directory { inode, path });
            return Ok(());
        }
        let privilege = self.target.privilege;
        // Before its names are linked: there is nothing to link them to.
        if facts.kind.is_device() && privilege == Privilege::User {
            self.left_out.add(1);
            return Ok(());
        }
        if facts.links > 1 && self.has_name(inode, &path) {
            buffers.links.push((inode, path));
            return Ok(());
        }
        buffers.attributes.clear();
        attributes(self.image, inode, &mut buffers.attributes)?;
        let left_out = match facts.kind {
            Kind::File => {
                let file = shared.dir.create_file(name)?;
                // A file that cannot be read to its end keeps what was read, and is reported.
                let copied = copy_content(self.image, &stat, &file, &mut buffers.content);
                let left_out = finish_open(&file, &facts, &buffers.attributes, privilege)?;
                copied?;
                left_out
            }
            Kind::Symlink => {
                let target = self.image.fs.read_link(inode);
                let target = target.map_err(|error| Failure::new("", error))?;
                shared.dir.create_symlink(name, &target)?;
                shared
                    .dir
                    .finish(name, &facts, &buffers.attributes, privilege)?
            }
            _ => {
                shared.dir.create_node(name, &facts)?;
                shared
                    .dir
                    .finish(name, &facts, &buffers.attributes, privilege)?
            }
        };
        if left_out > 0 {
            self.left_out.add(left_out);
        }
        Ok(())
    }

    /// Whether the file has been created under another name. If not, it becomes `path`.
    fn has_name(&self, inode: InodeNr, path: &[u8]) -> bool {
        let mut names = self.first_names.shard(inode).lock();
        if names.contains_key(&inode) {
            return true;
        }
        names.insert(inode, path.to_vec());
        false
    }

    /// Links the further names and finishes the directories.
    fn finish(self) -> Result<()> {
        let mut more_names = std::mem::take(&mut *self.more_names.lock());
        more_names.sort_unstable_by(|a, b| a.1.cmp(&b.1));
        for (inode, path) in &more_names {
            if let Err(failure) = self.link(*inode, path) {
                self.report(path, b"", &failure);
            }
        }
        let mut directories = std::mem::take(&mut *self.directories.lock());
        // Deepest first: the mode of a directory may forbid this user to enter it.
        directories.sort_unstable_by(|a, b| b.0.cmp(&a.0));
        let mut with = Attributes::default();
        for (path, inode) in &directories {
            if let Err(failure) = self.finish_directory(path, *inode, &mut with) {
                self.report(path, b"", &failure);
            }
        }
        let left_out = self.left_out.sum();
        if left_out > 0 {
            message(&format!(
                "{left_out} devices, attributes and set-id modes were left out (run as root to extract them)"
            ));
        }
        self.problems.result()
    }

    fn link(&self, inode: InodeNr, path: &[u8]) -> Result<()> {
        let names = self.first_names.shard(inode).lock();
        let old = names.get(&inode).map_or(&b""[..], Vec::as_slice);
        let (old_dir, old_name) = split_name(old);
        let (dir, name) = split_name(path);
        let (dir, old_dir) = (self.target.directory(dir)?, self.target.directory(old_dir)?);
        dir.create_hard_link(name, &old_dir, old_name)
    }

    fn finish_directory(&self, path: &[u8], inode: InodeNr, with: &mut Attributes) -> Result<()> {
        let stat = self
            .image
            .fs
            .stat(inode)
            .map_err(|error| Failure::new("", error))?;
        with.clear();
        attributes(self.image, inode, with)?;
        let dir = self.target.directory(path)?;
        let left_out = dir.finish_itself(&Facts::from(&stat), with, self.target.privilege)?;
        self.left_out.add(left_out);
        Ok(())
    }

    fn report(&self, path: &[u8], name: &[u8], failure: &Failure) {
        let path = if name.is_empty() {
            path.to_vec()
        } else {
            join(path, name)
        };
        self.problems
            .report_at(&[b"/", path.as_slice()].concat(), failure);
    }
}

/// Copies the data of a file; the rest is holes.
pub(crate) fn copy_content(
    image: &Image,
    stat: &Stat,
    file: &File,
    buffer: &mut Vec<u8>,
) -> Result<()> {
    file.set_len(stat.size_bytes)
        .map_err(|error| Failure::new("", error))?;
    let copied = for_each_run(&image.fs, stat, |run| {
        if copy_in_kernel(image, run, file)? {
            return Ok(());
        }
        buffer.resize(COPY_BYTES, 0);
        let (mut at, end) = (run.offset, run.offset + run.len_bytes);
        while at < end {
            let len = usize::try_from(end - at).map_or(COPY_BYTES, |len| len.min(COPY_BYTES));
            let part = &mut buffer[..len];
            read_exactly(&image.fs, stat.inode, part, at)
                .map_err(|error| Failure::new("", error))?;
            file.write_all_at(part, at)
                .map_err(|error| Failure::new("", error))?;
            at += len as u64;
        }
        Ok(())
    });
    copied.map_err(|stopped| match stopped {
        Stopped::Fs(error) => Failure::new("", error),
        Stopped::Visitor(failure) => failure,
    })
}

/// Copies a long run from the image's file in the kernel, which shares its blocks if the host's
/// file system can. Returns whether it was copied.
fn copy_in_kernel(image: &Image, run: Run, file: &File) -> Result<bool> {
    let Some(from) = run
        .device_offset
        .filter(|_| run.len_bytes >= KERNEL_COPY_BYTES_MIN)
    else {
        return Ok(false);
    };
    let Some(source) = image.fs.device().host_range(from..from + run.len_bytes) else {
        return Ok(false);
    };
    let (mut from, mut to, mut left) = (source.offset, run.offset, run.len_bytes);
    while left > 0 {
        let len = usize::try_from(left).unwrap_or(COPY_BYTES);
        let result =
            rustix::fs::copy_file_range(source.file, Some(&mut from), file, Some(&mut to), len);
        match result {
            // The image ends early; the copy through a buffer reports that.
            Ok(0) => return Ok(false),
            Ok(count) => left = left.saturating_sub(count as u64),
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
                return Ok(false);
            }
            Err(errno) => return Err(Failure::new("", errno)),
        }
    }
    Ok(true)
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        name.to_vec()
    } else {
        [path, b"/", name].concat()
    }
}

/// The directory and the name of a path.
fn split_name(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

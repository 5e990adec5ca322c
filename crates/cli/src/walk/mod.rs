//! **Purpose.** `fourscore walk`: prints one canonical line for each object of a tree.
//!
//! | module | responsibility |
//! |---|---|
//! | [`mod@line`] | the format of a line |
//! | [`json`] | lines as JSON objects |
//! | [`source`] | the interface of trees |
//! | [`host`] | a directory of the host as a source |
//! | [`image`] | an image as a source |
//! | [`hash`] | SHA-256 of a file's data |
//!
//! **Model.** A task is a directory, or a run of [`CHUNK_OBJECTS`] steps of a large one, so that
//! one directory with a million entries keeps all threads busy. Within a task the inodes are read
//! in inode order, which is the order of the inode table, and printed in path order.

pub(crate) mod hash;
pub(crate) mod host;
pub(crate) mod image;
mod json;
pub(crate) mod line;
pub(crate) mod source;

use fourscore_sync::Arc;

use crate::facts::{Facts, Kind};
use crate::failure::{Failure, Problems, Result};
use crate::output::Stdout;
use crate::progress::Progress;
use crate::text::push_hex;
use crate::tree::listing::{Listing, Step};
use crate::tree::{self, Output, Received, Walker};
use json::Objects;
use line::{Attributes, Detail};
use source::{Entry, Source};

/// Steps of one task.
const CHUNK_OBJECTS: usize = 1024;
/// Steps of one task if data is hashed, which takes longer.
const CHUNK_HASHED_OBJECTS: usize = 16;
/// Paths (in their escaped form) longer than this are not followed: a hostile image could
/// otherwise fill the output with the square of its size.
const PATH_BYTES_MAX: usize = 64 << 10;

/// Whether data is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hashing {
    No,
    Sha256,
}

/// The fields that are printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub(crate) detail: Detail,
    pub(crate) hashing: Hashing,
    pub(crate) form: Form,
}

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Canonical lines.
    Lines,
    /// JSON objects, one on a line.
    Json,
}

/// Prints the tree of `source` to `out` with `threads` threads. `objects` is the number of objects,
/// if it is known.
pub(crate) fn print<S: Source>(
    source: &S,
    format: Format,
    threads: usize,
    objects: Option<u64>,
    out: &mut Stdout,
) -> Result<()> {
    let problems = Problems::default();
    let walker = LineWalker {
        source,
        format,
        problems: &problems,
        progress: Progress::beside_output(objects),
    };
    let mut objects = Objects::new(format);
    let mut text = Vec::new();
    let written = tree::walk(&walker, Task::Root, threads, |received| match received {
        Received::Bytes(bytes) if format.form == Form::Lines => out.write(bytes),
        Received::Bytes(bytes) => {
            text.clear();
            objects.push(bytes, &mut text);
            out.write(&text)
        }
        Received::Special(never) => match never {},
    });
    written.and_then(|()| out.flush())?;
    problems.result()
}

struct LineWalker<'a, S: Source> {
    source: &'a S,
    format: Format,
    problems: &'a Problems,
    progress: Progress,
}

/// A piece of the walk.
enum Task<S: Source> {
    /// The root of the walk, and everything below it.
    Root,
    /// The contents of a directory.
    Directory {
        directory: S::Directory,
        /// Escaped, without a slash at the end.
        path: Vec<u8>,
    },
    /// Some of the steps of a directory that is too large for one task.
    Chunk {
        shared: Arc<Shared<S>>,
        from: usize,
        to: usize,
    },
}

/// A directory that several tasks print.
struct Shared<S: Source> {
    open: S::Open,
    listing: Listing,
    steps: Vec<Step>,
    path: Vec<u8>,
}

/// Buffers of one thread.
struct Buffers<S: Source> {
    source: S::Scratch,
    listing: Listing,
    steps: Vec<Step>,
    by_inode: Vec<(u64, usize)>,
    facts: Vec<Option<Facts>>,
    target: Vec<u8>,
    attributes: Attributes,
}

impl<S: Source> Default for Buffers<S> {
    fn default() -> Self {
        Self {
            source: S::Scratch::default(),
            listing: Listing::default(),
            steps: Vec::new(),
            by_inode: Vec::new(),
            facts: Vec::new(),
            target: Vec::new(),
            attributes: Attributes::default(),
        }
    }
}

/// The steps of one directory that are printed together.
struct View<'v, S: Source> {
    open: &'v S::Open,
    listing: &'v Listing,
    steps: &'v [Step],
    path: &'v [u8],
}

impl<S: Source> Walker for LineWalker<'_, S> {
    type Task = Task<S>;
    type Special = std::convert::Infallible;
    type Scratch = Buffers<S>;

    fn run(&self, task: Task<S>, buffers: &mut Buffers<S>, out: &mut Output<Self>) {
        match task {
            Task::Root => self.root(buffers, out),
            Task::Directory { directory, path } => {
                if let Err(failure) = self.directory(&directory, &path, buffers, out) {
                    self.report(&path, b"", &failure);
                }
            }
            Task::Chunk { shared, from, to } => {
                let view = View {
                    open: &shared.open,
                    listing: &shared.listing,
                    steps: shared.steps.get(from..to).unwrap_or_default(),
                    path: &shared.path,
                };
                self.steps(&view, buffers, out);
            }
        }
    }
}

impl<S: Source> LineWalker<'_, S> {
    fn root(&self, buffers: &mut Buffers<S>, out: &mut Output<Self>) {
        let result = self.source.root().and_then(|open| {
            let facts = self
                .source
                .facts(&open, Entry::Itself, &mut buffers.source)?;
            out.bytes.push(b'/');
            self.rest_of_line(&open, Entry::Itself, &facts, buffers, &mut out.bytes)?;
            if facts.kind == Kind::Directory {
                out.child(Task::Directory {
                    directory: self.source.root_directory(),
                    path: Vec::new(),
                });
            }
            Ok(())
        });
        if let Err(failure) = result {
            out.bytes.clear();
            self.report(b"", b"", &failure);
        }
    }

    /// Lists a directory and prints it, or divides it into tasks.
    fn directory(
        &self,
        directory: &S::Directory,
        path: &[u8],
        buffers: &mut Buffers<S>,
        out: &mut Output<Self>,
    ) -> Result<()> {
        let open = self.source.open(directory)?;
        let mut listing = std::mem::take(&mut buffers.listing);
        let mut steps = std::mem::take(&mut buffers.steps);
        listing.clear();
        // The entries that were listed before an error are printed.
        let listed = self.source.list(&open, &mut listing, &mut buffers.source);
        self.complete_kinds(&open, &mut listing, &mut buffers.source);
        listing.steps(&mut steps);
        let chunk = match self.format.hashing {
            Hashing::No => CHUNK_OBJECTS,
            Hashing::Sha256 => CHUNK_HASHED_OBJECTS,
        };
        if steps.len() <= chunk {
            let view = View {
                open: &open,
                listing: &listing,
                steps: &steps,
                path,
            };
            self.steps(&view, buffers, out);
            buffers.listing = listing;
            buffers.steps = steps;
        } else {
            let len = steps.len();
            let path = path.to_vec();
            let shared = Arc::new(Shared {
                open,
                listing,
                steps,
                path,
            });
            for from in (0..len).step_by(chunk) {
                out.child(Task::Chunk {
                    shared: Arc::clone(&shared),
                    from,
                    to: len.min(from + chunk),
                });
            }
        }
        listed
    }

    /// Reads the kinds that the directory entries do not have, since the order depends on them.
    fn complete_kinds(&self, open: &S::Open, listing: &mut Listing, scratch: &mut S::Scratch) {
        for nr in 0..listing.len() {
            if listing.kind(nr).is_none() {
                let entry = Entry::Named(listing.name(nr), listing.inode(nr));
                // An error is reported when the object itself is printed.
                if let Ok(facts) = self.source.facts(open, entry, scratch) {
                    listing.set_kind(nr, facts.kind);
                }
            }
        }
    }

    /// Prints the steps of a directory or of a part of it.
    fn steps(&self, view: &View<'_, S>, buffers: &mut Buffers<S>, out: &mut Output<Self>) {
        self.collect_facts(view, buffers);
        for (position, step) in view.steps.iter().enumerate() {
            match *step {
                Step::Object(nr) => {
                    let facts = buffers.facts.get_mut(position).and_then(Option::take);
                    let before = out.bytes.len();
                    if let Some(facts) = facts
                        && let Err(failure) = self.object(view, nr, &facts, buffers, out)
                    {
                        out.bytes.truncate(before);
                        self.report(view.path, view.listing.name(nr), &failure);
                    }
                }
                Step::Subtree(nr) => self.subtree(view, nr, out),
            }
        }
        self.progress.add(buffers.by_inode.len());
    }

    /// Fills `buffers.facts`, one slot for each step, in inode order.
    fn collect_facts(&self, view: &View<'_, S>, buffers: &mut Buffers<S>) {
        buffers.by_inode.clear();
        for (position, step) in view.steps.iter().enumerate() {
            if let Step::Object(nr) = *step {
                buffers.by_inode.push((view.listing.inode(nr), position));
            }
        }
        buffers.by_inode.sort_unstable();
        buffers.facts.clear();
        buffers.facts.resize(view.steps.len(), None);
        for &(inode, position) in &buffers.by_inode {
            let Some(Step::Object(nr)) = view.steps.get(position) else {
                continue;
            };
            let name = view.listing.name(*nr);
            match self
                .source
                .facts(view.open, Entry::Named(name, inode), &mut buffers.source)
            {
                Ok(facts) => {
                    if let Some(slot) = buffers.facts.get_mut(position) {
                        *slot = Some(facts);
                    }
                }
                Err(failure) => self.report(view.path, name, &failure),
            }
        }
    }

    fn object(
        &self,
        view: &View<'_, S>,
        nr: usize,
        facts: &Facts,
        buffers: &mut Buffers<S>,
        out: &mut Output<Self>,
    ) -> Result<()> {
        let (name, inode) = (view.listing.name(nr), view.listing.inode(nr));
        let entry = Entry::Named(name, inode);
        line::push_path(&mut out.bytes, view.path, name);
        self.rest_of_line(view.open, entry, facts, buffers, &mut out.bytes)?;
        match view.listing.kind(nr) {
            Some(kind) if S::KINDS_AGREE && kind != facts.kind => Err(Failure::new(
                "",
                format_args!(
                    "the directory entry has the type {}, and the inode {}",
                    kind.name(),
                    facts.kind.name()
                ),
            )),
            _ => Ok(()),
        }
    }

    fn rest_of_line(
        &self,
        open: &S::Open,
        entry: Entry<'_>,
        facts: &Facts,
        buffers: &mut Buffers<S>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        buffers.target.clear();
        if facts.kind == Kind::Symlink {
            self.source
                .target(open, entry, facts, &mut buffers.target)?;
        }
        buffers.attributes.clear();
        if facts.may_have_attributes {
            self.source
                .attributes(open, entry, &mut buffers.source, &mut buffers.attributes)?;
        }
        buffers.attributes.sort();
        line::push_fields(
            out,
            facts,
            &buffers.target,
            &buffers.attributes,
            self.format.detail,
        );
        if self.format.hashing == Hashing::Sha256 {
            out.push(b' ');
            if facts.kind == Kind::File {
                push_hex(
                    out,
                    &self
                        .source
                        .sha256(open, entry, facts, &mut buffers.source)?,
                );
            } else {
                out.push(b'-');
            }
        }
        out.push(b'\n');
        Ok(())
    }

    fn subtree(&self, view: &View<'_, S>, nr: usize, out: &mut Output<Self>) {
        let (name, inode) = (view.listing.name(nr), view.listing.inode(nr));
        let mut path = Vec::with_capacity(view.path.len() + 1 + name.len());
        line::push_path(&mut path, view.path, name);
        if path.len() > PATH_BYTES_MAX {
            let why = format_args!("its path has more than {PATH_BYTES_MAX} bytes");
            return self.report(b"", b"", &Failure::new("a directory", why));
        }
        match self.source.child(view.open, name, inode) {
            Ok(directory) => out.child(Task::Directory { directory, path }),
            Err(failure) => self.report(view.path, name, &failure),
        }
    }

    /// Reports a problem with `name` in the directory with the escaped path `path`.
    fn report(&self, path: &[u8], name: &[u8], failure: &Failure) {
        let mut what = Vec::new();
        if name.is_empty() && !path.is_empty() {
            what.extend_from_slice(path);
        } else {
            line::push_path(&mut what, path, name);
        }
        self.problems.report_at(&what, failure);
    }
}

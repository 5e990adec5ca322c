//! **Purpose.** `fourscore extract IMAGE -`: the tree of an image as a tar archive.
//!
//! | module | responsibility |
//! |---|---|
//! | [`header`] | headers in the pax format |
//! | [`acl`] | POSIX ACLs as text |
//!
//! **Model.** All threads make headers and read small files. The receiving thread writes the
//! archive: names are sorted by their bytes, and the contents of a directory directly follow it.
//! Tar programs need that order, since they set the time of a directory when the next member is not
//! inside it. If standard output is a pipe, the data of a large file is not read: `splice` moves
//! its pages from the image's file into the pipe.
//!
//! Holes are kept: a sparse file is stored in GNU's PAX format 1.0. A file with several hard links
//! is stored under its first name in path order; the other names are links to that. Sockets cannot
//! be stored; each is left out with a message.

mod acl;
pub(crate) mod header;

use std::collections::HashMap;

use fourscore::Stat;
use fourscore_ondisk::InodeNr;
use fourscore_sync::Arc;

use crate::content::{Run, Stopped, for_each_run, read_exactly};
use crate::facts::{Facts, Kind};
use crate::failure::{Failure, Problems, Result, message};
use crate::image::Image;
use crate::output::{Spliced, Stdout};
use crate::progress::Progress;
use crate::text::printable;
use crate::tree::listing::{Listing, Step};
use crate::tree::{self, Output, Received, Walker};
use crate::walk::image::{Seen, attributes, list};
use crate::walk::line::Attributes;
use header::{BLOCK_BYTES, Link, Member, Payload, RECORD_BYTES};

/// Steps of one task.
const CHUNK_OBJECTS: usize = 128;
/// The thread that makes the header of a file of at most this size reads its data as well.
const SMALL_FILE_BYTES: u64 = 128 << 10;
/// Runs of at least this length are spliced.
const SPLICE_BYTES_MIN: u64 = 64 << 10;
/// Size of the copy buffer.
const COPY_BYTES: usize = 1 << 20;
/// Paths longer than this are not followed.
const PATH_BYTES_MAX: usize = 64 << 10;

/// Writes the tree of `image` as a tar archive to `out` with `threads` threads.
pub(crate) fn to_stdout(image: &Image, threads: usize, out: &mut Stdout) -> Result<()> {
    let problems = Problems::default();
    let packer = Packer {
        image,
        problems: &problems,
        progress: Progress::beside_output(Some(image.objects())),
        seen: Seen::default(),
    };
    let mut archive = Archive {
        image,
        problems: &problems,
        out,
        written_bytes: 0,
        first_names: HashMap::new(),
        headers: Vec::new(),
        records: Vec::new(),
        buffer: Vec::new(),
    };
    tree::walk(&packer, Task::Root, threads, |received| match received {
        Received::Bytes(bytes) => archive.write(bytes),
        Received::Special(Special::Data(data)) => archive.data(&data),
        Received::Special(Special::HardLinked(file)) => archive.hard_linked(&file),
    })?;
    archive.end()?;
    problems.result()
}

/// Makes headers and reads small files.
struct Packer<'a> {
    image: &'a Image,
    problems: &'a Problems,
    progress: Progress,
    seen: Seen,
}

enum Task {
    Root,
    /// The contents of a directory; the path ends with a slash.
    Directory {
        inode: InodeNr,
        path: Vec<u8>,
    },
    /// Some of the steps of a large directory.
    Chunk {
        shared: Arc<Shared>,
        from: usize,
        to: usize,
    },
}

struct Shared {
    listing: Listing,
    steps: Vec<Step>,
    path: Vec<u8>,
}

/// Members that the receiving thread writes itself.
enum Special {
    /// The data of a large file, after its header.
    Data(Box<FileData>),
    /// A file with several hard links. Its first name is known only in path order.
    HardLinked(Box<HardLinked>),
}

/// The data of a file without its holes.
struct FileData {
    path: Vec<u8>,
    inode: InodeNr,
    runs: Vec<Run>,
}

/// A name of a file with several hard links.
struct HardLinked {
    path: Vec<u8>,
    facts: Facts,
    /// Target of a symbolic link; empty for other objects.
    target: Vec<u8>,
    attributes: Attributes,
    layout: FileLayout,
    inode: InodeNr,
}

/// How the data of a file is stored.
struct FileLayout {
    payload: Payload,
    runs: Vec<Run>,
}

impl FileLayout {
    /// For an object that is no regular file.
    const EMPTY: Self = Self {
        payload: Payload::Nothing,
        runs: Vec::new(),
    };

    fn data_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.len_bytes).sum()
    }

    /// Offset and length of each run, and an empty run at the end of a file that ends with a hole.
    fn map(&self, size: u64) -> Vec<(u64, u64)> {
        let ends_with_hole = self
            .runs
            .last()
            .is_none_or(|run| run.offset + run.len_bytes < size);
        let runs = self.runs.iter().map(|run| (run.offset, run.len_bytes));
        runs.chain(ends_with_hole.then_some((size, 0))).collect()
    }
}

#[derive(Default)]
struct Buffers {
    listed: Vec<u8>,
    attributes: Attributes,
    records: Vec<u8>,
}

impl Walker for Packer<'_> {
    type Task = Task;
    type Special = Special;
    type Scratch = Buffers;

    fn run(&self, task: Task, buffers: &mut Buffers, out: &mut Output<Self>) {
        match task {
            Task::Root => {
                self.object(b"./".to_vec(), InodeNr::ROOT, buffers, out);
                out.child(Task::Directory {
                    inode: InodeNr::ROOT,
                    path: b"./".to_vec(),
                });
            }
            Task::Directory { inode, path } => {
                if let Err(failure) = self.directory(inode, &path, buffers, out) {
                    self.problems.report_at(&path, &failure);
                }
            }
            Task::Chunk { shared, from, to } => {
                let steps = shared.steps.get(from..to).unwrap_or_default();
                self.steps(steps, &shared.listing, &shared.path, buffers, out);
            }
        }
    }
}

impl Packer<'_> {
    fn directory(
        &self,
        inode: InodeNr,
        path: &[u8],
        buffers: &mut Buffers,
        out: &mut Output<Self>,
    ) -> Result<()> {
        self.seen.visit(inode)?;
        let mut listing = Listing::default();
        // The entries that were listed before an error are stored.
        let listed = list(self.image, inode, &mut listing, &mut buffers.listed);
        self.complete_kinds(&mut listing);
        let mut steps = Vec::new();
        listing.depth_first_steps(&mut steps);
        if steps.len() <= CHUNK_OBJECTS {
            self.steps(&steps, &listing, path, buffers, out);
        } else {
            let len = steps.len();
            let path = path.to_vec();
            let shared = Arc::new(Shared {
                listing,
                steps,
                path,
            });
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

    /// Reads the kinds that the directory entries do not have from the inodes.
    fn complete_kinds(&self, listing: &mut Listing) {
        for nr in 0..listing.len() {
            if listing.kind(nr).is_none()
                && let Ok(inode) = u32::try_from(listing.inode(nr))
                && let Ok(facts) = self.image.facts(InodeNr(inode))
            {
                listing.set_kind(nr, facts.kind);
            }
        }
    }

    fn steps(
        &self,
        steps: &[Step],
        listing: &Listing,
        directory: &[u8],
        buffers: &mut Buffers,
        out: &mut Output<Self>,
    ) {
        for step in steps {
            self.step(*step, listing, directory, buffers, out);
        }
        let is_object = |step: &&Step| matches!(step, Step::Object(_));
        self.progress.add(steps.iter().filter(is_object).count());
    }

    fn step(
        &self,
        step: Step,
        listing: &Listing,
        directory: &[u8],
        buffers: &mut Buffers,
        out: &mut Output<Self>,
    ) {
        let (Step::Object(nr) | Step::Subtree(nr)) = step;
        let name = listing.name(nr);
        let mut path = [directory, name].concat();
        if listing.kind(nr) == Some(Kind::Directory) {
            path.push(b'/');
        }
        if let Err(failure) = crate::extract::host::check_name(name) {
            return self.problems.report_at(&path, &failure);
        }
        let Ok(inode) = u32::try_from(listing.inode(nr)).map(InodeNr) else {
            return;
        };
        match step {
            Step::Object(_) => self.object(path, inode, buffers, out),
            Step::Subtree(_) if path.len() > PATH_BYTES_MAX => {
                let why = format_args!("the path has more than {PATH_BYTES_MAX} bytes");
                self.problems.report_at(&path, &Failure::new("", why));
            }
            Step::Subtree(_) => out.child(Task::Directory { inode, path }),
        }
    }

    fn object(&self, path: Vec<u8>, inode: InodeNr, buffers: &mut Buffers, out: &mut Output<Self>) {
        let before = out.bytes.len();
        let name = path.clone();
        if let Err(failure) = self.try_object(path, inode, buffers, out) {
            out.bytes.truncate(before);
            self.problems.report_at(&name, &failure);
        }
    }

    fn try_object(
        &self,
        path: Vec<u8>,
        inode: InodeNr,
        buffers: &mut Buffers,
        out: &mut Output<Self>,
    ) -> Result<()> {
        let stat = self.image.fs.stat(inode).map_err(failure)?;
        let facts = Facts::from(&stat);
        if facts.kind == Kind::Socket {
            message(&format!(
                "{}: a socket cannot be stored in a tar archive (left out)",
                printable(&path)
            ));
            return Ok(());
        }
        if path.ends_with(b"/") != (facts.kind == Kind::Directory) {
            let why = format!(
                "the inode is a {}, and its directory entry has another type",
                facts.kind.name()
            );
            return Err(Failure::new("", why));
        }
        buffers.attributes.clear();
        attributes(self.image, inode, &mut buffers.attributes)?;
        buffers.attributes.sort();
        let target = if facts.kind == Kind::Symlink {
            self.image.fs.read_link(inode).map_err(failure)?
        } else {
            Vec::new()
        };
        let layout = if facts.kind == Kind::File {
            self.layout(&stat)?
        } else {
            FileLayout::EMPTY
        };
        if facts.links > 1 && facts.kind != Kind::Directory {
            out.special(Special::HardLinked(Box::new(HardLinked {
                path,
                facts,
                target,
                attributes: std::mem::take(&mut buffers.attributes),
                layout,
                inode,
            })));
            return Ok(());
        }
        let first = StoredFile {
            path: &path,
            facts: &facts,
            target: &target,
            attributes: &buffers.attributes,
            layout: &layout,
        };
        first.push_headers(&mut out.bytes, &mut buffers.records);
        let data_bytes = layout.data_bytes();
        if data_bytes <= SMALL_FILE_BYTES {
            for run in &layout.runs {
                let start = out.bytes.len();
                let len = usize::try_from(run.len_bytes).unwrap_or(0);
                out.bytes.resize(start + len, 0);
                read_exactly(&self.image.fs, inode, &mut out.bytes[start..], run.offset)
                    .map_err(failure)?;
            }
        } else {
            let runs = layout.runs;
            out.special(Special::Data(Box::new(FileData { path, inode, runs })));
        }
        header::pad(&mut out.bytes, data_bytes);
        Ok(())
    }

    /// The runs of a file. Its holes are kept if that makes the archive smaller.
    fn layout(&self, stat: &Stat) -> Result<FileLayout> {
        let size = stat.size_bytes;
        let mut runs = Vec::new();
        let visited = for_each_run(&self.image.fs, stat, |run| {
            runs.push(run);
            Ok::<(), std::convert::Infallible>(())
        });
        if let Err(Stopped::Fs(error)) = visited {
            return Err(failure(error));
        }
        let mut layout = FileLayout {
            payload: Payload::Whole(size),
            runs,
        };
        let data_bytes = layout.data_bytes();
        if data_bytes < size {
            let mut map = Vec::new();
            header::push_sparse_map(&mut map, &layout.map(size));
            let stored_bytes = data_bytes + map.len() as u64;
            if stored_bytes + BLOCK_BYTES as u64 <= size {
                layout.payload = Payload::Sparse {
                    stored_bytes,
                    real_bytes: size,
                };
            } else {
                layout.runs = vec![Run {
                    offset: 0,
                    len_bytes: size,
                    device_offset: None,
                }];
            }
        }
        Ok(layout)
    }
}

fn failure(error: fourscore::Error) -> Failure {
    Failure::new("", error)
}

/// An object with the name under which it is stored.
struct StoredFile<'a> {
    path: &'a [u8],
    facts: &'a Facts,
    /// Target of a symbolic link; empty for other objects.
    target: &'a [u8],
    attributes: &'a Attributes,
    layout: &'a FileLayout,
}

impl StoredFile<'_> {
    /// Appends the headers, and the map of a sparse file.
    fn push_headers(&self, out: &mut Vec<u8>, records: &mut Vec<u8>) {
        let link = match self.facts.kind {
            Kind::Symlink => Link::Symbolic(self.target),
            _ => Link::No,
        };
        let member = Member {
            path: self.path,
            facts: self.facts,
            link,
            attributes: self.attributes,
            payload: self.layout.payload,
        };
        header::push_member(out, &member, records);
        if let Payload::Sparse { real_bytes, .. } = self.layout.payload {
            header::push_sparse_map(out, &self.layout.map(real_bytes));
        }
    }
}

/// The archive, written by the receiving thread.
struct Archive<'a> {
    image: &'a Image,
    problems: &'a Problems,
    out: &'a mut Stdout,
    written_bytes: u64,
    first_names: HashMap<InodeNr, Vec<u8>>,
    headers: Vec<u8>,
    records: Vec<u8>,
    buffer: Vec<u8>,
}

impl Archive<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.written_bytes += bytes.len() as u64;
        self.out.write(bytes)
    }

    fn hard_linked(&mut self, file: &HardLinked) -> Result<()> {
        let mut headers = std::mem::take(&mut self.headers);
        headers.clear();
        if let Some(first) = self.first_names.get(&file.inode) {
            let member = Member {
                path: &file.path,
                facts: &file.facts,
                link: Link::Hard(first),
                attributes: &file.attributes,
                payload: Payload::Nothing,
            };
            header::push_member(&mut headers, &member, &mut self.records);
            self.write(&headers)?;
        } else {
            self.first_names.insert(file.inode, file.path.clone());
            let first = StoredFile {
                path: &file.path,
                facts: &file.facts,
                target: &file.target,
                attributes: &file.attributes,
                layout: &file.layout,
            };
            first.push_headers(&mut headers, &mut self.records);
            self.write(&headers)?;
            self.runs(&file.path, file.inode, &file.layout.runs)?;
            let padding = header::padding(file.layout.data_bytes());
            self.write(&[0; BLOCK_BYTES][..padding])?;
        }
        self.headers = headers;
        Ok(())
    }

    fn data(&mut self, data: &FileData) -> Result<()> {
        self.runs(&data.path, data.inode, &data.runs)
    }

    /// Writes runs. Data that cannot be read is reported and written as zeros, since the header has
    /// the length of the file.
    fn runs(&mut self, path: &[u8], inode: InodeNr, runs: &[Run]) -> Result<()> {
        for run in runs {
            let mut done = self.splice(*run)?;
            self.buffer.resize(COPY_BYTES, 0);
            while done < run.len_bytes {
                let left = run.len_bytes - done;
                let len = usize::try_from(left).map_or(COPY_BYTES, |left| left.min(COPY_BYTES));
                let part = &mut self.buffer[..len];
                if let Err(error) = read_exactly(&self.image.fs, inode, part, run.offset + done) {
                    self.problems.report_at(path, &failure(error));
                    part.fill(0);
                }
                self.out.write(part)?;
                done += len as u64;
            }
            self.written_bytes += run.len_bytes;
        }
        Ok(())
    }

    /// Splices as much of a run as possible. Returns the number of bytes.
    fn splice(&mut self, run: Run) -> Result<u64> {
        let Some(from) = run
            .device_offset
            .filter(|_| run.len_bytes >= SPLICE_BYTES_MIN)
        else {
            return Ok(0);
        };
        let device = self.image.fs.device();
        let Some(source) = device.host_range(from..from.saturating_add(run.len_bytes)) else {
            return Ok(0);
        };
        let Spliced { bytes } = self.out.splice(source.file, source.offset, run.len_bytes)?;
        Ok(bytes)
    }

    /// Writes two blocks of zeros, and more up to the end of a record.
    fn end(&mut self) -> Result<()> {
        let end = self.written_bytes + 2 * BLOCK_BYTES as u64;
        let fill = end.next_multiple_of(RECORD_BYTES) - self.written_bytes;
        let zeros = vec![0; usize::try_from(fill).unwrap_or(0)];
        self.write(&zeros)?;
        self.out.flush()
    }
}

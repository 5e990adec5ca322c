//! **Purpose.** `fourscore cat` and `fourscore readlink`: the data of files, and the target of a
//! symbolic link.
//!
//! **Model.** If standard output is a regular file that is written at its end, holes are seeked
//! over, so that a sparse file stays sparse. If it is a pipe, long runs are spliced. A file that
//! cannot be read does not keep the others from being printed; the exit status says that it failed.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fourscore::{Follow, Stat};
use serde_json::json;

use crate::args::{Cat, OnePath};
use crate::content::{Stopped, for_each_run, read_exactly};
use crate::extract;
use crate::facts::{Facts, Kind};
use crate::failure::{Failure, Problems, Result};
use crate::image::Image;
use crate::output::Stdout;
use crate::text::printable;

/// Size of the copy buffer.
const COPY_BYTES: usize = 1 << 20;
/// Runs of at least this length are spliced.
const SPLICE_BYTES_MIN: u64 = 64 << 10;

/// Runs `cat`.
pub(crate) fn run(args: &Cat) -> Result<()> {
    let image = Image::open(&args.image)?;
    let mut out = Stdout::open()?;
    let mut buffer = Vec::new();
    let problems = Problems::default();
    let expanded: Vec<_> = { args.paths.iter() }
        .map(|path| image.expand(path))
        .collect::<Result<_>>()?;
    for path in expanded.iter().flatten() {
        match self::path(&image, path, &mut buffer, &mut out) {
            Err(Failure::BrokenPipe) => return Err(Failure::BrokenPipe),
            Err(failure) => problems.report(&failure),
            Ok(()) => {}
        }
    }
    out.finish()?;
    problems.result()
}

/// Writes the data of the file at `path` to standard output.
pub(crate) fn path(
    image: &Image,
    path: &Path,
    buffer: &mut Vec<u8>,
    out: &mut Stdout,
) -> Result<()> {
    let inode = image.resolve(path, Follow::Yes)?;
    let path = path.as_os_str().as_bytes();
    let stat = image.fs.stat(inode);
    let stat = stat.map_err(|why| image.failure(path, why))?;
    let kind = Facts::from(&stat).kind;
    if kind != Kind::File {
        return Err(image.failure(path, format_args!("is a {}", kind.name())));
    }
    file(image, path, &stat, buffer, out)
}

/// Writes the data of a regular file to standard output.
pub(crate) fn file(
    image: &Image,
    path: &[u8],
    stat: &Stat,
    buffer: &mut Vec<u8>,
    out: &mut Stdout,
) -> Result<()> {
    let mut at = 0;
    let visited = for_each_run(&image.fs, stat, |run| {
        out.zeros(run.offset - at)?;
        at = run.offset;
        let end = at + run.len_bytes;
        let long = run
            .device_offset
            .filter(|_| run.len_bytes >= SPLICE_BYTES_MIN);
        if let Some(from) = long
            && let Some(source) = image.fs.device().host_range(from..from + run.len_bytes)
        {
            at += out.splice(source.file, source.offset, run.len_bytes)?.bytes;
        }
        buffer.resize(COPY_BYTES, 0);
        while at < end {
            let len = usize::try_from(end - at).map_or(COPY_BYTES, |len| len.min(COPY_BYTES));
            let part = &mut buffer[..len];
            let read = read_exactly(&image.fs, stat.inode, part, at);
            read.map_err(|why| image.failure(path, why))?;
            out.write(part)?;
            at += len as u64;
        }
        Ok(())
    });
    visited.map_err(|stopped| match stopped {
        Stopped::Fs(why) => image.failure(path, why),
        Stopped::Visitor(failure) => failure,
    })?;
    out.zeros(stat.size_bytes - at)
}

/// Copies the data of a regular file to an open file of the host, which is empty, or is none that
/// has a length: a pipe, a terminal or a device, such as `/dev/stdout`.
pub(crate) fn copy(image: &Image, path: &[u8], stat: &Stat, file: File) -> Result<File> {
    let host = |why| image.failure(path, why);
    if file.metadata().map_err(host)?.is_file() {
        let copied = extract::copy_content(image, stat, &file, &mut Vec::new());
        let shown = image.shown(path);
        return copied
            .map(|()| file)
            .map_err(|why| why.named(shown.as_bytes()));
    }
    let mut out = Stdout::over(file.try_clone().map_err(host)?)?;
    self::file(image, path, stat, &mut Vec::new(), &mut out)?;
    out.finish()?;
    Ok(file)
}

/// Runs `readlink`.
pub(crate) fn readlink(args: &OnePath) -> Result<()> {
    let image = Image::open(&args.image)?;
    let inode = image.resolve(&args.path, Follow::No)?;
    let path = args.path.as_os_str().as_bytes();
    let target = image
        .fs
        .read_link(inode)
        .map_err(|why| image.failure(path, why))?;
    let mut out = Stdout::open()?;
    if args.json {
        let value = json!({ "path": printable(path), "target": printable(&target) });
        out.write(format!("{value}\n").as_bytes())?;
    } else {
        out.name(&target)?;
        out.write(b"\n")?;
    }
    out.flush()
}

//! **Purpose.** Reads a source in a file or on standard input, plain or compressed: a tar archive,
//! an archive of a container image, or (in a file only) a file system.
//!
//! **Not here.** The detection of the format (`recognise`).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use fourscore_sync::Arc;

use crate::source::draft::Draft;
use crate::source::fault::{Fault, SourceError};
use crate::source::oci::archive::{Catalog, Recorder, catalog_of, catalog_of_stream};
use crate::source::recognise::{Form, form, read_start};
use crate::source::spool::Spool;
use crate::source::tar::input::{FileInput, Input, StreamInput};
use crate::source::tar::{EndMark, Reader};
use crate::source::unpack::{Compression, decompress};
use crate::source::{Context, Reading, image, oci, overlay};
use crate::target::Location;
use crate::tree::Tree;

type Added = Result<(), SourceError>;

/// Adds the source in the file or block device at `path` to the tree.
///
/// # Errors
/// A file that is not a source, is damaged, or has an entry that ext4 cannot store; the error names
/// the entry.
pub(super) fn add_file(
    tree: &mut Tree,
    path: &Path,
    reading: Reading,
    context: &mut Context<'_>,
) -> Added {
    let place = path.display().to_string();
    let failed = |error: io::Error| at(&place, error.into());
    let mut file = File::open(path).map_err(failed)?;
    let kind = file.metadata().map_err(failed)?.file_type();
    if kind.is_file() || kind.is_block_device() {
        let start = read_start(&mut file).map_err(failed)?;
        if form(&start).map_err(|fault| at(&place, fault))? == Form::FileSystem {
            return image::add(tree, path, 0, context);
        }
        file.rewind().map_err(failed)?;
    }
    add(tree, file, &place, reading, context)
}

/// Adds the source on standard input to the tree.
pub(super) fn add_stdin(tree: &mut Tree, reading: Reading, context: &mut Context<'_>) -> Added {
    let place = "standard input".to_owned();
    let fd = io::stdin().as_fd().try_clone_to_owned();
    let fd = fd.map_err(|error| at(&place, error.into()))?;
    add(tree, File::from(fd), &place, reading, context)
}

fn at(place: &str, fault: Fault) -> SourceError {
    SourceError {
        place: place.to_owned(),
        entry: None,
        fault,
    }
}

fn add(
    tree: &mut Tree,
    mut file: File,
    place: &str,
    reading: Reading,
    context: &mut Context<'_>,
) -> Added {
    let failed = |error: io::Error| at(place, error.into());
    let location = Location::of(&file, 0..u64::MAX).map_err(failed)?;
    context
        .refuse_output(&location)
        .map_err(|why| at(place, why))?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return add_stream(tree, file, place, reading, context);
    }
    // A file redirected to standard input need not be at its start.
    let start = file.stream_position().map_err(failed)?;
    let first = read_start(&mut file).map_err(failed)?;
    match form(&first).map_err(|fault| at(place, fault))? {
        Form::FileSystem => Err(in_stream(place, "on standard input")),
        Form::Compressed(_) => {
            file.seek(SeekFrom::Start(start)).map_err(failed)?;
            add_stream(tree, file, place, reading, context)
        }
        Form::Tar => {
            let file = Arc::new(file);
            tree.watch_file(Arc::clone(&file), place).map_err(failed)?;
            let range = start..found.len();
            if reading == Reading::ByContent
                && let Some(catalog) = catalog_of(&file, range.clone())
            {
                return oci::add_archive(tree, catalog, place, context);
            }
            let contents = tree.add_file(Arc::clone(&file));
            let contents = contents.map_err(|error| at(place, error.into()))?;
            let input = FileInput::new(file, range);
            let reader = Reader::new(input, place.to_owned(), contents, EndMark::Required);
            add_entries(tree, reader, place, context)
        }
    }
}

fn in_stream(place: &str, whereabouts: &'static str) -> SourceError {
    at(place, Fault::FileSystemInStream { place: whereabouts })
}

/// Adds a source that can be read only once.
fn add_stream(
    tree: &mut Tree,
    mut from: File,
    place: &str,
    reading: Reading,
    context: &mut Context<'_>,
) -> Added {
    let failed = |error: io::Error| at(place, error.into());
    let first = read_start(&mut from).map_err(failed)?;
    let compression = match form(&first).map_err(|fault| at(place, fault))? {
        Form::FileSystem => return Err(in_stream(place, "in a pipe")),
        Form::Compressed(compression) => compression,
        Form::Tar => Compression::None,
    };
    let stream = io::Cursor::new(first).chain(from);
    let mut stream = decompress(stream, compression).map_err(failed)?;
    let mut first = Vec::new();
    if compression != Compression::None {
        first = read_start(&mut stream).map_err(|why| at(place, Fault::Unpack(why)))?;
        match form(&first).map_err(|fault| at(place, fault))? {
            Form::Tar => {}
            Form::FileSystem => return Err(in_stream(place, "that is compressed")),
            Form::Compressed(_) => return Err(at(place, Fault::CompressedTwice)),
        }
    }
    let mut stream = Recorder::new(io::Cursor::new(first).chain(stream), context.scratch);
    if reading == Reading::ByContent {
        let catalog = catalog_of_stream(&mut stream);
        if let Some(catalog) = catalog.map_err(|fault| at(place, fault))? {
            return oci::add_archive(tree, catalog, place, context);
        }
    }
    let stream = stream.replay().map_err(failed)?;
    add_tar(tree, stream, place, context)
}

/// Adds a tar archive that can be read only once.
fn add_tar(tree: &mut Tree, stream: impl Read, place: &str, context: &mut Context<'_>) -> Added {
    let failed = |error: io::Error| at(place, error.into());
    if let Some(mut draft) = draft(tree, context).map_err(failed)? {
        let contents = draft.file();
        let input = StreamInput::new(stream, &mut draft);
        let reader = Reader::new(input, place.to_owned(), contents, EndMark::Required);
        add_entries(tree, reader, place, context)?;
        tree.set_draft(draft);
        return Ok(());
    }
    let spool = Spool::create(context.scratch).map_err(failed)?;
    let contents = tree.add_file(Arc::clone(spool.file()));
    let contents = contents.map_err(|error| at(place, error.into()))?;
    let input = StreamInput::new(stream, spool);
    let reader = Reader::new(input, place.to_owned(), contents, EndMark::Required);
    add_entries(tree, reader, place, context)
}

/// The image that an earlier archive began to fill, or a new one.
fn draft(tree: &mut Tree, context: &Context<'_>) -> io::Result<Option<Draft>> {
    match (tree.take_draft(), &context.destination) {
        (None, Some(destination)) => Draft::begin(destination, tree),
        (draft, _) => Ok(draft),
    }
}

fn add_entries<I: Input>(
    tree: &mut Tree,
    mut reader: Reader<I>,
    place: &str,
    context: &mut Context<'_>,
) -> Added {
    let mut seen = reader.position();
    while let Some(entry) = reader.next()? {
        overlay::apply(tree, entry, context.excludes, place)?;
        let position = reader.position();
        context.read_objects.add(1);
        context.read_bytes.add(position - seen);
        seen = position;
    }
    context.notices.append(reader.into_notices());
    Ok(())
}

/// Reads the catalog of the container image in the archive at `path`, which the user named as one.
pub(super) fn open_catalog(
    tree: &mut Tree,
    path: &Path,
    context: &mut Context<'_>,
) -> Result<Option<Catalog>, Fault> {
    let mut file = File::open(path)?;
    context.refuse_output(&Location::of(&file, 0..u64::MAX)?)?;
    let found = file.metadata()?;
    let first = read_start(&mut file)?;
    file.rewind()?;
    match form(&first)? {
        Form::FileSystem => Ok(None),
        Form::Tar => {
            let file = Arc::new(file);
            tree.watch_file(Arc::clone(&file), &path.display().to_string())?;
            Ok(catalog_of(&file, 0..found.len()))
        }
        Form::Compressed(compression) => {
            let stream = decompress(file, compression)?;
            catalog_of_stream(&mut Recorder::new(stream, context.scratch))
        }
    }
}

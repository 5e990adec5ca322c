//! **Purpose.** A tar archive, plain or compressed, in a file or on standard input, into the tree.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;

use fourscore_sync::Arc;

use crate::source::Context;
use crate::source::draft::Draft;
use crate::source::fault::{Fault, SourceError};
use crate::source::overlay;
use crate::source::sink::read_some;
use crate::source::spool::Spool;
use crate::source::tar::input::{FileInput, Input, StreamInput};
use crate::source::tar::{EndMark, Reader};
use crate::source::unpack::{Compression, unpacked};
use crate::tree::Tree;

/// How many bytes tell the compression.
const START_BYTES: usize = 8;

/// Takes in the archive in the file at `path`.
///
/// # Errors
/// An archive that is damaged or holds what ext4 cannot hold; the error names the entry.
pub(super) fn add_file(tree: &mut Tree, path: &Path, context: &mut Context) -> Taken {
    let place = path.display().to_string();
    let file = File::open(path).map_err(|error| at(&place, error.into()))?;
    add(tree, file, &place, context)
}

/// Takes in the archive on standard input.
pub(super) fn add_stdin(tree: &mut Tree, context: &mut Context) -> Taken {
    let place = "standard input".to_owned();
    let fd = io::stdin().as_fd().try_clone_to_owned();
    let fd = fd.map_err(|error| at(&place, error.into()))?;
    add(tree, File::from(fd), &place, context)
}

type Taken = Result<(), SourceError>;

fn at(place: &str, fault: Fault) -> SourceError {
    SourceError {
        place: place.to_owned(),
        entry: None,
        fault,
    }
}

fn add(tree: &mut Tree, mut file: File, place: &str, context: &mut Context) -> Taken {
    let failed = |error: io::Error| at(place, error.into());
    // A file that was redirected to standard input may stand somewhere in its middle.
    let is_file = file.metadata().map_err(failed)?.is_file();
    let start = match is_file {
        true => file.stream_position().map_err(failed)?,
        false => 0,
    };
    let mut first = [0; START_BYTES];
    let mut len = 0;
    while len < START_BYTES {
        match read_some(&mut file, &mut first[len..]).map_err(failed)? {
            0 => break,
            count => len += count,
        }
    }
    let first = &first[..len];
    let compression = Compression::of(first).map_err(|fault| at(place, fault))?;
    if is_file && compression == Compression::None {
        let file = Arc::new(file);
        let contents = tree.add_file(Arc::clone(&file));
        let contents = contents.map_err(|error| at(place, error.into()))?;
        tree.watch_file(Arc::clone(&file), place).map_err(failed)?;
        let input = FileInput::new(file, start).map_err(failed)?;
        let reader = Reader::new(input, place.to_owned(), contents, EndMark::Required);
        return put_all(tree, reader, place, context);
    }
    if is_file {
        file.seek(SeekFrom::Start(start)).map_err(failed)?;
    }
    let begun = if is_file { Vec::new() } else { first.to_vec() };
    let stream = io::Cursor::new(begun).chain(file);
    let stream = unpacked(stream, compression).map_err(failed)?;
    if let Some(mut draft) = draft(tree, context).map_err(failed)? {
        let contents = draft.file();
        let input = StreamInput::new(stream, &mut draft);
        let reader = Reader::new(input, place.to_owned(), contents, EndMark::Required);
        put_all(tree, reader, place, context)?;
        tree.set_draft(draft);
        return Ok(());
    }
    let spool = Spool::create(context.scratch).map_err(failed)?;
    let contents = tree.add_file(Arc::clone(spool.file()));
    let contents = contents.map_err(|error| at(place, error.into()))?;
    let input = StreamInput::new(stream, spool);
    let reader = Reader::new(input, place.to_owned(), contents, EndMark::Required);
    put_all(tree, reader, place, context)
}

/// The image as far as an earlier archive filled it, else a new one.
fn draft(tree: &mut Tree, context: &Context) -> io::Result<Option<Draft>> {
    match (tree.take_draft(), &context.destination) {
        (None, Some(destination)) => Draft::begin(destination, tree),
        (draft, _) => Ok(draft),
    }
}

fn put_all<I: Input>(
    tree: &mut Tree,
    mut reader: Reader<I>,
    place: &str,
    context: &mut Context,
) -> Taken {
    let mut seen = reader.position();
    while let Some(entry) = reader.next()? {
        overlay::put(tree, entry, context.excludes, place)?;
        let position = reader.position();
        context.read_objects.add(1);
        context.read_bytes.add(position - seen);
        seen = position;
    }
    context.notices.append(reader.into_notices());
    Ok(())
}

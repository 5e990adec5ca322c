//! **Purpose.** Archives whose contents are read where they lie, and whether they are still what
//! they were when their headers were read.
//!
//! **Model.** A file of a directory is looked at again after it was read (`write::reader`). Of an
//! archive only headers were read before, and its contents are read by many threads, so the archive
//! as a whole is looked at when all is done. What this program writes for itself (spools, the
//! image) is not watched.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use fourscore_sync::Arc;

/// A file, and what it was.
#[derive(Debug)]
pub(super) struct Watched {
    file: Arc<File>,
    place: String,
    before: State,
}

/// What a change of the content changes.
#[derive(Debug, PartialEq, Eq)]
struct State {
    len_bytes: u64,
    mtime: (i64, i64),
}

impl State {
    fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self {
            len_bytes: found.len(),
            mtime: (found.mtime(), found.mtime_nsec()),
        })
    }
}

impl Watched {
    /// `place` is what messages call it.
    pub(super) fn new(file: Arc<File>, place: &str) -> io::Result<Self> {
        Ok(Self {
            before: State::of(&file)?,
            file,
            place: place.to_owned(),
        })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Whether it is not what it was; nor is it what cannot be asked any more.
    pub(super) fn has_changed(&self) -> bool {
        State::of(&self.file).map_or(true, |now| now != self.before)
    }
}

//! **Purpose.** Detects changes of archives between reading their headers and reading their data.
//!
//! **Model.** A file of a source directory is checked after it was read (`write::reader`). The
//! headers of an archive are read first and its data later by many threads, so the archive is
//! checked as a whole at the end. Files that this program writes itself (spools, the image) are not
//! watched.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use fourscore_sync::Arc;

/// An archive, with its state when it was opened.
#[derive(Debug)]
pub(super) struct Watched {
    file: Arc<File>,
    place: String,
    before: State,
}

/// Attributes that change with the data.
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
    /// `place` is the name of the file in messages.
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

    /// Whether the file changed. A file that cannot be examined any more counts as changed.
    pub(super) fn has_changed(&self) -> bool {
        State::of(&self.file).map_or(true, |now| now != self.before)
    }
}

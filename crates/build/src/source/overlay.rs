//! **Purpose.** Applies entries of archives to the tree, except excluded ones.

use crate::source::exclude::Excludes;
use crate::source::fault::{Fault, SourceError};
use crate::source::tar::{Entry, EntryBody};
use crate::tree::Tree;

/// Applies an entry to the tree. `place` is the archive, for messages.
pub(crate) fn apply(
    tree: &mut Tree,
    entry: Entry,
    excludes: &Excludes,
    place: &str,
) -> Result<(), SourceError> {
    if excludes.contain(&entry.path) {
        return Ok(());
    }
    let placed = match entry.body {
        EntryBody::Object { meta, kind, xattrs } => tree.insert(&entry.path, &meta, kind, &xattrs),
        EntryBody::HardLink(target) => tree.link(&entry.path, &target),
    };
    placed.map(|_| ()).map_err(|error| SourceError {
        place: place.to_owned(),
        entry: None,
        fault: Fault::Tree(error),
    })
}

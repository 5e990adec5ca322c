//! **Purpose.** Turns blocks of zeroes into holes, so that the holes of a file do not depend on its
//! source.
//!
//! **Model.** Where a source reports holes depends on its kind: the host's file system reports
//! unallocated blocks, an archive what its writer detected. Therefore all data is read, and 4 KiB
//! units of zeroes are removed from the list of data pieces. The data itself is not moved. Threads
//! take files from a shared counter.

use fourscore_sync::atomic::{AtomicUsize, Ordering};
use fourscore_sync::{Mutex, thread};

use crate::error::{BuildError, BuildResult};
use crate::tree::{Content, DataPlace, HOLE_UNIT_BYTES, Kind, NodeId, Piece, Sparse, Tree};
use crate::write::{ReadError, Reader};

const BUFFER_BYTES: usize = 1 << 20;

/// Removes units of zeroes from the data pieces of all files.
pub(crate) fn find_holes(tree: &mut Tree, threads: usize) -> BuildResult<()> {
    let files: Vec<NodeId> = tree
        .ids()
        .filter(|&id| tree.content_bytes(id) > 0)
        .collect();
    let next = AtomicUsize::new(0);
    let changed: Mutex<Vec<(NodeId, Sparse)>> = Mutex::new(Vec::new());
    let failed: Mutex<Option<BuildError>> = Mutex::new(None);
    let shared = &*tree;
    let work = || {
        let mut reader = Reader::new(shared);
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Some(&node) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            match without_zeroes(shared, &mut reader, node, &mut buffer) {
                Ok(None) => {}
                Ok(Some(sparse)) => changed.lock().push((node, sparse)),
                Err(why) => {
                    failed.lock().get_or_insert(why.of(shared.path_of(node)));
                    next.store(files.len(), Ordering::Relaxed);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    for (node, sparse) in changed.into_inner() {
        tree.set_content(node, Content::Sparse(Box::new(sparse)));
    }
    Ok(())
}

/// The file's data pieces without units of zeroes; `None` if nothing changes.
fn without_zeroes(
    tree: &Tree,
    reader: &mut Reader<'_>,
    node: NodeId,
    buffer: &mut [u8],
) -> Result<Option<Sparse>, ReadError> {
    let Kind::File(content) = tree.kind(node) else {
        return Ok(None);
    };
    let Some(before) = as_sparse(&content) else {
        return Ok(None);
    };
    let open = reader.open(node)?;
    let mut pieces: Vec<Piece> = Vec::new();
    for piece in &before.pieces {
        let end = piece.at + piece.len_bytes;
        let mut at = piece.at;
        while at < end {
            // Reads end at multiples of the unit, so that no unit is split.
            let most = (at + BUFFER_BYTES as u64) / HOLE_UNIT_BYTES * HOLE_UNIT_BYTES;
            let part_end = most.min(end);
            let len = usize::try_from(part_end - at).unwrap_or(BUFFER_BYTES);
            let part = &mut buffer[..len];
            reader.read(node, &open, at, part)?;
            for (from, to) in nonzero_ranges(part, at) {
                let from_place = piece.from + (from - piece.at);
                match pieces.last_mut() {
                    Some(last)
                        if last.at + last.len_bytes == from
                            && last.from + last.len_bytes == from_place =>
                    {
                        last.len_bytes += to - from;
                    }
                    _ => pieces.push(Piece {
                        at: from,
                        from: from_place,
                        len_bytes: to - from,
                    }),
                }
            }
            at = part_end;
        }
    }
    Ok((pieces != before.pieces).then_some(Sparse { pieces, ..before }))
}

/// The ranges of nonzero units in `bytes`, whose first byte is at offset `start` of a file.
fn nonzero_ranges(bytes: &[u8], start: u64) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut at = start;
    let mut rest = bytes;
    while !rest.is_empty() {
        let unit_end = (at / HOLE_UNIT_BYTES + 1) * HOLE_UNIT_BYTES;
        let len = usize::try_from(unit_end - at).map_or(rest.len(), |len| len.min(rest.len()));
        let (unit, after) = rest.split_at(len);
        if unit.iter().any(|&byte| byte != 0) {
            found.push((at, at + len as u64));
        }
        at += len as u64;
        rest = after;
    }
    found
}

/// The file data as a list of pieces; `None` if it is in memory.
fn as_sparse(content: &Content) -> Option<Sparse> {
    let whole = |data, from, len_bytes| {
        Some(Sparse {
            data,
            len_bytes,
            pieces: vec![Piece {
                at: 0,
                from,
                len_bytes,
            }],
        })
    };
    match *content {
        Content::Empty | Content::Bytes(_) => None,
        Content::Host { path, len_bytes } => whole(DataPlace::Host(path), 0, len_bytes),
        Content::Range {
            file,
            offset,
            len_bytes,
        } => whole(DataPlace::Open(file), offset, len_bytes),
        Content::Image {
            image,
            inode,
            len_bytes,
        } => whole(DataPlace::Image(image, inode), 0, len_bytes),
        Content::Sparse(ref sparse) => Some(Sparse::clone(sparse)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_zeroes_are_omitted_at_any_start_offset() {
        let mut bytes = vec![0; 20_000];
        assert_eq!(nonzero_ranges(&bytes, 0), []);
        bytes[5000] = 1;
        assert_eq!(nonzero_ranges(&bytes, 0), [(4096, 8192)]);
        assert_eq!(nonzero_ranges(&bytes, 100), [(4096, 8192)]);
        assert_eq!(nonzero_ranges(&bytes, 4000), [(8192, 12_288)]);
        bytes[19_999] = 1;
        assert_eq!(nonzero_ranges(&bytes, 0), [(4096, 8192), (16_384, 20_000)]);
    }
}

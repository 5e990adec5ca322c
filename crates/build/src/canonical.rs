//! **Purpose.** Contents in one form wherever they come from: holes are where blocks of zeroes are,
//! whether the source has zeroes or holes there.
//!
//! **Model.** Where a source has holes depends on what it is: a file system of the host tells of
//! its own blocks, an archive only of what its program looked for. So all data is read, and units
//! of 4 KiB that are zero are dropped from the list of data. Contents themselves stay where they
//! are. Threads take files from one counter.

use fourscore_sync::atomic::{AtomicUsize, Ordering};
use fourscore_sync::{Mutex, thread};

use crate::error::{BuildError, BuildResult};
use crate::tree::{Content, DataPlace, HOLE_UNIT_BYTES, Kind, NodeId, Piece, Sparse, Tree};
use crate::write::{ReadError, Reader};

const BUFFER_BYTES: usize = 1 << 20;

/// Has all files have holes where they have nothing but zeroes.
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
            match with_holes(shared, &mut reader, node, &mut buffer) {
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

/// The content without the units that are zero; `None` if there are none.
fn with_holes(
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
            // Up to a multiple of the unit, so that units are never cut in two.
            let most = (at + BUFFER_BYTES as u64) / HOLE_UNIT_BYTES * HOLE_UNIT_BYTES;
            let part_end = most.min(end);
            let len = usize::try_from(part_end - at).unwrap_or(BUFFER_BYTES);
            let part = &mut buffer[..len];
            reader.read(node, &open, at, part)?;
            for (from, to) in data_in(part, at) {
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

/// Where in `bytes`, which begin at byte `start` of a file, the units are that are not zero.
fn data_in(bytes: &[u8], start: u64) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut at = start;
    let mut rest = bytes;
    while !rest.is_empty() {
        let unit_end = (at / HOLE_UNIT_BYTES + 1) * HOLE_UNIT_BYTES;
        let len = usize::try_from(unit_end - at).map_or(rest.len(), |len| len.min(rest.len()));
        let (unit, behind) = rest.split_at(len);
        if unit.iter().any(|&byte| byte != 0) {
            found.push((at, at + len as u64));
        }
        at += len as u64;
        rest = behind;
    }
    found
}

/// The content as a list of what is data; `None` if it is in memory.
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
    fn units_of_zeroes_are_left_out_wherever_the_bytes_begin() {
        let mut bytes = vec![0; 20_000];
        assert_eq!(data_in(&bytes, 0), []);
        bytes[5000] = 1;
        assert_eq!(data_in(&bytes, 0), [(4096, 8192)]);
        assert_eq!(data_in(&bytes, 100), [(4096, 8192)]);
        assert_eq!(data_in(&bytes, 4000), [(8192, 12_288)]);
        bytes[19_999] = 1;
        assert_eq!(data_in(&bytes, 0), [(4096, 8192), (16_384, 20_000)]);
    }
}

//! **Purpose.** Copies data to its new place, with several threads.
//!
//! **Model.** Pieces that are adjacent at both ends are joined, since the blocks of small files
//! mostly are, and what is longer than a unit is cut into units. Each thread takes the next unit
//! when it has finished one.
//!
//! **Invariants.** No piece has blocks that another one is copied to: sources are in use until the
//! step is durable, targets were free.

use std::num::NonZeroUsize;

use fourscore_block::BlockDevice;
use fourscore_ondisk::{Geometry, PhysBlock};
use fourscore_sync::atomic::{AtomicUsize, Ordering::Relaxed};
use fourscore_sync::thread;

use crate::error::Result;
use crate::map::Piece;

/// The most that is read and written at once, in bytes: a multiple of every block size that stays
/// in a processor's cache.
const UNIT_BYTES: u64 = 256 << 10;
/// Fewer bytes are copied by the calling thread alone.
const LEAST_BYTES_FOR_THREADS: u64 = 1 << 20;

/// Bytes to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unit {
    from: u64,
    to: u64,
    bytes: usize,
}

/// Copies all pieces. What was written is not flushed.
pub(super) fn copy(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    pieces: Vec<Piece>,
    threads: NonZeroUsize,
) -> Result<()> {
    let units = units(geometry, joined(pieces));
    let bytes: u64 = units.iter().map(|unit| unit.bytes as u64).sum();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut buffer = Vec::new();
        while let Some(unit) = units.get(next.fetch_add(1, Relaxed)) {
            buffer.resize(unit.bytes, 0);
            device.read_at(&mut buffer, unit.from)?;
            device.write_at(&buffer, unit.to)?;
        }
        Ok(())
    };
    if bytes < LEAST_BYTES_FOR_THREADS {
        return work();
    }
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads.get()).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            let result = other.join();
            done = done.and(result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    })
}

/// The pieces in the order of the device, joined where both ends continue.
fn joined(mut pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.sort_by_key(|piece| piece.from.start);
    let mut joined: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match joined.last_mut() {
            Some(last)
                if last.from.end == piece.from.start
                    && last.to.0 + (last.from.end.0 - last.from.start.0) == piece.to.0 =>
            {
                last.from.end = piece.from.end;
            }
            _ => joined.push(piece),
        }
    }
    joined
}

/// The bytes of the pieces, cut into units. A last cluster may reach behind the end of the file
/// system.
fn units(geometry: &Geometry, pieces: Vec<Piece>) -> Vec<Unit> {
    let offset = |block: PhysBlock| geometry.block_size().offset(block);
    let mut units = Vec::new();
    for piece in pieces {
        let (mut from, mut to) = (offset(piece.from.start), offset(piece.to));
        let end = offset(piece.from.end).min(geometry.size_bytes());
        while from < end {
            let bytes = (end - from).min(UNIT_BYTES);
            units.push(Unit {
                from,
                to,
                bytes: usize::try_from(bytes).unwrap_or(0),
            });
            from += bytes;
            to += bytes;
        }
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(from: u64, blocks: u64, to: u64) -> Piece {
        Piece {
            from: PhysBlock(from)..PhysBlock(from + blocks),
            to: PhysBlock(to),
        }
    }

    #[test]
    fn pieces_are_joined_where_both_ends_continue() {
        let pieces = vec![piece(110, 5, 20), piece(100, 10, 10), piece(115, 1, 30)];
        assert_eq!(joined(pieces), [piece(100, 15, 10), piece(115, 1, 30)]);
    }
}

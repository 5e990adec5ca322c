//! **Purpose.** Content that tells where it comes from: what is written to files, and what a read
//! is found to hold.
//!
//! **Model.** A file is a row of cells of [`CELL_BYTES`] bytes; every offset and length that is
//! drawn is a multiple of that. A cell that was written names the file, the write and its own
//! place, and has a sum over them, so that one cell is enough to tell whose it is. A cell may also
//! be zero, or hold the [`POISON`] that filled the device before there was a file system.

use fourscore_testkit::explore::rng::mix;

/// The size of a cell.
pub(super) const CELL_BYTES: u64 = 16;
/// What the device holds before a file system is made on it.
pub(super) const POISON: u8 = 0xdb;

const CELL: usize = 16;

/// One write: unique in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Version(pub(super) u32);

/// A file of a round: unlike an inode number, it is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileId(pub(super) u32);

/// What a cell holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Zero,
    /// Written by a write to a file, at this offset in bytes.
    Written {
        file: FileId,
        version: Version,
        offset: u64,
    },
    /// What lay on the device before the file system was made.
    Poison,
    /// Nothing that anybody ever wrote to a file.
    Foreign([u8; CELL]),
}

/// Cells behind each other with values that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Where it begins in the file that was read, in bytes.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The value of the first cell.
    pub(super) value: Value,
}

impl Value {
    fn of(cell: &[u8; CELL]) -> Self {
        if cell == &[0; CELL] {
            return Self::Zero;
        }
        if cell == &[POISON; CELL] {
            return Self::Poison;
        }
        let word = |at: usize| {
            let bytes = [cell[at], cell[at + 1], cell[at + 2], cell[at + 3]];
            u32::from_le_bytes(bytes)
        };
        let (file, version, place) = (FileId(word(0)), Version(word(4)), word(8));
        if word(12) != sum(file, version, place) {
            return Self::Foreign(*cell);
        }
        let offset = u64::from(place) * CELL_BYTES;
        Self::Written {
            file,
            version,
            offset,
        }
    }

    /// The value of the cell `bytes` behind one with this value in the same run.
    pub(super) fn behind(self, bytes: u64) -> Self {
        match self {
            Self::Written {
                file,
                version,
                offset,
            } => Self::Written {
                file,
                version,
                offset: offset + bytes,
            },
            other => other,
        }
    }
}

fn sum(file: FileId, version: Version, place: u32) -> u32 {
    let pair = u64::from(file.0) << 32 | u64::from(version.0);
    let mixed = mix(mix(pair) ^ u64::from(place));
    // Never zero: a cell that was written is no hole.
    u32::try_from(mixed & 0xffff_ffff).unwrap_or(0) | 1
}

/// Fills `bytes` with what `version` writes to `file` at `offset`.
pub(super) fn fill(bytes: &mut [u8], file: FileId, version: Version, offset: u64) {
    for (index, cell) in bytes.chunks_exact_mut(CELL).enumerate() {
        let place = u32::try_from(offset / CELL_BYTES + index as u64).unwrap_or(u32::MAX);
        let words = [file.0, version.0, place, sum(file, version, place)];
        for (part, word) in cell.chunks_exact_mut(4).zip(words) {
            part.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// What was read at `offset`, as runs. A piece of a cell at the end is left out.
pub(super) fn runs(bytes: &[u8], offset: u64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let (cells, _) = bytes.as_chunks::<CELL>();
    let mut at = offset;
    for cell in cells {
        let value = Value::of(cell);
        match runs.last_mut() {
            Some(run) if run.value.behind(run.len) == value => run.len += CELL_BYTES,
            _ => runs.push(Run {
                offset: at,
                len: CELL_BYTES,
                value,
            }),
        }
        at += CELL_BYTES;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_told_from_holes_poison_and_others() {
        let mut bytes = vec![0; 96];
        fill(&mut bytes[16..48], FileId(3), Version(9), 4096);
        bytes[48..64].fill(POISON);
        bytes[64..80].fill(7);
        fill(&mut bytes[80..96], FileId(3), Version(9), 4096);
        let written = |offset| Value::Written {
            file: FileId(3),
            version: Version(9),
            offset,
        };
        let run = |offset, len, value| Run { offset, len, value };
        let expected = [
            run(512, 16, Value::Zero),
            run(528, 32, written(4096)),
            run(560, 16, Value::Poison),
            run(576, 16, Value::Foreign([7; CELL])),
            run(592, 16, written(4096)),
        ];
        assert_eq!(runs(&bytes, 512), expected);
        bytes[20] ^= 1;
        assert!(matches!(runs(&bytes, 512)[1].value, Value::Foreign(_)));
    }
}

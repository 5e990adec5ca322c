//! **Purpose.** File data that names the write it comes from, and the classification of data that
//! was read.
//!
//! **Model.** A file is a sequence of cells of [`CELL_BYTES`] bytes; every offset and length is a
//! multiple of that. A cell that was written names the file, the write and its offset, and has a
//! checksum of them, so that one cell is enough to identify its origin. A cell may also be zero, or
//! hold the [`POISON`] that filled the device before the file system was made.

use fourscore_testkit::explore::rng::mix;

/// The size of a cell.
pub(super) const CELL_BYTES: u64 = 16;
/// The byte that fills the device before a file system is made on it.
pub(super) const POISON: u8 = 0xdb;

/// The same as a length.
pub(super) const CELL: usize = 16;

/// A write; unique in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Version(pub(super) u32);

/// A file of a round; unlike an inode number, it is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileId(pub(super) u32);

/// The value of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Zero,
    /// Written by a write to a file, at this offset in bytes.
    Written {
        file: FileId,
        version: Version,
        offset: u64,
    },
    /// Data of the device from before the file system was made.
    Poison,
    /// Data that no thread wrote to a file.
    Foreign([u8; CELL]),
}

/// Consecutive cells with consecutive values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Its offset in the file that was read, in bytes.
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

    /// The bytes of a cell with this value.
    pub(super) fn bytes(self) -> [u8; CELL] {
        let mut cell = [0; CELL];
        match self {
            Self::Zero => {}
            Self::Written {
                file,
                version,
                offset,
            } => fill(&mut cell, file, version, offset),
            Self::Poison => cell = [POISON; CELL],
            Self::Foreign(bytes) => cell = bytes,
        }
        cell
    }

    /// The value of the cell that follows `bytes` later in the same run.
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
    // Never zero, so that a cell that was written differs from a hole.
    u32::try_from(mixed & 0xffff_ffff).unwrap_or(0) | 1
}

/// Fills `bytes` with the data that `version` writes to `file` at `offset`.
pub(super) fn fill(bytes: &mut [u8], file: FileId, version: Version, offset: u64) {
    for (index, cell) in bytes.chunks_exact_mut(CELL).enumerate() {
        let place = u32::try_from(offset / CELL_BYTES + index as u64).unwrap_or(u32::MAX);
        let words = [file.0, version.0, place, sum(file, version, place)];
        for (part, word) in cell.chunks_exact_mut(4).zip(words) {
            part.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Data that was read at `offset`, as runs. An incomplete cell at the end is left out.
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
    fn written_data_is_distinguished_from_holes_poison_and_others() {
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

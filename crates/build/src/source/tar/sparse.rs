//! **Purpose.** Parses the map of a sparse file, in the four formats of GNU tar.
//!
//! **Model.** In each format, the map is a list of runs `offset, length` of the file; the archive
//! stores the bytes of the runs one after another, and nothing for the holes between them.
//!
//! | format | location of the map |
//! |---|---|
//! | old GNU | the header and blocks after it, entry type `S` |
//! | PAX 0.0 | records `GNU.sparse.offset` and `GNU.sparse.numbytes`, repeated |
//! | PAX 0.1 | one record `GNU.sparse.map` |
//! | PAX 1.0 | decimal lines before the data, padded to a block |
//!
//! **References.** The GNU tar manual, "Storing Sparse Files".

use crate::source::fault::{Fault, Parsed};
use crate::source::tar::header::BLOCK_BYTES;
use crate::source::tar::pax::decimal;

/// Limit for the runs of a map, which then takes 64 MiB of memory.
const RUNS_MAX: usize = 4 << 20;
/// Number of digits of the largest number in a map.
const DIGITS_MAX: usize = 20;

/// A range of a file with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
}

/// The records for a sparse file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SparseRecords {
    major: Option<i128>,
    minor: Option<i128>,
    pub(super) name: Option<Vec<u8>>,
    size: Option<i128>,
    offset: Option<i128>,
    runs: Vec<(i128, i128)>,
    has_map: bool,
}

/// Location of the map of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Map {
    /// The map was in the headers.
    Known(Vec<(i128, i128)>),
    /// The map precedes the data.
    InContent,
}

/// The map of a sparse file, and its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SparseFile {
    pub(super) map: Map,
    pub(super) len_bytes: u64,
}

impl SparseRecords {
    /// Parses a record whose key begins with `GNU.sparse.`; `key` is the rest of the key.
    pub(super) fn parse(&mut self, key: &[u8], value: &[u8]) -> Parsed<()> {
        let number = |field| decimal(value, field);
        match key {
            b"major" => self.major = Some(number("GNU.sparse.major")?),
            b"minor" => self.minor = Some(number("GNU.sparse.minor")?),
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = Some(number("GNU.sparse.size")?),
            b"offset" => self.offset = Some(number("GNU.sparse.offset")?),
            b"numbytes" => {
                let offset = self.offset.take().ok_or(wrong("a length has no offset"))?;
                self.push(offset, number("GNU.sparse.numbytes")?)?;
            }
            b"map" => {
                self.runs.clear();
                self.has_map = true;
                let mut numbers = value.split(|&byte| byte == b',');
                while let Some(offset) = numbers.next().filter(|text| !text.is_empty()) {
                    let len = numbers.next().ok_or(wrong("an offset has no length"))?;
                    let offset = decimal(offset, "GNU.sparse.map")?;
                    self.push(offset, decimal(len, "GNU.sparse.map")?)?;
                }
            }
            b"numblocks" => self.has_map = true,
            _ => {}
        }
        Ok(())
    }

    fn push(&mut self, offset: i128, len: i128) -> Parsed<()> {
        if self.runs.len() >= RUNS_MAX {
            return Err(wrong("it has too many runs"));
        }
        self.runs.push((offset, len));
        Ok(())
    }

    /// The map and the size of the file; `None` if the records describe no sparse file.
    pub(super) fn finish(self) -> Parsed<Option<(Map, i128)>> {
        let map = match (self.major, self.minor) {
            (Some(1), Some(0)) => Map::InContent,
            (None | Some(0), _) if self.has_map => Map::Known(self.runs),
            (None, None) => return Ok(None),
            _ => return Err(wrong("its version is unknown")),
        };
        let size = self.size.ok_or(wrong("the size of the file is missing"))?;
        Ok(Some((map, size)))
    }
}

/// Reads the map before the data. `next_block` returns the stored bytes block by block. Returns the
/// map and its length in bytes.
pub(super) fn read_map(
    mut next_block: impl FnMut() -> Parsed<[u8; BLOCK_BYTES]>,
) -> Parsed<(Vec<(i128, i128)>, u64)> {
    let mut reader = MapReader {
        block: next_block()?,
        at: 0,
        blocks: 1,
    };
    let count = reader.number(&mut next_block)?;
    let count = usize::try_from(count).map_err(|_| wrong("the number of runs is invalid"))?;
    if count > RUNS_MAX {
        return Err(wrong("it has too many runs"));
    }
    let mut runs = Vec::new();
    for _ in 0..count {
        let offset = reader.number(&mut next_block)?;
        runs.push((offset, reader.number(&mut next_block)?));
    }
    Ok((runs, reader.blocks * BLOCK_BYTES as u64))
}

struct MapReader {
    block: [u8; BLOCK_BYTES],
    at: usize,
    blocks: u64,
}

impl MapReader {
    /// Parses the next line as a number.
    fn number(
        &mut self,
        next_block: &mut impl FnMut() -> Parsed<[u8; BLOCK_BYTES]>,
    ) -> Parsed<i128> {
        let mut digits = [0; DIGITS_MAX];
        let mut len = 0;
        loop {
            if self.at == BLOCK_BYTES {
                self.block = next_block()?;
                self.at = 0;
                self.blocks += 1;
            }
            let byte = self.block[self.at];
            self.at += 1;
            if byte == b'\n' {
                return decimal(&digits[..len], "a line of the sparse map");
            }
            let place = digits.get_mut(len);
            *place.ok_or(wrong("a number in it is too long"))? = byte;
            len += 1;
        }
    }
}

/// Checks a map against the size of the file and the number of its stored bytes. Empty runs are
/// dropped, adjacent ones joined.
pub(super) fn check(map: &[(i128, i128)], size_bytes: u64, stored_bytes: u64) -> Parsed<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::with_capacity(map.len());
    let (mut end, mut sum) = (0, 0);
    for &(offset, len) in map {
        let fits = |end: i128| end <= i128::from(size_bytes);
        if offset < i128::from(end) || len < 0 || !offset.checked_add(len).is_some_and(fits) {
            return Err(wrong("its runs overlap, go backwards or leave the file"));
        }
        let number = |value| u64::try_from(value).map_err(|_| wrong("a number is too large"));
        let (offset, len_bytes) = (number(offset)?, number(len)?);
        if len_bytes == 0 {
            continue;
        }
        match runs.last_mut() {
            Some(last) if offset == end => last.len_bytes += len_bytes,
            _ => runs.push(Run { offset, len_bytes }),
        }
        end = offset + len_bytes;
        sum += len_bytes;
    }
    if sum != stored_bytes {
        return Err(wrong("its runs and the stored bytes differ in length"));
    }
    Ok(runs)
}

fn wrong(why: &'static str) -> Fault {
    Fault::SparseMap { why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(list: &[(&str, &str)]) -> Parsed<Option<(Map, i128)>> {
        let mut records = SparseRecords::default();
        for (key, value) in list {
            records.parse(key.as_bytes(), value.as_bytes())?;
        }
        records.finish()
    }

    #[test]
    fn all_pax_formats_are_parsed() {
        let zero = [
            ("size", "9"),
            ("numblocks", "2"),
            ("offset", "1"),
            ("numbytes", "2"),
        ];
        let more = [("offset", "5"), ("numbytes", "1")];
        let known = Some((Map::Known(vec![(1, 2), (5, 1)]), 9));
        assert_eq!(records(&[&zero[..], &more].concat()).expect("right"), known);
        let one = records(&[("size", "9"), ("map", "1,2,5,1")]);
        assert_eq!(one.expect("right"), known);
        let two = records(&[("major", "1"), ("minor", "0"), ("realsize", "9")]);
        assert_eq!(two.expect("right"), Some((Map::InContent, 9)));
        assert_eq!(records(&[]).expect("right"), None);
    }

    #[test]
    fn contradictory_records_are_refused() {
        for list in [
            &[("numbytes", "1")][..],
            &[("map", "1,2,3"), ("size", "9")],
            &[("map", "1,2")],
            &[("major", "2"), ("minor", "0"), ("size", "9")],
            &[("map", "x,1"), ("size", "9")],
        ] {
            assert!(records(list).is_err(), "{list:?}");
        }
    }

    #[test]
    fn a_map_before_the_data_is_read() {
        let mut text = String::from("80\n");
        for nr in 0..80 {
            text += &format!("{}\n{}\n", nr * 100_000, 512);
        }
        let mut bytes = text.into_bytes();
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        let mut blocks = bytes.as_chunks::<BLOCK_BYTES>().0.iter();
        let next = || blocks.next().copied().ok_or(Fault::CutOff { at: 0 });
        let (runs, taken) = read_map(next).expect("right");
        assert_eq!((runs.len(), runs[79]), (80, (7_900_000, 512)));
        assert_eq!(taken, bytes.len() as u64);
        assert!(matches!(
            read_map(|| Ok([b'1'; BLOCK_BYTES])),
            Err(Fault::SparseMap { .. })
        ));
        let mut cut = Some(*b"9\n".first_chunk::<2>().expect("two"));
        let next = || {
            let start = cut.take().ok_or(Fault::CutOff { at: 512 })?;
            let mut block = [b'\n'; BLOCK_BYTES];
            block[..2].copy_from_slice(&start);
            Ok(block)
        };
        assert!(matches!(read_map(next), Err(Fault::Number { .. })));
    }

    #[test]
    fn invalid_maps_are_refused() {
        let run = |offset, len_bytes| Run { offset, len_bytes };
        let joined = check(&[(0, 4), (4, 4), (9, 1), (20, 0)], 20, 9).expect("right");
        assert_eq!(joined, [run(0, 8), run(9, 1)]);
        for (map, size, stored) in [
            (&[(4, 4), (0, 4)][..], 20, 8),
            (&[(0, 4), (3, 4)], 20, 8),
            (&[(0, 21)], 20, 21),
            (&[(0, -1)], 20, 0),
            (&[(0, 4)], 20, 5),
            (&[(i128::MAX - 5, 4)], u64::MAX, 4),
            (&[(i128::MAX, i128::MAX)], u64::MAX, 4),
        ] {
            assert!(check(map, size, stored).is_err(), "{map:?}");
        }
    }
}

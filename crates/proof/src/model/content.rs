//! **Purpose.** The data of a file, as runs of bytes that are not zero.
//!
//! **Model.** A run has a tag; each byte follows from the tag and from the offset at which it was
//! written first. So a file of gigabytes takes memory for its runs only, and bytes that are moved
//! to a wrong offset differ from those that belong there.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes written by one call, or what is left of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    end: u64,
    tag: u8,
    /// The difference between the offset at which the bytes were written first and their offset now
    /// (modulo 2^64).
    shift: u64,
}

/// The data of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    size: u64,
    /// By offset; they do not overlap.
    runs: BTreeMap<u64, Run>,
}

/// The byte of a run, never zero.
fn byte(tag: u8, number: u64) -> u8 {
    let mixed = number ^ (number >> 9) ^ (number >> 17);
    let spread = (mixed.wrapping_add(u64::from(tag) * 41)) % 255;
    u8::try_from(spread).unwrap_or(0) + 1
}

/// The bytes that a call with this tag writes at `offset`.
pub(crate) fn bytes_to_write(tag: u8, offset: u64, len: u64) -> Vec<u8> {
    (offset..offset + len).map(|at| byte(tag, at)).collect()
}

impl Content {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The ranges that are not zero.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.iter().map(|(&start, run)| start..run.end)
    }

    /// Writes the bytes of [`bytes_to_write`] at `offset`.
    pub(crate) fn write(&mut self, tag: u8, offset: u64, len: u64) {
        let end = offset + len;
        self.zero(offset..end);
        self.runs.insert(offset, Run { end, tag, shift: 0 });
        self.size = self.size.max(end);
    }

    pub(crate) fn zero(&mut self, range: Range<u64>) {
        self.split(range.start);
        self.split(range.end);
        let gone: Vec<u64> = self.runs.range(range).map(|(&start, _)| start).collect();
        for start in gone {
            self.runs.remove(&start);
        }
    }

    /// Splits the run around an offset.
    fn split(&mut self, at: u64) {
        let Some((_, run)) = self.runs.range_mut(..at).next_back() else {
            return;
        };
        if run.end > at {
            let behind = *run;
            run.end = at;
            self.runs.insert(at, behind);
        }
    }

    pub(crate) fn truncate(&mut self, size: u64) {
        self.zero(size..u64::MAX);
        self.size = size;
    }

    pub(crate) fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Removes a range.
    pub(crate) fn collapse(&mut self, range: Range<u64>) {
        self.zero(range.clone());
        let behind = self.runs.split_off(&range.end);
        let len = range.end - range.start;
        for (start, run) in behind {
            let moved = Run {
                end: run.end - len,
                shift: run.shift.wrapping_add(len),
                ..run
            };
            self.runs.insert(start - len, moved);
        }
        self.size -= len;
    }

    /// Inserts a hole.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        self.split(range.start);
        let behind = self.runs.split_off(&range.start);
        let len = range.end - range.start;
        for (start, run) in behind {
            let moved = Run {
                end: run.end + len,
                shift: run.shift.wrapping_sub(len),
                ..run
            };
            self.runs.insert(start + len, moved);
        }
        self.size += len;
    }

    /// Copies a range of `source` to `offset`.
    pub(crate) fn copy(&mut self, source: &Self, range: Range<u64>, offset: u64) {
        let place = |at: u64| at - range.start + offset;
        self.zero(offset..place(range.end));
        for (&start, run) in source.runs.range(..range.end) {
            let (start, end) = (start.max(range.start), run.end.min(range.end));
            if start < end {
                let copied = Run {
                    end: place(end),
                    shift: run.shift.wrapping_add(range.start).wrapping_sub(offset),
                    ..*run
                };
                self.runs.insert(place(start), copied);
            }
        }
        self.grow(place(range.end));
    }

    /// The bytes from `offset` on.
    pub(crate) fn fill(&self, offset: u64, bytes: &mut [u8]) {
        bytes.fill(0);
        let end = offset + bytes.len() as u64;
        for (&start, run) in self.runs.range(..end) {
            for at in start.max(offset)..run.end.min(end) {
                let place = usize::try_from(at - offset).unwrap();
                bytes[place] = byte(run.tag, at.wrapping_add(run.shift));
            }
        }
    }
}

#[test]
fn contents_are_what_a_vector_of_bytes_would_be() {
    let mut random = fourscore_testkit::explore::Rng::new(7);
    for _ in 0..200 {
        let (mut content, mut plain) = (Content::default(), Vec::<u8>::new());
        for step in 0..30_u8 {
            let (offset, len) = (random.below(300), 1 + random.below(80));
            let bytes = offset as u64..(offset + len) as u64;
            match random.below(6) {
                0 | 1 => {
                    content.write(step, bytes.start, len as u64);
                    plain.resize(plain.len().max(offset + len), 0);
                    plain[offset..offset + len].copy_from_slice(&bytes_to_write(
                        step,
                        bytes.start,
                        len as u64,
                    ));
                }
                2 => {
                    content.truncate(bytes.start);
                    plain.resize(offset, 0);
                }
                3 if offset + len < plain.len() => {
                    content.collapse(bytes);
                    plain.drain(offset..offset + len);
                }
                4 if offset < plain.len() => {
                    content.insert(bytes);
                    plain.splice(offset..offset, vec![0; len]);
                }
                5 if offset + len < plain.len() => {
                    let to = random.below(400);
                    content.copy(&content.clone(), bytes, to as u64);
                    let copied = plain[offset..offset + len].to_vec();
                    plain.resize(plain.len().max(to + len), 0);
                    plain[to..to + len].copy_from_slice(&copied);
                }
                _ => {}
            }
            let mut found = vec![9; plain.len()];
            content.fill(0, &mut found);
            assert_eq!((found, content.size()), (plain.clone(), plain.len() as u64));
        }
    }
}

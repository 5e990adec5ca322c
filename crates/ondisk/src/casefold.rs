//! **Purpose.** Names of casefolded directories: their comparison, and the bytes that are hashed.
//!
//! **Model.** Two names are equal if their bytes are, or if both are UTF-8 and their folded forms
//! are. The form is that of the kernel's `utf8` module at Unicode 12.1:
//!
//! ```text
//! folded = for each character: nothing if it is a default ignorable, else its full case folding
//!          then canonical decomposition (NFD); ignorables split the text, so that marks are never
//!          sorted across one
//! ```
//!
//! The tables come from crates of a later Unicode version. That gives the same result: the folding,
//! decomposition and combining class of an assigned character never change, so only characters
//! added after 12.1 differ. Those of them that have any of the three are listed here, and are not
//! changed by folding, as in the kernel.
//!
//! A name that is not UTF-8 equals only itself, and is hashed unchanged; with strict encoding it is
//! refused.
//!
//! **Invariants.** Folding a folded name changes nothing.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "case-insensitive file name
//! lookups"; Unicode Standard Annex 15 and section 3.13.

use caseless::Caseless as _;
use unicode_normalization::UnicodeNormalization as _;

/// The default ignorable code points of Unicode 12.1.
const IGNORABLE: [(u32, u32); 17] = [
    (0x00ad, 0x00ad),
    (0x034f, 0x034f),
    (0x061c, 0x061c),
    (0x115f, 0x1160),
    (0x17b4, 0x17b5),
    (0x180b, 0x180e),
    (0x200b, 0x200f),
    (0x202a, 0x202e),
    (0x2060, 0x206f),
    (0x3164, 0x3164),
    (0xfe00, 0xfe0f),
    (0xfeff, 0xfeff),
    (0xffa0, 0xffa0),
    (0xfff0, 0xfff8),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0000, 0xe0fff),
];

/// Ranges of characters that were added after Unicode 12.1 with a folding, a decomposition or a
/// combining class. No character of 12.1 that has one of these is in a range.
const NEWER: [(u32, u32); 28] = [
    (0x05c8, 0x05c9),
    (0x0897, 0x089f),
    (0x08ca, 0x08d2),
    (0x0c3c, 0x0c3c),
    (0x1715, 0x1715),
    (0x1abf, 0x1af0),
    (0x1c89, 0x1c89),
    (0x1dfa, 0x1dfa),
    (0x2c2f, 0x2c2f),
    (0xa7c0, 0xa7c0),
    (0xa7c7, 0xa7f5),
    (0xa82c, 0xa82c),
    (0x10570, 0x105e4),
    (0x10d50, 0x10d6d),
    (0x10eab, 0x10eff),
    (0x10f82, 0x10f85),
    (0x11070, 0x11070),
    (0x11383, 0x113d0),
    (0x11938, 0x11943),
    (0x11f41, 0x11f42),
    (0x16121, 0x1612f),
    (0x16d68, 0x16d6a),
    (0x16ff0, 0x16ff1),
    (0x1d127, 0x1d128),
    (0x1d250, 0x1d281),
    (0x1e08f, 0x1e08f),
    (0x1e2ae, 0x1e2ae),
    (0x1e4ec, 0x1e6f5),
];

/// A name that is not UTF-8, although the encoding is strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("name is not UTF-8 from byte {at} on, but the file system has strict encoding")]
pub struct NotUtf8 {
    /// The offset of the first invalid byte.
    pub at: usize,
}

/// The handling of names that are not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// They are compared as bytes.
    Lenient,
    /// They are refused: `s_encoding_flags` has `ENC_STRICT_MODE_FL`.
    Strict,
}

/// A name to be looked up in casefolded directories, folded once.
#[derive(Clone, Debug)]
pub struct FoldedName<'n> {
    name: &'n [u8],
    /// `None` if the name is not UTF-8.
    folded: Option<String>,
}

impl<'n> FoldedName<'n> {
    /// Folds a name.
    ///
    /// # Errors
    /// With strict encoding, if it is not UTF-8.
    pub fn new(name: &'n [u8], encoding: Encoding) -> Result<Self, NotUtf8> {
        match (std::str::from_utf8(name), encoding) {
            (Ok(text), _) => Ok(Self {
                name,
                folded: Some(fold(text).collect()),
            }),
            (Err(_), Encoding::Lenient) => Ok(Self { name, folded: None }),
            (Err(error), Encoding::Strict) => Err(NotUtf8 {
                at: error.valid_up_to(),
            }),
        }
    }

    /// The bytes that are hashed for the directory's index.
    #[must_use]
    pub fn hash_input(&self) -> &[u8] {
        self.folded
            .as_ref()
            .map_or(self.name, |folded| folded.as_bytes())
    }

    /// Whether an entry has this name. Does not allocate.
    #[must_use]
    pub fn matches(&self, entry: &[u8]) -> bool {
        if self.name == entry {
            return true;
        }
        let Some(folded) = &self.folded else {
            return false;
        };
        if entry.is_ascii() {
            let lower = entry.iter().map(u8::to_ascii_lowercase);
            return lower.eq(folded.bytes());
        }
        std::str::from_utf8(entry).is_ok_and(|entry| fold(entry).eq(folded.chars()))
    }
}

/// The folded form, character by character.
fn fold(text: &str) -> impl Iterator<Item = char> {
    text.split_inclusive(|c| is_ignorable(c) || is_newer(c))
        .flat_map(|segment| {
            let last = segment
                .chars()
                .next_back()
                .filter(|&c| is_ignorable(c) || is_newer(c));
            let rest = segment
                .get(..segment.len() - last.map_or(0, char::len_utf8))
                .unwrap_or("");
            rest.chars()
                .default_case_fold()
                .nfd()
                .chain(last.filter(|&c| is_newer(c)))
        })
}

fn is_ignorable(c: char) -> bool {
    is_in(&IGNORABLE, c)
}

fn is_newer(c: char) -> bool {
    is_in(&NEWER, c)
}

/// Whether a character is in one of the sorted ranges.
fn is_in(ranges: &[(u32, u32)], c: char) -> bool {
    let c = u32::from(c);
    let after = ranges.partition_point(|&(first, _)| first <= c);
    ranges
        .get(..after)
        .and_then(<[_]>::last)
        .is_some_and(|&(_, last)| c <= last)
}

#[cfg(test)]
mod tests;

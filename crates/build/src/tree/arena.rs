//! **Purpose.** Stores names and link targets in one allocation.
//!
//! **Model.** Each text is stored with a length prefix of two bytes and is identified by its
//! offset: 4 bytes instead of the 24 of a vector, and no allocation of its own.

/// Offset of a text in its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Text(u32);

/// The texts of a tree. They are never removed.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    bytes: Vec<u8>,
}

impl Arena {
    /// Stores a text; `None` if the arena has 4 GiB, or the text is longer than 64 KiB.
    pub(crate) fn push(&mut self, text: &[u8]) -> Option<Text> {
        let at = u32::try_from(self.bytes.len()).ok()?;
        let length = u16::try_from(text.len()).ok()?;
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(text);
        Some(Text(at))
    }

    /// Returns a text.
    pub(crate) fn get(&self, text: Text) -> &[u8] {
        let rest = self.bytes.get(text.0 as usize..).unwrap_or_default();
        match rest {
            &[a, b, ref rest @ ..] => {
                let length = usize::from(u16::from_le_bytes([a, b]));
                rest.get(..length).unwrap_or_default()
            }
            _ => &[],
        }
    }

    /// Memory of all texts in bytes.
    #[cfg(test)]
    pub(crate) fn len_bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_stored_and_long_ones_are_refused() {
        let mut arena = Arena::default();
        let long = vec![7; 65_535];
        let texts: [&[u8]; 4] = [b"a", b"", b"\xff\x00", &long];
        let places = texts.map(|text| arena.push(text).unwrap());
        for (text, place) in texts.into_iter().zip(places) {
            assert_eq!(arena.get(place), text);
        }
        assert_eq!(arena.push(&[0; 65_536]), None);
    }
}

//! **Purpose.** Takes an input apart, number by number. What is not there reads as zero.

/// The rest of an input.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// All of `data`.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let there = self.bytes(N);
        array[..there.len()].copy_from_slice(there);
        array
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    /// The next two bytes, little-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next four bytes, little-endian.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// At most `len` bytes.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = later;
        now
    }

    /// The next `len` bytes, zeroes behind the input's end.
    pub fn padded(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = self.bytes(len).to_vec();
        bytes.resize(len, 0);
        bytes
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_zero() {
        let mut input = Input::new(&[1, 2, 3, 4]);
        assert_eq!(
            (input.u8(), input.u16(), input.is_empty()),
            (1, 0x0302, false)
        );
        assert_eq!((input.u32(), input.is_empty()), (4, true));
        assert_eq!((input.padded(2), input.rest()), (vec![0, 0], &[][..]));
    }
}

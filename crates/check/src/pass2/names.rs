//! **Purpose.** Finds duplicate names in a block, without allocation for each block.
//!
//! **Model.** A hash table with open addressing. A slot belongs to the current block if it has the
//! number of the current round, so nothing is cleared between blocks.

/// The minimum length of a record.
const LEAST_RECORD_BYTES: usize = 12;

/// The names of one block.
#[derive(Debug)]
pub(crate) struct NameSet {
    slots: Vec<Slot>,
    round: u32,
    /// The names, one after the other: folded names are in no block.
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    round: u32,
    hash: u32,
    at: u32,
    len: u32,
}

impl NameSet {
    /// A table for blocks of this length: at least half of the slots stay free.
    pub(crate) fn for_blocks(block_bytes: usize) -> Self {
        let slots = (2 * block_bytes / LEAST_RECORD_BYTES).next_power_of_two();
        Self {
            slots: vec![Slot::default(); slots],
            round: 0,
            bytes: Vec::new(),
        }
    }

    /// Starts a block.
    pub(crate) fn start(&mut self) {
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            self.slots.fill(Slot::default());
            self.round = 1;
        }
        self.bytes.clear();
    }

    /// Adds a name; returns whether it is new.
    pub(crate) fn insert(&mut self, name: &[u8]) -> bool {
        let hash = hash(name);
        let mask = self.slots.len().wrapping_sub(1);
        let mut slot = hash as usize & mask;
        // A block has fewer records than there are slots, so a free slot is found.
        for _ in 0..self.slots.len() {
            let Some(found) = self.slots.get_mut(slot) else {
                return true;
            };
            if found.round != self.round {
                *found = Slot {
                    round: self.round,
                    hash,
                    at: u32::try_from(self.bytes.len()).unwrap_or(u32::MAX),
                    len: u32::try_from(name.len()).unwrap_or(0),
                };
                self.bytes.extend_from_slice(name);
                return true;
            }
            if found.hash == hash {
                let start = found.at as usize;
                let other = self.bytes.get(start..start + found.len as usize);
                if other == Some(name) {
                    return false;
                }
            }
            slot = (slot + 1) & mask;
        }
        true
    }
}

/// Mixes eight bytes at a time.
fn hash(name: &[u8]) -> u32 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = name.len() as u64;
    for chunk in name.chunks(8) {
        let mut word = [0; 8];
        word.iter_mut()
            .zip(chunk)
            .for_each(|(to, &from)| *to = from);
        state = (state.rotate_left(23) ^ u64::from_le_bytes(word)).wrapping_mul(MULTIPLIER);
    }
    u32::try_from(state >> 32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_same_block_are_compared() {
        let mut names = NameSet::for_blocks(65_536);
        names.start();
        assert!(names.insert(b"a") && names.insert(b"b"));
        assert!(!names.insert(b"a"));
        names.start();
        assert!(names.insert(b"a"));
        for nr in 0..5000_u32 {
            assert!(names.insert(&nr.to_le_bytes()));
        }
        assert!(!names.insert(&77_u32.to_le_bytes()));
    }
}

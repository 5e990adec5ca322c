//! **Purpose.** The changes that an input asks for.
//!
//! **Model.** Eight bytes are a change: what to do, which block, where in it, and a value. Blocks
//! are counted among those of the image that are not zero, so that few changes are wasted on
//! nothing, and a value can be "the number of such a block": that is what makes trees with loops.

use crate::device::Patched;
use crate::images::SeedImage;
use crate::input::Input;

/// More changes than this are not made: images that are all noise find little.
pub const MOST: usize = 48;

/// Applies the changes in `input` to `device`, whose base is `image`; only `blocks` are changed.
pub fn apply(input: &mut Input<'_>, blocks: &[u32], image: &SeedImage, device: &mut Patched) {
    for _ in 0..MOST {
        if input.is_empty() || blocks.is_empty() {
            break;
        }
        Change::read(input).apply(blocks, image, device);
    }
}

/// One change.
#[derive(Clone, Copy, Debug)]
struct Change {
    what: u8,
    block: usize,
    /// In the block, modulo its length.
    offset: usize,
    value: u32,
}

impl Change {
    fn read(input: &mut Input<'_>) -> Self {
        let [what, block] = input.array();
        Self {
            what: what & 15,
            block: usize::from(what >> 4) << 8 | usize::from(block),
            offset: usize::from(input.u16()),
            value: input.u32(),
        }
    }

    fn apply(self, blocks: &[u32], image: &SeedImage, device: &mut Patched) {
        let nth = |list: &[u32], n: usize| list[n % list.len()];
        let block = nth(blocks, self.block) as usize;
        let block_bytes = device.block_bytes();
        let (offset, value) = (self.offset % block_bytes, self.value);
        let [low, high] = [value & 0xffff, value >> 16].map(|half| half as usize);
        let other = || nth(&image.blocks, low);
        match self.what {
            0 | 1 => put(device, block, offset, &value.to_le_bytes()[..1]),
            2 | 3 => put(device, block, offset, &value.to_le_bytes()[..2]),
            4 | 5 => put(device, block, offset, &value.to_le_bytes()),
            6 => put(device, block, offset, &value.to_be_bytes()),
            7 => put(device, block, offset, &other().to_le_bytes()),
            8 => put(device, block, offset, &other().to_be_bytes()),
            9 => {
                let bytes = device.block(other() as usize).to_vec();
                put(device, block, 0, &bytes);
            }
            10 => {
                let bytes = device.block(other() as usize);
                let from = high % block_bytes;
                let bytes = bytes[from..(from + 16).min(bytes.len())].to_vec();
                put(device, block, offset, &bytes);
            }
            11 => {
                let bytes = vec![low.to_le_bytes()[0]; high % block_bytes];
                put(device, block, offset, &bytes);
            }
            12 => {
                let bytes = device.block(block);
                let from = high % block_bytes;
                let bytes = bytes[from..(from + low % 64).min(bytes.len())].to_vec();
                put(device, block, offset, &bytes);
            }
            _ => {
                let mut word = [0; 4];
                let there = device.block(block).get(offset..).unwrap_or_default();
                let len = there.len().min(4);
                word[..len].copy_from_slice(&there[..len]);
                let sum = u32::from_le_bytes(word).wrapping_add(value);
                put(device, block, offset, &sum.to_le_bytes());
            }
        }
    }
}

/// Writes as much of `bytes` at `offset` as fits into the block.
fn put(device: &mut Patched, block: usize, offset: usize, bytes: &[u8]) {
    let room = device
        .block_mut(block)
        .get_mut(offset..)
        .unwrap_or_default();
    let len = room.len().min(bytes.len());
    room[..len].copy_from_slice(&bytes[..len]);
}

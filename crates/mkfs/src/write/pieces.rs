//! **Purpose.** Writes pieces of a device, adjacent ones in one call.

use std::io::IoSlice;

use fourscore_block::BlockDevice;

use crate::error::FormatResult;

/// Pieces in one call to the device, below the limit of the system call.
const PIECES_PER_WRITE: usize = 512;

/// Adjacent blocks that are written in one piece.
pub(super) struct Piece<'a> {
    pub(super) block: u64,
    pub(super) bytes: &'a [u8],
}

/// Writes pieces of whole blocks of `2^block_bits` bytes, adjacent ones in one call.
pub(super) fn write_pieces<D: BlockDevice + ?Sized>(
    device: &D,
    block_bits: u32,
    mut pieces: Vec<Piece<'_>>,
) -> FormatResult<()> {
    pieces.sort_unstable_by_key(|piece| piece.block);
    let mut rest = pieces.as_slice();
    while let Some(first) = rest.first() {
        let mut end = first.block;
        let mut count = 0;
        for piece in rest.iter().take(PIECES_PER_WRITE) {
            if piece.block != end {
                break;
            }
            end += piece.bytes.len() as u64 >> block_bits;
            count += 1;
        }
        let (now, later) = rest.split_at(count);
        let slices: Vec<_> = now.iter().map(|piece| IoSlice::new(piece.bytes)).collect();
        device.write_vectored_at(&slices, first.block << block_bits)?;
        rest = later;
    }
    Ok(())
}

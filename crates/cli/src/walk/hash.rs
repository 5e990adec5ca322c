//! **Purpose.** The hash of a file's data, which is fast for holes.
//!
//! **Model.** For files of at most [`PLAIN_BYTES_MAX`] it is SHA-256 of the data, as sha256sum
//! prints it. A sparse file of many terabytes would take hours in that way. So a longer file is
//! divided into chunks of [`CHUNK_BYTES`], and its hash is SHA-256 of the concatenated hashes of
//! the chunks. The hash of a chunk of zeros is computed once. Zeros have the same hash whether they
//! are a hole or written.

use fourscore_sync::OnceLock;
use sha2::{Digest, Sha256};

/// Size of the read buffer.
pub(crate) const READ_BYTES: usize = 256 << 10;
/// The largest file whose data is hashed as a whole.
pub(crate) const PLAIN_BYTES_MAX: u64 = 1 << 30;
/// Length of a chunk of a larger file.
pub(crate) const CHUNK_BYTES: u64 = 16 << 20;

const ZEROS: &[u8] = &[0; 16 << 10];

/// The hash of data that is added in order.
#[derive(Clone, Debug)]
pub(crate) struct ContentHash {
    /// Of the data or, if it is divided, of the hashes of its chunks.
    whole: Sha256,
    chunk: Option<Chunk>,
}

/// The unfinished chunk.
#[derive(Clone, Debug, Default)]
struct Chunk {
    hash: Sha256,
    added_bytes: u64,
}

impl ContentHash {
    /// A hash of `size_bytes` of data.
    pub(crate) fn new(size_bytes: u64) -> Self {
        Self {
            whole: Sha256::new(),
            chunk: (size_bytes > PLAIN_BYTES_MAX).then(Chunk::default),
        }
    }

    /// Adds bytes.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = self.missing_bytes().map_or(bytes.len(), |missing| {
                usize::try_from(missing).map_or(bytes.len(), |missing| missing.min(bytes.len()))
            });
            let (part, rest) = bytes.split_at(len);
            self.update_within_chunk(part);
            bytes = rest;
        }
    }

    /// Adds `count` zero bytes.
    pub(crate) fn update_zeros(&mut self, mut count: u64) {
        while count > 0 {
            if self.missing_bytes() == Some(CHUNK_BYTES) && count >= CHUNK_BYTES {
                self.whole.update(hash_of_zero_chunk());
                count -= CHUNK_BYTES;
                continue;
            }
            // Only up to the end of the chunk, so that complete chunks follow.
            let upto = self
                .missing_bytes()
                .map_or(count, |missing| missing.min(count));
            let part = usize::try_from(upto).map_or(ZEROS.len(), |upto| upto.min(ZEROS.len()));
            self.update(&ZEROS[..part]);
            count -= part as u64;
        }
    }

    /// The hash of all bytes that were added.
    pub(crate) fn finish(mut self) -> [u8; 32] {
        if let Some(chunk) = self.chunk.take()
            && chunk.added_bytes > 0
        {
            self.whole.update(chunk.hash.finalize());
        }
        self.whole.finalize().into()
    }

    /// Bytes that are missing in the chunk; `None` if the data is not divided.
    fn missing_bytes(&self) -> Option<u64> {
        self.chunk
            .as_ref()
            .map(|chunk| CHUNK_BYTES - chunk.added_bytes)
    }

    fn update_within_chunk(&mut self, bytes: &[u8]) {
        let Some(chunk) = &mut self.chunk else {
            return self.whole.update(bytes);
        };
        chunk.hash.update(bytes);
        chunk.added_bytes += bytes.len() as u64;
        if chunk.added_bytes == CHUNK_BYTES {
            self.whole.update(chunk.hash.finalize_reset());
            chunk.added_bytes = 0;
        }
    }
}

fn hash_of_zero_chunk() -> &'static [u8; 32] {
    static HASH: OnceLock<[u8; 32]> = OnceLock::new();
    HASH.get_or_init(|| {
        let mut hash = Sha256::new();
        for _ in 0..CHUNK_BYTES / ZEROS.len() as u64 {
            hash.update(ZEROS);
        }
        hash.finalize().into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::push_hex;

    fn hex(hash: ContentHash) -> String {
        let mut text = Vec::new();
        push_hex(&mut text, &hash.finish());
        String::from_utf8(text).expect("ASCII")
    }

    #[test]
    fn known_value_and_zeros() {
        let mut hash = ContentHash::new(3);
        hash.update(b"abc");
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(hash), known);
        let (mut sparse, mut plain) = (ContentHash::new(40_000), ContentHash::new(40_000));
        sparse.update_zeros(40_000);
        plain.update(&[0; 40_000]);
        assert_eq!(hex(sparse), hex(plain));
    }

    #[test]
    fn divided_data_has_the_hash_of_its_chunks_hashes() {
        // One byte, zeros across the end of its chunk, then chunks of zeros.
        let size = 5 * CHUNK_BYTES + 7;
        let mut cut = ContentHash {
            chunk: Some(Chunk::default()),
            ..ContentHash::new(size)
        };
        let mut by_hand = cut.clone();
        cut.update(b"x");
        cut.update_zeros(size - 1);
        let mut content = vec![0; usize::try_from(size).expect("it fits")];
        content[0] = b'x';
        by_hand.update(&content);
        assert_eq!(cut.clone().finish(), by_hand.finish());
        let mut whole = Sha256::new();
        for chunk in content.chunks(usize::try_from(CHUNK_BYTES).expect("it fits")) {
            whole.update(Sha256::digest(chunk));
        }
        assert_eq!(cut.finish(), <[u8; 32]>::from(whole.finalize()));
    }

    #[test]
    fn terabytes_of_holes_take_no_time() {
        let (mut a, mut b) = (ContentHash::new(4 << 40), ContentHash::new(4 << 40));
        a.update_zeros(4 << 40);
        b.update(&[0; 5]);
        b.update_zeros((4 << 40) - 5);
        assert_eq!(a.finish(), b.finish());
    }
}

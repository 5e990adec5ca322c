//! **Purpose.** The hash of a file's content, fast over holes.
//!
//! **Model.** Up to [`PLAIN_BYTES_MAX`] it is SHA-256 of the content, as sha256sum prints it. A
//! sparse file of many terabytes would take hours that way, so a longer file is cut into chunks
//! of [`CHUNK_BYTES`], and the hash is SHA-256 of the chunks' own hashes one after the other. A
//! chunk of zeros has a hash that is known; whether zeros are a hole or written makes no
//! difference to the result.

use fourscore_sync::OnceLock;
use sha2::{Digest, Sha256};

/// How much is read at a time.
pub(crate) const READ_BYTES: usize = 256 << 10;
/// The longest content that is hashed in one piece.
pub(crate) const PLAIN_BYTES_MAX: u64 = 1 << 30;
/// The length of a chunk of a longer one.
pub(crate) const CHUNK_BYTES: u64 = 16 << 20;

const ZEROS: &[u8] = &[0; 16 << 10];

/// The hash of a content that is fed in order.
#[derive(Clone, Debug)]
pub(crate) struct ContentHash {
    /// The content or, when it is cut, the hashes of its chunks.
    whole: Sha256,
    chunk: Option<Chunk>,
}

/// The chunk that is being fed.
#[derive(Clone, Debug, Default)]
struct Chunk {
    hash: Sha256,
    fed_bytes: u64,
}

impl ContentHash {
    /// For a content of `size_bytes`.
    pub(crate) fn new(size_bytes: u64) -> Self {
        Self {
            whole: Sha256::new(),
            chunk: (size_bytes > PLAIN_BYTES_MAX).then(Chunk::default),
        }
    }

    /// Adds bytes.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = self.room().map_or(bytes.len(), |room| {
                usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()))
            });
            let (part, rest) = bytes.split_at(len);
            self.update_within_chunk(part);
            bytes = rest;
        }
    }

    /// Adds `count` zero bytes.
    pub(crate) fn update_zeros(&mut self, mut count: u64) {
        while count > 0 {
            if self.room() == Some(CHUNK_BYTES) && count >= CHUNK_BYTES {
                self.whole.update(hash_of_zero_chunk());
                count -= CHUNK_BYTES;
                continue;
            }
            // Up to the chunk's end and no further, so that whole chunks follow.
            let upto = self.room().map_or(count, |room| room.min(count));
            let part = usize::try_from(upto).map_or(ZEROS.len(), |upto| upto.min(ZEROS.len()));
            self.update(&ZEROS[..part]);
            count -= part as u64;
        }
    }

    /// The hash of everything that was added.
    pub(crate) fn finish(mut self) -> [u8; 32] {
        if let Some(chunk) = self.chunk.take()
            && chunk.fed_bytes > 0
        {
            self.whole.update(chunk.hash.finalize());
        }
        self.whole.finalize().into()
    }

    /// How much fits into the chunk; `None` when the content is not cut.
    fn room(&self) -> Option<u64> {
        self.chunk
            .as_ref()
            .map(|chunk| CHUNK_BYTES - chunk.fed_bytes)
    }

    fn update_within_chunk(&mut self, bytes: &[u8]) {
        let Some(chunk) = &mut self.chunk else {
            return self.whole.update(bytes);
        };
        chunk.hash.update(bytes);
        chunk.fed_bytes += bytes.len() as u64;
        if chunk.fed_bytes == CHUNK_BYTES {
            self.whole.update(chunk.hash.finalize_reset());
            chunk.fed_bytes = 0;
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
    fn cut_content_is_the_hash_of_the_chunks_hashes() {
        // One byte, a whole chunk of zeros across a boundary, then chunks of nothing but zeros.
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

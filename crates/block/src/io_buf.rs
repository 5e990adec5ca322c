//! **Purpose.** I/O buffers: memory that a request owns until it has ended.
//!
//! **Model.** There are two kinds: *aligned* memory of its own, which can be used for direct I/O,
//! and *shared* bytes, such as the sealed content of a metadata block, which are written without a
//! copy. A read is possible only into memory without another owner.

use std::fmt;

use fourscore_sync::Arc;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// The unit and the alignment of aligned memory. Direct I/O of Linux accepts memory that is aligned
/// like this; a device may require more of offsets and lengths.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; Self::BYTES]);

impl Page {
    const BYTES: usize = 4096;
}

/// Zeroes for the largest block size.
pub(crate) static ZEROES: [u8; 1 << 16] = [0; 1 << 16];

/// Makes zero bytes that can be filled and then shared without a copy.
pub(crate) fn zeroed_shared(len_bytes: usize) -> Arc<[u8]> {
    match ZEROES.get(..len_bytes) {
        Some(zeroes) => Arc::from(zeroes),
        None => Arc::from(vec![0; len_bytes]),
    }
}

/// Prefetches `bytes` into the processor's cache. For a caller that will read them next: blocks are
/// scattered in memory, so the processor cannot predict the next one. A hint; on processors without
/// such an instruction it does nothing.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction has no effect on registers or memory, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Bytes owned by a request.
pub struct IoBuf {
    memory: Memory,
    len_bytes: usize,
}

enum Memory {
    Aligned(Box<[Page]>),
    Shared(Arc<[u8]>),
}

impl IoBuf {
    /// `len_bytes` zero bytes at an address aligned to 4096.
    ///
    /// # Panics
    /// If the allocation fails.
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Self {
        let pages = <[Page]>::new_box_zeroed_with_elems(len_bytes.div_ceil(Page::BYTES));
        let pages = pages.unwrap_or_else(|_| panic!("out of memory for {len_bytes} bytes"));
        Self {
            memory: Memory::Aligned(pages),
            len_bytes,
        }
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len_bytes
    }

    /// Whether there are no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match &self.memory {
            Memory::Aligned(pages) => &pages.as_bytes()[..self.len_bytes],
            Memory::Shared(bytes) => bytes,
        }
    }

    /// The bytes for writing; `None` if they have another owner.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        match &mut self.memory {
            Memory::Aligned(pages) => Some(&mut pages.as_mut_bytes()[..self.len_bytes]),
            Memory::Shared(bytes) => Arc::get_mut(bytes),
        }
    }

    /// The bytes as a shared value. Shared bytes are not copied, aligned memory is.
    #[must_use]
    pub fn into_shared(self) -> Arc<[u8]> {
        match self.memory {
            Memory::Shared(bytes) => bytes,
            Memory::Aligned(_) => Arc::from(self.as_slice()),
        }
    }
}

impl From<Arc<[u8]>> for IoBuf {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self {
            len_bytes: bytes.len(),
            memory: Memory::Shared(bytes),
        }
    }
}

impl From<&[u8]> for IoBuf {
    fn from(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        if let Some(fresh) = buf.as_mut_slice() {
            fresh.copy_from_slice(bytes);
        }
        buf
    }
}

impl std::ops::Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.memory {
            Memory::Aligned(_) => "aligned",
            Memory::Shared(_) => "shared",
        };
        write!(f, "IoBuf({kind}, {} bytes)", self.len_bytes)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn new_memory_is_aligned_zero_and_has_the_requested_length() {
        for len in [0, 1, 512, 4096, 4097, 65536] {
            let mut buf = IoBuf::zeroed(len);
            assert_eq!((buf.len(), buf.is_empty()), (len, len == 0));
            assert!(buf.iter().all(|&byte| byte == 0));
            assert_eq!(buf.as_slice().as_ptr().addr() % 4096, 0, "length {len}");
            assert_eq!(buf.as_mut_slice().expect("not shared").len(), len);
        }
    }

    #[test]
    fn bytes_with_another_owner_are_not_writable() {
        let bytes: Arc<[u8]> = Arc::from(&b"sealed"[..]);
        let mut buf = IoBuf::from(Arc::clone(&bytes));
        assert!(buf.as_mut_slice().is_none());
        drop(bytes);
        buf.as_mut_slice().expect("the last owner").fill(b'x');
        assert_eq!(&*buf.into_shared(), b"xxxxxx");
    }
}

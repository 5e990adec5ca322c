//! **Purpose.** Replies: error numbers, and the buffer in which a worker makes all of its replies.
//!
//! **Model.** A reply is a header and a body, sent to the kernel in one vectored write. The body's
//! memory is as long as the longest reply, and is reused without being cleared.

use std::io::IoSlice;

use fourscore::{Error, InodeNr};
use zerocopy::{FromZeros, Immutable, IntoBytes};

use crate::abi::OutHeader;

/// An error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    pub(crate) const PERM: Self = Self(1);
    pub(crate) const IO: Self = Self(5);
    pub(crate) const NXIO: Self = Self(6);
    pub(crate) const INVAL: Self = Self(22);
    pub(crate) const NOTTY: Self = Self(25);
    pub(crate) const RANGE: Self = Self(34);
    pub(crate) const NOSYS: Self = Self(38);
    pub(crate) const PROTO: Self = Self(71);
    pub(crate) const OPNOTSUPP: Self = Self(95);
    #[cfg(feature = "null")]
    pub(crate) const NODATA: Self = Self(61);
    pub(crate) const STALE: Self = Self(116);
    pub(crate) const UCLEAN: Self = Self(117);
    pub(crate) const BADF: Self = Self(9);
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        // Log only errors that keep a part of the image from being read; others are normal.
        if let Error::Corrupt(_) | Error::Io(_) = error {
            tracing::warn!(%error, "a request failed");
        }
        Self(error.errno())
    }
}

/// The reply that is being made.
#[derive(Debug)]
pub(crate) struct Reply {
    header: OutHeader,
    body: Box<[u8]>,
    len: usize,
    /// Inodes whose lookup count was incremented for this reply. If it does not arrive, the kernel
    /// will not forget them.
    pub(crate) lookups: Vec<InodeNr>,
}

impl Reply {
    /// A buffer for replies with bodies of up to `max_bytes`.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let body = <[u8]>::new_box_zeroed_with_elems(max_bytes);
        Self {
            header: OutHeader::default(),
            body: body.unwrap_or_default(),
            len: 0,
            lookups: Vec::new(),
        }
    }

    /// Begins a new reply.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.lookups.clear();
    }

    /// The length of the body in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends a structure.
    ///
    /// # Errors
    /// `ERANGE` if there is too little space.
    pub(crate) fn push<T: IntoBytes + Immutable>(&mut self, value: &T) -> Result<(), Errno> {
        self.push_bytes(value.as_bytes())
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// `ERANGE` if there is too little space.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let space = self.space(bytes.len())?;
        space.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// The memory for `len` more bytes, with any contents. They become part of the reply with
    /// [`Reply::grow`].
    ///
    /// # Errors
    /// `ERANGE` if there is too little space.
    pub(crate) fn space(&mut self, len: usize) -> Result<&mut [u8], Errno> {
        let end = self.len.checked_add(len).ok_or(Errno::RANGE)?;
        self.body.get_mut(self.len..end).ok_or(Errno::RANGE)
    }

    /// Makes `len` bytes of the space part of the reply.
    pub(crate) fn grow(&mut self, len: usize) {
        self.len = self.body.len().min(self.len + len);
    }

    /// Ends the reply to the request `unique`: with an error it has no body.
    pub(crate) fn finish(&mut self, unique: u64, result: Result<(), Errno>) {
        /// The error numbers that the kernel accepts.
        const ERRORS: std::ops::RangeInclusive<i32> = 1..=511;
        let error = match result {
            Ok(()) => 0,
            Err(Errno(number)) if ERRORS.contains(&number) => -number,
            Err(_) => -5,
        };
        if error != 0 {
            self.len = 0;
        }
        let len = u32::try_from(size_of::<OutHeader>() + self.len).unwrap_or(u32::MAX);
        self.header = OutHeader { len, error, unique };
    }

    /// The header, when the reply is finished.
    pub(crate) fn header(&self) -> &OutHeader {
        &self.header
    }

    /// The body.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body[..self.len]
    }

    /// The whole memory of the body; on a ring it holds the payload of requests too.
    pub(crate) fn memory(&self) -> &[u8] {
        &self.body
    }

    /// As [`Reply::memory`].
    pub(crate) fn memory_mut(&mut self) -> &mut [u8] {
        &mut self.body
    }

    /// The header and the body, for a vectored write.
    pub(crate) fn slices(&self) -> [IoSlice<'_>; 2] {
        [
            IoSlice::new(self.header.as_bytes()),
            IoSlice::new(self.body()),
        ]
    }
}

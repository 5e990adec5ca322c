//! **Purpose.** A request of the kernel, taken apart.
//!
//! **Invariants.** Any bytes are a request or an error: nothing here panics, and no length that is
//! read from them is believed before it is compared with the bytes that are there.

use zerocopy::FromBytes;

use crate::abi::InHeader;
use crate::reply::Errno;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'r> {
    pub(crate) header: InHeader,
    body: &'r [u8],
}

impl<'r> Request<'r> {
    /// The request in `bytes`; `None` if it has no header, or is not as long as that says: then
    /// there is nothing that a reply could name.
    pub(crate) fn parse(bytes: &'r [u8]) -> Option<Self> {
        let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
        let is_whole = usize::try_from(header.len).is_ok_and(|len| len == bytes.len());
        is_whole.then_some(Self { header, body })
    }

    /// What follows the header.
    pub(crate) fn arguments(&self) -> Arguments<'r> {
        Arguments { rest: self.body }
    }
}

/// What of the arguments was not taken yet.
#[derive(Clone, Debug)]
pub(crate) struct Arguments<'r> {
    rest: &'r [u8],
}

impl<'r> Arguments<'r> {
    /// The next structure.
    ///
    /// # Errors
    /// `EINVAL` if fewer bytes are left.
    pub(crate) fn take<T: FromBytes>(&mut self) -> Result<T, Errno> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| Errno::INVAL)?;
        self.rest = rest;
        Ok(value)
    }

    /// The next name, without the zero that ends it.
    ///
    /// # Errors
    /// `EINVAL` without a zero, and for an empty name.
    pub(crate) fn name(&mut self) -> Result<&'r [u8], Errno> {
        let end = self.rest.iter().position(|&byte| byte == 0);
        let end = end.filter(|&end| end > 0).ok_or(Errno::INVAL)?;
        let name = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(name)
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// `EINVAL` if fewer are left.
    pub(crate) fn bytes(&mut self, len: u32) -> Result<&'r [u8], Errno> {
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Errno::INVAL)?;
        self.rest = rest;
        Ok(bytes)
    }
}

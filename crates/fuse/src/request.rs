//! **Purpose.** Parses requests of the kernel.
//!
//! **Model.** A request has a header and arguments. From `/dev/fuse` they are contiguous; a ring
//! entry has the first structure in one area and the rest in another. No argument is split between
//! the areas.
//!
//! **Invariants.** Any bytes are a request or an error: nothing here panics, and every length in
//! them is compared with the bytes that are there before it is used.

use zerocopy::FromBytes;

use crate::abi::InHeader;
use crate::reply::Errno;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'r> {
    pub(crate) header: InHeader,
    body: &'r [u8],
    /// The arguments after the body; for ring entries.
    payload: &'r [u8],
}

impl<'r> Request<'r> {
    /// The request in `bytes`; `None` if it has no header, or another length than the header says:
    /// then there is no id for a reply.
    pub(crate) fn parse(bytes: &'r [u8]) -> Option<Self> {
        let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
        let is_whole = usize::try_from(header.len).is_ok_and(|len| len == bytes.len());
        is_whole.then_some(Self {
            header,
            body,
            payload: &[],
        })
    }

    /// The request with the header and first structure in `header` and `first`, and the rest in
    /// `payload`; `None` if they are not as long as the header says. The area `first` is as long as
    /// the longest structure: the bytes after this request's are left over from earlier requests.
    pub(crate) fn in_parts(header: &'r [u8], first: &'r [u8], payload: &'r [u8]) -> Option<Self> {
        let (header, _) = InHeader::read_from_prefix(header).ok()?;
        let len = usize::try_from(header.len).ok()?;
        let first_bytes = len.checked_sub(size_of::<InHeader>() + payload.len())?;
        Some(Self {
            header,
            body: first.get(..first_bytes)?,
            payload,
        })
    }

    /// The arguments after the header.
    pub(crate) fn arguments(&self) -> Arguments<'r> {
        match self.body {
            [] => Arguments {
                rest: self.payload,
                payload: &[],
            },
            body => Arguments {
                rest: body,
                payload: self.payload,
            },
        }
    }
}

/// The arguments not taken yet.
#[derive(Clone, Debug)]
pub(crate) struct Arguments<'r> {
    rest: &'r [u8],
    /// The arguments that follow `rest`.
    payload: &'r [u8],
}

impl<'r> Arguments<'r> {
    /// The next structure.
    ///
    /// # Errors
    /// `EINVAL` if fewer bytes are left.
    pub(crate) fn take<T: FromBytes>(&mut self) -> Result<T, Errno> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| Errno::INVAL)?;
        self.advance(rest);
        Ok(value)
    }

    fn advance(&mut self, rest: &'r [u8]) {
        self.rest = match rest {
            [] => std::mem::take(&mut self.payload),
            rest => rest,
        };
    }

    /// The next name, without the zero that ends it.
    ///
    /// # Errors
    /// `EINVAL` without a zero, and for an empty name.
    pub(crate) fn name(&mut self) -> Result<&'r [u8], Errno> {
        let end = self.rest.iter().position(|&byte| byte == 0);
        let end = end.filter(|&end| end > 0).ok_or(Errno::INVAL)?;
        let name = &self.rest[..end];
        self.advance(&self.rest[end + 1..]);
        Ok(name)
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// `EINVAL` if fewer are left.
    pub(crate) fn bytes(&mut self, len: u32) -> Result<&'r [u8], Errno> {
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Errno::INVAL)?;
        self.advance(rest);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{WriteIn, opcode};
    use zerocopy::IntoBytes;

    fn header(len: usize) -> InHeader {
        InHeader {
            len: u32::try_from(size_of::<InHeader>() + len).expect("short"),
            opcode: opcode::WRITE,
            ..InHeader::default()
        }
    }

    #[test]
    fn arguments_are_the_same_in_one_piece_and_in_parts() {
        let first = WriteIn {
            size: 5,
            ..WriteIn::default()
        };
        let header = header(size_of::<WriteIn>() + 10);
        let payload = b"name\0bytes";
        let whole = [header.as_bytes(), first.as_bytes(), payload].concat();
        // The area after the first structure holds bytes of an older request.
        let area = [first.as_bytes(), &[0xff; 64]].concat();
        let requests = [
            Request::parse(&whole).expect("whole"),
            Request::in_parts(header.as_bytes(), &area, payload).expect("whole"),
        ];
        for request in requests {
            let mut arguments = request.arguments();
            assert_eq!(arguments.take::<WriteIn>().map(|taken| taken.size), Ok(5));
            assert_eq!(arguments.name(), Ok(&b"name"[..]));
            assert_eq!(arguments.bytes(6), Err(Errno::INVAL));
            assert_eq!(arguments.bytes(5), Ok(&b"bytes"[..]));
            assert_eq!(arguments.bytes(1), Err(Errno::INVAL));
        }
    }

    #[test]
    fn a_name_is_found_without_a_structure_in_front_of_it() {
        let header = header(2);
        let request = Request::in_parts(header.as_bytes(), &[0xff; 128], b"a\0");
        let request = request.expect("whole");
        assert_eq!(request.arguments().name(), Ok(&b"a"[..]));
    }

    #[test]
    fn parts_of_a_wrong_length_are_no_request() {
        let in_parts = |len, payload: &[u8]| {
            Request::in_parts(header(len).as_bytes(), &[0; 128], payload).is_some()
        };
        assert!(in_parts(128, &[]) && in_parts(3, &[0; 3]));
        assert!(!in_parts(129, &[]) && !in_parts(2, &[0; 3]));
        assert!(Request::in_parts(&[0; 39], &[0; 128], &[]).is_none());
        assert!(Request::in_parts(&[0; 40], &[0; 128], &[]).is_none());
    }
}

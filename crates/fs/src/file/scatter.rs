//! **Purpose.** Fills the buffers of a vectored read one after the other, with as few device reads
//! as the number of slices per call allows.

use std::io::IoSliceMut;

use crate::Result;

/// The caller's buffers, filled from the front.
pub(crate) struct Scatter<'a, 'b> {
    bufs: &'a mut [IoSliceMut<'b>],
    /// The buffer to fill next, and how much of it is filled.
    next: usize,
    used: usize,
    pub(crate) filled: usize,
}

impl<'a, 'b> Scatter<'a, 'b> {
    pub(crate) fn new(bufs: &'a mut [IoSliceMut<'b>]) -> Self {
        Self {
            bufs,
            next: 0,
            used: 0,
            filled: 0,
        }
    }

    /// Passes the next free bytes, at most `limit` of one buffer, to `fill`.
    pub(crate) fn with_next(&mut self, limit: u64, fill: impl FnOnce(&mut [u8])) -> u64 {
        while let Some(buf) = self.bufs.get_mut(self.next) {
            let buf = buf.get_mut(self.used..).unwrap_or_default();
            if buf.is_empty() {
                self.next += 1;
                self.used = 0;
                continue;
            }
            let len = usize::try_from(limit).unwrap_or(usize::MAX).min(buf.len());
            fill(&mut buf[..len]);
            self.used += len;
            self.filled += len;
            return len as u64;
        }
        0
    }

    pub(crate) fn zero(&mut self, mut len_bytes: u64) {
        while len_bytes > 0 {
            let done = self.with_next(len_bytes, |buf| buf.fill(0));
            if done == 0 {
                break;
            }
            len_bytes -= done;
        }
    }

    /// Fills `len_bytes` with as few calls of `read` as there are groups of [`SLICES`] buffers.
    pub(crate) fn read(
        &mut self,
        mut len_bytes: u64,
        mut from: u64,
        mut read: impl FnMut(&mut [IoSliceMut<'_>], u64) -> std::io::Result<()>,
    ) -> Result<()> {
        while len_bytes > 0 {
            let mut slices: [IoSliceMut<'_>; SLICES] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let (mut count, mut gathered) = (0, 0_u64);
            let (mut next, mut used) = (self.next, self.used);
            for buf in self.bufs.iter_mut().skip(self.next) {
                if count == SLICES || gathered == len_bytes {
                    break;
                }
                let buf = buf.get_mut(used..).unwrap_or_default();
                let want = usize::try_from(len_bytes - gathered).unwrap_or(usize::MAX);
                let len = want.min(buf.len());
                if len == buf.len() {
                    (next, used) = (next + 1, 0);
                } else {
                    used += len;
                }
                if len > 0 {
                    slices[count] = IoSliceMut::new(&mut buf[..len]);
                    count += 1;
                    gathered += len as u64;
                }
            }
            if gathered == 0 {
                break;
            }
            read(&mut slices[..count], from)?;
            (self.next, self.used) = (next, used);
            self.filled += usize::try_from(gathered).unwrap_or(usize::MAX);
            from += gathered;
            len_bytes -= gathered;
        }
        Ok(())
    }
}

/// The most slices that one call of the device gets; a read into more slices is split.
pub(crate) const SLICES: usize = 16;

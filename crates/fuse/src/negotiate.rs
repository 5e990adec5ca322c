//! **Purpose.** The first request: what the kernel offers, and what is taken of it.
//!
//! **Model.** What is offered and known here is taken, but for what costs more than it brings:
//!
//! - `NO_OPEN_SUPPORT`: without OPEN nobody would refuse to open an immutable file for writing.
//! - `ASYNC_DIO` of a mount that writes: Linux drops the cached pages below a direct write before
//!   it and, if it waits for the write's end, after it. After one that ends asynchronously it does
//!   not, so pages that were read meanwhile would stay, and be read for as long as the file is
//!   cached. Without the flag it waits for the end of each.
//! - splicing: a request is copied once into a buffer of its worker, and its data goes from there
//!   to the device; a pipe in between saves no copy where the page cache of the image takes it.
//! - locks: those of the kernel do, since nobody else has the file system.
//!
//! With the writeback cache the kernel keeps what was written, and owns size and times of files
//! that it knows.
//!
//! **References.** `linux/fuse.h`.

use zerocopy::FromBytes;

use crate::abi::{InitIn, InitOut, MAJOR, MINOR, OLDEST_MINOR, init};
use crate::options::{Cache, Permissions, SessionOptions};
use crate::reply::Errno;
use crate::request::Request;

/// The kernel's pages, in bytes, as the protocol counts them.
const PAGE_BYTES: u32 = 4096;
/// Pages of a request where nothing else was said (Linux's default limit).
const DEFAULT_PAGES: u16 = 256;
/// More than this in one request brings nothing, and each worker has a buffer for it.
const MOST_PAGES: u16 = 1024;
/// Requests that the kernel makes on its own (read-ahead, write-back) at most.
const MAX_BACKGROUND: u16 = 256;

const WANTED: u64 = init::ASYNC_READ
    | init::ATOMIC_O_TRUNC
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::HAS_IOCTL_DIR
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT;

/// Whether there are rings for requests to come through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rings {
    There,
    Missing,
}

/// What the times of a file system are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ticks {
    Nanoseconds,
    /// Inodes have no room for more.
    Seconds,
}

impl Ticks {
    fn nanoseconds(self) -> u32 {
        match self {
            Self::Nanoseconds => 1,
            Self::Seconds => 1_000_000_000,
        }
    }
}

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    flags: u64,
    /// The longest write and read, in bytes.
    pub(crate) most_bytes: u32,
}

impl Agreed {
    /// Whether a flag of [`init`] holds.
    pub(crate) fn has(self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// Everything, for tests without a kernel.
    #[cfg(test)]
    pub(crate) fn all() -> Self {
        Self {
            flags: WANTED | init::WRITEBACK_CACHE,
            most_bytes: u32::from(DEFAULT_PAGES) * PAGE_BYTES,
        }
    }
}

/// The most pages of a request: the kernel's limit.
pub(crate) fn most_pages() -> u16 {
    // Older kernels have no such file, and a limit of 256 pages.
    let limit = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
    let limit = limit.ok().and_then(|text| text.trim().parse::<u16>().ok());
    limit.unwrap_or(DEFAULT_PAGES).clamp(1, MOST_PAGES)
}

/// The longest request with as many pages, in bytes: with its header and arguments.
pub(crate) fn request_bytes(pages: u16) -> usize {
    usize::from(pages) * PAGE_BYTES as usize + PAGE_BYTES as usize
}

/// Answers the first request. `None` in the second place says that the kernel is to ask again, in
/// the version of the answer.
///
/// # Errors
/// `EPROTO` for a kernel that is too old; `EINVAL` for what is no such request.
pub(crate) fn answer(
    request: &Request<'_>,
    options: &SessionOptions,
    rings: Rings,
    (pages, ticks): (u16, Ticks),
) -> Result<(InitOut, Option<Agreed>), Errno> {
    let mut arguments = request.arguments();
    let offer: InitIn = arguments.take()?;
    let mut out = InitOut {
        major: MAJOR,
        minor: MINOR,
        ..InitOut::default()
    };
    if offer.major > MAJOR {
        return Ok((out, None));
    }
    if offer.major < MAJOR || offer.minor < OLDEST_MINOR {
        return Err(Errno::PROTO);
    }
    let mut offered = u64::from(offer.flags);
    if offered & init::INIT_EXT != 0 {
        let more = arguments.bytes(4)?;
        let more = u32::read_from_bytes(more).map_err(|_| Errno::INVAL)?;
        offered |= u64::from(more) << 32;
    }
    let flags = offered & wanted(options, rings);
    // Without the flag the kernel sends 32 pages at most.
    let pages = if flags & init::MAX_PAGES != 0 {
        pages
    } else {
        32
    };
    let most_bytes = u32::from(pages) * PAGE_BYTES;
    out.minor = offer.minor.min(MINOR);
    out.max_readahead = offer.max_readahead;
    (out.flags, out.flags2) = halves(flags);
    out.max_background = MAX_BACKGROUND;
    out.congestion_threshold = MAX_BACKGROUND / 4 * 3;
    out.max_write = most_bytes;
    out.time_gran = ticks.nanoseconds();
    out.max_pages = pages;
    Ok((out, Some(Agreed { flags, most_bytes })))
}

fn wanted(options: &SessionOptions, rings: Rings) -> u64 {
    let cache = match options.cache() {
        Cache::Writeback => init::WRITEBACK_CACHE,
        Cache::Writethrough => 0,
    };
    let rings = match rings {
        Rings::There => init::OVER_IO_URING,
        Rings::Missing => 0,
    };
    let async_direct = match options.is_read_only {
        true => init::ASYNC_DIO,
        false => 0,
    };
    // Whoever takes the lists has the kernel obey them.
    let lists = match options.permissions {
        Permissions::Kernel => 0,
        Permissions::Nobody => init::POSIX_ACL,
    };
    (WANTED | cache | rings | async_direct) & !lists
}

/// The memory of a ring's entry for payloads of as many pages, in bytes.
pub(crate) fn payload_bytes(pages: u16) -> usize {
    /// What Linux asks for however short requests are.
    const FEWEST: usize = 8192;
    (usize::from(pages) * PAGE_BYTES as usize).max(FEWEST)
}

fn halves(flags: u64) -> (u32, u32) {
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    (half(flags), half(flags >> 32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{InHeader, opcode};
    use zerocopy::IntoBytes;

    fn asked(offer: InitIn, more: &[u8]) -> Result<(InitOut, Option<Agreed>), Errno> {
        asked_with(Rings::There, offer, more)
    }

    fn asked_with(
        rings: Rings,
        offer: InitIn,
        more: &[u8],
    ) -> Result<(InitOut, Option<Agreed>), Errno> {
        let len = size_of::<InHeader>() + size_of::<InitIn>() + more.len();
        let header = InHeader {
            len: u32::try_from(len).expect("short"),
            opcode: opcode::INIT,
            ..InHeader::default()
        };
        let bytes = [header.as_bytes(), offer.as_bytes(), more].concat();
        let request = Request::parse(&bytes).expect("a request");
        let limits = (256, Ticks::Seconds);
        answer(&request, &SessionOptions::default(), rings, limits)
    }

    fn offer(major: u32, minor: u32, flags: u32) -> InitIn {
        InitIn {
            major,
            minor,
            max_readahead: 128 << 10,
            flags,
        }
    }

    #[test]
    fn what_is_offered_and_wanted_is_taken() {
        let (out, agreed) = asked(offer(7, 45, u32::MAX), &[0xff; 48]).expect("agreed");
        let agreed = agreed.expect("agreed");
        assert!(agreed.has(init::WRITEBACK_CACHE) && agreed.has(init::POSIX_ACL));
        assert_eq!(
            (out.minor, out.max_pages, out.max_write),
            (MINOR, 256, 1 << 20)
        );
        assert!(!agreed.has(init::ASYNC_DIO));
        // Nothing that is unknown here is taken, whatever is offered.
        assert_eq!(u64::from(out.flags), WANTED | init::WRITEBACK_CACHE);
        assert_eq!(u64::from(out.flags2) << 32, init::OVER_IO_URING);
        let without = asked_with(Rings::Missing, offer(7, 45, u32::MAX), &[0xff; 48]);
        let (out, agreed) = without.expect("agreed");
        assert_eq!(out.flags2, 0);
        assert!(!agreed.expect("agreed").has(init::OVER_IO_URING));
        let options = SessionOptions {
            cache: Cache::Writethrough,
            permissions: Permissions::Nobody,
            ..SessionOptions::default()
        };
        let without = wanted(&options, Rings::Missing);
        assert_eq!(without, WANTED & !init::POSIX_ACL);
        // Where nothing is written direct reads need not wait for each other.
        let read_only = SessionOptions {
            is_read_only: true,
            ..SessionOptions::default()
        };
        let of_reader = wanted(&read_only, Rings::Missing);
        assert_eq!(of_reader, WANTED | init::WRITEBACK_CACHE | init::ASYNC_DIO);
        assert_eq!(out.time_gran, 1_000_000_000);
        let (out, agreed) = asked(offer(7, 31, 1), &[]).expect("agreed");
        assert_eq!((out.minor, out.flags, out.max_write), (31, 1, 32 * 4096));
        assert!(!agreed.expect("agreed").has(init::SETXATTR_EXT));
    }

    #[test]
    fn other_versions_are_refused_or_asked_again() {
        assert_eq!(asked(offer(7, 30, 0), &[]).err(), Some(Errno::PROTO));
        assert_eq!(asked(offer(6, 99, 0), &[]).err(), Some(Errno::PROTO));
        let (out, agreed) = asked(offer(8, 0, u32::MAX), &[]).expect("an answer");
        assert_eq!((out.major, agreed), (7, None));
        assert_eq!(asked(offer(7, 45, u32::MAX), &[]).err(), Some(Errno::INVAL));
    }
}

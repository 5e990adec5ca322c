//! **Purpose.** Answers the INIT request: chooses among the features that the kernel offers.
//!
//! **Model.** All features known here are used, except these:
//!
//! - `NO_OPEN_SUPPORT`: OPEN is needed to refuse opening an immutable file for writing.
//! - `ASYNC_DIO` of a writable mount: Linux drops the cached pages of a range before a direct write
//!   to it and, if it waits for the write's end, after it. After an asynchronous write it does not,
//!   so pages that were read meanwhile would stay stale for as long as the file is cached. Without
//!   the flag it waits for the end of each write.
//! - splicing: a request is copied once into a buffer of its worker, and its data goes from there
//!   to the device; a pipe in between saves no copy if the data goes to the image's page cache.
//! - locks: those of the kernel suffice, since no other host uses the file system.
//!
//! With the writeback cache the kernel caches writes, and owns size and times of the files that it
//! knows.
//!
//! **References.** `linux/fuse.h`.

use zerocopy::FromBytes;

use crate::abi::{InitIn, InitOut, MAJOR, MINOR, OLDEST_MINOR, init};
use crate::options::{Cache, Permissions, SessionOptions};
use crate::reply::Errno;
use crate::request::Request;

/// The kernel's pages, in bytes, as the protocol counts them.
const PAGE_BYTES: u32 = 4096;
/// The most pages of a request by default (Linux's default limit).
const DEFAULT_PAGES: u16 = 256;
/// The most pages of a request: more gain nothing, and each worker has a buffer of that length.
const MAX_PAGES: u16 = 1024;
/// The most background requests of the kernel (read-ahead, write-back) at a time.
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

/// Whether ring queues can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rings {
    Available,
    Unavailable,
}

/// The granularity of a file system's timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granularity {
    Nanoseconds,
    /// For inodes of 128 bytes.
    Seconds,
}

impl Granularity {
    fn nanoseconds(self) -> u32 {
        match self {
            Self::Nanoseconds => 1,
            Self::Seconds => 1_000_000_000,
        }
    }
}

/// The result of the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    flags: u64,
    /// The longest write and read, in bytes.
    pub(crate) max_bytes: u32,
}

impl Agreed {
    /// Whether a flag of [`init`] is in use.
    pub(crate) fn has(self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// All features, for tests without a kernel.
    #[cfg(test)]
    pub(crate) fn all() -> Self {
        Self {
            flags: WANTED | init::WRITEBACK_CACHE,
            max_bytes: u32::from(DEFAULT_PAGES) * PAGE_BYTES,
        }
    }
}

/// The most pages of a request: the kernel's limit.
pub(crate) fn max_pages() -> u16 {
    // Older kernels have no such file, and a limit of 256 pages.
    let limit = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
    let limit = limit.ok().and_then(|text| text.trim().parse::<u16>().ok());
    limit.unwrap_or(DEFAULT_PAGES).clamp(1, MAX_PAGES)
}

/// The length of the longest request with `pages` pages, in bytes, with header and arguments.
pub(crate) fn request_bytes(pages: u16) -> usize {
    usize::from(pages) * PAGE_BYTES as usize + PAGE_BYTES as usize
}

/// Answers the INIT request. Returns `None` as the second value if the kernel must send it again in
/// the version of the answer.
///
/// # Errors
/// `EPROTO` for a kernel that is too old; `EINVAL` for a malformed request.
pub(crate) fn answer(
    request: &Request<'_>,
    options: &SessionOptions,
    rings: Rings,
    pages: u16,
    granularity: Granularity,
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
    // Without the flag the kernel sends at most 32 pages.
    let pages = if flags & init::MAX_PAGES != 0 {
        pages
    } else {
        32
    };
    let max_bytes = u32::from(pages) * PAGE_BYTES;
    out.minor = offer.minor.min(MINOR);
    out.max_readahead = offer.max_readahead;
    (out.flags, out.flags2) = halves(flags);
    out.max_background = MAX_BACKGROUND;
    out.congestion_threshold = MAX_BACKGROUND / 4 * 3;
    out.max_write = max_bytes;
    out.time_gran = granularity.nanoseconds();
    out.max_pages = pages;
    Ok((out, Some(Agreed { flags, max_bytes })))
}

fn wanted(options: &SessionOptions, rings: Rings) -> u64 {
    let cache = match options.cache() {
        Cache::Writeback => init::WRITEBACK_CACHE,
        Cache::Writethrough => 0,
    };
    let rings = match rings {
        Rings::Available => init::OVER_IO_URING,
        Rings::Unavailable => 0,
    };
    let async_direct = match options.is_read_only {
        true => init::ASYNC_DIO,
        false => 0,
    };
    // With this flag the kernel enforces access control lists.
    let lists = match options.permissions {
        Permissions::Kernel => 0,
        Permissions::Nobody => init::POSIX_ACL,
    };
    (WANTED | cache | rings | async_direct) & !lists
}

/// The payload memory of a ring entry for requests of `pages` pages, in bytes.
pub(crate) fn payload_bytes(pages: u16) -> usize {
    /// The least that Linux requires.
    const MIN_BYTES: usize = 8192;
    (usize::from(pages) * PAGE_BYTES as usize).max(MIN_BYTES)
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

    fn negotiated(offer: InitIn, more: &[u8]) -> Result<(InitOut, Option<Agreed>), Errno> {
        negotiated_with(Rings::Available, offer, more)
    }

    fn negotiated_with(
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
        let options = SessionOptions::default();
        answer(&request, &options, rings, 256, Granularity::Seconds)
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
    fn features_that_are_offered_and_wanted_are_used() {
        let (out, agreed) = negotiated(offer(7, 45, u32::MAX), &[0xff; 48]).expect("agreed");
        let agreed = agreed.expect("agreed");
        assert!(agreed.has(init::WRITEBACK_CACHE) && agreed.has(init::POSIX_ACL));
        assert_eq!(
            (out.minor, out.max_pages, out.max_write),
            (MINOR, 256, 1 << 20)
        );
        assert!(!agreed.has(init::ASYNC_DIO));
        // Unknown features are not used.
        assert_eq!(u64::from(out.flags), WANTED | init::WRITEBACK_CACHE);
        assert_eq!(u64::from(out.flags2) << 32, init::OVER_IO_URING);
        let without = negotiated_with(Rings::Unavailable, offer(7, 45, u32::MAX), &[0xff; 48]);
        let (out, agreed) = without.expect("agreed");
        assert_eq!(out.flags2, 0);
        assert!(!agreed.expect("agreed").has(init::OVER_IO_URING));
        let options = SessionOptions {
            cache: Cache::Writethrough,
            permissions: Permissions::Nobody,
            ..SessionOptions::default()
        };
        let without = wanted(&options, Rings::Unavailable);
        assert_eq!(without, WANTED & !init::POSIX_ACL);
        // On a read-only mount direct reads may be asynchronous.
        let read_only = SessionOptions {
            is_read_only: true,
            ..SessionOptions::default()
        };
        let of_reader = wanted(&read_only, Rings::Unavailable);
        assert_eq!(of_reader, WANTED | init::WRITEBACK_CACHE | init::ASYNC_DIO);
        assert_eq!(out.time_gran, 1_000_000_000);
        let (out, agreed) = negotiated(offer(7, 31, 1), &[]).expect("agreed");
        assert_eq!((out.minor, out.flags, out.max_write), (31, 1, 32 * 4096));
        assert!(!agreed.expect("agreed").has(init::SETXATTR_EXT));
    }

    #[test]
    fn old_versions_are_refused_and_newer_ones_renegotiated() {
        assert_eq!(negotiated(offer(7, 30, 0), &[]).err(), Some(Errno::PROTO));
        assert_eq!(negotiated(offer(6, 99, 0), &[]).err(), Some(Errno::PROTO));
        let (out, agreed) = negotiated(offer(8, 0, u32::MAX), &[]).expect("an answer");
        assert_eq!((out.major, agreed), (7, None));
        assert_eq!(
            negotiated(offer(7, 45, u32::MAX), &[]).err(),
            Some(Errno::INVAL)
        );
    }
}

//! **Purpose.** Detects the format of a source by its content.
//!
//! **Model.** A directory is a tree, unless it has the files of an OCI layout or of skopeo's `dir:`
//! transport. The format of a file is detected by its first bytes, after decompression:
//!
//! | bytes | source |
//! |---|---|
//! | a tar header, even a damaged one | a tar archive |
//! | the magic of ext2, ext3 and ext4 in the superblock | a file system |
//! | exactly 10 240 zeroes | an empty tar archive |
//! | anything else | none; the error describes the file |
//!
//! An archive without entries consists of zeroes, but so does a wiped file system, the start of a
//! truncated one, and an unused disk. Writers of archives pad them to a record of 10 240 bytes, so
//! only a file of zeroes of this length is an archive. No file system has this length, and its
//! first 10 240 bytes are not all zeroes.
//!
//! **Not here.** Whether a tar archive holds a container image (`oci::archive`).

use std::io::{self, Read};
use std::path::Path;

use crate::recognise::describe;
use crate::source::fault::{Fault, Parsed};
use crate::source::oci::Transport;
use crate::source::sink::read_some;
use crate::source::unpack::Compression;

/// A tar record, and one byte to see whether more follows.
pub(crate) const START_BYTES: usize = RECORD_BYTES + 1;
const RECORD_BYTES: usize = 10_240;
const BLOCK_BYTES: usize = 512;
const SUPERBLOCK_MAGIC: (usize, &[u8]) = (1080, b"\x53\xef");
const USTAR_MAGIC: (usize, &[u8]) = (257, b"ustar");
/// Start of the file `version` in a directory of skopeo.
const SKOPEO_VERSION: &[u8] = b"Directory Transport Version: ";

/// The format of a stream of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Tar,
    FileSystem,
    Compressed(Compression),
}

/// The format of a file that begins with `start`: [`START_BYTES`] bytes, or the whole file.
///
/// # Errors
/// A fault that describes the file if it is not a source.
pub(crate) fn form(start: &[u8]) -> Parsed<Form> {
    let compression = Compression::of(start)?;
    if compression != Compression::None {
        return Ok(Form::Compressed(compression));
    }
    let has = |(at, bytes): (usize, &[u8])| {
        let rest = start.get(at..);
        rest.is_some_and(|rest| rest.starts_with(bytes))
    };
    let first = start.get(..BLOCK_BYTES).unwrap_or(start);
    let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    if !is_zero(first) && (has(USTAR_MAGIC) || is_header(first)) {
        return Ok(Form::Tar);
    }
    if has(SUPERBLOCK_MAGIC) {
        return Ok(Form::FileSystem);
    }
    if start.len() == RECORD_BYTES && is_zero(start) {
        return Ok(Form::Tar);
    }
    Err(Fault::NotASource {
        found: describe(start),
    })
}

/// Whether a block is the header of an archive older than ustar, by its checksum.
fn is_header(block: &[u8]) -> bool {
    let block = block.try_into().ok();
    block.is_some_and(crate::source::tar::is_header)
}

/// Reads up to [`START_BYTES`] bytes.
pub(crate) fn read_start(from: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut start = vec![0; START_BYTES];
    let mut len = 0;
    while len < START_BYTES {
        match read_some(from, &mut start[len..])? {
            0 => break,
            count => len += count,
        }
    }
    start.truncate(len);
    Ok(start)
}

/// The kind of container image in a directory; `None` if it is a tree.
pub(super) fn directory(path: &Path) -> Option<Transport> {
    let has = |name: &str| path.join(name).is_file();
    if has("oci-layout") && has("index.json") && path.join("blobs").is_dir() {
        return Some(Transport::Layout);
    }
    let version = || {
        let mut start = Vec::new();
        let file = std::fs::File::open(path.join("version")).ok()?;
        let len = SKOPEO_VERSION.len() as u64;
        file.take(len).read_to_end(&mut start).ok()?;
        (start == SKOPEO_VERSION).then_some(())
    };
    (has("manifest.json") && has("version") && version().is_some()).then_some(Transport::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(start: &[u8]) -> String {
        match form(start) {
            Ok(form) => format!("{form:?}"),
            Err(Fault::NotASource { found }) => found.to_owned(),
            Err(other) => other.to_string(),
        }
    }

    #[test]
    fn zeroes_are_an_archive_only_as_one_record() {
        assert_eq!(found(&[0; 10_240]), "Tar");
        for len in [512, 1024, 10_239, 10_241] {
            assert_eq!(found(&vec![0; len]), "a file of zeroes", "{len}");
        }
        assert_eq!(found(b""), "an empty file");
    }

    #[test]
    fn superblocks_and_headers_are_distinguished() {
        let mut bytes = vec![0; START_BYTES];
        bytes[1080..1082].copy_from_slice(b"\x53\xef");
        assert_eq!(found(&bytes), "FileSystem");
        // A member whose data looks like a superblock.
        bytes[257..262].copy_from_slice(b"ustar");
        assert_eq!(found(&bytes), "Tar");
        assert_eq!(found(b"\x1f\x8b\x08"), "Compressed(Gzip)");
        assert_eq!(found(b"#!/bin/sh\n"), "text");
    }
}

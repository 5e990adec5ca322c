//! **Purpose.** What a source is, by its content. All sources are decided on here.
//!
//! **Model.** A directory is a tree, unless it holds the files that make it an OCI layout or a
//! directory of skopeo. Of everything else the first bytes tell, behind a compression if there is
//! one:
//!
//! | bytes | source |
//! |---|---|
//! | a tar header, or one that is damaged | a tar archive |
//! | the magic of ext2, ext3 and ext4 in the superblock | a file system |
//! | 10 240 zeroes and nothing else | an empty tar archive |
//! | anything else | none, which is an error that says what it is |
//!
//! An archive without entries is nothing but zeroes, and so are a file system that was wiped, the
//! start of one that was cut off and a disk that nobody has written to. Programs that make archives
//! fill them up to a record of 10 240 bytes; a file of zeroes of any other length is none. No file
//! system has that length, and the first 10 240 bytes of one are not all zeroes.
//!
//! **Not here.** Whether a tar archive holds a container image (`oci::archive`).

use std::io::{self, Read};
use std::path::Path;

use crate::recognise::describe;
use crate::source::fault::{Fault, Parsed};
use crate::source::oci::Transport;
use crate::source::sink::read_some;
use crate::source::unpack::Compression;

/// The record of tar, and a byte to see whether there is more.
pub(crate) const START_BYTES: usize = RECORD_BYTES + 1;
const RECORD_BYTES: usize = 10_240;
const BLOCK_BYTES: usize = 512;
const SUPERBLOCK_MAGIC: (usize, &[u8]) = (1080, b"\x53\xef");
const USTAR_MAGIC: (usize, &[u8]) = (257, b"ustar");
/// How the file `version` of a directory of skopeo begins.
const SKOPEO_VERSION: &[u8] = b"Directory Transport Version: ";

/// What a stream of bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Tar,
    FileSystem,
    Compressed(Compression),
}

/// What the bytes are that begin with `start`: [`START_BYTES`], or all there are.
///
/// # Errors
/// The fault that says what else they are.
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

/// Whether a block is the header of a tar archive older than ustar: its checksum says so.
fn is_header(block: &[u8]) -> bool {
    let block = block.try_into().ok();
    block.is_some_and(crate::source::tar::is_header)
}

/// Reads as much of the start as there is.
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

/// The kind of container image that a directory is; `None` of a tree.
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
    fn superblocks_and_headers_are_told_apart() {
        let mut bytes = vec![0; START_BYTES];
        bytes[1080..1082].copy_from_slice(b"\x53\xef");
        assert_eq!(found(&bytes), "FileSystem");
        // Content of a member that looks like a superblock.
        bytes[257..262].copy_from_slice(b"ustar");
        assert_eq!(found(&bytes), "Tar");
        assert_eq!(found(b"\x1f\x8b\x08"), "Compressed(Gzip)");
        assert_eq!(found(b"#!/bin/sh\n"), "text");
    }
}

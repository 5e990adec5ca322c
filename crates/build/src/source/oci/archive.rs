//! **Purpose.** Detects and reads tar archives that hold a container image instead of a tree: the
//! output of `docker save`, `podman save` and `skopeo`, and archives of OCI layouts.
//!
//! **Model.** Such an archive has documents and blobs with names of a few forms, and nothing else.
//! Therefore the first entry of nearly every other archive shows that it is not one; an archive
//! whose names all match is one if it has the documents. Blobs in a file are read in place. An
//! archive that can be read only once is recorded while its names match: in memory, and above a
//! limit in an unlinked temporary file. If it turns out not to be an image, the record is replayed.
//!
//! **References.** The OCI image specification 1.1: image-layout.md. The image specification of
//! Docker 1.2, "Combined Image JSON + Filesystem Changeset Format".

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::ops::Range;
use std::path::Path;

use fourscore_sync::Arc;

use crate::source::fault::{Fault, Parsed};
use crate::source::sink::read_some;
use crate::source::spool::unlinked_file;
use crate::source::tar::input::{FileInput, Input};
use crate::source::tar::sparse::Run;
use crate::source::tar::{EndMark, Entry, EntryBody, Reader};
use crate::tree::{Content, FileId, Kind, Piece};

/// Longer records are written to a file.
const MEMORY_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;
/// Largest number of links to links that are followed.
const LINKS_MAX: u32 = 8;
/// Names of documents and directories of blobs.
const NAMES: [&[u8]; 7] = [
    b"",
    b"oci-layout",
    b"index.json",
    b"manifest.json",
    b"repositories",
    b"config.json",
    b"blobs",
];
/// What may follow the digits of a digest.
const SUFFIXES: [&[u8]; 4] = [b"", b".json", b".tar", b".tar.gz"];
const SHA256_DIGITS: usize = 64;

/// The entries of an archive by name.
#[derive(Debug)]
pub(in crate::source) struct Catalog {
    file: Arc<File>,
    entries: Entries,
}

#[derive(Debug, Default)]
struct Entries(HashMap<Vec<u8>, Place>);

#[derive(Debug)]
enum Place {
    /// A range of the file.
    Content(Range<u64>),
    /// A link to another entry.
    Link(Vec<u8>),
}

impl Catalog {
    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The range of the data of an entry.
    pub(super) fn find(&self, name: &str) -> Option<Range<u64>> {
        self.entries.find(name)
    }
}

impl Entries {
    fn find(&self, name: &str) -> Option<Range<u64>> {
        let mut name = normalized(name.as_bytes());
        for _ in 0..LINKS_MAX {
            match self.0.get(&name)? {
                Place::Content(range) => return Some(range.clone()),
                Place::Link(target) => name.clone_from(target),
            }
        }
        None
    }

    /// Whether the archive has the documents of an image.
    fn is_image(&self) -> bool {
        let has = |name| self.find(name).is_some();
        (has("oci-layout") && has("index.json")) || has("manifest.json")
    }
}

/// Normalizes a path to names joined by single slashes.
fn normalized(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    names.join(&b'/')
}

/// Whether a container image may have an entry of this name.
fn is_image_name(name: &[u8]) -> bool {
    let first = name.split(|&byte| byte == b'/').next().unwrap_or_default();
    if NAMES.contains(&first) {
        return first == b"blobs" || first == name;
    }
    let digits = first.strip_prefix(b"sha256:").unwrap_or(first);
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let end = digits.iter().take_while(|byte| is_digit(byte)).count();
    end == SHA256_DIGITS && SUFFIXES.contains(&&digits[end..])
}

/// The catalog of the archive in this range of a file; `None` if it is not a container image. A
/// damaged archive is not one either: reading it as a tar archive then reports the damage.
pub(in crate::source) fn catalog_of(file: &Arc<File>, range: Range<u64>) -> Option<Catalog> {
    let input = FileInput::new(Arc::clone(file), range);
    let entries = entries_of(input).filter(Entries::is_image)?;
    Some(Catalog {
        file: Arc::clone(file),
        entries,
    })
}

/// As [`catalog_of`], for an archive that can be read only once; the catalog refers to its record.
pub(in crate::source) fn catalog_of_stream<R: Read>(
    mut stream: &mut Recorder<'_, R>,
) -> Parsed<Option<Catalog>> {
    let entries = entries_of(&mut *stream);
    if let Some(why) = stream.failed.take() {
        return Err(Fault::Unpack(why));
    }
    let Some(entries) = entries.filter(Entries::is_image) else {
        return Ok(None);
    };
    stream.finish()?;
    let file = Arc::new(stream.recorded()?);
    Ok(Some(Catalog { file, entries }))
}

fn entries_of(input: impl Input) -> Option<Entries> {
    // The file id is not used, since only ranges are needed.
    let mut reader = Reader::new(input, String::new(), FileId(0), EndMark::Optional);
    let mut entries = Entries::default();
    while let Some(Entry { path, body }) = reader.next().ok()? {
        let name = normalized(&path);
        if !is_image_name(&name) {
            return None;
        }
        let directory = name.iter().rposition(|&byte| byte == b'/');
        let directory = directory.map_or(&b""[..], |slash| &name[..slash]);
        let place = match body {
            EntryBody::HardLink(target) => Place::Link(normalized(&target)),
            EntryBody::Object { kind, .. } => match kind {
                Kind::Symlink(target) => Place::Link(normalized(&[directory, &target].join(&b'/'))),
                Kind::File(Content::Empty) => Place::Content(0..0),
                Kind::File(Content::Range {
                    offset, len_bytes, ..
                }) => Place::Content(offset..offset + len_bytes),
                Kind::Directory => continue,
                _ => return None,
            },
        };
        entries.0.insert(name, place);
    }
    Some(entries)
}

/// A stream, with a record of what was read from it.
pub(in crate::source) struct Recorder<'a, R> {
    from: R,
    /// Directory for the file of a long record.
    directory: &'a Path,
    file: Option<File>,
    /// The end of the record that is not in the file.
    memory: Vec<u8>,
    at: u64,
    /// The error that ended the stream.
    failed: Option<io::Error>,
}

impl<'a, R: Read> Recorder<'a, R> {
    pub(in crate::source) fn new(from: R, directory: &'a Path) -> Self {
        Self {
            from,
            directory,
            file: None,
            memory: Vec::new(),
            at: 0,
            failed: None,
        }
    }

    /// Reads the whole stream again from its start.
    pub(in crate::source) fn replay(self) -> io::Result<impl Read> {
        let mut recorded: Box<dyn Read> = Box::new(io::empty());
        if let Some(mut file) = self.file {
            file.rewind()?;
            recorded = Box::new(file);
        }
        Ok(recorded
            .chain(io::Cursor::new(self.memory))
            .chain(self.from))
    }

    /// Returns the record as a file.
    fn recorded(&mut self) -> io::Result<File> {
        self.write_out()?;
        match &self.file {
            Some(file) => file.try_clone(),
            None => unlinked_file(self.directory),
        }
    }

    fn write_out(&mut self) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => unlinked_file(self.directory)?,
        };
        file.write_all(&self.memory)?;
        self.memory.clear();
        self.file = Some(file);
        Ok(())
    }

    /// Reads and records; returns the number of bytes.
    fn take(&mut self, buffer: &mut [u8]) -> Parsed<usize> {
        let count = read_some(&mut self.from, buffer).map_err(|why| {
            let reported = io::Error::new(why.kind(), why.to_string());
            self.failed = Some(why);
            Fault::Unpack(reported)
        })?;
        self.memory.extend_from_slice(&buffer[..count]);
        self.at += count as u64;
        if self.memory.len() >= MEMORY_BYTES {
            self.write_out()?;
        }
        Ok(count)
    }
}

impl<R: Read> Input for &mut Recorder<'_, R> {
    fn position(&self) -> u64 {
        self.at
    }

    fn read(&mut self, buffer: &mut [u8]) -> Parsed<usize> {
        let mut len = 0;
        while len < buffer.len() {
            match self.take(&mut buffer[len..])? {
                0 => break,
                count => len += count,
            }
        }
        Ok(len)
    }

    fn skip(&mut self, mut len_bytes: u64) -> Parsed<()> {
        let mut buffer = vec![0; READ_BYTES];
        while len_bytes > 0 {
            let part = usize::try_from(len_bytes).map_or(READ_BYTES, |left| left.min(READ_BYTES));
            match self.take(&mut buffer[..part])? {
                0 => return Err(Fault::CutOff { at: self.at }),
                count => len_bytes -= count as u64,
            }
        }
        Ok(())
    }

    fn store(&mut self, parts: &[Run], pieces: &mut Vec<Piece>) -> Parsed<()> {
        for part in parts {
            pieces.push(Piece {
                at: part.offset,
                from: self.at,
                len_bytes: part.len_bytes,
            });
            self.skip(part.len_bytes)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Parsed<()> {
        let mut buffer = vec![0; READ_BYTES];
        while self.take(&mut buffer)? > 0 {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_and_of_trees_are_distinguished() {
        let hex = "0123456789abcdef".repeat(4);
        for name in [
            "",
            "manifest.json",
            "blobs",
            "blobs/sha256",
            &format!("blobs/sha256/{hex}"),
            &format!("{hex}/layer.tar"),
            &format!("{hex}.json"),
            &format!("sha256:{hex}"),
            &format!("{hex}.tar.gz"),
        ] {
            assert!(is_image_name(name.as_bytes()), "{name}");
        }
        for name in ["bin", "etc/passwd", "index.json/x", &hex[1..], "0123.tar"] {
            assert!(!is_image_name(name.as_bytes()), "{name}");
        }
        assert_eq!(normalized(b"./a//b/../c/"), b"a/c");
    }

    #[test]
    fn a_record_is_replayed_from_memory_and_from_a_file() {
        let directory = tempfile::tempdir().expect("a directory");
        for len in [100, MEMORY_BYTES + 5, 3 * MEMORY_BYTES] {
            let all: Vec<u8> = (0..=250).cycle().take(len + 1000).collect();
            let mut recorder = Recorder::new(&all[..], directory.path());
            let mut input = &mut recorder;
            input.skip(len as u64).expect("enough bytes");
            assert_eq!(input.position(), len as u64);
            let mut again = Vec::new();
            let mut replayed = recorder.replay().expect("a record");
            replayed.read_to_end(&mut again).expect("readable");
            assert!(again == all, "{len}");
        }
    }
}

//! **Purpose.** Reads the entries of a tar archive.
//!
//! | module | responsibility |
//! |---|---|
//! | `header` | parses the header block of an entry |
//! | `pax` | parses pax records |
//! | `sparse` | parses the map of a sparse file |
//! | `acl` | converts ACLs from text |
//! | `member` | combines all headers of an entry |
//! | `input` | reads the bytes from a file or stream |
//!
//! **Not here.** Applying an entry to the tree: [`overlay`](crate::source::overlay).
//!
//! **Model.** Supported are V7, ustar, star, pax (records for one entry and global ones, extended
//! attributes of star and libarchive, SELinux labels, ACLs) and GNU (long names, base-256 numbers,
//! all four formats of sparse files). The crate `tar` is not used: it ignores global records,
//! supports only one format of sparse files and expands the holes, and its errors do not name the
//! entry. Header parsing is small, and this crate needs the exact offsets of file data.
//!
//! An archive ends with a block of zeroes. One that ends without it was truncated, unless a digest
//! has proved that it is complete.
//!
//! **References.** POSIX.1-2017, pax; the GNU tar manual, "Tar Internals"; star(5); libarchive's
//! tar(5).

mod acl;
mod header;
pub(crate) mod input;
mod member;
mod pax;
pub(crate) mod sparse;

use crate::source::fault::{Fault, Parsed, SourceError};
use crate::source::notices::Notices;
use crate::tree::{Content, DataPlace, FileId, Kind, Meta, Piece, Sparse, Xattrs};
use header::{BLOCK_BYTES, Header};
use input::{Input, cut_off, next_block};
use member::{Body, Global, Member, Prologue};
use sparse::{Map, Run, SparseFile};

/// Size limit of a pax header or long name, with space for a full set of attributes.
const HEADER_BYTES_MAX: u64 = 32 << 20;
/// Limit for continuation blocks of the map of an old GNU sparse file, with 21 runs each.
const SPARSE_BLOCKS_MAX: u32 = 1 << 17;

/// Whether an archive must have its end mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndMark {
    /// An archive without an end mark was truncated.
    Required,
    /// A digest has proved that the archive is complete.
    Optional,
}

/// An entry of an archive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The path as written in the archive.
    pub(crate) path: Vec<u8>,
    pub(crate) body: EntryBody,
}

/// The object or link that an entry describes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EntryBody {
    Object {
        meta: Meta,
        kind: Kind,
        xattrs: Xattrs,
    },
    /// A hard link to this path.
    HardLink(Vec<u8>),
}

/// Reads an archive entry by entry.
pub(crate) struct Reader<I> {
    input: I,
    /// The name of the archive in messages.
    place: String,
    /// The open file that stores the file data.
    contents: FileId,
    end_mark: EndMark,
    global: Global,
    last: Option<Vec<u8>>,
    notices: Notices,
    /// Where the data of the last file is stored.
    pieces: Vec<Piece>,
}

impl<I: Input> Reader<I> {
    pub(crate) fn new(input: I, place: String, contents: FileId, end_mark: EndMark) -> Self {
        Self {
            input,
            place,
            contents,
            end_mark,
            global: Global::default(),
            last: None,
            notices: Notices::default(),
            pieces: Vec::new(),
        }
    }

    /// Offset of the next byte of the archive.
    pub(crate) fn position(&self) -> u64 {
        self.input.position()
    }

    /// Reads the next entry; `None` at the end, when the data of all files is readable.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, SourceError> {
        let mut shown = None;
        self.parse(&mut shown).map_err(|fault| SourceError {
            place: self.place.clone(),
            entry: shown.or_else(|| self.last.clone()),
            fault,
        })
    }

    /// Notices about attributes that were left out.
    pub(crate) fn into_notices(self) -> Notices {
        self.notices
    }

    /// Sets `shown` to the path of the entry as soon as it is known.
    fn parse(&mut self, shown: &mut Option<Vec<u8>>) -> Parsed<Option<Entry>> {
        let mut prologue = Prologue::default();
        loop {
            let at = self.input.position();
            let Some(bytes) = next_block(&mut self.input)? else {
                return self.end_without_mark(&prologue);
            };
            let Some(header) = Header::parse(bytes, at)? else {
                self.input.finish()?;
                return Ok(None);
            };
            match header.flag() {
                b'x' | b'X' => {
                    let content = self.header_data(&header)?;
                    prologue.parse_pax(&content)?;
                }
                b'g' => {
                    let content = self.header_data(&header)?;
                    self.global.parse_pax(&content)?;
                }
                flag @ (b'L' | b'K') => {
                    let content = self.header_data(&header)?;
                    prologue.parse_long_name(flag, &content);
                }
                // A volume label.
                b'V' => {}
                _ => {
                    *shown = prologue.known_path(Some(&header));
                    let member = member::member(&header, prologue, &self.global)?;
                    let entry = self.entry(member)?;
                    self.last = Some(entry.path.clone());
                    return Ok(Some(entry));
                }
            }
            *shown = prologue.known_path(None);
        }
    }

    fn end_without_mark(&mut self, prologue: &Prologue) -> Parsed<Option<Entry>> {
        let at = self.input.position();
        if at == 0 {
            return Err(Fault::NotTar);
        }
        if !prologue.is_empty() {
            return Err(Fault::CutOff { at });
        }
        if self.end_mark == EndMark::Required {
            return Err(Fault::NoEndMark { at });
        }
        self.input.finish()?;
        Ok(None)
    }

    /// Reads the content of a pax header or a long name.
    fn header_data(&mut self, header: &Header) -> Parsed<Vec<u8>> {
        let field = "the size of an extended header";
        let size = header.size()?;
        let len_bytes = u64::try_from(size).map_err(|_| Fault::Number { field })?;
        let len = usize::try_from(len_bytes).ok();
        let Some(len) = len.filter(|_| len_bytes <= HEADER_BYTES_MAX) else {
            return Err(Fault::HeaderTooLong {
                len_bytes,
                max_bytes: HEADER_BYTES_MAX,
            });
        };
        let mut content = vec![0; len.next_multiple_of(BLOCK_BYTES)];
        if self.input.read(&mut content)? < content.len() {
            return Err(cut_off(&self.input));
        }
        content.truncate(len);
        Ok(content)
    }

    /// Moves past the data of the entry and records where it is stored.
    fn entry(&mut self, member: Member) -> Parsed<Entry> {
        let Member {
            path,
            body,
            mut meta,
            xattrs,
            left_out,
        } = member;
        for name in left_out {
            let name = name.escape_ascii().to_string();
            self.notices.push_left_out(&path, &name);
        }
        let kind = match body {
            Body::HardLink(target) => {
                let body = EntryBody::HardLink(target);
                return Ok(Entry { path, body });
            }
            Body::File {
                stored_bytes,
                sparse,
                is_continued,
            } => Kind::File(self.content(stored_bytes, sparse, is_continued)?),
            Body::Directory { stored_bytes } => {
                self.input.skip(stored_bytes)?;
                self.input.skip(padding(stored_bytes))?;
                Kind::Directory
            }
            Body::Symlink(target) => {
                // What the archive says is ignored, as by tar: Linux gives all links these.
                meta.permissions = 0o777;
                Kind::Symlink(target)
            }
            Body::CharDevice(number) => Kind::CharDevice(number),
            Body::BlockDevice(number) => Kind::BlockDevice(number),
            Body::Fifo => Kind::Fifo,
        };
        let body = EntryBody::Object { meta, kind, xattrs };
        Ok(Entry { path, body })
    }

    fn content(
        &mut self,
        stored_bytes: u64,
        sparse: Option<SparseFile>,
        is_continued: bool,
    ) -> Parsed<Content> {
        let padding = padding(stored_bytes);
        let content = match sparse {
            None if stored_bytes == 0 => Content::Empty,
            None => {
                let whole = Run {
                    offset: 0,
                    len_bytes: stored_bytes,
                };
                self.file_data(&[whole], stored_bytes)?
            }
            Some(SparseFile { map, len_bytes }) => {
                self.sparse(map, len_bytes, stored_bytes, is_continued)?
            }
        };
        self.input.skip(padding)?;
        Ok(content)
    }

    fn sparse(
        &mut self,
        map: Map,
        len_bytes: u64,
        stored_bytes: u64,
        is_continued: bool,
    ) -> Parsed<Content> {
        let (map, map_bytes) = match map {
            Map::Known(mut runs) => {
                if is_continued {
                    self.continue_map(&mut runs)?;
                }
                (runs, 0)
            }
            Map::InContent => {
                let input = &mut self.input;
                sparse::read_map(|| next_block(input)?.ok_or_else(|| cut_off(input)))?
            }
        };
        let data_bytes = stored_bytes.checked_sub(map_bytes);
        let data_bytes = data_bytes.ok_or(Fault::SparseMap {
            why: "it is longer than the stored data of the file",
        })?;
        let runs = sparse::check(&map, len_bytes, data_bytes)?;
        match len_bytes {
            0 => Ok(Content::Empty),
            _ => self.file_data(&runs, len_bytes),
        }
    }

    /// Moves past the data of a file of `len_bytes` bytes.
    fn file_data(&mut self, parts: &[Run], len_bytes: u64) -> Parsed<Content> {
        self.pieces.clear();
        self.input.store(parts, &mut self.pieces)?;
        Ok(match *self.pieces.as_slice() {
            [piece] if piece.len_bytes == len_bytes => Content::Range {
                file: self.contents,
                offset: piece.from,
                len_bytes,
            },
            _ => Content::Sparse(Box::new(Sparse {
                data: DataPlace::Open(self.contents),
                len_bytes,
                pieces: self.pieces.clone(),
            })),
        })
    }

    /// Reads the continuation blocks of the map of an old GNU sparse file.
    fn continue_map(&mut self, runs: &mut Vec<(i128, i128)>) -> Parsed<()> {
        for _ in 0..SPARSE_BLOCKS_MAX {
            let next = next_block(&mut self.input)?.ok_or_else(|| cut_off(&self.input))?;
            if !header::gnu_sparse_continued(&next, runs)? {
                return Ok(());
            }
        }
        Err(Fault::SparseMap {
            why: "it has too many runs",
        })
    }
}

/// Whether a block is a header.
pub(crate) fn is_header(block: [u8; BLOCK_BYTES]) -> bool {
    matches!(Header::parse(block, 0), Ok(Some(_)))
}

/// Number of padding bytes after `len_bytes` bytes of data.
fn padding(len_bytes: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    (block - len_bytes % block) % block
}

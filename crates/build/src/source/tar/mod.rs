//! **Purpose.** A tar archive as a source: its entries one by one, with everything they say.
//!
//! | module | responsibility |
//! |---|---|
//! | `header` | the block that describes an entry |
//! | `pax` | records in front of it |
//! | `sparse` | the map of a sparse file |
//! | `acl` | ACLs from text |
//! | `member` | one entry from all of these |
//! | `input` | the bytes, read where they are or flowing by |
//!
//! **Not here.** What an entry does to the tree: [`overlay`](crate::source::overlay).
//!
//! **Model.** Understood are V7, ustar, star, pax (records for one entry and for all, extended
//! attributes of star and libarchive, SELinux labels, ACLs) and GNU (long names, base-256 numbers,
//! all four forms of sparse files). The crate `tar` was not taken: it applies no records for all
//! entries, knows only one form of sparse files and expands that one, and its errors do not
//! name the entry. Headers are a small thing; knowing exactly where content lies is the point.
//!
//! An archive ends with a block of zeros. One that ends without it was cut off, except where a
//! digest has proved that it is complete.
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
use input::{Input, block, cut_off};
use member::{Body, Global, Member, Prologue};
use sparse::{Map, Run};

/// The most that a pax header or long name may have: room for a full set of attributes.
const HEADER_BYTES_MAX: u64 = 32 << 20;
/// Blocks that continue the map of an old GNU sparse file, 21 runs each.
const SPARSE_BLOCKS_MAX: u32 = 1 << 17;

/// Whether an archive must have its end mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndMark {
    /// Without it the archive was cut off.
    Required,
    /// Something else tells that it is complete.
    Optional,
}

/// An entry of an archive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// As the archive has it.
    pub(crate) path: Vec<u8>,
    pub(crate) body: EntryBody,
}

/// What an entry is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EntryBody {
    Object {
        meta: Meta,
        kind: Kind,
        xattrs: Xattrs,
    },
    /// One more name for what is at this path.
    HardLink(Vec<u8>),
}

/// An archive that is read entry by entry.
pub(crate) struct Reader<I> {
    input: I,
    /// As the user named it.
    place: String,
    /// Where the contents are.
    contents: FileId,
    end_mark: EndMark,
    global: Global,
    last: Option<Vec<u8>>,
    notices: Notices,
    /// Where the parts of the last content are.
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

    /// How many bytes of the archive have gone by.
    pub(crate) fn position(&self) -> u64 {
        self.input.position()
    }

    /// The next entry; `None` at the end, when the contents of all entries can be read.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, SourceError> {
        let mut shown = None;
        self.parse(&mut shown).map_err(|fault| SourceError {
            place: self.place.clone(),
            entry: shown.or_else(|| self.last.clone()),
            fault,
        })
    }

    /// What had to be left out.
    pub(crate) fn into_notices(self) -> Notices {
        self.notices
    }

    /// `shown` becomes the path of the entry as soon as it is known.
    fn parse(&mut self, shown: &mut Option<Vec<u8>>) -> Parsed<Option<Entry>> {
        let mut prologue = Prologue::default();
        loop {
            let at = self.input.position();
            let Some(bytes) = block(&mut self.input)? else {
                return self.end_without_mark(&prologue);
            };
            let Some(header) = Header::parse(bytes, at)? else {
                self.input.finish()?;
                return Ok(None);
            };
            match header.flag() {
                b'x' | b'X' => {
                    let content = self.header_content(&header)?;
                    prologue.take_pax(&content)?;
                }
                b'g' => {
                    let content = self.header_content(&header)?;
                    self.global.take_pax(&content)?;
                }
                flag @ (b'L' | b'K') => {
                    let content = self.header_content(&header)?;
                    prologue.take_long(flag, &content);
                }
                // The label of a volume.
                b'V' => {}
                _ => {
                    *shown = prologue.shown_path(Some(&header));
                    let member = member::member(&header, prologue, &self.global)?;
                    let entry = self.entry(member)?;
                    self.last = Some(entry.path.clone());
                    return Ok(Some(entry));
                }
            }
            *shown = prologue.shown_path(None);
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

    /// The content of a pax header or a long name.
    fn header_content(&mut self, header: &Header) -> Parsed<Vec<u8>> {
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

    /// Finds the content and moves past it.
    fn entry(&mut self, member: Member) -> Parsed<Entry> {
        let Member {
            path,
            body,
            meta,
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
            Body::Symlink(target) => Kind::Symlink(target),
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
        sparse: Option<(Map, u64)>,
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
                self.kept(&[whole], stored_bytes)?
            }
            Some((map, len_bytes)) => self.sparse(map, len_bytes, stored_bytes, is_continued)?,
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
                sparse::read_map(|| block(input)?.ok_or_else(|| cut_off(input)))?
            }
        };
        let data_bytes = stored_bytes.checked_sub(map_bytes);
        let data_bytes = data_bytes.ok_or(Fault::SparseMap {
            why: "it is longer than what the archive has of the file",
        })?;
        let runs = sparse::check(&map, len_bytes, data_bytes)?;
        match len_bytes {
            0 => Ok(Content::Empty),
            _ => self.kept(&runs, len_bytes),
        }
    }

    /// Moves past the parts of a file of `len_bytes` bytes.
    fn kept(&mut self, parts: &[Run], len_bytes: u64) -> Parsed<Content> {
        self.pieces.clear();
        self.input.keep(parts, &mut self.pieces)?;
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

    /// Reads the blocks behind the header of an old GNU sparse file.
    fn continue_map(&mut self, runs: &mut Vec<(i128, i128)>) -> Parsed<()> {
        for _ in 0..SPARSE_BLOCKS_MAX {
            let next = block(&mut self.input)?.ok_or_else(|| cut_off(&self.input))?;
            if !header::gnu_sparse_continued(&next, runs)? {
                return Ok(());
            }
        }
        Err(Fault::SparseMap {
            why: "it has too many runs",
        })
    }
}

/// Whether the first block of a file is the header of an entry.
pub(crate) fn is_header(block: [u8; BLOCK_BYTES]) -> bool {
    matches!(Header::parse(block, 0), Ok(Some(_)))
}

/// How many bytes fill up the block that `len_bytes` bytes of content end in.
fn padding(len_bytes: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    (block - len_bytes % block) % block
}

//! **Purpose.** Stores the entries of a layer that is not applied yet, in a few bytes each.
//!
//! **Model.** An entry is encoded as a row of bytes with the differences from the previous entry.
//! Numbers are variable-length, with seven bits in each byte. Rows are stored in chunks, which are
//! freed one by one while the entries are decoded, so that a layer and the objects made from it are
//! never both in memory completely.
//!
//! ```text
//!   row  = tag | shared | rest_len | rest         path: `shared` bytes of the previous path + rest
//!        | changed | [permissions] [owner] [mtime] [atime] [ctime] [set]     (not for hard links)
//!        | depending on the tag: target, device, location of the data
//! ```
//!
//! An empty file in a sequence of similar ones takes about 10 bytes, one with data 15; an [`Entry`]
//! takes 150 and two or three allocations. Each set of attributes is stored once, as in the tree.
//! Data with holes is stored unencoded, and is moved to the tree.

use std::collections::VecDeque;

use fourscore_ondisk::Timestamp;
use fourscore_ondisk::inode::DeviceNr;

use crate::source::tar::{Entry, EntryBody};
use crate::tree::{Content, FileId, Kind, Meta, Piece, XattrSet, XattrSets, Xattrs};

/// Allocation unit of rows: large enough for an allocator to return it to the system when freed.
const CHUNK_BYTES: usize = 256 << 10;

const DIRECTORY: u8 = 0;
const EMPTY: u8 = 1;
const RANGE: u8 = 2;
const OTHER_CONTENT: u8 = 3;
const SYMLINK: u8 = 4;
const CHAR_DEVICE: u8 = 5;
const BLOCK_DEVICE: u8 = 6;
const FIFO: u8 = 7;
const SOCKET: u8 = 8;
const HARD_LINK: u8 = 9;

/// Bits for the attributes that differ from the previous object.
const PERMISSIONS: u8 = 1;
const OWNER: u8 = 1 << 1;
const MTIME: u8 = 1 << 2;
/// ATIME and CTIME are set if the time differs from the mtime.
const ATIME: u8 = 1 << 3;
const CTIME: u8 = 1 << 4;
const SET: u8 = 1 << 5;

/// Encoded entries in order.
#[derive(Debug, Default)]
pub(super) struct Packed {
    chunks: VecDeque<Vec<u8>>,
    last: Last,
    row: Vec<u8>,
    sets: XattrSets,
    /// Contents that are more than one range.
    contents: VecDeque<Content>,
}

/// The previous entry.
#[derive(Debug)]
struct Last {
    path: Vec<u8>,
    meta: Meta,
    set: XattrSet,
    file: FileId,
    /// Where the data of the previous file ended.
    end: u64,
}

impl Default for Last {
    fn default() -> Self {
        Self {
            path: Vec::new(),
            meta: Meta::default(),
            set: XattrSet::default(),
            file: FileId(0),
            end: 0,
        }
    }
}

impl Packed {
    /// Adds an entry. Returns the bytes it takes; `None` if there are 2^32 sets of attributes.
    pub(super) fn push(&mut self, entry: Entry) -> Option<usize> {
        self.row.clear();
        let mut more = 0;
        match entry.body {
            EntryBody::HardLink(target) => {
                self.push_name(HARD_LINK, &entry.path);
                push_text(&mut self.row, &target);
            }
            EntryBody::Object { meta, kind, xattrs } => {
                self.push_name(tag(&kind), &entry.path);
                let set = self.sets.intern(&xattrs)?;
                self.push_meta(&meta, set);
                more = self.push_kind(kind);
            }
        }
        self.last.path = entry.path;
        let len = self.row.len();
        match self.chunks.back_mut() {
            Some(part) if part.len() + len <= part.capacity() => part.extend_from_slice(&self.row),
            _ => {
                let mut part = Vec::with_capacity(CHUNK_BYTES.max(len));
                part.extend_from_slice(&self.row);
                self.chunks.push_back(part);
            }
        }
        Some(len + more)
    }

    fn push_name(&mut self, tag: u8, path: &[u8]) {
        let both = self.last.path.iter().zip(path);
        let shared = both.take_while(|(a, b)| a == b).count();
        self.row.push(tag);
        push_number(&mut self.row, shared as u64);
        push_text(&mut self.row, &path[shared..]);
    }

    fn push_meta(&mut self, meta: &Meta, set: XattrSet) {
        let last = &self.last.meta;
        let owner = |meta: &Meta| [meta.uid, meta.gid, meta.project];
        let changed = [
            (PERMISSIONS, meta.permissions != last.permissions),
            (OWNER, owner(meta) != owner(last)),
            (MTIME, meta.mtime != last.mtime),
            (ATIME, meta.atime != meta.mtime),
            (CTIME, meta.ctime != meta.mtime),
            (SET, set != self.last.set),
        ];
        let changed = changed.iter().filter(|(_, is_changed)| *is_changed);
        let changed = changed.fold(0, |all, (bit, _)| all | bit);
        let row = &mut self.row;
        row.push(changed);
        if changed & PERMISSIONS != 0 {
            push_number(row, meta.permissions.into());
        }
        if changed & OWNER != 0 {
            for id in owner(meta) {
                push_number(row, id.into());
            }
        }
        for (bit, time) in [
            (MTIME, meta.mtime),
            (ATIME, meta.atime),
            (CTIME, meta.ctime),
        ] {
            if changed & bit != 0 {
                push_signed(row, time.seconds());
                push_number(row, time.nanoseconds().into());
            }
        }
        if changed & SET != 0 {
            push_number(row, set.0.into());
        }
        self.last.meta = *meta;
        self.last.set = set;
    }

    /// Encodes what the tag does not determine. Returns the bytes of data that is stored unencoded.
    fn push_kind(&mut self, kind: Kind) -> usize {
        let row = &mut self.row;
        match kind {
            Kind::File(Content::Range {
                file,
                offset,
                len_bytes,
            }) => {
                let last = &mut self.last;
                push_signed(row, i64::from(file.0) - i64::from(last.file.0));
                push_signed(row, offset.wrapping_sub(last.end).cast_signed());
                push_number(row, len_bytes);
                (last.file, last.end) = (file, offset.wrapping_add(len_bytes));
            }
            Kind::Symlink(target) => push_text(row, &target),
            Kind::CharDevice(number) | Kind::BlockDevice(number) => {
                push_number(row, number.major.into());
                push_number(row, number.minor.into());
            }
            Kind::File(Content::Empty) | Kind::Directory | Kind::Fifo | Kind::Socket => {}
            Kind::File(content) => {
                let more = size_of::<Content>() + heap_bytes(&content);
                self.contents.push_back(content);
                return more;
            }
        }
        0
    }

    /// Decodes all entries, freeing memory on the way.
    pub(super) fn into_entries(self) -> Entries {
        Entries {
            packed: Self {
                last: Last::default(),
                ..self
            },
            at: 0,
            xattrs: Xattrs::new(),
        }
    }
}

fn tag(kind: &Kind) -> u8 {
    match kind {
        Kind::Directory => DIRECTORY,
        Kind::File(Content::Empty) => EMPTY,
        Kind::File(Content::Range { .. }) => RANGE,
        Kind::File(_) => OTHER_CONTENT,
        Kind::Symlink(_) => SYMLINK,
        Kind::CharDevice(_) => CHAR_DEVICE,
        Kind::BlockDevice(_) => BLOCK_DEVICE,
        Kind::Fifo => FIFO,
        Kind::Socket => SOCKET,
    }
}

/// Bytes in heap allocations of a content.
fn heap_bytes(content: &Content) -> usize {
    match content {
        Content::Bytes(bytes) => bytes.len(),
        Content::Sparse(sparse) => {
            size_of_val(&**sparse) + sparse.pieces.len() * size_of::<Piece>()
        }
        Content::Empty | Content::Host { .. } | Content::Range { .. } | Content::Image { .. } => 0,
    }
}

fn push_number(row: &mut Vec<u8>, mut number: u64) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return row.push(low);
        }
        row.push(low | 0x80);
    }
}

/// Zigzag encoding: numbers close to zero of either sign are short.
fn push_signed(row: &mut Vec<u8>, number: i64) {
    push_number(row, (number << 1 ^ number >> 63).cast_unsigned());
}

fn push_text(row: &mut Vec<u8>, text: &[u8]) {
    push_number(row, text.len() as u64);
    row.extend_from_slice(text);
}

/// An iterator that decodes entries.
#[derive(Debug)]
pub(super) struct Entries {
    packed: Packed,
    /// Offset of the next row in the first chunk.
    at: usize,
    /// The attributes of the previous object.
    xattrs: Xattrs,
}

impl Iterator for Entries {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        while self.at == self.packed.chunks.front()?.len() {
            self.packed.chunks.pop_front();
            self.at = 0;
        }
        let part = self.packed.chunks.pop_front()?;
        let mut rows = Rows(part.get(self.at..).unwrap_or_default());
        let entry = self.entry(&mut rows);
        self.at = part.len() - rows.0.len();
        self.packed.chunks.push_front(part);
        Some(entry)
    }
}

impl Entries {
    fn entry(&mut self, rows: &mut Rows<'_>) -> Entry {
        let tag = rows.byte();
        let path = &mut self.packed.last.path;
        path.truncate(rows.length());
        path.extend_from_slice(rows.text());
        let path = path.clone();
        let body = match tag {
            HARD_LINK => EntryBody::HardLink(rows.text().to_vec()),
            tag => EntryBody::Object {
                meta: self.meta(rows),
                kind: self.kind(tag, rows),
                xattrs: self.xattrs.clone(),
            },
        };
        Entry { path, body }
    }

    fn meta(&mut self, rows: &mut Rows<'_>) -> Meta {
        let changed = rows.byte();
        let meta = &mut self.packed.last.meta;
        if changed & PERMISSIONS != 0 {
            meta.permissions = u16::try_from(rows.number()).unwrap_or_default();
        }
        if changed & OWNER != 0 {
            (meta.uid, meta.gid, meta.project) =
                (rows.number32(), rows.number32(), rows.number32());
        }
        if changed & MTIME != 0 {
            meta.mtime = rows.time();
        }
        for (bit, time) in [(ATIME, &mut meta.atime), (CTIME, &mut meta.ctime)] {
            *time = match changed & bit != 0 {
                true => rows.time(),
                false => meta.mtime,
            };
        }
        if changed & SET != 0 {
            self.xattrs.clear();
            for (name, value) in self.packed.sets.iter(XattrSet(rows.number32())) {
                self.xattrs.set(name, value);
            }
        }
        *meta
    }

    fn kind(&mut self, tag: u8, rows: &mut Rows<'_>) -> Kind {
        let Packed { last, contents, .. } = &mut self.packed;
        match tag {
            DIRECTORY => Kind::Directory,
            EMPTY => Kind::File(Content::Empty),
            RANGE => {
                let file = i64::from(last.file.0) + rows.signed();
                let offset = last.end.wrapping_add(rows.signed().cast_unsigned());
                let len_bytes = rows.number();
                last.file = FileId(u32::try_from(file).unwrap_or_default());
                last.end = offset.wrapping_add(len_bytes);
                Kind::File(Content::Range {
                    file: last.file,
                    offset,
                    len_bytes,
                })
            }
            OTHER_CONTENT => Kind::File(contents.pop_front().unwrap_or(Content::Empty)),
            SYMLINK => Kind::Symlink(rows.text().to_vec()),
            CHAR_DEVICE => Kind::CharDevice(rows.device()),
            BLOCK_DEVICE => Kind::BlockDevice(rows.device()),
            FIFO => Kind::Fifo,
            _ => Kind::Socket,
        }
    }
}

/// Encoded rows. They never end within an entry.
struct Rows<'a>(&'a [u8]);

impl<'a> Rows<'a> {
    fn byte(&mut self) -> u8 {
        debug_assert!(!self.0.is_empty(), "a row ends too early");
        match *self.0 {
            [first, ref rest @ ..] => {
                self.0 = rest;
                first
            }
            [] => 0,
        }
    }

    fn number(&mut self) -> u64 {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        number
    }

    fn number32(&mut self) -> u32 {
        u32::try_from(self.number()).unwrap_or_default()
    }

    fn signed(&mut self) -> i64 {
        let number = self.number();
        (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
    }

    fn length(&mut self) -> usize {
        usize::try_from(self.number()).unwrap_or_default()
    }

    fn text(&mut self) -> &'a [u8] {
        let length = self.length();
        let (text, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        text
    }

    fn time(&mut self) -> Timestamp {
        let seconds = self.signed();
        Timestamp::new(seconds, self.number32()).unwrap_or_default()
    }

    fn device(&mut self) -> DeviceNr {
        DeviceNr {
            major: self.number32(),
            minor: self.number32(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{DataPlace, Sparse};
    use proptest::prelude::*;

    fn times() -> impl Strategy<Value = Timestamp> {
        let seconds = prop_oneof![Just(7), any::<i64>()];
        let nanoseconds = prop_oneof![Just(0), 0u32..1_000_000_000];
        (seconds, nanoseconds).prop_map(|(a, b)| Timestamp::new(a, b).unwrap())
    }

    fn metas() -> impl Strategy<Value = Meta> {
        let owner = prop_oneof![Just([0, 0, 0]), any::<[u32; 3]>()];
        let times = prop_oneof![
            times().prop_map(|time| [time; 3]),
            [times(), times(), times()]
        ];
        (0u16..0o10000, owner, times).prop_map(
            |(permissions, [uid, gid, project], [atime, mtime, ctime])| Meta {
                permissions,
                uid,
                gid,
                project,
                atime,
                mtime,
                ctime,
            },
        )
    }

    fn kinds() -> impl Strategy<Value = Kind> {
        let texts = || proptest::collection::vec(any::<u8>(), 0..300);
        let devices = (any::<u32>(), any::<u32>());
        prop_oneof![
            Just(Kind::Directory),
            Just(Kind::File(Content::Empty)),
            (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(file, offset, len_bytes)| {
                Kind::File(Content::Range {
                    file: FileId(file),
                    offset,
                    len_bytes,
                })
            }),
            any::<u64>().prop_map(|len_bytes| {
                Kind::File(Content::Sparse(Box::new(Sparse {
                    data: DataPlace::Open(FileId(3)),
                    len_bytes,
                    pieces: Vec::new(),
                })))
            }),
            texts().prop_map(Kind::Symlink),
            devices.prop_map(|(major, minor)| Kind::CharDevice(DeviceNr { major, minor })),
            devices.prop_map(|(major, minor)| Kind::BlockDevice(DeviceNr { major, minor })),
            Just(Kind::Fifo),
            Just(Kind::Socket),
        ]
    }

    fn entries() -> impl Strategy<Value = Entry> {
        let paths = || proptest::collection::vec(0u8..3, 0..200);
        let xattrs = proptest::collection::vec((0u8..2, 0u8..2), 0..3).prop_map(|list| {
            let mut xattrs = Xattrs::new();
            for (name, value) in list {
                xattrs.set(&[name], &[value]);
            }
            xattrs
        });
        let objects = (metas(), kinds(), xattrs)
            .prop_map(|(meta, kind, xattrs)| EntryBody::Object { meta, kind, xattrs });
        let bodies = prop_oneof![8 => objects, 1 => paths().prop_map(EntryBody::HardLink)];
        (paths(), bodies).prop_map(|(path, body)| Entry { path, body })
    }

    fn copy(entry: &Entry) -> Entry {
        Entry {
            path: entry.path.clone(),
            body: match &entry.body {
                EntryBody::HardLink(target) => EntryBody::HardLink(target.clone()),
                EntryBody::Object { meta, kind, xattrs } => EntryBody::Object {
                    meta: *meta,
                    kind: kind.clone(),
                    xattrs: xattrs.clone(),
                },
            },
        }
    }

    proptest! {
        #[test]
        fn decoding_restores_all_entries(all in proptest::collection::vec(entries(), 0..60)) {
            let mut packed = Packed::default();
            for entry in &all {
                packed.push(copy(entry)).unwrap();
            }
            prop_assert_eq!(packed.into_entries().collect::<Vec<_>>(), all);
        }
    }

    fn file(number: u64) -> Entry {
        let meta = Meta {
            permissions: 0o644,
            mtime: Timestamp::new(1_700_000_000 + number.cast_signed() % 1000, 5).unwrap(),
            ..Meta::default()
        };
        Entry {
            path: format!("usr/share/directory-{}/file-{number}", number / 1000).into(),
            body: EntryBody::Object {
                meta,
                kind: Kind::File(Content::Range {
                    file: FileId(1),
                    offset: number * 2000,
                    len_bytes: 1000 + number % 1000,
                }),
                xattrs: Xattrs::new(),
            },
        }
    }

    /// The memory estimate for a file is for its object in the tree; entries that are read ahead
    /// must be small compared with that, and must be freed as the objects are created.
    #[test]
    fn entries_are_small_and_memory_is_freed_in_chunks() {
        const FILES: u64 = 100_000;
        let mut packed = Packed::default();
        let reported: usize = (0..FILES).map(|nr| packed.push(file(nr)).unwrap()).sum();
        let kept = |packed: &Packed| packed.chunks.iter().map(Vec::capacity).sum::<usize>();
        let all = kept(&packed);
        assert!(
            reported <= all && all < 40 * 100_000,
            "{reported}, {all} bytes"
        );
        let mut entries = packed.into_entries();
        for number in 0..FILES / 2 {
            assert_eq!(entries.next(), Some(file(number)));
        }
        let left = kept(&entries.packed);
        assert!(left < all / 2 + 2 * CHUNK_BYTES, "{left} of {all} bytes");
        assert!(entries.eq((FILES / 2..FILES).map(file)));
    }

    #[test]
    fn a_row_may_be_longer_than_a_chunk() {
        let long = |byte| Entry {
            path: vec![byte; 3 * CHUNK_BYTES],
            body: EntryBody::HardLink(vec![byte; 2 * CHUNK_BYTES]),
        };
        let mut packed = Packed::default();
        for byte in [1, 2, 3] {
            packed.push(long(byte)).unwrap();
            packed.push(file(byte.into())).unwrap();
        }
        let all: Vec<Entry> = packed.into_entries().collect();
        let expected = [1, 2, 3].map(|byte| [long(byte), file(byte.into())]);
        assert_eq!(all, expected.into_iter().flatten().collect::<Vec<_>>());
    }
}

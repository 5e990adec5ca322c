//! **Purpose.** Random calls on files.
//!
//! **Model.** Offsets and lengths are multiples of a cell, most of them of a block. Files do not
//! exceed the size of the shape, so that there is always enough space.

use super::super::call::{Call, Name, Outcome, Place, Range};
use super::super::shared::SharedFile;
use super::super::stamp::{CELL_BYTES, FileId, fill, runs};
use super::super::target::{IoMode, Target};
use super::{Worker, done, number};
use crate::concurrent::call::{Event, Kind};
use crate::concurrent::one_attribute;
use crate::concurrent::shape::Format;
use crate::concurrent::theme::Theme;
use fourscore_sync::Arc;

/// The longest read and write, in bytes.
const MOST_BYTES: u64 = 64 << 10;
/// The number of attribute names.
const XATTRS: usize = 3;
/// Lengths of their values in bytes: within the inode, in a block, and in an inode of their own.
const VALUE_BYTES: [usize; 4] = [4, 40, one_attribute::VALUE_BYTES, LARGE_VALUE_BYTES];
/// The length of a value that needs an inode of its own.
const LARGE_VALUE_BYTES: usize = 5000;
/// The number of different values of each length that files may share.
const EQUAL_VALUES: u32 = 3;

impl<T: Target> Worker<'_, T> {
    pub(super) fn file(&mut self) -> Arc<SharedFile<T>> {
        let files = &self.shared.files;
        Arc::clone(&files[self.random.below(files.len())].read())
    }

    fn below(&mut self, end: u64) -> u64 {
        let end = usize::try_from(end).unwrap_or(usize::MAX);
        self.random.below(end.max(1)) as u64
    }

    /// A random offset and length within the largest size of files.
    fn range_of(&mut self, most: u64) -> (u64, u64) {
        let shape = self.shared.shape;
        let block = u64::from(shape.block_bytes);
        let mut unit = *self.random.pick(&[block, block, block, 512, CELL_BYTES]);
        if shape.theme == Theme::Reuse {
            // A write of a part of a block would read the rest.
            unit = block;
        }
        let limit = match (shape.format, self.random.happens(1, 2)) {
            (Format::Inline, true) => 144,
            _ => shape.file_bytes,
        };
        let unit = unit.min(limit / 2 / CELL_BYTES * CELL_BYTES);
        let offset = self.below(limit / unit) * unit;
        let most = most.min(limit - offset);
        let len = match self.random.below(4) {
            0 | 1 => unit,
            2 => unit * (1 + self.below(8)),
            _ => unit * (1 + self.below(most / unit)),
        };
        (offset, len.min(most).max(CELL_BYTES))
    }

    pub(super) fn read(&mut self) {
        let shared = self.file();
        let (offset, len) = match self.shared.shape.theme {
            Theme::Reuse => (0, self.shared.shape.file_bytes),
            _ => self.range_of(MOST_BYTES),
        };
        self.read_at(&shared, offset, len);
    }

    fn read_at(&mut self, shared: &SharedFile<T>, offset: u64, len: u64) {
        let how = *self.random.pick(&[IoMode::Buffered, IoMode::Direct]);
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(usize::try_from(len).unwrap_or(0), 0);
        // Bytes that the read does not fill count as foreign.
        buffer.fill(0x55);
        let file = shared.id;
        let begin = self.shared.now();
        let answer = self
            .shared
            .target
            .read(&shared.file, &mut buffer, offset, how);
        let end = self.shared.now();
        let outcome = match answer {
            Ok(got) => Outcome::Bytes(got as u64, runs(&buffer[..got], offset)),
            Err(failure) => Outcome::Failed(failure),
        };
        self.buffer = buffer;
        self.events.push(Event {
            begin,
            end,
            thread: self.thread,
            call: Call::Read { file, offset, len },
            outcome,
        });
    }

    pub(super) fn write(&mut self) {
        let shared = self.file();
        let (offset, len) = self.range_of(MOST_BYTES);
        self.write_at(&shared, offset, len);
    }

    fn write_at(&mut self, shared: &SharedFile<T>, offset: u64, len: u64) {
        let (file, version) = (shared.id, self.version());
        let how = *self.random.pick(&[IoMode::Buffered, IoMode::Direct]);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        fill(&mut bytes, file, version, offset);
        let _order = shared.order.read();
        let call = Call::Write {
            file,
            version,
            offset,
            len,
        };
        self.note(call, |round| {
            done(round.target.write(&shared.file, &bytes, offset, how))
        });
    }

    /// Appends, unless the file is long already. Data that is appended is stamped with the size
    /// before, which is exact because the file is locked.
    pub(super) fn append(&mut self) {
        let shared = self.file();
        let file = shared.id;
        let _order = shared.order.write();
        let Ok(size) = self.shared.target.size(&shared.file) else {
            return;
        };
        if size >= self.shared.shape.file_bytes || !size.is_multiple_of(CELL_BYTES) {
            return;
        }
        let (version, len) = (self.version(), CELL_BYTES * (1 + self.below(200)));
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        fill(&mut bytes, file, version, size);
        let call = Call::Append { file, version, len };
        self.note(call, |round| {
            number(round.target.append(&shared.file, &bytes))
        });
    }

    pub(super) fn truncate(&mut self) {
        let shared = self.file();
        let (size, _) = self.range_of(MOST_BYTES);
        self.truncate_to(&shared, size);
    }

    fn truncate_to(&mut self, shared: &SharedFile<T>, size: u64) {
        let file = shared.id;
        let _order = shared.order.read();
        let call = Call::Truncate { file, size };
        self.note(call, |round| {
            done(round.target.truncate(&shared.file, size))
        });
    }

    pub(super) fn punch(&mut self) {
        let shared = self.file();
        let (offset, len) = self.range_of(MOST_BYTES);
        self.change(&shared, Range::Punch, offset, len);
    }

    fn change(&mut self, shared: &SharedFile<T>, what: Range, offset: u64, len: u64) {
        let file = shared.id;
        let _order = shared.order.read();
        let call = Call::Change {
            file,
            what,
            offset,
            len,
        };
        self.note(call, |round| {
            done(round.target.change(&shared.file, what, offset, len))
        });
    }

    pub(super) fn range(&mut self) {
        use Range::{Allocate, AllocateKeepSize, Zero, ZeroKeepSize};
        if self.has_indirect_blocks() {
            return;
        }
        let shared = self.file();
        let (offset, len) = self.range_of(MOST_BYTES);
        let all = [Allocate, AllocateKeepSize, Zero, ZeroKeepSize];
        let what = *self.random.pick(&all);
        self.change(&shared, what, offset, len);
    }

    /// Collapses or inserts a range.
    pub(super) fn move_range(&mut self) {
        if self.has_indirect_blocks() || !T::HAS_MOVES {
            return;
        }
        let shared = self.file();
        let file = shared.id;
        let _order = shared.order.write();
        let Ok(size) = self.shared.target.size(&shared.file) else {
            return;
        };
        let unit = self.shared.shape.unit_bytes();
        let is_short = size < self.shared.shape.file_bytes;
        let what = if is_short && self.random.happens(1, 2) {
            Range::Insert
        } else {
            Range::Collapse
        };
        let offset = self.below(size / unit) * unit;
        let len = unit * (1 + self.below(4));
        let call = Call::Change {
            file,
            what,
            offset,
            len,
        };
        self.note(call, |round| {
            done(round.target.change(&shared.file, what, offset, len))
        });
    }

    pub(super) fn copy(&mut self) {
        let (from, to) = (self.file(), self.file());
        let (offset, len) = self.range_of(MOST_BYTES);
        let (target, most) = self.range_of(MOST_BYTES);
        let len = len.min(most);
        let overlap = target < offset + len && offset < target + len;
        if from.id == to.id && overlap {
            return;
        }
        let _order = to.order.read();
        let call = Call::Copy {
            from: (from.id, offset),
            to: (to.id, target),
            len,
        };
        self.note(call, |round| {
            number(
                round
                    .target
                    .copy((&from.file, offset), (&to.file, target), len),
            )
        });
    }

    /// Queries the mapping of a file.
    pub(super) fn map(&mut self) {
        let shared = self.file();
        let (id, file) = (shared.id, &shared.file);
        let (offset, _) = self.range_of(MOST_BYTES);
        let found = |answer| match answer {
            Ok(None) => Outcome::Nothing,
            Ok(Some(at)) if at < offset => panic!("found before {offset}: {at}"),
            Ok(Some(at)) => Outcome::Number(at),
            Err(failure) => Outcome::Failed(failure),
        };
        match self.random.below(3) {
            0 => self.note(Call::Extents(id), |round| {
                number(round.target.extents(file))
            }),
            1 => self.note(Call::SeekData(id, offset), |round| {
                found(round.target.seek(file, offset, true))
            }),
            _ => self.note(Call::SeekHole(id, offset), |round| {
                found(round.target.seek(file, offset, false))
            }),
        }
    }

    pub(super) fn size(&mut self) {
        let shared = self.file();
        let call = Call::Size(shared.id);
        self.note(call, |round| number(round.target.size(&shared.file)));
    }

    pub(super) fn xattr(&mut self) {
        let shared = self.file();
        let (id, file) = (shared.id, &shared.file);
        let nr = self.random.below(XATTRS);
        let (text, nr) = (format!("user.{nr}"), u32::try_from(nr).unwrap_or(0));
        match self.random.below(4) {
            0 => {
                let (version, len) = self.value();
                self.set_xattr(&shared, nr, version, len);
            }
            1 => self.note(Call::RemoveXattr(id, nr), |round| {
                done(round.target.remove_xattr(file, &text))
            }),
            _ => self.note(Call::GetXattr(id, nr), |round| {
                match round.target.xattr(file, &text) {
                    Ok(value) => Outcome::Number(value_number(&value)),
                    Err(failure) => Outcome::Failed(failure),
                }
            }),
        }
    }

    /// Sets or removes the one attribute that files have, so that blocks come and go.
    pub(super) fn one_xattr(&mut self) {
        let shared = self.file();
        if self.random.happens(1, 3) {
            let (version, len) = (one_attribute::VERSION, one_attribute::VALUE_BYTES);
            return self.set_xattr(&shared, one_attribute::NAME_NR, version, len);
        }
        let call = Call::RemoveXattr(shared.id, one_attribute::NAME_NR);
        self.note(call, |round| {
            done(round.target.remove_xattr(&shared.file, one_attribute::NAME))
        });
    }

    fn set_xattr(&mut self, shared: &SharedFile<T>, nr: u32, version: u32, len: usize) {
        let (name, value) = (format!("user.{nr}"), one_attribute::value(version, len));
        self.note(Call::SetXattr(shared.id, nr, version), |round| {
            done(round.target.set_xattr(&shared.file, &name, &value))
        });
    }

    /// The number in a new value of an attribute, and its length.
    fn value(&mut self) -> (u32, usize) {
        let shape = self.shared.shape;
        let small = &VALUE_BYTES[..3];
        if shape.theme != Theme::Attributes {
            return (self.version().0, *self.random.pick(small));
        }
        let number = self.below(EQUAL_VALUES.into());
        let len = match self.random.below(4) {
            0 => *self.random.pick(small),
            1 if shape.format == Format::Inline => LARGE_VALUE_BYTES,
            _ => one_attribute::VALUE_BYTES,
        };
        (u32::try_from(number).unwrap_or(0), len)
    }

    pub(super) fn sync(&mut self) {
        if self.random.happens(1, 4) {
            self.note(Call::Sync, |round| done(round.target.sync()));
            return;
        }
        let shared = self.file();
        self.note(Call::Fsync(shared.id), |round| {
            done(round.target.fsync(&shared.file))
        });
    }

    /// Replaces one of the shared files by a new one.
    pub(super) fn new_file(&mut self) {
        let id = self.shared.next_file();
        let permanent = &self.shared.permanent;
        let dir = permanent[self.random.below(permanent.len())].dir.clone();
        let Some(file) = self.open_new(id, &dir) else {
            return;
        };
        let new = Arc::new(SharedFile::new(id, file));
        if self.random.happens(1, 2) {
            self.write_at(&new, 0, self.shared.shape.file_bytes.min(4 * MOST_BYTES));
        }
        let slot = self.random.below(self.shared.files.len());
        let old = std::mem::replace(&mut *self.shared.files[slot].write(), new);
        if self.random.happens(3, 4) {
            self.truncate_to(&old, 0);
        }
        self.note(Call::Close(old.id), |_| {
            drop(old);
            Outcome::Done
        });
    }

    fn open_new(&mut self, id: FileId, dir: &T::Dir) -> Option<T::File> {
        let mut opened = None;
        if self.random.happens(1, 2) {
            self.note(Call::Open(id), |round| match round.target.unnamed(dir) {
                Ok(file) => {
                    opened = Some(file);
                    Outcome::Done
                }
                Err(failure) => Outcome::Failed(failure),
            });
            return opened;
        }
        let name = Name::any(self.random.below(3));
        let at = Place {
            dir: self.shared.target.number(dir),
            name,
        };
        self.note(Call::Make(Kind::File, at), |round| {
            match round.target.create(dir, name) {
                Ok((file, number)) => {
                    opened = Some(file);
                    Outcome::Number(number)
                }
                Err(failure) => Outcome::Failed(failure),
            }
        });
        opened
    }

    /// Reads all files, when no thread changes anything any more.
    pub(super) fn read_all_files(&mut self) {
        for slot in &self.shared.files {
            let shared = Arc::clone(&slot.read());
            let call = Call::Size(shared.id);
            self.note(call, |round| number(round.target.size(&shared.file)));
            let mut at = 0;
            while at < 2 * self.shared.shape.file_bytes {
                self.read_at(&shared, at, MOST_BYTES);
                at += MOST_BYTES;
            }
        }
    }
}

/// The number in a value, or `u64::MAX` if the value is damaged.
fn value_number(value: &[u8]) -> u64 {
    let is_whole = VALUE_BYTES.contains(&value.len()) && value[4..].iter().all(|&b| b == 0x2e);
    match value.first_chunk() {
        Some(first) if is_whole => u32::from_le_bytes(*first).into(),
        _ => u64::MAX,
    }
}

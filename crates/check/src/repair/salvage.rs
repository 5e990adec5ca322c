//! **Purpose.** Reads the entries of a part of a directory, even where its chain of records is
//! broken, and writes parts again.
//!
//! **Model.** Behind a broken record, the next offset from which a chain of plausible records runs
//! to the end of the part is taken as the next record. A deleted entry that is found this way is
//! not distinguished from one in use by its bytes, so the caller keeps only entries whose file type
//! is that of the inode.

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::dirent::write::{LeafWriter, NewEntry};
use fourscore_ondisk::dirent::{DirFormat, Entry, EntryType, NameForm, StoredHash};

/// The bytes of a record in front of its name.
const HEADER_BYTES: usize = 8;

/// An entry, copied from its block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    pub(super) inode: InodeNr,
    pub(super) name: Vec<u8>,
    pub(super) kind: EntryType,
    pub(super) hash: Option<StoredHash>,
    /// Whether it was found behind a broken record.
    pub(super) is_guess: bool,
}

impl Saved {
    fn of(entry: &Entry<'_>, is_guess: bool) -> Self {
        Self {
            inode: entry.inode,
            name: entry.name.to_vec(),
            kind: entry.kind,
            hash: entry.hash,
            is_guess,
        }
    }

    pub(super) fn is_dots(&self) -> bool {
        self.name == b"." || self.name == b".."
    }
}

/// The entries in use of a part, in order.
pub(super) fn entries(format: &DirFormat, part: &[u8]) -> Vec<Saved> {
    let mut saved = Vec::new();
    let (mut at, mut is_guess) = (0, false);
    while at < part.len() {
        let rest = part.get(at..).unwrap_or(&[]);
        let mut broken = None;
        let mut end = 0;
        for record in format.records(rest) {
            match record {
                Ok(entry) => {
                    end = entry.at + entry.rec_len;
                    if entry.inode.0 != 0 {
                        saved.push(Saved::of(&entry, is_guess));
                    }
                }
                Err(_) => {
                    broken = Some(end);
                    break;
                }
            }
        }
        let Some(bad) = broken else {
            break;
        };
        is_guess = true;
        let bad = at + bad;
        let own = broken_record(format, part.get(bad..).unwrap_or(&[]));
        let next = bad
            + own
                .as_ref()
                .map_or(4, |saved| format.needed_bytes(&saved.name));
        saved.extend(own);
        let chain = (next..part.len())
            .step_by(4)
            .find(|&at| is_chain(format, part.get(at..).unwrap_or(&[])));
        at = chain.unwrap_or(part.len());
    }
    saved
}

/// The entry of a record whose length is wrong, if its inode and its name are plausible.
fn broken_record(format: &DirFormat, record: &[u8]) -> Option<Saved> {
    let header = record.get(..HEADER_BYTES)?;
    let inode = InodeNr(u32::from_le_bytes(header.get(..4)?.try_into().ok()?));
    let name = record
        .get(HEADER_BYTES..)?
        .get(..usize::from(*header.get(6)?))?;
    let is_valid = (1..=format.inodes_count.0).contains(&inode.0)
        && format.names == NameForm::Plain
        && is_name(name);
    is_valid.then(|| Saved {
        inode,
        name: name.to_vec(),
        kind: EntryType::from_byte(header.get(7).copied().unwrap_or(0)),
        hash: None,
        is_guess: true,
    })
}

fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Whether records run from here to the end, and at least one of them is in use.
fn is_chain(format: &DirFormat, part: &[u8]) -> bool {
    let (mut end, mut used) = (0, 0);
    for record in format.records(part) {
        let Ok(entry) = record else {
            return false;
        };
        end = entry.at + entry.rec_len;
        if entry.inode.0 == 0 {
            continue;
        }
        let plain = format.names != NameForm::Plain || is_name(entry.name);
        if entry.inode > format.inodes_count || entry.name.is_empty() || !plain {
            return false;
        }
        used += 1;
    }
    used > 0 && end == format.room_bytes(part.len())
}

/// Writes a part again with these entries; returns those for which there is no space.
pub(super) fn write(mut writer: LeafWriter<'_>, entries: &[Saved]) -> Vec<Saved> {
    let mut spilled = Vec::new();
    for saved in entries {
        let new = NewEntry::new(saved.inode, &saved.name, saved.kind);
        let new = new.map(|new| match saved.hash {
            Some(hash) => new.with_hash(hash),
            None => new,
        });
        if new.is_some_and(|new| !writer.append(&new)) {
            spilled.push(saved.clone());
        }
    }
    writer.finish();
    spilled
}

#[cfg(test)]
mod tests {
    use fourscore_ondisk::dirent::TypeByte;

    use super::*;

    const FORMAT: DirFormat = DirFormat {
        names: NameForm::Plain,
        type_byte: TypeByte::Present,
        inodes_count: InodeNr(1000),
        seed: None,
    };

    fn names(part: &[u8]) -> Vec<String> {
        let entries = entries(&FORMAT, part);
        let text = |saved: &Saved| String::from_utf8_lossy(&saved.name).into_owned();
        entries.iter().map(text).collect()
    }

    #[test]
    fn what_follows_a_broken_record_is_found() {
        let all: Vec<Saved> = [(12, "one"), (13, "two"), (14, "three"), (15, "four")]
            .map(|(inode, name)| Saved {
                inode: InodeNr(inode),
                name: name.as_bytes().to_vec(),
                kind: EntryType::Regular,
                hash: None,
                is_guess: false,
            })
            .to_vec();
        let mut part = vec![0; 1024];
        assert!(write(LeafWriter::new(&FORMAT, &mut part), &all).is_empty());
        assert_eq!(names(&part), ["one", "two", "three", "four"]);
        let mut broken = part.clone();
        broken[16..18].copy_from_slice(&[3, 0]);
        assert_eq!(names(&broken), ["one", "two", "three", "four"], "rec_len");
        broken[12..16].fill(0xff);
        assert_eq!(names(&broken), ["one", "three", "four"], "and the inode");
        part.fill(0xff);
        assert!(names(&part).is_empty(), "nothing is left");
    }
}

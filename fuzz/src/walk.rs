//! **Purpose.** Reads everything in a file system, within bounds, and checks what must hold for
//! any image: that answers do not contradict each other.
//!
//! **Invariants.** Each inode is visited once. What is read of each directory and file is bounded,
//! so time is; a single call that does not return is not hidden by that.

use std::collections::BTreeSet;
use std::io::IoSliceMut;
use std::ops::ControlFlow;

use fourscore::{Error, FileType, Follow, Fs, InodeNr, LogicalBlock, Seek};
use fourscore_ondisk::GroupNr;

/// Inodes visited.
const INODES: usize = 128;
/// Groups visited.
const GROUPS: u32 = 32;
/// Entries of one directory that are looked at.
const ENTRIES: usize = 256;
/// Of these, entries that are looked up.
const LOOKUPS: usize = 24;
/// Extents of one file that are looked at.
const EXTENTS: usize = 64;
/// Answers of `seek` that are followed.
const SEEKS: usize = 24;
/// Bytes read in one piece.
const READ_BYTES: usize = 3_500;
/// Bytes of one file that are read along its extents.
const EXTRACT_BYTES: usize = 64 << 10;

/// What was found, so that a test can see that there was something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Inodes visited.
    pub inodes: usize,
    /// Entries listed.
    pub entries: usize,
    /// Bytes of content read.
    pub bytes: usize,
    /// Attributes read.
    pub xattrs: usize,
    /// Inodes on the orphan list.
    pub orphans: usize,
    /// Calls that ended because of what is on disk, on the way from the root: inodes that are not
    /// in use may be anything.
    pub corrupt: usize,
}

/// Reads groups, then what can be reached from the root, then inodes by number.
///
/// # Panics
/// If two answers contradict each other.
pub fn read_everything(fs: &Fs) -> Found {
    let mut walk = Walk {
        fs,
        seen: BTreeSet::new(),
        next: vec![InodeNr::ROOT],
        found: Found::default(),
    };
    walk.groups();
    walk.orphans();
    while let Some(inode) = walk.next.pop() {
        walk.inode(inode);
    }
    let corrupt = walk.found.corrupt;
    let last = u32::try_from(INODES).unwrap_or(0);
    for nr in 1..=fs.geometry().inodes().min(last) {
        walk.inode(InodeNr(nr));
    }
    walk.found.corrupt = corrupt;
    for path in [&b"/a/b/../link/x"[..], b"link", b"loop/loop", b"dir/dir/"] {
        let answer = fs.resolve(path, Follow::Yes);
        walk.noted(answer);
    }
    walk.found
}

struct Walk<'a> {
    fs: &'a Fs,
    seen: BTreeSet<InodeNr>,
    next: Vec<InodeNr>,
    found: Found,
}

impl Walk<'_> {
    /// The answer of a call; errors are counted.
    fn noted<T>(&mut self, answer: fourscore::Result<T>) -> Option<T> {
        if let Err(error) = &answer {
            self.found.corrupt += usize::from(matches!(error, Error::Corrupt(_) | Error::Io(_)));
            assert!(error.errno() > 0 && !error.to_string().is_empty());
        }
        answer.ok()
    }

    fn groups(&mut self) {
        let statfs = self.fs.statfs();
        self.noted(statfs);
        for nr in 0..self.fs.geometry().groups().min(GROUPS) {
            let desc = self.fs.group(GroupNr(nr));
            self.noted(desc);
            for bitmap in [
                self.fs.block_bitmap(GroupNr(nr)),
                self.fs.inode_bitmap(GroupNr(nr)),
            ] {
                if let Some(bitmap) = self.noted(bitmap) {
                    let free: u32 = bitmap.free_runs().map(|run| run.end - run.start).sum();
                    assert!(free == bitmap.free() && free <= bitmap.len());
                }
            }
        }
    }

    fn orphans(&mut self) {
        let orphans = self.fs.orphans();
        let mut orphans = self.noted(orphans).unwrap_or_default();
        self.found.orphans = orphans.len();
        orphans.sort_unstable();
        assert!(orphans.windows(2).all(|pair| pair[0] < pair[1]), "twice");
        for orphan in orphans {
            assert!(orphan.0 > 0 && orphan.0 <= self.fs.geometry().inodes());
        }
    }

    fn inode(&mut self, nr: InodeNr) {
        if self.seen.len() >= INODES || !self.seen.insert(nr) {
            return;
        }
        self.found.inodes += 1;
        let stat = self.fs.stat(nr);
        let Some(stat) = self.noted(stat) else { return };
        assert_eq!(
            self.fs.stat(nr).ok().as_ref(),
            Some(&stat),
            "a hit differs from a miss"
        );
        if let Ok(scanned) = self.fs.scan(nr) {
            assert_eq!(scanned.stat, stat, "a scan differs");
        }
        self.xattrs(nr);
        self.extents(nr);
        match stat.file_type {
            FileType::Directory => self.directory(nr),
            FileType::Regular => self.file(nr, stat.size_bytes),
            FileType::Symlink => {
                let target = self.fs.read_link(nr);
                self.noted(target);
            }
            _ => assert!(self.fs.read_link(nr).is_err()),
        }
    }

    fn xattrs(&mut self, nr: InodeNr) {
        let xattrs = self.fs.xattrs(nr);
        for xattr in self.noted(xattrs).unwrap_or_default().iter().take(ENTRIES) {
            self.found.xattrs += 1;
            let value = self.fs.xattr(nr, &xattr.name);
            self.noted(value);
        }
    }

    fn extents(&mut self, nr: InodeNr) {
        let (mut left, mut end) = (EXTENTS, LogicalBlock(0));
        let blocks = self.fs.geometry().blocks().0;
        let answer = self.fs.for_each_extent(nr, LogicalBlock(0), |extent| {
            assert!(
                extent.logical >= end && extent.blocks > 0,
                "{extent:?} after {end:?}"
            );
            assert!(
                extent.physical.0 + u64::from(extent.blocks) <= blocks,
                "{extent:?}"
            );
            end = extent.logical_end();
            left -= 1;
            if left == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        self.noted(answer);
    }

    fn directory(&mut self, nr: InodeNr) {
        let mut entries = Vec::new();
        let answer = self.fs.for_each_entry(nr, |entry| {
            entries.push((entry.name.to_vec(), entry.inode));
            if entries.len() == ENTRIES {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        self.noted(answer);
        self.found.entries += entries.len();
        for (name, inode) in &entries {
            assert!(name.len() <= 255 && !name.is_empty());
            self.next.push(*inode);
        }
        for (name, _) in entries.iter().take(LOOKUPS) {
            let answer = self.fs.lookup(nr, name);
            self.noted(answer);
        }
        for name in [&b"no such name"[..], b"..", b"A", &[0xff; 255]] {
            let answer = self.fs.lookup(nr, name);
            self.noted(answer);
        }
    }

    fn file(&mut self, nr: InodeNr, size_bytes: u64) {
        let mut room = vec![0x5a; READ_BYTES];
        for offset in [
            0,
            size_bytes / 2,
            size_bytes.saturating_sub(700),
            size_bytes,
        ] {
            let answer = self.fs.read_at(nr, &mut room, offset);
            if let Some(len) = self.noted(answer) {
                let expected = (READ_BYTES as u64).min(size_bytes - offset);
                assert_eq!(len as u64, expected, "read at {offset} of {size_bytes}");
                self.found.bytes += len;
            }
        }
        for what in [Seek::Data, Seek::Hole] {
            let answer = self.fs.seek(nr, 0, what);
            self.noted(answer);
        }
        let (mut at, mut what) = (0, Seek::Hole);
        for _ in 0..SEEKS {
            let answer = self.fs.seek(nr, at, what);
            let Some(Some(next)) = self.noted(answer) else {
                break;
            };
            assert!(
                next >= at && next <= size_bytes,
                "seek from {at} to {next} of {size_bytes}"
            );
            at = next;
            what = if what == Seek::Hole {
                Seek::Data
            } else {
                Seek::Hole
            };
        }
        self.extract(nr, size_bytes);
    }

    /// Reads the content as a program that copies a file does: from hole to hole, in two buffers at
    /// once. Holes are skipped, and must read as zeroes.
    fn extract(&mut self, nr: InodeNr, size_bytes: u64) {
        let (mut at, mut left) = (0, EXTRACT_BYTES);
        while left > 0 {
            let start = self.fs.seek(nr, at, Seek::Data);
            let Some(Some(start)) = self.noted(start) else {
                break;
            };
            let end = self.fs.seek(nr, start, Seek::Hole);
            let Some(Some(end)) = self.noted(end) else {
                break;
            };
            assert!(at <= start && start < end && end <= size_bytes);
            if start > at {
                let mut hole =
                    vec![0x5a; READ_BYTES.min(usize::try_from(start - at).unwrap_or(READ_BYTES))];
                let answer = self.fs.read_at(nr, &mut hole, at);
                if self.noted(answer).is_some() {
                    assert!(hole.iter().all(|&byte| byte == 0), "a hole with content");
                }
            }
            let len = usize::try_from(end - start).unwrap_or(usize::MAX).min(left);
            let (mut first, mut second) = (vec![0; len / 2], vec![0; len - len / 2]);
            let mut bufs = [&mut first[..], &mut second[..]].map(IoSliceMut::new);
            let answer = self.fs.read_vectored_at(nr, &mut bufs, start);
            match self.noted(answer) {
                Some(done) => assert_eq!(done, len, "read from {start}, data until {end}"),
                None => break,
            }
            (at, left) = (end, left - len);
        }
    }
}

//! **Purpose.** A model and a tree of a file system, on which the same calls are done.
//!
//! **Model.** The tree is a whole file system or a directory of it, so that each thread can have
//! one of its own. Open files are kept open here.

use fourscore::{
    AttributeChange, Error, Fallocate, FileType, Fs, InodeNr, NewAttributes, OpenInode, Replace,
    SetXattr, Trim,
};
use fourscore_ondisk::Timestamp;
use fourscore_ondisk::inode::{DeviceNr, InodeFlags};
use fourscore_sync::Arc;
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use super::content::bytes_to_write;
use super::{Call, Expected, How, Id, Model, NewKind, Owner, Place, Which, Whole};

/// The number of latest calls that are shown when one fails.
const SHOWN_CALLS: usize = 12;

/// The inode numbers of the model's inodes.
pub type Numbers = BTreeMap<Id, InodeNr>;

/// A model and a tree of a file system.
#[derive(Debug)]
pub struct Pair {
    /// The expected state.
    pub model: Model,
    numbers: Numbers,
    handles: Vec<(Id, OpenInode)>,
    /// The latest calls, as text.
    log: VecDeque<String>,
    fs: Arc<Fs>,
    /// The number of bytes that the last write wrote, if it had no space for all of them.
    short: Cell<Option<u64>>,
    /// The part of the last call that failed for lack of space which was done.
    done: Option<Call>,
}

impl Pair {
    /// Continues with a model whose tree is below `root`; no file of it is open.
    ///
    /// # Panics
    /// If they differ.
    #[must_use]
    pub fn resume(fs: Arc<Fs>, root: InodeNr, model: Model) -> Self {
        let numbers = model.compare(&fs, root);
        Self::with(fs, model, numbers)
    }

    /// Continues with a model whose inodes have these numbers, without comparing; no file is open.
    pub(crate) fn with(fs: Arc<Fs>, model: Model, numbers: Numbers) -> Self {
        Self {
            model,
            numbers,
            handles: Vec::new(),
            log: VecDeque::new(),
            fs,
            short: Cell::new(None),
            done: None,
        }
    }

    /// The inode numbers of the model's inodes.
    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// Derives a call from a number and does it on both, which must have the same result.
    ///
    /// # Panics
    /// If the results differ.
    pub fn step(&mut self, number: u64) {
        let call = self.model.draw(number);
        if self.model.rules.ignores_case {
            self.call_as(&call, &call.in_other_case(number));
        } else {
            self.call(&call);
        }
    }

    /// Does a call on both, which must have the same result, and returns that. `None` if the file
    /// system has no space for attributes: the model is unchanged then.
    ///
    /// # Panics
    /// If the results differ.
    pub(crate) fn call(&mut self, call: &Call) -> Option<Expected> {
        self.call_as(call, call)
    }

    /// As [`Self::call`]; `spelled` is the call with names that the file system takes as equal.
    fn call_as(&mut self, call: &Call, spelled: &Call) -> Option<Expected> {
        self.log.truncate(SHOWN_CALLS - 1);
        self.log.push_front(call.shown());
        let may_lack_space = self.model.may_lack_space(call);
        let result = match self.attempt_as(call, spelled) {
            Ok(expected) => Some(expected),
            // The model does not know how many attributes fit.
            Err(error) if may_lack_space && error.errno() == Errno::NOSPC.raw_os_error() => None,
            Err(error) => panic!("{error:?}:\n{}", self.history()),
        };
        if let Call::Make(place, NewKind::File, _) | Call::Link(_, place) = call {
            self.check_name(place);
        }
        result
    }

    /// Returns the part that was done of the call that failed last, if that was a lack of space.
    pub(crate) fn part_of_refused(&self) -> Option<&Call> {
        self.done.as_ref()
    }

    /// Does a call that may fail for reasons that the model does not know: the model is unchanged
    /// then, or has the part that was done for which there was space.
    ///
    /// # Errors
    /// The error of the file system.
    ///
    /// # Panics
    /// If a call succeeds that must fail.
    pub(crate) fn attempt(&mut self, call: &Call) -> fourscore::Result<Expected> {
        self.attempt_as(call, call)
    }

    fn attempt_as(&mut self, call: &Call, spelled: &Call) -> fourscore::Result<Expected> {
        let before = self.model.clone();
        let expected = self.model.apply(call);
        match (expected, self.perform(spelled)) {
            (Expected::Done(id), Ok(number)) => {
                self.numbers.extend(id.zip(number));
                Ok(Expected::Done(id))
            }
            (Expected::Refused(why), Err(error))
                if why.contains(Errno::from_raw_os_error(error.errno())) =>
            {
                Ok(Expected::Refused(why))
            }
            (_, Err(error)) => {
                self.model = before;
                self.done = self.short.take().map(|written| call.in_part(written));
                if let Some(done) = &self.done {
                    self.model.apply(done);
                }
                Err(error)
            }
            (expected, Ok(_)) => {
                panic!("{expected:?}, but the call succeeded:\n{}", self.history())
            }
        }
    }

    /// The latest calls, one a line.
    fn history(&self) -> String {
        let mut text = "the latest calls, the last one first:\n".to_owned();
        for line in &self.log {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "  {line}");
        }
        text
    }

    /// Checks the inode number of a name.
    fn check_name(&self, place: &Place) {
        let expected = self.model.lookup(place).map(|id| self.numbers[&id]);
        let found = self.fs.lookup(self.numbers[&place.dir], &place.name).ok();
        assert_eq!(found, expected, "{place:?}:\n{}", self.history());
    }

    /// Compares everything with the model, including open files.
    ///
    /// # Panics
    /// If they differ.
    pub fn compare(&self, root: InodeNr) {
        let found = self.model.compare(&self.fs, root);
        for (id, number) in &found {
            assert_eq!(self.numbers.get(id), Some(number), "{id:?}");
        }
        for (id, handle) in &self.handles {
            self.model.compare_inode(&self.fs, *id, handle.inode());
        }
    }

    /// Closes all files and releases the file system; returns the model.
    ///
    /// # Panics
    /// If a file cannot be closed.
    #[must_use]
    pub fn finish(mut self) -> Model {
        for (id, handle) in self.handles.drain(..) {
            self.model.apply(&Call::Close(id));
            handle.close().unwrap();
        }
        self.model
    }

    /// Does a call on the file system; returns the number of a new inode.
    fn perform(&mut self, call: &Call) -> fourscore::Result<Option<InodeNr>> {
        match call {
            Call::Make(place, kind, owner) => self.make(place, kind, owner).map(Some),
            Call::MakeUnnamed(dir, owner) => {
                let dir = self.numbers[dir];
                let handle = OpenInode::unnamed(Arc::clone(&self.fs), dir, &attributes(owner))?;
                let number = handle.inode();
                let newest = self.model.nodes().last().map(|(id, _)| id);
                self.handles.extend(newest.map(|id| (id, handle)));
                Ok(Some(number))
            }
            Call::Rename(from, to, how) => self.rename(from, to, *how),
            Call::Open(id) => {
                let handle = OpenInode::new(Arc::clone(&self.fs), self.numbers[id])?;
                self.handles.push((*id, handle));
                Ok(None)
            }
            Call::Close(id) => {
                let at = self.handles.iter().position(|(open, _)| open == id);
                let (_, handle) = self.handles.swap_remove(at.unwrap());
                handle.close().map(|()| None)
            }
            Call::Disturb(id) => self.disturb(self.numbers[id]).map(|()| None),
            other => self.change(other).map(|()| None),
        }
    }

    fn at<'p>(&self, place: &'p Place) -> (InodeNr, &'p [u8]) {
        (self.numbers[&place.dir], &place.name)
    }

    fn make(&self, place: &Place, kind: &NewKind, owner: &Owner) -> fourscore::Result<InodeNr> {
        let ((dir, name), new) = (self.at(place), attributes(owner));
        match kind {
            // Half of the files are created and opened at once, as a mount does.
            NewKind::File if self.model.nodes().count().is_multiple_of(2) => {
                let handle = OpenInode::created(Arc::clone(&self.fs), dir, name, &new)?;
                let number = handle.inode();
                handle.close().map(|()| number)
            }
            NewKind::File => self.fs.create(dir, name, &new),
            NewKind::Directory => self.fs.mkdir(dir, name, &new),
            NewKind::Symlink(target) => self.fs.symlink(dir, name, target, &new),
            NewKind::Device(file_type, major, minor) => {
                let device = DeviceNr {
                    major: *major,
                    minor: *minor,
                };
                self.fs.mknod(dir, name, *file_type, device, &new)
            }
            NewKind::Endpoint(file_type) => {
                let none = DeviceNr { major: 0, minor: 0 };
                self.fs.mknod(dir, name, *file_type, none, &new)
            }
        }
    }

    fn rename(&self, from: &Place, to: &Place, how: How) -> fourscore::Result<Option<InodeNr>> {
        let (from, to) = (self.at(from), self.at(to));
        match how {
            How::Replace => self.fs.rename(from, to, Replace::Yes)?,
            How::NoReplace => self.fs.rename(from, to, Replace::No)?,
            How::Exchange => self.fs.exchange(from, to)?,
            How::Whiteout(owner) => {
                let owner = attributes(&owner);
                self.fs
                    .rename_leaving_whiteout(from, to, Replace::Yes, &owner)?;
                return self.fs.lookup(from.0, from.1).map(Some);
            }
        }
        Ok(None)
    }

    /// Notes a call that wrote less than `len` bytes, which only a lack of space explains.
    fn check_written(&self, written: u64, len: u64) -> fourscore::Result<()> {
        if written == len {
            return Ok(());
        }
        assert!(0 < written && written < len, "{written} bytes of {len}");
        self.short.set(Some(written));
        Err(Error::NoSpace)
    }

    /// Does a call that neither creates nor opens an inode.
    fn change(&self, call: &Call) -> fourscore::Result<()> {
        let (fs, numbers) = (&self.fs, &self.numbers);
        match call {
            Call::Link(node, place) => {
                let (dir, name) = self.at(place);
                fs.link(numbers[node], dir, name)
            }
            Call::Unlink(place) => {
                let (dir, name) = self.at(place);
                fs.unlink(dir, name)
            }
            Call::Rmdir(place) => {
                let (dir, name) = self.at(place);
                fs.rmdir(dir, name)
            }
            Call::Write {
                node,
                offset,
                len,
                tag,
            } => {
                let bytes = bytes_to_write(*tag, *offset, *len);
                self.check_written(fs.write_at(numbers[node], &bytes, *offset)? as u64, *len)
            }
            Call::Append { node, len, tag } => {
                let number = numbers[node];
                let offset = fs.stat(number)?.size_bytes;
                let appended = fs.append(number, &bytes_to_write(*tag, offset, *len));
                let written = fs.stat(number)?.size_bytes - offset;
                if appended.is_err() && written > 0 {
                    return self.check_written(written, *len);
                }
                assert_eq!(appended?, offset);
                Ok(())
            }
            Call::Truncate(node, size) => fs.truncate(numbers[node], *size),
            Call::Copy(from, range, to, offset) => {
                let (from, to) = (numbers[from], numbers[to]);
                let end = range.end.min(fs.stat(from)?.size_bytes);
                let len = range.end - range.start;
                let copied = fs.copy_file_range(from, range.start, to, *offset, len)?;
                self.check_written(copied, end.saturating_sub(range.start))
            }
            Call::Fallocate(node, what, range) => {
                fs.fallocate(numbers[node], *what, range.start, range.end - range.start)
            }
            Call::SetFlags(node, flags) => {
                let number = numbers[node];
                let others = fs.stat(number)?.flags & InodeFlags::USER_VISIBLE;
                fs.set_flags(number, (others - Model::FLAGS) | *flags)
            }
            Call::SetProject(node, project) => fs.set_project(numbers[node], *project),
            Call::SetXattr {
                node,
                name,
                value,
                how,
            } => fs.set_xattr(numbers[node], name, value, *how),
            Call::RemoveXattr(node, name) => fs.remove_xattr(numbers[node], name),
            Call::SetAcl(node, which, list) => {
                let name: &[u8] = match which {
                    Which::Access => b"system.posix_acl_access",
                    Which::Default => b"system.posix_acl_default",
                };
                match list {
                    Some(list) => fs.set_xattr(numbers[node], name, &list.bytes(), SetXattr::Any),
                    None => fs.remove_xattr(numbers[node], name),
                }
            }
            Call::Fsync(node) => fs.fsync(numbers[node]),
            Call::Fdatasync(node) => fs.fdatasync(numbers[node]),
            Call::Whole(what) => self.whole(*what),
            other => self.set_attributes(other),
        }
    }

    fn whole(&self, what: Whole) -> fourscore::Result<()> {
        match what {
            Whole::Sync => self.fs.sync(),
            Whole::Trim => match self.fs.trim(&Trim::default()) {
                // The host does not support it for its file.
                Err(Error::Unsupported(_)) => Ok(()),
                trimmed => trimmed.map(drop),
            },
            Whole::FreezeAndThaw => match self.fs.freeze() {
                // Another thread has frozen it, and will thaw it.
                Err(Error::Busy) => Ok(()),
                frozen => frozen.and_then(|()| self.fs.thaw()),
            },
        }
    }

    fn set_attributes(&self, call: &Call) -> fourscore::Result<()> {
        let seconds = |seconds| Timestamp::new(seconds, 0);
        let (node, change) = match call {
            Call::Chmod(node, permissions) => {
                let permissions = Some(*permissions);
                (
                    node,
                    AttributeChange {
                        permissions,
                        ..AttributeChange::default()
                    },
                )
            }
            Call::Chown { node, uid, gid } => (
                node,
                AttributeChange {
                    uid: Some(*uid),
                    gid: Some(*gid),
                    ..AttributeChange::default()
                },
            ),
            Call::Touch { node, atime, mtime } => (
                node,
                AttributeChange {
                    atime: seconds(*atime),
                    mtime: seconds(*mtime),
                    ..AttributeChange::default()
                },
            ),
            other => unreachable!("{other:?}"),
        };
        self.fs.set_attributes(self.numbers[node], &change)
    }

    /// Checks that calls on an immutable file fail.
    fn disturb(&self, number: InodeNr) -> fourscore::Result<()> {
        let fs = &self.fs;
        let flags = fs.stat(number)?.flags & InodeFlags::USER_VISIBLE;
        fs.set_flags(number, flags | InodeFlags::IMMUTABLE_FL)?;
        let root = self.numbers[&Model::ROOT];
        let refused = [
            fs.write_at(number, b"x", 0).map(drop),
            fs.append(number, b"x").map(drop),
            fs.truncate(number, 5),
            fs.fallocate(number, Fallocate::AllocateKeepSize, 0, 5),
            fs.set_xattr(number, b"user.0", b"x", SetXattr::Any),
            fs.set_attributes(number, &AttributeChange::default()),
            fs.link(number, root, b"not to be made"),
        ];
        for result in refused {
            assert_eq!(result.unwrap_err().errno(), Errno::PERM.raw_os_error());
        }
        assert_eq!(fs.stat(number)?.file_type, FileType::Regular);
        fs.set_flags(number, flags)
    }
}

fn attributes(owner: &Owner) -> NewAttributes {
    NewAttributes::owned_by(owner.uid, owner.gid)
        .permissions(owner.permissions)
        .umask(owner.umask)
}

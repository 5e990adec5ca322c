//! **Purpose.** The operations, and how a random one is chosen.
//!
//! **Model.** A call names inodes and directories of the model, not of the file system. It is
//! derived from a number and the state of the model, so that a list of numbers is a history, and a
//! shorter list is a shorter history.

use std::ops::Range;

use fourscore::{Fallocate, FileType, SetXattr};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_testkit::explore::Rng;

use super::Acl;
use super::{Id, Kind, Model, Node, Rules};

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) dir: Id,
    pub(crate) name: Vec<u8>,
}

/// The type of a new inode.
#[derive(Clone, Debug)]
pub(crate) enum NewKind {
    File,
    Directory,
    Symlink(Vec<u8>),
    /// Of a type, with a major and a minor number.
    Device(FileType, u32, u32),
    Endpoint(FileType),
}

/// Owner and permissions of a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) permissions: u16,
    pub(crate) umask: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The modes of rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Replace,
    NoReplace,
    Whiteout(Owner),
    Exchange,
}

/// Which access control list of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Access,
    Default,
}

/// An operation.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Make(Place, NewKind, Owner),
    /// A file without a name (`O_TMPFILE`) in a directory.
    MakeUnnamed(Id, Owner),
    Link(Id, Place),
    Unlink(Place),
    Rmdir(Place),
    Rename(Place, Place, How),
    Open(Id),
    Close(Id),
    Write {
        node: Id,
        offset: u64,
        len: u64,
        tag: u8,
    },
    Append {
        node: Id,
        len: u64,
        tag: u8,
    },
    Truncate(Id, u64),
    /// The source file and range, the target file and offset.
    Copy(Id, Range<u64>, Id, u64),
    Fallocate(Id, Fallocate, Range<u64>),
    Chmod(Id, u16),
    Chown {
        node: Id,
        uid: u32,
        gid: u32,
    },
    /// The times of access and change, in seconds.
    Touch {
        node: Id,
        atime: i64,
        mtime: i64,
    },
    SetFlags(Id, InodeFlags),
    SetProject(Id, u32),
    /// Makes a file immutable, checks that changes fail, and makes it mutable again.
    Disturb(Id),
    SetXattr {
        node: Id,
        name: Vec<u8>,
        value: Vec<u8>,
        how: SetXattr,
    },
    RemoveXattr(Id, Vec<u8>),
    SetAcl(Id, Which, Option<Acl>),
    Fsync(Id),
    Fdatasync(Id),
    Whole(Whole),
}

/// Operations on the file system as a whole, which change no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    Sync,
    Trim,
    FreezeAndThaw,
}

/// The length of the text of a call in characters.
const MOST_SHOWN: usize = 160;

impl Call {
    /// The part at the front of a call that copies or writes data, of `len` bytes.
    pub(crate) fn in_part(&self, len: u64) -> Self {
        let mut part = self.clone();
        match &mut part {
            Self::Write { len: all, .. } | Self::Append { len: all, .. } => *all = len,
            Self::Copy(_, range, ..) => range.end = range.start + len,
            _ => {}
        }
        part
    }

    /// The call as text; long values are cut.
    pub(crate) fn shown(&self) -> String {
        format!("{self:?}").chars().take(MOST_SHOWN).collect()
    }

    /// The call with letters of its names in random case.
    pub(crate) fn in_other_case(&self, number: u64) -> Self {
        let random = &mut Rng::new(number ^ 7);
        let mut call = self.clone();
        match &mut call {
            Self::Make(place, ..)
            | Self::Link(_, place)
            | Self::Unlink(place)
            | Self::Rmdir(place) => place.change_case(random),
            Self::Rename(from, to, _) => {
                from.change_case(random);
                to.change_case(random);
            }
            _ => {}
        }
        call
    }
}

impl Place {
    fn change_case(&mut self, random: &mut Rng) {
        for letter in &mut self.name {
            if random.happens(1, 2) {
                letter.make_ascii_uppercase();
            }
        }
    }
}

/// The most inodes that are open at once.
const MOST_OPEN: usize = 12;
/// The number of inodes from which on more are removed than created, so that a history of any
/// length has enough space.
const MANY_INODES: usize = 250;

/// Derives the next call from a number.
pub(crate) fn draw(model: &Model, number: u64) -> Call {
    let random = &mut Rng::new(number);
    let has_many = model.nodes().count() > MANY_INODES;
    let call = match random.below(100) {
        0..=15 if !has_many => Some(make(model, random)),
        0..=15 => remove(model, random),
        16..=19 => link(model, random),
        20..=29 => remove(model, random),
        30..=41 => rename(model, random),
        42..=49 => open_or_close(model, random),
        50..=73 => change_content(model, random),
        74..=84 => change_attributes(model, random),
        85..=96 => change_xattrs(model, random),
        97 if random.happens(1, 2) => pick_file(model, random).map(Call::Fdatasync),
        97 => pick_file(model, random).map(Call::Fsync),
        98 => {
            let all = [Whole::Sync, Whole::Sync, Whole::Trim, Whole::FreezeAndThaw];
            Some(Call::Whole(*random.pick(&all)))
        }
        _ => pick(model, random, |node| node.is_file() && node.links > 0).map(Call::Disturb),
    };
    call.unwrap_or_else(|| make(model, random))
}

fn below(random: &mut Rng, end: u64) -> u64 {
    random.bits() % end
}

fn below_u32(random: &mut Rng, end: u32) -> u32 {
    u32::try_from(below(random, end.into())).unwrap_or(0)
}

fn bits16(random: &mut Rng, mask: u16) -> u16 {
    u16::try_from(random.bits() & u64::from(mask)).unwrap_or(0)
}

/// A random inode that fits.
fn pick(model: &Model, random: &mut Rng, fits: impl Fn(&Node) -> bool) -> Option<Id> {
    let fit: Vec<Id> = model
        .nodes()
        .filter_map(|(id, node)| fits(node).then_some(id))
        .collect();
    (!fit.is_empty()).then(|| *random.pick(&fit))
}

/// A regular file, which may be open and without a name.
fn pick_file(model: &Model, random: &mut Rng) -> Option<Id> {
    pick(model, random, Node::is_file)
}

/// A directory; sometimes one that was removed while it is open.
fn pick_dir(model: &Model, random: &mut Rng) -> Id {
    let with_dead = random.happens(1, 20);
    let fits = |node: &Node| node.is_dir() && (with_dead || node.links > 0);
    pick(model, random, fits).unwrap_or(Model::ROOT)
}

/// A name that is most likely new.
fn new_place(model: &Model, random: &mut Rng) -> Place {
    let longest = *random.pick(&[12, 12, 12, 30, 255]);
    let len = 1 + random.below(longest);
    let mut name = below(random, 1_000_000).to_string().into_bytes();
    name.resize(len.max(name.len()), b'n');
    Place {
        dir: pick_dir(model, random),
        name,
    }
}

/// A name that exists.
fn taken_place(model: &Model, random: &mut Rng) -> Option<Place> {
    let holds = |node: &Node| node.entries().is_some_and(|entries| !entries.is_empty());
    let dir = pick(model, random, holds)?;
    let names: Vec<&Vec<u8>> = model.node(dir).entries()?.keys().collect();
    Some(Place {
        dir,
        name: (*random.pick(&names)).clone(),
    })
}

fn place(model: &Model, random: &mut Rng) -> Place {
    let taken = random.happens(1, 6).then(|| taken_place(model, random));
    taken.flatten().unwrap_or_else(|| new_place(model, random))
}

fn owner(random: &mut Rng) -> Owner {
    Owner {
        permissions: bits16(random, 0o7777),
        umask: *random.pick(&[0, 0o022, 0o077]),
        uid: below_u32(random, 70_000),
        gid: below_u32(random, 70_000),
    }
}

fn make(model: &Model, random: &mut Rng) -> Call {
    let kind = match random.below(12) {
        0..=6 => NewKind::File,
        7 | 8 => NewKind::Directory,
        9 => {
            let len = *random.pick(&[1, 20, 59, 60, 61, 200, 1000]);
            NewKind::Symlink(vec![b't'; len])
        }
        10 => {
            let kind = *random.pick(&[FileType::CharDevice, FileType::BlockDevice]);
            NewKind::Device(kind, below_u32(random, 1 << 12), below_u32(random, 1 << 20))
        }
        _ => NewKind::Endpoint(*random.pick(&[FileType::Fifo, FileType::Socket])),
    };
    let mut owner = owner(random);
    if matches!(kind, NewKind::Symlink(_)) {
        owner.permissions = 0o777;
    }
    Call::Make(place(model, random), kind, owner)
}

fn link(model: &Model, random: &mut Rng) -> Option<Call> {
    let node = pick(model, random, |node| !node.is_dir())?;
    Some(Call::Link(node, place(model, random)))
}

fn remove(model: &Model, random: &mut Rng) -> Option<Call> {
    let place = if random.happens(1, 15) {
        new_place(model, random)
    } else {
        taken_place(model, random)?
    };
    let is_dir = model
        .lookup(&place)
        .is_some_and(|id| model.node(id).is_dir());
    // Sometimes the wrong call for the type.
    Some(if is_dir != random.happens(1, 15) {
        Call::Rmdir(place)
    } else {
        Call::Unlink(place)
    })
}

fn rename(model: &Model, random: &mut Rng) -> Option<Call> {
    let from = taken_place(model, random)?;
    let how = match random.below(10) {
        0..=4 => How::Replace,
        5 => How::NoReplace,
        6 => How::Whiteout(owner(random)),
        _ => How::Exchange,
    };
    let onto_taken = how == How::Exchange || random.happens(1, 3);
    let to = onto_taken.then(|| taken_place(model, random)).flatten();
    let to = to.unwrap_or_else(|| new_place(model, random));
    Some(Call::Rename(from, to, how))
}

fn open_or_close(model: &Model, random: &mut Rng) -> Option<Call> {
    let open = model.opened();
    if open.len() >= MOST_OPEN || (!open.is_empty() && random.happens(2, 5)) {
        return Some(Call::Close(*random.pick(&open)));
    }
    if random.happens(1, 3) {
        return Some(Call::MakeUnnamed(pick_dir(model, random), owner(random)));
    }
    let fits = |node: &Node| node.links > 0 && (node.is_file() || node.is_dir());
    pick(model, random, fits)
        .filter(|&id| id != Model::ROOT)
        .map(Call::Open)
}

fn change_content(model: &Model, random: &mut Rng) -> Option<Call> {
    let node = pick_file(model, random)?;
    let size = model.node(node).content()?.size();
    let far = *random.pick(&[
        40_000,
        40_000,
        40_000,
        200_000,
        200_000,
        3_000_000,
        model.rules.far_bytes,
    ]);
    // Small files may be stored inline.
    let is_small = random.happens(1, 4);
    let (far, most) = if is_small { (150, 100) } else { (far, 30_000) };
    let offset = below(random, far.min(model.rules.far_bytes));
    let len = 1 + below(random, model.rules.most_bytes.min(most));
    let tag = u8::try_from(random.bits() & 0xff).unwrap_or(0);
    Some(match random.below(26) {
        0..=8 => Call::Write {
            node,
            offset,
            len,
            tag,
        },
        9..=11 => Call::Append { node, len, tag },
        12..=14 => {
            let size = *random.pick(&[0, offset, size / 2, size.saturating_sub(1), size + 1]);
            Call::Truncate(node, size)
        }
        15 | 16 => {
            let source = pick_file(model, random)?;
            let from = below(random, model.node(source).content()?.size() + 100);
            Call::Copy(source, from..from + len * 3, node, offset)
        }
        _ => {
            let what = *random.pick(&FALLOCATE);
            Call::Fallocate(node, what, range(model.rules, size, random))
        }
    })
}

/// All modes of fallocate.
pub(crate) const FALLOCATE: [Fallocate; 7] = [
    Fallocate::Allocate,
    Fallocate::AllocateKeepSize,
    Fallocate::PunchHole,
    Fallocate::ZeroRange,
    Fallocate::ZeroRangeKeepSize,
    Fallocate::CollapseRange,
    Fallocate::InsertRange,
];

/// A range in the file or near its end, mostly of whole allocation units.
fn range(rules: Rules, size: u64, random: &mut Rng) -> Range<u64> {
    let unit = rules.unit_bytes;
    let (mut offset, mut len) = (
        below(random, size.clamp(1, 200_000)),
        1 + below(random, rules.most_bytes.min(60_000)),
    );
    if random.happens(7, 8) {
        offset -= offset % unit;
        len += unit - len % unit;
    }
    offset..offset + len
}

fn change_attributes(model: &Model, random: &mut Rng) -> Option<Call> {
    // The permissions of symbolic links have no meaning and are not changed.
    let fits = |node: &Node| !matches!(node.kind, Kind::Symlink(_));
    let node = pick(model, random, fits)?;
    let seconds = |random: &mut Rng| i64::from(below_u32(random, 1 << 31));
    Some(match random.below(10) {
        0..=2 => Call::Chmod(node, bits16(random, 0o7777)),
        3 | 4 => Call::Chown {
            node,
            uid: below_u32(random, 1 << 31),
            gid: below_u32(random, 70_000),
        },
        5 | 6 => Call::Touch {
            node,
            atime: seconds(random),
            mtime: seconds(random),
        },
        7 if model.rules.has_projects && random.happens(1, 2) => {
            Call::SetProject(node, below_u32(random, 3))
        }
        _ => {
            let wish = InodeFlags::from_bits_retain(below_u32(random, u32::MAX));
            let mut wish = wish & Model::FLAGS;
            if !model.rules.has_projects || random.happens(3, 4) {
                wish -= InodeFlags::PROJINHERIT_FL;
            }
            let file_type = model.node(node).file_type();
            Call::SetFlags(node, wish.of_type(file_type))
        }
    })
}

fn change_xattrs(model: &Model, random: &mut Rng) -> Option<Call> {
    let fits = |node: &Node| node.is_file() || node.is_dir();
    let node = pick(model, random, fits)?;
    if random.happens(1, 5) {
        let which = *random.pick(&[Which::Access, Which::Access, Which::Default]);
        let list = random.happens(2, 3).then(|| Acl {
            owner: bits16(random, 7),
            named: bits16(random, 7),
            group: bits16(random, 7),
            mask: bits16(random, 7),
            others: bits16(random, 7),
        });
        return Some(Call::SetAcl(node, which, list));
    }
    let prefix = *random.pick(&["user", "user", "trusted"]);
    let name = format!("{prefix}.{}", random.below(5)).into_bytes();
    if random.happens(1, 3) {
        return Some(Call::RemoveXattr(node, name));
    }
    let len = *random.pick(&[0, 4, 30, 100, 400]) + random.below(10);
    // Long values are in a block. They are few, so that inodes share blocks.
    let is_long = len >= 400;
    let (len, values) = if is_long { (400, 2) } else { (len, 200) };
    let name = if is_long { b"user.0".to_vec() } else { name };
    let how = *random.pick(&[
        SetXattr::Any,
        SetXattr::Any,
        SetXattr::Create,
        SetXattr::Replace,
    ]);
    let value = vec![u8::try_from(random.below(200) % values).unwrap_or(0); len];
    Some(Call::SetXattr {
        node,
        name,
        value,
        how,
    })
}

//! **Purpose.** Random calls on a few names in a few directories, of which many are an fsync or
//! fdatasync of a single file: histories in which fast commits can be made.
//!
//! **Model.** A call is derived from a number and the state of the model, as in the histories of
//! `crate::model`. There are so few names that each comes and goes often, and that renames often
//! have a victim.

use std::ops::Range;

use fourscore::{Fallocate, SetXattr};
use fourscore_testkit::explore::Rng;

use crate::model::{Call, Content, How, Id, Model, NewKind, Node, Owner, Place, Whole};

/// The names that are used in each directory, beside those that are there at first.
const NAMES: [&[u8]; 5] = [b"f", b"g", b"p", b"q", b"r"];
/// The names of new directories.
const DIRECTORIES: [&[u8]; 3] = [b"d", b"e", b"empty"];
/// The most files that are open at once.
const MOST_OPEN: usize = 3;
/// The largest size of a file, in bytes.
const MOST_BYTES: u64 = 24_000;

const OWNER: Owner = Owner {
    permissions: 0o644,
    umask: 0,
    uid: 1,
    gid: 2,
};

/// Derives a call from a number.
pub(super) fn draw(model: &Model, number: u64) -> Option<Call> {
    let random = &mut Rng::new(number);
    match random.below(100) {
        0..=10 => Some(Call::Make(free_name(model, random)?, NewKind::File, OWNER)),
        11..=16 => {
            let id = pick(model, random, Node::is_file)?;
            Some(Call::Link(id, free_name(model, random)?))
        }
        17..=24 => Some(Call::Unlink(named_file(model, random)?)),
        25..=33 => rename(model, random),
        34..=52 => change_data(model, random),
        53..=59 => change_attributes(model, random),
        60..=66 => change_directories(model, random),
        67..=70 => open_or_close(model, random),
        71..=86 => pick(model, random, Node::is_file).map(Call::Fsync),
        87..=95 => pick(model, random, Node::is_file).map(Call::Fdatasync),
        96..=98 => directory(model, random).map(Call::Fsync),
        _ => Some(Call::Whole(Whole::Sync)),
    }
}

/// A random inode that fits.
fn pick(model: &Model, random: &mut Rng, fits: impl Fn(&Node) -> bool) -> Option<Id> {
    let fitting = model.nodes().filter(|(_, node)| fits(node));
    let fitting: Vec<Id> = fitting.map(|(id, _)| id).collect();
    (!fitting.is_empty()).then(|| *random.pick(&fitting))
}

fn directory(model: &Model, random: &mut Rng) -> Option<Id> {
    pick(model, random, |node| node.is_dir() && node.links > 0)
}

/// One of the few names in a directory, in use or not.
fn any_name(model: &Model, random: &mut Rng) -> Option<Place> {
    Some(Place {
        dir: directory(model, random)?,
        name: random.pick(&NAMES).to_vec(),
    })
}

fn free_name(model: &Model, random: &mut Rng) -> Option<Place> {
    let mut places = (0..4).filter_map(|_| any_name(model, random));
    places.find(|place| model.lookup(place).is_none())
}

/// A name of a regular file; more often one of several names.
fn named_file(model: &Model, random: &mut Rng) -> Option<Place> {
    let mut names = Vec::new();
    for (dir, node) in model.nodes() {
        for (name, &id) in node.entries().into_iter().flatten() {
            let file = model.node(id);
            let weight = match file.links {
                _ if !file.is_file() => 0,
                1 => 1,
                _ => 3,
            };
            let name = name.clone();
            names.extend(vec![Place { dir, name }; weight]);
        }
    }
    (!names.is_empty()).then(|| random.pick(&names).clone())
}

fn rename(model: &Model, random: &mut Rng) -> Option<Call> {
    let from = named_file(model, random)?;
    let (to, how) = match random.below(8) {
        0..=2 => (free_name(model, random)?, How::Replace),
        3..=5 => (named_file(model, random)?, How::Replace),
        6 => (named_file(model, random)?, How::Exchange),
        _ => (free_name(model, random)?, How::Whiteout(OWNER)),
    };
    Some(Call::Rename(from, to, how))
}

fn up_to(random: &mut Rng, most: u64) -> u64 {
    random.bits() % most.max(1)
}

fn tag(random: &mut Rng) -> u8 {
    u8::try_from(random.bits() & 0xff).unwrap_or(0)
}

/// A range of whole blocks near the data of a file.
fn blocks(model: &Model, random: &mut Rng) -> Range<u64> {
    let unit = model.rules.unit_bytes;
    let first = up_to(random, MOST_BYTES / unit);
    first * unit..(first + 1 + up_to(random, 4)) * unit
}

fn change_data(model: &Model, random: &mut Rng) -> Option<Call> {
    let node = pick(model, random, Node::is_file)?;
    let size = model.node(node).content().map_or(0, Content::size);
    let range = blocks(model, random);
    Some(match random.below(20) {
        0..=6 if size < MOST_BYTES => Call::Append {
            node,
            len: 1 + up_to(random, 5_000),
            tag: tag(random),
        },
        0..=11 => Call::Write {
            node,
            offset: up_to(random, size),
            len: 1 + up_to(random, 3_000),
            tag: tag(random),
        },
        12 | 13 => Call::Fallocate(node, Fallocate::Allocate, range),
        14 | 15 => Call::Fallocate(node, Fallocate::AllocateKeepSize, range),
        16 => Call::Fallocate(node, Fallocate::PunchHole, range),
        17 => Call::Fallocate(node, Fallocate::ZeroRange, range),
        _ => Call::Truncate(node, up_to(random, size + 2_000)),
    })
}

fn change_attributes(model: &Model, random: &mut Rng) -> Option<Call> {
    let fits: fn(&Node) -> bool = match random.happens(1, 8) {
        true => |node| node.is_dir() && node.links > 0,
        false => Node::is_file,
    };
    let node = pick(model, random, fits)?;
    let number = u32::try_from(up_to(random, 1 << 16)).unwrap_or(0);
    Some(match random.below(7) {
        0 | 1 => Call::Chmod(node, *random.pick(&[0o600, 0o644, 0o755, 0o4711])),
        2 => Call::Chown {
            node,
            uid: number,
            gid: 3,
        },
        3 | 4 => Call::Touch {
            node,
            atime: i64::from(number),
            mtime: 7,
        },
        5 => Call::RemoveXattr(node, b"user.a".to_vec()),
        _ => {
            let (tag, len) = (tag(random), *random.pick(&[4, 30, 200]));
            // Values that are in a block are few, so that inodes share blocks.
            let byte = if len == 200 { tag % 2 } else { tag };
            Call::SetXattr {
                node,
                name: b"user.a".to_vec(),
                value: vec![byte; len],
                how: SetXattr::Any,
            }
        }
    })
}

fn change_directories(model: &Model, random: &mut Rng) -> Option<Call> {
    let dir = directory(model, random)?;
    let name = random.pick(&DIRECTORIES).to_vec();
    let place = Place { dir, name };
    Some(match model.lookup(&place) {
        None => {
            let owner = Owner {
                permissions: 0o755,
                ..OWNER
            };
            Call::Make(place, NewKind::Directory, owner)
        }
        Some(_) if random.happens(1, 2) => Call::Rmdir(place),
        Some(_) => {
            let to = Place {
                dir: directory(model, random)?,
                name: random.pick(&DIRECTORIES).to_vec(),
            };
            Call::Rename(place, to, How::Replace)
        }
    })
}

fn open_or_close(model: &Model, random: &mut Rng) -> Option<Call> {
    let open = model.opened();
    let linkable = |node: &Node| node.is_linkable;
    if let Some(id) = pick(model, random, linkable)
        && random.happens(1, 2)
    {
        return Some(Call::Link(id, free_name(model, random)?));
    }
    if open.len() >= MOST_OPEN || !open.is_empty() && random.happens(2, 5) {
        return Some(Call::Close(*random.pick(&open)));
    }
    match random.happens(1, 2) {
        true => Some(Call::MakeUnnamed(directory(model, random)?, OWNER)),
        false => pick(model, random, |node| node.is_file() && node.links > 0).map(Call::Open),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fourscore_testkit::require;
    use fourscore_testkit::tools::Need;

    use super::super::base::Base;
    use super::super::workload::Workload;
    use super::*;

    /// All kinds of calls succeed often, and many are fsyncs of files.
    #[test]
    fn all_kinds_of_calls_are_drawn_and_succeed() {
        require!(Need::Program("mke2fs"));
        let base = Base::of(Workload::of(0).shape).unwrap();
        let (mut kinds, mut done, mut syncs) = (BTreeSet::new(), 0, 0);
        for history in 0..40 {
            let mut model = base.models[0].clone();
            let numbers = &mut Rng::new(history);
            for _ in 0..60 {
                let Some(call) = draw(&model, numbers.bits()) else {
                    continue;
                };
                if model.apply(&call).is_done() {
                    done += 1;
                    syncs += u64::from(matches!(call, Call::Fsync(_) | Call::Fdatasync(_)));
                    let shown = call.shown();
                    let end = shown.find(['(', ' ']).unwrap_or(shown.len());
                    kinds.insert(shown[..end].to_owned());
                }
            }
        }
        assert_eq!(kinds.len(), 19, "{kinds:?}");
        assert!(done > 1500 && syncs * 5 > done, "{done}, {syncs}");
    }
}

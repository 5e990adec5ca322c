//! Sharing against freeing, against eviction and against moves in the opposite direction, on whole
//! file systems, in many interleavings. Each step of the protocol is left out once, and the tests
//! must detect that.
//!
//! **Model.** A [`Scenario`] is a prepared file system, and what two or three tasks do with the
//! attributes of its files. For each interleaving it is mounted again from the same image. In the
//! end every block of attributes, and every inode of a value, must be in use and have as many users
//! as it counts.
//!
//! | module | responsibility |
//! |---|---|
//! | `values` | scenarios in which inodes of values are shared |

use std::collections::BTreeMap;

use fourscore_block::{BlockDevice, DeviceOptions, RamDevice, open_path};
use fourscore_journal::{Background, Batching, JournalOptions};
use fourscore_ondisk::xattr;
use fourscore_ondisk::{InodeNr, PhysBlock};
use fourscore_sync::{Arc, model, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::*;
use crate::group::change;
use crate::inode::cache;
use crate::{Follow, Fs, MountOptions, NewAttributes, OpenOptions, SetXattr};

/// How many interleavings are tried for a sound protocol.
const SCHEDULES: usize = 1000;
/// The limit of interleavings until a fault is found: the search ends at the first that shows it.
const SCHEDULES_OF_FAULTS: usize = 100_000;

const ROOT: InodeNr = InodeNr::ROOT;
const OWNER: NewAttributes = NewAttributes::owned_by(0, 0).permissions(0o755);
const FILES: [&str; 4] = ["a", "b", "c", "d"];
const NAME: &[u8] = b"user.attribute";

type Task = fn(&Fs);

/// What the inodes of a scenario share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shared {
    Blocks,
    /// The entries are in the inodes of the files, the values are in inodes of their own.
    Values,
}

#[derive(Clone, Copy)]
struct Scenario {
    shared: Shared,
    prepare: Task,
    /// Runs after mounting, before the tasks begin.
    begin: Task,
    tasks: &'static [Task],
    /// The files that have the value 1 in the end, and those that have the value 2.
    end: [&'static [&'static str]; 2],
}

fn mount(device: impl BlockDevice + 'static, fault: Option<Sabotage>) -> Arc<Fs> {
    let journal = JournalOptions {
        background: Background::None,
        // A deadline is infinitely far in the model.
        batching: Batching::Off,
        ..JournalOptions::default()
    };
    let options = MountOptions::new()
        .open(OpenOptions::new().cache_bytes(4 << 20))
        .journal(journal)
        .xattr_sharing(XattrSharing::On)
        .sabotage(fault);
    Fs::mount(Arc::new(device), &options).unwrap()
}

impl Scenario {
    /// Runs the scenario with `fault` in as many interleavings as needed.
    fn run(self, fault: Option<Sabotage>) {
        let image = Image::builder(MiB(4)).kind("ext4").block_size_bytes(1024);
        let image = match self.shared {
            Shared::Blocks => image,
            Shared::Values => image.inode_size_bytes(256).features(&["ea_inode"]),
        };
        let image = image.arguments(["-N", "64", "-m", "0"]).make().unwrap();
        let path = image.path().to_owned();
        model::once(move || {
            let device = open_path(&path, DeviceOptions::read_write()).unwrap();
            let fs = mount(device, None);
            for name in FILES {
                fs.create(ROOT, name.as_bytes(), &OWNER).unwrap();
            }
            (self.prepare)(&fs);
            fs.unmount().unwrap();
        });
        let path = image.path().to_owned();
        let schedules = fault.map_or(SCHEDULES, |_| SCHEDULES_OF_FAULTS);
        model::check_whole(schedules, move || {
            let base = open_path(&path, DeviceOptions::default()).unwrap();
            let fs = mount(RamDevice::over(Arc::new(base)), fault);
            (self.begin)(&fs);
            let running = self.tasks.iter().map(|task| {
                let fs = Arc::clone(&fs);
                thread::spawn(move || task(&fs))
            });
            let running: Vec<_> = running.collect();
            running
                .into_iter()
                .for_each(|task| task.join().expect("a task"));
            match self.shared {
                Shared::Blocks => check_blocks(&fs),
                Shared::Values => values::check(&fs),
            }
            for (byte, names) in (1..).zip(self.end) {
                for name in names {
                    let found = fs.xattr(at(&fs, name), NAME).unwrap();
                    assert_eq!(found, vec![byte; found.len()]);
                }
            }
        });
    }
}

fn at(fs: &Fs, name: &str) -> InodeNr {
    fs.resolve(name.as_bytes(), Follow::No).unwrap()
}

fn value(byte: u8) -> Vec<u8> {
    vec![byte; 300]
}

fn set(fs: &Fs, name: &str, byte: u8) {
    fs.set_xattr(at(fs, name), NAME, &value(byte), SetXattr::Any)
        .unwrap();
}

fn remove(fs: &Fs, name: &str) {
    fs.remove_xattr(at(fs, name), NAME).unwrap();
}

/// The blocks, or inodes of values, that the cache knows.
fn known_places(fs: &Fs) -> Vec<(ShareKey, u64)> {
    let known = &fs.writable().unwrap().sharing().unwrap().known;
    let mut places = Vec::new();
    known.for_each(|key, known| places.extend(known.places().iter().map(|place| (*key, *place))));
    places
}

/// Checks that each block is in use, and that its count is the number of files that have it.
fn check_blocks(fs: &Fs) {
    let mut users: BTreeMap<PhysBlock, u32> = BTreeMap::new();
    for name in FILES {
        let inode = cache::inode_copy(&fs.core, at(fs, name)).unwrap();
        if let Some(block) = inode.on_disk().file_acl() {
            *users.entry(block).or_default() += 1;
        }
    }
    let mount = fs.writable().unwrap();
    for (_, place) in known_places(fs) {
        let is_in_use = change::is_in_use(mount, PhysBlock(place)).unwrap();
        assert!(is_in_use, "a free block is known");
    }
    for (block, users) in users {
        let is_in_use = change::is_in_use(mount, block).unwrap();
        assert!(is_in_use, "an inode has a free block");
        let buffer = fs.core.buffers.load(block).unwrap();
        let counted = buffer.look(|bytes| xattr::users(bytes).unwrap());
        assert_eq!(counted, users, "the count of users");
    }
}

/// Has every entry evicted, as if others had taken its place.
fn evict(fs: &Fs) {
    let known = &fs.writable().unwrap().sharing().unwrap().known;
    let mut keys = Vec::new();
    known.for_each(|key, _| keys.push(*key));
    for key in keys {
        known.remove(&key);
    }
}

/// A block gets a user while it loses its last one.
const FREE: Scenario = Scenario {
    shared: Shared::Blocks,
    prepare: |fs| set(fs, "a", 1),
    // It is loaded, so it is known; and it was taken, so no plan looks into the bitmap again.
    begin: |fs| {
        assert_eq!(fs.xattr(at(fs, "a"), NAME).unwrap(), value(1));
        set(fs, "d", 1);
        remove(fs, "d");
    },
    tasks: &[
        |fs| set(fs, "b", 1),
        |fs| remove(fs, "a"),
        |fs| set(fs, "c", 2),
    ],
    end: [&["b"], &["c"]],
};

/// The same, when its entry is evicted before: so the last user has no entry to remove.
const EVICT: Scenario = Scenario {
    tasks: &[
        |fs| set(fs, "b", 1),
        |fs| {
            evict(fs);
            remove(fs, "a");
        },
    ],
    end: [&["b"], &[]],
    ..FREE
};

/// Two inodes move in opposite directions between two blocks that others use, too.
const OPPOSITE: Scenario = Scenario {
    shared: Shared::Blocks,
    prepare: |fs| {
        for (name, byte) in [("a", 1), ("b", 2), ("c", 1), ("d", 2)] {
            set(fs, name, byte);
        }
    },
    begin: |fs| {
        for name in FILES {
            fs.xattr(at(fs, name), NAME).unwrap();
        }
    },
    tasks: &[|fs| set(fs, "a", 2), |fs| set(fs, "b", 1)],
    end: [&["b", "c"], &["a", "d"]],
};

/// A block that a single inode has is changed in place while another inode looks for its content.
const CHANGE: Scenario = Scenario {
    tasks: &[
        |fs| set(fs, "b", 1),
        |fs| {
            set(fs, "a", 2);
            set(fs, "a", 1);
        },
        |fs| set(fs, "c", 2),
    ],
    end: [&["a", "b"], &["c"]],
    ..FREE
};

/// A reader loads a block and offers it while its last user leaves.
const OFFER: Scenario = Scenario {
    begin: |_| {},
    tasks: &[
        |fs| match fs.xattr(at(fs, "a"), NAME) {
            Ok(found) => assert_eq!(found, value(1)),
            Err(error) => assert_eq!(error.errno(), 61, "{error}"),
        },
        |fs| remove(fs, "a"),
        |fs| set(fs, "b", 1),
    ],
    end: [&["b"], &[]],
    ..FREE
};

/// A file inherits a list, in a new block, and another thread removes the list at once.
const CREATE: Scenario = Scenario {
    shared: Shared::Blocks,
    prepare: |fs| {
        let list = acl(40);
        let name = b"system.posix_acl_default";
        fs.set_xattr(ROOT, name, &list, SetXattr::Any).unwrap();
    },
    begin: |_| {},
    tasks: &[
        |fs| {
            // Its list differs from the one that the directory has.
            let own = NewAttributes::owned_by(0, 0).permissions(0o700);
            fs.create(ROOT, b"new", &own).unwrap();
        },
        |fs| {
            if let Ok(new) = fs.resolve(b"new", Follow::No) {
                fs.remove_xattr(new, b"system.posix_acl_access").unwrap();
            }
        },
    ],
    end: [&[], &[]],
};

/// A list with `named` entries for users, in the form of the system calls.
fn acl(named: u32) -> Vec<u8> {
    let named = (0..named).map(|id| (2, 7, id));
    let entries = [(1, 7, u32::MAX)].into_iter().chain(named);
    let entries = entries.chain([4, 16, 32].map(|tag| (tag, 5, u32::MAX)));
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(u16::to_le_bytes(tag));
        list.extend(u16::to_le_bytes(permissions));
        list.extend(u32::to_le_bytes(id));
    }
    list
}

/// A test of a sound protocol, and a test that expects a failure when a step is left out.
macro_rules! tests {
    ($($sound:ident: $scenario:ident, $broken:ident: $fault:ident, $expected:literal;)*) => { $(
        #[test]
        fn $sound() {
            require!(Need::Program("mke2fs"));
            $scenario.run(None);
        }

        #[test]
        #[should_panic(expected = $expected)]
        fn $broken() {
            if !Need::Program("mke2fs").is_met() {
                panic!($expected);
            }
            $scenario.run(Some(Sabotage::$fault));
        }
    )* };
}

// Behind the macro, which it uses.
mod values;

tests! {
    a_block_that_loses_its_last_user_gets_no_other: FREE,
        a_freed_block_that_stays_known_is_found: FreedStaysKnown, "a free block";
    a_block_whose_entry_was_evicted_is_not_taken: EVICT,
        a_block_that_is_taken_unseen_is_found: TakenUnseen, "a free block";
    inodes_move_between_two_blocks_in_both_directions: OPPOSITE,
        locks_in_the_order_of_the_move_are_found: UnorderedXattrLocks, "out of order";
    a_block_that_is_offered_while_its_last_user_leaves_is_not_taken: OFFER,
        a_block_that_a_reader_offers_without_its_lock_is_found: OfferedUnlocked, "a free block";
    a_block_of_a_new_inode_is_not_known_after_it_was_freed: CREATE,
        a_block_that_is_offered_without_its_lock_is_found: OfferedUnlocked, "a free block";
}

#[test]
#[should_panic(expected = "a free block")]
fn an_offered_block_that_stays_known_is_found() {
    if !Need::Program("mke2fs").is_met() {
        panic!("a free block");
    }
    OFFER.run(Some(Sabotage::FreedStaysKnown));
}

#[test]
fn a_block_that_is_changed_in_place_is_not_taken_for_its_old_content() {
    require!(Need::Program("mke2fs"));
    CHANGE.run(None);
}

#[test]
fn a_value_that_loses_its_last_user_gets_no_other() {
    require!(Need::Program("mke2fs"));
    values::FREE.run(None);
}

//! The records of units, and what is left out.

use fourscore_ondisk::extent::ExtentState;
use fourscore_ondisk::{InodeNr, LogicalBlock, PhysBlock};

use super::*;
use crate::txn::fast_commit::note::{Notes, Room, Space};

const DIR: InodeNr = InodeNr(2);

/// A unit under construction.
#[derive(Default)]
struct Made(Notes);

impl Made {
    fn image(self, nr: u32) -> Self {
        self.with_image(nr, Life::Existing)
    }

    fn new_inode(self, nr: u32) -> Self {
        self.with_image(nr, Life::New)
    }

    fn with_image(mut self, nr: u32, life: Life) -> Self {
        let bytes = self.0.keep(&[7; 160]);
        let nr = InodeNr(nr);
        self.0.push(Note::Image { nr, life, bytes });
        self
    }

    fn added(self, name: &str, nr: u32) -> Self {
        self.added_in(DIR.0, name, nr, Room::none())
    }

    fn added_in(mut self, dir: u32, name: &str, nr: u32, room: Room) -> Self {
        let name = self.0.keep(name.as_bytes());
        self.0.push(Note::Added {
            dir: InodeNr(dir),
            nr: InodeNr(nr),
            name,
            room,
        });
        self
    }

    fn removed(self, name: &str, nr: u32) -> Self {
        self.removed_in(DIR.0, name, nr, 16)
    }

    fn removed_in(mut self, dir: u32, name: &str, nr: u32, freed: u32) -> Self {
        let name = self.0.keep(name.as_bytes());
        self.0.push(Note::Removed {
            dir: InodeNr(dir),
            nr: InodeNr(nr),
            name,
            space: Space::All,
            freed,
        });
        self
    }

    fn range(mut self, nr: u32, logical: u32, blocks: u32) -> Self {
        let extent = Extent {
            logical: LogicalBlock(logical),
            physical: PhysBlock(1000 + u64::from(logical)),
            blocks,
            state: ExtentState::Written,
        };
        let nr = InodeNr(nr);
        self.0.push(Note::Range { nr, extent });
        self
    }

    fn taint(mut self, nr: u32) -> Self {
        self.0.push(Note::Taint {
            nr: InodeNr(nr),
            why: Reason::Xattr,
        });
        self
    }

    fn taint_all(mut self) -> Self {
        let why = Reason::LastName;
        self.0.push(Note::TaintAll { why });
        self
    }
}

fn unit() -> Made {
    Made::default()
}

/// The records of the units, each in a few words.
fn records(units: &[Made], taints: &mut Taints) -> Vec<String> {
    records_from(units, taints, None)
}

/// The same, if the first record is to be of an inode from `first` on.
fn records_from(units: &[Made], taints: &mut Taints, first: Option<u32>) -> Vec<String> {
    let mut list = Units::default();
    for (clock, made) in (1..).zip(units) {
        list.push(clock, &made.0);
    }
    let (lists, mut objects) = ([list], Objects::default());
    let mut net = Net::new(&lists, units.len(), &mut objects, Faults::default());
    for place in &lists[0].places {
        let _ = net.add(0, place, taints);
    }
    net.settle(taints, &mut Reasons::default());
    let mut records = Vec::new();
    let first = first.map(|first| move |nr: InodeNr| nr.0 >= first);
    let first = first
        .as_ref()
        .map(|first| first as &dyn Fn(InodeNr) -> bool);
    let is_possible = net.records(first, |record| {
        let name = |what: &str, dentry: &Dentry<'_>| {
            let name = String::from_utf8_lossy(dentry.name);
            format!("{what} {name} {}", dentry.inode.0)
        };
        records.push(match record {
            Record::Inode { inode, .. } => format!("inode {}", inode.0),
            Record::AddRange(range) => {
                format!(
                    "range {} {}+{}",
                    range.inode.0, range.logical.0, range.blocks
                )
            }
            Record::Creat(dentry) => name("creat", dentry),
            Record::Link(dentry) => name("link", dentry),
            Record::Unlink(dentry) => name("unlink", dentry),
            other => format!("{other:?}"),
        });
    });
    assert_eq!(is_possible, first.is_none() || !records.is_empty());
    records
}

fn alone(units: &[Made]) -> Vec<String> {
    records(units, &mut Taints::default())
}

#[test]
fn a_new_file_precedes_its_name_and_its_blocks_are_counted() {
    let units = [
        unit().new_inode(12).added("file", 12),
        unit().range(12, 0, 3).image(12),
        unit().range(12, 3, 1).image(12),
    ];
    let expected = ["inode 12", "range 12 0+4", "inode 12", "creat file 12"];
    assert_eq!(alone(&units), expected);
}

#[test]
fn of_a_name_only_the_net_effect_is_recorded() {
    let renamed = |from, to| unit().removed(from, 12).added(to, 12).image(12);
    let units = [renamed("a", "b"), renamed("b", "c")];
    assert_eq!(alone(&units), ["link c 12", "unlink a 12", "inode 12"]);
    let back = [renamed("a", "b"), renamed("b", "a")];
    assert_eq!(alone(&back), ["inode 12"]);
    let new = [
        unit().new_inode(12).added("tmp", 12),
        unit().added("other", 12).image(12),
        unit().removed("tmp", 12).image(12),
    ];
    assert_eq!(alone(&new), ["inode 12", "creat other 12"]);
}

#[test]
fn a_name_is_given_to_another_inode_after_it_was_removed() {
    let units = [
        unit().removed("log", 12).added("log.1", 12).image(12),
        unit().new_inode(13).added("log", 13),
    ];
    let expected = [
        "inode 13",
        "link log.1 12",
        "unlink log 12",
        "creat log 13",
        "inode 12",
    ];
    assert_eq!(alone(&units), expected);
}

/// The names would have to be recorded in a circle, or an inode would be without a name in between.
#[test]
fn names_that_no_order_allows_are_tainted() {
    let renamed = |from, to, nr| unit().removed(from, nr).added(to, nr).image(nr);
    let swapped = [
        renamed("a", "tmp", 12),
        renamed("b", "a", 13),
        renamed("tmp", "b", 12),
    ];
    let mut taints = Taints::default();
    assert_eq!(records(&swapped, &mut taints), [""; 0]);
    assert!(taints.include(InodeNr(12)) && taints.include(InodeNr(13)));
    let rotated = [renamed("log.1", "log.2", 12), renamed("log", "log.1", 13)];
    assert_eq!(alone(&rotated), [""; 0]);
}

#[test]
fn taint_spreads_to_what_is_connected_and_to_nothing_else() {
    let mut taints = Taints::default();
    let units = [
        unit().new_inode(12).added("one", 12),
        unit().new_inode(13).added("two", 13),
        unit().added("one too", 12).image(12),
        unit().taint(12),
    ];
    assert_eq!(records(&units, &mut taints), ["inode 13", "creat two 13"]);
    assert!(taints.include(InodeNr(12)) && !taints.include(InodeNr(13)));
    // The directory has a name that is not recorded.
    assert!(taints.include(DIR) && !taints.include(InodeNr(3)));
    // What touches the tainted later is not recorded, the directory's other names are.
    let later = [
        unit().removed("one", 12).image(12),
        unit().new_inode(14).added("one", 14),
        unit().new_inode(15).added("three", 15),
    ];
    assert_eq!(records(&later, &mut taints), ["inode 15", "creat three 15"]);
    assert!(taints.include(InodeNr(14)));
}

#[test]
fn names_in_a_tainted_directory_are_not_recorded() {
    let mut taints = Taints::default();
    let units = [
        unit().new_inode(11).added_in(3, "before", 11, Room::none()),
        unit().taint(3),
        unit().new_inode(12).added_in(3, "after", 12, Room::none()),
    ];
    assert_eq!(
        records(&units, &mut taints),
        ["inode 11", "creat before 11"]
    );
    assert!(taints.include(InodeNr(12)) && !taints.include(InodeNr(11)));
}

#[test]
fn a_tainted_unit_taints_its_names() {
    let mut taints = Taints::default();
    let units = [
        unit().removed("gone", 12).taint(12).taint_all(),
        unit().new_inode(13).added("gone", 13),
    ];
    assert_eq!(records(&units, &mut taints), [""; 0]);
    assert!(taints.include(InodeNr(13)));
}

#[test]
fn what_a_fast_commit_has_recorded_is_the_state_before_the_next() {
    let mut taints = Taints::default();
    let first = [unit().new_inode(12).added("file", 12).range(12, 0, 1)];
    let expected = ["inode 12", "range 12 0+1", "inode 12", "creat file 12"];
    assert_eq!(records(&first, &mut taints), expected);
    let second = [
        unit().range(12, 1, 1).image(12),
        unit().removed("file", 12).added("name", 12).image(12),
    ];
    let expected = ["link name 12", "unlink file 12", "range 12 1+1", "inode 12"];
    assert_eq!(records(&second, &mut taints), expected);
    // An inode that is tainted after it was recorded stays as it was recorded.
    assert_eq!(records(&[unit().taint(12)], &mut taints), [""; 0]);
    assert!(taints.include(InodeNr(12)) && !taints.include(DIR));
}

#[test]
fn a_name_is_recorded_only_if_it_has_space_without_what_was_removed() {
    let room = |gap, needed| Room {
        space: Space::All,
        gap,
        needed,
    };
    let mut taints = Taints::default();
    // The free space of 100 bytes came of the removed name for the most part.
    let units = [
        unit().removed_in(3, "old", 12, 80).image(12),
        unit().new_inode(13).added_in(3, "small", 13, room(100, 20)),
        unit().new_inode(14).added_in(3, "large", 14, room(80, 24)),
    ];
    let expected = ["inode 13", "creat small 13", "unlink old 12", "inode 12"];
    assert_eq!(records(&units, &mut taints), expected);
    assert!(taints.include(InodeNr(14)));
    // Names that were recorded before take space as well.
    let next = [unit().new_inode(15).added_in(4, "a", 15, room(100, 60))];
    assert_eq!(records(&next, &mut taints), ["inode 15", "creat a 15"]);
    let next = [unit().new_inode(16).added_in(4, "b", 16, room(100, 60))];
    assert_eq!(records(&next, &mut taints), [""; 0]);
}

#[test]
fn the_first_record_is_of_an_inode_that_may_be_the_first() {
    let units = || {
        [
            unit().new_inode(12).added("file", 12),
            unit().added("name", 20).image(20),
        ]
    };
    let from = |first| records_from(&units(), &mut Taints::default(), Some(first));
    let rest = ["inode 12", "creat file 12", "link name 20", "inode 20"];
    assert_eq!(from(17), [&["inode 20"], &rest[..]].concat());
    assert_eq!(from(21), [""; 0]);
}

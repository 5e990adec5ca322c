//! Which changes of slots are recorded.

use fourscore_ondisk::xattr::{MAGIC, NameIndex, RawEntry};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

use super::*;

/// A regular file of 4000 bytes with an extent tree, in a slot of 256 bytes.
fn file() -> (RawInode, RawInodeExtra) {
    let mut raw = RawInode::new_zeroed();
    raw.i_mode = U16::new(0o100_644);
    raw.i_links_count = U16::new(1);
    raw.i_flags = U32::new(InodeFlags::EXTENTS_FL.bits());
    raw.i_size_lo = U32::new(4000);
    let mut extra = RawInodeExtra::new_zeroed();
    extra.i_extra_isize = U16::new(32);
    (raw, extra)
}

fn slot(change: impl FnOnce(&mut RawInode, &mut RawInodeExtra)) -> Vec<u8> {
    let (mut raw, mut extra) = file();
    change(&mut raw, &mut extra);
    let mut bytes = [raw.as_bytes(), extra.as_bytes()].concat();
    bytes.resize(256, 0);
    bytes
}

fn of_change(change: impl FnOnce(&mut RawInode, &mut RawInodeExtra)) -> Verdict {
    of(&slot(|_, _| ()), &slot(change))
}

/// The verdict on an inode that exists, without ranges or names beside it.
fn of(old: &[u8], new: &[u8]) -> Verdict {
    verdict(old, new, Life::Existing, Beside::default())
}

const IMAGE: Verdict = Verdict::Image { len: 160 };

#[test]
fn fields_of_files_are_recorded() {
    let is_recorded = |change: fn(&mut RawInode, &mut RawInodeExtra)| {
        assert_eq!(of_change(change), IMAGE);
    };
    is_recorded(|raw, _| raw.i_size_lo = U32::new(5000));
    is_recorded(|raw, _| raw.i_mode = U16::new(0o100_600));
    is_recorded(|raw, _| raw.i_uid_high = U16::new(1));
    is_recorded(|raw, _| raw.i_links_count = U16::new(2));
    is_recorded(|_, extra| extra.i_projid = U32::new(9));
}

#[test]
fn what_replay_would_not_restore_is_tainted() {
    let is_tainted = |why, change: fn(&mut RawInode, &mut RawInodeExtra)| {
        assert_eq!(of_change(change), Verdict::Tainted(why));
    };
    is_tainted(Reason::Xattr, |raw, _| raw.i_file_acl_lo = U32::new(77));
    is_tainted(Reason::Xattr, |_, extra| extra.i_extra_isize = U16::new(36));
    is_tainted(Reason::LastName, |raw, _| raw.i_links_count = U16::new(0));
    is_tainted(Reason::Fields, |raw, _| raw.i_dtime = U32::new(5));
    is_tainted(Reason::Fields, |raw, _| raw.i_generation = U32::new(5));
    is_tainted(Reason::Flags, |raw, _| {
        raw.i_flags = U32::new((InodeFlags::EXTENTS_FL | InodeFlags::NODUMP_FL).bits());
    });
    is_tainted(Reason::Kind, |raw, _| {
        raw.i_flags = U32::new((InodeFlags::EXTENTS_FL | InodeFlags::INLINE_DATA_FL).bits());
    });
    is_tainted(Reason::Kind, |raw, _| raw.i_flags = U32::new(0));
    is_tainted(Reason::Kind, |raw, _| raw.i_mode = U16::new(0o120_777));
    is_tainted(Reason::Kind, |raw, _| raw.i_mode = U16::new(0o010_644));
    is_tainted(Reason::RangeOperation, |raw, _| raw.i_size_lo = U32::new(3));
    is_tainted(Reason::RangeOperation, |raw, _| raw.i_block[20] = 1);
    let deep = slot(|raw, _| raw.i_block[6] = 1);
    let mapping = Beside {
        maps_blocks: true,
        ..Beside::default()
    };
    let of_mapping = verdict(&deep, &deep, Life::Existing, mapping);
    assert_eq!(of_mapping, Verdict::Tainted(Reason::DeepTree));
    assert_eq!(of(&deep, &deep), IMAGE);
    let mut with_attribute = slot(|_, _| ());
    with_attribute[200] = 1;
    let before = slot(|_, _| ());
    for (old, new) in [(&before, &with_attribute), (&with_attribute, &before)] {
        assert_eq!(of(old, new), Verdict::Tainted(Reason::Xattr));
    }
    // They stay as they are.
    assert_eq!(of(&with_attribute, &with_attribute), IMAGE);
    let journaling = Beside {
        journals: true,
        ..Beside::default()
    };
    let journaled = verdict(&before, &before, Life::Existing, journaling);
    assert_eq!(journaled, Verdict::Tainted(Reason::JournaledData));
}

/// A file with the attribute `user.a` behind its fields.
fn with_entry(change: impl FnOnce(&mut RawEntry)) -> Vec<u8> {
    let mut entry = RawEntry::new_zeroed();
    entry.e_name_len = 1;
    entry.e_name_index = NameIndex::USER.0;
    entry.e_value_offs = U16::new(80);
    entry.e_value_size = U32::new(4);
    change(&mut entry);
    let mut bytes = slot(|_, _| ());
    let area = [&MAGIC.to_le_bytes()[..], entry.as_bytes(), b"a"].concat();
    bytes[160..160 + area.len()].copy_from_slice(&area);
    bytes
}

/// Replay counts the blocks of the map alone, and an inode is charged for its values elsewhere.
#[test]
fn a_file_whose_value_is_in_an_inode_is_tainted() {
    let is_tainted = |change: fn(&mut RawEntry)| {
        let bytes = with_entry(change);
        assert_eq!(of(&bytes, &bytes), Verdict::Tainted(Reason::Xattr));
    };
    let here = with_entry(|_| ());
    assert_eq!(of(&here, &here), IMAGE);
    is_tainted(|entry| {
        entry.e_value_inum = U32::new(13);
        entry.e_value_size = U32::new(5000);
    });
    // A damaged entry may have one.
    is_tainted(|entry| entry.e_name_len = 200);
    is_tainted(|entry| entry.e_value_offs = U16::new(5000));
}

#[test]
fn a_new_file_needs_a_slot_without_old_attributes() {
    let new = slot(|_, _| ());
    let mut old = vec![0; 256];
    let of_new = |old: &[u8]| verdict(old, &new, Life::New, Beside::default());
    assert_eq!(of_new(&old), IMAGE);
    old[10] = 7;
    assert_eq!(of_new(&old), IMAGE);
    old[200] = 7;
    assert_eq!(of_new(&old), Verdict::Tainted(Reason::Xattr));
}

#[test]
fn small_inodes_have_no_further_fields() {
    let small = |bytes: Vec<u8>| bytes[..128].to_vec();
    let (old, new) = (
        small(slot(|_, _| ())),
        small(slot(|raw, _| raw.i_size_lo = U32::new(9000))),
    );
    assert_eq!(of(&old, &new), Verdict::Image { len: 128 });
    // e2fsck refuses a record that is this short.
    let short = slot(|_, extra| extra.i_extra_isize = U16::new(0));
    assert_eq!(of(&short, &short), Verdict::Tainted(Reason::Fields));
}

const OF_DIRECTORY: Verdict = Verdict::Tainted(Reason::Directory);

fn dir(change: impl FnOnce(&mut RawInode, &mut RawInodeExtra)) -> Vec<u8> {
    slot(|raw, extra| {
        raw.i_mode = U16::new(0o040_755);
        raw.i_links_count = U16::new(2);
        change(raw, extra);
    })
}

/// The verdict on a change of a directory by a unit with names in it, and by one without.
fn of_dir(change: impl Fn(&mut RawInode, &mut RawInodeExtra)) -> [Verdict; 2] {
    [true, false].map(|changes_names| {
        let beside = Beside {
            changes_names,
            ..Beside::default()
        };
        verdict(&dir(|_, _| ()), &dir(&change), Life::Existing, beside)
    })
}

#[test]
fn what_names_change_of_a_directory_is_unsaid_beside_names() {
    let is_of_names = |change: fn(&mut RawInode, &mut RawInodeExtra)| {
        assert_eq!(of_dir(change), [Verdict::Unsaid, OF_DIRECTORY]);
    };
    is_of_names(|raw, _| raw.i_mtime = U32::new(9));
    is_of_names(|_, extra| extra.i_mtime_extra = U32::new(9));
    is_of_names(|raw, _| raw.i_ctime = U32::new(9));
    is_of_names(|_, extra| extra.i_ctime_extra = U32::new(9));
    is_of_names(|raw, _| raw.i_version = U32::new(9));
    is_of_names(|_, extra| extra.i_version_hi = U32::new(9));
    is_of_names(|raw, _| raw.i_links_count = U16::new(3));
}

#[test]
fn an_access_of_a_directory_is_unsaid() {
    let access = of_dir(|raw, extra| {
        raw.i_atime = U32::new(9);
        extra.i_atime_extra = U32::new(8);
        raw.i_checksum_lo = U16::new(7);
        extra.i_checksum_hi = U16::new(6);
    });
    assert_eq!(access, [Verdict::Unsaid; 2]);
    // That a program sets the time raises the version.
    let set = of_dir(|raw, _| {
        raw.i_atime = U32::new(9);
        raw.i_version = U32::new(1);
    });
    assert_eq!(set, [Verdict::Unsaid, OF_DIRECTORY]);
}

#[test]
fn whatever_else_changes_of_a_directory_is_tainted() {
    let is_tainted = |why, change: fn(&mut RawInode, &mut RawInodeExtra)| {
        assert_eq!(of_dir(change), [Verdict::Tainted(why); 2]);
    };
    let directory = Reason::Directory;
    is_tainted(directory, |raw, _| raw.i_mode = U16::new(0o040_700));
    is_tainted(directory, |raw, _| raw.i_gid = U16::new(5));
    is_tainted(directory, |raw, _| raw.i_generation = U32::new(5));
    is_tainted(directory, |_, extra| extra.i_projid = U32::new(5));
    is_tainted(directory, |_, extra| extra.i_crtime = U32::new(5));
    is_tainted(directory, |raw, _| raw.i_file_acl_lo = U32::new(77));
    is_tainted(directory, |raw, _| raw.i_links_count = U16::new(0));
    is_tainted(Reason::NoSpace, |raw, _| raw.i_size_lo = U32::new(8000));
    let same = dir(|_, _| ());
    let made = verdict(&same, &same, Life::New, Beside::default());
    assert_eq!(made, OF_DIRECTORY);
}

//! Which changes of slots are recorded.

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
    verdict(
        &slot(|_, _| ()),
        &slot(change),
        Life::Existing,
        false,
        false,
    )
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
    let of_deep = |maps_blocks| verdict(&deep, &deep, Life::Existing, maps_blocks, false);
    assert_eq!(of_deep(true), Verdict::Tainted(Reason::DeepTree));
    assert_eq!(of_deep(false), IMAGE);
    let mut with_attribute = slot(|_, _| ());
    with_attribute[200] = 1;
    let before = slot(|_, _| ());
    for (old, new) in [(&before, &with_attribute), (&with_attribute, &before)] {
        let tainted = verdict(old, new, Life::Existing, false, false);
        assert_eq!(tainted, Verdict::Tainted(Reason::Xattr));
    }
    // They stay as they are.
    let same = verdict(
        &with_attribute,
        &with_attribute,
        Life::Existing,
        false,
        false,
    );
    assert_eq!(same, IMAGE);
    let journaled = verdict(&before, &before, Life::Existing, false, true);
    assert_eq!(journaled, Verdict::Tainted(Reason::JournaledData));
}

#[test]
fn a_new_file_needs_a_slot_without_old_attributes() {
    let new = slot(|_, _| ());
    let mut old = vec![0; 256];
    assert_eq!(verdict(&old, &new, Life::New, false, false), IMAGE);
    old[10] = 7;
    assert_eq!(verdict(&old, &new, Life::New, false, false), IMAGE);
    old[200] = 7;
    let tainted = verdict(&old, &new, Life::New, false, false);
    assert_eq!(tainted, Verdict::Tainted(Reason::Xattr));
}

#[test]
fn small_inodes_have_no_further_fields() {
    let small = |bytes: Vec<u8>| bytes[..128].to_vec();
    let (old, new) = (
        small(slot(|_, _| ())),
        small(slot(|raw, _| raw.i_size_lo = U32::new(9000))),
    );
    let image = verdict(&old, &new, Life::Existing, false, false);
    assert_eq!(image, Verdict::Image { len: 128 });
    // e2fsck refuses a record that is this short.
    let short = slot(|_, extra| extra.i_extra_isize = U16::new(0));
    let tainted = verdict(&short, &short, Life::Existing, false, false);
    assert_eq!(tainted, Verdict::Tainted(Reason::Fields));
}

#[test]
fn of_directories_only_what_names_change_may_change() {
    let dir = |change: fn(&mut RawInode)| {
        slot(|raw, _| {
            raw.i_mode = U16::new(0o040_755);
            change(raw);
        })
    };
    let of = |old: &[u8], new: &[u8]| verdict(old, new, Life::Existing, false, false);
    let before = dir(|_| ());
    assert_eq!(
        of(&before, &dir(|raw| raw.i_mtime = U32::new(9))),
        Verdict::Unsaid
    );
    assert_eq!(
        of(&before, &dir(|raw| raw.i_links_count = U16::new(3))),
        Verdict::Unsaid
    );
    let tainted = Verdict::Tainted(Reason::Directory);
    assert_eq!(
        of(&before, &dir(|raw| raw.i_mode = U16::new(0o040_700))),
        tainted
    );
    assert_eq!(of(&before, &dir(|raw| raw.i_gid = U16::new(5))), tainted);
    assert_eq!(verdict(&before, &before, Life::New, false, false), tainted);
    let longer = dir(|raw| raw.i_size_lo = U32::new(8000));
    assert_eq!(of(&before, &longer), Verdict::Tainted(Reason::NoSpace));
}

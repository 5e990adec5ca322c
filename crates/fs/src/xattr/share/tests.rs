//! Tests of the cache by itself. With its plans it is tested in `tests/it/shared_xattrs.rs`.

use std::cell::Cell;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::xattr::{NameIndex, NewValue, XattrsMut};

use super::*;

fn sharing(budget_bytes: usize) -> Sharing {
    Sharing::new(XattrSharing::On, budget_bytes, Faults::default()).unwrap()
}

/// A block with attributes of the given names and values.
fn block(attributes: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut block = vec![0; 1024];
    let mut xattrs = XattrsMut::init_block(&mut block).unwrap();
    for (name, value) in attributes {
        let value = NewValue::Inline(value);
        xattrs.set(NameIndex::USER, name, &value).unwrap();
    }
    block
}

fn key(sharing: &Sharing, block: &[u8]) -> ShareKey {
    sharing.key_of_block(&SharedContent::of(block).unwrap())
}

fn found(sharing: &Sharing, key: ShareKey) -> Option<u64> {
    match sharing.look(Space::Enough, || key).0 {
        Look::Found(candidate) => Some(candidate.place()),
        Look::Absent(_) | Look::Bypassed => None,
    }
}

#[test]
fn a_key_is_made_of_names_and_values_and_not_of_their_places() {
    let sharing = sharing(1 << 16);
    let one = block(&[(b"a", b"first"), (b"b", b"second")]);
    let other_order = block(&[(b"b", b"second"), (b"a", b"first")]);
    assert_ne!(one, other_order, "the values lie elsewhere");
    assert_eq!(key(&sharing, &one), key(&sharing, &other_order));
    let different = [
        block(&[(b"a", b"first"), (b"b", b"secone")]),
        block(&[(b"a", b"firsts"), (b"b", b"econd")]),
        block(&[(b"a", b"first"), (b"c", b"second")]),
        block(&[(b"a", b"first")]),
    ];
    for other in different {
        assert_ne!(key(&sharing, &one), key(&sharing, &other));
        assert!(SharedContent::of(&one) != SharedContent::of(&other));
    }
    let value = |nr| {
        let mut block = vec![0; 1024];
        let value = NewValue::Inode {
            inode: InodeNr(nr),
            bytes: 5000,
            hash: 7,
        };
        let mut xattrs = XattrsMut::init_block(&mut block).unwrap();
        xattrs.set(NameIndex::USER, b"a", &value).unwrap();
        block
    };
    assert_ne!(key(&sharing, &value(20)), key(&sharing, &value(21)));
}

#[test]
fn a_place_is_found_until_it_ends() {
    let sharing = sharing(1 << 16);
    let key = key(&sharing, &block(&[(b"a", b"value")]));
    assert_eq!(found(&sharing, key), None);
    sharing.come(key, 77, Users::All);
    sharing.come(key, 78, Users::All);
    assert_eq!(found(&sharing, key), Some(77));
    sharing.end(key, 77);
    assert_eq!(found(&sharing, key), Some(78), "the spare place");
    sharing.leave(key, 78);
    assert_eq!(found(&sharing, key), None);
    sharing.come(key, 78, Users::All);
    assert_eq!(found(&sharing, key), Some(78), "it came back");
    sharing.end(key, 78);
    assert!(
        sharing.known.is_empty(),
        "an entry without places is removed"
    );
}

#[test]
fn a_candidate_is_valid_while_its_place_is_known() {
    let sharing = sharing(1 << 16);
    let key = key(&sharing, &block(&[(b"a", b"value")]));
    sharing.come(key, 77, Users::All);
    let Look::Found(candidate) = sharing.look(Space::Enough, || key).0 else {
        panic!("not found");
    };
    assert!(sharing.still_has(&candidate));
    sharing.end(key, 77);
    assert!(!sharing.still_has(&candidate));
    sharing.come(key, 79, Users::All);
    assert!(!sharing.still_has(&candidate), "another place");
}

/// The bitmap is looked into by the first plan that wants what a reader has found, and not again.
#[test]
fn what_a_reader_offers_is_proven_once() {
    for is_in_use in [true, false] {
        let sharing = sharing(1 << 16);
        let key = key(&sharing, &block(&[(b"a", b"value")]));
        sharing.come_unproven(key, 77);
        let Look::Found(candidate) = sharing.look(Space::Enough, || key).0 else {
            panic!("not found");
        };
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            Ok(is_in_use)
        };
        assert_eq!(sharing.has_proof(&candidate, look).unwrap(), is_in_use);
        assert_eq!(sharing.still_has(&candidate), is_in_use);
        assert!(sharing.has_proof(&candidate, look).unwrap());
        assert_eq!(looks.get(), 1, "in use: {is_in_use}");
    }
}

/// A look into the bitmap that fails proves nothing.
#[test]
fn a_proof_that_fails_is_looked_for_again() {
    let sharing = sharing(1 << 16);
    let key = key(&sharing, &block(&[(b"a", b"value")]));
    sharing.come_unproven(key, 77);
    let Look::Found(candidate) = sharing.look(Space::Enough, || key).0 else {
        panic!("not found");
    };
    let failed = sharing.has_proof(&candidate, || Err(crate::Error::NoSpace));
    assert!(failed.is_err());
    assert!(!sharing.has_proof(&candidate, || Ok(false)).unwrap());
    assert!(!sharing.still_has(&candidate));
}

#[test]
fn the_budget_is_kept() {
    let sharing = sharing(64 << 10);
    for nr in 0..10_000_u64 {
        sharing.come(sharing.key_of_value(7, nr), nr + 1, Users::All);
    }
    assert!(sharing.known.weight_bytes() <= 64 << 10);
    let stats = sharing.stats();
    assert_eq!(stats.offered, 10_000);
    assert!(stats.evictions > 9_000, "{stats:?}");
}

/// A core whose own place is used up waits for another; if there is no space for that, it takes one
/// that others use.
#[test]
fn a_core_makes_no_own_place_if_space_is_short() {
    let sharing = sharing(1 << 20);
    let key = key(&sharing, &block(&[(b"a", b"value")]));
    sharing.come(key, 77, Users::All);
    for core in (0..CoreNr::count()).filter_map(CoreNr::new) {
        sharing.come(key, 100 + core.index() as u64, Users::Own(core));
        sharing.leave(key, 100 + core.index() as u64);
    }
    assert_eq!(found(&sharing, key), None);
    let Look::Found(candidate) = sharing.look(Space::Short, || key).0 else {
        panic!("not found");
    };
    assert_eq!(candidate.place(), 77);
    assert!(!sharing.wants_own(&candidate, PER_OWN_PLACE, Space::Short));
}

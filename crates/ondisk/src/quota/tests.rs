//! Quota files are written and read back, and found by the kernel's way through the tree.

use proptest::prelude::*;

use super::*;

/// What the kernel finds for an identifier.
fn found_by_kernel(file: &[u8], id: u32) -> Option<QuotaCounts> {
    let mut block = ROOT_BLOCK;
    for slot in id.to_be_bytes() {
        block = word(file, slot_at(block, slot));
        if block == 0 {
            return None;
        }
    }
    let start = block as usize * QUOTA_BLOCK_BYTES;
    let (header, entries) = RawEntriesHeader::ref_from_prefix(&file[start..]).unwrap();
    let count = usize::from(header.dqdh_entries.get());
    let (entries, _) = <[RawEntry]>::ref_from_prefix_with_elems(entries, count).unwrap();
    let entry = entries.iter().find(|entry| entry.dqb_id.get() == id)?;
    Some(QuotaCounts {
        inodes: entry.dqb_curinodes.get(),
        bytes: entry.dqb_curspace.get(),
    })
}

fn read_back(kind: QuotaKind, file: &[u8]) -> Result<BTreeMap<u32, QuotaCounts>, QuotaFileError> {
    read(kind, block_count(file), &mut |number| {
        let start = number as usize * QUOTA_BLOCK_BYTES;
        file[start..start + QUOTA_BLOCK_BYTES].try_into().ok()
    })
}

proptest! {
    #[test]
    fn every_identifier_is_found_and_blocks_were_counted(
        ids in proptest::collection::btree_set(
            prop_oneof![0..3000u32, any::<u32>(), 0xffff_fff0..=u32::MAX], 0..200),
    ) {
        let usage: BTreeMap<u32, QuotaCounts> = ids
            .iter()
            .map(|&id| (id, QuotaCounts { inodes: 1 + u64::from(id), bytes: !u64::from(id) }))
            .collect();
        let file = write(QuotaKind::Group, &usage);
        prop_assert_eq!(file.len(), count_blocks(ids.iter().copied()) * QUOTA_BLOCK_BYTES);
        for id in 0..3010 {
            prop_assert_eq!(found_by_kernel(&file, id), usage.get(&id).copied());
        }
        for (&id, counts) in &usage {
            prop_assert_eq!(found_by_kernel(&file, id), Some(*counts));
        }
        let (header, _) = RawQuotaHeader::ref_from_prefix(&file).unwrap();
        let is_full = usage.len().is_multiple_of(ENTRIES_PER_BLOCK);
        prop_assert_eq!(header.dqi_free_entry.get() == 0, is_full);
        prop_assert_eq!(read_back(QuotaKind::Group, &file), Ok(usage));
    }
}

#[test]
fn broken_files_are_refused() {
    let usage = BTreeMap::from([
        (7, QuotaCounts::default()),
        (1 << 24, QuotaCounts::default()),
    ]);
    let sound = write(QuotaKind::User, &usage);
    let broken = |at: usize, value: u32| {
        let mut file = sound.clone();
        put(&mut file, at, &value.to_le_bytes());
        read_back(QuotaKind::User, &file).unwrap_err()
    };
    assert_eq!(
        read_back(QuotaKind::Group, &sound),
        Err(QuotaFileError::Magic)
    );
    assert_eq!(
        read_back(QuotaKind::User, &[]),
        Err(QuotaFileError::NoHeader)
    );
    assert_eq!(broken(4, 2), QuotaFileError::Version);
    assert_eq!(broken(20, 1000), QuotaFileError::Blocks);
    assert_eq!(
        broken(slot_at(ROOT_BLOCK, 9), 1000),
        QuotaFileError::Pointer
    );
    assert_eq!(
        broken(slot_at(ROOT_BLOCK, 9), 1),
        QuotaFileError::SharedNode
    );
}

#[test]
fn an_entry_that_its_own_path_does_not_lead_to_is_missing() {
    // Both have the same nodes, and two blocks of entries.
    let ids = 0..u32::try_from(ENTRIES_PER_BLOCK + 1).unwrap();
    let usage = ids.clone().map(|id| (id, QuotaCounts::default()));
    let mut file = write(QuotaKind::User, &usage.collect());
    let child = |file: &[u8], node: u32, slot: u8| {
        let at = slot_at(node, slot);
        u32::from_le_bytes(file[at..at + 4].try_into().unwrap())
    };
    let lowest = (1..TREE_LEVELS).fold(ROOT_BLOCK, |node, _| child(&file, node, 0));
    let other = child(&file, lowest, u8::try_from(ENTRIES_PER_BLOCK).unwrap());
    assert_ne!(child(&file, lowest, 0), other);
    put(&mut file, slot_at(lowest, 0), &other.to_le_bytes());
    let read = read_back(QuotaKind::User, &file);
    assert_eq!(read, Err(QuotaFileError::NotPresent));
}

#[test]
fn usage_is_added_up_and_saturates() {
    let mut usage = QuotaUsage::default();
    let ids = QuotaIds {
        user: 1,
        group: 2,
        project: 3,
    };
    let counts = QuotaCounts {
        inodes: 1,
        bytes: u64::MAX - 1,
    };
    usage.add(ids, counts);
    let other = usage.clone();
    usage.merge(&other);
    let expected = QuotaCounts {
        inodes: 2,
        bytes: u64::MAX,
    };
    assert_eq!(usage.of(QuotaKind::User), &BTreeMap::from([(1, expected)]));
    assert_eq!(
        usage.of(QuotaKind::Project),
        &BTreeMap::from([(3, expected)])
    );
}

fn insert_into(file: &mut Vec<u8>, id: u32) -> EntryAt {
    let inserted = {
        let read = |number: u32| -> Result<[u8; QUOTA_BLOCK_BYTES], u32> {
            let start = number as usize * QUOTA_BLOCK_BYTES;
            let bytes = file.get(start..start + QUOTA_BLOCK_BYTES);
            bytes.ok_or(number).map(|bytes| bytes.try_into().unwrap())
        };
        let read: &mut dyn FnMut(u32) -> _ = &mut { read };
        insert(id, read).unwrap()
    };
    file.resize(inserted.blocks as usize * QUOTA_BLOCK_BYTES, 0xee);
    for change in &inserted.changes {
        let at = change.block as usize * QUOTA_BLOCK_BYTES + change.offset;
        put(file, at, &change.bytes);
    }
    inserted.entry
}

/// Removes an entry; returns whether there was one. Panics if a change covers another entry.
fn remove_from(file: &mut [u8], id: u32) -> Result<bool, InsertError<()>> {
    let changes = {
        let read = |number: u32| -> Result<[u8; QUOTA_BLOCK_BYTES], ()> {
            let start = number as usize * QUOTA_BLOCK_BYTES;
            let bytes = file.get(start..start + QUOTA_BLOCK_BYTES);
            bytes.ok_or(()).map(|bytes| bytes.try_into().unwrap())
        };
        let read: &mut dyn FnMut(u32) -> _ = &mut { read };
        remove(id, read)?
    };
    for change in &changes {
        assert!(change.bytes.len() <= ENTRY_BYTES);
        let at = change.block as usize * QUOTA_BLOCK_BYTES + change.offset;
        put(file, at, &change.bytes);
    }
    Ok(!changes.is_empty())
}

/// The length of the list of free blocks.
fn free_blocks(file: &[u8]) -> u32 {
    let (header, _) = RawQuotaHeader::ref_from_prefix(file).unwrap();
    let (mut next, mut count) = (header.dqi_free_blk.get(), 0);
    while next != 0 && count < block_count(file) {
        count += 1;
        next = word(file, next as usize * QUOTA_BLOCK_BYTES);
    }
    count
}

proptest! {
    #[test]
    fn entries_that_are_inserted_are_found_beside_those_that_were_written(
        first in proptest::collection::btree_set(0..3000u32, 0..40),
        later in proptest::collection::vec(
            prop_oneof![0..3000u32, any::<u32>(), 0xffff_fff0..=u32::MAX], 1..200),
    ) {
        let counts = |id: u32| QuotaCounts { inodes: 1 + u64::from(id), bytes: 4096 };
        let usage = first.iter().map(|&id| (id, counts(id))).collect();
        let mut file = write(QuotaKind::User, &usage);
        let mut expected = usage;
        for id in later {
            let before = file.clone();
            let at = insert_into(&mut file, id);
            if expected.contains_key(&id) {
                prop_assert_eq!(&before[..], &file[..]);
                continue;
            }
            prop_assert_eq!(found_by_kernel(&file, id), Some(QuotaCounts::default()));
            let entry = QuotaEntry { counts: counts(id), ..QuotaEntry::default() };
            let start = at.block as usize * QUOTA_BLOCK_BYTES + at.offset;
            put(&mut file, start, &entry.to_bytes(id));
            expected.insert(id, counts(id));
        }
        for (&id, counts) in &expected {
            prop_assert_eq!(found_by_kernel(&file, id), Some(*counts));
        }
        prop_assert_eq!(read_back(QuotaKind::User, &file), Ok(expected));
    }

    #[test]
    fn what_is_removed_is_gone_and_its_blocks_are_used_again(
        first in proptest::collection::btree_set(0..3000u32, 0..40),
        later in proptest::collection::vec(
            (prop_oneof![0..60u32, 0..3000u32, any::<u32>()], any::<bool>()), 1..80),
    ) {
        let counts = |id: u32| QuotaCounts { inodes: 1 + u64::from(id), bytes: 4096 };
        let mut expected: BTreeMap<_, _> = first.iter().map(|&id| (id, counts(id))).collect();
        let mut file = write(QuotaKind::User, &expected);
        for (id, is_removal) in later {
            let before = block_count(&file);
            if is_removal {
                let is_there = expected.remove(&id).is_some();
                prop_assert_eq!(remove_from(&mut file, id).unwrap(), is_there);
            } else {
                let at = insert_into(&mut file, id);
                let entry = QuotaEntry { counts: counts(id), ..QuotaEntry::default() };
                let start = at.block as usize * QUOTA_BLOCK_BYTES + at.offset;
                put(&mut file, start, &entry.to_bytes(id));
                expected.insert(id, counts(id));
            }
            prop_assert_eq!(read_back(QuotaKind::User, &file), Ok(expected.clone()));
            prop_assert!(block_count(&file) <= before + 4 * u32::from(!is_removal));
        }
        let most = block_count(&file);
        for &id in expected.keys() {
            prop_assert!(remove_from(&mut file, id).unwrap());
        }
        prop_assert_eq!(read_back(QuotaKind::User, &file), Ok(BTreeMap::new()));
        prop_assert_eq!(free_blocks(&file), most - 2);
        for &id in expected.keys() {
            insert_into(&mut file, id);
        }
        prop_assert!(block_count(&file) <= most, "free blocks are used first");
    }

    #[test]
    fn broken_files_do_not_make_removal_panic(
        at in 0usize..6 * QUOTA_BLOCK_BYTES, value in any::<u32>(), small in 0u32..8,
        id in 0u32..22,
    ) {
        let usage = (0..20).map(|id| (id, QuotaCounts { inodes: 1, bytes: 0 })).collect();
        let mut file = write(QuotaKind::User, &usage);
        let at = at % (file.len() - 4);
        put(&mut file, at, &[value, small][value as usize % 2].to_le_bytes());
        let _ = remove_from(&mut file, id);
    }

    #[test]
    fn broken_files_do_not_make_insertion_panic(
        at in 0usize..6 * QUOTA_BLOCK_BYTES, value in any::<u32>(), id in any::<u32>(),
    ) {
        let usage = (0..20).map(|id| (id, QuotaCounts { inodes: 1, bytes: 0 })).collect();
        let mut file = write(QuotaKind::User, &usage);
        let at = at % (file.len() - 4);
        put(&mut file, at, &value.to_le_bytes());
        let read = |number: u32| -> Result<[u8; QUOTA_BLOCK_BYTES], ()> {
            let start = number as usize * QUOTA_BLOCK_BYTES;
            file.get(start..start + QUOTA_BLOCK_BYTES).ok_or(()).map(|b| b.try_into().unwrap())
        };
        let read: &mut dyn FnMut(u32) -> _ = &mut { read };
        if let Ok(insertion) = insert(id, read) {
            let places = insertion.changes.iter().map(|change| (change.block, change.offset));
            let mut places: Vec<_> = places.collect();
            places.sort_unstable();
            places.dedup();
            prop_assert_eq!(places.len(), insertion.changes.len());
        }
    }
}

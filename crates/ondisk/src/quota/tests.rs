//! Quota files are written and read back, and found by the kernel's way through the tree.

use proptest::prelude::*;

use super::*;

/// What the kernel finds for an identifier.
fn look_up(file: &[u8], id: u32) -> Option<QuotaCounts> {
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
            prop_assert_eq!(look_up(&file, id), usage.get(&id).copied());
        }
        for (&id, counts) in &usage {
            prop_assert_eq!(look_up(&file, id), Some(*counts));
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

//! **Purpose.** Tests of inline data against a vector of bytes, beside another attribute that must
//! keep its value.

use proptest::prelude::*;

use super::*;
use crate::oracle::Image;
use crate::xattr::{EaInodes, Value, Xattrs, check_in_inode};

#[derive(Clone, Debug)]
enum Step {
    Resize(usize),
    Write(usize, Vec<u8>),
    /// Sets the other attribute to a value of this length.
    Other(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..300_usize).prop_map(Step::Resize),
        (0..200_usize, proptest::collection::vec(any::<u8>(), 0..60))
            .prop_map(|(offset, bytes)| Step::Write(offset, bytes)),
        (0..60_usize).prop_map(Step::Other),
    ]
}

proptest! {
    #[test]
    fn content_follows_the_model(steps in proptest::collection::vec(step(), 1..30)) {
        let (mut i_block, mut area) = ([7; 60], vec![0x5a; 160]);
        let room = InlineRoom::of(&mut area).unwrap().unwrap();
        prop_assert_eq!(room.most_bytes, 60 + 160 - 8 - 20);
        InlineMut::init(&mut i_block, &mut area).unwrap();
        let (mut content, mut other) = (vec![0; 60], None::<Vec<u8>>);
        for step in steps {
            match step {
                Step::Resize(bytes) => {
                    let before = (i_block, area.clone());
                    let mut inline = InlineMut::of(&mut i_block, &mut area).unwrap();
                    let most = inline.most_bytes().unwrap();
                    let taken = |value: &Vec<u8>| 20 + value.len().next_multiple_of(4);
                    let entry = other.as_ref().map_or(0, taken);
                    prop_assert_eq!(most, 60 + 160 - 8 - 20 - entry);
                    let result = inline.resize(bytes);
                    prop_assert_eq!(result.is_ok(), bytes <= most);
                    if bytes <= most {
                        content.truncate(bytes);
                        content.resize(bytes.max(60), 0);
                    } else {
                        prop_assert_eq!((i_block, area.clone()), before);
                    }
                }
                Step::Write(offset, bytes) => {
                    let mut inline = InlineMut::of(&mut i_block, &mut area).unwrap();
                    let inside = inline.write_at(offset, &bytes).unwrap();
                    prop_assert_eq!(inside, offset + bytes.len() <= content.len());
                    if inside {
                        content[offset..offset + bytes.len()].copy_from_slice(&bytes);
                    }
                }
                Step::Other(bytes) => {
                    let value = vec![9; bytes];
                    let mut xattrs = XattrsMut::in_inode(&mut area).unwrap();
                    if xattrs.set(NameIndex::USER, b"a", &NewValue::Inline(&value)).is_ok() {
                        other = Some(value);
                    }
                }
            }
            check_in_inode(&area, EaInodes::Absent).unwrap();
            let xattrs = Xattrs::in_inode(&area);
            let data = InlineData::find(&i_block, &xattrs).unwrap();
            prop_assert_eq!(data.capacity_bytes(), content.len());
            let mut found = vec![1; content.len()];
            data.read_at(0, &mut found);
            prop_assert_eq!(&found, &content);
            let kept = xattrs.find(NameIndex::USER, b"a").unwrap().map(|entry| entry.value);
            prop_assert_eq!(kept, other.as_deref().map(Value::Inline));
        }
        let inline = InlineMut::of(&mut i_block, &mut area).unwrap();
        prop_assert_eq!(inline.capacity_bytes(), Ok(content.len()));
        let mut block = vec![1; 1024];
        inline.take(&mut block).unwrap();
        content.resize(1024, 0);
        prop_assert_eq!(block, content);
        prop_assert_eq!(i_block, [0; 60]);
        let xattrs = Xattrs::in_inode(&area);
        let kept = xattrs.find(NameIndex::USER, b"a").unwrap().map(|entry| entry.value);
        prop_assert_eq!(kept, other.as_deref().map(Value::Inline));
        prop_assert_eq!(xattrs.entries().count(), usize::from(other.is_some()));
    }
}

#[test]
fn an_inode_without_space_has_no_inline_data() {
    let mut i_block = [7; 60];
    let mut area = vec![0; 24];
    assert_eq!(InlineRoom::of(&mut area), Ok(None));
    let no_space = InlineMut::init(&mut i_block, &mut area).unwrap_err();
    assert!(matches!(no_space, XattrEditError::NoSpace { .. }));
    assert_eq!(i_block, [7; 60]);
    let error = InlineMut::of(&mut i_block, &mut area).unwrap_err();
    assert_eq!(error, InlineError::NoAttribute);
}

/// Writes to and grows a file that mke2fs stored in its inode; debugfs reads it.
#[test]
fn e2fsprogs_read_the_content_that_was_written() {
    let Some(image) = Image::of_file(4096, "inline_data,metadata_csum", &[b'a'; 70]) else {
        return;
    };
    let (nr, sb) = (image.inode_nr("/file"), image.superblock());
    let (mut bytes, _) = image.inode(nr);
    let mut slot = crate::inode::InodeMut::of(&mut bytes, &sb).unwrap();
    let (i_block, area) = slot.parts_mut();
    let mut inline = InlineMut::of(i_block, area.unwrap()).unwrap();
    inline.resize(100).unwrap();
    assert_eq!(inline.write_at(50, &[b'b'; 50]), Ok(true));
    slot.set_size_bytes(100).unwrap();
    crate::inode::seal(&mut bytes, nr, &sb).unwrap();
    image.write_inode(nr, &bytes);
    let expected = ["a".repeat(50), "b".repeat(50)].concat();
    let shown = image.debugfs("cat /file\n");
    assert!(
        shown.contains(&expected) && !shown.contains(&[&expected, "b"].concat()),
        "{shown}"
    );
    assert_eq!(image.fsck_problems(), "");
}

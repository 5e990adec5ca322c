//! Reads headers back with the `tar` crate.

use super::*;

fn facts(kind: Kind) -> Facts {
    Facts {
        inode: 12,
        kind,
        permissions: 0o4751,
        uid: 3_000_000_000,
        gid: 100,
        links: 1,
        size_bytes: 5,
        blocks_512: 8,
        rdev_major: 4095,
        rdev_minor: (1 << 20) - 1,
        atime: Time::default(),
        mtime: Time {
            seconds: 1_700_000_000,
            nanoseconds: 123_456_789,
        },
        ctime: Time::default(),
        btime: None,
        may_have_attributes: true,
    }
}

fn archive(member: &Member<'_>, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    push_member(&mut out, member, &mut Vec::new());
    out.extend_from_slice(content);
    pad(&mut out, content.len() as u64);
    out.resize(out.len() + 2 * BLOCK_BYTES, 0);
    assert_eq!(out.len() % BLOCK_BYTES, 0);
    out
}

/// The pax records of the only member, its header, its path and its link.
type Read = (
    Vec<(String, Vec<u8>)>,
    tar::Header,
    Vec<u8>,
    Option<Vec<u8>>,
);

fn read(bytes: &[u8]) -> Read {
    let mut archive = tar::Archive::new(bytes);
    let mut entries = archive.entries().expect("an archive");
    let mut entry = entries.next().expect("one member").expect("a valid member");
    let mut records = Vec::new();
    if let Some(extensions) = entry.pax_extensions().expect("valid records") {
        for record in extensions {
            let record = record.expect("a valid record");
            let key = record.key().expect("a key in ASCII").to_owned();
            records.push((key, record.value_bytes().to_vec()));
        }
    }
    let path = entry.path_bytes().into_owned();
    let link = entry.link_name_bytes().map(std::borrow::Cow::into_owned);
    let header = entry.header().clone();
    assert!(entries.next().is_none());
    (records, header, path, link)
}

fn value<'r>(read: &'r Read, key: &str) -> Option<&'r [u8]> {
    read.0
        .iter()
        .find(|(name, _)| name == key)
        .map(|(_, value)| value.as_slice())
}

#[test]
fn a_file_with_everything_that_does_not_fit() {
    let path = [b"./", &[b'n'; 300][..]].concat();
    let mut attributes = Attributes::default();
    attributes.push(b"user.binary", b"a\0=b");
    let facts = facts(Kind::File);
    let member = Member {
        path: &path,
        facts: &facts,
        link: Link::No,
        attributes: &attributes,
        payload: Payload::Whole(5),
    };
    let read = read(&archive(&member, b"hello"));
    assert_eq!(read.2, path);
    assert_eq!(read.1.entry_size().ok(), Some(5));
    assert_eq!(read.1.mode().ok(), Some(0o4751));
    assert_eq!(read.1.gid().ok(), Some(100));
    assert_eq!(value(&read, "uid"), Some(&b"3000000000"[..]));
    assert_eq!(value(&read, "gid"), None);
    assert_eq!(value(&read, "mtime"), Some(&b"1700000000.123456789"[..]));
    assert_eq!(
        value(&read, "SCHILY.xattr.user.binary"),
        Some(&b"a\0=b"[..])
    );
}

#[test]
fn links_and_devices() {
    let target = [b't'; 4095];
    let attributes = Attributes::default();
    let symlink = facts(Kind::Symlink);
    let mut member = Member {
        path: b"./link",
        facts: &symlink,
        link: Link::Symbolic(&target),
        attributes: &attributes,
        payload: Payload::Nothing,
    };
    let found = read(&archive(&member, b""));
    assert_eq!(found.3.as_deref(), Some(&target[..]));
    assert!(found.1.entry_type().is_symlink());
    member.link = Link::Hard(b"./first");
    let found = read(&archive(&member, b""));
    assert_eq!(found.3.as_deref(), Some(&b"./first"[..]));
    assert!(found.1.entry_type().is_hard_link());
    let device = facts(Kind::CharDevice);
    member = Member {
        link: Link::No,
        facts: &device,
        ..member
    };
    let found = read(&archive(&member, b""));
    assert_eq!(found.1.device_major().ok(), Some(Some(4095)));
    assert_eq!(found.1.device_minor().ok(), Some(Some((1 << 20) - 1)));
}

#[test]
fn records_count_their_own_digits() {
    // At 9 + 1, 98 + 2 and 997 + 3 the length grows by a digit because of its own digits.
    for value_len in (0..30).chain(80..110).chain(980..1010) {
        let value = vec![b'v'; value_len];
        let mut out = Vec::new();
        push_record(&mut out, b"k", &value);
        let text = String::from_utf8(out).expect("ASCII");
        let (len, _) = text.split_once(' ').expect("a length");
        assert_eq!(len.parse(), Ok(text.len()), "{text}");
    }
}

#[test]
fn times_as_decimal_numbers() {
    let text = |seconds, nanoseconds| {
        let mut out = Vec::new();
        let time = Time {
            seconds,
            nanoseconds,
        };
        push_decimal_time(&mut out, time);
        String::from_utf8(out).expect("ASCII")
    };
    assert_eq!(text(5, 0), "5");
    assert_eq!(text(5, 1), "5.000000001");
    assert_eq!(text(-2, 250_000_000), "-1.750000000");
    assert_eq!(text(-1, 999_999_999), "-0.000000001");
    assert_eq!(text(-3, 0), "-3");
}

#[test]
fn sparse_maps() {
    let mut out = Vec::new();
    push_sparse_map(&mut out, &[(0, 4096), (1 << 40, 17)]);
    assert_eq!(out.len(), BLOCK_BYTES);
    assert!(out.starts_with(b"2\n0\n4096\n1099511627776\n17\n\0"));
    assert_eq!(sparse_member_name(b"./a/b"), b"./a/GNUSparseFile.0/b");
}

#[test]
fn a_key_ends_at_its_first_equals_sign() {
    let key = xattr_key(b"user.a=b%3D");
    assert_eq!(key, b"SCHILY.xattr.user.a%3Db%253D");
}

#[test]
fn a_symbolic_link_has_all_permissions() {
    let facts = facts(Kind::Symlink);
    let member = Member {
        path: b"./link",
        facts: &facts,
        link: Link::Symbolic(b"target"),
        attributes: &Attributes::default(),
        payload: Payload::Nothing,
    };
    let found = read(&archive(&member, b""));
    assert_eq!(found.1.mode().expect("a number"), 0o777);
}

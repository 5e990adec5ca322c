//! Tests of applying manifests to trees.

use std::io::Write as _;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::DeviceNr;

use super::*;
use crate::tree::Content;

fn tree() -> Tree {
    let mut tree = Tree::new();
    let mut put = |path: &str, kind| {
        tree.insert(path.as_bytes(), &Meta::default(), kind, &Xattrs::new())
            .unwrap()
    };
    let bytes = |text: &str| Kind::File(Content::Bytes(text.as_bytes().into()));
    put("etc/passwd", bytes("12345"));
    put("dev/null", Kind::File(Content::Empty));
    put("link", Kind::Symlink(b"etc".to_vec()));
    tree.link(b"dev/zero", b"dev/null").unwrap();
    tree
}

fn applied(text: &str) -> Result<Tree, SourceError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.rewind().unwrap();
    let manifest = Manifest::parse("list", file)?;
    let mut tree = tree();
    let mut excludes = Excludes::default();
    excludes.add(b"/out").unwrap();
    manifest.apply(&mut tree, &excludes)?;
    Ok(tree)
}

fn error_of(text: &str) -> String {
    applied(text).unwrap_err().to_string()
}

#[test]
fn objects_of_the_sources_get_the_attributes_of_their_entries() {
    let text = "#mtree\n./etc/passwd uid=5 gid=6 mode=4711 time=7.8 size=5 xattr.user.a=Zm9v\n\
                dev/null type=char device=native,1,3 mode=666\n. uid=9\nlink link=elsewhere\n";
    let mut tree = applied(text).unwrap();
    let mut get = |path: &[u8]| tree.lookup(path).unwrap().unwrap();
    let (passwd, null, zero) = (get(b"etc/passwd"), get(b"dev/null"), get(b"dev/zero"));
    let link = get(b"link");
    let meta = tree.meta(passwd);
    assert_eq!((meta.uid, meta.gid, meta.permissions), (5, 6, 0o4711));
    assert_eq!(Some(meta.mtime), Timestamp::new(7, 8));
    let xattrs: Vec<_> = tree.xattrs(passwd).collect();
    assert_eq!(xattrs, [(&b"user.a"[..], &b"foo"[..])]);
    let number = DeviceNr { major: 1, minor: 3 };
    assert_eq!(tree.kind(null), Kind::CharDevice(number));
    assert_eq!((null, tree.links(null)), (zero, 2), "still one object");
    assert_eq!(tree.kind(link), Kind::Symlink(b"elsewhere".to_vec()));
    assert_eq!(tree.meta(NodeId::ROOT).uid, 9);
}

#[test]
fn missing_objects_are_created_unless_optional_or_excluded() {
    let text = "run type=dir\nsda type=block device=native,8,1 uid=1\n..\n\
                ./x/pipe type=fifo time=5.0\n./s type=socket\n./l type=link link=a\\040b\n\
                ./no type=file optional\n./neither nochange\n./out/file type=file\n";
    let mut tree = applied(text).unwrap();
    let mut kind = |path: &[u8]| {
        let id = tree.lookup(path).unwrap();
        id.map(|id| (tree.kind(id), tree.meta(id).permissions))
    };
    let number = DeviceNr { major: 8, minor: 1 };
    assert_eq!(kind(b"run"), Some((Kind::Directory, 0o755)));
    assert_eq!(kind(b"run/sda"), Some((Kind::BlockDevice(number), 0o644)));
    assert_eq!(kind(b"x/pipe"), Some((Kind::Fifo, 0o644)));
    assert_eq!(kind(b"s"), Some((Kind::Socket, 0o644)));
    assert_eq!(kind(b"l"), Some((Kind::Symlink(b"a b".to_vec()), 0o777)));
    for path in [&b"no"[..], b"neither", b"out", b"out/file"] {
        assert_eq!(kind(path), None);
    }
}

#[test]
fn errors_name_line_path_and_keyword() {
    for (text, expected) in [
        ("a mode=x", "list: line 1: a: 'mode=x' is not an octal mode"),
        (
            "\n\nnew type=file",
            "list: line 3: new: is not in the sources",
        ),
        (
            "new uid=1",
            "new: is not in the sources, and the manifest has no type=",
        ),
        ("new type=char", "new: the manifest has no device= for it"),
        ("new type=link", "new: the manifest has no link= for it"),
        (
            "dev/null type=block",
            "dev/null: the manifest has no device= for it",
        ),
        (
            "etc/passwd type=dir",
            "is type=file in the sources and type=dir",
        ),
        (
            "etc/passwd type=fifo",
            "is type=file in the sources and type=fifo",
        ),
        ("etc type=file", "is type=dir in the sources and type=file"),
        ("etc/passwd size=4", "has 5 bytes in the sources and 4"),
        (
            "./../x type=dir",
            "list: line 1: ./../x: the path leaves its tree",
        ),
        (
            "etc/passwd/x type=dir",
            "etc/passwd/x: a part of the path is not a directory",
        ),
        ("..", "list: line 1: '..' leaves the root directory"),
    ] {
        let found = error_of(text);
        assert!(
            found.contains(expected),
            "expected {expected}\nfound    {found}"
        );
    }
}

#[test]
fn written_lines_parse_to_the_same_attributes() {
    let kinds = [
        Kind::Directory,
        Kind::Symlink(b"a b\\\xff".to_vec()),
        Kind::CharDevice(DeviceNr {
            major: 4095,
            minor: 1 << 19,
        }),
        Kind::Fifo,
        Kind::Socket,
    ];
    for kind in kinds {
        let time = Timestamp::new(-5, 7).unwrap();
        let meta = Meta {
            permissions: 0o7123,
            uid: 4_000_000_000,
            gid: 3,
            project: 0,
            atime: time,
            mtime: time,
            ctime: time,
        };
        let mut xattrs = Xattrs::new();
        xattrs.set(b"user.a=b c%", b"\0\xff=");
        let mut source = Tree::new();
        let path = b"./#new \n\xfe*";
        let node = source.insert(path, &meta, kind.clone(), &xattrs).unwrap();
        let line = manifest_line(
            path,
            &ListedObject {
                meta,
                kind: &kind,
                links: 2,
                inode: InodeNr(12),
                xattrs: source.xattrs(node),
                sum: None,
            },
        );
        assert!(line.is_ascii());
        let mut read = applied(std::str::from_utf8(&line).unwrap()).unwrap();
        let found = read.lookup(path).unwrap().unwrap();
        assert_eq!((read.kind(found), read.meta(found)), (kind, meta));
        assert!(read.xattrs(found).eq(source.xattrs(node)));
    }
}

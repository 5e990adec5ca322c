//! Tests of the tree.

use proptest::prelude::*;

use super::*;

fn file(bytes: &[u8]) -> Kind {
    Kind::File(Content::Bytes(bytes.into()))
}

fn meta(permissions: u16) -> Meta {
    Meta {
        permissions,
        ..Meta::default()
    }
}

fn put(tree: &mut Tree, path: &str, kind: Kind) -> NodeId {
    tree.insert(path.as_bytes(), &meta(0o600), kind, &Xattrs::new())
        .unwrap()
}

/// All paths of the tree in order, with the link count of each.
fn listing(tree: &mut Tree) -> String {
    fn list(tree: &Tree, directory: NodeId, path: &str, out: &mut String) {
        for (name, child) in tree.children(directory) {
            let path = format!("{path}/{}", String::from_utf8_lossy(name));
            *out += &format!("{path} {}\n", tree.links(child));
            list(tree, child, &path, out);
        }
    }
    tree.sort(2);
    let mut out = String::new();
    list(tree, NodeId::ROOT, "", &mut out);
    out
}

#[test]
fn later_sources_replace_and_directories_merge() {
    let mut tree = Tree::new();
    put(&mut tree, "etc/passwd", file(b"1"));
    put(&mut tree, "/etc/./hosts", file(b"1"));
    let etc = tree.lookup(b"etc").unwrap().unwrap();
    assert_eq!(tree.meta(etc).permissions, 0o755, "created as a parent");
    tree.insert(b"etc/", &meta(0o700), Kind::Directory, &Xattrs::new())
        .unwrap();
    assert_eq!(
        tree.meta(etc).permissions,
        0o700,
        "attributes are the later ones"
    );
    let passwd = put(&mut tree, "etc/passwd", file(b"22"));
    assert_eq!(tree.kind(passwd), file(b"22"));
    assert_eq!(listing(&mut tree), "/etc 1\n/etc/hosts 1\n/etc/passwd 1\n");
    put(&mut tree, "etc", Kind::Fifo);
    assert_eq!(listing(&mut tree), "/etc 1\n");
    let live: Vec<_> = tree.ids().collect();
    assert_eq!(live.len(), 2, "replaced objects have no names: {live:?}");
}

#[test]
fn hard_links_are_names_of_one_object() {
    let mut tree = Tree::new();
    let a = put(&mut tree, "a", file(b"x"));
    assert_eq!(tree.link(b"dir/b", b"/a"), Ok(a));
    assert_eq!(tree.links(a), 2);
    put(&mut tree, "a", Kind::Socket);
    assert_eq!(tree.links(a), 1);
    assert_eq!(tree.lookup(b"dir/b"), Ok(Some(a)));
    let error = tree.link(b"c", b"nothing").unwrap_err();
    assert_eq!(
        error.to_string(),
        "c: a link to nothing, which does not exist"
    );
    let error = tree.link(b"c", b"dir").unwrap_err();
    assert!(matches!(error, TreeError::LinkToDirectory { .. }));
}

#[test]
fn whiteouts_and_opaque_directories() {
    let mut tree = Tree::new();
    for path in ["d/one", "d/two/three", "e/four"] {
        put(&mut tree, path, Kind::Fifo);
    }
    assert_eq!(tree.remove(b"d/two"), Ok(true));
    assert_eq!(tree.remove(b"d/two"), Ok(false));
    assert_eq!(
        tree.remove(b"no/where"),
        Err(TreeError::NotADirectory {
            path: b"no/where".to_vec()
        })
    );
    assert_eq!(listing(&mut tree), "/d 1\n/d/one 1\n/e 1\n/e/four 1\n");
    assert_eq!(tree.clear(b"d"), Ok(true));
    assert_eq!(tree.clear(b"d/one"), Ok(false));
    put(&mut tree, "d/new", Kind::Fifo);
    assert_eq!(listing(&mut tree), "/d 1\n/d/new 1\n/e 1\n/e/four 1\n");
}

/// Clearing a directory costs as much as it contains, not as the tree holds: with an index that is
/// rebuilt each time, this takes minutes.
#[test]
fn clearing_thousands_of_directories_is_fast() {
    let mut tree = Tree::new();
    for number in 0..20_000 {
        put(
            &mut tree,
            &format!("d{}/{number}", number % 5000),
            Kind::Fifo,
        );
    }
    for number in 0..5000 {
        let path = format!("d{number}");
        assert_eq!(tree.clear(path.as_bytes()), Ok(true));
        put(&mut tree, &format!("{path}/new"), Kind::Fifo);
    }
    assert_eq!(tree.ids().count(), 1 + 2 * 5000);
}

#[test]
fn symbolic_links_are_followed_inside_the_tree() {
    let mut tree = Tree::new();
    put(&mut tree, "usr/bin/sh", Kind::Fifo);
    put(&mut tree, "bin", Kind::Symlink(b"usr/bin".to_vec()));
    put(&mut tree, "bin/ls", Kind::Fifo);
    assert_eq!(tree.lookup(b"usr/bin/ls"), tree.lookup(b"bin/ls"));
    put(
        &mut tree,
        "usr/out",
        Kind::Symlink(b"../../../../etc".to_vec()),
    );
    put(&mut tree, "usr/out/shadow", Kind::Fifo);
    assert!(tree.lookup(b"/etc/shadow").unwrap().is_some());
    put(&mut tree, "loop", Kind::Symlink(b"/loop/x".to_vec()));
    let error = tree.lookup(b"loop/y").unwrap_err();
    assert!(matches!(error, TreeError::SymlinkLoop { .. }));
    put(&mut tree, "bin", Kind::Directory);
    assert_eq!(
        tree.lookup(b"bin/ls"),
        Ok(None),
        "a directory replaces the link"
    );
}

#[test]
fn objects_that_ext4_cannot_hold_are_refused_by_name() {
    let mut tree = Tree::new();
    let mut fails = |path: &[u8], kind: Kind| {
        let result = tree.insert(path, &meta(0), kind, &Xattrs::new());
        result.unwrap_err().to_string()
    };
    let long = [b'n'; 256];
    assert!(fails(&long, Kind::Fifo).ends_with("the name has 256 bytes, ext4 allows 255"));
    assert_eq!(
        fails(b"a/../b", Kind::Fifo),
        "a/../b: the path leaves its tree"
    );
    assert_eq!(
        fails(b"a\0", Kind::Fifo),
        "a\\x00: ext4 does not allow this name"
    );
    assert_eq!(
        fails(b"", Kind::Fifo),
        "the root of the tree must be a directory"
    );
    assert!(fails(b"s", Kind::Symlink(Vec::new())).contains("the link target has 0 bytes"));
    let sparse = Sparse {
        data: DataPlace::Open(FileId(0)),
        len_bytes: 10,
        pieces: vec![Piece {
            at: 5,
            from: 0,
            len_bytes: 6,
        }],
    };
    let sparse = Kind::File(Content::Sparse(Box::new(sparse)));
    assert!(fails(b"f", sparse).contains("extend past its end"));
    assert!(
        tree.insert(&[0xff; 255], &meta(0), Kind::Fifo, &Xattrs::new())
            .is_ok()
    );
    put(&mut tree, "file", Kind::Fifo);
    let error = tree.insert(b"file/x", &meta(0), Kind::Fifo, &Xattrs::new());
    assert!(matches!(error, Err(TreeError::NotADirectory { .. })));
}

#[test]
fn attributes_and_paths_are_stored() {
    let mut tree = Tree::new();
    let mut xattrs = Xattrs::new();
    xattrs.set(b"user.a", b"1");
    let meta = Meta {
        permissions: 0o6755,
        uid: 70_000,
        gid: 5,
        project: 9,
        atime: fourscore_ondisk::Timestamp::new(-5, 1).unwrap(),
        mtime: fourscore_ondisk::Timestamp::new(1 << 33, 999_999_999).unwrap(),
        ctime: fourscore_ondisk::Timestamp::new(7, 3).unwrap(),
    };
    let id = tree.insert(b"x/y/z", &meta, Kind::Fifo, &xattrs).unwrap();
    assert_eq!(tree.meta(id), meta);
    assert_eq!(tree.path_of(id), b"/x/y/z");
    assert_eq!(tree.path_of(NodeId::ROOT), b"/");
    let found: Vec<_> = tree.xattrs(id).collect();
    assert_eq!(found, [(&b"user.a"[..], &b"1"[..])]);
}

/// A million files take less than 200 MB, including spare capacity of vectors.
#[test]
fn a_file_takes_less_than_180_bytes() {
    let mut tree = Tree::new();
    let files: usize = 100_000;
    for number in 0..files {
        let name = format!("dir{}/file-with-a-longish-name-{number}", number % 100);
        put(&mut tree, &name, Kind::File(Content::Empty));
    }
    let nodes = tree.nodes.capacity() * size_of::<Node>();
    let bytes = nodes + tree.names_bytes() + tree.entries.index_and_lists_bytes();
    assert!(bytes / files < 180, "{} bytes for each file", bytes / files);
}

proptest! {
    #[test]
    fn links_count_names(
        steps in proptest::collection::vec((0u8..4, 0u8..6, 0u8..6, 0u8..6), 1..120),
    ) {
        let mut tree = Tree::new();
        for (step, a, b, c) in steps {
            let path = format!("d{a}/d{b}/f{c}");
            match step {
                0 => drop(tree.insert(path.as_bytes(), &meta(0), Kind::Fifo, &Xattrs::new())),
                1 => drop(tree.link(path.as_bytes(), format!("d{c}/d{a}/f{b}").as_bytes())),
                2 => drop(tree.remove(format!("d{a}/d{b}").as_bytes())),
                _ => drop(tree.remove(path.as_bytes())),
            }
        }
        let mut names = vec![0; tree.len()];
        let ids: Vec<_> = tree.ids().collect();
        for &id in &ids {
            for (_, child) in tree.children(id) {
                names[child.0 as usize] += 1;
            }
        }
        for id in ids {
            prop_assert_eq!(names[id.0 as usize], tree.links(id));
        }
    }
}

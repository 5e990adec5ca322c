//! Tests of reading directories of the host.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use super::*;
use crate::tree::{Content, Kind};

fn read(path: &Path, threads: usize) -> BuildResult<Tree> {
    let mut tree = Tree::new();
    add_directory(&mut tree, path, &Scan::all(threads)).map(|()| tree)
}

#[test]
fn names_links_holes_and_attributes_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("a/b")).unwrap();
    fs::write(at("a/file"), "content").unwrap();
    fs::set_permissions(at("a/file"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::hard_link(at("a/file"), at("a/b/link")).unwrap();
    symlink("../file", at("a/b/symlink")).unwrap();
    let strange = std::ffi::OsStr::from_bytes(&[0xff; 255]);
    fs::write(folder.path().join(strange), "").unwrap();
    let sparse = fs::File::create(at("sparse")).unwrap();
    sparse.write_all_at(b"x", 5 << 20).unwrap();
    sparse.set_len(9 << 20).unwrap();
    for threads in [1, 5] {
        let mut tree = read(folder.path(), threads).unwrap();
        let mut get = |path: &str| tree.lookup(path.as_bytes()).unwrap().unwrap();
        let (file, link, symlink) = (get("a/file"), get("a/b/link"), get("a/b/symlink"));
        let (sparse, b) = (get("sparse"), get("a/b"));
        assert_eq!(file, link);
        assert_eq!((tree.links(file), tree.meta(file).permissions), (2, 0o4711));
        let found = fs::metadata(at("a/b")).unwrap();
        assert_eq!(tree.meta(b).mtime.seconds(), found.mtime());
        assert_eq!(
            i64::from(tree.meta(b).mtime.nanoseconds()),
            found.mtime_nsec()
        );
        assert_eq!(tree.kind(symlink), Kind::Symlink(b"../file".to_vec()));
        let Kind::File(Content::Sparse(sparse)) = tree.kind(sparse) else {
            panic!("no holes were found");
        };
        assert_eq!(sparse.len_bytes, 9 << 20);
        let [piece] = sparse.pieces.as_slice() else {
            panic!("{:?}", sparse.pieces);
        };
        assert!(piece.at <= 5 << 20 && piece.at + piece.len_bytes > 5 << 20);
        assert_eq!(
            tree.lookup(&[0xff; 255]).unwrap().map(|id| tree.links(id)),
            Some(1)
        );
        assert_eq!(tree.ids().count(), 7);
    }
}

#[test]
fn a_second_directory_lies_over_the_first() {
    let (below, above) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(below.path().join("d")).unwrap();
    fs::write(below.path().join("d/kept"), "1").unwrap();
    fs::write(below.path().join("d/replaced"), "1").unwrap();
    fs::create_dir(above.path().join("d")).unwrap();
    fs::write(above.path().join("d/replaced"), "22").unwrap();
    let mut tree = read(below.path(), 2).unwrap();
    add_directory(&mut tree, above.path(), &Scan::all(2)).unwrap();
    let mut len = |path: &str| {
        let found = tree.lookup(path.as_bytes()).unwrap();
        found.map(|id| tree.len_bytes(id))
    };
    assert_eq!((len("d/kept"), len("d/replaced")), (Some(1), Some(2)));
    assert_eq!(tree.ids().count(), 4);
}

#[test]
fn an_excluded_directory_is_not_entered() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("out/in")).unwrap();
    fs::create_dir_all(folder.path().join("in/out")).unwrap();
    let scan = Scan {
        threads: 2,
        keep: &|path| !path.starts_with(b"out"),
        saved: None,
        found: None,
        left_out: None,
    };
    let mut tree = Tree::new();
    add_directory(&mut tree, folder.path(), &scan).unwrap();
    assert_eq!(tree.lookup(b"out"), Ok(None));
    assert!(tree.lookup(b"in/out").unwrap().is_some());
}

#[test]
fn a_large_directory_is_split_into_tasks() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..2000 {
        fs::write(folder.path().join(format!("{number}")), "").unwrap();
    }
    let tree = read(folder.path(), 3).unwrap();
    assert_eq!(tree.children(NodeId::ROOT).len(), 2000);
}

#[test]
fn a_missing_directory_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nothing");
    let error = read(&path, 2).unwrap_err().to_string();
    assert!(error.contains("nothing: No such file"), "{error}");
}

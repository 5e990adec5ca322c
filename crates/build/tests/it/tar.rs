//! Tests of archives written by GNU tar in all its formats, compared with what GNU tar extracts
//! from them.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use fourscore_build::source::{Reading, Source};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{require, scratch};

use crate::common::{
    self, END, ensure_same, header, of_host, of_tree, pax, read_source, seal, tool,
};

/// `plain` has what every format can store, `rich` the rest.
fn make_tree(root: &Path) -> Result<()> {
    let plain = root.join("plain");
    fs::create_dir_all(plain.join("empty"))?;
    fs::write(plain.join("file"), b"content\n")?;
    fs::write(plain.join("nothing"), b"")?;
    fs::write(plain.join("block"), [b'x'; 512])?;
    fs::write(plain.join("big"), big())?;
    fs::hard_link(plain.join("file"), plain.join("link"))?;
    symlink("../plain/file", plain.join("symlink"))?;
    fs::set_permissions(plain.join("file"), fs::Permissions::from_mode(0o4711))?;
    fs::set_permissions(plain.join("empty"), fs::Permissions::from_mode(0o3777))?;
    tool("chown", &["7:8", "plain/big"], root)?;
    tool("touch", &["-d", "2001-02-03 04:05:06", "plain/big"], root)?;
    let rich = root.join("rich");
    let deep = rich.join(["d".repeat(200), "e".repeat(200)].join("/"));
    fs::create_dir_all(&deep)?;
    let odd: Vec<u8> = (1..=255)
        .map(|b| if b == b'/' { b'_' } else { b })
        .collect();
    fs::write(rich.join(std::ffi::OsStr::from_bytes(&odd)), b"odd name")?;
    fs::write(deep.join("f".repeat(255)), b"deep")?;
    fs::hard_link(deep.join("f".repeat(255)), rich.join("long-link"))?;
    symlink("t".repeat(300), rich.join("long-target"))?;
    tool("mknod", &["rich/char", "c", "4", "300"], root)?;
    tool("mknod", &["rich/block", "b", "259", "70000"], root)?;
    tool("mkfifo", &["rich/fifo"], root)?;
    make_sparse(&rich)?;
    fs::write(rich.join("owned"), b"big numbers")?;
    tool("chown", &["3000000:4294967294", "rich/owned"], root)?;
    for (name, when) in [
        ("old", "1950-01-01 00:00:00.25"),
        ("new", "2345-06-07 08:09:10.123456789"),
    ] {
        fs::write(rich.join(name), name)?;
        tool("touch", &["-d", when, &format!("rich/{name}")], root)?;
    }
    Ok(())
}

/// The tree of [`make_tree`] in a temporary directory.
fn tree_to_pack() -> (tempfile::TempDir, PathBuf) {
    let folder = scratch::folder().expect("a folder");
    let root = folder.path().join("tree");
    fs::create_dir(&root).expect("disk space");
    make_tree(&root).expect("a tree");
    (folder, root)
}

fn big() -> Vec<u8> {
    (0..300_000_u32).flat_map(u32::to_le_bytes).collect()
}

fn make_sparse(folder: &Path) -> Result<()> {
    let file = |name: &str, len: u64, data: &mut dyn Iterator<Item = u64>| -> Result<()> {
        let file = File::create(folder.join(name))?;
        file.set_len(len)?;
        for at in data {
            file.write_all_at(&[b's'; 4096], at)?;
        }
        Ok(())
    };
    file("hole", 1 << 20, &mut [].into_iter())?;
    file("hole-at-end", 1 << 20, &mut [0].into_iter())?;
    file(
        "hole-in-front",
        (1 << 20) + 100,
        &mut [(1 << 20) - 3996].into_iter(),
    )?;
    // More runs than a header and one continuation block hold.
    file("many-holes", 3 << 20, &mut (0..60).map(|nr| nr * 40_960))
}

fn make_attributes(root: &Path) -> Result<()> {
    let set = |name: &str, value: &[u8], path: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(root.join(path), name, value, flags)
    };
    set("user.binary", b"a\0b\n=", "rich/owned")?;
    set("user.empty", b"", "rich/owned")?;
    set("user.with=and%3D", b"odd key", "rich/owned")?;
    set("trusted.t", &[b'v'; 3000], "plain/file")?;
    set(
        "security.capability",
        b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        "plain/block",
    )?;
    tool(
        "setfacl",
        &["-m", "u:daemon:rw,u:12345:r,g:bin:x", "plain/file"],
        root,
    )?;
    tool("setfacl", &["-d", "-m", "u:54321:rwx", "plain/empty"], root)
}

/// Packs `parts` of the tree; returns the path of the archive.
fn packed(root: &Path, options: &[&str], parts: &[&str]) -> Result<PathBuf> {
    let archive = root.with_extension("tar");
    let name = archive
        .to_str()
        .expect("temporary folders have plain names");
    let arguments = [options, &["--sort=name", "-cf", name], parts].concat();
    tool("tar", &arguments, root)?;
    Ok(archive)
}

/// Compares the archive as a source with what GNU tar extracts from it with `options`.
fn reads_as_gnu_tar(source: &Source, archive: &Path, options: &[&str]) -> Result<()> {
    let folder = scratch::folder()?;
    let name = archive
        .to_str()
        .expect("temporary folders have plain names");
    let arguments = [&["-xpf", name], options].concat();
    tool("tar", &arguments, folder.path())?;
    let theirs = of_host(folder.path())?;
    let (tree, notices) = read_source(source, &[])?;
    ensure!(notices.kept().is_empty(), "{:?}", notices.kept());
    let mut ours = of_tree(&tree)?;
    // The archive does not have an entry for the root.
    ours[0].1 = common::Attributes::default();
    let mut theirs = theirs;
    theirs[0].1 = common::Attributes::default();
    ensure!(ours.len() > 5, "only {} objects", ours.len());
    ensure_same(&ours, &theirs)
}

#[test]
fn every_format_of_gnu_tar_is_read_as_tar_extracts_it() {
    require!(Need::Program("tar"), Need::Root, Need::Program("setfacl"));
    let (_folder, root) = tree_to_pack();
    let both: &[&str] = &["plain", "rich"];
    for (format, parts) in [
        (&["--format=v7"][..], &["plain"][..]),
        (&["--format=ustar"], &["plain"]),
        (&["--format=ustar", "--numeric-owner"], &["plain"]),
        (&["--format=oldgnu"], both),
        (&["--format=oldgnu", "--sparse"], both),
        (&["--format=gnu"], both),
        (&["--format=gnu", "--sparse"], both),
        (&["--format=posix"], both),
        (
            &["--format=posix", "--sparse", "--sparse-version=0.0"],
            both,
        ),
        (
            &["--format=posix", "--sparse", "--sparse-version=0.1"],
            both,
        ),
        (
            &["--format=posix", "--sparse", "--sparse-version=1.0"],
            both,
        ),
        (
            &[
                "--format=posix",
                "--pax-option=globexthdr.name=g,comment=all",
            ],
            both,
        ),
        (&["--format=posix", "--pax-option=gname=nobody"], both),
    ] {
        let archive = packed(&root, format, parts).expect("an archive");
        let same = reads_as_gnu_tar(
            &Source::Path(archive.clone(), Reading::ByContent),
            &archive,
            &[],
        );
        same.unwrap_or_else(|why| panic!("{format:?}: {why:#}"));
    }
}

#[test]
fn modes_of_symbolic_links_are_ignored() {
    require!(Need::Program("tar"), Need::Root);
    let (_folder, root) = tree_to_pack();
    let archive = packed(&root, &["--mode=0700"], &["plain"]).expect("an archive");
    let source = Source::Path(archive.clone(), Reading::ByContent);
    reads_as_gnu_tar(&source, &archive, &[]).expect("the same");
}

#[test]
fn attributes_and_acls_are_read() {
    require!(Need::Program("tar"), Need::Root, Need::Program("setfacl"));
    let (_folder, root) = tree_to_pack();
    make_attributes(&root).expect("attributes");
    let all = ["--xattrs", "--xattrs-include=*"];
    for options in [
        &all[..],
        &["--acls"],
        &["--acls", "--numeric-owner"],
        &["--xattrs", "--xattrs-include=*", "--acls", "--sparse"],
    ] {
        let archive = packed(&root, options, &["plain", "rich"]).expect("an archive");
        let source = Source::Path(archive.clone(), Reading::ByContent);
        // If GNU tar extracts ACLs, it ignores those that are stored as attributes.
        let same = reads_as_gnu_tar(&source, &archive, options);
        same.unwrap_or_else(|why| panic!("{options:?}: {why:#}"));
        let (tree, _) = read_source(&source, &[]).expect("an archive");
        let sets = tree.ids().map(|id| tree.xattrs(id).count());
        assert!(
            sets.sum::<usize>() >= 2,
            "{options:?}: attributes were stored"
        );
    }
}

#[test]
fn compressed_archives_are_read_as_plain_ones() {
    require!(
        Need::Program("tar"),
        Need::Root,
        Need::Program("gzip"),
        Need::Program("zstd")
    );
    let (folder, root) = tree_to_pack();
    let archive = packed(&root, &["--sparse"], &["plain", "rich"]).expect("an archive");
    for (program, suffix) in [("gzip", "gz"), ("zstd", "zst")] {
        tool(program, &["-kqf", "tree.tar"], folder.path()).expect(program);
        let packed = folder.path().join(format!("tree.tar.{suffix}"));
        reads_as_gnu_tar(&Source::Path(packed, Reading::ByContent), &archive, &[]).expect(program);
    }
}

/// The error for an archive with these bytes.
fn error_of(parts: &[&[u8]]) -> String {
    let folder = scratch::folder().expect("a folder");
    let archive = folder.path().join("bad.tar");
    fs::write(&archive, parts.concat()).expect("disk space");
    match read_source(&Source::Path(archive, Reading::ByContent), &[]) {
        Ok(_) => "none".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Checks the error of each archive.
fn assert_errors(cases: &[(&[&[u8]], &str)]) {
    for (parts, expected) in cases {
        let found = error_of(parts);
        assert!(
            found.contains(expected),
            "expected {expected}\nfound    {found}"
        );
    }
}

#[test]
fn truncated_and_damaged_archives_name_the_last_entry() {
    let file = header(b"dir/file", b'0', 3);
    let content = [b'x'; 512];
    let mut broken = header(b"other", b'0', 0);
    broken[0] = b'O';
    let long = [pax(&[("size", b"99999999999")]), header(b"h", b'0', 0)].concat();
    assert_errors(&[
        (
            &[&file, &content],
            "dir/file: the archive ends at byte 1024 without an end mark",
        ),
        (
            &[&file, &content[..100]],
            "dir/file: the archive is truncated at byte 612",
        ),
        (
            &[&file, &content, &file[..100]],
            "dir/file: the archive is truncated at byte 1124",
        ),
        (
            &[&file, &content, &broken, &END],
            "dir/file: the header at byte 1024 has the checksum",
        ),
        (&[&long, &END], "h: the archive is truncated"),
        (&[b"no archive", &[b'?'; 600]], "is text (a source is a"),
        (&[], "is an empty file (a source is a"),
    ]);
    assert_eq!(error_of(&[&file, &content, &END]), "none");
}

#[test]
fn entries_that_ext4_cannot_hold_are_named() {
    let one = |flag| header(b"n", flag, 0);
    let with = |records: &[(&str, &[u8])], flag| [pax(records), one(flag)].concat();
    assert_errors(&[
        (
            &[&header(b"a/../../b", b'0', 0), &END],
            "a/../../b: the path leaves its tree",
        ),
        (
            &[&with(&[("path", &[b'n'; 256])], b'0'), &END],
            "the name has 256 bytes, ext4 allows 255",
        ),
        (
            &[&with(&[("path", b"a\0b")], b'0'), &END],
            r"a\x00b: ext4 does not allow this name",
        ),
        (&[&one(b'2'), &END], "n: the link target has 0 bytes"),
        (&[&one(b'M'), &END], "n: is continued from another volume"),
        (&[&one(b'Q'), &END], "n: has the unknown type 'Q'"),
        (
            &[&with(&[("SCHILY.devmajor", b"70000")], b'3'), &END],
            "n: the major number is 70000, which ext4 cannot hold",
        ),
        (
            &[&with(&[("mtime", b"yesterday")], b'0'), &END],
            "n: mtime is not a number",
        ),
    ]);
}

#[test]
fn a_hard_link_to_nothing_is_refused() {
    let mut link = header(b"l", b'1', 0);
    link[157..161].copy_from_slice(b"gone");
    seal(&mut link);
    let found = error_of(&[&link, &END]);
    assert!(
        found.contains("l: a link to gone, which does not exist"),
        "{found}"
    );
}

#[test]
fn damaged_and_unsupported_compression_is_refused() {
    let mut packed =
        zstd::encode_all(&[header(b"f", b'0', 0), END.to_vec()].concat()[..], 1).expect("memory");
    packed.truncate(packed.len() - 2);
    let found = error_of(&[&packed]);
    assert!(found.contains("cannot be decompressed"), "{found}");
    let found = error_of(&[b"\xfd7zXZ\0\0\0"]);
    assert!(found.contains("is compressed with xz"), "{found}");
}

#[test]
fn excluded_paths_are_skipped_and_left_out_attributes_reported() {
    let folder = scratch::folder().expect("a folder");
    let archive = folder.path().join("a.tar");
    // ext4 stores inline data in `system.data`, which a source must not set.
    let foreign = pax(&[
        ("SCHILY.xattr.com.apple.x", b"1"),
        ("SCHILY.xattr.system.nfs4_acl", b"1"),
        ("SCHILY.xattr.system.data", b"forged"),
        ("SCHILY.xattr.user.y", b"2"),
    ]);
    let parts = [
        header(b"./keep/a", b'0', 0),
        header(b"keep/b.o", b'0', 0),
        header(b"drop/c", b'0', 0),
        foreign,
        header(b"keep/d", b'0', 0),
        END.to_vec(),
    ];
    fs::write(&archive, parts.concat()).expect("disk space");
    let (tree, notices) = read_source(
        &Source::Path(archive, Reading::ByContent),
        &["*.o", "/drop"],
    )
    .expect("an archive");
    let paths: Vec<String> = of_tree(&tree)
        .expect("a tree")
        .into_iter()
        .map(|(p, _)| p)
        .collect();
    assert_eq!(paths, ["", "keep", "keep/a", "keep/d"]);
    let text = notices.kept().join("\n");
    assert_eq!(text.lines().count(), 3, "{text}");
    for name in ["com.apple.x", "system.data", "system.nfs4_acl"] {
        let expected = format!("keep/d: ext4 cannot store the attribute {name} (left out)");
        assert!(text.contains(&expected), "{text}");
    }
    let all: Vec<_> = tree.ids().flat_map(|id| tree.xattrs(id)).collect();
    assert_eq!(all, [(&b"user.y"[..], &b"2"[..])]);
}

//! `fourscore extract` is the inverse of `fourscore build`, for a tree and for an archive; and an
//! image of an OCI layout has the files of its layers.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::{Context, Result};
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};
use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};

use crate::common::{failing, fourscore, printed, text, without_lost_and_found};
use crate::mounted::require_mount;
use crate::place::{Place, run, walk_of_host};

/// Builds an image of `in.tar` with `--verify`, and returns its path.
fn build_archive(place: &Place) -> String {
    let (archive, image) = (place.text("in.tar"), place.text("image"));
    printed(&mut fourscore(&[
        "build", &archive, "-o", &image, "--verify",
    ]));
    image
}

#[test]
fn an_extracted_tree_equals_the_source() {
    require!(
        Need::Root,
        Need::Program("setfacl"),
        Need::Program("e2fsck")
    );
    let place = Place::odd();
    UnixListener::bind(place.path("tree/socket")).expect("a socket");
    for (form, features) in [
        ("ext4", "quota,project"),
        ("ext4", "inline_data,ea_inode"),
        ("ext4", "orphan_file"),
        ("ext3", "sparse_super"),
        ("ext2", "sparse_super"),
    ] {
        place.build("image", &["-t", form, "-O", features, "--verify"]);
        place.check("image").expect("clean");
        let (image, out) = (
            place.text("image"),
            place.path(&format!("{form}-{features}")),
        );
        printed(&mut fourscore(&["extract", &image, text(&out)]));
        let (ours, source) = (walk_of_host(&out), walk_of_host(&place.tree()));
        let lines = without_lost_and_found(&ours);
        assert_eq!(lines, without_lost_and_found(&source), "{form} {features}");
        assert_eq!(ours.lines().count(), source.lines().count() + 1);
    }
}

/// e2fsck does not look for the attribute block of a link that is stored inline, and frees it.
#[test]
fn links_are_not_inline() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    for len in [60, 80, 120] {
        let link = place.tree().join(format!("link-{len}"));
        symlink("t".repeat(len), &link).expect("space");
        if tools::is_root() {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::lsetxattr(&link, "trusted.large", &[7; 300], flags).expect("space");
        }
    }
    place.build("image", &["-O", "inline_data", "--size", "16M", "--verify"]);
    place.check("image").expect("clean");
    assert_eq!(place.walk("image"), walk_of_host(&place.tree()));
    // An attribute that a link gets later.
    let (image, value) = (place.text("image"), "v".repeat(300));
    let set = [
        "setfattr",
        "-h",
        "-n",
        "trusted.later",
        "-v",
        &value,
        "/link-80",
    ];
    printed(&mut fourscore(&[&["edit", &image], &set[..]].concat()));
    place.check("image").expect("clean");
}

/// An ACL may forbid the owner to write, and with that to set attributes. A device that a user
/// cannot create has no names.
#[test]
fn a_user_extracts_what_users_may_create() {
    require!(
        Need::Root,
        Need::Program("setfacl"),
        Need::Program("setpriv")
    );
    let place = Place::new();
    let tree = place.tree();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(tree.join("etc/passwd"), "user.a", b"value", flags).expect("space");
    run("setfacl", &["-m", "u::r,u:5:r", "etc/passwd"], &tree).expect("an ACL");
    fs::hard_link(tree.join("null"), tree.join("null too")).expect("space");
    place.build("image", &[]);
    let (image, out) = (place.text("image"), place.path("output/out"));
    let output = place
        .as_unprivileged_user(&["extract", &image, text(&out)])
        .output()
        .expect("it runs");
    // Two names of a device, an attribute for root only, and a set-id bit of another owner.
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    let expected = "4 devices, attributes and set-id modes were left out";
    assert!(message.contains(expected), "{message}");
    let mut value = [0; 16];
    let found = rustix::fs::getxattr(out.join("etc/passwd"), "user.a", &mut value);
    assert_eq!(found.map(|len| &value[..len]), Ok(&b"value"[..]));
}

/// An entry of an archive, independent of its encoding.
#[derive(Debug, PartialEq, Eq)]
struct Member {
    path: Vec<u8>,
    kind: u8,
    mode: u32,
    owner: (u64, u64),
    mtime: (i64, u32),
    link: Vec<u8>,
    device: Option<(u32, u32)>,
    /// With the holes of a sparse file as zeros.
    len_bytes: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    content: Vec<u8>,
}

/// Seconds and nanoseconds of a decimal number.
fn time(text: &str) -> (i64, u32) {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let nanoseconds = format!("{fraction:0<9}").parse().expect("digits");
    let whole: i64 = seconds.parse().expect("digits");
    match (text.starts_with('-'), nanoseconds) {
        (true, 1..) => (whole - 1, 1_000_000_000 - nanoseconds),
        _ => (whole, nanoseconds),
    }
}

fn members(archive: &Path) -> Result<Vec<Member>> {
    let mut archive = tar::Archive::new(fs::File::open(archive)?);
    let mut all = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let mut records = BTreeMap::new();
        for record in entry.pax_extensions()?.into_iter().flatten() {
            let record = record?;
            records.insert(record.key()?.to_owned(), record.value_bytes().to_vec());
        }
        let record = |key: &str| records.get(key).cloned();
        let number = |key: &str| -> Option<String> { String::from_utf8(record(key)?).ok() };
        let header = entry.header();
        let is_device = matches!(header.entry_type().as_byte(), b'3' | b'4');
        let device = header.device_major()?.zip(header.device_minor()?);
        let id = |key: &str, own: u64| number(key).map_or(Ok(own), |text| text.parse());
        let mut member = Member {
            path: record("GNU.sparse.name").unwrap_or_else(|| entry.path_bytes().into_owned()),
            kind: header.entry_type().as_byte(),
            mode: header.mode()?,
            owner: (id("uid", header.uid()?)?, id("gid", header.gid()?)?),
            mtime: match number("mtime") {
                Some(text) => time(&text),
                None => (i64::try_from(header.mtime()?)?, 0),
            },
            link: entry.link_name_bytes().unwrap_or_default().into_owned(),
            device: device.filter(|_| is_device),
            len_bytes: match number("GNU.sparse.realsize") {
                Some(text) => text.parse()?,
                None => entry.size(),
            },
            xattrs: records
                .iter()
                .filter(|(key, _)| key.starts_with("SCHILY.xattr."))
                .map(|(key, value)| (key.as_bytes().to_vec(), value.clone()))
                .collect(),
            content: Vec::new(),
        };
        if record("GNU.sparse.realsize").is_none() {
            entry.read_to_end(&mut member.content)?;
        }
        all.push(member);
    }
    Ok(all)
}

#[test]
fn an_extracted_archive_has_the_entries_of_the_source() {
    require!(Need::Root, Need::Program("tar"), Need::Program("setfacl"));
    let place = Place::odd();
    // ACLs are extended attributes for one of the two programs and text for the other.
    run("setfacl", &["-bR", "."], &place.tree()).expect("no ACLs");
    let pack = [
        "--xattrs",
        "--xattrs-include=*",
        "--sparse",
        "--sort=name",
        "--format=posix",
        "--numeric-owner",
        "--pax-option=delete=atime,delete=ctime",
        "-cf",
        "../in.tar",
        ".",
    ];
    run("tar", &pack, &place.tree()).expect("an archive");
    let image = build_archive(&place);
    assert_eq!(
        without_lost_and_found(&place.walk("image")),
        without_lost_and_found(&walk_of_host(&place.tree()))
    );
    let extract = |out: &str| {
        let mut extract = fourscore(&["extract", &image, "-"]);
        extract.stdout(fs::File::create(place.path(out)).expect("space"));
        assert!(extract.status().expect("it runs").success());
    };
    extract("out.tar");
    let theirs = members(&place.path("in.tar")).expect("an archive");
    let mut ours = members(&place.path("out.tar")).expect("an archive");
    ours.retain(|member| member.path != b"./lost+found/");
    assert!(theirs.len() > 500);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!(
            ours == theirs,
            "ours   {:?}\ntheirs {:?}",
            Member {
                content: Vec::new(),
                ..copy(ours)
            },
            Member {
                content: Vec::new(),
                ..copy(theirs)
            }
        );
    }
    assert_eq!(ours.len(), theirs.len());
    let odd = ours.iter().find(|member| member.path == b"./etc/big");
    let keys: Vec<&[u8]> = odd
        .expect("it exists")
        .xattrs
        .keys()
        .map(Vec::as_slice)
        .collect();
    assert!(keys.contains(&&b"SCHILY.xattr.user.a%3Db"[..]), "{keys:?}");

    // A second round changes nothing at all.
    let archive = place.text("out.tar");
    printed(&mut fourscore(&["build", &archive, "-o", &image]));
    extract("again.tar");
    let bytes = |name: &str| fs::read(place.path(name)).expect("an archive");
    assert!(bytes("out.tar") == bytes("again.tar"), "the bytes differ");
}

/// A member without its data, for messages.
fn copy(member: &Member) -> Member {
    Member {
        path: member.path.clone(),
        link: member.link.clone(),
        xattrs: member.xattrs.clone(),
        content: Vec::new(),
        ..*member
    }
}

/// An OCI layout with one image, whose layers are archives.
struct Layout(std::path::PathBuf);

impl Layout {
    fn new(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder.join("blobs/sha256"))?;
        fs::write(
            folder.join("oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )?;
        Ok(Self(folder.to_owned()))
    }

    fn blob_path(&self, digest: &str) -> std::path::PathBuf {
        self.0.join("blobs").join(digest.replace(':', "/"))
    }

    /// Stores a blob and returns its descriptor.
    fn put(&self, kind: &str, bytes: &[u8], more: &str) -> Result<(String, String)> {
        use std::fmt::Write as _;
        let mut digest = "sha256:".to_owned();
        for byte in Sha256::digest(bytes) {
            write!(digest, "{byte:02x}")?;
        }
        fs::write(self.blob_path(&digest), bytes)?;
        let size = bytes.len();
        let descriptor = format!(
            r#"{{"mediaType":"application/vnd.oci.image.{kind}","digest":"{digest}","size":{size}{more}}}"#
        );
        Ok((digest, descriptor))
    }

    /// Stores the image and returns the digests of its layers.
    fn image(&self, tag: &str, layers: &[Vec<u8>]) -> Result<Vec<String>> {
        let (_, config) = self.put("config.v1+json", b"{}", "")?;
        let mut digests = Vec::new();
        let mut descriptors = Vec::new();
        for layer in layers {
            let is_packed = layer.starts_with(&[0x1f, 0x8b]);
            let kind = if is_packed {
                "layer.v1.tar+gzip"
            } else {
                "layer.v1.tar"
            };
            let (digest, descriptor) = self.put(kind, layer, "")?;
            digests.push(digest);
            descriptors.push(descriptor);
        }
        let layers = descriptors.join(",");
        let manifest = format!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{config},"layers":[{layers}]}}"#
        );
        let name = format!(r#","annotations":{{"org.opencontainers.image.ref.name":"{tag}"}}"#);
        let (_, descriptor) = self.put("manifest.v1+json", manifest.as_bytes(), &name)?;
        let index = format!(r#"{{"schemaVersion":2,"manifests":[{descriptor}]}}"#);
        fs::write(self.0.join("index.json"), index)?;
        Ok(digests)
    }
}

/// An archive of empty files with any names.
fn layer(names: &[&str]) -> Vec<u8> {
    let mut archive = Vec::new();
    for name in names {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_mode(0o640);
        header.set_uid(5);
        header.set_gid(6);
        header.set_mtime(7);
        header.set_size(0);
        header.set_cksum();
        archive.extend_from_slice(header.as_bytes());
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

#[test]
fn an_oci_image_has_the_files_of_its_layers() {
    require!(Need::Program("gzip"), Need::Program("e2fsck"));
    let place = Place::new();
    let layout = Layout::new(&place.path("layout")).expect("space");
    let base = layer(&["a/gone", "a/kept", "b/old", "b/sub/old", "c/file", "d"]);
    fs::write(place.path("base"), &base).expect("space");
    run("gzip", &["base"], place.0.path()).expect("packed");
    let packed = fs::read(place.path("base.gz")).expect("packed");
    let upper = layer(&["a/.wh.gone", "b/.wh..wh..opq", "b/new", ".wh.d", "e"]);
    let digests = layout.image("v1", &[packed, upper]).expect("space");
    let image = place.text("image");
    let source = format!("oci:{}:v1", place.text("layout"));
    let build = ["build", &source, "-o", &image, "--verify"];
    printed(&mut fourscore(&build));
    place.check("image").expect("clean");
    let walk = place.walk("image");
    let paths: Vec<&str> = walk
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let expected = ["/", "/a", "/a/kept", "/b", "/b/new", "/c", "/c/file", "/e"];
    assert_eq!(paths, expected);
    assert!(
        walk.contains("/b/new f 0640 5 6 1 0 7.000000000 "),
        "{walk}"
    );
    fs::remove_file(&image).expect("it was built");

    let fails = |expected: &str| {
        let (status, message) = failing(&build);
        assert_eq!(status, Some(1), "{message}");
        assert!(
            message.contains(expected),
            "expected {expected}\nfound    {message}"
        );
        assert!(!Path::new(&image).exists());
    };
    let blob = layout.blob_path(&digests[1]);
    let mut bytes = fs::read(&blob).expect("a layer");
    bytes[20] ^= 1;
    fs::write(&blob, bytes).expect("space");
    fails("the digest is wrong");
    fs::remove_file(&blob).expect("it was there");
    fails("No such file");
    let climbing = layer(&["x/../../escape"]);
    layout.image("v1", &[base, climbing]).expect("space");
    fails("x/../../escape: the path leaves its tree");
    let (_, message) = failing(&["build", &source.replace("v1", "v2"), "-o", &image]);
    assert!(message.contains("v2"), "{message}");
}

/// Sources of all kinds, each with a separate file and one that all have.
#[test]
fn sources_of_all_kinds_merge_in_any_order() {
    require!(
        Need::Program("tar"),
        Need::Program("gzip"),
        Need::Program("e2fsck")
    );
    let place = Place::new();
    let mut sources = Vec::new();
    for kind in ["directory", "plain", "gzip", "zstd", "layout"] {
        let folder = place.path(kind);
        fs::create_dir_all(folder.join("common")).expect("space");
        fs::write(folder.join("common/which"), kind).expect("space");
        fs::write(folder.join("common").join(kind), vec![b'x'; 100_000]).expect("space");
        let archive = format!("../{kind}.tar");
        if kind != "directory" {
            run("tar", &["-cf", &archive, "common"], &folder).expect("an archive");
        }
        let archive = place.text(&format!("{kind}.tar"));
        sources.push(match kind {
            "directory" => place.text(kind),
            "plain" => archive,
            "layout" => {
                let bytes = fs::read(archive).expect("an archive");
                let layout = Layout::new(&place.path("oci")).expect("space");
                layout.image("v1", &[bytes]).expect("space");
                format!("oci:{}", place.text("oci"))
            }
            packer => {
                run(packer, &["-q", &archive], place.0.path()).expect("packed");
                let suffix = if packer == "gzip" { "gz" } else { "zst" };
                format!("{archive}.{suffix}")
            }
        });
    }
    let image = place.text("image");
    for first in 0..sources.len() {
        sources.rotate_left(1);
        let kinds = ["directory", "plain", "gzip", "zstd", "layout"];
        let arguments = [
            vec!["build".to_owned(), "-o".to_owned(), image.clone()],
            sources.clone(),
        ];
        printed(&mut fourscore(&arguments.concat()));
        place.check("image").expect("clean");
        let found = printed(&mut fourscore(&["cat", &image, "/common/which"]));
        assert_eq!(found, kinds[first], "{sources:?}");
        let walk = place.walk("image");
        for kind in kinds {
            let wanted = format!("/common/{kind} f ");
            assert!(walk.contains(&wanted), "{wanted}\n{walk}");
        }
        assert_eq!(walk.lines().count(), 2 + 1 + kinds.len(), "{walk}");
    }
}

/// Extremes: a path that is too long for one system call, more hard links than a byte can count, a
/// file of 100 GiB.
#[test]
fn extremes_are_built_and_extracted() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    let extremes = place.path("extremes");
    fs::create_dir(&extremes).expect("space");
    let mut folder = fs::File::open(&extremes).expect("it exists");
    let name = "d".repeat(39);
    for _ in 0..101 {
        rustix::fs::mkdirat(&folder, &*name, Mode::from(0o755)).expect("space");
        let flags = OFlags::DIRECTORY | OFlags::RDONLY;
        let below = rustix::fs::openat(&folder, &*name, flags, Mode::empty());
        folder = below.expect("it exists").into();
    }
    rustix::fs::symlinkat("nowhere", &folder, "bottom").expect("space");
    fs::write(extremes.join("file"), "content").expect("space");
    for number in 1..10_000 {
        let link = extremes.join(format!("link-{number}"));
        fs::hard_link(extremes.join("file"), link).expect("space");
    }
    let sparse = fs::File::create(extremes.join("sparse")).expect("space");
    sparse.set_len(100 << 30).expect("space");
    sparse.write_all_at(b"data", 70 << 30).expect("space");
    let (source, image) = (place.text("extremes"), place.text("image"));
    let summary = printed(&mut fourscore(&["build", &source, "-o", &image, "--json"]));
    place.check("image").expect("clean");
    let facts: serde_json::Value = serde_json::from_str(&summary).expect("JSON");
    assert_eq!(facts["objects"], 1 + 101 + 1 + 1 + 1 + 1, "{summary}");
    // Without hashes, which take minutes for 100 GiB.
    let theirs = printed(&mut fourscore(&["walk", "--host", &source]));
    assert!(
        theirs
            .lines()
            .any(|line| line.split(' ').next().is_some_and(|path| path.len() > 4000))
    );
    assert!(theirs.contains("/link-9999 f 0644 ") && theirs.contains(" 10000 7 "));
    let ours = printed(&mut fourscore(&["walk", &image]));
    assert_eq!(
        without_lost_and_found(&ours),
        without_lost_and_found(&theirs)
    );
    let data = printed(&mut fourscore(&["filefrag", &image, "/sparse"]));
    assert!(data.contains("1 extent found"), "{data}");
    let out = place.text("out");
    printed(&mut fourscore(&["extract", &image, &out]));
    let back = printed(&mut fourscore(&["walk", "--host", &out]));
    assert_eq!(
        without_lost_and_found(&back),
        without_lost_and_found(&theirs)
    );
}

#[test]
fn archives_of_bsdtar_are_read() {
    require!(Need::Root, Need::Program("bsdtar"));
    let place = Place::new();
    let tree = place.tree();
    let pack = ["-cf", "../in.tar", "--format=pax", "."];
    let mut bsdtar = tools::command("bsdtar").expect("it exists");
    let packed = bsdtar.args(pack).current_dir(&tree).output();
    let packed = packed.context("bsdtar").expect("it runs");
    assert!(packed.status.success(), "{packed:?}");
    build_archive(&place);
    assert_eq!(
        without_lost_and_found(&place.walk("image")),
        without_lost_and_found(&walk_of_host(&tree))
    );
}

/// A file system is a source as well, with all objects and attributes.
#[test]
fn an_image_is_a_source() {
    require!(
        Need::Program("setfacl"),
        Need::Program("e2fsck"),
        Need::Program("mke2fs"),
        Need::Root
    );
    let place = Place::odd();
    let (tree, image, copy) = (place.text("tree"), place.text("image"), place.text("copy"));
    let full = |name: &str| {
        let name = place.text(name);
        printed(&mut fourscore(&["walk", "--hash", &name]))
    };
    printed(&mut fourscore(&[
        "build",
        &tree,
        "-o",
        &image,
        "-O",
        "inline_data,ea_inode",
    ]));
    let same = |source: &str, more: &[&str]| {
        let arguments = [&["build", source, "-o", &copy, "--verify", "-F"], more].concat();
        printed(&mut fourscore(&arguments));
        place.check("copy").expect("clean");
        assert_eq!(full("copy"), full("image"), "{source} {more:?}");
    };
    same(&image, &[]);
    same(&image, &["--shrink", "-b", "2048", "-O", "ea_inode"]);
    // In a disk, and merged over another source.
    let len = fs::metadata(&image).expect("it exists").len();
    let disk = fs::File::create(place.path("disk")).expect("space");
    disk.write_all_at(&fs::read(&image).expect("an image"), 5 << 20)
        .expect("space");
    disk.set_len((5 << 20) + len + 4096).expect("space");
    same(&format!("{}@5M", place.text("disk")), &[]);
    fs::create_dir_all(place.path("under/etc")).expect("space");
    fs::write(place.path("under/etc/under"), "").expect("space");
    let under = place.text("under");
    let arguments = [
        "build",
        &under,
        &image,
        "-o",
        &copy,
        "-F",
        "--exclude",
        "many",
    ];
    printed(&mut fourscore(&arguments));
    let walk = full("copy");
    assert!(
        walk.contains("/etc/under ") && walk.contains("/etc/passwd "),
        "{walk}"
    );
    assert!(!walk.contains("/many"), "{walk}");
    // Images of mke2fs, of other types.
    for kind in ["ext2", "ext3", "ext4"] {
        let arguments = [
            "-q", "-F", "-t", kind, "-b", "4096", "-d", &tree, &image, "64M",
        ];
        run("mke2fs", &arguments, place.0.path()).expect("an image");
        same(&image, &[]);
    }
}

/// Transactions in the journal after a crash are part of the tree.
#[test]
fn an_image_with_a_dirty_journal_is_read_after_replay() {
    require_mount!();
    let place = Place::new();
    let (image, copy) = (place.text("image"), place.text("copy"));
    place.build("image", &["--size", "64M"]);
    let point = place.text("point");
    fs::create_dir(&point).expect("space");
    printed(&mut fourscore(&["mount", &image, &point]));
    fs::create_dir(place.path("point/made")).expect("space");
    let file = fs::File::create(place.path("point/made/file")).expect("space");
    file.write_all_at(b"synced", 0).expect("space");
    file.sync_all().expect("space");
    // A copy has the state after a power failure.
    fs::copy(&image, place.path("crashed")).expect("space");
    drop(file);
    printed(&mut fourscore(&["umount", &point]));
    let crashed = fs::read(place.path("crashed")).expect("an image");
    let info = printed(&mut fourscore(&["info", &place.text("crashed")]));
    assert!(info.contains("needs_recovery"), "{info}");
    printed(&mut fourscore(&[
        "build",
        &place.text("crashed"),
        "-o",
        &copy,
    ]));
    place.check("copy").expect("clean");
    let found = printed(&mut fourscore(&["cat", &copy, "/made/file"]));
    assert_eq!(found, "synced");
    assert!(
        fs::read(place.path("crashed")).expect("an image") == crashed,
        "it is a source"
    );
}

/// An archive of a layout is read from a file and from a pipe, for the given platform.
#[test]
fn an_archive_of_an_oci_image_is_read_for_a_platform() {
    require!(Need::Program("tar"), Need::Program("gzip"));
    let place = Place::new();
    let layout = Layout::new(&place.path("layout")).expect("space");
    let mut images = Vec::new();
    for architecture in ["s390x", "riscv64"] {
        layout
            .image("v1", &[layer(&["etc/", architecture])])
            .expect("space");
        let index = fs::read_to_string(place.path("layout/index.json")).expect("an index");
        let index: serde_json::Value = serde_json::from_str(&index).expect("JSON");
        let mut image = index["manifests"][0].clone();
        image["platform"] = serde_json::json!({"os": "linux", "architecture": architecture});
        images.push(image);
    }
    let index = serde_json::json!({"schemaVersion": 2, "manifests": images});
    fs::write(place.path("layout/index.json"), index.to_string()).expect("space");
    run(
        "tar",
        &["-czf", "../layout.tar.gz", "."],
        &place.path("layout"),
    )
    .expect("an archive");
    let (archive, image) = (place.text("layout.tar.gz"), place.text("image"));
    let on = ["--platform", "linux/riscv64", "-o", &image];
    for source in [archive.as_str(), "-", &place.text("layout")] {
        let mut command = fourscore(&[&["build", source], &on[..]].concat());
        command.stdin(fs::File::open(&archive).expect("an archive"));
        printed(&mut command);
        let walk = place.walk("image");
        assert!(
            walk.contains("/riscv64 ") && !walk.contains("/oci-layout "),
            "{source}: {walk}"
        );
    }
    let (status, message) = failing(&["build", &archive, "-o", &image]);
    assert_eq!(status, Some(1), "{message}");
    let expected = "only for: linux/s390x, linux/riscv64 (choose with --platform)";
    assert!(message.contains(expected), "{message}");
    let (status, message) = failing(&["build", &archive, "-o", &image, "--platform", "linux"]);
    assert_eq!(status, Some(2), "{message}");
    let tree = format!("tree:{archive}");
    printed(&mut fourscore(&["build", &tree, "-o", &image]));
    assert!(place.walk("image").contains("/oci-layout "));
}

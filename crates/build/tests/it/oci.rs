//! Tests of container images: layers are compared with unpacking them by hand, and invalid layouts
//! are refused.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fourscore_build::source::{OciImage, Reading, Source, Transport};
use fourscore_build::{Flow, Options, build};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{require, scratch};

use crate::cases::{self, Case};
use crate::common::oci::{Layout, MANIFEST, TAR, TAR_GZIP, TAR_ZSTD, descriptor, index};
use crate::common::{
    END, ensure_same, header, of_host, of_tree, read_for_platform, read_source, seal, tool,
};

fn tagged(tag: &str) -> String {
    format!(r#", "annotations": {{"org.opencontainers.image.ref.name": "{tag}"}}"#)
}

fn platform(os: &str, architecture: &str) -> String {
    format!(r#", "platform": {{"os": "{os}", "architecture": "{architecture}"}}"#)
}

fn this_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// An archive of empty files; a path with a trailing slash is a directory.
fn files(paths: &[&str]) -> Vec<u8> {
    let mut archive = Vec::new();
    for path in paths {
        let flag = if path.ends_with('/') { b'5' } else { b'0' };
        archive.extend(header(path.as_bytes(), flag, 0));
    }
    [archive, END.to_vec()].concat()
}

fn paths(source: &Source) -> Result<Vec<String>> {
    let (tree, _) = read_source(source, &[])?;
    Ok(of_tree(&tree)?
        .into_iter()
        .map(|(path, _)| path)
        .skip(1)
        .collect())
}

/// Packs a directory as a layer.
fn layer_of(folder: &Path) -> Result<Vec<u8>> {
    let archive = folder.with_extension("tar");
    let name = archive.to_str().context("a plain name")?;
    tool(
        "tar",
        &["--xattrs", "--sort=name", "-cf", name, "."],
        folder,
    )?;
    Ok(fs::read(archive)?)
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// Directories of three layers with whiteouts.
fn make_layers(folder: &Path) -> Result<Vec<PathBuf>> {
    let layers: Vec<PathBuf> = (1..=3)
        .map(|nr| folder.join(format!("layer{nr}")))
        .collect();
    for path in ["usr/lib", "etc/conf.d", "opaque/deep", "var"] {
        fs::create_dir_all(layers[0].join(path))?;
    }
    symlink("usr/lib", layers[0].join("lib"))?;
    fs::write(layers[0].join("usr/lib/libc"), [b'c'; 200_000])?;
    for path in [
        "etc/passwd",
        "etc/conf.d/x",
        "opaque/old",
        "opaque/deep/old",
        "var/gone",
    ] {
        fs::write(layers[0].join(path), path)?;
    }
    fs::hard_link(
        layers[0].join("usr/lib/libc"),
        layers[0].join("usr/lib/libc.so"),
    )?;

    for path in ["etc", "opaque", "var"] {
        fs::create_dir_all(layers[1].join(path))?;
    }
    fs::write(layers[1].join("etc/passwd"), "changed")?;
    for path in [
        "etc/.wh.conf.d",
        "opaque/.wh..wh..opq",
        "var/.wh.gone",
        "var/.wh..wh.plnk",
    ] {
        fs::write(layers[1].join(path), "")?;
    }
    // This file sorts before the whiteout, which applies to the lower layer only.
    fs::write(layers[1].join("opaque/!new"), "new")?;
    fs::write(layers[1].join("var/was-file"), "file")?;

    fs::create_dir_all(layers[2].join("var/was-file"))?;
    fs::create_dir_all(layers[2].join("etc/conf.d"))?;
    fs::write(layers[2].join("etc/conf.d/y"), "back")?;
    fs::write(layers[2].join("var/gone"), "back")?;
    Ok(layers)
}

/// Applies one layer to the others, as the specification says, with the tools of the host.
fn apply_layer(root: &Path, layer: &Path) -> Result<()> {
    let mut left = vec![layer.to_owned()];
    while let Some(folder) = left.pop() {
        let target = root.join(folder.strip_prefix(layer)?);
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry
                .file_name()
                .into_string()
                .ok()
                .context("a plain name")?;
            if name == ".wh..wh..opq" {
                if target.exists() {
                    fs::remove_dir_all(&target)?;
                }
            } else if let Some(hidden) = name.strip_prefix(".wh.") {
                tool(
                    "rm",
                    &["-rf", target.join(hidden).to_str().context("plain")?],
                    root,
                )?;
            } else if entry.file_type()?.is_dir() {
                left.push(entry.path());
                if target.join(&name).is_file() {
                    fs::remove_file(target.join(&name))?;
                }
            }
        }
    }
    let archive = layer.with_extension("tar");
    let archive = archive.to_str().context("a plain name")?;
    tool("tar", &["-xpf", archive, "--exclude=.wh.*"], root)
}

#[test]
fn layers_equal_unpacking_them_by_hand() {
    require!(Need::Program("tar"), Need::Root);
    let folder = scratch::folder().expect("a folder");
    let layers = make_layers(folder.path()).expect("layers");
    let layout = Layout::new();
    let root = folder.path().join("root");
    fs::create_dir(&root).expect("disk space");
    let mut blobs = Vec::new();
    for (nr, layer) in layers.iter().enumerate() {
        let bytes = layer_of(layer).expect("an archive");
        blobs.push(match nr {
            0 => (TAR_GZIP, layout.blob(&gzip(&bytes).expect("memory"))),
            1 => (
                TAR_ZSTD,
                layout.blob(&zstd::encode_all(&bytes[..], 1).expect("memory")),
            ),
            _ => (TAR, layout.blob(&bytes)),
        });
        apply_layer(&root, layer).expect("a layer");
    }
    let manifest = layout.manifest(&blobs);
    layout.index(&[descriptor(MANIFEST, &manifest, "")]);
    let (tree, _) = read_source(&layout.source(None), &[]).expect("an image");
    let theirs = of_host(&root).expect("a tree");
    assert!(theirs.iter().any(|(path, _)| path == "opaque/!new"));
    assert!(
        !theirs
            .iter()
            .any(|(path, _)| path.contains("old") || path.contains(".wh."))
    );
    ensure_same(&of_tree(&tree).expect("a tree"), &theirs).expect("the same");
    if !Need::KernelMount.is_met() {
        return;
    }
    let image = folder.path().join("image");
    let options = Options::new();
    build(&options, tree, &cases::target(&image), &|_| Flow::Continue).expect("an image");
    assert_clean(&image);
    let mount = KernelMount::new(&image, Access::ReadOnly, "").expect("a mount");
    let ours = of_host(mount.path()).expect("a tree");
    let ours: Vec<_> = ours
        .into_iter()
        .filter(|(path, _)| path != "lost+found")
        .collect();
    mount.unmount().expect("not busy");
    ensure_same(&ours, &theirs).expect("the same in the kernel's mount");
}

#[test]
fn images_of_layers_do_not_depend_on_threads() {
    require!(Need::Program("tar"));
    let folder = scratch::folder().expect("a folder");
    let layers = make_layers(folder.path()).expect("layers");
    let layout = Layout::new();
    let packed = |layer: &PathBuf| {
        let bytes = layer_of(layer).expect("an archive");
        (TAR_GZIP, layout.blob(&gzip(&bytes).expect("memory")))
    };
    let manifest = layout.manifest(&layers.iter().map(packed).collect::<Vec<_>>());
    layout.index(&[descriptor(MANIFEST, &manifest, "")]);
    cases::assert_same_bytes_on_any_thread_count(
        || Case::new("-t ext4"),
        |case| case.build_source(&layout.source(None)),
    );
}

#[test]
fn hard_links_refer_to_lower_layers_through_symbolic_links() {
    let lower = [
        header(b"dir/file", b'0', 0),
        {
            let mut link = header(b"alias", b'2', 0);
            link[157..160].copy_from_slice(b"dir");
            seal(&mut link);
            link
        },
        END.to_vec(),
    ]
    .concat();
    let mut hard = header(b"alias/other", b'1', 0);
    hard[157..167].copy_from_slice(b"alias/file");
    seal(&mut hard);
    let upper = [hard, END.to_vec()].concat();
    let layout = Layout::of_layers(&[&lower, &upper]);
    let (tree, _) = read_source(&layout.source(None), &[]).expect("an image");
    let listing = of_tree(&tree).expect("a tree");
    let links: Vec<_> = listing
        .iter()
        .map(|(path, attributes)| (path.as_str(), attributes.links))
        .collect();
    assert_eq!(
        links,
        [
            ("", 1),
            ("alias", 1),
            ("dir", 1),
            ("dir/file", 2),
            ("dir/other", 2)
        ]
    );
}

#[test]
fn images_are_selected_by_tag_and_platform() {
    let layout = Layout::new();
    let image = |name: &str| layout.manifest(&[(TAR, layout.blob(&files(&[name])))]);
    let (ours, other) = (image("ours"), image("other"));
    let nested = index(&[
        descriptor(MANIFEST, &other, &platform("linux", "s390x")),
        descriptor(MANIFEST, &ours, &platform("linux", this_architecture())),
        descriptor(MANIFEST, &other, &platform("unknown", "unknown")),
    ]);
    let nested = layout.blob(nested.as_bytes());
    let index_kind = "application/vnd.oci.image.index.v1+json";
    layout.index(&[
        descriptor(index_kind, &nested, &tagged("many")),
        descriptor(MANIFEST, &other, &tagged("one")),
    ]);
    assert_eq!(
        paths(&layout.source(Some("many"))).expect("an image"),
        ["ours"]
    );
    assert_eq!(
        paths(&layout.source(Some("one"))).expect("an image"),
        ["other"]
    );
    let on = |tag: &str, platform: &str| {
        let platform = platform.parse().expect("a platform");
        let read_source = read_for_platform(&layout.source(Some(tag)), Some(&platform));
        read_source.map_or_else(|error| error.to_string(), |_| "read_source".to_owned())
    };
    assert_eq!(on("many", "linux/s390x"), "read_source");
    let found = on("many", "linux/riscv64");
    let ours = this_architecture();
    let expected = format!("no image for linux/riscv64, only for: linux/s390x, linux/{ours}");
    assert!(found.contains(&expected), "{found}");
    let found = layout.error_of(Some("none"));
    assert!(
        found.contains("there is no image 'none', only: many, one"),
        "{found}"
    );
    let found = layout.error_of(None);
    assert!(
        found.contains("several images, name one as in oci:DIR:TAG: many, one"),
        "{found}"
    );
    let foreign = index(&[
        descriptor(MANIFEST, &other, &platform("linux", "s390x")),
        descriptor(MANIFEST, &other, &platform("plan9", "amd64")),
    ]);
    fs::write(layout.folder.path().join("index.json"), foreign).expect("disk space");
    let found = layout.error_of(None);
    let expected = "only for: linux/s390x, plan9/amd64 (choose with --platform)";
    assert!(
        found.contains("there is no image for linux/") && found.contains(expected),
        "{found}"
    );
}

#[test]
fn a_layer_that_does_not_match_its_descriptor_is_refused() {
    let bytes = files(&["file"]);
    let layout = Layout::of_layers(&[&bytes]);
    assert_eq!(layout.error_of(None), "none");
    let blob = layout.blob(&bytes);
    let mut changed = bytes.clone();
    changed[0] = b'F';
    fs::write(layout.path(&blob), &changed).expect("disk space");
    let found = layout.error_of(None);
    assert!(
        found.contains("layer 1 (sha256:") && found.contains("the digest is wrong"),
        "{found}"
    );
    fs::remove_file(layout.path(&blob)).expect("it was there");
    let found = layout.error_of(None);
    assert!(
        found.contains("layer 1 (sha256:") && found.contains("No such file"),
        "{found}"
    );
    let manifest = layout.manifest(&[("application/x.tar+encrypted", blob)]);
    layout.index(&[descriptor(MANIFEST, &manifest, "")]);
    let found = layout.error_of(None);
    assert!(
        found.contains("media type application/x.tar+encrypted is not supported"),
        "{found}"
    );
    layout.index(&[r#"{"digest": "sha256:../../etc/passwd", "size": 1}"#.to_owned()]);
    let found = layout.error_of(None);
    assert!(
        found.contains("is not a sha256 or sha512 digest"),
        "{found}"
    );
}

#[test]
fn paths_outside_the_tree_and_nameless_whiteouts_are_refused() {
    let mut link = header(b"link", b'1', 0);
    link[157..169].copy_from_slice(b"../../secret");
    seal(&mut link);
    let link = [link, END.to_vec()].concat();
    for (layer, expected) in [
        (
            files(&["a/", "a/../../b"]),
            "a/../../b: the path leaves its tree",
        ),
        (files(&["x/../.wh.y"]), "leaves its tree"),
        (
            files(&["dir/.wh."]),
            "dir/.wh.: is a whiteout without a valid name",
        ),
        (
            files(&["dir/.wh.."]),
            "dir/.wh..: is a whiteout without a valid name",
        ),
        (link, "leaves its tree"),
    ] {
        let layout = Layout::of_layers(&[&files(&["dir/", "dir/kept"]), &layer]);
        let found = layout.error_of(None);
        assert!(found.contains("layer 2 (sha256:"), "{found}");
        assert!(
            found.contains(expected),
            "expected {expected}\nfound    {found}"
        );
    }
}

#[test]
fn a_whiteout_of_a_missing_name_removes_nothing() {
    let upper = files(&["nowhere/.wh.x", "dir/kept/.wh.x", "gone/.wh..wh..opq"]);
    let layout = Layout::of_layers(&[&files(&["dir/", "dir/kept"]), &upper]);
    let found = paths(&layout.source(None)).expect("an image");
    assert_eq!(found, ["dir", "dir/kept"]);
}

#[test]
fn a_layer_with_a_digest_needs_no_end_mark() {
    let bytes = files(&["file"]);
    let layout = Layout::of_layers(&[&bytes[..512]]);
    assert_eq!(paths(&layout.source(None)).expect("an image"), ["file"]);
}

#[test]
fn invalid_layouts_are_refused() {
    let ensure_error = |layout: &Layout, expected: &str| -> Result<()> {
        let found = layout.error_of(None);
        ensure!(found.contains(expected), "{found}");
        Ok(())
    };
    let layout = Layout::new();
    ensure_error(&layout, "index.json: No such file").expect("no index");
    layout.index(&[]);
    ensure_error(&layout, "there is no image for").expect("an empty index");
    fs::write(layout.folder.path().join("index.json"), "{").expect("disk space");
    ensure_error(&layout, "index.json: EOF").expect("half an index");
    fs::remove_file(layout.folder.path().join("oci-layout")).expect("it was there");
    ensure_error(&layout, "is this an OCI layout?").expect("no layout");
}

/// The hexadecimal digest of some bytes.
fn digits(bytes: &[u8]) -> String {
    use sha2::{Digest as _, Sha256};
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An archive in the old format of `docker save`: a directory for each layer, and a configuration
/// for each image. The second image has the first layer too, as a link.
fn docker_archive(folder: &Path, layers: &[Vec<u8>]) -> Result<PathBuf> {
    let root = folder.join("docker");
    let ids: Vec<String> = layers
        .iter()
        .map(|bytes| digits(&[&b"id"[..], bytes].concat()))
        .collect();
    for (id, bytes) in ids.iter().zip(layers) {
        fs::create_dir_all(root.join(id))?;
        fs::write(root.join(id).join("VERSION"), "1.0")?;
        fs::write(root.join(id).join("layer.tar"), bytes)?;
    }
    let other = digits(b"another id of the first layer");
    fs::create_dir_all(root.join(&other))?;
    symlink(
        format!("../{}/layer.tar", ids[0]),
        root.join(&other).join("layer.tar"),
    )?;
    let mut images = Vec::new();
    for (name, ids, layers) in [("all", &ids[..], layers), ("first", &[other], &layers[..1])] {
        let diffs: Vec<String> = layers
            .iter()
            .map(|l| format!(r#""sha256:{}""#, digits(l)))
            .collect();
        let config = format!(
            r#"{{"os": "linux", "architecture": "s390x", "rootfs": {{"type": "layers", "diff_ids": [{}]}}}}"#,
            diffs.join(",")
        );
        let config_name = format!("{}.json", digits(config.as_bytes()));
        fs::write(root.join(&config_name), config)?;
        let layers: Vec<String> = ids
            .iter()
            .map(|id| format!(r#""{id}/layer.tar""#))
            .collect();
        images.push(format!(
            r#"{{"Config": "{config_name}", "RepoTags": ["host:5000/{name}:latest"], "Layers": [{}]}}"#,
            layers.join(",")
        ));
    }
    fs::write(
        root.join("manifest.json"),
        format!("[{}]", images.join(",")),
    )?;
    fs::write(root.join("repositories"), "{}")?;
    let archive = folder.join("docker.tar");
    let name = archive.to_str().context("a plain name")?;
    let names: Vec<String> = fs::read_dir(&root)?
        .map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()))
        .collect::<Result<_>>()?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    tool("tar", &[&["-cf", name], &names[..]].concat(), &root)?;
    Ok(archive)
}

#[test]
fn archives_of_docker_are_read_as_images() {
    let folder = scratch::folder().expect("a folder");
    let layers = [
        files(&["a/", "a/gone", "b"]),
        files(&["a/.wh.gone", "a/new"]),
    ];
    let archive = docker_archive(folder.path(), &layers).expect("an archive");
    let image = |path: &Path, tag: Option<&str>| {
        Source::Oci(OciImage {
            transport: Transport::DockerArchive,
            path: path.to_owned(),
            tag: tag.map(str::to_owned),
        })
    };
    let error_of = |source: &Source| match read_source(source, &[]) {
        Ok(_) => "none".to_owned(),
        Err(error) => error.to_string(),
    };
    let all = ["a", "a/new", "b"];
    for name in ["host:5000/all:latest", "host:5000/all"] {
        assert_eq!(paths(&image(&archive, Some(name))).expect(name), all);
    }
    let first = image(&archive, Some("host:5000/first"));
    assert_eq!(paths(&first).expect("an image"), ["a", "a/gone", "b"]);
    // A name is required if there are several images.
    let by_content = |path: &Path| Source::Path(path.to_owned(), Reading::ByContent);
    let expected =
        "name one as in docker-archive:FILE:NAME:TAG: host:5000/all:latest, host:5000/first";
    let found = error_of(&by_content(&archive));
    assert!(found.contains(expected), "{found}");
    let found = error_of(&image(&archive, Some("other")));
    assert!(
        found.contains("there is no image 'other', only: host:5000/all"),
        "{found}"
    );
    // An image is for one platform.
    let wanted = "linux/amd64".parse().expect("a platform");
    let error = read_for_platform(&first, Some(&wanted)).expect_err("another platform");
    assert!(
        error
            .to_string()
            .contains("is for linux/s390x, not for linux/amd64"),
        "{error}"
    );
    // A compressed archive, and an image whose layer does not match its digest.
    let bytes = fs::read(&archive).expect("an archive");
    let packed = folder.path().join("docker.tar.gz");
    fs::write(&packed, gzip(&bytes).expect("memory")).expect("disk space");
    assert_eq!(
        paths(&image(&packed, Some("host:5000/all"))).expect("an image"),
        all
    );
    let at = bytes
        .windows(6)
        .position(|name| name == b"a/gone")
        .expect("a layer");
    let mut changed = bytes;
    // Only the data of the entry changes, not the header, which has its own checksum.
    changed[at + 157] = b'x';
    fs::write(&archive, changed).expect("disk space");
    let found = error_of(&image(&archive, Some("host:5000/all")));
    assert!(
        found.contains("layer 1 (sha256:") && found.contains("the digest is wrong"),
        "{found}"
    );
}

#[test]
fn layouts_are_read_from_directories_and_archives() {
    let folder = scratch::folder().expect("a folder");
    let layer = files(&["etc/", "etc/passwd"]);
    let layout = Layout::of_layers(&[&layer, &files(&["etc/.wh.passwd", "etc/new"])]);
    let expected = paths(&layout.source(None)).expect("an image");
    assert_eq!(expected, ["etc", "etc/new"]);
    let by_content = |path: &Path| Source::Path(path.to_owned(), Reading::ByContent);
    assert_eq!(
        paths(&by_content(layout.folder.path())).expect("a layout"),
        expected
    );
    let archive = layout.archive();
    assert_eq!(paths(&by_content(&archive)).expect("an archive"), expected);
    let bytes = fs::read(&archive).expect("an archive");
    fs::remove_file(&archive).expect("ours");
    let packed = folder.path().join("layout");
    for bytes in [
        gzip(&bytes).expect("memory"),
        zstd::encode_all(&bytes[..], 1).expect("memory"),
    ] {
        fs::write(&packed, bytes).expect("disk space");
        assert_eq!(paths(&by_content(&packed)).expect("an archive"), expected);
    }
    // Read as a tree, the archive is the files of the layout.
    let tree = Source::Path(packed, Reading::AsTree);
    let found = paths(&tree).expect("an archive");
    assert!(found.contains(&"oci-layout".to_owned()), "{found:?}");
}

/// skopeo's `dir:` transport stores all blobs in one directory.
#[test]
fn directories_of_skopeo_are_read_as_images() {
    let folder = scratch::folder().expect("a folder");
    let layers = [
        gzip(&files(&["a/", "a/old"])).expect("memory"),
        files(&["a/.wh.old", "b"]),
    ];
    let put = |bytes: &[u8]| {
        let digits = digits(bytes);
        fs::write(folder.path().join(&digits), bytes).expect("disk space");
        format!(
            r#"{{"digest": "sha256:{digits}", "size": {}}}"#,
            bytes.len()
        )
    };
    let config = put(br#"{"os": "linux", "architecture": "arm64"}"#);
    let layers: Vec<String> = layers.iter().map(|layer| put(layer)).collect();
    let manifest = format!(
        r#"{{"config": {config}, "layers": [{}]}}"#,
        layers.join(",")
    );
    fs::write(folder.path().join("manifest.json"), &manifest).expect("disk space");
    fs::write(
        folder.path().join("version"),
        "Directory Transport Version: 1.1\n",
    )
    .expect("disk space");
    let by_content = Source::Path(folder.path().to_owned(), Reading::ByContent);
    let named = Source::parse(format!("dir:{}", folder.path().display()).as_ref());
    for source in [&by_content, &named] {
        assert_eq!(paths(source).expect("an image"), ["a", "b"]);
    }
    let wanted = "linux/arm64/v8".parse().expect("a platform");
    read_for_platform(&named, Some(&wanted)).expect("it is for that");
    // With several platforms, each manifest has a name of its own.
    let digits = digits(manifest.as_bytes());
    let name = format!("{digits}.manifest.json");
    fs::write(folder.path().join(name), &manifest).expect("disk space");
    let one = |architecture: &str| {
        let size = manifest.len();
        format!(
            r#"{{"digest": "sha256:{digits}", "size": {size}{}}}"#,
            platform("linux", architecture)
        )
    };
    let all = index(&[one("arm64"), one("s390x")]);
    fs::write(folder.path().join("manifest.json"), all).expect("disk space");
    read_for_platform(&by_content, Some(&wanted)).expect("one of two");
}

/// Archives of trees whose first names could be those of an image are read as trees.
#[test]
fn trees_with_names_of_images_are_read_as_trees() {
    let folder = scratch::folder().expect("a folder");
    let archive = folder.path().join("tree.tar");
    for names in [
        &["index.json", "blobs/", "blobs/x"][..],
        &["./", "manifest.json", "bin/sh"],
    ] {
        let bytes = files(names);
        for bytes in [bytes.clone(), gzip(&bytes).expect("memory")] {
            fs::write(&archive, bytes).expect("disk space");
            let source = Source::Path(archive.clone(), Reading::ByContent);
            let found = paths(&source).expect("a tree");
            let file = names[names.len() - 1];
            assert!(found.contains(&file.to_owned()), "{found:?}");
        }
    }
}

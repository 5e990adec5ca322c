//! Every configuration reads like the kernel's mount of the image: each object, each attribute,
//! each byte. If this kernel cannot mount an image, debugfs is the oracle, and e2fsck has found it
//! clean.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore::{Follow, Fs, OpenOptions};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_sync::Arc;
use fourscore_testkit::matrix::{self, Config, Kernel, Populated};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{oracle as programs, require, scratch};

use crate::oracle::{self, same, walk_host, walk_image};

#[test]
fn every_configuration_reads_like_the_kernels_mount() {
    require!(
        Need::KernelMount,
        Need::Program("mke2fs"),
        Need::Program("debugfs")
    );
    assert!(matrix::configs().len() >= 40 || std::env::var_os("FOURSCORE_CONFIGS").is_some());
    matrix::assert_all(|config| check(config, &config.populated()?));
}

fn check(config: &Config, populated: &Populated) -> Result<()> {
    let image = populated.image.path();
    let whole = walk_image(&["--full", "--hash"], image);
    if config.kernel() > Kernel::Refuses {
        let mount = KernelMount::new(image, Access::ReadOnly, "")?;
        same(&whole?, &walk_host(&["--full", "--hash"], mount.path())?)?;
        return mount.unmount();
    }
    // Encrypted and verity files cannot be opened, but the kernel shows their attributes.
    if let Ok(mount) = KernelMount::new(image, Access::ReadOnly, "") {
        same(
            &walk_image(&["--full"], image)?,
            &walk_host(&["--full"], mount.path())?,
        )?;
        return mount.unmount();
    }
    // With inline_data, mke2fs -d 1.47 truncates files that end with a hole.
    if let Some(stage) = populated
        .stage
        .as_ref()
        .filter(|_| !config.has("inline_data"))
    {
        let mount = KernelMount::new(stage.path(), Access::ReadOnly, "")?;
        let theirs = walk_host(&["--hash"], mount.path())?;
        same(
            &kept_by_mke2fs(&walk_image(&["--hash"], image)?),
            &kept_by_mke2fs(&theirs),
        )
        .context("against the image that the tree was copied from")?;
        mount.unmount()?;
    }
    let whole = whole?;
    if config.name.starts_with("casefold") {
        ignores_case(image, &whole)?;
    }
    against_debugfs(image, &whole)?;
    // debugfs pads dumps of inline data to the space in the inode.
    if config.has("inline_data") {
        Ok(())
    } else {
        against_dumps(image, &whole)
    }
}

/// A portable walk without the attributes that `mke2fs -d` does not keep (fractions of seconds,
/// hard links to symbolic links) and without the objects that it creates itself.
fn kept_by_mke2fs(walk: &str) -> String {
    let line = |line: &str| {
        let mut fields: Vec<&str> = line.split(' ').collect();
        if fields.get(1) == Some(&"l") {
            fields[oracle::LINKS] = "*";
        }
        fields[oracle::MTIME] = "*";
        fields.join(" ") + "\n"
    };
    let made_by_mke2fs = |line: &&str| line.starts_with("/ ") || line.starts_with("/lost+found ");
    walk.lines()
        .filter(|text| !made_by_mke2fs(text))
        .map(line)
        .collect()
}

/// The fields of a line of `walk --full --hash` that debugfs shows as well.
struct Object<'a> {
    path: &'a str,
    /// `inode/mode/uid/gid/size`, as `ls -p` of debugfs prints it; no size for directories.
    facts: String,
    inode: &'a str,
    kind: &'a str,
    size_bytes: u64,
    hash: &'a str,
}

fn object(line: &str) -> Option<Object<'_>> {
    let fields: Vec<&str> = line.split(' ').collect();
    let &[
        path,
        kind,
        mode,
        uid,
        gid,
        _,
        size,
        _,
        _,
        _,
        _,
        inode,
        ..,
        hash,
    ] = fields.as_slice()
    else {
        return None;
    };
    let types = [
        ("f", 0o10),
        ("d", 4),
        ("l", 0o12),
        ("c", 2),
        ("b", 6),
        ("p", 1),
        ("s", 0o14),
    ];
    let file_type = types.iter().find(|(letter, _)| *letter == kind)?.1;
    let mode = file_type << 12 | u32::from_str_radix(mode, 8).ok()?;
    let shown = if kind == "d" { "" } else { size };
    // debugfs prints owners as signed numbers.
    let signed = |owner: &str| owner.parse().map(u32::cast_signed).ok();
    let (uid, gid) = (signed(uid)?, signed(gid)?);
    let facts = format!("{inode}/{mode:06o}/{uid}/{gid}/{shown}");
    Some(Object {
        path,
        facts,
        inode,
        kind,
        size_bytes: size.parse().ok()?,
        hash,
    })
}

/// The directory of a path; that of the root is the root.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or(
        "/",
        |(parent, _)| if parent.is_empty() { "/" } else { parent },
    )
}

/// Compares each directory's entries with what debugfs lists.
fn against_debugfs(image: &Path, whole: &str) -> Result<()> {
    let objects: Vec<Object<'_>> = whole.lines().filter_map(object).collect();
    ensure!(objects.len() > 50, "a tree of {} objects", objects.len());
    let mut children: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    // A name with a newline breaks the list of debugfs.
    let listable = |object: &&Object<'_>| {
        let name = object.path.rsplit('/').next().unwrap_or("");
        object.path != "/" && !name.contains("\\012")
    };
    for object in objects.iter().filter(listable) {
        children
            .entry(parent(object.path))
            .or_default()
            .insert(&object.facts);
    }
    for dir in objects.iter().filter(|object| object.kind == "d") {
        let listed = programs::debugfs(image, &[format!("ls -p <{}>", dir.inode)])?;
        let theirs: BTreeSet<String> = listed.lines().filter_map(listed_entry).collect();
        let ours = children.get(dir.path).cloned().unwrap_or_default();
        let ours: BTreeSet<String> = ours.into_iter().map(str::to_owned).collect();
        ensure!(
            ours == theirs,
            "{}: {:?}",
            dir.path,
            ours.symmetric_difference(&theirs)
        );
    }
    Ok(())
}

/// Compares the contents of files with what debugfs dumps.
fn against_dumps(image: &Path, whole: &str) -> Result<()> {
    let objects: Vec<Object<'_>> = whole.lines().filter_map(object).collect();
    let folder = scratch::folder()?;
    let small = objects
        .iter()
        .filter(|object| object.kind == "f" && object.size_bytes < 1 << 24);
    let few: Vec<&Object<'_>> = small.take(400).collect();
    let dumps: Vec<String> = few
        .iter()
        .map(|file| format!("dump <{0}> {1}/{0}", file.inode, folder.path().display()))
        .collect();
    programs::debugfs(image, &dumps)?;
    let theirs = walk_host(&["--hash"], folder.path())?;
    for file in few {
        let dumped = theirs
            .lines()
            .find(|line| line.starts_with(&format!("/{} ", file.inode)));
        let hash = dumped.and_then(|line| line.rsplit(' ').next());
        ensure!(
            hash == Some(file.hash),
            "{}: {hash:?}, not {}",
            file.path,
            file.hash
        );
    }
    Ok(())
}

/// A line of `ls -p` as [`Object::facts`]; `None` for the dots and for free records.
fn listed_entry(line: &str) -> Option<String> {
    // /inode/mode/uid/gid/name/size/ and a name has no slash.
    let fields: Vec<&str> = line.trim().split('/').collect();
    let &["", inode, mode, uid, gid, name, size, ..] = fields.as_slice() else {
        return None;
    };
    let counts = inode != "0" && name != "." && name != "..";
    counts.then(|| format!("{inode}/{mode}/{uid}/{gid}/{size}"))
}

/// Names in a casefolded directory are found in another case, and shown as they were created.
fn ignores_case(image: &Path, whole: &str) -> Result<()> {
    let device = open_path(image, DeviceOptions::default())?;
    let fs = Fs::open(Arc::new(device), &OpenOptions::new())?;
    let mut found = 0;
    for object in whole.lines().filter_map(object) {
        let Some(name) = object.path.strip_prefix("/directories/large/") else {
            continue;
        };
        if name.contains('\\') || name.contains('/') {
            continue;
        }
        let other = format!("/directories/large/{}", name.to_uppercase());
        let inode = fs.resolve(other.as_bytes(), Follow::No)?;
        ensure!(inode.to_string() == object.inode, "{other}: inode {inode}");
        found += 1;
    }
    ensure!(found > 100, "only {found} names looked up in another case");
    Ok(())
}

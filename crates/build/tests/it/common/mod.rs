//! Listings of trees of the host and of sources, for comparison.

pub(crate) mod oci;

use std::fs::{self, File, Metadata};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use fourscore_build::source::{Context, Excludes, Notices, Platform, Source};
use fourscore_build::tree::{Content, DataPlace, Kind, NodeId, Tree};
use fourscore_sync::Counter;
use fourscore_testkit::tools;

/// Reads a source into an empty tree; returns the tree and the notices.
pub(crate) fn read_source(source: &Source, excludes: &[&str]) -> Result<(Tree, Notices)> {
    read_with(source, excludes, None)
}

/// As [`read_source`], for a platform.
pub(crate) fn read_for_platform(
    source: &Source,
    platform: Option<&Platform>,
) -> Result<(Tree, Notices)> {
    read_with(source, &[], platform)
}

fn read_with(
    source: &Source,
    excludes: &[&str],
    platform: Option<&Platform>,
) -> Result<(Tree, Notices)> {
    let mut patterns = Excludes::default();
    for pattern in excludes {
        patterns.add(pattern.as_bytes())?;
    }
    let mut tree = Tree::new();
    let scratch = std::env::temp_dir();
    let mut context = Context {
        excludes: &patterns,
        saved: None,
        destination: None,
        scratch: &scratch,
        threads: 2,
        read_objects: &Counter::default(),
        read_bytes: &Counter::default(),
        notices: Notices::default(),
        platform,
    };
    source.add_to(&mut tree, &mut context)?;
    Ok((tree, context.notices))
}

/// The attributes of an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) kind: char,
    pub(crate) permissions: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: (i64, i64),
    pub(crate) links: u64,
    /// Target, device number or digest of the data.
    pub(crate) what: String,
    pub(crate) xattrs: Vec<(String, String)>,
}

pub(crate) type Listing = Vec<(String, Attributes)>;

fn escaped(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Length and a simple digest of the data.
fn digest(content: &[u8]) -> String {
    let sum = content
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    format!("{} bytes {sum:016x}", content.len())
}

/// All objects below a directory of the host, by path.
pub(crate) fn of_host(root: &Path) -> Result<Listing> {
    let mut listing = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let found = fs::symlink_metadata(&path)?;
        let shown = escaped(path.strip_prefix(root)?.as_os_str().as_bytes());
        listing.push((shown, attributes_of_host(&path, &found)?));
        if found.is_dir() {
            for entry in fs::read_dir(&path)? {
                left.push(entry?.path());
            }
        }
    }
    listing.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(listing)
}

fn attributes_of_host(path: &Path, found: &Metadata) -> Result<Attributes> {
    let (kind, what) = match found.mode() >> 12 {
        0o4 => ('d', String::new()),
        0o12 => (
            'l',
            escaped(&fs::read_link(path)?.into_os_string().into_vec()),
        ),
        0o10 => ('f', digest(&fs::read(path)?)),
        0o2 => ('c', device(found.rdev())),
        0o6 => ('b', device(found.rdev())),
        0o1 => ('p', String::new()),
        _ => ('s', String::new()),
    };
    let mut names = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(path, names.as_mut_slice())?;
    let mut xattrs = Vec::new();
    for name in names[..len]
        .split(|&byte| byte == 0)
        .filter(|n| !n.is_empty())
    {
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::lgetxattr(path, name, value.as_mut_slice())?;
        xattrs.push((escaped(name), escaped(&value[..len])));
    }
    xattrs.sort();
    Ok(Attributes {
        kind,
        permissions: if kind == 'l' {
            0
        } else {
            found.mode() & 0o7777
        },
        owner: (found.uid(), found.gid()),
        mtime: (found.mtime(), found.mtime_nsec()),
        links: if kind == 'd' { 1 } else { found.nlink() },
        what,
        xattrs,
    })
}

fn device(number: u64) -> String {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    format!("{major}:{minor}")
}

/// All objects of a tree, by path.
pub(crate) fn of_tree(tree: &Tree) -> Result<Listing> {
    let mut listing = Vec::new();
    let mut left = vec![(Vec::new(), NodeId::ROOT)];
    while let Some((path, id)) = left.pop() {
        listing.push((escaped(&path), attributes_of_node(tree, id)?));
        for (name, child) in tree.children(id) {
            let slash = if path.is_empty() { &b""[..] } else { b"/" };
            left.push(([&path, slash, name].concat(), child));
        }
    }
    listing.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(listing)
}

fn attributes_of_node(tree: &Tree, id: NodeId) -> Result<Attributes> {
    let meta = tree.meta(id);
    let (kind, what) = match tree.kind(id) {
        Kind::Directory => ('d', String::new()),
        Kind::File(content) => ('f', digest(&bytes_of(tree, &content)?)),
        Kind::Symlink(target) => ('l', escaped(&target)),
        Kind::CharDevice(nr) => ('c', format!("{}:{}", nr.major, nr.minor)),
        Kind::BlockDevice(nr) => ('b', format!("{}:{}", nr.major, nr.minor)),
        Kind::Fifo => ('p', String::new()),
        Kind::Socket => ('s', String::new()),
    };
    Ok(Attributes {
        kind,
        permissions: if kind == 'l' {
            0
        } else {
            meta.permissions.into()
        },
        owner: (meta.uid, meta.gid),
        mtime: (meta.mtime.seconds(), meta.mtime.nanoseconds().into()),
        links: tree.links(id).max(1).into(),
        what,
        xattrs: tree
            .xattrs(id)
            .map(|(name, value)| (escaped(name), escaped(value)))
            .collect(),
    })
}

/// The data of a file, as a reader sees it.
pub(crate) fn bytes_of(tree: &Tree, content: &Content) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(content.len_bytes())?];
    let read = |place: DataPlace, at: u64, buffer: &mut [u8]| -> Result<()> {
        let DataPlace::Open(file) = place else {
            anyhow::bail!("the content is in a directory");
        };
        let file: &File = tree.file(file).context("no such file")?;
        Ok(file.read_exact_at(buffer, at)?)
    };
    match content {
        Content::Empty => {}
        Content::Bytes(content) => bytes.copy_from_slice(content),
        Content::Range { file, offset, .. } => read(DataPlace::Open(*file), *offset, &mut bytes)?,
        Content::Sparse(sparse) => {
            for piece in &sparse.pieces {
                let start = usize::try_from(piece.at)?;
                let end = start + usize::try_from(piece.len_bytes)?;
                let part = bytes.get_mut(start..end).context("a piece past the end")?;
                read(sparse.data, piece.from, part)?;
            }
        }
        other => anyhow::bail!("{other:?}"),
    }
    Ok(bytes)
}

/// Fails at the first difference.
pub(crate) fn ensure_same(ours: &Listing, theirs: &Listing) -> Result<()> {
    for (ours, theirs) in ours.iter().zip(theirs) {
        ensure!(ours == theirs, "ours:   {ours:?}\ntheirs: {theirs:?}");
    }
    ensure!(
        ours.len() == theirs.len(),
        "{} and {} objects",
        ours.len(),
        theirs.len()
    );
    Ok(())
}

/// Runs a program, which must succeed.
pub(crate) fn tool(name: &str, arguments: &[&str], folder: &Path) -> Result<()> {
    let output = tools::command(name)?
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()?;
    let error_of = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} {arguments:?}: {error_of}");
    Ok(())
}

/// A ustar header, for archives that GNU tar does not write.
pub(crate) fn header(path: &[u8], flag: u8, size: u64) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..path.len()].copy_from_slice(path);
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[156] = flag;
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

pub(crate) fn seal(block: &mut [u8]) {
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block[..512].iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

pub(crate) fn pax(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut content = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut len = rest + rest.to_string().len();
        len = rest + len.to_string().len();
        write!(content, "{len} {key}=").expect("memory");
        content.extend_from_slice(value);
        content.push(b'\n');
    }
    let mut blocks = header(b"pax", b'x', content.len() as u64);
    content.resize(content.len().next_multiple_of(512), 0);
    blocks.append(&mut content);
    blocks
}

/// The end mark of an archive.
pub(crate) const END: [u8; 1024] = [0; 1024];

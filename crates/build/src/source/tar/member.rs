//! **Purpose.** Combines all headers that describe an entry of an archive.
//!
//! **Model.** The header of an entry may be preceded by pax headers (`x` for this entry, `g` for
//! all that follow) and GNU long names (`L`, `K`). Precedence is: a record of the entry's pax
//! header, a record of a global one, the GNU long name, the header. An empty record removes a
//! global one.

use std::collections::BTreeMap;

use fourscore_ondisk::Timestamp;
use fourscore_ondisk::inode::DeviceNr;

use crate::source::encoding::{from_base64, from_percent};
use crate::source::fault::{Fault, Parsed};
use crate::source::names::HostNames;
use crate::source::tar::acl;
use crate::source::tar::header::{GnuSparse, Header};
use crate::source::tar::pax::{Record, Records, decimal, time};
use crate::source::tar::sparse::{Map, SparseFile, SparseRecords};
use crate::tree::{Meta, Xattrs, is_supported};

const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// Prefixes of the keys of records for extended attributes.
const ATTRIBUTES: [&[u8]; 2] = [b"LIBARCHIVE.xattr.", b"SCHILY.xattr."];
/// ext4 stores 12 bits of major numbers and 20 bits of minor numbers.
const MAJOR_MAX: i128 = (1 << 12) - 1;
const MINOR_MAX: i128 = (1 << 20) - 1;

/// The headers before the main header of an entry.
#[derive(Debug, Default)]
pub(super) struct Prologue {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: PaxRecords,
}

/// The records of pax headers.
#[derive(Clone, Debug, Default)]
struct PaxRecords {
    texts: BTreeMap<Vec<u8>, Vec<u8>>,
    sparse: SparseRecords,
}

/// Records of global pax headers.
#[derive(Debug, Default)]
pub(super) struct Global(PaxRecords);

/// An entry without its data.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) path: Vec<u8>,
    pub(super) body: Body,
    pub(super) meta: Meta,
    pub(super) xattrs: Xattrs,
    /// Names of attributes that ext4 cannot store.
    pub(super) left_out: Vec<Vec<u8>>,
}

/// The type of an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// A file; the archive has `stored_bytes` bytes for it.
    File {
        stored_bytes: u64,
        /// The map and the length of the file, if it is sparse.
        sparse: Option<SparseFile>,
        /// Whether blocks after the header continue the map.
        is_continued: bool,
    },
    Directory {
        stored_bytes: u64,
    },
    HardLink(Vec<u8>),
    Symlink(Vec<u8>),
    CharDevice(DeviceNr),
    BlockDevice(DeviceNr),
    Fifo,
}

impl Prologue {
    /// Parses the content of a GNU long name (`L`) or long link (`K`).
    pub(super) fn parse_long_name(&mut self, flag: u8, content: &[u8]) {
        let end = content.iter().position(|&byte| byte == 0);
        let text = content[..end.unwrap_or(content.len())].to_vec();
        match flag {
            b'K' => self.link = Some(text),
            _ => self.path = Some(text),
        }
    }

    /// Parses the content of a pax header for the next entry.
    pub(super) fn parse_pax(&mut self, content: &[u8]) -> Parsed<()> {
        self.records.parse(content)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.path.is_none()
            && self.link.is_none()
            && self.records.texts.is_empty()
            && self.records.sparse == SparseRecords::default()
    }

    /// The path as far as it is known, for messages.
    pub(super) fn known_path(&self, header: Option<&Header>) -> Option<Vec<u8>> {
        let name = self.records.sparse.name.as_ref();
        let known = name.or(self.records.texts.get(&b"path"[..]));
        let path = known.or(self.path.as_ref()).cloned();
        path.or_else(|| header.map(Header::path))
    }
}

impl Global {
    pub(super) fn parse_pax(&mut self, content: &[u8]) -> Parsed<()> {
        self.0.parse(content)
    }
}

impl PaxRecords {
    fn parse(&mut self, content: &[u8]) -> Parsed<()> {
        for record in Records::new(content) {
            let Record { key, value } = record?;
            match key.strip_prefix(b"GNU.sparse.") {
                Some(rest) => self.sparse.parse(rest, value)?,
                None => {
                    self.texts.insert(key.to_vec(), value.to_vec());
                }
            }
        }
        Ok(())
    }
}

/// Combines the headers of an entry. `global` has the records of global pax headers.
pub(super) fn member(header: &Header, prologue: Prologue, global: &Global) -> Parsed<Member> {
    let mut records = global.0.clone();
    records.texts.extend(prologue.records.texts);
    records.sparse = prologue.records.sparse;
    // An attribute may be empty; any other empty record removes an earlier one.
    let is_attribute = |key: &[u8]| ATTRIBUTES.iter().any(|start| key.starts_with(start));
    let texts = &mut records.texts;
    texts.retain(|key, value| !value.is_empty() || is_attribute(key));
    let texts = &records.texts;
    let text = |key: &str| texts.get(key.as_bytes()).cloned();
    let raw_path = records.sparse.name.clone().or_else(|| text("path"));
    let raw_path = raw_path.or(prologue.path).unwrap_or_else(|| header.path());
    let raw_link = text("linkpath").or(prologue.link);
    let raw_link = raw_link.unwrap_or_else(|| header.link().to_vec());

    let mut meta = meta(header, texts)?;
    let (xattrs, left_out) = attributes(header, texts, &mut meta)?;
    let size = number(texts, "size", "the size", || header.size())?;
    let size = u64::try_from(size)
        .ok()
        .filter(|&size| size <= i64::MAX as u64);
    let body = body(
        header,
        &raw_path,
        &raw_link,
        texts,
        records.sparse.clone(),
        size,
    )?;
    Ok(Member {
        path: raw_path,
        body,
        meta,
        xattrs,
        left_out,
    })
}

type Texts = BTreeMap<Vec<u8>, Vec<u8>>;

fn number(
    texts: &Texts,
    key: &str,
    field: &'static str,
    in_header: impl Fn() -> Parsed<i128>,
) -> Parsed<i128> {
    match texts.get(key.as_bytes()) {
        Some(text) => decimal(text, field),
        None => in_header(),
    }
}

fn meta(header: &Header, texts: &Texts) -> Parsed<Meta> {
    let id = |field, found: i128| {
        u32::try_from(found).map_err(|_| Fault::Range {
            field,
            value: found,
        })
    };
    let moment = |key: &str, field| texts.get(key.as_bytes()).map(|text| time(text, field));
    let stamp = |field, (seconds, nanoseconds): (i128, u32)| {
        let seconds_64 = i64::try_from(seconds).ok();
        let stamp = seconds_64.and_then(|seconds| Timestamp::new(seconds, nanoseconds));
        stamp.ok_or(Fault::Range {
            field,
            value: seconds,
        })
    };
    let mtime = match moment("mtime", "mtime").transpose()? {
        Some(found) => stamp("mtime", found)?,
        None => stamp("mtime", (header.mtime()?, 0))?,
    };
    let other = |key, field| match moment(key, field).transpose()? {
        Some(found) => stamp(field, found),
        None => Ok(mtime),
    };
    let uid = number(texts, "uid", "the user id", || header.uid())?;
    let gid = number(texts, "gid", "the group id", || header.gid())?;
    // Some programs store the file type bits too.
    let permissions = u16::try_from(header.mode()? & 0o7777).unwrap_or(0);
    Ok(Meta {
        permissions,
        uid: id("the user id", uid)?,
        gid: id("the group id", gid)?,
        project: 0,
        atime: other("atime", "atime")?,
        mtime,
        ctime: other("ctime", "ctime")?,
    })
}

/// The names of the entry's own user and group, which take precedence over those of this machine.
struct NamesOfEntry<'a> {
    user: (&'a [u8], u32),
    group: (&'a [u8], u32),
}

impl acl::Names for NamesOfEntry<'_> {
    fn user(&self, name: &[u8]) -> Option<u32> {
        let own = (name == self.user.0).then_some(self.user.1);
        own.or_else(|| HostNames::get().user(name))
    }

    fn group(&self, name: &[u8]) -> Option<u32> {
        let own = (name == self.group.0).then_some(self.group.1);
        own.or_else(|| HostNames::get().group(name))
    }
}

/// The extended attributes, and the names of those that ext4 cannot store. An access ACL changes
/// the permissions, as it does when it is set on a file.
fn attributes(header: &Header, texts: &Texts, meta: &mut Meta) -> Parsed<(Xattrs, Vec<Vec<u8>>)> {
    let text_or = |key: &str, other| texts.get(key.as_bytes()).map_or(other, Vec::as_slice);
    let names = NamesOfEntry {
        user: (text_or("uname", header.user_name()), meta.uid),
        group: (text_or("gname", header.group_name()), meta.gid),
    };
    let mut found: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (key, value) in texts {
        let malformed = || Fault::AttributeRecord { key: key.clone() };
        if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let name = from_percent(name, |_| true);
            // A SCHILY record of the same attribute has the exact bytes; it sorts later and
            // replaces this.
            found.insert(name, from_base64(value).ok_or_else(malformed)?);
        } else if key == b"RHT.security.selinux" {
            let label = [value.as_slice(), b"\0"].concat();
            found.entry(b"security.selinux".to_vec()).or_insert(label);
        } else if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            let name = from_percent(name, |byte| matches!(byte, b'=' | b'%'));
            found.insert(name, value.clone());
        }
    }
    // An ACL as an attribute has ids; as text it may have names only, so the attribute is
    // preferred.
    for (key, name) in [("access", ACL_ACCESS), ("default", ACL_DEFAULT)] {
        let text = texts.get(format!("SCHILY.acl.{key}").as_bytes());
        if let Some(text) = text.filter(|_| !found.contains_key(name)) {
            found.insert(name.to_vec(), acl::parse(text, &names)?);
        }
    }
    let mut xattrs = Xattrs::new();
    let mut left_out = Vec::new();
    for (name, value) in found {
        if value.is_empty() && (name == ACL_ACCESS || name == ACL_DEFAULT) {
            continue;
        }
        if name == ACL_ACCESS {
            let entries = acl::list(&value).ok_or_else(|| Fault::Acl {
                text: value.clone(),
            })?;
            let (bits, is_minimal) = acl::mode_bits(entries);
            meta.permissions = meta.permissions & !0o777 | bits;
            if is_minimal {
                continue;
            }
        }
        match is_supported(&name) {
            true => xattrs.set(&name, &value),
            false => left_out.push(name),
        }
    }
    Ok((xattrs, left_out))
}

fn body(
    header: &Header,
    raw_path: &[u8],
    raw_link: &[u8],
    texts: &Texts,
    sparse: SparseRecords,
    size: Option<u64>,
) -> Parsed<Body> {
    let stored_bytes = || size.ok_or(Fault::Number { field: "the size" });
    let flag = header.flag();
    // Before tar had a type for directories, a trailing slash marked one.
    if raw_path.ends_with(b"/") && matches!(flag, 0 | b'0') {
        return Ok(Body::Directory { stored_bytes: 0 });
    }
    match flag {
        0 | b'0' | b'7' => {
            let sparse = match sparse.finish()? {
                Some((map, len)) => Some(SparseFile {
                    map,
                    len_bytes: file_len(len)?,
                }),
                None => None,
            };
            Ok(Body::File {
                stored_bytes: stored_bytes()?,
                sparse,
                is_continued: false,
            })
        }
        b'S' => {
            let GnuSparse {
                runs,
                is_continued,
                size,
            } = header.gnu_sparse()?;
            Ok(Body::File {
                stored_bytes: stored_bytes()?,
                sparse: Some(SparseFile {
                    map: Map::Known(runs),
                    len_bytes: file_len(size)?,
                }),
                is_continued,
            })
        }
        b'1' => Ok(Body::HardLink(raw_link.to_vec())),
        b'2' => Ok(Body::Symlink(raw_link.to_vec())),
        b'3' => device(header, texts).map(Body::CharDevice),
        b'4' => device(header, texts).map(Body::BlockDevice),
        b'5' => Ok(Body::Directory { stored_bytes: 0 }),
        // Incremental backups store a list of the directory's entries, which is skipped.
        b'D' => Ok(Body::Directory {
            stored_bytes: stored_bytes()?,
        }),
        b'6' => Ok(Body::Fifo),
        b'M' => Err(Fault::Volume),
        flag => Err(Fault::Type { flag }),
    }
}

fn file_len(len: i128) -> Parsed<u64> {
    let found = u64::try_from(len)
        .ok()
        .filter(|&len| len <= i64::MAX as u64);
    found.ok_or(Fault::Range {
        field: "the size of the sparse file",
        value: len,
    })
}

fn device(header: &Header, texts: &Texts) -> Parsed<DeviceNr> {
    let part = |key: &str, field, in_header: i128, max: i128| {
        let found = number(texts, key, field, || Ok(in_header))?;
        let part = u32::try_from(found).ok().filter(|_| found <= max);
        part.ok_or(Fault::Range {
            field,
            value: found,
        })
    };
    let (major, minor) = header.device()?;
    Ok(DeviceNr {
        major: part("SCHILY.devmajor", "the major number", major, MAJOR_MAX)?,
        minor: part("SCHILY.devminor", "the minor number", minor, MINOR_MAX)?,
    })
}

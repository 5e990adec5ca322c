//! **Purpose.** Parses the keywords of an mtree line.
//!
//! **References.** mtree(5). `xattr.NAME=BASE64` is an extension of gomtree.

use fourscore_ondisk::Timestamp;
use fourscore_ondisk::inode::{DeviceNr, FileType};

use super::vis::unescaped;
use crate::source::{Fault, HostNames, Parsed, from_base64, is_id};
use crate::tree::Xattrs;

/// The keywords of an object; attributes without a keyword stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keywords {
    pub(super) kind: Option<FileType>,
    pub(super) permissions: Option<u16>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    user_name: Option<Vec<u8>>,
    group_name: Option<Vec<u8>>,
    pub(super) time: Option<Timestamp>,
    pub(super) size_bytes: Option<u64>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) device: Option<DeviceNr>,
    pub(super) xattrs: Xattrs,
    /// The object may be missing.
    pub(super) is_optional: bool,
    /// The object stays unchanged.
    pub(super) is_unchanged: bool,
}

/// The values of `type=`.
const TYPES: [(&str, FileType); 7] = [
    ("block", FileType::BlockDevice),
    ("char", FileType::CharDevice),
    ("dir", FileType::Directory),
    ("fifo", FileType::Fifo),
    ("file", FileType::Regular),
    ("link", FileType::Symlink),
    ("socket", FileType::Socket),
];

/// Keywords that are accepted and ignored.
const IGNORED: [&str; 24] = [
    "cksum",
    "flags",
    "ignore",
    "inode",
    "md5",
    "md5digest",
    "nlink",
    "resdevice",
    "ripemd160digest",
    "rmd160",
    "rmd160digest",
    "sha1",
    "sha1digest",
    "sha256",
    "sha256digest",
    "sha384",
    "sha384digest",
    "sha512",
    "sha512digest",
    "sha512256",
    "sha512256digest",
    "tags",
    "tar_cksum",
    "tar_time",
];

/// The value of `type=` for a type.
pub(super) fn kind_word(kind: FileType) -> &'static str {
    let found = TYPES.iter().find(|(_, own)| *own == kind);
    found.map_or("file", |(word, _)| word)
}

impl Keywords {
    /// Parses `KEYWORD` or `KEYWORD=VALUE`.
    pub(super) fn set(&mut self, word: &[u8]) -> Parsed<()> {
        let fault = |why| Fault::ManifestWord {
            word: word.to_vec(),
            why,
        };
        let equals = word.iter().position(|&byte| byte == b'=');
        let (key, value) = match equals {
            Some(at) => (&word[..at], Some(&word[at + 1..])),
            None => (word, None),
        };
        match key {
            b"optional" => self.is_optional = true,
            b"nochange" => self.is_unchanged = true,
            _ if IGNORED.iter().any(|own| own.as_bytes() == key) => {}
            _ => {
                let value = value.ok_or_else(|| match is_known(key) {
                    true => fault("has no value"),
                    false => fault("is not a known keyword"),
                })?;
                self.set_value(key, value).map_err(fault)?;
            }
        }
        Ok(())
    }

    fn set_value(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match key {
            b"type" => {
                let found = TYPES.iter().find(|(word, _)| word.as_bytes() == value);
                let (_, kind) = found.ok_or("is not a type")?;
                self.kind = Some(*kind);
            }
            b"mode" => {
                let text = std::str::from_utf8(value).unwrap_or_default();
                let mode = u16::from_str_radix(text, 8).ok();
                let mode = mode.filter(|mode| *mode <= 0o7777 && !text.starts_with('+'));
                self.permissions = Some(mode.ok_or("is not an octal mode up to 7777")?);
            }
            b"uid" => self.uid = Some(id(value, "is not a user id")?),
            b"gid" => self.gid = Some(id(value, "is not a group id")?),
            b"uname" => self.user_name = Some(value.to_vec()),
            b"gname" => self.group_name = Some(value.to_vec()),
            b"size" => self.size_bytes = Some(number(value).ok_or("is not a size in bytes")?),
            b"time" => self.time = Some(time(value).ok_or("is not SECONDS.NANOSECONDS")?),
            b"link" => self.link = Some(unescaped(value).ok_or("has an invalid escape")?),
            b"device" => {
                let parsed = device(value);
                self.device = Some(parsed.ok_or("is not native,MAJOR,MINOR or a device number")?);
            }
            _ => {
                let name = key.strip_prefix(b"xattr.").filter(|name| !name.is_empty());
                let name = name.ok_or("is not a known keyword")?;
                let name = unescaped(name).ok_or("has an invalid escape")?;
                let value = from_base64(value).ok_or("has a value that is not base64")?;
                self.xattrs.set(&name, &value);
            }
        }
        Ok(())
    }

    /// Resets a keyword (`/unset`).
    pub(super) fn unset(&mut self, key: &[u8]) -> Parsed<()> {
        match key {
            b"all" => *self = Self::default(),
            b"type" => self.kind = None,
            b"mode" => self.permissions = None,
            b"uid" => self.uid = None,
            b"gid" => self.gid = None,
            b"uname" => self.user_name = None,
            b"gname" => self.group_name = None,
            b"size" => self.size_bytes = None,
            b"time" => self.time = None,
            b"link" => self.link = None,
            b"device" => self.device = None,
            b"optional" => self.is_optional = false,
            b"nochange" => self.is_unchanged = false,
            _ if IGNORED.iter().any(|own| own.as_bytes() == key) => {}
            _ => {
                return Err(Fault::ManifestWord {
                    word: key.to_vec(),
                    why: "is not a known keyword",
                });
            }
        }
        Ok(())
    }

    /// The user id: given as a number, or looked up by name on this machine.
    pub(super) fn user(&self) -> Parsed<Option<u32>> {
        let by_name = |name: &[u8]| HostNames::get().user(name);
        resolve_id(self.uid, self.user_name.as_deref(), by_name, "uname=")
    }

    /// The group id, as [`Keywords::user`].
    pub(super) fn group(&self) -> Parsed<Option<u32>> {
        let by_name = |name: &[u8]| HostNames::get().group(name);
        resolve_id(self.gid, self.group_name.as_deref(), by_name, "gname=")
    }
}

/// An id of a user or a group; `expected` is the fault of what is no number.
fn id(value: &[u8], expected: &'static str) -> Result<u32, &'static str> {
    match number(value).ok_or(expected)? {
        id if is_id(id) => Ok(id),
        _ => Err("is the id that no user and no group has"),
    }
}

fn resolve_id(
    id: Option<u32>,
    name: Option<&[u8]>,
    by_name: impl Fn(&[u8]) -> Option<u32>,
    keyword: &str,
) -> Parsed<Option<u32>> {
    let Some(name) = name.filter(|_| id.is_none()) else {
        return Ok(id);
    };
    let found = by_name(name).ok_or_else(|| Fault::ManifestWord {
        word: [keyword.as_bytes(), name].concat(),
        why: "is not known on this machine (give a number)",
    })?;
    Ok(Some(found))
}

fn is_known(key: &[u8]) -> bool {
    const WITH_VALUES: [&[u8]; 10] = [
        b"type", b"mode", b"uid", b"gid", b"uname", b"gname", b"size", b"time", b"link", b"device",
    ];
    WITH_VALUES.contains(&key) || key.starts_with(b"xattr.")
}

/// Parses an unsigned decimal number without a sign.
fn number<N: std::str::FromStr>(text: &[u8]) -> Option<N> {
    let is_digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(text).ok().filter(|_| is_digits)?;
    text.parse().ok()
}

/// Parses seconds, followed by a point and nanoseconds as an integer: `1.5` is five nanoseconds
/// after the first second, as existing writers of mtrees mean it.
fn time(text: &[u8]) -> Option<Timestamp> {
    let (is_negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let point = digits.iter().position(|&byte| byte == b'.');
    let (seconds, nanoseconds) = match point {
        Some(at) => (&digits[..at], number(&digits[at + 1..])?),
        None => (digits, 0),
    };
    let seconds: i64 = number(seconds)?;
    Timestamp::new(if is_negative { -seconds } else { seconds }, nanoseconds)
}

fn device(text: &[u8]) -> Option<DeviceNr> {
    let parts: Vec<&[u8]> = text.split(|&byte| byte == b',').collect();
    match parts.as_slice() {
        [packed] => {
            let packed = number(packed)?;
            Some(DeviceNr {
                major: rustix::fs::major(packed),
                minor: rustix::fs::minor(packed),
            })
        }
        [b"native" | b"linux", major, minor] => Some(DeviceNr {
            major: number(major)?,
            minor: number(minor)?,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keywords(words: &[&str]) -> Parsed<Keywords> {
        let mut keywords = Keywords::default();
        for word in words {
            keywords.set(word.as_bytes())?;
        }
        Ok(keywords)
    }

    #[test]
    fn every_keyword() {
        let found = keywords(&[
            "type=char",
            "mode=04755",
            "uid=1",
            "gid=4294967294",
            "uname=root",
            "time=-5.000000007",
            "size=9",
            r"link=a\040b",
            "device=linux,259,300",
            "xattr.user.a=Zm9v",
            "nlink=2",
            "sha256digest=00",
            "ignore",
            "optional",
            "nochange",
        ]);
        let found = found.unwrap();
        assert_eq!(found.kind, Some(FileType::CharDevice));
        assert_eq!(found.permissions, Some(0o4755));
        assert_eq!(found.user().unwrap(), Some(1), "a number takes precedence");
        assert_eq!(found.group().unwrap(), Some(4_294_967_294));
        assert_eq!(found.time, Timestamp::new(-5, 7));
        assert_eq!(found.link.as_deref(), Some(&b"a b"[..]));
        let device = found.device.unwrap();
        assert_eq!((device.major, device.minor), (259, 300));
        let xattrs: Vec<_> = found.xattrs.iter().collect();
        assert_eq!(xattrs, [(&b"user.a"[..], &b"foo"[..])]);
        assert!(found.is_optional && found.is_unchanged);
        assert_eq!(keywords(&["gname=root"]).unwrap().group().unwrap(), Some(0));
        let packed = keywords(&["device=259"]).unwrap().device.unwrap();
        assert_eq!((packed.major, packed.minor), (1, 3));
        assert_eq!(keywords(&["time=1.5"]).unwrap().time, Timestamp::new(1, 5));
    }

    #[test]
    fn errors_name_the_invalid_keyword() {
        for word in [
            "type=door",
            "mode=u+x",
            "mode=10000",
            "mode=+755",
            "uid=-1",
            "uid=",
            "gid=4294967296",
            "gid=4294967295",
            "size=1K",
            "time=x",
            "time=1.1000000000",
            r"link=\q",
            "device=freebsd,1,2",
            "device=native,1",
            "xattr.user.a=?",
            "xattr.=Zm9v",
            "mode",
            "contents=x",
            "frob",
        ] {
            let error = keywords(&[word]).unwrap_err().to_string();
            assert!(
                error.contains(&word.escape_default().to_string()),
                "{error}"
            );
        }
        let unknown = keywords(&["uname=no such user"]).unwrap();
        let error = unknown.user().unwrap_err().to_string();
        assert!(error.contains("uname=no such user"), "{error}");
    }
}

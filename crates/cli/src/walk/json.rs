//! **Purpose.** The lines of a walk as JSON objects, one on a line, with the keys that `ls` and
//! `stat` use as well (docs/JSON.md).
//!
//! **Model.** Threads make the canonical lines, in any form of the tree; this turns them into
//! objects as they are printed, so that both forms have the same content. A field that does not
//! apply is `null`.

use serde_json::{Map, Value, json};

use super::line::Detail;
use super::{Format, Hashing};
use crate::facts::{Kind, Time};
use crate::text::printable;
use crate::time::rfc3339;

/// Turns lines into objects.
#[derive(Debug)]
pub(super) struct Objects {
    format: Format,
    /// The beginning of a line whose end has not arrived.
    begun: Vec<u8>,
}

impl Objects {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            begun: Vec::new(),
        }
    }

    /// Appends the objects of the lines that `bytes` ends to `out`.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            self.begun.extend_from_slice(&rest[..end]);
            let object = self.object(&self.begun);
            out.extend_from_slice(object.to_string().as_bytes());
            out.push(b'\n');
            self.begun.clear();
            rest = &rest[end + 1..];
        }
        self.begun.extend_from_slice(rest);
    }

    fn object(&self, line: &[u8]) -> Value {
        let mut fields = line.split(|&byte| byte == b' ');
        let mut next = || fields.next().unwrap_or_default();
        let path = next();
        let kind = kind(next());
        let mut object = Map::new();
        let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
        put("path", text(path));
        put("type", kind.name().into());
        put("mode", text(next()));
        put("uid", number(next()));
        put("gid", number(next()));
        put("links", number(next()));
        put("size_bytes", number(next()));
        put("mtime", time(next()));
        put("device", device(next()));
        let target = next();
        let is_link = kind == Kind::Symlink;
        put("target", if is_link { text(target) } else { Value::Null });
        put("xattrs", attributes(next()));
        if self.format.detail == Detail::Full {
            put("inode", number(next()));
            put("blocks_512", number(next()));
            put("atime", time(next()));
            put("ctime", time(next()));
            put("btime", time(next()));
        }
        if self.format.hashing == Hashing::Sha256 {
            let hash = next();
            put(
                "sha256",
                if hash == b"-" {
                    Value::Null
                } else {
                    text(hash)
                },
            );
        }
        Value::Object(object)
    }
}

fn kind(letter: &[u8]) -> Kind {
    match letter {
        b"f" => Kind::File,
        b"d" => Kind::Directory,
        b"l" => Kind::Symlink,
        b"c" => Kind::CharDevice,
        b"b" => Kind::BlockDevice,
        b"p" => Kind::Fifo,
        b"s" => Kind::Socket,
        _ => Kind::Unknown,
    }
}

/// The bytes that a field stands for: `\ooo` is one byte.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        match (byte, after) {
            (b'\\', [a, b, c, after @ ..]) => {
                let digits = [a, b, c].map(|digit| u32::from(digit.wrapping_sub(b'0') & 7));
                let value = digits[0] << 6 | digits[1] << 3 | digits[2];
                out.push(u8::try_from(value & 0xff).unwrap_or(0));
                rest = after;
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

fn text(field: &[u8]) -> Value {
    printable(&unescaped(field)).into()
}

fn number(field: &[u8]) -> Value {
    let number = std::str::from_utf8(field)
        .ok()
        .and_then(|text| text.parse().ok());
    number.map_or(Value::Null, |number: u64| number.into())
}

fn time(field: &[u8]) -> Value {
    let parsed = std::str::from_utf8(field).ok().and_then(|text| {
        let (seconds, nanoseconds) = text.split_once('.')?;
        Some(Time {
            seconds: seconds.parse().ok()?,
            nanoseconds: nanoseconds.parse().ok()?,
        })
    });
    parsed.map_or(Value::Null, |time| rfc3339(time).into())
}

fn device(field: &[u8]) -> Value {
    let numbers = std::str::from_utf8(field).ok().and_then(|text| {
        let (major, minor) = text.split_once(':')?;
        Some([major.parse::<u32>().ok()?, minor.parse().ok()?])
    });
    json!(numbers)
}

fn attributes(field: &[u8]) -> Value {
    if field == b"-" {
        return Value::Object(Map::new());
    }
    let pairs = field.split(|&byte| byte == b',').filter_map(|pair| {
        let equals = pair.iter().position(|&byte| byte == b'=')?;
        let name = printable(&unescaped(&pair[..equals]));
        let value = format!("0x{}", String::from_utf8_lossy(&pair[equals + 1..]));
        Some((name, value.into()))
    });
    Value::Object(pairs.collect())
}

#[cfg(test)]
mod tests {
    use super::super::Form;
    use super::*;

    #[test]
    fn lines_become_objects() {
        let format = Format {
            detail: Detail::Full,
            hashing: Hashing::Sha256,
            form: Form::Json,
        };
        let mut objects = Objects::new(format);
        let mut out = Vec::new();
        let line =
            br"/d/a\040b f 4755 1000 7 2 4096 1.5 - - user.a=,user.b\075c=00ff 12 8 1.0 3.0 - ab";
        objects.push(&line[..20], &mut out);
        objects.push(&line[20..], &mut out);
        assert!(out.is_empty());
        objects.push(
            b"\n/l l 0777 0 0 1 1 0.0 - \\055 - 3 0 0.0 0.0 - -\n",
            &mut out,
        );
        let text = String::from_utf8(out).expect("text");
        let values: Vec<Value> = { text.lines() }
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(
            values[0],
            json!({
                "path": "/d/a b", "type": "regular file", "mode": "4755", "uid": 1000, "gid": 7,
                "links": 2, "size_bytes": 4096, "mtime": "1970-01-01T00:00:01.000000005Z",
                "device": null, "target": null, "xattrs": {"user.a": "0x", "user.b=c": "0x00ff"},
                "inode": 12, "blocks_512": 8, "atime": "1970-01-01T00:00:01Z",
                "ctime": "1970-01-01T00:00:03Z", "btime": null, "sha256": "ab",
            })
        );
        assert_eq!(
            (&values[1]["target"], &values[1]["sha256"]),
            (&json!("-"), &Value::Null)
        );
    }
}

//! **Purpose.** The arguments of dumpe2fs, as those of `info`.
//!
//! **Model.** With `-m` the other options have no effect, as in dumpe2fs.
//!
//! **References.** dumpe2fs(8).

use std::ffi::{OsStr, OsString};

use super::{Change, Options, Part, Program, Refused, USAGE};

const OPTIONS: Options = Options {
    with_value: b"o",
    // -h: no groups. -f: go on although features are not known, which the verb does. -o is put in
    // front of the other options.
    changes: &[
        (b'h', Change::Out),
        (b'f', Change::Out),
        (b'o', Change::Out),
        (b'x', Change::To("--hex")),
        (b'g', Change::To("--table")),
        (b'b', Change::To("--bad-blocks")),
        (b'V', Change::To("--version")),
    ],
};
/// With `-m`.
const OPTIONS_MMP: Options = Options {
    changes: &[
        (b'h', Change::Out),
        (b'f', Change::Out),
        (b'o', Change::Out),
        (b'x', Change::Out),
        (b'g', Change::Out),
        (b'b', Change::Out),
        (b'm', Change::To("--mmp-status")),
        (b'V', Change::To("--version")),
    ],
    ..OPTIONS
};

const IMAGE_WHY: &str = "dumpe2fs -i: only raw images of e2image are read, and without this \
                         option (make one with e2image -r, or use dumpe2fs)";

/// The program whose exit statuses apply.
pub(super) fn program(arguments: &[OsString]) -> Program {
    match OPTIONS.has(arguments, b'm') {
        true => Program::Dumpe2fsMmp,
        false => Program::Dumpe2fs,
    }
}

/// The call of `info`.
pub(super) fn translate(arguments: &[OsString]) -> Result<Vec<OsString>, Refused> {
    let has = |letter| OPTIONS.has(arguments, letter);
    if has(b'i') {
        return Err(refused(IMAGE_WHY.to_owned()));
    }
    let mut words = vec!["info".to_owned()];
    if !"hgbm".bytes().any(has) {
        words.push("--groups".to_owned());
    }
    words.extend(backup(arguments)?);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Ok(match has(b'm') {
        true => OPTIONS_MMP.verb(&words, arguments),
        false => OPTIONS.verb(&words, arguments),
    })
}

/// The options for what `-o` says: `superblock=N` and `blocksize=N`, separated by commas.
fn backup(arguments: &[OsString]) -> Result<Vec<String>, Refused> {
    let (mut superblock, mut block_size) = (0, 0);
    for part in OPTIONS.parts(arguments) {
        let Part::WithValue(b'o', value) = part else {
            continue;
        };
        let text = value.map(OsStr::to_string_lossy).unwrap_or_default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let wrong = || refused(format!("dumpe2fs -o {word}: {EXTENDED}"));
            let (name, value) = word.split_once('=').ok_or_else(wrong)?;
            let number = number(value).ok_or_else(wrong)?;
            match name {
                "superblock" => superblock = number,
                "blocksize" => block_size = number,
                _ => return Err(wrong()),
            }
        }
    }
    let given = [("superblock", superblock), ("block-size", block_size)];
    let given = given.iter().filter(|(_, number)| *number != 0);
    Ok(given
        .map(|(name, number)| format!("--{name}={number}"))
        .collect())
}

const EXTENDED: &str = "the extended options are superblock=BLOCK and blocksize=BYTES";

/// A number as strtoul(3) reads it.
fn number(text: &str) -> Option<u64> {
    match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(hex), _) => u64::from_str_radix(hex, 16).ok(),
        (None, Some(octal)) if !octal.is_empty() => u64::from_str_radix(octal, 8).ok(),
        _ => text.parse().ok(),
    }
}

fn refused(message: String) -> Refused {
    Refused {
        message,
        status: USAGE,
    }
}

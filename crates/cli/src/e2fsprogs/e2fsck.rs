//! **Purpose.** The arguments of e2fsck, as those of `check`.
//!
//! **Model.** Options without an effect here are left out. What the command cannot do is refused
//! with the exit status that e2fsck documents for an error of its operation, as the check did not
//! run; combinations that e2fsck refuses have its status, too. The command asks no questions, so it
//! needs `-n`, `-p` or `-y`, as e2fsck does without a terminal.
//!
//! **References.** e2fsck(8).

use std::ffi::{OsStr, OsString};

use super::{Options, Part, Refused, unchanged};

/// The exit status for an error of the operation.
const OPERATION: u8 = 8;
/// The exit status for wrong usage.
pub(super) const USAGE: u8 = 16;
/// The exit status for a value that is no number, or an unknown extended option.
const VALUE: u8 = 1;

const OPTIONS: Options = Options {
    with_value: b"CBEbIjPlLNz",
    changes: &[],
};

/// What the command does not do.
const REFUSED: [(u8, &str); 4] = [
    (
        b'D',
        "directories are not optimized; without it a check repairs their indexes (use e2fsck -D)",
    ),
    (
        b'c',
        "the device is not searched for bad blocks; without it the file system is checked (use \
         e2fsck -c, or badblocks)",
    ),
    (
        b'l',
        "bad blocks are not added; without it the file system is checked (use e2fsck -l)",
    ),
    (
        b'L',
        "bad blocks are not set; without it the file system is checked (use e2fsck -L)",
    ),
];

/// Extended options that ask for what is so in any case, or only for speed.
const IDLE: [&str; 5] = [
    "nodiscard",
    "no_optimize_extents",
    "inode_count_fullmap",
    "no_inode_count_fullmap",
    "readahead_kb",
];
/// The other extended options of e2fsck.
const EXTENDED: [&str; 9] = [
    "ea_ver",
    "fragcheck",
    "journal_only",
    "discard",
    "optimize_extents",
    "bmap2extent",
    "fixes_only",
    "unshare_blocks",
    "check_encoding",
];

fn refused(option: &str, why: &str, status: u8) -> Refused {
    Refused {
        message: format!("e2fsck {option}: {why}"),
        status,
    }
}

/// The call of `check`.
pub(super) fn translate(arguments: &[OsString]) -> Result<Vec<OsString>, Refused> {
    let parts = OPTIONS.parts(arguments);
    let letters = |part: &Part<'_>| match part {
        Part::Option(letter) | Part::WithValue(letter, _) => Some(*letter),
        Part::Other(_) => None,
    };
    let has = |letter: u8| parts.iter().any(|part| letters(part) == Some(letter));
    if has(b'V') {
        return Ok(unchanged(&["--version"], &[]));
    }
    let unknown = parts.iter().filter_map(letters);
    let mut unknown = unknown.filter(|letter| !b"panyrcdfktvDFCBEbIjPlLNz".contains(letter));
    if let Some(letter) = unknown.next() {
        let option = format!("-{}", char::from(letter));
        return Err(refused(&option, "is no option of e2fsck", USAGE));
    }
    let modes = [
        ("-n", has(b'n')),
        ("-p", has(b'p') || has(b'a')),
        ("-y", has(b'y')),
    ];
    let mut modes = modes.iter().filter(|(_, is_given)| *is_given);
    let mode = modes.next().map(|(mode, _)| *mode);
    if modes.next().is_some() {
        let why = "only one of -n, -p (or -a) and -y can be given";
        return Err(refused("-n -p -y", why, OPERATION));
    }
    if let Some((letter, why)) = REFUSED.iter().find(|(letter, _)| has(*letter)) {
        let option = format!("-{}", char::from(*letter));
        return Err(match mode {
            Some("-n") => refused(&option, "cannot be given with -n", OPERATION),
            _ => refused(&option, why, OPERATION),
        });
    }
    let mut words = unchanged(&["check"], &[]);
    words.extend(mode.map(OsString::from));
    words.extend(has(b'f').then(|| OsString::from("-f")));
    let mut operands = 0;
    for part in &parts {
        match part {
            Part::Other(word) => {
                operands += usize::from(!word.as_encoded_bytes().starts_with(b"-"));
                words.push((*word).to_owned());
            }
            Part::Option(b'v') => words.push("-v".into()),
            // -r does nothing in e2fsck; -k only changes -c; -t prints times, -F flushes buffers.
            Part::Option(_) => {}
            Part::WithValue(letter, value) => words.extend(with_value(*letter, *value)?),
        }
    }
    if mode.is_none() && operands == 1 && !has_long_option(&parts) {
        let why = "no questions are asked: give -n to change nothing, -p or -y to repair";
        return Err(Refused {
            message: format!("e2fsck: {why}"),
            status: OPERATION,
        });
    }
    Ok(words)
}

/// Whether there are long options, which only `check` has.
fn has_long_option(parts: &[Part<'_>]) -> bool {
    parts.iter().any(|part| match part {
        Part::Other(word) => matches!(word.as_encoded_bytes(), [b'-', b'-', _, ..]),
        _ => false,
    })
}

/// The words for an option with a value.
fn with_value(letter: u8, value: Option<&OsStr>) -> Result<Vec<OsString>, Refused> {
    let name = match letter {
        b'j' => "-j",
        b'z' => "--undo",
        b'b' => "--superblock",
        b'B' => "--block-size",
        _ => "",
    };
    let option = format!("-{}", char::from(letter));
    let text = value.map(OsStr::to_string_lossy).unwrap_or_default();
    match letter {
        // What e2fsck keeps of inodes in memory, and their size.
        b'b' | b'I' | b'P' if text.parse::<u32>().is_err() => {
            return Err(refused(&option, &format!("'{text}' is no number"), VALUE));
        }
        // As in e2fsck, all sizes are tried then.
        b'B' if text.parse::<u32>().is_err() => return Ok(Vec::new()),
        b'E' => extended(&text)?,
        _ => {}
    }
    Ok(match name {
        "" => Vec::new(),
        name => [Some(name.into()), value.map(OsStr::to_owned)]
            .into_iter()
            .flatten()
            .collect(),
    })
}

/// Refuses extended options that would have an effect.
fn extended(text: &str) -> Result<(), Refused> {
    for word in text.split(',').filter(|word| !word.is_empty()) {
        let name = word.split('=').next().unwrap_or_default();
        let option = format!("-E {name}");
        if EXTENDED.contains(&name) {
            let why = "is not possible; without it the file system is checked (use e2fsck -E)";
            return Err(refused(&option, why, OPERATION));
        }
        if !IDLE.contains(&name) {
            return Err(refused(&option, "is no extended option of e2fsck", VALUE));
        }
    }
    Ok(())
}

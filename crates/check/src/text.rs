//! **Purpose.** Text that fits into one line of a report: bytes of names, and what is wrong with a
//! superblock.

use std::fmt::Display;

/// The bytes, with everything that is not visible ASCII as `\ooo`.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_graphic() && byte != b'\\' {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("\\{byte:03o}"));
        }
    }
    text
}

/// What an error says of a superblock, for a sentence that begins with "superblock: " itself.
pub(crate) fn of_superblock(error: &impl Display) -> String {
    let text = error.to_string();
    match text.strip_prefix("superblock: ") {
        Some(rest) => rest.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_not_visible_is_told_in_octal() {
        assert_eq!(super::shown(b"a\nb\\\xff"), r"a\012b\134\377");
    }
}

//! **Purpose.** Text for one line of a report: bytes of names, and errors of a superblock.

use std::fmt::Display;

/// Returns the bytes as text, with everything that is not visible ASCII as `\ooo`.
pub(crate) fn escaped(bytes: &[u8]) -> String {
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

/// Returns the text of an error without the prefix "superblock: ", which the finding adds.
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
    fn invisible_bytes_are_escaped_in_octal() {
        assert_eq!(super::escaped(b"a\nb\\\xff"), r"a\012b\134\377");
    }
}

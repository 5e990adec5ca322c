//! **Purpose.** Bytes of names as text that fits into one line.

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

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_not_visible_is_told_in_octal() {
        assert_eq!(super::shown(b"a\nb\\\xff"), r"a\012b\134\377");
    }
}

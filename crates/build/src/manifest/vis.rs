//! **Purpose.** Escapes names and link targets as visible ASCII without blanks, and unescapes them.
//!
//! **Model.** The writer uses a backslash and three octal digits, which every reader of mtrees
//! supports. The reader supports all that vis(3) writes: octal, C escapes, `\s`, `\^c` and `\M-c`.
//!
//! **References.** vis(3), unvis(3).

/// Undoes escapes; `None` if one is invalid.
pub(super) fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return Some(out),
            [b'\\', after @ ..] => {
                let (byte, after) = escape(after)?;
                out.push(byte);
                after
            }
            [byte, after @ ..] => {
                out.push(*byte);
                after
            }
        };
    }
}

/// Decodes the escape after a backslash; returns the byte and the rest of the text.
fn escape(text: &[u8]) -> Option<(u8, &[u8])> {
    if let [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..] = text {
        return Some(((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), rest));
    }
    if let Some(rest) = text.strip_prefix(b"M") {
        return match rest {
            [b'-', byte, rest @ ..] => Some((byte | 0x80, rest)),
            [b'^', byte, rest @ ..] => Some((control(*byte)? | 0x80, rest)),
            _ => None,
        };
    }
    let (first, rest) = text.split_first()?;
    let byte = match first {
        b'^' => {
            let (byte, rest) = rest.split_first()?;
            return Some((control(*byte)?, rest));
        }
        b'0' => 0,
        b'a' => 7,
        b'b' => 8,
        b'E' => 27,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b's' => b' ',
        b't' => b'\t',
        b'v' => 11,
        b'\\' | b'#' | b'*' | b'?' | b'[' | b'=' | b'"' | b'\'' => *first,
        _ => return None,
    };
    Some((byte, rest))
}

fn control(letter: u8) -> Option<u8> {
    match letter {
        b'?' => Some(0x7f),
        b'@'..=b'_' => Some(letter & 0x1f),
        _ => None,
    }
}

/// Appends a text, with escapes for bytes that are not visible or have a meaning in an mtree.
pub(super) fn push_escaped(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        let is_plain = byte.is_ascii_graphic()
            && !matches!(byte, b'\\' | b'#' | b'*' | b'?' | b'[' | b'=' | b'"');
        if is_plain {
            out.push(byte);
        } else {
            let digits = [byte >> 6, byte >> 3 & 7, byte & 7].map(|digit| b'0' + digit);
            out.push(b'\\');
            out.extend_from_slice(&digits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_escaping() {
        let all: Vec<u8> = (0..=255).collect();
        let mut text = Vec::new();
        push_escaped(&mut text, &all);
        assert!(text.iter().all(u8::is_ascii_graphic));
        assert_eq!(unescaped(&text), Some(all));
    }

    #[test]
    fn all_escapes_of_vis_are_decoded() {
        let cases: [(&[u8], &[u8]); 7] = [
            (br"a\040b\sc", b"a b c"),
            (br"\n\t\\\#", b"\n\t\\#"),
            (br"\M-a\M^A", b"\xe1\x81"),
            (br"\^A\^?", b"\x01\x7f"),
            (br"\377", b"\xff"),
            (br"\0x", b"\0x"),
            (b"\xc3\xa4", b"\xc3\xa4"),
        ];
        for (text, bytes) in cases {
            assert_eq!(unescaped(text).as_deref(), Some(bytes), "{text:?}");
        }
        for wrong in [&br"\"[..], br"\8", br"\M", br"\M-", br"\^", br"\^a", br"\q"] {
            assert_eq!(unescaped(wrong), None, "{wrong:?}");
        }
    }
}

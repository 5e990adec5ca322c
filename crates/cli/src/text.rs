//! **Purpose.** Appends numbers and names to a byte buffer without `fmt`, which would take half of
//! the time of a walk: it prints millions of them.

/// Appends `value` in decimal.
pub(crate) fn push_u64(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = digit(value % 10);
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends `value` in decimal, with a minus sign when it is negative.
pub(crate) fn push_i64(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    push_u64(out, value.unsigned_abs());
}

/// Appends `value` in decimal, filled up with zeros to exactly nine digits; it is below 10^9.
pub(crate) fn push_nanoseconds(out: &mut Vec<u8>, value: u32) {
    let mut digits = [b'0'; 9];
    let mut rest = u64::from(value);
    for place in digits.iter_mut().rev() {
        *place = digit(rest % 10);
        rest /= 10;
    }
    out.extend_from_slice(&digits);
}

/// Appends `value` in octal, filled up with zeros to at least four digits.
pub(crate) fn push_octal4(out: &mut Vec<u8>, value: u32) {
    let mut shift = 9;
    while shift < 30 && value >> shift >= 8 {
        shift += 3;
    }
    loop {
        out.push(digit(u64::from(value >> shift & 7)));
        if shift == 0 {
            break;
        }
        shift -= 3;
    }
}

/// Appends `bytes` in lower-case hexadecimal.
pub(crate) fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// Appends `bytes`, each byte that is not a visible ASCII character, is a backslash or is in
/// `also` as a backslash and three octal digits.
pub(crate) fn push_escaped(out: &mut Vec<u8>, bytes: &[u8], also: &[u8]) {
    let plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'\\' && !also.contains(byte);
    let mut rest = bytes;
    while let Some(stop) = rest.iter().position(|byte| !plain(byte)) {
        out.extend_from_slice(&rest[..stop]);
        let byte = rest[stop];
        let octal = [byte >> 6, byte >> 3 & 7, byte & 7].map(|d| d + b'0');
        out.push(b'\\');
        out.extend_from_slice(&octal);
        rest = &rest[stop + 1..];
    }
    out.extend_from_slice(rest);
}

/// A name for a message: on one line, with control characters escaped, and those that change the
/// direction of the text behind them, so that a name does not look like another one.
pub(crate) fn printable(name: &[u8]) -> String {
    String::from_utf8_lossy(name)
        .chars()
        .flat_map(|c| {
            let escape = c.is_control() || turns_text(c);
            let escaped = escape.then(|| c.escape_default()).into_iter().flatten();
            (!escape).then_some(c).into_iter().chain(escaped)
        })
        .collect()
}

/// Whether a character sets the direction of the text behind it (Unicode, UAX 9), or ends a line.
fn turns_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn digit(value: u64) -> u8 {
    b'0' + u8::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(push: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        push(&mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn numbers() {
        for value in [0, 1, 9, 10, 12_345, u64::MAX] {
            assert_eq!(text(|out| push_u64(out, value)), value.to_string());
        }
        for value in [0, -1, i64::MIN, i64::MAX] {
            assert_eq!(text(|out| push_i64(out, value)), value.to_string());
        }
        assert_eq!(text(|out| push_nanoseconds(out, 0)), "000000000");
        assert_eq!(text(|out| push_nanoseconds(out, 987_654_321)), "987654321");
        for value in [0, 0o644, 0o7777, 0o1_0000, 0o17_7777, u32::MAX] {
            assert_eq!(text(|out| push_octal4(out, value)), format!("{value:04o}"));
        }
        assert_eq!(text(|out| push_hex(out, &[0, 0x9a, 0xff])), "009aff");
    }

    #[test]
    fn escapes() {
        assert_eq!(text(|out| push_escaped(out, b"plain", b"")), "plain");
        let odd = text(|out| push_escaped(out, b"a b\\\n\xff=", b"="));
        assert_eq!(odd, r"a\040b\134\012\377\075");
        assert_eq!(text(|out| push_escaped(out, b"", b"")), "");
    }

    #[test]
    fn names_in_messages_stay_on_one_line() {
        assert_eq!(printable(b"a\nb\x1b[31m"), "a\\nb\\u{1b}[31m");
        assert_eq!(printable("gr\u{fc}n".as_bytes()), "gr\u{fc}n");
        let turned = printable("a\u{202e}gnp.exe".as_bytes());
        assert_eq!(turned, "a\\u{202e}gnp.exe");
    }
}

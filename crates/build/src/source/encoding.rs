//! **Purpose.** Encodings used in archives and manifests: base64, `%XX`.

/// Decodes base64 with or without `=` padding; `None` if it is invalid.
pub(crate) fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.trim_ascii_end();
    let end = digits
        .iter()
        .rposition(|&byte| byte != b'=')
        .map_or(0, |at| at + 1);
    let digits = &digits[..end];
    if digits.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for &digit in group {
            bits = bits << 6 | sextet(digit)?;
        }
        bits <<= 6 * (4 - group.len());
        let [_, bytes @ ..] = bits.to_be_bytes();
        out.extend_from_slice(&bytes[..group.len() - 1]);
    }
    Some(out)
}

/// Appends bytes as base64 with `=` padding.
pub(crate) fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for group in bytes.chunks(3) {
        let byte = |at: usize| group.get(at).copied().map_or(0, u32::from);
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 63;
            let is_filling = digit as usize > group.len();
            let shown = DIGITS.get(value as usize).filter(|_| !is_filling);
            out.push(shown.copied().unwrap_or(b'='));
        }
    }
}

fn sextet(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    };
    Some(value.into())
}

/// Decodes `%XX` for bytes that `accepts` allows; any other `%` stays.
pub(crate) fn from_percent(text: &[u8], accepts: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let coded = match rest {
            [b'%', high, low, ..] => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match coded.map(|(high, low)| high << 4 | low) {
            Some(byte) if accepts(byte) => {
                out.push(byte);
                rest = &rest[3..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_every_length() {
        let vectors = [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy\n", "foobar"),
        ];
        for (text, bytes) in vectors {
            let decoded = from_base64(text.as_bytes());
            assert_eq!(decoded.as_deref(), Some(bytes.as_bytes()), "{text}");
            let mut encoded = Vec::new();
            push_base64(&mut encoded, bytes.as_bytes());
            assert!(encoded.starts_with(text.trim_end().as_bytes()), "{text}");
            assert_eq!(encoded.len() % 4, 0, "{text}");
        }
        assert_eq!(from_base64(b"/+8="), Some(vec![0xff, 0xef]));
        assert_eq!(from_base64(b"Zm9vY"), None);
        assert_eq!(from_base64(b"Z m9"), None);
    }

    #[test]
    fn percent_of_what_is_accepted() {
        let only = |byte| matches!(byte, b'=' | b'%');
        assert_eq!(from_percent(b"a%3Db%25%41%3d%", only), b"a=b%%41=%");
        assert_eq!(from_percent(b"%41%zz%4", |_| true), b"A%zz%4");
    }
}

//! **Purpose.** Parses the records of a pax header, `LENGTH KEY=VALUE\n`; the length includes
//! itself.
//!
//! **References.** POSIX.1-2017, pax, "pax Extended Header".

use crate::source::fault::{Fault, Parsed};

/// The records of one header, in order.
pub(super) struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A record. An empty value removes one of an earlier header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
}

impl<'a> Records<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn parse(&self) -> Option<(Record<'a>, usize)> {
        let rest = self.bytes.get(self.at..)?;
        let blank = rest.iter().take(20).position(|&byte| byte == b' ')?;
        let len: usize = std::str::from_utf8(&rest[..blank]).ok()?.parse().ok()?;
        let record = rest.get(..len)?.get(blank + 1..)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|&byte| byte == b'=')?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        (!key.is_empty()).then_some((Record { key, value }, self.at + len))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Parsed<Record<'a>>;

    /// Ends after a malformed record, because the next one cannot be located.
    fn next(&mut self) -> Option<Self::Item> {
        // Some programs include the padding of the block in the header.
        let rest = self.bytes.get(self.at..)?;
        if rest.iter().all(|&byte| byte == 0) {
            return None;
        }
        let at = self.at;
        match self.parse() {
            Some((record, next)) => {
                self.at = next;
                Some(Ok(record))
            }
            None => {
                self.at = self.bytes.len();
                Some(Err(Fault::PaxRecord { at }))
            }
        }
    }
}

/// Parses a decimal number.
pub(super) fn decimal(text: &[u8], field: &'static str) -> Parsed<i128> {
    let number = std::str::from_utf8(text).ok().and_then(|text| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_number)
    });
    number.ok_or(Fault::Number { field })
}

/// Parses `[-]SECONDS[.FRACTION]` to seconds since 1970 and nanoseconds. Fractions of a nanosecond
/// are rounded towards the past; -0.5 is half a second after -1.
pub(super) fn time(text: &[u8], field: &'static str) -> Parsed<(i128, u32)> {
    let point = text.iter().position(|&byte| byte == b'.');
    let (whole, fraction) = match point {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &b""[..]),
    };
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(Fault::Number { field });
    }
    let is_negative = whole.first() == Some(&b'-');
    let seconds = decimal(whole, field)?;
    let digits = fraction.iter().chain(std::iter::repeat(&b'0')).take(9);
    let mut nanoseconds = digits.fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
    let is_finer = fraction.iter().skip(9).any(|&digit| digit != b'0');
    if !is_negative {
        return Ok((seconds, nanoseconds));
    }
    nanoseconds += u32::from(is_finer);
    match (nanoseconds, seconds.checked_sub(1)) {
        (0, _) => Ok((seconds, 0)),
        (_, Some(before)) => Ok((before, 1_000_000_000 - nanoseconds)),
        (_, None) => Err(Fault::Number { field }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_in_order() {
        let bytes = b"12 path=a=b\n6 k=v\n9 empty=\n\0\0";
        let found: Vec<Record> = Records::new(bytes).map(|r| r.expect("right")).collect();
        let expected = [("path", "a=b"), ("k", "v"), ("empty", "")].map(|(key, value)| Record {
            key: key.as_bytes(),
            value: value.as_bytes(),
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn malformed_records_end_the_header() {
        let texts = [
            "5 k=v\n", "99 k=v\n", "x k=v\n", "6 =vv\n", "6 kvv\n", "6", "0 k=v\n",
        ];
        for text in texts {
            let mut records = Records::new(text.as_bytes());
            let first = records.next();
            assert!(
                matches!(first, Some(Err(Fault::PaxRecord { at: 0 }))),
                "{text}"
            );
            assert!(records.next().is_none(), "{text}");
        }
    }

    #[test]
    fn negative_times_and_fractions_of_nanoseconds() {
        let parsed = |text: &str| time(text.as_bytes(), "mtime").ok();
        assert_eq!(parsed("12"), Some((12, 0)));
        assert_eq!(parsed("12.5"), Some((12, 500_000_000)));
        assert_eq!(parsed("12.0000000019"), Some((12, 1)));
        assert_eq!(parsed("-1.75"), Some((-2, 250_000_000)));
        assert_eq!(parsed("-0.5"), Some((-1, 500_000_000)));
        assert_eq!(parsed("-3.000"), Some((-3, 0)));
        assert_eq!(parsed("-0.9999999999"), Some((-1, 0)));
        let least = format!("{}.5", i128::MIN);
        for wrong in ["", "-", "1.x", "1e3", "+1", "0x1", &least] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}

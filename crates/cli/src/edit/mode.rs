//! **Purpose.** Permissions as text: octal numbers, and the symbolic modes of chmod(1).
//!
//! **References.** POSIX, chmod, "Extended Description"; as in GNU chmod an octal mode of less than
//! five digits keeps the set-id bits of a directory, and the umask is 022 without u, g, o or a.

/// The permissions that are left out of a symbolic mode without `u`, `g`, `o` or `a`.
const UMASK: u16 = 0o022;
const SET_IDS: u16 = 0o6000;

/// A change of permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ModeChange {
    Octal { bits: u16, keeps_set_ids: bool },
    Symbolic(Vec<Clause>),
}

/// One action of a symbolic mode, such as `go-w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clause {
    /// All bits of those that it changes.
    who: u16,
    has_who: bool,
    action: u8,
    bits: u16,
    /// `X`: execution for directories and for what can be executed already.
    execute_some: bool,
    /// The class whose permissions are copied, by its shift.
    copied: Option<u16>,
}

impl ModeChange {
    /// Parses a mode; `None` if it is none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'0'..=b'7')) {
            let bits = u16::from_str_radix(text, 8).ok()?;
            let keeps_set_ids = text.len() < 5;
            return (bits <= 0o7777).then_some(Self::Octal {
                bits,
                keeps_set_ids,
            });
        }
        let mut clauses = Vec::new();
        for part in text.split(',') {
            parse_part(part.as_bytes(), &mut clauses)?;
        }
        Some(Self::Symbolic(clauses))
    }

    /// The permissions after the change.
    pub(super) fn applied(&self, old: u16, is_directory: bool) -> u16 {
        match self {
            Self::Octal {
                bits,
                keeps_set_ids,
            } => {
                let kept = match *keeps_set_ids && is_directory {
                    true => old & SET_IDS,
                    false => 0,
                };
                bits | kept
            }
            Self::Symbolic(clauses) => clauses
                .iter()
                .fold(old, |mode, clause| clause.applied(mode, is_directory)),
        }
    }
}

/// Parses `[ugoa]*([-+=]([rwxXst]*|[ugo]))+`.
fn parse_part(part: &[u8], clauses: &mut Vec<Clause>) -> Option<()> {
    let classes = part
        .iter()
        .take_while(|byte| b"ugoa".contains(byte))
        .count();
    let who = part[..classes].iter().fold(0, |who, class| {
        who | match class {
            b'u' => 0o4700,
            b'g' => 0o2070,
            b'o' => 0o1007,
            _ => 0o7777,
        }
    });
    let mut rest = &part[classes..];
    if rest.is_empty() {
        return None;
    }
    while let Some((&action, after)) = rest.split_first() {
        if !b"+-=".contains(&action) {
            return None;
        }
        let letters = after
            .iter()
            .take_while(|byte| !b"+-=".contains(byte))
            .count();
        let mut clause = Clause {
            who: if classes == 0 { 0o7777 } else { who },
            has_who: classes > 0,
            action,
            bits: 0,
            execute_some: false,
            copied: None,
        };
        for letter in &after[..letters] {
            match letter {
                b'r' => clause.bits |= 0o444,
                b'w' => clause.bits |= 0o222,
                b'x' => clause.bits |= 0o111,
                b'X' => clause.execute_some = true,
                b's' => clause.bits |= SET_IDS,
                b't' => clause.bits |= 0o1000,
                b'u' if letters == 1 => clause.copied = Some(6),
                b'g' if letters == 1 => clause.copied = Some(3),
                b'o' if letters == 1 => clause.copied = Some(0),
                _ => return None,
            }
        }
        clauses.push(clause);
        rest = &after[letters..];
    }
    Some(())
}

impl Clause {
    fn applied(&self, old: u16, is_directory: bool) -> u16 {
        let mut bits = self.bits;
        if self.execute_some && (is_directory || old & 0o111 != 0) {
            bits |= 0o111;
        }
        if let Some(shift) = self.copied {
            bits |= (old >> shift & 7) * 0o111;
        }
        // `s` needs a user or group, `t` anybody or others, as their bits in `who` say.
        let mut who = self.who;
        if !self.has_who {
            who &= !UMASK;
        }
        bits &= who;
        match self.action {
            b'+' => old | bits,
            b'-' => old & !bits,
            _ => {
                let mut cleared = if self.has_who { self.who } else { 0o7777 };
                if is_directory {
                    // As in GNU chmod, only an explicit `s` changes these of a directory.
                    cleared &= !SET_IDS | self.bits;
                }
                old & !cleared | bits
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(mode: &str, old: u16, is_directory: bool) -> Option<u16> {
        Some(ModeChange::parse(mode)?.applied(old, is_directory))
    }

    #[test]
    fn modes_change_permissions() {
        for (mode, old, is_directory, expected) in [
            ("644", 0o755, false, 0o644),
            ("755", 0o2700, true, 0o2755),
            ("755", 0o2700, false, 0o755),
            ("00755", 0o2700, true, 0o755),
            ("u+x", 0o644, false, 0o744),
            ("go-rwx", 0o755, false, 0o700),
            ("a=rX", 0o644, false, 0o444),
            ("a=rX", 0o700, true, 0o555),
            ("u=rwx,g=rx,o=", 0o777, false, 0o750),
            ("+w", 0o444, false, 0o644),
            ("u+s,g+s,+t", 0o755, false, 0o7755),
            ("g=u", 0o750, false, 0o770),
            ("u+w-x", 0o555, false, 0o655),
            ("=", 0o777, false, 0),
        ] {
            let found = applied(mode, old, is_directory);
            assert_eq!(found, Some(expected), "{mode} of {old:o}");
        }
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for mode in [
            "",
            "8",
            "10000",
            "u",
            "u+q",
            "rwx",
            "u+rg",
            "a,",
            "77777777777",
        ] {
            assert_eq!(ModeChange::parse(mode), None, "{mode}");
        }
    }
}

//! **Purpose.** Looks up names of users and groups in the files of this machine.
//!
//! **References.** passwd(5), group(5).

use std::collections::HashMap;

use fourscore_sync::OnceLock;

static HOST: OnceLock<HostNames> = OnceLock::new();

/// Users and groups of this machine.
#[derive(Debug, Default)]
pub(crate) struct HostNames {
    users: HashMap<Vec<u8>, u32>,
    groups: HashMap<Vec<u8>, u32>,
}

impl HostNames {
    /// Reads `/etc/passwd` and `/etc/group` once. Missing files count as empty.
    pub(crate) fn get() -> &'static Self {
        HOST.get_or_init(|| {
            let table = |path| parse(&std::fs::read(path).unwrap_or_default());
            Self {
                users: table("/etc/passwd"),
                groups: table("/etc/group"),
            }
        })
    }

    pub(crate) fn user(&self, name: &[u8]) -> Option<u32> {
        self.users.get(name).copied()
    }

    pub(crate) fn group(&self, name: &[u8]) -> Option<u32> {
        self.groups.get(name).copied()
    }
}

/// Name and number are the first and third field of a line; the first line for a name applies.
fn parse(text: &[u8]) -> HashMap<Vec<u8>, u32> {
    let mut numbers = HashMap::new();
    for line in text.split(|&byte| byte == b'\n') {
        let mut fields = line.split(|&byte| byte == b':');
        let (Some(name), Some(number)) = (fields.next(), fields.nth(1)) else {
            continue;
        };
        let number = std::str::from_utf8(number)
            .ok()
            .and_then(|n| n.parse().ok());
        if let Some(number) = number {
            numbers.entry(name.to_vec()).or_insert(number);
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_name_applies() {
        let table = parse(b"root:x:0:0:r:/root:/bin/sh\n# x\n\nbad:x:y\nanna:x:1000:\nanna:x:7:\n");
        assert_eq!(table.len(), 2);
        assert_eq!(table.get(&b"anna"[..]), Some(&1000));
        assert_eq!(HostNames::get().user(b"root"), Some(0));
    }
}

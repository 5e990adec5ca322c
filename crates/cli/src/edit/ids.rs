//! **Purpose.** Users and groups as text: numbers, or names that the image's own `/etc/passwd` and
//! `/etc/group` have. The users of this machine have no meaning inside an image. `root` is 0 in
//! every image.

use fourscore::Fs;

use crate::failure::{Failure, Result};

/// A database of names and ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Database {
    Users,
    Groups,
}

/// What holds the databases: an image, or the tree that becomes one. The error is the reason alone.
pub(crate) trait Names {
    /// The content of the file at a path.
    fn read(&self, path: &str) -> std::result::Result<Vec<u8>, String>;
}

impl Names for Fs {
    fn read(&self, path: &str) -> std::result::Result<Vec<u8>, String> {
        self.paths().read(path).map_err(|why| why.to_string())
    }
}

impl Database {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Users => "/etc/passwd",
            Self::Groups => "/etc/group",
        }
    }

    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Users => "user",
            Self::Groups => "group",
        }
    }

    /// The id that a name has on this host.
    pub(crate) fn id_on_host(self, name: &str) -> Option<u32> {
        let content = std::fs::read(self.path()).ok()?;
        find(&content, name.as_bytes(), 2)
    }

    /// The name that the image has for an id.
    pub(crate) fn name(self, names: &impl Names, id: u32) -> Option<String> {
        let content = names.read(self.path()).ok()?;
        let number = id.to_string();
        let line = content.split(|&byte| byte == b'\n').find(|line| {
            let mut fields = line.split(|&byte| byte == b':');
            fields.nth(2) == Some(number.as_bytes())
        });
        let name = line?.split(|&byte| byte == b':').next()?;
        Some(crate::text::printable(name))
    }

    /// The id that `text` gives.
    pub(crate) fn id(self, names: &impl Names, text: &str) -> Result<u32> {
        if let Ok(id) = text.parse() {
            // To chown(2) it means that the owner stays.
            if id == u32::MAX {
                let what = format!("{} '{text}'", self.noun());
                return Err(Failure::new(
                    what,
                    "is the id that no user and no group has",
                ));
            }
            return Ok(id);
        }
        let found = names.read(self.path());
        let id = found.as_ref().ok();
        let id = id.and_then(|content| find(content, text.as_bytes(), 2));
        if let Some(id) = id.or((text == "root").then_some(0)) {
            return Ok(id);
        }
        let why = match found {
            Ok(_) => format!("is not in {} of the image", self.path()),
            Err(why) => format!("{}: {why}", self.path()),
        };
        let failure = Failure::new(format!("{} '{text}'", self.noun()), why);
        Err(failure.advise("give the number, or a name that the image has"))
    }
}

/// The number in a field of the line whose first field is `name`.
fn find(content: &[u8], name: &[u8], field: usize) -> Option<u32> {
    content.split(|&byte| byte == b'\n').find_map(|line| {
        let mut fields = line.split(|&byte| byte == b':');
        if fields.next() != Some(name) {
            return None;
        }
        std::str::from_utf8(fields.nth(field - 1)?)
            .ok()?
            .parse()
            .ok()
    })
}

/// Checks the form of an owner, before there is an image with its names.
pub(crate) fn check_form(text: &str) -> Result<()> {
    match text {
        "" | ":" => Err(Failure::usage(
            format!("'{text}'"),
            "is no owner; give OWNER, OWNER:GROUP or :GROUP",
        )),
        _ => Ok(()),
    }
}

/// An owner, as chown(1) takes it: `USER`, `USER:GROUP`, `:GROUP`, or `USER:` for the login group
/// of the user.
pub(crate) fn owner(names: &impl Names, text: &str) -> Result<(Option<u32>, Option<u32>)> {
    check_form(text)?;
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let uid = match user {
        "" => None,
        user => Some(Database::Users.id(names, user)?),
    };
    let gid = match group {
        None => None,
        Some("") => Some(login_group(names, user)?),
        Some(group) => Some(Database::Groups.id(names, group)?),
    };
    Ok((uid, gid))
}

fn login_group(names: &impl Names, user: &str) -> Result<u32> {
    let users = names.read(Database::Users.path()).unwrap_or_default();
    let group = find(&users, user.as_bytes(), 3);
    group.or((user == "root").then_some(0)).ok_or_else(|| {
        let why = "has no login group in /etc/passwd of the image";
        Failure::new(format!("user '{user}'"), why).advise("give the group too")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_by_name() {
        let users = b"root:x:0:0:root:/root:/bin/sh\n\nbad\nanna:x:1000:100::/:\nanna:x:7:7::/:";
        assert_eq!(find(users, b"anna", 2), Some(1000));
        assert_eq!(find(users, b"anna", 3), Some(100));
        assert_eq!(find(users, b"root", 2), Some(0));
        for missing in [&b"bad"[..], b"", b"ann"] {
            assert_eq!(find(users, missing, 2), None);
        }
    }

    struct Nothing;

    impl Names for Nothing {
        fn read(&self, _: &str) -> std::result::Result<Vec<u8>, String> {
            Err("no such file".into())
        }
    }

    #[test]
    fn root_is_0_in_an_image_without_users() {
        assert_eq!(owner(&Nothing, "root:").ok(), Some((Some(0), Some(0))));
        assert_eq!(owner(&Nothing, "root:root").ok(), Some((Some(0), Some(0))));
        assert_eq!(owner(&Nothing, "7:8").ok(), Some((Some(7), Some(8))));
        for no_id in ["4294967295", "7:4294967295"] {
            assert!(owner(&Nothing, no_id).is_err(), "{no_id}");
        }
        let unknown = owner(&Nothing, "anna").expect_err("unknown").to_string();
        assert!(unknown.contains("/etc/passwd: no such file"), "{unknown}");
    }
}

//! **Purpose.** The defaults of mke2fs: `/etc/mke2fs.conf`, or those built into mke2fs.
//!
//! **Model.** Sections in brackets hold relations `key = value`; in `[fs_types]` a value may be a
//! group in braces with relations of its own. For a file system a list of types applies (`ext4`,
//! `small`); the last type that has a key wins, then `[defaults]`.
//!
//! **References.** mke2fs.conf(5).

use std::path::Path;

use crate::error::{FormatError, FormatResult};

/// Where distributions keep the configuration.
const SYSTEM_FILE: &str = "/etc/mke2fs.conf";

/// The defaults of mke2fs 1.47 without a configuration file.
const UPSTREAM: &str = "
[defaults]
base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
default_mntopts = acl,user_xattr
blocksize = 4096
inode_size = 256
inode_ratio = 16384
[fs_types]
ext3 = {
features = has_journal
}
ext4 = {
features = has_journal,extent,huge_file,flex_bg,metadata_csum,metadata_csum_seed,64bit,dir_nlink,extra_isize,orphan_file
}
floppy = {
inode_ratio = 8192
blocksize = 1024
}
small = {
inode_ratio = 4096
blocksize = 1024
}
big = {
inode_ratio = 32768
}
huge = {
inode_ratio = 65536
}
news = {
inode_ratio = 4096
}
largefile = {
blocksize = -1
inode_ratio = 1048576
}
largefile4 = {
blocksize = -1
inode_ratio = 4194304
}
hurd = {
inode_size = 128
blocksize = 4096
}
";

/// Relations in the order of the file.
type Relations = Vec<(String, String)>;

/// A configuration.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    defaults: Relations,
    types: Vec<(String, Relations)>,
}

impl Profile {
    /// `/etc/mke2fs.conf` if there is one, else [`Profile::upstream`].
    ///
    /// # Errors
    /// [`FormatError::Config`], and errors of reading the file.
    pub fn system() -> FormatResult<Self> {
        Self::read(SYSTEM_FILE.as_ref())
    }

    /// The configuration in the file `path` if there is one, else [`Profile::upstream`].
    ///
    /// # Errors
    /// As [`Profile::system`].
    pub fn read(path: &Path) -> FormatResult<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&path.to_string_lossy(), &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::upstream()),
            Err(error) => Err(error.into()),
        }
    }

    /// The defaults of mke2fs 1.47 without a configuration file.
    #[must_use]
    pub fn upstream() -> Self {
        Self::parse("built-in profile", UPSTREAM).unwrap_or_default()
    }

    /// Reads a configuration; `path` is for errors.
    ///
    /// # Errors
    /// [`FormatError::Config`].
    pub fn parse(path: &str, text: &str) -> FormatResult<Self> {
        let mut profile = Self::default();
        let mut section = String::new();
        let mut group: Option<(String, Relations)> = None;
        let wrong = |line: usize, why| FormatError::Config {
            path: path.to_owned(),
            line: line + 1,
            why,
        };
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(name) = line.strip_prefix('[') {
                let name = name.split(']').next().unwrap_or_default();
                if group.is_some() {
                    return Err(wrong(number, "a section begins inside braces"));
                }
                name.clone_into(&mut section);
                continue;
            }
            if line.starts_with('}') {
                let closed = group.take().ok_or(wrong(number, "a brace too many"))?;
                if section == "fs_types" {
                    profile.types.push(closed);
                }
                continue;
            }
            let (key, value) = line
                .split_once('=')
                .ok_or(wrong(number, "neither a section nor key = value"))?;
            let (key, value) = (key.trim().to_owned(), unquoted(value.trim()));
            match &mut group {
                Some((_, relations)) => relations.push((key, value)),
                None if value == "{" => group = Some((key, Relations::new())),
                None if section == "defaults" => profile.defaults.push((key, value)),
                None => {}
            }
        }
        match group {
            Some(_) => Err(wrong(text.lines().count(), "a brace is not closed")),
            None => Ok(profile),
        }
    }

    /// Whether there is a type of this name.
    pub(crate) fn has_type(&self, name: &str) -> bool {
        self.types.iter().any(|(known, _)| known == name)
    }

    /// The value of `key` in the section of the type `name`.
    pub(crate) fn of_type(&self, name: &str, key: &str) -> Option<&str> {
        let (_, relations) = self.types.iter().find(|(known, _)| known == name)?;
        look_up(relations, key)
    }

    /// The value of `key` for a list of types.
    pub(crate) fn string(&self, types: &[String], key: &str) -> Option<&str> {
        let last = types.iter().rev().find_map(|name| self.of_type(name, key));
        last.or_else(|| look_up(&self.defaults, key))
    }

    /// The same as a number; `None` also if it is none.
    pub(crate) fn number(&self, types: &[String], key: &str) -> Option<i64> {
        self.string(types, key)?.parse().ok()
    }

    /// The same as a yes or no.
    pub(crate) fn choice(&self, types: &[String], key: &str) -> Option<bool> {
        match self.string(types, key)? {
            "y" | "yes" | "t" | "true" | "1" | "on" => Some(true),
            "n" | "no" | "f" | "false" | "nil" | "0" | "off" => Some(false),
            _ => None,
        }
    }
}

fn look_up<'a>(relations: &'a Relations, key: &str) -> Option<&'a str> {
    let (_, value) = relations.iter().find(|(known, _)| known == key)?;
    Some(value)
}

fn unquoted(value: &str) -> String {
    let inner = value.strip_prefix('"').and_then(|v| v.split('"').next());
    inner.unwrap_or(value).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_last_type_with_a_key_wins_then_the_defaults() {
        let profile = Profile::upstream();
        let ratio = |names: &[&str]| profile.number(&types(names), "inode_ratio");
        assert_eq!(ratio(&["ext4"]), Some(16384));
        assert_eq!(ratio(&["ext4", "small"]), Some(4096));
        assert_eq!(ratio(&["ext4", "news", "largefile"]), Some(1_048_576));
        assert!(profile.has_type("ext3") && !profile.has_type("ext2"));
    }

    #[test]
    fn comments_quotes_and_booleans() {
        let text = "# first\n[defaults]\n\tname = \"a b\"\n[fs_types]\n x = {\n  lazy = off\n }\n";
        let profile = Profile::parse("test", text).unwrap();
        assert_eq!(profile.string(&[], "name"), Some("a b"));
        assert_eq!(profile.choice(&types(&["x"]), "lazy"), Some(false));
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        for (text, line) in [("[a]\nb\n", 2), ("}\n", 1), ("[fs_types]\nx = {\n[b]\n", 3)] {
            let error = Profile::parse("file", text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("file, line {line}:")), "{error}");
        }
    }
}

//! **Purpose.** Notices about attributes that are left out of an image because ext4 cannot store
//! them.

/// How many notices are kept; further ones are only counted.
const KEPT_MAX: usize = 100;

/// Messages for the user.
#[derive(Debug, Default)]
pub struct Notices {
    kept: Vec<String>,
    more: u64,
}

impl Notices {
    /// Adds a notice.
    pub fn push(&mut self, notice: String) {
        if self.kept.len() < KEPT_MAX {
            self.kept.push(notice);
        } else {
            self.more += 1;
        }
    }

    /// Adds a notice that an attribute of the object at `path` is left out.
    pub(crate) fn push_left_out(&mut self, path: &[u8], attribute: &str) {
        let path = path.escape_ascii();
        let why = "ext4 cannot store the attribute";
        self.push(format!("{path}: {why} {attribute} (left out)"));
    }

    /// The first hundred notices.
    #[must_use]
    pub fn kept(&self) -> &[String] {
        &self.kept
    }

    /// The number of further notices.
    #[must_use]
    pub fn more(&self) -> u64 {
        self.more
    }

    /// Adds all notices of `other`.
    pub fn append(&mut self, other: Self) {
        for notice in other.kept {
            self.push(notice);
        }
        self.more += other.more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_beyond_the_limit_are_counted() {
        let mut one = Notices::default();
        (0..150).for_each(|nr| one.push(nr.to_string()));
        let mut both = Notices::default();
        both.push("first".to_owned());
        both.append(one);
        assert_eq!((both.kept().len(), both.more()), (100, 51));
        assert_eq!(both.kept()[1], "0");
    }
}

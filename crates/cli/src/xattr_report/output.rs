//! **Purpose.** The report as text and as JSON.

use std::fmt::Write as _;

use fourscore::PhysBlock;
use fourscore_ondisk::xattr::{Value, Xattrs};
use serde_json::{Value as Json, json};

use super::blocks::Block;
use super::clock::{Clock, ENTRY_BYTES};
use super::contents::Content;
use super::figures::{Advice, LEAST_HIT_PERCENT, Sharing};
use super::scan::Scan;
use super::values::Reader;
use crate::failure::Result;
use crate::text::printable;

/// The contents with the most users that are shown.
const MOST_USED: usize = 10;

/// Everything that is shown.
pub(super) struct Report<'a> {
    scan: &'a Scan<'a>,
    blocks: Sharing,
    values: Sharing,
    advice: Advice,
    most_used: Vec<Popular>,
    /// All blocks, with `--blocks`.
    list: Vec<(PhysBlock, Block)>,
}

/// A content that many inodes use.
struct Popular {
    what: &'static str,
    /// A block, or an inode that has the value.
    first: u64,
    users: u64,
    copies: u64,
    /// Its attributes.
    attributes: Vec<Attribute>,
}

/// An attribute of a content.
struct Attribute {
    name: String,
    bytes: u64,
}

impl<'a> Report<'a> {
    /// Lists all blocks if `has_list`.
    pub(super) fn of(scan: &'a Scan<'a>, has_list: bool) -> Result<Self> {
        Ok(Self {
            scan,
            blocks: Sharing::of_blocks(scan),
            values: Sharing::of_values(scan),
            advice: Advice::of(&scan.clocks),
            most_used: most_used(scan)?,
            list: match has_list {
                true => scan.blocks.sorted(),
                false => Vec::new(),
            },
        })
    }

    pub(super) fn to_text(&self) -> String {
        let counts = self.scan.inodes;
        let mut text = format!(
            "Inodes in use:                {}\n  with attributes inside:     {}\n  \
             with an attribute block:    {}\n  with both:                  {}\n",
            counts.in_use, counts.inside, counts.in_block, counts.both
        );
        push_sharing(&mut text, "Attribute blocks", &self.blocks);
        if self.values.count.all > 0 {
            push_sharing(&mut text, "Values in inodes", &self.values);
        }
        self.push_most_used(&mut text);
        self.push_list(&mut text);
        push_caches(&mut text, &self.scan.clocks);
        let _ = write!(text, "\n{}", self.advice_in_words());
        text
    }

    fn push_most_used(&self, text: &mut String) {
        if self.most_used.is_empty() {
            return;
        }
        text.push_str("\nMost used contents:\n      users     copies  first          attributes\n");
        for popular in &self.most_used {
            let attributes: Vec<String> = popular
                .attributes
                .iter()
                .map(|one| format!("{} ({} bytes)", one.name, one.bytes))
                .collect();
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "  {:9}  {:9}  {:5} {:<9}{}",
                popular.users,
                popular.copies,
                popular.what,
                popular.first,
                attributes.join(", ")
            );
        }
    }

    fn push_list(&self, text: &mut String) {
        if self.list.is_empty() {
            return;
        }
        text.push_str("\n     block      users   refcount    content\n");
        for (block, known) in &self.list {
            let refcount = known.refcount.map_or("-".to_owned(), |nr| nr.to_string());
            let content = known.content.map_or("-".to_owned(), |nr| nr.0.to_string());
            let (block, users) = (block.0, known.users);
            let _ = writeln!(text, "{block:10} {users:10} {refcount:>10} {content:>10}");
        }
    }

    /// The advice and its rule.
    fn advice_in_words(&self) -> String {
        let rule = format!(
            "Rule: a hit saves the making of a block, which costs some 20 lookups, so sharing pays \
             from\n{LEAST_HIT_PERCENT:.0} hits of 100 lookups on.\n"
        );
        match self.advice {
            Advice::NoDifference => {
                "Advice: none. No attributes are in blocks or inodes of their own, so nothing is \
                 looked up.\n"
                    .to_owned()
            }
            Advice::On {
                cache_bytes,
                hit_percent,
            } => format!(
                "Advice: leave sharing on. {hit_percent:.1} of 100 lookups hit in a cache of {}.\n\
                 {rule}",
                size(cache_bytes)
            ),
            Advice::Off { hit_percent } => format!(
                "Advice: switch sharing off (no_mbcache). At most {hit_percent:.1} of 100 lookups \
                 hit.\n{rule}"
            ),
        }
    }

    pub(super) fn to_json(&self) -> Json {
        let counts = self.scan.inodes;
        let faults = self.scan.faults.counts().iter();
        let faults: serde_json::Map<String, Json> = faults
            .map(|(kind, &count)| (kind.code().to_owned(), count.into()))
            .collect();
        let mut report = json!({
            "block_bytes": self.scan.volume.block_bytes(),
            "inodes": {
                "in_use": counts.in_use,
                "with_attributes_inside": counts.inside,
                "with_attribute_block": counts.in_block,
                "with_both": counts.both,
            },
            "blocks": sharing_as_json(&self.blocks),
            "values": sharing_as_json(&self.values),
            "most_used": self.most_used.iter().map(Popular::to_json).collect::<Vec<_>>(),
            "caches": self.scan.clocks.iter().map(cache_as_json).collect::<Vec<_>>(),
            "advice": self.advice_as_json(),
            "faults": faults,
        });
        if !self.list.is_empty() {
            let list = self.list.iter().map(|(block, known)| {
                json!({
                    "block": block.0,
                    "users": known.users,
                    "refcount": known.refcount,
                    "content": known.content.map(|nr| nr.0),
                })
            });
            report["list"] = list.collect();
        }
        report
    }

    fn advice_as_json(&self) -> Json {
        let (cache_bytes, hit_percent) = match self.advice {
            Advice::NoDifference => (None, None),
            Advice::On {
                cache_bytes,
                hit_percent,
            } => (Some(cache_bytes), Some(hit_percent)),
            Advice::Off { hit_percent } => (None, Some(hit_percent)),
        };
        json!({
            "sharing": self.advice.name(),
            "cache_bytes": cache_bytes,
            "hit_percent": hit_percent,
            "least_hit_percent": LEAST_HIT_PERCENT,
        })
    }
}

impl Popular {
    fn to_json(&self) -> Json {
        let attributes = self.attributes.iter();
        let attributes = attributes.map(|one| json!({ "name": one.name, "bytes": one.bytes }));
        json!({
            "in": self.what,
            "first": self.first,
            "users": self.users,
            "copies": self.copies,
            "attributes": attributes.collect::<Vec<_>>(),
        })
    }
}

fn push_sharing(text: &mut String, title: &str, sharing: &Sharing) {
    let Sharing { count, .. } = sharing;
    // Writing into a String cannot fail.
    let _ = write!(
        text,
        "\n{title}:             {}\n  with several users:         {}\n  \
         that cannot be shared:      {}\n  different contents:         {}\n  \
         users:                      {}\n  sharing saves:              {} bytes\n  \
         sharing could save besides: {} bytes ({} copies fewer)\n",
        count.all,
        count.shared,
        count.all.saturating_sub(sharing.copies),
        sharing.contents,
        sharing.users,
        sharing.saved_bytes,
        sharing.could_save_bytes,
        sharing.copies - sharing.least_copies,
    );
    if sharing.contents > 0 {
        text.push_str("  users of a content       contents     copies      users\n");
    }
    for (power, bucket) in sharing.by_users.iter().enumerate() {
        if bucket.contents > 0 {
            let from = 1_u64 << power;
            let to = from * 2 - 1;
            let _ = writeln!(
                text,
                "  {from:9} to {to:9} {:12} {:10} {:10}",
                bucket.contents, bucket.copies, bucket.users
            );
        }
    }
}

fn push_caches(text: &mut String, clocks: &[Clock]) {
    let _ = write!(
        text,
        "\nIf the attributes were set in the order of the inodes ({ENTRY_BYTES} bytes for each \
         entry):\n     cache    entries    lookups       hits     hit %  evictions       full\n"
    );
    for clock in clocks {
        let tally = &clock.tally;
        let _ = writeln!(
            text,
            "{:>10} {:10} {:10} {:10} {:9.1} {:10} {:10}",
            size(clock.size_bytes),
            clock.entries(),
            tally.lookups,
            tally.hits,
            tally.hit_percent(),
            tally.evictions,
            tally.full,
        );
    }
}

fn sharing_as_json(sharing: &Sharing) -> Json {
    let by_users = sharing.by_users.iter().enumerate();
    let by_users = by_users.filter(|(_, bucket)| bucket.contents > 0);
    let by_users = by_users.map(|(power, bucket)| {
        json!({
            "min_users": 1_u64 << power,
            "contents": bucket.contents,
            "copies": bucket.copies,
            "users": bucket.users,
        })
    });
    json!({
        "count": sharing.count.all,
        "with_several_users": sharing.count.shared,
        "unshareable": sharing.count.all.saturating_sub(sharing.copies),
        "contents": sharing.contents,
        "users": sharing.users,
        "saved_bytes": sharing.saved_bytes,
        "could_save_bytes": sharing.could_save_bytes,
        "could_save_copies": sharing.copies - sharing.least_copies,
        "unequal_under_one_hash": sharing.unequal,
        "by_users": by_users.collect::<Vec<_>>(),
    })
}

fn cache_as_json(clock: &Clock) -> Json {
    let tally = &clock.tally;
    json!({
        "bytes": clock.size_bytes,
        "entries": clock.entries(),
        "lookups": tally.lookups,
        "hits": tally.hits,
        "hit_percent": tally.hit_percent(),
        "evictions": tally.evictions,
        "full": tally.full,
    })
}

/// The contents with the most users.
fn most_used(scan: &Scan<'_>) -> Result<Vec<Popular>> {
    let mut found = Vec::new();
    for content in largest(scan.blocks.contents.all()) {
        found.push(Popular {
            what: "block",
            first: content.first.0,
            users: content.users,
            copies: content.copies,
            attributes: attributes_of(scan, content.first)?,
        });
    }
    for content in largest(scan.values.contents.all()) {
        let Reader { inode, name, bytes } = &content.first;
        found.push(Popular {
            what: "inode",
            first: inode.0.into(),
            users: content.users,
            copies: content.copies,
            attributes: vec![Attribute {
                name: printable(name),
                bytes: u64::from(*bytes),
            }],
        });
    }
    found.sort_by_key(|popular| (std::cmp::Reverse(popular.users), popular.first));
    found.truncate(MOST_USED);
    Ok(found)
}

/// The contents with the most users, of those with several.
fn largest<P>(contents: &[Content<P>]) -> Vec<&Content<P>> {
    let mut shared: Vec<&Content<P>> = contents.iter().filter(|one| one.users > 1).collect();
    shared.sort_by_key(|content| std::cmp::Reverse(content.users));
    shared.truncate(MOST_USED);
    shared
}

/// The attributes of a block, which is read again.
fn attributes_of(scan: &Scan<'_>, block: PhysBlock) -> Result<Vec<Attribute>> {
    let mut bytes = Vec::new();
    let volume = scan.volume;
    let read = volume.read_attributes(block, &mut bytes);
    read.map_err(|why| volume.image.problem(why))?;
    let Ok(xattrs) = Xattrs::in_block(&bytes) else {
        return Ok(Vec::new());
    };
    let entries = xattrs.entries().map_while(std::result::Result::ok);
    let attributes = entries.map(|entry| {
        let prefix = entry.index.prefix().unwrap_or("(hidden)");
        let bytes = match entry.value {
            Value::Inline(value) => value.len() as u64,
            Value::Inode { bytes, .. } => bytes.into(),
        };
        Attribute {
            name: printable(&[prefix.as_bytes(), entry.name].concat()),
            bytes,
        }
    });
    Ok(attributes.collect())
}

/// A size in the largest unit of which it is a multiple.
fn size(bytes: u64) -> String {
    let units = ["", "K", "M", "G", "T"];
    let power = (bytes.trailing_zeros() / 10).min(4);
    match bytes {
        0 => "0".to_owned(),
        _ => format!("{}{}", bytes >> (power * 10), units[power as usize]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_largest_unit_that_is_exact() {
        for (bytes, text) in [
            (0, "0"),
            (640, "640"),
            (1 << 10, "1K"),
            (1536 << 10, "1536K"),
            (1 << 20, "1M"),
            (3 << 40, "3T"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}

//! **Purpose.** The allocator's counters as JSON, for `stats` and `bench alloc`.

use serde_json::{Map, Value, json};

/// Converts the text of `mb_stats`, fourscore's or the kernel's, to an object with the same names.
/// A line `name: value` is a member, and a line `name:` begins an object of the deeper lines below
/// it. Of a value `part/whole` (`buddies_generated`, whose whole is the number of groups) the part
/// is kept.
pub(crate) fn mb_stats_to_json(text: &str) -> Value {
    let mut whole = Map::new();
    let mut section: Option<(usize, String)> = None;
    for line in text.lines() {
        let depth = line.len() - line.trim_start().len();
        let Some((name, value)) = line.trim().split_once(':') else {
            continue;
        };
        if section.as_ref().is_some_and(|(own, _)| depth <= *own) {
            section = None;
        }
        let value = value.split('/').next().unwrap_or_default();
        match (value.trim().parse::<u64>(), &section) {
            (Ok(value), Some((_, section))) => {
                whole[section][name] = value.into();
            }
            (Ok(value), None) => {
                whole.insert(name.to_owned(), value.into());
            }
            // The heading of the text is not a section.
            (Err(_), _) if depth == 0 => {}
            (Err(_), _) => {
                whole.insert(name.to_owned(), json!({}));
                section = Some((depth, name.to_owned()));
            }
        }
    }
    whole.into()
}

#[cfg(test)]
mod tests {
    use fourscore_mballoc::stats::Tally;

    use super::*;

    #[test]
    fn mb_stats_keeps_its_names_and_sections() {
        let stats = mb_stats_to_json(&Tally::default().to_string());
        assert_eq!(stats["reqs"], 0);
        assert_eq!(stats["cr_best_avail_stats"]["extents_scanned"], 0);
        assert_eq!(stats["discarded"], 0);
        let kernel = "mballoc:\n\treqs: 7\n\tcr_p2_aligned_stats:\n\t\thits: 3\n\
                      \t\textents_scanned: 4\n\textents_scanned: 9\n\t\tgoal_hits: 2\n\
                      \tbuddies_generated: 1/40\n";
        let stats = mb_stats_to_json(kernel);
        assert_eq!(
            (&stats["reqs"], &stats["extents_scanned"]),
            (&json!(7), &json!(9))
        );
        assert_eq!(stats["cr_p2_aligned_stats"]["extents_scanned"], 4);
        assert_eq!(stats["goal_hits"], 2);
        assert_eq!(stats["buddies_generated"], 1);
    }
}

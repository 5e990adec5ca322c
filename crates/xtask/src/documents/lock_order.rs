//! **Purpose.** The order of locks of the write path as a list, from the constants that debug
//! builds assert.

use std::fs;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

/// Where the order may be declared.
const ORDER: &[&str] = &["crates/fs/src/txn/order.rs", "crates/fs/src/write/order.rs"];

/// Files that declare ranks of other crates, which the order takes in.
const OTHERS: &[&str] = &[
    "crates/journal/src/handle.rs",
    "crates/block/src/buffer.rs",
    "crates/mballoc/src/group.rs",
];

/// The numbered list of all locks, the first to be taken first.
pub(super) fn list(workspace: &Workspace) -> Result<String> {
    let read = |path: &&str| fs::read_to_string(workspace.path(path)).ok();
    let order = ORDER.iter().find_map(read).context("no order.rs")?;
    let others: Vec<String> = OTHERS.iter().filter_map(read).collect();
    list_of(&order, &others)
}

fn list_of(order: &str, others: &[String]) -> Result<String> {
    let (_, all) = order
        .split_once("const ALL:")
        .and_then(|(_, rest)| rest.split_once("= ["))
        .context("order.rs has no list of all ranks")?;
    let (all, _) = all.split_once("];").context("the list has no end")?;
    let mut ranks = Vec::new();
    for constant in all
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
    {
        let name = constant.rsplit("::").next().unwrap_or(constant);
        let declared = others.iter().map(String::as_str).chain([order]);
        let rank = declared.filter_map(|text| rank(text, name)).next();
        ranks.push(rank.with_context(|| format!("{name} is declared nowhere"))?);
    }
    anyhow::ensure!(ranks.is_sorted(), "the list of all ranks is not in order");
    let line = |(index, (_, name)): (usize, &(u32, String))| format!("{}. {name}\n", index + 1);
    Ok(ranks.iter().enumerate().map(line).collect())
}

/// The level and the description of a constant `NAME: Rank = Rank::new(LEVEL, "description")`.
fn rank(text: &str, name: &str) -> Option<(u32, String)> {
    let (_, rest) = text.split_once(&format!("const {name}: Rank = Rank::new("))?;
    let (arguments, _) = rest.split_once(");")?;
    let (level, description) = arguments.split_once(',')?;
    let description = description.trim().trim_end_matches(',').trim_matches('"');
    Some((level.trim().parse().ok()?, description.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECLARED: &str = "const A: Rank = Rank::new(1, \"first\");\n\
                            const B: Rank = Rank::new(\n    2,\n    \"second\",\n);\n";

    #[test]
    fn ranks_are_listed_in_their_order() {
        let order = format!("const ALL: [Rank; 2] = [A, other::B];\n{DECLARED}");
        let list = list_of(&order, &[]).expect("all are declared");
        assert_eq!(list, "1. first\n2. second\n");
        let order = format!("const ALL: [Rank; 2] = [B, A];\n{DECLARED}");
        assert!(list_of(&order, &[]).is_err(), "the order is wrong");
        assert!(list_of("const ALL: [Rank; 1] = [C];", &[]).is_err());
    }
}

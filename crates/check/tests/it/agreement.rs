//! **Purpose.** The checker and `e2fsck -fn` agree on damaged images: whether there are faults, and
//! in which pass the first one is.
//!
//! **Model.** Seeds damage images of several configurations, one fault at a time. Both checkers
//! run, and the damage is undone. The table of docs/CHECK.md lists intended differences with the
//! reason; any other difference is a fault of the checker.
//!
//! `FOURSCORE_CHECK_SEEDS=600` runs more seeds, `FOURSCORE_CHECK_FIRST=1000` other ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use fourscore_check::{Finding, Report};
use fourscore_testkit::damage::{Damage, Patient};
use fourscore_testkit::oracle::{Fsck, e2fsck};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{matrix, require};

use crate::common::{number, opened, report_on};

/// The configurations that are damaged: each form of every structure is in one of them.
const CONFIGS: [&str; 14] = [
    "ext4-4k",
    "ext4-1k",
    "ext2-1k",
    "ext3-4k",
    "inline-data",
    "bigalloc-16k",
    "ea-inode",
    "crc16",
    "orphan-file",
    "hash-legacy",
    "encrypt",
    "project",
    "casefold-strict",
    "meta-bg",
];
const SEEDS: u64 = 100;

/// The checker's report; `None` if it cannot begin.
fn ours(image: &Path) -> Result<Option<Report>> {
    Ok(report_on(opened(image)?, 2).ok())
}

/// The passes in which e2fsck asked a question, by its headings.
fn passes(fsck: &Fsck) -> Vec<u8> {
    let mut passes = Vec::new();
    let mut pass = 0;
    for line in fsck.output.lines() {
        let heading = line.strip_prefix("Pass ");
        let digit = heading
            .and_then(|rest| rest.bytes().next())
            .filter(u8::is_ascii_digit);
        match digit {
            Some(digit) => pass = digit - b'0',
            // An offer, not a fault.
            None if line.ends_with("Optimize? no") => {}
            None if line.ends_with("? no") || line.ends_with("IGNORED.") => passes.push(pass),
            None => {}
        }
    }
    passes.dedup();
    passes
}

/// A difference that docs/CHECK.md allows.
#[derive(Debug)]
struct Allowed {
    structure: String,
    field: String,
    only: String,
}

impl Allowed {
    /// Whether it is about this structure and this field, or what came of it.
    fn covers(&self, damage: &Damage, field: &str, only: &str) -> bool {
        self.structure == format!("{:?}", damage.kind) && self.field == field && self.only == only
    }
}

/// The rows `| structure | field | found only by | why |` of the table.
fn allowed() -> Result<Vec<Allowed>> {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CHECK.md");
    let text = fs::read_to_string(&document).context("docs/CHECK.md")?;
    let rows = text
        .lines()
        .skip_while(|line| *line != "## Where the two differ")
        .filter_map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            match cells[..] {
                [structure, field, only, why] if only == "e2fsck" || only == "fourscore" => {
                    assert!(why.len() > 20, "docs/CHECK.md gives no reason: {line}");
                    Some(Allowed {
                        structure: structure.trim_matches('`').to_owned(),
                        field: field.trim_matches('`').to_owned(),
                        only: only.to_owned(),
                    })
                }
                _ => None,
            }
        });
    Ok(rows.collect())
}

#[derive(Default)]
struct Score {
    both: u32,
    neither: u32,
    allowed: u32,
    same_pass: u32,
    differences: Vec<String>,
}

fn compare(image: &Path, damage: &Damage, table: &[Allowed], score: &mut Score) -> Result<()> {
    let theirs = e2fsck(image)?;
    let report = ours(image)?;
    let sound = report.as_ref().is_some_and(Report::is_clean);
    let only = match (theirs.is_clean(), sound) {
        (true, true) => {
            score.neither += 1;
            return Ok(());
        }
        (false, false) => {
            score.both += 1;
            let own: Vec<u8> = report
                .iter()
                .flat_map(Report::failed_passes)
                .map(|pass| pass.number())
                .collect();
            let first = passes(&theirs).first().copied();
            let same = first.is_none_or(|first| own.contains(&first) || report.is_none());
            score.same_pass += u32::from(same);
            if !same {
                println!("other pass: {damage}: e2fsck {first:?}, ours {own:?}");
            }
            return Ok(());
        }
        (false, true) => "e2fsck",
        (true, false) => "fourscore",
    };
    let goes_over = |report: &Report| report.counts().contains_key("superblock-backup-used");
    let field = match &report {
        Some(report) if goes_over(report) => "backup in use",
        _ if theirs.output.contains("trying backup blocks") => "backup in use",
        _ => damage.field,
    };
    if table.iter().any(|row| row.covers(damage, field, only)) {
        score.allowed += 1;
        return Ok(());
    }
    let found = report.map_or_else(Vec::new, |report| {
        report.findings().iter().map(ToString::to_string).collect()
    });
    score.differences.push(format!(
        "only {only}: {damage}\n{}\n{found:?}",
        theirs.output.trim()
    ));
    Ok(())
}

#[test]
fn both_find_the_same_damage() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    let table = allowed().expect("the table can be read");
    let (seeds, first) = (
        number("FOURSCORE_CHECK_SEEDS", SEEDS),
        number("FOURSCORE_CHECK_FIRST", 0),
    );
    let each = seeds.div_ceil(CONFIGS.len() as u64);
    let mut score = Score::default();
    let configs = matrix::configs();
    let chosen = CONFIGS
        .iter()
        .filter_map(|name| configs.iter().find(|config| config.name == *name));
    for config in chosen {
        let populated = config.populated().expect("an image");
        let image = populated.image.path();
        let patient = Patient::new(image).expect("a sound image");
        for seed in first..first + each {
            let damage = patient.damage(seed).expect("damage fits");
            let before = score.differences.len();
            compare(image, &damage, &table, &mut score).expect("both can be asked");
            if let Some(difference) = score.differences.get_mut(before) {
                difference.insert_str(0, &format!("{} seed {seed}: ", config.name));
            }
            patient.undo(damage).expect("it was written before");
        }
    }
    println!(
        "{} found by both, {} in the same pass; {} by neither; {} differ as documented",
        score.both, score.same_pass, score.neither, score.allowed
    );
    let differences = score.differences.join("\n\n");
    assert!(score.differences.is_empty(), "{differences}");
    assert!(score.both > score.neither, "the damage is too gentle");
}

#[test]
fn the_document_lists_every_invariant() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CHECK.md");
    let text = fs::read_to_string(document).expect("docs/CHECK.md");
    let mut listed: BTreeMap<&str, &str> = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        if let (Some(code), Some(pass)) = (cells.next(), cells.next()) {
            listed.insert(code.trim_matches('`'), pass);
        }
    }
    for row in Finding::CODES {
        let pass = row.pass.number().to_string();
        assert_eq!(listed.get(row.code), Some(&pass.as_str()), "{}", row.code);
    }
}

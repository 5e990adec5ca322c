//! **Purpose.** What `fourscore xattr-report` says of trees of several kinds: whether sharing would
//! pay there.
//!
//! **Model.** One tree is a directory of this machine. The others are made up, with the attributes
//! that such systems set: the labels of SELinux, access control lists that files inherit from their
//! directory, the attributes of Samba, and the labels of containers, each of which has its own
//! categories. Images are built of them with inodes of 256 bytes, as mke2fs makes them, and of 128
//! bytes, where all attributes are in blocks.
//!
//! Then files with the attributes of the image are made in an empty one, in the order of its
//! inodes: with lookups always, never, and with the automatic bypass. The bypass is compared with
//! the better of the others.

use std::io::{BufWriter, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use fourscore_lab::{Ratio, ThreadCount};

use super::super::Options;
use super::super::tar::{header, write_records};
use super::promises::{Promise, in_words};
use super::{Bench, INODE_BYTES, OURS, OURS_ALWAYS, OURS_OFF, close, like_tree, run_of};

const FILES_PER_DIRECTORY: u32 = 100;
/// The least speed with the automatic bypass, by that of the better fixed setting.
const LEAST_BESIDE_BETTER: f64 = 0.97;
/// The sizes of the simulated caches.
const CACHES: [&str; 3] = ["16K", "256K", "4M"];

/// A tree with attributes.
struct Tree {
    name: &'static str,
    attributes: Attributes,
}

/// The attributes of file `nr` in its directory.
type Attributes = fn(directory: u32, nr: u32) -> Vec<(&'static str, Vec<u8>)>;

const MADE_UP: [Tree; 4] = [
    Tree {
        name: "labels of SELinux, of 100 types",
        attributes: label,
    },
    Tree {
        name: "lists inherited from a directory",
        attributes: inherited_list,
    },
    Tree {
        name: "attributes of Samba, unique",
        attributes: samba,
    },
    Tree {
        name: "labels of 50 containers",
        attributes: container,
    },
];

/// Types of files are not equally frequent: half of the directories have the first one.
fn label(directory: u32, _: u32) -> Vec<(&'static str, Vec<u8>)> {
    let of = match directory % 2 {
        0 => 0,
        _ => directory % 100,
    };
    let label = format!("system_u:object_r:type_{of}_t:s0\0");
    vec![("SCHILY.xattr.security.selinux", label.into_bytes())]
}

/// Each directory belongs to a project, whose members its files are open to.
fn inherited_list(directory: u32, _: u32) -> Vec<(&'static str, Vec<u8>)> {
    let members = (0..4).map(|member| 1000 + directory % 40 * 10 + member);
    let members: Vec<String> = members.map(|user| format!("user:{user}:rw-")).collect();
    let list = format!(
        "user::rw-,{},group::r--,group:{}:rw-,mask::rw-,other::r--",
        members.join(","),
        100 + directory % 40
    );
    vec![("SCHILY.acl.access", list.into_bytes())]
}

/// Samba stores the time of creation of each file, and a security descriptor with a hash.
fn samba(directory: u32, nr: u32) -> Vec<(&'static str, Vec<u8>)> {
    let file = u64::from(directory * FILES_PER_DIRECTORY + nr);
    let mut attributes = b"0x20\0\0\x05\0\x05\0\0\0\x11\0\0\0\x20\0\0\0".to_vec();
    attributes.extend_from_slice(&(file * 12_345_678_901).to_le_bytes());
    let mut descriptor = vec![4, 0, 4, 0, 0, 0, 2, 0, 4, 0, 2, 0, 1, 0];
    descriptor.extend(std::iter::repeat_n(0x5a, 32));
    descriptor
        .extend((0..120_u32).map(|at| u8::try_from((at + directory % 40) % 251).unwrap_or(0)));
    vec![
        ("SCHILY.xattr.user.DOSATTRIB", attributes),
        ("SCHILY.xattr.security.NTACL", descriptor),
    ]
}

fn container(directory: u32, _: u32) -> Vec<(&'static str, Vec<u8>)> {
    let own = directory % 50;
    let label = format!(
        "system_u:object_r:container_file_t:s0:c{own},c{}\0",
        own + 100
    );
    vec![("SCHILY.xattr.security.selinux", label.into_bytes())]
}

/// What was found of all trees.
pub(super) struct Trees {
    text: String,
    /// The automatic bypass beside the better fixed setting.
    beside_better: Vec<(String, Option<Ratio>)>,
}

/// Builds the images, and measures them.
pub(super) fn measure(bench: &Bench, options: &Options) -> Result<Trees> {
    println!("what trees share");
    let mut trees = Trees {
        text: format!(
            "\n## What trees share\n\n`fourscore xattr-report` of images that `fourscore build` \
             made of {} and of made-up trees of {} files. Columns of caches: hits of 100 lookups, \
             if the attributes were set in the order of the inodes. `never`, `always` and \
             `automatic`: at most {} files with these attributes are made by one thread, in \
             thousands per second, with `no_mbcache`, `mbcache` and neither.\n\n\
             | tree | inode | inodes | with a block | contents | {} | advice | never | always | \
             automatic | beside the better |\n|---|---:|---:|---:|---:|{}---|---:|---:|---:|---:|\n",
            options.tree.display(),
            bench.files,
            bench.files,
            CACHES.join(" | "),
            "---:|".repeat(CACHES.len()),
        ),
        beside_better: Vec::new(),
    };
    for inode_bytes in INODE_BYTES {
        let mut build = Command::new(&bench.program);
        build.arg("build").arg(&options.tree);
        build.args(["-I", inode_bytes, "-o"]).arg(bench.tree());
        let output = build.output()?;
        ensure!(output.status.success(), "{build:?} failed");
        let name = options.tree.display().to_string();
        trees.add(bench, options, &name, inode_bytes)?;
    }
    for made_up in MADE_UP {
        for inode_bytes in INODE_BYTES {
            build_made_up(bench, inode_bytes, &made_up)?;
            trees.add(bench, options, made_up.name, inode_bytes)?;
        }
    }
    Ok(trees)
}

impl Trees {
    /// Adds the image of a tree, which is removed.
    fn add(
        &mut self,
        bench: &Bench,
        options: &Options,
        name: &str,
        inode_bytes: &'static str,
    ) -> Result<()> {
        let row = row(bench, name, inode_bytes)?;
        let runs = [OURS_OFF, OURS_ALWAYS, OURS];
        let runs = runs.map(|contender| run_of(contender, like_tree(inode_bytes), 1));
        let sides = runs.map(|run| (run.contender.name().to_owned(), run));
        let title = format!("{name}, inodes of {inode_bytes} bytes");
        let measured = bench.compare_for(close(options), &title, &[ThreadCount::ONE], &sides)?;
        let [never, always, automatic] = runs.map(|run| median(measured.rates(run)));
        let [run_never, run_always, run_automatic] = runs;
        let better = if never > always {
            run_never
        } else {
            run_always
        };
        let ratio = measured.ratio(run_automatic, better);
        let kilo = |rate: f64| format!("{:.1}", rate / 1e3);
        self.text.push_str(&format!(
            "{row} {} | {} | {} | {} |\n",
            kilo(never),
            kilo(always),
            kilo(automatic),
            in_words(ratio)
        ));
        self.beside_better.push((title, ratio));
        Ok(std::fs::remove_file(bench.tree())?)
    }

    pub(super) fn to_markdown(&self) -> &str {
        &self.text
    }

    pub(super) fn promise(&self) -> Promise {
        let figure = |ratio: &Option<Ratio>| ratio.map_or(0.0, |ratio| ratio.median);
        let least = self.beside_better.iter();
        let least = least.min_by(|(_, one), (_, other)| figure(one).total_cmp(&figure(other)));
        Promise {
            what: "each tree: with the automatic bypass at least 0.97 times the better of always \
                   and never (the least)"
                .to_owned(),
            figure: least.map_or("-".to_owned(), |(name, ratio)| {
                format!("{} ({name})", in_words(*ratio))
            }),
            met: least.is_some_and(|(_, ratio)| figure(ratio) >= LEAST_BESIDE_BETTER),
        }
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

fn build_made_up(bench: &Bench, inode_bytes: &str, tree: &Tree) -> Result<()> {
    let mut builder = Command::new(&bench.program)
        .args(["build", "-", "-I", inode_bytes, "-o"])
        .arg(bench.tree())
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("fourscore build")?;
    let pipe = builder.stdin.take().context("no standard input")?;
    write_tree(BufWriter::with_capacity(1 << 20, pipe), tree, bench.files)?;
    ensure!(builder.wait()?.success(), "fourscore build failed");
    Ok(())
}

fn write_tree(mut out: impl Write, tree: &Tree, files: u32) -> Result<()> {
    for directory in 0..files.div_ceil(FILES_PER_DIRECTORY) {
        let parent = format!("directory-{directory}/");
        out.write_all(&header(&parent, b'5', 0))?;
        for nr in 0..FILES_PER_DIRECTORY {
            let attributes = (tree.attributes)(directory, nr);
            let records = attributes
                .iter()
                .map(|(key, value)| (*key, value.as_slice()));
            write_records(&mut out, &records.collect::<Vec<_>>())?;
            out.write_all(&header(&format!("{parent}file-{nr}"), b'0', 0))?;
        }
    }
    out.write_all(&[0; 1024])?;
    Ok(out.flush()?)
}

/// The first part of a row of the table, from the report of an image.
fn row(bench: &Bench, name: &str, inode_bytes: &str) -> Result<String> {
    let mut command = Command::new(&bench.program);
    command.args(["xattr-report", "--json", "--cache", &CACHES.join(",")]);
    let output = command.arg(bench.tree()).output()?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let report: Value = serde_json::from_slice(&output.stdout)?;
    row_of(&report, name, inode_bytes).context("the report lacks a figure")
}

fn row_of(report: &Value, name: &str, inode_bytes: &str) -> Option<String> {
    let caches = report["caches"].as_array()?;
    let hits: Option<Vec<String>> = caches
        .iter()
        .map(|cache| Some(format!("{:.1}", cache["hit_percent"].as_f64()?)))
        .collect();
    Some(format!(
        "| {name} | {inode_bytes} | {} | {} | {} | {} | {} |",
        report["inodes"]["in_use"].as_u64()?,
        report["inodes"]["with_attribute_block"].as_u64()?,
        report["blocks"]["contents"].as_u64()?,
        hits?.join(" | "),
        report["advice"]["sharing"].as_str()?,
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn different(of: Attributes) -> usize {
        let all = (0..200).flat_map(|directory| (0..2).map(move |nr| of(directory, nr)));
        all.collect::<BTreeSet<_>>().len()
    }

    #[test]
    fn trees_have_as_many_different_attributes_as_they_say() {
        assert_eq!(different(label), 51);
        assert_eq!(different(inherited_list), 40);
        assert_eq!(different(samba), 400);
        assert_eq!(different(container), 50);
    }

    #[test]
    fn a_row_has_a_cell_for_each_figure() {
        let report = serde_json::json!({
            "inodes": { "in_use": 5, "with_attribute_block": 4 },
            "blocks": { "contents": 3 },
            "caches": [{ "hit_percent": 25.04 }, { "hit_percent": 50.0 }],
            "advice": { "sharing": "on" },
        });
        let row = row_of(&report, "a tree", "128");
        assert_eq!(
            row.as_deref(),
            Some("| a tree | 128 | 5 | 4 | 3 | 25.0 | 50.0 | on |")
        );
        assert_eq!(row_of(&Value::Null, "a tree", "128"), None);
    }
}

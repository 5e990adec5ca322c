//! **Purpose.** What `fourscore xattr-report` says of trees of several kinds: whether sharing would
//! pay there.
//!
//! **Model.** One tree is a directory of this machine. The others are made up, with the attributes
//! that such systems set: the labels of SELinux, access control lists that files inherit from their
//! directory, the attributes of Samba, and the labels of containers, each of which has its own
//! categories. Images are built of them with inodes of 256 bytes, as mke2fs makes them, and of 128
//! bytes, where all attributes are in blocks.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::super::tar::{header, write_records};

const FILES_PER_DIRECTORY: u32 = 100;
const INODE_BYTES: [&str; 2] = ["256", "128"];
/// The sizes of the simulated caches.
const CACHES: [&str; 3] = ["16K", "256K", "1M"];

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

/// Builds the images, and returns the table.
pub(super) fn table(program: &Path, tree: &Path, image: &Path, files: u32) -> Result<String> {
    let mut text = format!(
        "\n## What trees share\n\n`fourscore xattr-report` of images that `fourscore build` made of \
         {} and of made-up trees of {files} files. Columns of caches: hits of 100 lookups, if the \
         attributes were set in the order of the inodes.\n\n| tree | inode | inodes | with a \
         block | contents | {} | advice |\n|---|---:|---:|---:|---:|{}---|\n",
        tree.display(),
        CACHES.join(" | "),
        "---:|".repeat(CACHES.len()),
    );
    for inode_bytes in INODE_BYTES {
        let options = ["-I", inode_bytes, "-o"];
        let mut build = Command::new(program);
        build.arg("build").arg(tree).args(options).arg(image);
        let output = build.output()?;
        ensure!(output.status.success(), "{build:?} failed");
        let name = tree.display().to_string();
        text.push_str(&row(program, image, &name, inode_bytes)?);
        std::fs::remove_file(image)?;
    }
    for made_up in MADE_UP {
        for inode_bytes in INODE_BYTES {
            build_made_up(program, image, inode_bytes, &made_up, files)?;
            text.push_str(&row(program, image, made_up.name, inode_bytes)?);
            std::fs::remove_file(image)?;
        }
    }
    Ok(text)
}

fn build_made_up(
    program: &Path,
    image: &Path,
    inode_bytes: &str,
    tree: &Tree,
    files: u32,
) -> Result<()> {
    let mut builder = Command::new(program)
        .args(["build", "-", "-I", inode_bytes, "-o"])
        .arg(image)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("fourscore build")?;
    let pipe = builder.stdin.take().context("no standard input")?;
    write_tree(BufWriter::with_capacity(1 << 20, pipe), tree, files)?;
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

/// A row of the table, from the report of an image.
fn row(program: &Path, image: &Path, name: &str, inode_bytes: &str) -> Result<String> {
    let mut command = Command::new(program);
    command.args(["xattr-report", "--json", "--cache", &CACHES.join(",")]);
    let output = command.arg(image).output()?;
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
        "| {name} | {inode_bytes} | {} | {} | {} | {} | {} |\n",
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
            Some("| a tree | 128 | 5 | 4 | 3 | 25.0 | 50.0 | on |\n")
        );
        assert_eq!(row_of(&Value::Null, "a tree", "128"), None);
    }
}

//! **Purpose.** Rules about the files of one crate: none depends on another that depends on it.
//!
//! **Model.** The graph has an edge from a file to every file that defines something which the
//! first one names, in an import or in a path. A re-export is followed to the definition and is no
//! edge of its own, as long as the file that re-exports something of a module below it does not use
//! it itself. A circle exists where a strongly connected component has several files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use super::finding::Finding;
use super::modules::{Import, ModuleId, Modules, Target};
use super::source::Source;

/// The crates whose files form no circles.
const CRATES_WITHOUT_CIRCLES: &[&str] = &["fs", "mkfs"];

/// For each file those that it depends on, with the line of the first place that says so.
type Graph<'a> = BTreeMap<&'a str, BTreeMap<&'a str, usize>>;

/// `file-circles`: the files of a crate do not depend on each other in a circle. One finding for
/// each strongly connected component, with one of its shortest circles.
pub(super) fn file_circles(sources: &[Source], found: &mut Vec<(String, Finding)>) {
    for crate_folder in CRATES_WITHOUT_CIRCLES {
        circles_of(sources, crate_folder, found);
    }
}

fn circles_of(sources: &[Source], crate_folder: &str, found: &mut Vec<(String, Finding)>) {
    let graph = graph(&Modules::new(sources, crate_folder));
    for component in components(&graph) {
        let circle = shortest_circle(&graph, &component);
        let [first, second, ..] = circle[..] else {
            continue;
        };
        let names: Vec<&str> = closed(&circle).collect();
        let what = format!(
            "{} files depend on each other: {} (move what they share to a file below them)",
            component.len(),
            names.join(" -> "),
        );
        let line = graph[first][second];
        found.push((first.to_owned(), Finding::new("file-circles", line, what)));
    }
}

/// The circles of one crate as text: how many files are in them, and the edges between these.
pub(super) struct Report<'a> {
    graph: Graph<'a>,
}

impl<'a> Report<'a> {
    /// Looks at the files of a crate.
    pub(super) fn new(sources: &'a [Source], crate_folder: &str) -> Self {
        Self {
            graph: graph(&Modules::new(sources, crate_folder)),
        }
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let components = components(&self.graph);
        for (index, component) in components.iter().enumerate() {
            writeln!(f, "component {}: {} files", index + 1, component.len())?;
            let circle = shortest_circle(&self.graph, component);
            let names: Vec<&str> = closed(&circle).collect();
            writeln!(f, "  a shortest circle: {}", names.join(" -> "))?;
            for from in component {
                for (to, line) in &self.graph[from] {
                    if component.contains(to) {
                        writeln!(f, "  {}:{line} -> {}", short(from), short(to))?;
                    }
                }
            }
        }
        let in_circles: usize = components.iter().map(BTreeSet::len).sum();
        write!(
            f,
            "{in_circles} of {} files are in circles, in {} strongly connected components",
            self.graph.len(),
            components.len()
        )
    }
}

/// The short names of a circle's files, the first one once more at the end.
fn closed<'a>(circle: &[&'a str]) -> impl Iterator<Item = &'a str> {
    circle.iter().chain(circle.first()).map(|file| short(file))
}

/// The path of a file below its crate's `src`.
fn short(file: &str) -> &str {
    file.split_once("/src/").map_or(file, |(_, below)| below)
}

fn graph<'a>(modules: &Modules<'a>) -> Graph<'a> {
    let mut graph = Graph::new();
    for (id, module) in modules.modules.iter().enumerate() {
        let edges = graph.entry(module.file).or_default();
        let imports = module
            .imports
            .iter()
            .filter_map(|import| Some((imported_from(modules, id, import)?, import.line)));
        let paths =
            module
                .paths
                .iter()
                .filter_map(|path| match modules.resolve(id, &path.path)? {
                    Target::ItemOf(other) => Some((other, path.line)),
                    Target::Module(_) => None,
                });
        for (other, line) in imports.chain(paths) {
            let file = modules.modules[other].file;
            if file != module.file {
                let first = edges.entry(file).or_insert(line);
                *first = line.min(*first);
            }
        }
    }
    graph
}

/// The module that an import makes a module depend on. The import of a module does so by the paths
/// that begin with it.
fn imported_from(modules: &Modules<'_>, id: ModuleId, import: &Import<'_>) -> Option<ModuleId> {
    let other = match (modules.resolve(id, &import.path)?, import.name) {
        (Target::ItemOf(other), _) | (Target::Module(other), None) => other,
        (Target::Module(_), Some(_)) => return None,
    };
    let only_reexports = import.reexports
        && modules.is_below(other, id)
        && import
            .name
            .is_none_or(|name| !modules.modules[id].first_names.contains(name));
    (!only_reexports).then_some(other)
}

/// The strongly connected components of more than one file, largest first, then by name.
fn components<'a>(graph: &Graph<'a>) -> Vec<BTreeSet<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&'a str>> = graph
        .keys()
        .map(|file| (*file, reached_from(graph, file)))
        .collect();
    let mut found = BTreeSet::new();
    for (file, there) in &reached {
        let together = there.iter().filter(|other| reached[*other].contains(file));
        let component: BTreeSet<&str> = together.copied().collect();
        if component.len() > 1 {
            found.insert(component);
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|component| std::cmp::Reverse(component.len()));
    found
}

/// All files that a file depends on, directly or through others.
fn reached_from<'a>(graph: &Graph<'a>, file: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = graph[file].keys().copied().collect();
    while let Some(file) = next.pop() {
        if reached.insert(file) {
            next.extend(graph[file].keys());
        }
    }
    reached
}

/// The files of a shortest circle in a component, each once.
fn shortest_circle<'a>(graph: &Graph<'a>, component: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let circles = component
        .iter()
        .filter_map(|file| circle_through(graph, file));
    circles.min_by_key(Vec::len).unwrap_or_default()
}

/// A shortest circle that begins with a file.
fn circle_through<'a>(graph: &Graph<'a>, first: &'a str) -> Option<Vec<&'a str>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([first]);
    while let Some(file) = queue.pop_front() {
        if graph[file].contains_key(first) {
            let mut circle: Vec<&str> =
                std::iter::successors(Some(file), |file| came_from.get(file).copied()).collect();
            circle.reverse();
            return Some(circle);
        }
        for next in graph[file].keys().copied() {
            if next != first && !came_from.contains_key(next) {
                came_from.insert(next, file);
                queue.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources = sources(files);
        let mut found = Vec::new();
        circles_of(&sources, "x", &mut found);
        let text = |(file, finding): &(String, Finding)| {
            format!("{}:{}: {}", short(file), finding.line, finding.what)
        };
        found.iter().map(text).collect()
    }

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        let source =
            |(name, text): &(&str, &str)| Source::new(&format!("crates/x/src/{name}"), text);
        files.iter().map(source).collect()
    }

    #[test]
    fn file_circles_sees_imports_and_paths() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "use super::b::B;\npub struct A;\n"),
            ("b.rs", "\npub struct B(crate::a::A);\n"),
        ];
        assert_eq!(
            found(&files),
            [
                "a.rs:1: 2 files depend on each other: a.rs -> b.rs -> a.rs \
              (move what they share to a file below them)"
            ]
        );
    }

    #[test]
    fn file_circles_follows_reexports() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use crate::a::c::C;\n"),
            ("a/mod.rs", "pub mod c;\n"),
            ("a/c.rs", "use crate::b;\npub struct C(b::B);\n"),
            ("b.rs", "use crate::C;\npub struct B;\n"),
        ];
        assert_eq!(found(&files).len(), 1);
        assert!(found(&files)[0].starts_with("a/c.rs:2: 2 files"));
    }

    #[test]
    fn file_circles_counts_parents_that_use_their_children() {
        let circle = [
            ("lib.rs", "mod a;\npub use a::A;\npub struct L(A);\n"),
            ("a.rs", "use super::L;\npub struct A;\n"),
        ];
        assert!(found(&circle)[0].starts_with("a.rs:1: 2 files"));
        let only_reexport = [
            ("lib.rs", "mod a;\npub use a::A;\npub struct L;\n"),
            circle[1],
        ];
        assert!(found(&only_reexport).is_empty());
    }

    #[test]
    fn file_circles_leaves_tests_alone() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\n"),
            (
                "a.rs",
                "pub struct A;\n#[cfg(test)]\nmod tests {\n use crate::b::B;\n}\n",
            ),
            (
                "b.rs",
                "use crate::a::A;\npub struct B;\n#[cfg(test)]\nmod tests;\n",
            ),
            ("b/tests.rs", "use super::*;\n"),
        ];
        assert!(found(&files).is_empty());
    }

    #[test]
    fn one_shortest_circle_stands_for_each_component() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\nmod e;\n"),
            ("a.rs", "use crate::b::B;\npub struct A;\n"),
            ("b.rs", "use crate::c::C;\npub struct B;\n"),
            (
                "c.rs",
                "use crate::a::A;\nuse crate::b::B;\npub struct C;\n",
            ),
            ("d.rs", "use crate::e::E;\npub struct D;\n"),
            ("e.rs", "use crate::d::D;\npub struct E;\n"),
        ];
        let found = found(&files);
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("3 files depend on each other: b.rs -> c.rs -> b.rs "));
        assert!(found[1].contains("2 files depend on each other: d.rs -> e.rs -> d.rs "));
        let sources = sources(&files);
        let report = Report::new(&sources, "x").to_string();
        assert!(report.contains("  c.rs:2 -> b.rs\n"), "{report}");
        assert!(
            report.ends_with("5 of 6 files are in circles, in 2 strongly connected components")
        );
    }
}

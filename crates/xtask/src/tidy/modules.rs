//! **Purpose.** The tree of a crate's modules: which file defines a module, what each module
//! defines and imports, and which module a path refers to.
//!
//! **Model.** Modules are found from the crate's root by their declarations, so that the files of
//! test modules, which only `#[cfg(test)]` declares, are not part of the tree. A name in a module
//! is looked up as the compiler does it: child modules, definitions, imports by name, imports by
//! `*`. Macros are not expanded: a name that no definition explains counts as defined in the module
//! that the path names. Imports in the body of a function count as imports of its module.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Source;
use super::tokens::{Token, after_group, starts_with, tokens, without_tests};

/// An index into [`Modules::modules`].
pub(super) type ModuleId = usize;

/// The modules of one crate; the root is the first.
pub(super) struct Modules<'a> {
    /// All modules, parents before their children.
    pub(super) modules: Vec<Module<'a>>,
}

/// One module, of a file of its own or within the file of another module.
pub(super) struct Module<'a> {
    /// The path of its file below the root.
    pub(super) file: &'a str,
    /// `None` for the root.
    pub(super) parent: Option<ModuleId>,
    children: BTreeMap<&'a str, ModuleId>,
    definitions: BTreeSet<&'a str>,
    /// What its `use` declarations import.
    pub(super) imports: Vec<Import<'a>>,
    /// Paths of at least two names outside of `use` declarations.
    pub(super) paths: Vec<CodePath<'a>>,
    /// Names of types, constants and called functions in its code that no path precedes, and the
    /// first names of paths.
    pub(super) first_names: BTreeSet<&'a str>,
}

/// One name that a `use` declaration imports.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import<'a> {
    /// The path as it is written; without the `*` of an import of everything.
    pub(super) path: Vec<&'a str>,
    /// The name in this module; `None` for everything that the path's module has.
    pub(super) name: Option<&'a str>,
    /// Whether the declaration has a `pub`, restricted or not.
    pub(super) reexports: bool,
    /// Its line, from 1.
    pub(super) line: usize,
}

/// A path in code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CodePath<'a> {
    pub(super) path: Vec<&'a str>,
    pub(super) line: usize,
}

/// What a path refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A module itself.
    Module(ModuleId),
    /// Something that a module defines, or a part of it.
    ItemOf(ModuleId),
}

/// How many imports are followed one after another; a longer chain is a circle of imports.
const IMPORTS_FOLLOWED: usize = 16;

impl<'a> Modules<'a> {
    /// Reads the modules of a crate from those of its files that lie in `src`.
    pub(super) fn new(sources: &'a [Source], crate_folder: &str) -> Self {
        let folder = format!("crates/{crate_folder}/src");
        let mut reader = Reader {
            files: sources.iter().map(|s| (s.path.as_str(), s)).collect(),
            modules: Vec::new(),
        };
        let root = ["lib.rs", "main.rs"].iter().find_map(|name| {
            reader
                .files
                .get(format!("{folder}/{name}").as_str())
                .copied()
        });
        if let Some(root) = root {
            reader.read_file(root, &folder, None);
        }
        Self {
            modules: reader.modules,
        }
    }

    /// What a path in a module refers to; `None` if that is outside of the crate or unknown.
    pub(super) fn resolve(&self, module: ModuleId, path: &[&str]) -> Option<Target> {
        self.resolve_within(module, path, IMPORTS_FOLLOWED)
    }

    fn resolve_within(&self, module: ModuleId, path: &[&str], fuel: usize) -> Option<Target> {
        let fuel = fuel.checked_sub(1)?;
        let (mut module, mut rest) = (module, path);
        let mut is_qualified = false;
        while let [first, after @ ..] = rest {
            match *first {
                "crate" => module = 0,
                "self" => {}
                "super" => module = self.modules[module].parent?,
                _ => break,
            }
            is_qualified = true;
            rest = after;
        }
        while let [name, after @ ..] = rest {
            match self.look_up(module, name, fuel) {
                Some(Target::Module(child)) => (module, rest) = (child, after),
                Some(item) => return Some(item),
                None => return is_qualified.then_some(Target::ItemOf(module)),
            }
            is_qualified = true;
        }
        Some(Target::Module(module))
    }

    /// What a name in a module refers to.
    fn look_up(&self, id: ModuleId, name: &str, fuel: usize) -> Option<Target> {
        let module = &self.modules[id];
        if let Some(&child) = module.children.get(name) {
            return Some(Target::Module(child));
        }
        if module.definitions.contains(name) {
            return Some(Target::ItemOf(id));
        }
        let by_name = module.imports.iter().find(|i| i.name == Some(name));
        if let Some(import) = by_name {
            // `use fuse::mount;` beside `use crate::x::fuse;`: a path that begins with the name
            // that it imports is one of another crate.
            return if import.path.first() == Some(&name) {
                None
            } else {
                self.resolve_within(id, &import.path, fuel)
            };
        }
        let everything = module.imports.iter().filter(|i| i.name.is_none());
        everything
            .filter_map(|import| self.resolve_within(id, &import.path, fuel))
            .find_map(|target| match target {
                Target::Module(other) if other != id => {
                    self.look_up(other, name, fuel.checked_sub(1)?)
                }
                _ => None,
            })
    }

    /// Whether `module` lies below `ancestor`.
    pub(super) fn is_below(&self, module: ModuleId, ancestor: ModuleId) -> bool {
        std::iter::successors(self.modules[module].parent, |&id| self.modules[id].parent)
            .any(|id| id == ancestor)
    }
}

/// Reads files and the files of the modules that they declare.
struct Reader<'a> {
    files: BTreeMap<&'a str, &'a Source>,
    modules: Vec<Module<'a>>,
}

impl<'a> Reader<'a> {
    /// Reads the module of a file; the files of its child modules lie in `folder`.
    fn read_file(
        &mut self,
        source: &'a Source,
        folder: &str,
        parent: Option<ModuleId>,
    ) -> ModuleId {
        let tokens = without_tests(&tokens(source));
        self.read_module(&source.path, folder, parent, &tokens)
    }

    fn read_module(
        &mut self,
        file: &'a str,
        folder: &str,
        parent: Option<ModuleId>,
        tokens: &[Token<'a>],
    ) -> ModuleId {
        let id = self.modules.len();
        self.modules.push(Module {
            file,
            parent,
            children: BTreeMap::new(),
            definitions: definitions(tokens),
            imports: Vec::new(),
            paths: Vec::new(),
            first_names: BTreeSet::new(),
        });
        let mut is_public = false;
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let next = tokens.get(at + 1).filter(|token| token.is_word());
            at = match (token.text, next) {
                ("pub", _) => {
                    is_public = true;
                    let has_scope = starts_with(&tokens[at + 1..], &["("]);
                    at = if has_scope {
                        after_group(tokens, at + 1)
                    } else {
                        at + 1
                    };
                    continue;
                }
                ("mod", Some(name)) => self.read_child(id, folder, name.text, &tokens[at..]) + at,
                ("use", _) if !starts_with(&tokens[at + 1..], &["<"]) => {
                    let end = at + tokens[at..].iter().take_while(|t| t.text != ";").count();
                    let mut imports = Vec::new();
                    import_tree(&tokens[at + 1..end], &[], is_public, &mut imports);
                    self.modules[id].imports.append(&mut imports);
                    end + 1
                }
                _ if token.is_word() => self.read_path(id, tokens, at),
                _ => at + 1,
            };
            is_public = false;
        }
        id
    }

    /// Reads the child module that `tokens` begin with; the number of tokens that it takes.
    fn read_child(
        &mut self,
        parent: ModuleId,
        folder: &str,
        name: &'a str,
        tokens: &[Token<'a>],
    ) -> usize {
        let below = format!("{folder}/{name}");
        let (child, end) = match tokens.get(2).map(|token| token.text) {
            Some("{") => {
                let end = after_group(tokens, 2);
                let file = self.modules[parent].file;
                let inside = tokens.get(3..end - 1).unwrap_or(&[]);
                (
                    Some(self.read_module(file, &below, Some(parent), inside)),
                    end,
                )
            }
            Some(";") => {
                let files = [format!("{below}.rs"), format!("{below}/mod.rs")];
                let source = files
                    .iter()
                    .find_map(|file| self.files.get(file.as_str()).copied());
                (
                    source.map(|source| self.read_file(source, &below, Some(parent))),
                    3,
                )
            }
            _ => (None, 1),
        };
        if let Some(child) = child {
            self.modules[parent].children.insert(name, child);
        }
        end
    }

    /// Reads the path that begins with the word at `at`; the position after it.
    fn read_path(&mut self, id: ModuleId, tokens: &[Token<'a>], at: usize) -> usize {
        let before = |back: usize| Some(tokens.get(at.checked_sub(back)?)?.text);
        let is_part = match before(1) {
            Some(".") => before(2) != Some("."),
            text => text == Some("::") || text == Some("fn"),
        };
        let mut path = vec![tokens[at].text];
        let mut end = at + 1;
        while starts_with(&tokens[end..], &["::"])
            && let Some(next) = tokens.get(end + 1).filter(|token| token.is_word())
        {
            path.push(next.text);
            end += 2;
        }
        if is_part {
            return end;
        }
        let module = &mut self.modules[id];
        let is_call = || starts_with(&tokens[end..], &["("]);
        if path.len() > 1 || path[0].starts_with(char::is_uppercase) || is_call() {
            module.first_names.insert(path[0]);
        }
        if path.len() > 1 {
            module.paths.push(CodePath {
                path,
                line: tokens[at].line,
            });
        }
        end
    }
}

/// The names of the items that are defined in these tokens, but not within their bodies.
fn definitions<'a>(tokens: &[Token<'a>]) -> BTreeSet<&'a str> {
    const KEYWORDS: &[&str] = &[
        "fn", "struct", "enum", "union", "trait", "type", "const", "static",
    ];
    let mut found = BTreeSet::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if ["(", "[", "{"].contains(&token.text) {
            at = after_group(tokens, at);
            continue;
        }
        let name = if starts_with(&tokens[at..], &["macro_rules", "!"]) {
            tokens.get(at + 2)
        } else if KEYWORDS.contains(&token.text) {
            tokens
                .get(at + 1)
                .filter(|name| !KEYWORDS.contains(&name.text))
        } else {
            None
        };
        found.extend(name.filter(|name| name.is_word()).map(|name| name.text));
        at += 1;
    }
    found
}

/// Flattens what stands between `use` and `;`.
fn import_tree<'a>(
    tokens: &[Token<'a>],
    prefix: &[&'a str],
    reexports: bool,
    found: &mut Vec<Import<'a>>,
) {
    let Some(first) = tokens.first() else { return };
    let mut path = prefix.to_vec();
    let mut name = None;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text {
            "{" => {
                let inside = tokens.get(at + 1..after_group(tokens, at) - 1);
                for part in split_at_commas(inside.unwrap_or(&[])) {
                    import_tree(part, &path, reexports, found);
                }
                return;
            }
            "*" => {
                found.push(Import {
                    path,
                    name: None,
                    reexports,
                    line: first.line,
                });
                return;
            }
            "as" => {
                name = tokens.get(at + 1).map(|token| token.text);
                break;
            }
            "self" if !path.is_empty() && path.len() == prefix.len() => {}
            _ if token.is_word() => path.push(token.text),
            _ => {}
        }
        at += 1;
    }
    found.push(Import {
        name: name.or(path.last().copied()),
        path,
        reexports,
        line: first.line,
    });
}

/// The parts of a list between commas that are not within brackets.
fn split_at_commas<'a, 'b>(tokens: &'b [Token<'a>]) -> Vec<&'b [Token<'a>]> {
    let mut parts = Vec::new();
    let (mut begin, mut at) = (0, 0);
    while let Some(token) = tokens.get(at) {
        match token.text {
            "{" => at = after_group(tokens, at),
            "," => {
                parts.push(&tokens[begin..at]);
                at += 1;
                begin = at;
            }
            _ => at += 1,
        }
    }
    parts.push(&tokens[begin..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        let source =
            |(name, text): &(&str, &str)| Source::new(&format!("crates/x/src/{name}"), text);
        files.iter().map(source).collect()
    }

    /// The file that a path in the root refers to, without `crates/x/src/`.
    fn file_of(files: &[(&str, &str)], path: &[&str]) -> Option<String> {
        let sources = sources(files);
        let modules = Modules::new(&sources, "x");
        let id = match modules.resolve(0, path)? {
            Target::Module(id) | Target::ItemOf(id) => id,
        };
        Some(modules.modules[id].file.replace("crates/x/src/", ""))
    }

    #[test]
    fn imports_are_flattened() {
        let sources = sources(&[(
            "lib.rs",
            "use a::{self, b::{C, D as E}, f::*};\npub(crate) use g;\n",
        )]);
        let modules = Modules::new(&sources, "x");
        let found: Vec<_> = modules.modules[0]
            .imports
            .iter()
            .map(|i| (i.path.join("::"), i.name, i.reexports, i.line))
            .collect();
        let expected = [
            ("a", Some("a"), false, 1),
            ("a::b::C", Some("C"), false, 1),
            ("a::b::D", Some("E"), false, 1),
            ("a::f", None, false, 1),
            ("g", Some("g"), true, 2),
        ];
        assert_eq!(
            found,
            expected.map(|(path, name, reexports, line)| (path.to_owned(), name, reexports, line))
        );
    }

    #[test]
    fn paths_refer_to_the_file_of_the_definition() {
        let files = [
            (
                "lib.rs",
                "mod a;\nmod b;\npub use crate::a::c::D;\nmod e { pub fn f() {} }",
            ),
            (
                "a/mod.rs",
                "pub mod c;\npub use c::*;\nuse std::fmt;\nconst G: u8 = 0;",
            ),
            ("a/c.rs", "pub struct D;\nimpl D { fn new() {} }"),
            ("b.rs", "#[cfg(test)]\nmod tests;\nuse super::D;\n"),
            ("b/tests.rs", "pub fn g() {}"),
        ];
        let file = |path: &[&str]| file_of(&files, path);
        assert_eq!(file(&["crate", "a", "c", "D"]).as_deref(), Some("a/c.rs"));
        assert_eq!(file(&["D", "new"]).as_deref(), Some("a/c.rs"));
        assert_eq!(file(&["crate", "a", "D"]).as_deref(), Some("a/c.rs"));
        assert_eq!(file(&["a", "G"]).as_deref(), Some("a/mod.rs"));
        assert_eq!(file(&["crate", "b", "D"]).as_deref(), Some("a/c.rs"));
        assert_eq!(file(&["self", "e", "f"]).as_deref(), Some("lib.rs"));
        assert_eq!(file(&["crate", "b"]).as_deref(), Some("b.rs"));
        assert_eq!(file(&["crate", "b", "tests", "g"]).as_deref(), Some("b.rs"));
        assert_eq!(file(&["std", "fmt"]), None);
        assert_eq!(file(&["crate", "a", "fmt"]).as_deref(), Some("a/mod.rs"));
    }

    #[test]
    fn circles_of_imports_end() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "pub use crate::b::X;\npub use crate::b::*;"),
            ("b.rs", "pub use crate::a::X;\npub use crate::a::*;"),
        ];
        assert!(file_of(&files, &["crate", "a", "X"]).is_some());
        assert!(file_of(&files, &["crate", "a", "Y"]).is_some());
    }
}

//! Tests of places of new files: what may be replaced, and what appears meanwhile.

use std::os::unix::fs::symlink;

use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use rustix::fs::{Mode, OFlags};

use super::*;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn names(&self) -> usize {
        fs::read_dir(self.0.path()).unwrap().count()
    }

    /// A new file with a temporary name, for `target`.
    fn hidden(&self, target: &str) -> HiddenFile {
        let hidden = HiddenFile::create(&self.at(target)).unwrap();
        fs::write(hidden.path(), "new").unwrap();
        hidden
    }

    /// A new file without a name.
    fn unlinked(&self) -> File {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = rustix::fs::open(self.0.path(), flags, Mode::from(0o600)).unwrap();
        io::Write::write_all(&mut File::from(file.try_clone().unwrap()), b"new").unwrap();
        File::from(file)
    }

    fn content(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }
}

fn id(path: &Path) -> FileId {
    FileId::of(&fs::symlink_metadata(path).unwrap())
}

fn is_refusal(done: io::Result<()>) -> bool {
    done.is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
}

#[test]
fn nothing_is_replaced_that_was_not_there_before() {
    let place = Place::new();
    let target = place.at("image");
    place
        .hidden("image")
        .put_in_place(&target, Replaces::Nothing)
        .unwrap();
    assert_eq!((place.names(), place.content("image")), (1, "new".into()));
    fs::write(&target, "precious").unwrap();
    let hidden = place.hidden("image");
    assert!(is_refusal(hidden.put_in_place(&target, Replaces::Nothing)));
    assert!(is_refusal(put_in_place(
        &place.unlinked(),
        &target,
        Replaces::Nothing
    )));
    symlink("nowhere", place.at("link")).unwrap();
    let refused = put_in_place(&place.unlinked(), &place.at("link"), Replaces::Nothing);
    assert!(is_refusal(refused));
    assert_eq!(
        (place.names(), place.content("image")),
        (2, "precious".into())
    );
}

#[test]
fn only_the_file_that_was_found_is_replaced() {
    let place = Place::new();
    let target = place.at("image");
    let put = |found| put_in_place(&place.unlinked(), &target, Replaces::Found(found));
    fs::write(&target, "old").unwrap();
    let found = id(&target);
    // Another file, and the same one with other permissions.
    fs::write(place.at("other"), "precious").unwrap();
    fs::rename(&target, place.at("old")).unwrap();
    fs::rename(place.at("other"), &target).unwrap();
    assert!(is_refusal(put(found)));
    assert_eq!(
        (place.names(), place.content("image")),
        (2, "precious".into())
    );
    put(id(&target)).unwrap();
    assert_eq!((place.names(), place.content("image")), (2, "new".into()));
    // A name that is free by now, and a symbolic link to nothing.
    let found = id(&target);
    fs::remove_file(&target).unwrap();
    put(found).unwrap();
    assert_eq!((place.names(), place.content("image")), (2, "new".into()));
    fs::remove_file(&target).unwrap();
    symlink("nowhere", &target).unwrap();
    put(id(&target)).unwrap();
    assert_eq!((place.names(), place.content("image")), (2, "new".into()));
}

/// A file that another program puts there between the look and the exchange.
#[test]
fn an_exchanged_file_of_another_program_gets_its_name_back() {
    let place = Place::new();
    let target = place.at("image");
    fs::write(&target, "precious").unwrap();
    let hidden = place.hidden("image");
    let theirs = id(&target);
    let mistaken = FileId {
        inode: theirs.inode ^ 1 << 40,
        ..theirs
    };
    assert!(is_refusal(hidden.exchange_now(&target, mistaken)));
    assert_eq!(
        (place.names(), place.content("image")),
        (1, "precious".into())
    );
}

#[test]
fn anything_is_replaced_on_demand() {
    let place = Place::new();
    let target = place.at("image");
    for content in ["one", "two"] {
        fs::write(&target, content).unwrap();
        put_in_place(&place.unlinked(), &target, Replaces::Anything).unwrap();
        assert_eq!((place.names(), place.content("image")), (1, "new".into()));
    }
    fs::remove_file(&target).unwrap();
    put_in_place(&place.unlinked(), &target, Replaces::Anything).unwrap();
    assert_eq!((place.names(), place.content("image")), (1, "new".into()));
}

#[test]
fn names_of_any_valid_length_and_left_over_names_are_no_obstacle() {
    let place = Place::new();
    let long = "n".repeat(255);
    fs::write(
        place.at(&format!(".fourscore.{}.0", std::process::id())),
        "left",
    )
    .unwrap();
    for replaces in [Replaces::Nothing, Replaces::Anything] {
        put_in_place(&place.unlinked(), &place.at(&long), replaces).unwrap();
        assert_eq!((place.names(), place.content(&long)), (2, "new".into()));
    }
    let target = place.at(&long);
    place
        .hidden(&long)
        .put_in_place(&target, Replaces::Found(id(&target)))
        .unwrap();
    assert_eq!(place.names(), 2);
}

#[test]
fn owner_and_permissions_are_those_of_the_replaced_file() {
    require!(Need::Root);
    let place = Place::new();
    let target = place.at("image");
    for mode in [0o4750, 0o2770, 0o640] {
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::chown(&target, Some(1234), Some(5678)).unwrap();
        fs::set_permissions(&target, Permissions::from_mode(mode)).unwrap();
        put_in_place(&place.unlinked(), &target, Replaces::Anything).unwrap();
        let found = fs::metadata(&target).unwrap();
        assert_eq!((found.uid(), found.gid()), (1234, 5678));
        assert_eq!(found.mode() & 0o7777, mode);
    }
}

#[test]
fn without_its_group_a_file_gives_no_one_more_than_before() {
    require!(Need::Root);
    let place = Place::new();
    let (before, own) = (place.at("before"), place.at("own"));
    fs::write(&before, "").unwrap();
    fs::write(&own, "").unwrap();
    std::os::unix::fs::chown(&before, None, Some(5678)).unwrap();
    let of = |path: &Path| fs::metadata(path).unwrap();
    for (mode, expected) in [
        (0o660, 0o600),
        (0o664, 0o644),
        (0o604, 0o600),
        (0o2775, 0o755),
        (0o1777, 0o1777),
    ] {
        fs::set_permissions(&before, Permissions::from_mode(mode)).unwrap();
        assert_eq!(kept_mode(&of(&before), &of(&own)), expected, "{mode:o}");
        assert_eq!(kept_mode(&of(&before), &of(&before)), mode);
    }
}

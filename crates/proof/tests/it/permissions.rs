//! Permissions: the results of the library compared with what the kernel lets other users do.

use std::path::Path;

use fourscore::{
    AttributeChange, Caller, Capabilities, Error, Follow, Fs, InodeNr, NewAttributes, Result,
    SetXattr, Wish,
};
use fourscore_ondisk::acl::{self, AclEntry, AclWho};
use fourscore_testkit::explore::Rng;
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};

use crate::common::Populated;

const PLAIN: [Caller<'static>; 3] = [
    Caller {
        uid: 1001,
        gid: 2001,
        groups: &[],
        capabilities: Capabilities::empty(),
    },
    Caller {
        uid: 1002,
        gid: 2002,
        groups: &[2001, 2003],
        capabilities: Capabilities::empty(),
    },
    Caller {
        uid: 1003,
        gid: 2003,
        groups: &[],
        capabilities: Capabilities::empty(),
    },
];

/// Skips the test without these programs and setpriv, or where the kernel cannot mount images.
macro_rules! require_users {
    ($($program:literal),*) => {
        require!(
            Need::Program("mke2fs"),
            Need::Program("setpriv"),
            $(Need::Program($program),)*
            Need::KernelMount
        )
    };
}

fn small(random: &mut Rng, limit: usize) -> u16 {
    u16::try_from(random.below(limit)).unwrap()
}

fn one_of(first: u32, random: &mut Rng) -> u32 {
    first + u32::from(small(random, 3))
}

/// A list in the form of the system calls.
fn list(random: &mut Rng) -> Vec<u8> {
    let who = [
        AclWho::Owner,
        AclWho::User(one_of(1001, random)),
        AclWho::OwningGroup,
        AclWho::Group(2001),
        AclWho::Group(one_of(2002, random)),
        AclWho::Mask,
        AclWho::Other,
    ];
    let entry = |who| AclEntry {
        who,
        permissions: small(random, 8),
    };
    acl::disk_to_xattr(&acl::to_disk(&who.map(entry))).unwrap()
}

/// Files and directories with all kinds of permissions; there is a file in each directory.
fn populate(fs: &Fs, random: &mut Rng) -> Vec<(String, InodeNr)> {
    let mut all = Vec::new();
    for number in 0..45 {
        let new = NewAttributes::owned_by(one_of(1001, random), one_of(2001, random))
            .permissions(small(random, 0o1000));
        let name = format!("o{number}");
        let inode = if number % 3 == 0 {
            let dir = fs.mkdir(InodeNr::ROOT, name.as_bytes(), &new).unwrap();
            let new =
                NewAttributes::owned_by(one_of(1001, random), new.gid).permissions(new.permissions);
            let below = fs.create(dir, b"below", &new).unwrap();
            all.push((format!("{name}/below"), below));
            let sticky = AttributeChange {
                permissions: Some(new.permissions | small(random, 2) << 9),
                ..AttributeChange::default()
            };
            fs.set_attributes(dir, &sticky).unwrap();
            dir
        } else {
            fs.create(InodeNr::ROOT, name.as_bytes(), &new).unwrap()
        };
        if random.below(2) == 0 {
            let name = b"system.posix_acl_access";
            fs.set_xattr(inode, name, &list(random), SetXattr::Any)
                .unwrap();
        }
        if random.below(2) == 0 && number % 3 == 0 {
            let name = b"system.posix_acl_default";
            fs.set_xattr(inode, name, &list(random), SetXattr::Any)
                .unwrap();
        }
        for name in [b"user.r", &b"trusted.r"[..], b"gnu.r"] {
            fs.set_xattr(inode, name, b"1", SetXattr::Any).unwrap();
        }
        all.push((name, inode));
    }
    all
}

/// These objects, drawn with a seed, for us and for the kernel.
fn objects(seed: u64) -> Populated<Vec<(String, InodeNr)>> {
    Populated::new(|fs| populate(fs, &mut Rng::new(seed)))
}

/// The objects in the root: those in a directory are reached only by users that may search it.
fn at_the_top(objects: &[(String, InodeNr)]) -> Vec<(String, InodeNr)> {
    let at_top = objects.iter().filter(|(path, _)| !path.contains('/'));
    at_top.cloned().collect()
}

/// Runs a shell script on the mounted tree as `caller`, and returns its lines.
fn run_as(caller: &Caller<'_>, root: &Path, script: &str) -> Vec<String> {
    let mut command = tools::command("setpriv").unwrap();
    command
        .arg(format!("--reuid={}", caller.uid))
        .arg(format!("--regid={}", caller.gid));
    if caller.groups.is_empty() {
        command.arg("--clear-groups");
    } else {
        let groups: Vec<_> = caller.groups.iter().map(ToString::to_string).collect();
        command.arg(format!("--groups={}", groups.join(",")));
    }
    let names = caller.capabilities.iter_names();
    let kept: Vec<_> = names
        .map(|(name, _)| format!("+{}", name.to_lowercase()))
        .collect();
    if !kept.is_empty() {
        let kept = kept.join(",");
        command.arg(format!("--inh-caps={kept}"));
        command.arg(format!("--ambient-caps={kept}"));
    }
    command.args(["sh", "-c", script]).current_dir(root);
    let output = tools::output_of(&mut command).unwrap();
    assert!(
        output.status.success(),
        "{}",
        tools::describe(&command, &output)
    );
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Compares our results with those of the script's command for each path: `yes` or `no`.
fn hold_against(
    caller: &Caller<'_>,
    root: &Path,
    what: &str,
    command: &str,
    paths: &[(String, InodeNr)],
    answer: impl Fn(InodeNr) -> Result<()>,
) {
    let names: Vec<_> = paths.iter().map(|(path, _)| path.as_str()).collect();
    let script = format!(
        "for f in {}; do if {command} 2>/dev/null >&2; then echo yes; else echo no; fi; done",
        names.join(" ")
    );
    let lines = run_as(caller, root, &script);
    assert_eq!(lines.len(), paths.len());
    let mut seen = [0, 0];
    for ((path, inode), line) in paths.iter().zip(lines) {
        let allowed = match answer(*inode) {
            Ok(()) => "yes",
            Err(Error::AccessDenied | Error::NotPermitted | Error::NoAttribute) => "no",
            Err(error) => panic!("{path}: {error}"),
        };
        assert_eq!(line, allowed, "{caller:?}: {what} {path}");
        seen[usize::from(line == "yes")] += 1;
    }
    if caller.capabilities.is_empty() {
        assert!(seen[0] > 0, "nothing was denied: {what}");
    }
}

/// Reading, writing, executing, and attributes.
fn hold_wishes(fs: &Fs, root: &Path, caller: &Caller<'_>, top: &[(String, InodeNr)]) {
    let wishes = [
        ("reading", "test -r $f", Wish::READ),
        ("writing", "test -w $f", Wish::WRITE),
        ("executing", "test -x $f", Wish::EXECUTE),
    ];
    for (what, command, wish) in wishes {
        hold_against(caller, root, what, command, top, |inode| {
            fs.check_access(inode, wish, caller)
        });
    }
    for name in ["user.r", "trusted.r", "gnu.r"] {
        let what = format!("reading {name}");
        let command = format!("getfattr -n {name} $f");
        hold_against(caller, root, &what, &command, top, |inode| {
            fs.check_xattr_read(inode, name.as_bytes(), caller)
        });
    }
    let command = "setfattr -n user.t -v 1 $f";
    hold_against(caller, root, "setting user.", command, top, |inode| {
        fs.check_xattr_change(inode, b"user.t", caller)
    });
    let command = "setfattr -n gnu.t -v 1 $f";
    hold_against(caller, root, "setting gnu.", command, top, |inode| {
        fs.check_xattr_change(inode, b"gnu.t", caller)
    });
    let command = "setfattr -n trusted.t -v 1 $f";
    hold_against(caller, root, "setting trusted.", command, top, |inode| {
        fs.check_xattr_change(inode, b"trusted.t", caller)
    });
    let command = "setfattr -n security.t -v 1 $f";
    hold_against(caller, root, "setting security.", command, top, |inode| {
        fs.check_xattr_change(inode, b"security.t", caller)
    });
}

/// Compares changes that only the owner may make.
fn hold_changes(fs: &Fs, root: &Path, caller: &Caller<'_>, top: &[(String, InodeNr)]) {
    let command = "chmod $(stat -c %a $f) $f";
    hold_against(caller, root, "chmod", command, top, |inode| {
        let change = AttributeChange {
            permissions: Some(fs.stat(inode)?.mode.permissions()),
            ..AttributeChange::default()
        };
        fs.permitted_change(inode, &change, caller).map(drop)
    });
    let command = "chown 1003 $f";
    hold_against(caller, root, "chown", command, top, |inode| {
        let change = AttributeChange {
            uid: Some(1003),
            ..AttributeChange::default()
        };
        fs.permitted_change(inode, &change, caller).map(drop)
    });
    let command = "chattr +i $f";
    hold_against(caller, root, "chattr", command, top, |inode| {
        let flags = fs.stat(inode)?.flags | fourscore_ondisk::inode::InodeFlags::IMMUTABLE_FL;
        fs.check_flags_change(inode, flags, caller)
    });
}

#[test]
fn the_kernel_lets_users_do_what_we_say_they_may() {
    require_users!("getfattr", "setfattr");
    let twins = objects(5);
    let Populated {
        fs,
        kernel,
        made: all,
        ..
    } = twins;
    let root = kernel.path();
    let top = at_the_top(&all);
    for caller in &PLAIN {
        hold_wishes(&fs, root, caller, &top);
        hold_changes(&fs, root, caller, &top);
    }
    // The set-group bit is lost for a group that the caller is not in.
    for caller in &PLAIN {
        for (path, inode) in &top {
            if fs.stat(*inode).unwrap().uid != caller.uid {
                continue;
            }
            let script = format!("chmod 2755 {path}; stat -c %a {path}");
            let found = run_as(caller, root, &script).concat();
            let change = AttributeChange {
                permissions: Some(0o2755),
                ..AttributeChange::default()
            };
            let permitted = fs.permitted_change(*inode, &change, caller).unwrap();
            assert_eq!(
                found,
                format!("{:o}", permitted.permissions.unwrap()),
                "{path}"
            );
        }
    }
    fs.unmount().unwrap();
}

#[test]
fn a_capability_permits_what_it_permits_in_the_kernel() {
    require_users!("getfattr", "setfattr");
    let twins = objects(7);
    let Populated {
        fs,
        kernel,
        made: all,
        ..
    } = twins;
    let top = at_the_top(&all);
    let with = |capabilities| Caller {
        capabilities,
        ..PLAIN[0]
    };
    for capability in [
        Capabilities::DAC_OVERRIDE,
        Capabilities::DAC_READ_SEARCH,
        Capabilities::SYS_ADMIN,
    ] {
        hold_wishes(&fs, kernel.path(), &with(capability), &top);
    }
    // The last two change the owners and the flags of the kernel's twin. To open a file for chattr
    // is to read it.
    for capability in [
        Capabilities::FOWNER,
        Capabilities::CHOWN,
        Capabilities::FOWNER | Capabilities::LINUX_IMMUTABLE | Capabilities::DAC_READ_SEARCH,
    ] {
        hold_changes(&fs, kernel.path(), &with(capability), &top);
    }
    fs.unmount().unwrap();
}

#[test]
fn names_are_taken_away_where_the_kernel_lets_them() {
    require_users!();
    let twins = objects(6);
    let Populated {
        fs,
        kernel,
        made: all,
        ..
    } = twins;
    let (mut removed, mut kept) = (0, 0);
    for (path, inode) in all.iter().filter(|(path, _)| path.contains('/')) {
        let (parent, _) = path.split_once('/').unwrap();
        let dir = fs.resolve(parent.as_bytes(), Follow::No).unwrap();
        for caller in &PLAIN {
            let allowed = fs.check_removal(dir, *inode, caller).is_ok();
            let script = format!("rm -f {path} 2>/dev/null && echo gone; true");
            let gone = run_as(caller, kernel.path(), &script) == ["gone"];
            assert_eq!(gone, allowed, "user {}: removing {path}", caller.uid);
            if gone {
                removed += 1;
                break;
            }
            kept += 1;
        }
    }
    assert!(removed > 5 && kept > 5, "{removed} removed, {kept} kept");
    fs.unmount().unwrap();
}

/// A capability, as `setcap cap_net_raw+p` stores it.
const CAPABILITY: [u8; 20] = {
    let mut value = [0; 20];
    [value[3], value[5]] = [2, 0x20];
    value
};

/// Files of the first caller, in a group that only the first and the second caller are in, or in
/// one that only the third is in.
fn privileged_files(fs: &Fs) -> Vec<(String, InodeNr)> {
    let mut files = Vec::new();
    for gid in [2001, 2003] {
        for permissions in [0o777, 0o4777, 0o6777, 0o6767, 0o2777, 0o2767] {
            for capability in [false, true] {
                let new = NewAttributes::owned_by(1001, gid).permissions(permissions);
                let name = format!("p{}", files.len());
                let file = fs.create(InodeNr::ROOT, name.as_bytes(), &new).unwrap();
                fs.write_at(file, b"content", 0).unwrap();
                if capability {
                    let name = b"security.capability";
                    fs.set_xattr(file, name, &CAPABILITY, SetXattr::Any)
                        .unwrap();
                }
                files.push((name, file));
            }
        }
    }
    files
}

/// Mode and capability of a file, of ours and of the kernel's twin.
fn assert_same_privileges(fs: &Fs, root: &Path, what: &str, name: &str, inode: InodeNr) {
    use std::os::unix::fs::PermissionsExt;
    let path = root.join(name);
    let mode = path.metadata().unwrap().permissions().mode() & 0o7777;
    let ours = fs.stat(inode).unwrap().mode.0 & 0o7777;
    assert_eq!(format!("{ours:o}"), format!("{mode:o}"), "{what} {name}");
    let value = rustix::fs::lgetxattr(&path, "security.capability", &mut [0_u8; 64][..]);
    let ours = fs.xattr(inode, b"security.capability");
    assert_eq!(ours.is_ok(), value.is_ok(), "{what} {name}");
}

#[test]
fn a_change_of_content_removes_set_id_bits_and_capabilities_as_in_linux() {
    require_users!("truncate", "fallocate");
    let ways = [
        ("writing", "printf x | dd of=$f conv=notrunc 2>/dev/null"),
        ("truncating", "truncate -s 3 $f"),
        ("preallocating", "fallocate -l 5000 $f"),
    ];
    for (caller, (what, command)) in PLAIN.iter().zip(ways) {
        let twins = Populated::new(privileged_files);
        let Populated {
            fs,
            kernel,
            made: files,
            ..
        } = twins;
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        let script = format!("for f in {}; do {command} || exit 1; done", names.join(" "));
        run_as(caller, kernel.path(), &script);
        for (name, inode) in &files {
            fs.remove_privileges(*inode, caller).unwrap();
            assert_same_privileges(&fs, kernel.path(), what, name, *inode);
        }
        // The super-user keeps the bits, but not the capability.
        let file = fs.lookup(InodeNr::ROOT, names[0].as_bytes()).unwrap();
        let mode = AttributeChange {
            permissions: Some(0o6755),
            ..AttributeChange::default()
        };
        fs.set_attributes(file, &mode).unwrap();
        std::fs::set_permissions(
            kernel.path().join(names[0]),
            std::os::unix::fs::PermissionsExt::from_mode(0o6755),
        )
        .unwrap();
        let name = "security.capability";
        fs.set_xattr(file, name.as_bytes(), &CAPABILITY, SetXattr::Any)
            .unwrap();
        let path = kernel.path().join(names[0]);
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(&path, name, &CAPABILITY, flags).unwrap();
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, b"y"))
            .unwrap();
        fs.remove_privileges(file, &Caller::ROOT).unwrap();
        assert_same_privileges(&fs, kernel.path(), "as root", names[0], file);
        fs.unmount().unwrap();
    }
}

#[test]
fn a_caller_outside_the_group_loses_the_set_group_bit_with_an_acl_or_a_new_owner() {
    require_users!("setfattr");
    let twins = Populated::new(privileged_files);
    let Populated {
        fs,
        kernel,
        made: files,
        ..
    } = twins;
    let caller = &PLAIN[0];
    let list = list(&mut Rng::new(9));
    let hex: String = list.iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, second) = files.split_at(files.len() / 2);
    assert!(first.len() > 8 && second.len() > 8);
    for (nth, file) in files.iter().enumerate() {
        let (name, inode) = file;
        if nth % 2 == 0 {
            let acl = "system.posix_acl_access";
            let script = format!("setfattr -n {acl} -v 0x{hex} {name}");
            run_as(caller, kernel.path(), &script);
            fs.set_xattr_as(caller, *inode, acl.as_bytes(), &list, SetXattr::Any)
                .unwrap();
            assert_same_privileges(&fs, kernel.path(), "a list for", &file.0, file.1);
        } else {
            // Sets the group that the file has: a caller in no other group may set nothing else.
            let gid = fs.stat(*inode).unwrap().gid;
            run_as(caller, kernel.path(), &format!("chgrp {gid} {name}"));
            let change = AttributeChange {
                gid: Some(gid),
                ..AttributeChange::default()
            };
            let change = fs.permitted_change(*inode, &change, caller).unwrap();
            fs.set_attributes(*inode, &change).unwrap();
            assert_same_privileges(&fs, kernel.path(), "another group for", &file.0, file.1);
        }
    }
    fs.unmount().unwrap();
}

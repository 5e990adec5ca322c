//! Walks over generated trees: the order of the output must not depend on the threads.

use super::*;

/// A generated tree: a task is a path of digits, and every node above `depth` has `width` children.
struct Numbers {
    width: u8,
    depth: usize,
    padding: usize,
}

impl Walker for Numbers {
    type Task = Vec<u8>;
    type Special = Vec<u8>;
    type Scratch = ();

    fn run(&self, task: Vec<u8>, (): &mut (), out: &mut Output<Self>) {
        out.bytes.extend_from_slice(&task);
        out.bytes.push(b'(');
        if task.len() < self.depth {
            for child in 0..self.width {
                let mut path = task.clone();
                path.push(b'0' + child);
                out.child(path);
                out.bytes.push(b',');
            }
        } else {
            out.special(task);
            out.bytes.resize(out.bytes.len() + self.padding, b'.');
        }
        out.bytes.push(b')');
    }
}

fn expected(tree: &Numbers, path: &mut Vec<u8>, out: &mut Vec<u8>) {
    out.extend_from_slice(path);
    out.push(b'(');
    if path.len() < tree.depth {
        for child in 0..tree.width {
            path.push(b'0' + child);
            expected(tree, path, out);
            path.pop();
            out.push(b',');
        }
    } else {
        out.push(b'<');
        out.extend_from_slice(path);
        out.push(b'>');
        out.resize(out.len() + tree.padding, b'.');
    }
    out.push(b')');
}

fn walked(tree: &Numbers, threads: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let result: Result<(), ()> = walk(tree, Vec::new(), threads, |received| {
        match received {
            Received::Bytes(bytes) => out.extend_from_slice(bytes),
            Received::Special(path) => {
                out.push(b'<');
                out.extend_from_slice(&path);
                out.push(b'>');
            }
        }
        Ok(())
    });
    assert_eq!(result, Ok(()));
    out
}

#[test]
fn order_does_not_depend_on_threads() {
    let tree = Numbers {
        width: 9,
        depth: 4,
        padding: 3,
    };
    let mut wanted = Vec::new();
    expected(&tree, &mut Vec::new(), &mut wanted);
    for threads in [0, 1, 2, 3, 8] {
        assert!(
            walked(&tree, threads) == wanted,
            "differs on {threads} threads"
        );
    }
}

#[test]
fn helpers_that_are_too_far_ahead_wait() {
    // 625 leaves of 1 MiB: ten times the output that may wait for the receiver.
    let tree = Numbers {
        width: 5,
        depth: 4,
        padding: 1 << 20,
    };
    let mut total = 0;
    let result: Result<(), ()> = walk(&tree, Vec::new(), 3, |received| {
        if let Received::Bytes(bytes) = received {
            total += bytes.len();
        }
        Ok(())
    });
    assert_eq!(result, Ok(()));
    assert!(total > 625 << 20, "{total}");
}

#[test]
fn an_error_of_the_receiver_ends_the_walk() {
    let tree = Numbers {
        width: 9,
        depth: 5,
        padding: 0,
    };
    for threads in [1, 4] {
        let mut calls = 0;
        let result = walk(&tree, Vec::new(), threads, |_| {
            calls += 1;
            if calls == 100 { Err("full") } else { Ok(()) }
        });
        assert_eq!((result, calls), (Err("full"), 100));
    }
}

#[test]
fn a_chain_as_deep_as_an_image_allows() {
    struct Chain;
    impl Walker for Chain {
        type Task = u32;
        type Special = ();
        type Scratch = ();
        fn run(&self, task: u32, (): &mut (), out: &mut Output<Self>) {
            out.bytes.push(b'x');
            if task < 200_000 {
                out.child(task + 1);
            }
        }
    }
    let mut count = 0;
    let all: Result<(), ()> = walk(&Chain, 0, 2, |_| {
        count += 1;
        Ok(())
    });
    assert_eq!((all, count), (Ok(()), 200_001));
    let stopped = walk(&Chain, 0, 2, |_| Err(()));
    assert_eq!(stopped, Err(()));
}

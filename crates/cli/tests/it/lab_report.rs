//! The reports of `fourscore lab`: the page, its JSON and comma-separated values, comparisons, and
//! what is refused before anything runs.

use std::fs;
use std::path::Path;
use std::process::Command;

use fourscore_testkit::require;
use fourscore_testkit::tools::{Need, find, skip};
use serde_json::Value;

use crate::common::{failing, fourscore, printed, refused, text};

/// Names under which a browser that renders without a display is installed.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Runs an experiment at its smallest size with a report in a directory, and returns the page.
fn page(experiment: &str, directory: &Path) -> String {
    let arguments = [
        "lab",
        "run",
        experiment,
        "--smallest",
        "--report",
        text(directory),
    ];
    let text = printed(&mut fourscore(&arguments));
    assert!(text.contains("published (other machines)"), "{text}");
    fs::read_to_string(directory.join("index.html")).expect("a page")
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("a file");
    serde_json::from_str(&text).expect("JSON")
}

/// Checks that every element of a page is closed where it belongs, as in XML.
fn check_elements(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.strip_prefix("<!doctype html>").expect("a document");
    while let Some(start) = rest.find('<') {
        let tag = &rest[start + 1..];
        let end = tag.find('>').expect("the end of a tag");
        let (tag, behind) = (&tag[..end], &tag[end + 1..]);
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes in <{tag}>");
        assert!(!tag.contains('<'), "<{tag}>");
        rest = behind;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "</{name}>");
        } else if !tag.ends_with('/') {
            let name = tag.split_whitespace().next().expect("a name");
            open.push(name);
            if name == "style" {
                let end = rest.find("</style>").expect("the end of the style");
                rest = &rest[end..];
            }
        }
    }
    assert_eq!(open, [""; 0], "elements that are not closed");
    let texts = page.split('&').skip(1);
    for entity in texts {
        let name = entity.split(';').next().expect("a name");
        assert!(["amp", "lt", "gt", "quot"].contains(&name), "&{name}");
    }
}

#[test]
fn a_page_has_all_data_and_needs_nothing_from_outside() {
    let folder = tempfile::tempdir().expect("a directory");
    for experiment in ["s2-fastcommit", "s5-bestavail"] {
        let directory = folder.path().join(experiment);
        let page = page(experiment, &directory);
        check_elements(&page);
        for outside in [
            "://", "src=", "url(", "@import", "<script", "<link", "<iframe",
        ] {
            assert!(!page.contains(outside), "{experiment}: {outside}");
        }
        let report = json(&directory.join("report.json"));
        let runs = report["runs"].as_array().expect("runs");
        for side in runs[0]["sides"].as_array().expect("sides") {
            let name = side["side"].as_str().expect("a name");
            let points = page.matches(&format!("data-series=\"{name}\"")).count();
            // The speed, and the ratio to the first side.
            assert_eq!(points, 2 * runs.len(), "{name}");
        }
        let published = report["published"].as_array().expect("rows").len();
        assert_eq!(page.matches("data-series=\"published\"").count(), published);
        for part in [
            report["command"].as_str().expect("a command"),
            report["machine"]["cpu_model"].as_str().expect("a name"),
            "operations/s",
            "prefers-color-scheme: dark",
            "@media print",
            "width=device-width",
            "href=\"report.json\"",
        ] {
            assert!(page.contains(part), "{part}");
        }
        let csv = fs::read_to_string(directory.join("report.csv")).expect("values");
        let sides = runs[0]["sides"].as_array().map_or(0, Vec::len);
        assert_eq!(csv.lines().count(), 1 + runs.len() * sides + 2 * published);
    }
}

#[test]
fn the_three_forms_of_a_report_agree() {
    let common = [
        "lab",
        "run",
        "s3-xattrcache",
        "--cases",
        "mix-same",
        "--threads",
        "1",
    ];
    let with = |more: &[&str]| {
        let arguments = [&common[..], &["--steps", "300", "--rounds", "2"], more].concat();
        printed(&mut fourscore(&arguments))
    };
    let report: Value = serde_json::from_str(&with(&["--json"])).expect("JSON");
    let command = report["command"].as_str().expect("a command");
    let expected =
        "fourscore lab run s3-xattrcache --cases mix-same --threads 1 --steps 300 --rounds 2";
    assert_eq!(command, expected);
    let csv = with(&["--csv"]);
    let mut lines = csv.lines();
    assert!(
        lines
            .next()
            .is_some_and(|head| head.starts_with("kind,case,threads,side,"))
    );
    let first = lines.next().expect("a row");
    assert!(
        first.starts_with("measured,mix-same,1,one lock,operations/s,"),
        "{first}"
    );
    let text = with(&[]);
    for part in [
        &format!("again: {expected}\n"),
        "\nmix-same, 1 thread\n",
        "of another file, % ",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    let arguments = [&common[..], &["--json", "--csv"]].concat();
    assert_eq!(failing(&arguments).0, Some(2));
}

#[test]
fn reports_are_compared_with_intervals() {
    let folder = tempfile::tempdir().expect("a directory");
    let report = |name: &str, experiment: &str, rounds: &str, factor: f64| {
        let case = match experiment {
            "s2-fastcommit" => "8x8",
            _ => "set-same",
        };
        let arguments = [
            "lab",
            "run",
            experiment,
            "--cases",
            case,
            "--threads",
            "1",
            "--steps",
        ];
        let arguments = [&arguments[..], &["20", "--rounds", rounds, "--json"]].concat();
        let text = printed(&mut fourscore(&arguments));
        let mut report: Value = serde_json::from_str(&text).expect("JSON");
        for side in report["runs"][0]["sides"].as_array_mut().expect("sides") {
            for (nr, sample) in side["samples"]
                .as_array_mut()
                .expect("samples")
                .iter_mut()
                .enumerate()
            {
                *sample = (factor * (1000.0 + nr as f64)).into();
            }
        }
        let path = folder.path().join(name);
        fs::write(&path, report.to_string()).expect("written");
        path
    };
    let a = report("a.json", "s2-fastcommit", "5", 1.0);
    let b = report("b.json", "s2-fastcommit", "5", 1.5);
    let few = report("few.json", "s2-fastcommit", "1", 1.5);
    let other = report("other.json", "s3-xattrcache", "1", 1.0);
    let compare =
        |a: &Path, b: &Path| printed(&mut fourscore(&["lab", "compare", text(a), text(b)]));
    let found = compare(&a, &b);
    assert!(found.contains("1.500 (1.49"), "{found}");
    assert_eq!(found.matches(", faster\n").count(), 3, "{found}");
    assert_eq!(compare(&b, &a).matches(", slower\n").count(), 3);
    assert_eq!(
        compare(&a, &a).matches(", no difference shown\n").count(),
        3
    );
    assert_eq!(
        compare(&a, &few)
            .matches(", too few rounds for 95 %\n")
            .count(),
        3
    );
    let arguments = ["lab", "compare", text(&a), text(&b), "--json"];
    let rows: Value = serde_json::from_str(&printed(&mut fourscore(&arguments))).expect("JSON");
    let interval = &rows["rows"][0]["interval"];
    let bound = |name: &str| interval[name].as_f64().expect(name);
    assert!(bound("low") < 1.5 && 1.5 < bound("high") && bound("confidence") >= 0.95);
    let (status, message) = failing(&["lab", "compare", text(&a), text(&other)]);
    assert_eq!(status, Some(2));
    assert!(
        message.contains("it is of s3-xattrcache, the other one of s2-fastcommit"),
        "{message}"
    );
    fs::write(&other, "{}").expect("written");
    refused(
        &["lab", "compare", text(&a), text(&other)],
        "it is not a report",
    );
    let missing = folder.path().join("none.json");
    refused(
        &["lab", "compare", text(&a), text(&missing)],
        "No such file or directory",
    );
}

#[test]
fn a_report_goes_into_a_new_or_an_empty_directory_only() {
    let folder = tempfile::tempdir().expect("a directory");
    let run = |directory: &Path| {
        vec![
            "lab",
            "run",
            "s3-xattrcache",
            "--smallest",
            "--report",
            text(directory),
        ]
        .into_iter()
        .map(str::to_owned)
        .collect::<Vec<_>>()
    };
    let full = folder.path().join("full");
    fs::create_dir(&full).expect("a directory");
    fs::write(full.join("mine"), "kept").expect("written");
    refused(
        &run(&full),
        "the directory is not empty: it has mine (--report takes a new or an empty",
    );
    assert_eq!(fs::read_dir(&full).expect("a directory").count(), 1);
    refused(&run(&full.join("mine")), "Not a directory");
    refused(
        &run(&folder.path().join("no/such")),
        "No such file or directory",
    );
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).expect("a directory");
    printed(&mut fourscore(&run(&empty)));
    assert!(empty.join("index.html").exists());
    refused(&run(&empty), "the directory is not empty");
}

#[test]
fn a_report_that_has_no_space_is_refused_before_anything_runs() {
    require!(Need::Root);
    let folder = tempfile::tempdir().expect("a directory");
    // In a mount namespace of its own, nothing stays mounted.
    let script = "mount -t tmpfs -o size=512k none \"$1\" && exec \"$2\" lab run s3-xattrcache \
                  --smallest --report \"$1/report\"";
    let program = fourscore(&[""; 0]);
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh", text(folder.path())])
        .arg(program.get_program())
        .output();
    let output = output.expect("unshare runs");
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("unshare failed") {
        return skip("needs mount namespaces");
    }
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("512 KiB are free, and a report takes up to 4096 KiB"),
        "{message}"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn a_run_that_takes_more_memory_than_there_is_is_refused_with_what_would_fit() {
    let limited = |kib: u64, arguments: &[&str]| {
        let program = fourscore(&[""; 0]);
        let script = format!("ulimit -v {kib} && exec \"$@\"");
        let mut command = Command::new("sh");
        command
            .args(["-c", &script, "sh"])
            .arg(program.get_program())
            .args(arguments);
        let output = command.output().expect("sh runs");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), message)
    };
    let arguments = [
        "lab",
        "run",
        "s2-fastcommit",
        "--cases",
        "64x16384",
        "--rounds",
        "1",
    ];
    let (status, message) = limited(1 << 20, &arguments);
    assert_eq!(status, Some(1), "{message}");
    assert!(
        message.contains("takes up to 2080 MiB of memory, and 1024 MiB are available"),
        "{message}"
    );
    assert!(
        message.contains("--cases 2x2,4x4,8x8,16x16,32x32,64x64,64x1024 would fit"),
        "{message}"
    );
    let (status, message) = limited(
        1 << 20,
        &["lab", "run", "s1-prefetch", "--scenario", "1p-95"],
    );
    assert_eq!(status, Some(1), "{message}");
    assert!(message.contains("--scenario 842g,802g,"), "{message}");
}

/// Renders a page at a width, and returns the document as it is then.
fn rendered(browser: &Path, page: &Path, width: u32, scheme: u32, shot: &Path) -> String {
    let profile = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(browser);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ])
        .arg(format!("--user-data-dir={}", text(profile.path())))
        .arg(format!("--window-size={width},1600"))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("--screenshot={}", text(shot)))
        .arg("--dump-dom")
        .arg(format!("file://{}", text(page)));
    let output = command.output().expect("the browser runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("a document")
}

/// The page fits the width of a phone and of a desk, and looks different in the two colour schemes.
#[test]
fn a_browser_renders_the_page_at_both_widths_and_in_both_colour_schemes() {
    let Some(browser) = BROWSERS.iter().find_map(|name| find(name)) else {
        return skip("needs a browser: chromium or google-chrome");
    };
    let folder = tempfile::tempdir().expect("a directory");
    let directory = folder.path().join("s1");
    let page = page("s1-prefetch", &directory);
    // What the browser has laid out, as a word at the end of the document.
    let probe = "<script>const root = document.documentElement; \
                 const back = getComputedStyle(document.body).backgroundColor; \
                 const plots = [...document.querySelectorAll('svg.plot')]; \
                 const wide = plots.every(plot => plot.getBoundingClientRect().width >= 280); \
                 document.title = `${root.scrollWidth <= window.innerWidth} ${wide} ${back}`;\
                 </script></body>";
    let probed = folder.path().join("probed.html");
    fs::write(&probed, page.replace("</body>", probe)).expect("written");
    for width in [390, 1280] {
        let looks = [("dark", 0), ("light", 1)].map(|(name, scheme)| {
            let shot = folder.path().join(format!("{name}-{width}.png"));
            let document = rendered(&browser, &probed, width, scheme, &shot);
            let title = document
                .split("<title>")
                .nth(1)
                .and_then(|rest| rest.split("</title>").next());
            let title = title.expect("a title").to_owned();
            assert!(
                title.starts_with("true true rgb("),
                "{name}, {width}: {title}"
            );
            let picture = fs::read(&shot).expect("a picture");
            assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000);
            title
        });
        assert!(looks[0].ends_with("rgb(13, 17, 23)"), "{looks:?}");
        assert!(looks[1].ends_with("rgb(255, 255, 255)"), "{looks:?}");
    }
}

#[test]
fn a_report_has_the_profile_of_each_side() {
    let folder = tempfile::tempdir().expect("a directory");
    let directory = folder.path().join("s4");
    let run = ["lab", "run", "s4-goals", "--smallest", "--profile"];
    let arguments = [&run[..], &["--report", text(&directory)]].concat();
    let printed = printed(&mut fourscore(&arguments));
    assert!(printed.contains("    group choice "), "{printed}");
    let page = fs::read_to_string(directory.join("index.html")).expect("a page");
    check_elements(&page);
    assert!(page.contains("<h2>Where the time goes</h2>"), "{page}");
    let report = json(&directory.join("report.json"));
    let command = report["command"].as_str().expect("a command");
    assert!(command.ends_with(" --profile"), "{command}");
    for side in report["runs"][0]["sides"].as_array().expect("sides") {
        let rows = side["profile"]["rows"].as_array().expect("rows");
        let shares = rows.iter().filter_map(|row| row["share"].as_f64());
        assert!((shares.sum::<f64>() - 1.0).abs() < 1e-6, "{side}");
    }
    // What has no sections is refused, with its name.
    let (status, message) = failing(&["lab", "run", "s2-fastcommit", "--smallest", "--profile"]);
    assert_eq!(status, Some(2));
    assert!(message.contains("s2-fastcommit"), "{message}");
}

//! Runs the peer's program as a person would.

use std::fs;
use std::process::Command;

use windowpane::Device;

/// A case that runs gives a row with a time; a case that cubek does not support gives a row with an error.
#[test]
fn rows_are_printed() {
    let Some(device) = Device::all().into_iter().find(|device| device.client().is_some()) else {
        return;
    };
    let cases = format!("{}/cubek-cases.jsonl", env!("CARGO_TARGET_TMPDIR"));
    let case = |layout: &str| {
        format!(
            r#"{{"name": "x", "kind": "avgpool", "pass": "fwd", "n": 1, "c": 8, "size": [8, 8],
            "k": [2, 2], "s": [2, 2], "p": [0, 0], "d": [1, 1], "dtype": "f32",
            "layout": "{layout}"}}"#
        )
        .replace('\n', " ")
    };
    fs::write(&cases, [case("nhwc"), case("nchw")].join("\n")).expect("a file of cases");
    let mut command = Command::new(env!("CARGO_BIN_EXE_cubek"));
    command.args(["--cases", &cases, "--backend", device.backend().name()]);
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = String::from_utf8(output.stdout).expect("text");
    let rows: Vec<serde_json::Value> =
        rows.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    let [timed, refused] = &rows[..] else { panic!("two rows, not {rows:?}") };
    assert!(timed["ms"].as_f64().is_some_and(|ms| ms > 0.0), "{timed}");
    assert_eq!((&timed["peer"], &timed["algorithm"]), (&"cubek".into(), &"pool2d".into()));
    // The version is the one in the workspace's manifest.
    let manifest = include_str!("../../Cargo.toml");
    let version = timed["version"].as_str().expect("a version");
    assert!(manifest.contains(&format!("cubek-pool = {{ version = \"={version}\"")), "{version}");
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("channels last")));
}

//! Case files, and the rows that runs of them print.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Folder, Ran};

/// A small case of this kind and pass.
pub(crate) fn case(name: &str, kind: &str, pass: &str, dtype: &str, layout: &str) -> Value {
    json!({
        "name": name, "kind": kind, "pass": pass, "dtype": dtype, "layout": layout,
        "n": 2, "c": 8, "size": [12, 12], "k": [3, 3], "s": [2, 2], "p": [1, 1], "d": [1, 1],
        "indices": kind == "maxpool" && pass == "bwd",
    })
}

pub(crate) fn write(folder: &Folder, cases: &[Value]) -> String {
    let lines: String = cases.iter().map(|case| format!("{case}\n")).collect();
    fs::write(folder.path("cases.jsonl"), lines).expect("a file for the test");
    folder.name("cases.jsonl")
}

pub(crate) fn rows(ran: &Ran) -> Vec<Value> {
    ran.out.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

pub(crate) fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} is no number in {row}"))
}

/// A small convolution of this pass.
pub(crate) fn conv(pass: &str, dtype: &str, layout: &str) -> Value {
    let mut conv = case("small", "conv", pass, dtype, layout);
    (conv["cout"], conv["groups"]) = (json!(12), json!(2));
    conv
}

/// The ceilings of a run, and its cases.
pub(crate) fn split(lines: &[Value]) -> (&[Value], &[Value]) {
    let first = lines.iter().position(|line| line.get("ceiling").is_none());
    lines.split_at(first.unwrap_or(lines.len()))
}

/// Asserts that a row has a time and everything that goes with it.
#[track_caller]
pub(crate) fn is_timed(row: &Value, bytes: f64, ceiling: f64) {
    let (ms, gbs) = (number(row, "ms"), number(row, "gbs"));
    assert!(ms > 0.0, "{row}");
    // All numbers are rounded to five digits.
    assert!((gbs * ms * 1e6 / bytes - 1.0).abs() < 1e-3, "{row}");
    let fraction = number(row, "ceiling_fraction");
    assert!((fraction * ceiling / gbs - 1.0).abs() < 1e-3, "{row}");
    assert!(number(row, "spread") >= 0.0 && row["noisy"].is_boolean(), "{row}");
    assert!(number(row, "windows") >= 3.0 && number(row, "launches") >= 1.0, "{row}");
    // On `host` there is nothing to record, and the CPU's runtime does not support recording.
    let recorded = !["host", "cpu"].contains(&row["backend"].as_str().expect("a backend"));
    assert_eq!(row["recorded"], recorded, "{row}");
    assert!(row["algorithm"].is_string() && row["tflops"].is_null(), "{row}");
    assert!(row.get("error").is_none(), "{row}");
}

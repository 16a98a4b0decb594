//! `verify`: cases compared with the reference.

use serde_json::{Value, json};
use windowpane::Device;

use super::cases::{case, conv, number, rows, write};
use crate::support::{Folder, run, run_with};

/// Every backend's results agree with the reference, and the rows give the number of samples.
#[test]
fn cases_are_verified_on_every_backend() {
    let folder = Folder::new();
    let mut cases = Vec::new();
    for (kind, pass) in
        [("maxpool", "fwd"), ("maxpool", "bwd"), ("avgpool", "fwd"), ("avgpool", "bwd")]
    {
        cases.push(case("small", kind, pass, "f32", "nchw"));
    }
    let file = write(&folder, &cases);
    let mut backends: Vec<_> = Device::all().iter().map(|device| device.backend().name()).collect();
    backends.dedup();
    let verify = ["verify", "--cases", &file, "--taps", "1"];
    let ran = run_with(&verify, &["--backend", &backends.join(",")]).succeeded();
    let rows = rows(&ran);
    assert_eq!(rows.len(), cases.len() * backends.len());
    for row in rows {
        assert!((0.0..=1.0).contains(&number(&row, "error_in_bounds")), "{row}");
        let exact = row["kind"] == "maxpool" && row["pass"] == "fwd";
        assert!(!exact || number(&row, "error_in_bounds") == 0.0, "{row}");
        assert!(number(&row, "samples") == 1.0 && number(&row, "outputs") > 0.0, "{row}");
    }
    let failing = write(&folder, &[case("x", "lstm", "fwd", "f32", "nhwc")]);
    let ran = run(&["verify", "--cases", &failing]);
    ran.refused(1, "1 of 1 cases are wrong or did not run");
    assert!(ran.out.contains("`lstm`") && !ran.out.contains("error_in_bounds"), "{ran:?}");
}

/// A case may set the kernel, the divisor, the exponent, the rounding and the layout of the filters.
#[test]
fn cases_say_all_that_they_are() {
    let folder = Folder::new();
    let mut cases = Vec::new();
    for (kind, field, value) in [
        ("avgpool", "divisor", json!("padded")),
        ("avgpool", "divisor", json!(7)),
        ("lppool", "exponent", json!(1.5)),
        ("rankpool", "rank", json!("2/3")),
        ("rankpool", "rank", json!(1)),
        ("modepool", "k", json!([9, 9])),
        ("maxpool", "ceil", json!(true)),
        ("maxpool", "algorithm", json!("sliding")),
    ] {
        let mut case = case(&format!("{kind}-{field}-{value}"), kind, "fwd", "f32", "nhwc");
        case[field] = value;
        cases.push(case);
    }
    for (pass, filters) in [("fwd", "hwcf"), ("dgrad", "fchw"), ("wgrad", "hwcf"), ("bias", "fhwc")]
    {
        let mut conv = conv(pass, "f32", "nhwc");
        conv["filters"] = json!(filters);
        cases.push(conv);
    }
    cases.extend(others());
    let rows = rows(&run(&["verify", "--cases", &write(&folder, &cases)]).succeeded());
    assert_eq!(rows.len(), cases.len());
    for row in &rows {
        assert!((0.0..=1.0).contains(&number(row, "error_in_bounds")), "{row}");
        let forced = row["name"].as_str().is_some_and(|name| name.contains("algorithm"));
        assert!(!forced || row["algorithm"] == "sliding", "{row}");
    }
    let mut bad = case("x", "avgpool", "fwd", "f32", "nhwc");
    bad["divisor"] = json!("none");
    let ran = run(&["verify", "--cases", &write(&folder, &[bad])]);
    ran.refused(1, "1 of 1 cases");
    assert!(ran.out.contains("padded, valid or a whole number from 1"), "{ran:?}");
}

/// A case of each kind and form of window that the first cases do not have.
fn others() -> Vec<Value> {
    let line = |name: &str, kind: &str, pass: &str, change: Value| {
        let mut line = match kind {
            "conv" | "convtranspose" => conv(pass, "f32", "nchw"),
            _ => case("", kind, pass, "f32", "nchw"),
        };
        (line["name"], line["kind"]) = (json!(name), json!(kind));
        for (field, value) in change.as_object().expect("fields") {
            line[field] = value.clone();
        }
        line.as_object_mut().expect("fields").retain(|_, value| !value.is_null());
        line
    };
    let adaptive = json!({"k": null, "s": null, "p": null, "d": null, "adaptive": [5, 12]});
    vec![
        line("adaptive", "avgpool", "bwd", adaptive.clone()),
        line("adaptive", "maxunpool", "fwd", adaptive),
        line("same", "lppool", "fwd", json!({"p": null, "same": "lower"})),
        line("unequal", "maxunpool", "bwd", json!({"p": [[0, 2], 1]})),
        line(
            "epilogue",
            "conv",
            "fwd",
            json!({"bias": true, "residual": true, "activation": "gelu"}),
        ),
        line("mirror", "conv", "data", json!({"padding_mode": "reflect"})),
        line("up", "convtranspose", "fwd", json!({"output_padding": [1, 0], "bias": true})),
        line("up", "convtranspose", "weight", json!({"output_padding": [1, 0]})),
        line("frame", "pad", "bwd", json!({"k": null, "padding_mode": "circular"})),
    ]
}

/// `bench` times them as any other case.
#[test]
fn cases_of_every_kind_are_timed() {
    let folder = Folder::new();
    let file = write(&folder, &others());
    let lines = rows(&run(&["bench", "--cases", &file, "--format", "json"]).succeeded());
    let timed: Vec<_> = lines.iter().filter(|line| line.get("ceiling").is_none()).collect();
    assert_eq!(timed.len(), others().len());
    for row in timed {
        assert!(number(row, "ms") > 0.0 && number(row, "intensity") > 0.0, "{row}");
        assert!((0.0..=1.0).contains(&number(row, "error_in_bounds")), "{row}");
    }
}

/// Random problems are correct on every backend; the same seed draws the same problems, and the summary says how
/// often each kernel ran.
#[test]
fn random_problems_are_verified_on_every_backend() {
    let mut backends: Vec<_> = Device::all().iter().map(|device| device.backend().name()).collect();
    backends.dedup();
    let random = ["verify", "--random", "8", "--seed", "5", "--taps", "4096"];
    let ran = run_with(&random, &["--backend", &backends.join(",")]).succeeded();
    let last = ran.out.lines().last().expect("a closing line");
    let problems =
        format!("cases of {} problems, seed 5: 0 failures; the fewest", 8 * backends.len());
    assert!(last.contains(&problems), "{last}");
    for backend in &backends {
        assert!(ran.out.contains(&format!("executed on {backend}")), "{}", ran.out);
    }

    let json = [&random[..], &["--format", "json"]].concat();
    let lines = rows(&run(&json).succeeded());
    assert_eq!(lines, rows(&run(&json).succeeded()));
    let (summary, lines) = lines.split_last().expect("a summary");
    let executed = lines.iter().filter(|line| line.get("executed").is_some());
    let executed: f64 = executed.map(|line| number(line, "executed")).sum();
    let verified = lines.iter().filter(|line| line.get("error_in_bounds").is_some()).count();
    assert!(verified >= 8 && executed == verified as f64, "{lines:?}");
    assert_eq!((number(summary, "cases"), number(summary, "failures")), (executed, 0.0));
    assert_eq!(number(summary, "problems"), 8.0);
}

/// The output does not depend on how many processes compute it, nor on which of them is fastest.
#[test]
fn several_processes_print_what_one_does() {
    let mut backends: Vec<_> = Device::all().iter().map(|device| device.backend().name()).collect();
    backends.dedup();
    let backends = backends.join(",");
    let folder = Folder::new();
    let mut cases = others();
    cases.push(case("bad", "avgpool", "fwd", "bool", "nhwc"));
    let file = write(&folder, &cases);
    for format in ["table", "json"] {
        let random = ["verify", "--random", "6", "--seed", "9", "--taps", "4096"];
        let of = |arguments: &[&str], jobs: &str| {
            run_with(arguments, &["--backend", &backends, "--format", format, "--jobs", jobs])
        };
        assert_eq!(of(&random, "1").succeeded().out, of(&random, "3").succeeded().out);
        let listed = ["verify", "--cases", &file];
        let (one, many) = (of(&listed, "1"), of(&listed, "3"));
        one.refused(1, "cases are wrong or did not run; their rows say why");
        assert_eq!((one.out, one.err), (many.out, many.err));
    }
    run(&["verify", "--cases", &file, "--jobs", "0"]).refused(2, "--jobs");
}

/// `--least` is about the cases of each kernel, pass and type.
#[test]
fn kernels_with_few_cases_are_a_failure_if_asked() {
    let random = ["verify", "--random", "6", "--seed", "5", "--filter", "conv/fwd/f32"];
    run(&[&random[..], &["--least", "1"]].concat()).succeeded();
    let ran = run(&[&random[..], &["--least", "1000"]].concat());
    ran.refused(1, "kernels, passes and types have fewer than 1000 cases; draw more problems");
    assert!(ran.out.contains(": 0 failures; the fewest"), "{ran:?}");
    run(&["verify", "--cases", "x.jsonl", "--least", "1"]).refused(2, "--least");
}

/// `--print` runs nothing, and prints each kernel, pass and type once, as cases that pass.
#[test]
fn one_case_of_each_kernel_is_printed() {
    let folder = Folder::new();
    let random = ["verify", "--random", "60", "--seed", "3", "--filter", "/f32/", "--print"];
    let ran = run(&random).succeeded();
    assert_eq!(ran.out, run(&random).succeeded().out);
    let cases = rows(&ran);
    let mut cells: Vec<_> = cases
        .iter()
        .map(|case| {
            let fields = ["algorithm", "kind", "pass", "indices", "precision"];
            fields.map(|field| case.get(field).map(ToString::to_string))
        })
        .collect();
    assert!(cells.iter().all(|cell| cell[0].is_some()), "{cases:?}");
    assert!(cells.len() >= 10, "{cases:?}");
    cells.sort();
    cells.dedup();
    assert_eq!(cells.len(), cases.len());
    let file = write(&folder, &cases);
    let verified = rows(&run(&["verify", "--cases", &file, "--taps", "4096"]).succeeded());
    assert_eq!(verified.len(), cases.len());
    for (row, case) in verified.iter().zip(&cases) {
        assert_eq!(row["algorithm"], case["algorithm"], "{row}");
    }
    run(&["verify", "--random", "2", "--print", "--large"]).refused(2, "--large");
}

#[test]
fn random_problems_are_asked_for_by_themselves() {
    run(&["verify"]).refused(2, "--cases");
    run(&["verify", "--random", "2", "--cases", "x.jsonl"]).refused(2, "--cases");
    run(&["verify", "--cases", "x.jsonl", "--large"]).refused(2, "--large");
    run(&["verify", "--random", "2", "--algorithm", "direct"]).refused(2, "--algorithm");
    run(&["verify", "--random", "2", "--filter", "lstm"]).refused(1, "no problem of `lstm`");
}

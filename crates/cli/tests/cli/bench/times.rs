//! `bench`: timed cases on every device, and failing cases.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use windowpane::Device;

use super::cases::{case, conv, is_timed, number, rows, split, write};
use crate::support::{Folder, run, run_with};

/// Every device of this machine has rows with the right fields.
#[test]
fn cases_are_timed_on_every_backend() {
    let folder = Folder::new();
    let mut cases = Vec::new();
    for (kind, pass, layout) in [
        ("maxpool", "fwd", "nhwc"),
        ("maxpool", "bwd", "nchw"),
        ("avgpool", "fwd", "nchw"),
        ("avgpool", "bwd", "nhwc"),
    ] {
        cases.push(case("small", kind, pass, "f32", layout));
    }
    let mut signal = case("signal", "maxpool", "fwd", "f32", "nhwc");
    for field in ["size", "k", "s", "p", "d"] {
        signal[field] = json!([signal[field][0]]);
    }
    signal["indices"] = json!(true);
    cases.push(signal);
    let file = write(&folder, &cases);

    let mut backends = Vec::new();
    for device in Device::all() {
        if !backends.contains(&device.backend().name()) {
            backends.push(device.backend().name());
        }
    }
    let ran = run_with(&["bench", "--cases", &file], &["--backend", &backends.join(",")]);
    let lines = rows(&ran.succeeded());
    let (ceilings, rows) = split(&lines);
    // The device of each backend, and the bandwidth with which its cases are compared. Its largest copy is the first line.
    let ceilings: Vec<_> = backends
        .iter()
        .map(|backend| {
            let own: Vec<_> = ceilings.iter().filter(|row| row["backend"] == *backend).collect();
            assert_eq!(own[0]["ceiling"], json!("copy"), "{own:?}");
            for copy in own.iter().filter(|row| row["ceiling"] == "copy") {
                assert!(number(copy, "gbs") > 0.0 && copy["device"].is_string(), "{copy}");
                assert!(number(copy, "bytes") <= number(own[0], "bytes"), "{own:?}");
            }
            let vector = own.iter().find(|row| row["ceiling"] == "vector");
            assert_eq!(vector.is_some(), *backend != "host", "{own:?}");
            assert!(vector.is_none_or(|row| number(row, "tflops") > 0.0), "{vector:?}");
            (own[0]["device"].clone(), copy_of_few_bytes(&own))
        })
        .collect();
    assert_eq!(rows.len(), cases.len() * backends.len());
    for (i, row) in rows.iter().enumerate() {
        let (case, backend) = (&cases[i / backends.len()], i % backends.len());
        for field in ["name", "kind", "pass", "dtype", "layout"] {
            assert_eq!(row[field], case[field], "{row}");
        }
        assert_eq!(row["backend"], json!(backends[backend]));
        assert_eq!(row["device"], ceilings[backend].0);
        let device = Device::new(backends[backend].parse().expect("a backend"), 0);
        let clock = if device.expect("a device").has_clock() { "device" } else { "host" };
        assert_eq!(row["clock"], json!(clock), "{row}");
        // n·c·(12² + 6²) floats, or n·c·(12 + 6), plus the indices.
        let (input, output) = if case["name"] == "signal" { (12, 6) } else { (144, 36) };
        let indices = if case["indices"] == true { output } else { 0 };
        let bytes = 16 * 4 * (input + output + indices);
        is_timed(row, f64::from(bytes), ceilings[backend].1);
    }
}

/// Convolutions are timed and verified on every backend, and their rows contain the arithmetic throughput.
#[test]
fn convolutions_are_timed_and_verified_on_every_backend() {
    let folder = Folder::new();
    let mut video = conv("fwd", "f32", "nhwc");
    video["name"] = json!("video");
    for field in ["size", "k", "s", "p", "d"] {
        video[field] = json!([video[field][0], video[field][0], video[field][0]]);
    }
    let cases = [
        conv("fwd", "f32", "nhwc"),
        conv("dgrad", "f32", "nchw"),
        conv("wgrad", "f32", "nhwc"),
        video,
    ];
    let file = write(&folder, &cases);
    let mut backends: Vec<_> = Device::all().iter().map(|device| device.backend().name()).collect();
    backends.dedup();
    let backend = ["--backend", &backends.join(",")];
    let verified = rows(&run_with(&["verify", "--cases", &file], &backend).succeeded());
    assert_eq!(verified.len(), cases.len() * backends.len());
    for row in &verified {
        assert!((0.0..=1.0).contains(&number(row, "error_in_bounds")), "{row}");
        assert!(number(row, "outputs") > 0.0 && number(row, "samples") == 2.0, "{row}");
    }
    // Measuring the ceilings of an emulated GPU takes long; one is enough.
    backends.retain(|backend| *backend != "vulkan" || !emulated());
    let backend = ["--backend", &backends.join(",")];
    let lines = rows(&run_with(&["bench", "--cases", &file], &backend).succeeded());
    let (ceilings, timed) = split(&lines);
    assert_eq!(timed.len(), cases.len() * backends.len());
    for (i, row) in timed.iter().enumerate() {
        let axes = if i / backends.len() == 3 { 3 } else { 2 };
        let (inputs, windows) = (2 * 12u32.pow(axes), 2 * 6u32.pow(axes));
        let taps = 3u32.pow(axes);
        let bytes = 4 * (8 * inputs + 12 * windows + 12 * taps * 4);
        let operations = f64::from(2 * windows * 12 * taps * 4);
        let (ms, gbs) = (number(row, "ms"), number(row, "gbs"));
        assert!((gbs * ms * 1e6 / f64::from(bytes) - 1.0).abs() < 1e-3, "{row}");
        assert!((number(row, "tflops") * ms * 1e9 / operations - 1.0).abs() < 1e-3, "{row}");
        assert!((0.0..=1.0).contains(&number(row, "error_in_bounds")), "{row}");
        // The larger share of two ceilings: the fastest copy and the fastest arithmetic.
        let own = ceilings.iter().filter(|line| line["backend"] == row["backend"]);
        let most = |name: &str| own.clone().filter_map(|line| line[name].as_f64()).reduce(f64::max);
        let computed = most("tflops").map_or(0.0, |most| number(row, "tflops") / most);
        let copy = copy_of_few_bytes(&own.collect::<Vec<_>>());
        let fraction = computed.max(gbs / copy);
        assert!((number(row, "ceiling_fraction") / fraction - 1.0).abs() < 1e-3, "{row}");
    }
}

/// The bandwidth with which cases of few bytes are compared: that of the device's largest copy, or of its smallest, which
/// moves more bytes than they do; whichever is faster.
fn copy_of_few_bytes(ceilings: &[&Value]) -> f64 {
    let copies: Vec<_> = ceilings.iter().filter(|row| row["ceiling"] == "copy").collect();
    let [first, last] =
        [copies.first(), copies.last()].map(|row| number(row.expect("a copy"), "gbs"));
    first.max(last)
}

/// Whether a CPU emulates a GPU.
fn emulated() -> bool {
    Device::all().iter().any(Device::is_emulated)
}

/// Kernels and tiles are chosen by measuring, saved in a file, and used by commands that read the file.
#[test]
fn cases_are_tuned_and_the_table_is_followed() {
    let folder = Folder::new();
    let pool = case("x", "maxpool", "fwd", "f32", "nhwc");
    let file = write(&folder, &[pool, conv("fwd", "f32", "nhwc")]);
    let Some(device) = Device::all().into_iter().find(|it| it.backend().name() != "host") else {
        return;
    };
    let on = ["--backend", device.backend().name()];
    let (table, cases) = (folder.name("gpu.tuned"), ["--cases", &file]);
    let bench = |flags: &[&str]| run_with(&[&["bench"], &cases[..], flags].concat(), &on);
    bench(&["--tuned", &table]).refused(1, "gpu.tuned");
    let ran = bench(&["--tune", "--tuned", &table]).succeeded();
    let tuned = rows(&ran).pop().expect("a row");
    assert!((0.0..=1.0).contains(&number(&tuned, "error_in_bounds")), "{tuned}");
    let text = fs::read_to_string(&table).expect("a table");
    assert!(text.contains(device.name()) && text.contains("forward f32 strict"), "{text}");
    // A different choice, to check that the table's choice is used.
    assert!(text.contains("pooling max-pooling f32"), "{text}");
    let kept = text.lines().find(|line| line.starts_with("forward")).expect("a line");
    let problem = kept.split(" = ").next().expect("a problem");
    let direct = text.replace(kept, &format!("{problem} = direct splits=1"));
    let pooled = direct.lines().find(|line| line.starts_with("pooling")).expect("a line");
    let problem = pooled.split(" = ").next().expect("a problem");
    let other = if pooled.ends_with(" direct") { "register_tile" } else { "direct" };
    let direct = direct.replace(pooled, &format!("{problem} = {other}"));
    fs::write(&table, direct).expect("a file for the test");
    let mut ran = rows(&bench(&["--tuned", &table]).succeeded());
    let row = ran.pop().expect("a row");
    assert_eq!(ran.pop().expect("a row")["algorithm"], json!(other));
    assert_eq!((&row["algorithm"], row.get("tile")), (&json!("direct"), None), "{row}");
    let shapes = ["--shape", "2,12,12,8", "--weight-shape", "12,3,3,4", "--stride", "2,2"];
    let options = ["--padding", "1,1", "--groups", "2", "--tuned", &table];
    let plan = run_with(&[&["plan", "conv"], &shapes[..], &options].concat(), &on).succeeded();
    assert!(plan.out.contains("direct"), "{}", plan.out);
    fs::write(&table, "something else").expect("a file for the test");
    bench(&["--tuned", &table]).refused(1, "line 1");
}

/// A kernel and a tile are forced on all cases; cases that do not have them report an error.
#[test]
fn kernels_and_tiles_can_be_forced() {
    let folder = Folder::new();
    let cases = [conv("fwd", "f32", "nhwc"), case("x", "maxpool", "fwd", "f32", "nhwc")];
    let file = write(&folder, &cases);
    let bench = |flags: &[&str]| run(&[&["bench", "--cases", &file], flags].concat());
    let ran = bench(&["--algorithm", "direct"]).succeeded();
    assert!(rows(&ran).iter().skip(1).all(|row| row["algorithm"] == json!("direct")));
    bench(&["--algorithm", "fast"]).refused(2, "for convolution");
    let ran = bench(&["--algorithm", "sliding"]);
    ran.refused(1, "1 of 2 cases");
    assert!(
        rows(&ran)[1]["error"].as_str().expect("an error").contains("no convolution algorithm")
    );
    if let Some(device) = Device::all().into_iter().find(|it| it.backend().name() == "wgpu") {
        let on = ["--backend", device.backend().name(), "--filter", "conv"];
        let forced = ["--algorithm", "tiled", "--tile", "block_m=32,block_n=16,ratio_m=1"];
        let ran = run_with(&[&["bench", "--cases", &file], &forced[..]].concat(), &on);
        let row = rows(&ran.succeeded()).pop().expect("a row");
        assert_eq!(row["algorithm"], json!("simt"), "{row}");
        let tile = row["tile"].as_str().expect("a tile");
        assert!(tile.contains("block_m=32,block_n=16") && tile.contains("ratio_m=1"), "{tile}");
    }
}

/// Rows of two cases with the same path could not be distinguished.
#[test]
fn two_cases_of_one_name_are_refused() {
    let folder = Folder::new();
    let case = case("twice", "avgpool", "fwd", "f32", "nhwc");
    let file = write(&folder, &[case.clone(), case]);
    for command in ["bench", "verify"] {
        let ran = run(&[command, "--cases", &file]);
        ran.refused(1, "line 2: there is a `twice/avgpool/fwd/f32/nhwc` already");
    }
}

/// A failed case gives a row that says why, and the other cases still run.
#[test]
fn a_failed_case_is_a_row_that_says_so() {
    let folder = Folder::new();
    let good = case("good", "avgpool", "fwd", "f16", "nhwc");
    let bad = |name: &str, field: &str, value: Value| {
        let mut case = good.clone();
        (case["name"], case[field]) = (json!(name), value);
        case
    };
    let long = bad("long", "k", json!([99, 3]));
    let rank = bad("rank", "s", json!([1]));
    let field = bad("field", "k", json!("three"));
    let huge = bad("huge", "n", json!(1u64 << 50));
    let failing = [
        (case("x", "lstm", "fwd", "f32", "nhwc"), "`lstm`"),
        (case("x", "maxpool", "wgrad", "f32", "nhwc"), "`wgrad`"),
        (case("x", "maxpool", "fwd", "f8", "nhwc"), "`f8`"),
        (case("x", "maxpool", "fwd", "f32", "nwch"), "`nwch`"),
        (case("x", "avgpool", "fwd", "bool", "nhwc"), "bool"),
        (long, "height"),
        (rank, "axes"),
        (field, "bad field"),
        (huge, "memory"),
        (bad("typo", "indicies", json!(true)), "no field `indicies`"),
        (bad("padded", "p", json!([1 << 26, 1 << 26])), "fit"),
    ];
    let mut cases: Vec<Value> = failing.iter().map(|(case, _)| case.clone()).collect();
    cases.push(good);
    let file = write(&folder, &cases);
    let ran = run(&["bench", "--cases", &file, "--format", "json"]);
    ran.refused(1, "11 of 12 cases did not run");
    let rows = rows(&ran);
    let (ceilings, rows) = split(&rows);
    for ((_, saying), row) in failing.iter().zip(rows) {
        let error = row["error"].as_str().unwrap_or_else(|| panic!("no error in {row}"));
        assert!(error.contains(saying), "`{saying}` is not in {error}");
        assert!(row.get("ms").is_none() && row.get("gbs").is_none(), "{row}");
    }
    let bytes = 16 * 2 * (144 + 36);
    is_timed(&rows[failing.len()], f64::from(bytes), number(&ceilings[0], "gbs"));
}

#[test]
fn a_filter_picks_cases() {
    let folder = Folder::new();
    let passes = [("maxpool", "fwd"), ("maxpool", "bwd"), ("avgpool", "fwd")];
    let cases = passes.map(|(kind, pass)| case("stem", kind, pass, "f32", "nhwc"));
    let file = write(&folder, &cases);
    let bench = |filter: &str| run(&["bench", "--cases", &file, "--filter", filter]);
    assert_eq!(rows(&bench("stem").succeeded()).len(), 1 + 3);
    assert_eq!(rows(&bench("stem/maxpool").succeeded()).len(), 1 + 2);
    let row = &rows(&bench("maxpool/bwd/f32").succeeded())[1];
    assert_eq!((&row["kind"], &row["pass"]), (&json!("maxpool"), &json!("bwd")));
    bench("root").refused(1, "none of the 3 cases has `root`");
}

/// Lines are printed as they are measured, so an interrupted run has printed its results so far.
#[test]
fn rows_come_one_by_one() {
    let folder = Folder::new();
    // Seconds of work; the test waits only for the first row.
    let cases: Vec<_> =
        (0..200).map(|i| case(&format!("case {i}"), "avgpool", "fwd", "f32", "nhwc")).collect();
    let file = write(&folder, &cases);
    let mut bench = Command::new(env!("CARGO_BIN_EXE_windowpane"));
    bench.args(["bench", "--cases", &file, "--backend", "host"]).stdout(Stdio::piped());
    let mut run = bench.spawn().expect("the binary starts");
    let mut lines = BufReader::new(run.stdout.take().expect("a pipe")).lines();
    let mut next = || {
        let line = lines.next()?.expect("a line");
        Some(serde_json::from_str::<Value>(&line).expect("a whole line of JSON"))
    };
    assert_eq!(next().expect("a line")["ceiling"], json!("copy"));
    assert_eq!(next().expect("a line")["name"], json!("case 0"));
    assert!(run.try_wait().expect("it is there").is_none(), "all rows came at the end");
    run.kill().expect("it is there");
    run.wait().expect("it is there");
    let rest = std::iter::from_fn(next).count();
    assert!(rest < cases.len() - 1, "the run was over");
}

/// Rows say whether caches were warm or cold; with cold caches a timing run is one launch.
#[test]
fn caches_are_warm_or_flushed() {
    let folder = Folder::new();
    let file = write(&folder, &[case("x", "maxpool", "fwd", "f32", "nhwc")]);
    let bench =
        |flag: &[&str]| rows(&run(&[&["bench", "--cases", &file], flag].concat()).succeeded());
    let (warm, cold) = (bench(&[]), bench(&["--flush-cache"]));
    let ((warm_ceilings, warm), (cold_ceilings, cold)) = (split(&warm), split(&cold));
    assert_eq!((&warm[0]["cache"], &cold[0]["cache"]), (&json!("warm"), &json!("cold")));
    assert_eq!((number(&cold[0], "launches"), &cold[0]["error_in_bounds"]), (1.0, &json!(0.0)));
    // The ceilings for cold caches say so too.
    assert!(!cold_ceilings.is_empty() && cold_ceilings.len() == warm_ceilings.len());
    assert!(warm_ceilings.iter().all(|line| line.get("cache").is_none()), "{warm_ceilings:?}");
    assert!(cold_ceilings.iter().all(|line| line["cache"] == "cold"), "{cold_ceilings:?}");
    assert!(bench(&["--unchecked"]).pop().expect("a row")["error_in_bounds"].is_null());
    // A case without a time says so too.
    let mut long = case("x", "maxpool", "fwd", "f32", "nhwc");
    long["k"] = json!([99, 3]);
    write(&folder, &[long]);
    let ran = run(&["bench", "--cases", &file, "--flush-cache"]);
    ran.refused(1, "1 of 1 cases");
    let failed = rows(&ran).pop().expect("a row");
    assert!(failed["error"].is_string() && failed["cache"] == "cold", "{failed}");
}

/// `--compile` says on stderr what it compiled if the device has kernels, and cases are timed as without it.
#[test]
fn kernels_are_compiled_first() {
    let folder = Folder::new();
    let cases = [
        case("small", "maxpool", "fwd", "f32", "nhwc"),
        case("small", "avgpool", "bwd", "f32", "nchw"),
    ];
    let file = write(&folder, &cases);
    // The last one is `host`; the one before has kernels.
    for device in Device::all().into_iter().rev().take(2) {
        let backend = device.backend().name();
        let ran = run_with(&["bench", "--compile", "--cases", &file], &["--backend", backend]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let lines = rows(&ran);
        let (_, rows) = split(&lines);
        assert_eq!(rows.len(), cases.len(), "{}", ran.out);
        assert!(rows.iter().all(|row| number(row, "ms_first") > 0.0), "{}", ran.out);
        let note = "compiled the kernels of 2 cases";
        let notes = ran.err.lines().filter(|line| line.starts_with(note)).count();
        assert_eq!(notes, usize::from(backend != "host"), "{}", ran.err);
    }
}

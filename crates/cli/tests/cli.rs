//! The binary as users run it: what it prints, what it writes, and how it refuses.

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use half::{bf16, f16};
use npyz::{AutoSerialize, Deserialize, NpyFile, Order, WriterBuilder};
use tempfile::TempDir;
use windowpane::{Backend, DType, Device};

/// What a run left behind.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn run_with(arguments: &[&str], on: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_windowpane"))
        .args(arguments)
        .args(on)
        .output()
        .expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs on `host`.
fn run(arguments: &[&str]) -> Ran {
    run_with(arguments, &["--backend", "host"])
}

impl Ran {
    #[track_caller]
    fn succeeded(self) -> Self {
        assert_eq!((self.code, &*self.err), (Some(0), ""), "{self:?}");
        self
    }

    /// The exit status, one line that names what is wrong, and no panic.
    #[track_caller]
    fn refused(&self, code: i32, saying: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        assert!(self.err.starts_with("windowpane: "), "{self:?}");
        assert!(self.err.contains(saying), "`{saying}` is not in {}", self.err);
        assert!(!self.err.contains("panicked"), "{self:?}");
    }
}

/// A folder of arrays that goes with the test.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder for the test"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").into()
    }

    fn write<T: AutoSerialize>(&self, name: &str, dims: &[u64], elements: &[T]) -> String {
        self.write_in(name, Order::C, dims, elements)
    }

    fn write_in<T: AutoSerialize>(
        &self,
        name: &str,
        order: Order,
        dims: &[u64],
        elements: &[T],
    ) -> String {
        let file = fs::File::create(self.path(name)).expect("a file for the test");
        let options = npyz::WriteOptions::new().default_dtype().order(order).shape(dims);
        let mut writer = options.writer(file).begin_nd().expect("a header");
        writer.extend(elements).expect("elements");
        writer.finish().expect("a file for the test");
        self.name(name)
    }

    /// Asserts the dimensions and the elements of a file.
    #[track_caller]
    fn holds<T: Deserialize + PartialEq + Debug>(&self, name: &str, dims: &[u64], elements: &[T]) {
        let bytes = fs::read(self.path(name)).expect("the file was written");
        let file = NpyFile::new(&bytes[..]).expect("a .npy file");
        assert_eq!(file.shape(), dims);
        assert_eq!(file.into_vec::<T>().expect("elements"), elements);
    }

    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path())
            .expect("the test's folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

#[test]
fn the_examples_defaults_are_valid() {
    let ran = run(&["pool3d"]).succeeded();
    assert!(ran.out.contains("N 2, D 30, H 30, W 30, C 32"), "{ran:?}");
    assert!(ran.out.contains("N 2, D 16, H 16, W 16, C 32"), "{ran:?}");
    let perf = ran.out.lines().find(|line| line.starts_with("Perf: ")).expect("a time");
    assert!(perf.contains(" ms, ") && perf.ends_with(" GB/s"), "{perf}");
    assert_eq!(ran.out.lines().last(), Some("valid:y"));

    let ran = run(&["pool2d"]).succeeded();
    assert!(ran.out.contains("N 2, H 16, W 16, C 32"), "{ran:?}");
    assert_eq!(ran.out.lines().last(), Some("valid:y"));
}

#[test]
fn the_examples_flags_are_spelled_as_it_spells_them() {
    let flags = "-N 1 -D=5 -H 9 -W 11 -C 3 -Z 3 -Y 2 -X 3 -Sz 1 -Sy=3 -Sx 2 -Dz 1 -Dy 2 -Dx 1 \
                 -LeftPz 0 -LeftPy 1 -LeftPx 2 -RightPz 2 -RightPy 0 -RightPx 1 -warmup 1 -repeat 3";
    let flags: Vec<_> = flags.split_whitespace().collect();
    let ran = run(&[&["pool3d"], &*flags].concat()).succeeded();
    // (5+2−3)/1+1, ⌊(9+1−3)/3⌋+1, ⌊(11+3−3)/2⌋+1
    assert!(ran.out.contains("N 1, D 5, H 3, W 6, C 3"), "{ran:?}");
    assert!(ran.out.ends_with("valid:y\n"), "{ran:?}");

    let ran = run(&["pool2d", "-v", "0", "-C", "5", "--op", "avg", "--quiet"]).succeeded();
    assert_eq!(ran.out.lines().count(), 1, "{ran:?}");
    assert!(ran.out.starts_with("Perf: "), "{ran:?}");

    let help = run_with(&["pool3d", "--help"], &[]).succeeded().out;
    for flag in ["-N <", "-Sz <", "-LeftPx <", "-v <", "-warmup <", "--backend <"] {
        assert!(help.contains(&format!(" {flag}")), "{flag} is not in {help}");
    }
    assert!(!help.contains("--Sz") && help.contains("Example:"), "{help}");
}

#[test]
fn the_examples_results_are_valid_in_every_type() {
    for dtype in DType::ALL {
        for command in ["pool2d", "pool3d"] {
            for op in ["max", "avg", "lp"].iter().take(if dtype.is_float() { 3 } else { 1 }) {
                let ran =
                    run(&[command, "-C", "4", "--op", op, "--dtype", dtype.name(), "--quiet"]);
                assert!(ran.succeeded().out.ends_with("valid:y\n"));
            }
        }
    }
    assert!(run(&["pool2d", "-N", "0"]).succeeded().out.ends_with("valid:y\n"));
}

/// The backends that are not `host`, where there are some.
#[test]
fn every_backend_runs_the_example() {
    for device in Device::all() {
        let on = ["--backend", device.backend().name(), "--device", &device.index().to_string()];
        let ran = run_with(&["pool2d", "-warmup", "1", "-repeat", "2"], &on).succeeded();
        assert!(ran.out.ends_with("valid:y\n"), "{ran:?}");
        let ran = run_with(&["pool2d", "--op", "avg", "-N", "0"], &on).succeeded();
        assert!(ran.out.ends_with("valid:y\n"), "{ran:?}");
    }
}

#[test]
fn a_signal_is_pooled_with_indices() {
    let folder = Folder::new();
    // N 1, W 6, C 1
    let x = folder.write("x.npy", &[1, 6, 1], &[1.0f32, 5.0, 2.0, 4.0, f32::NEG_INFINITY, 0.0]);
    let (y, at) = (folder.name("y.npy"), folder.name("at.npy"));
    let ran = run(&["pool", &x, "-o", &y, "--kernel", "2", "--indices", &at]).succeeded();
    assert_eq!(ran.out.lines().count(), 1, "{ran:?}");
    for part in ["max pooling", "f32", "[1, 6, 1]", "[1, 3, 1]", "host:0", "direct"] {
        assert!(ran.out.contains(part), "`{part}` is not in {}", ran.out);
    }
    folder.holds("y.npy", &[1, 3, 1], &[5.0f32, 4.0, 0.0]);
    folder.holds("at.npy", &[1, 3, 1], &[1i32, 3, 5]);
    assert_eq!(folder.files(), ["at.npy", "x.npy", "y.npy"]);

    // An existing file is replaced; --quiet says nothing.
    let padded = ["pool", &x, "-o", &y, "--kernel", "3", "--stride", "3", "--padding", "0:3"];
    let ran = run(&[&padded[..], &["--op", "avg", "--quiet"]].concat()).succeeded();
    assert_eq!(ran.out, "");
    folder.holds("y.npy", &[1, 3, 1], &[8.0f32 / 3.0, f32::NEG_INFINITY, 0.0]);
}

#[test]
fn an_image_is_pooled_in_both_layouts() {
    let folder = Folder::new();
    // One sample of 2×4 with two channels, the second of them the first, negated.
    let plane = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    let first: Vec<f32> = plane.iter().copied().chain(plane.map(|x| -x)).collect();
    let last: Vec<f32> = plane.iter().flat_map(|x| [*x, -*x]).collect();
    let first = folder.write("first.npy", &[1, 2, 2, 4], &first);
    let last = folder.write("last.npy", &[1, 2, 4, 2], &last);
    let (y, at) = (folder.name("y.npy"), folder.name("at.npy"));

    let pool = |x: &str, more: &[&str]| {
        run(&[&["pool", x, "-o", &y, "--kernel", "2,2"], more].concat()).succeeded();
    };
    pool(&first, &["--layout", "channels-first"]);
    folder.holds("y.npy", &[1, 2, 1, 2], &[6.0f32, 8.0, -1.0, -3.0]);
    pool(&first, &["--layout", "channels-first", "--indices", &at, "--index-base", "tensor"]);
    folder.holds("at.npy", &[1, 2, 1, 2], &[5i32, 7, 8, 10]);
    pool(&last, &["--indices", &at]);
    folder.holds("y.npy", &[1, 1, 2, 2], &[6.0f32, -1.0, 8.0, -3.0]);
    folder.holds("at.npy", &[1, 1, 2, 2], &[5i32, 0, 7, 2]);
    pool(&last, &["--indices", &at, "--index-base", "memory", "--algorithm", "sliding"]);
    folder.holds("at.npy", &[1, 1, 2, 2], &[10i32, 1, 14, 5]);

    pool(&last, &["--op", "avg", "--dtype", "f64"]);
    folder.holds("y.npy", &[1, 1, 2, 2], &[3.5f64, -3.5, 5.5, -5.5]);
    // The second column of windows overhangs by one: its padding is 0 wide.
    let overhang = ["--op", "avg", "--stride", "2,3", "--ceil"];
    pool(&last, &overhang);
    folder.holds("y.npy", &[1, 1, 2, 2], &[3.5f32, -3.5, 6.0, -6.0]);
    pool(&last, &["--op", "avg", "--divisor", "8", "--algorithm", "sliding"]);
    folder.holds("y.npy", &[1, 1, 2, 2], &[1.75f32, -1.75, 2.75, -2.75]);
    let same = ["--op", "avg", "--padding", "same-upper", "--stride", "2,4", "--dilation", "1,3"];
    pool(&last, &same);
    folder.holds("y.npy", &[1, 1, 1, 2], &[4.5f32, -4.5]);
    let edges = ["--op", "avg", "--stride", "2,2", "--padding", "0,1", "--divisor", "valid"];
    pool(&last, &edges);
    folder.holds("y.npy", &[1, 1, 3, 2], &[3.0f32, -3.0, 4.5, -4.5, 6.0, -6.0]);
}

#[test]
fn a_volume_is_pooled() {
    let folder = Folder::new();
    let x: Vec<f64> = (0..16).map(f64::from).collect();
    let x = folder.write("x.npy", &[1, 2, 2, 4, 1], &x);
    let y = folder.name("y.npy");
    run(&["pool", &x, "-o", &y, "--kernel", "2,2,2", "--op", "avg"]).succeeded();
    folder.holds("y.npy", &[1, 1, 1, 2, 1], &[6.5f64, 8.5]);
    run(&["pool", &x, "-o", &y, "--kernel", "2,1,3", "--stride", "1,1,1"]).succeeded();
    folder.holds("y.npy", &[1, 1, 2, 2, 1], &[10.0f64, 11.0, 14.0, 15.0]);
}

#[test]
fn every_type_of_file_is_pooled() {
    let folder = Folder::new();
    let y = folder.name("y.npy");
    let pool = |x: &str, more: &[&str]| {
        run(&[&["pool", x, "-o", &y, "--kernel", "2"], more].concat()).succeeded();
    };
    let halves = [1.0, 2.5, -3.0, f32::NAN].map(f16::from_f32);
    pool(&folder.write("f16.npy", &[1, 4, 1], &halves), &["--stride", "1"]);
    let bits: Vec<u16> = {
        let bytes = fs::read(folder.path("y.npy")).unwrap();
        let values = NpyFile::new(&bytes[..]).unwrap().into_vec::<f16>().unwrap();
        assert!(values[2].is_nan());
        values[..2].iter().map(|x| x.to_bits()).collect()
    };
    assert_eq!(bits, [f16::from_f32(2.5).to_bits(); 2]);

    pool(&folder.write("i8.npy", &[1, 4, 1], &[-128i8, -127, 3, 127]), &[]);
    folder.holds("y.npy", &[1, 2, 1], &[-127i8, 127]);
    pool(&folder.write("u8.npy", &[1, 4, 1], &[0u8, 1, 200, 255]), &[]);
    folder.holds("y.npy", &[1, 2, 1], &[1u8, 255]);
    pool(&folder.write("i32.npy", &[1, 2, 1], &[i32::MIN, i32::MIN + 1]), &[]);
    folder.holds("y.npy", &[1, 1, 1], &[i32::MIN + 1]);
    // An empty batch has an empty result.
    pool(&folder.write::<f32>("none.npy", &[0, 4, 3], &[]), &[]);
    folder.holds::<f32>("y.npy", &[0, 2, 3], &[]);

    // bf16 is rounded on the way in and on the way out.
    let x = folder.write("f32.npy", &[1, 2, 1], &[1.001f32, 3.007]);
    pool(&x, &["--dtype", "bf16", "--op", "avg"]);
    let rounded = [1.001, 3.007].map(|x| bf16::from_f32(x).to_f32());
    folder.holds("y.npy", &[1, 1, 1], &[bf16::from_f32((rounded[0] + rounded[1]) / 2.0).to_f32()]);
}

/// Runs on every backend that is there, `host` first; the closure looks at what was written.
fn on_every_backend(arguments: &[&str], check: impl Fn()) {
    for device in Device::all().into_iter().rev() {
        let index = device.index().to_string();
        let on = ["--backend", device.backend().name(), "--device", &index, "--quiet"];
        run_with(arguments, &on).succeeded();
        check();
    }
}

#[test]
fn windows_are_fitted_to_the_input() {
    let folder = Folder::new();
    let x: Vec<f32> = (0..10).map(|i| i as f32).collect();
    let line = folder.write("x.npy", &[1, 10, 1], &x);
    let image = folder.write("image.npy", &[1, 1, 5, 2], &x);
    let (y, at) = (folder.name("y.npy"), folder.name("at.npy"));
    let pool = |x: &str, more: &[&str], check: &dyn Fn()| {
        on_every_backend(&[&["pool", x, "-o", &y], more].concat(), check);
    };
    // 0..4, 3..7 and 6..10
    pool(&line, &["--op", "avg", "--adaptive", "3"], &|| {
        folder.holds("y.npy", &[1, 3, 1], &[1.5f32, 4.5, 7.5]);
    });
    pool(&line, &["--adaptive", "3", "--indices", &at], &|| {
        folder.holds("y.npy", &[1, 3, 1], &[3.0f32, 6.0, 9.0]);
        folder.holds("at.npy", &[1, 3, 1], &[3i32, 6, 9]);
    });
    pool(&line, &["--op", "lp", "--p", "1", "--adaptive", "5"], &|| {
        folder.holds("y.npy", &[1, 5, 1], &[1.0f32, 5.0, 9.0, 13.0, 17.0]);
    });
    pool(&image, &["--global", "--op", "avg"], &|| {
        folder.holds("y.npy", &[1, 1, 1, 2], &[4.0f32, 5.0]);
    });
    // One channel of 5×2: its rows are 0..2, 1..4 and 3..5.
    pool(&image, &["--adaptive", "3,1", "--layout", "channels-first"], &|| {
        folder.holds("y.npy", &[1, 1, 3, 1], &[3.0f32, 7.0, 9.0]);
    });
}

#[test]
fn norms_are_pooled() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 6, 1], &[3.0f32, -4.0, 6e30, 8e30, 0.0, 0.0]);
    let y = folder.name("y.npy");
    let lp = ["pool", &x, "-o", &y, "--kernel", "2", "--op", "lp"];
    on_every_backend(&lp, || folder.holds("y.npy", &[1, 3, 1], &[5.0f32, 1e31, 0.0]));
    let ran = run(&lp).succeeded();
    assert!(ran.out.contains("Lp pooling"), "{ran:?}");
    let ran = run(&["pool2d", "--op", "lp", "--dtype", "bf16", "--quiet"]).succeeded();
    assert!(ran.out.ends_with("valid:y\n"), "{ran:?}");
}

#[test]
fn gradients_go_back() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 6, 1], &[3.0f32, -4.0, 2.0, 2.0, 0.0, 0.0]);
    let grad = folder.write("grad.npy", &[1, 3, 1], &[10.0f32, 20.0, 30.0]);
    let at = folder.write("at.npy", &[1, 3, 1], &[1i32, -1, 4]);
    let dx = folder.name("dx.npy");
    let back = |more: &[&str], expected: [f32; 6]| {
        let arguments = [&["pool-backward", &grad, "-o", &dx, "--kernel", "2"], more].concat();
        on_every_backend(&arguments, || folder.holds("dx.npy", &[1, 6, 1], &expected));
    };
    back(&["--input", &x], [10.0, 0.0, 20.0, 0.0, 30.0, 0.0]);
    back(&["--input", &x, "--indices", &at], [0.0, 10.0, 0.0, 0.0, 30.0, 0.0]);
    back(&["--input-size", "6", "--indices", &at], [0.0, 10.0, 0.0, 0.0, 30.0, 0.0]);
    back(&["--input-size", "6", "--op", "avg"], [5.0, 5.0, 10.0, 10.0, 15.0, 15.0]);
    back(&["--input", &x, "--op", "lp", "--p", "1"], [10.0, -10.0, 20.0, 20.0, 0.0, 0.0]);
    let ran =
        run(&["pool-backward", &grad, "--input", &x, "-o", &dx, "--op", "lp", "--kernel", "2"]);
    assert!(ran.succeeded().out.contains("Lp pooling's gradient f32 [1, 3, 1] → [1, 6, 1]"));
    folder.holds("dx.npy", &[1, 6, 1], &{
        let half = 20.0 * 0.5f64.sqrt();
        [6.0, -8.0, half as f32, half as f32, 0.0, 0.0]
    });
    let global = ["pool-backward", &grad, "--input-size", "6", "-o", &dx, "--op", "avg"];
    let adaptive = [&global[..], &["--adaptive", "3", "--layout", "channels-first"]].concat();
    run(&adaptive).refused(1, "[1, 3, 3]");
    run(&[&global[..], &["--global"]].concat()).refused(1, "[1, 1, 1]");
}

#[test]
fn maxima_go_back_to_their_places() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 2, 4, 1], &[1i32, 7, 3, 2, 5, 6, 8, 4]);
    let (y, at, back) = (folder.name("y.npy"), folder.name("at.npy"), folder.name("back.npy"));
    for base in ["plane", "tensor", "memory"] {
        let pool = ["pool", &x, "-o", &y, "--kernel", "2,2", "--indices", &at];
        run(&[&pool[..], &["--index-base", base]].concat()).succeeded();
        let unpool = ["unpool", &y, "--indices", &at, "--output-size", "2,4", "-o", &back];
        on_every_backend(&[&unpool[..], &["--index-base", base]].concat(), || {
            folder.holds("back.npy", &[1, 2, 4, 1], &[0i32, 7, 0, 0, 0, 0, 8, 0]);
        });
    }
    fs::remove_file(&back).expect("it was written");
    let files = folder.files();
    for device in Device::all() {
        let on = ["--backend", device.backend().name()];
        let small = ["unpool", &y, "--indices", &at, "--output-size", "2,2", "-o", &back];
        run_with(&small, &on).refused(1, "index 6 of output element 1");
    }
    let small = ["unpool", &y, "--output-size", "2,4", "-o", &back, "--indices"];
    run(&[&small[..], &[&x]].concat()).refused(1, "use the positions that pool wrote");
    let floats = folder.write("floats.npy", &[1, 1, 2, 1], &[0.0f32; 2]);
    run(&[&small[..], &[&floats]].concat()).refused(1, "positions are int32");
    run(&["unpool", &y, "--indices", &at, "--output-size", "8", "-o", &back]).refused(1, "N,W,C");
    run(&small[..6]).refused(2, "--indices");
    fs::remove_file(floats).expect("it was written");
    assert_eq!(folder.files(), files);
}

#[test]
fn plans_are_tables() {
    let folder = Folder::new();
    let options = ["--kernel", "3,3", "--stride", "2,2", "--padding", "1,1"];
    let ran = run(&[&["plan", "pool", "--shape", "8,112,112,64"], &options[..]].concat());
    let shape = ran.succeeded().out;
    for row in ["max pooling", "host:0", "channels-last", "f32", "H_OUT", "56", "direct", "│"] {
        assert!(shape.contains(row), "`{row}` is not in {shape}");
    }
    let x = folder.write("x.npy", &[1, 4, 4, 2], &[0.0f64; 32]);
    let file = run(&[&["plan", "pool", &x, "--indices"], &options[..]].concat()).succeeded().out;
    assert!(file.contains("max pooling with indices") && file.contains("f64"), "{file}");
    let lp = ["plan", "pool", "--shape", "8,112,112,64", "--op", "lp", "--adaptive", "7,7"];
    let lp = run(&lp).succeeded().out;
    assert!(lp.contains("Lp pooling") && lp.contains("16"), "{lp}");
    let global = run(&["plan", "pool", "--shape", "8,9,9,64", "--op", "avg", "--global"]);
    assert!(global.succeeded().out.contains("81"));
    run(&["plan", "pool", "--kernel", "3"]).refused(2, "required");
    run(&["plan", "pool", &x, "--shape", "1,4,4,2", "--kernel", "3,3"]).refused(2, "--shape");
    run(&["plan", "pool", "--shape", "1,4,4", "--kernel", "3,3"]).refused(2, "needs 4: N,H,W,C");
}

#[test]
fn devices_are_listed() {
    let ran = run(&["devices"]).succeeded();
    let parts =
        ["host:0", "this processor", "f64, f32, f16, bf16, i32, i8, u8", "read+write GB/s", "│"];
    for part in parts {
        assert!(ran.out.contains(part), "`{part}` is not in {}", ran.out);
    }
    // Its last column is a number.
    let row = ran.out.lines().find(|line| line.contains("host:0")).expect("a row");
    let ceiling = row.trim_end_matches([' ', '│']).rsplit(' ').next().expect("a column");
    assert!(ceiling.parse::<f64>().is_ok_and(|gbs| gbs > 0.0), "{row}");
}

#[test]
fn every_backend_is_accounted_for() {
    let ran = run_with(&["devices", "--quiet"], &[]).succeeded();
    let absent = ran.out.lines().find(|line| line.starts_with("not in this build"));
    for backend in Backend::ALL {
        let named = |line: &str| line.contains(backend.name());
        if backend.is_built() {
            assert!(ran.out.lines().any(|line| line.starts_with('│') && named(line)), "{ran:?}");
        } else {
            assert!(absent.is_some_and(named), "{ran:?}");
        }
    }
}

#[test]
fn versions_and_help_are_no_failures() {
    assert!(run_with(&["--version"], &[]).succeeded().out.starts_with("windowpane "));
    let unpool = ["unpool", "--help"];
    for command in [&["--help"][..], &["devices", "--help"], &["pool", "--help"], &unpool] {
        assert!(run_with(command, &[]).succeeded().out.contains("Usage:"));
    }
    let ran = run_with(&[], &[]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("Usage:"), "{ran:?}");
}

/// Bad input: one clear line, exit 1 or 2, no output file, no panic.
#[test]
fn bad_input_is_refused_in_one_line() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 6, 6, 2], &[0.5f32; 72]);
    let whole = folder.write("whole.npy", &[1, 6, 6, 2], &[7i32; 72]);
    let fortran = folder.write_in("fortran.npy", Order::Fortran, &[1, 6, 6, 2], &[0.5f32; 72]);
    let bytes = fs::read(&x).unwrap();
    let keep = |name: &str, bytes: &[u8]| {
        fs::write(folder.path(name), bytes).unwrap();
        folder.name(name)
    };
    let short = keep("short.npy", &bytes[..bytes.len() - 5]);
    let header = keep("header.npy", &bytes[..40]);
    let text = keep("text.npy", b"1.0, 2.0, 3.0\n");
    let empty = keep("empty.npy", b"");
    // A shape of more elements than the file has, as long as the one that it replaces.
    let mut vast = bytes.clone();
    let shape = bytes.windows(11).position(|text| text == b"(1, 6, 6, 2");
    let shape = shape.expect("the shape is in the header");
    vast[shape..shape + 11].copy_from_slice(b"(9,9,9,9999");
    let vast = keep("vast.npy", &vast);
    let complex = folder.write("long.npy", &[1, 6, 6, 2], &[1u64; 72]);
    let before = folder.files();
    let (y, at) = (folder.name("y.npy"), folder.name("at.npy"));
    let (missing, nowhere) = (folder.name("missing.npy"), folder.name("no/where.npy"));
    let under_file = folder.name("x.npy/y.npy");
    let folder_name = folder.0.path().to_str().unwrap();
    let huge = usize::MAX.to_string();
    let huge_pair = format!("{huge},{huge}");

    let table: &[(&str, &[&str], i32, &str)] = &[
        ("a missing file", &["pool", &missing, "-o", &y, "--kernel", "2,2"], 1, "missing.npy"),
        ("a folder as input", &["pool", folder_name, "-o", &y, "--kernel", "2,2"], 1, "directory"),
        ("a rank too low", &["pool", &x, "-o", &y, "--kernel", "2"], 1, "needs 3: N,W,C"),
        ("a rank too high", &["pool", &x, "-o", &y, "--kernel", "2,2,2"], 1, "needs 5: N,D,H,W,C"),
        ("four axes", &["pool", &x, "-o", &y, "--kernel", "2,2,2,2"], 2, "1, 2 or 3"),
        ("k = 0", &["pool", &x, "-o", &y, "--kernel", "0,2"], 2, "height axis"),
        ("s = 0", &["pool", &x, "-o", &y, "--kernel", "2,2", "--stride", "1,0"], 2, "at least 1"),
        ("d = 0", &["pool", &x, "-o", &y, "--kernel", "2,2", "--dilation", "0,1"], 2, "at least 1"),
        ("k = NaN", &["pool", &x, "-o", &y, "--kernel", "NaN,2"], 2, "`NaN`"),
        ("k = −1", &["pool", &x, "-o", &y, "--kernel=-1,2"], 2, "`-1`"),
        ("k = nothing", &["pool", &x, "-o", &y, "--kernel", ""], 2, "--kernel"),
        ("no kernel", &["pool", &x, "-o", &y], 2, "--kernel"),
        ("no output", &["pool", &x, "--kernel", "2,2"], 2, "--output"),
        ("a long window", &["pool", &x, "-o", &y, "--kernel", "7,2"], 1, "height"),
        ("a huge window", &["pool", &x, "-o", &y, "--kernel", &huge_pair], 1, "height"),
        (
            "a huge stride",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--stride", &huge_pair],
            1,
            "stride",
        ),
        (
            "a huge dilation",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--dilation", &huge_pair],
            1,
            "height",
        ),
        (
            "huge padding",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--padding", &huge_pair],
            1,
            "height",
        ),
        (
            "more outputs than memory",
            &["pool", &x, "-o", &y, "--kernel", "1,1", "--padding", "10000000,10000000"],
            1,
            "memory",
        ),
        (
            "a stride of another rank",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--stride", "2"],
            2,
            "--stride",
        ),
        (
            "garbage for padding",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--padding", "some"],
            2,
            "same-upper",
        ),
        ("no such folder", &["pool", &x, "-o", &nowhere, "--kernel", "2,2"], 1, "where.npy"),
        ("a file for a folder", &["pool", &x, "-o", &under_file, "--kernel", "2,2"], 1, "y.npy"),
        ("a folder for a file", &["pool", &x, "-o", folder_name, "--kernel", "2,2"], 1, "written"),
        (
            "nowhere for the indices",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--indices", &nowhere],
            1,
            "where.npy",
        ),
        (
            "one file for both",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--indices", &y],
            2,
            "same file",
        ),
        (
            "indices of an average",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--op", "avg", "--indices", &at],
            2,
            "--indices",
        ),
        (
            "a base of no indices",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--index-base", "plane"],
            2,
            "--indices",
        ),
        (
            "a divisor of a maximum",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--divisor", "3"],
            2,
            "--divisor",
        ),
        (
            "an exponent of a maximum",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--p", "3"],
            2,
            "--p is for --op lp",
        ),
        (
            "an exponent below 1",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--op", "lp", "--p", "0.5"],
            2,
            "at least 1",
        ),
        (
            "a norm of integers",
            &["pool", &whole, "-o", &y, "--kernel", "2,2", "--op", "lp"],
            1,
            "i32",
        ),
        (
            "a sliding norm",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--op", "lp", "--algorithm", "sliding"],
            1,
            "sliding",
        ),
        ("two windows", &["pool", &x, "-o", &y, "--kernel", "2,2", "--global"], 2, "--global"),
        ("no outputs", &["pool", &x, "-o", &y, "--adaptive", "2,0"], 2, "width"),
        ("too few outputs", &["pool", &x, "-o", &y, "--adaptive", "2"], 1, "--adaptive of 1"),
        (
            "a step of an adaptive window",
            &["pool", &x, "-o", &y, "--adaptive", "2,2", "--stride", "2,2"],
            2,
            "--stride",
        ),
        (
            "padding of a global window",
            &["pool", &x, "-o", &y, "--global", "--padding", "1,1"],
            2,
            "--padding",
        ),
        (
            "a gradient of nothing",
            &["pool-backward", &x, "-o", &y, "--kernel", "2,2"],
            2,
            "--input",
        ),
        (
            "a norm's gradient without its input",
            &[
                "pool-backward",
                &x,
                "-o",
                &y,
                "--kernel",
                "2,2",
                "--op",
                "lp",
                "--input-size",
                "9,9",
            ],
            2,
            "needs --input",
        ),
        (
            "a maximum's gradient without winners",
            &["pool-backward", &x, "-o", &y, "--kernel", "2,2", "--input-size", "12,12"],
            2,
            "--indices",
        ),
        (
            "a gradient of something else",
            &["pool-backward", &x, "-o", &y, "--kernel", "2,2", "--input", &x],
            1,
            "[1, 3, 3, 2]",
        ),
        (
            "a divisor of 0",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--op", "avg", "--divisor", "0"],
            2,
            "from 1",
        ),
        (
            "an unknown operator",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--op", "sum"],
            2,
            "sum",
        ),
        (
            "an unknown type",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--dtype", "f8"],
            2,
            "one of f64",
        ),
        (
            "an unknown layout",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--layout", "nchw"],
            2,
            "channels-first",
        ),
        (
            "an unknown algorithm",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--algorithm", "fast"],
            2,
            "sliding",
        ),
        ("an unknown flag", &["pool", &x, "-o", &y, "--kernel", "2,2", "--kernal"], 2, "--kernal"),
        (
            "an average of integers",
            &["pool", &whole, "-o", &y, "--kernel", "2,2", "--op", "avg"],
            1,
            "i32",
        ),
        ("a file cut short", &["pool", &short, "-o", &y, "--kernel", "2,2"], 1, "cut short"),
        ("half a header", &["pool", &header, "-o", &y, "--kernel", "2,2"], 1, "header.npy"),
        ("a text", &["pool", &text, "-o", &y, "--kernel", "2,2"], 1, "no .npy"),
        ("an empty file", &["pool", &empty, "-o", &y, "--kernel", "2,2"], 1, "no .npy"),
        ("a vast shape", &["pool", &vast, "-o", &y, "--kernel", "2,2"], 1, "vast.npy: is cut"),
        ("Fortran order", &["pool", &fortran, "-o", &y, "--kernel", "2,2"], 1, "ascontiguousarray"),
        ("a type of no device", &["pool", &complex, "-o", &y, "--kernel", "2,2"], 1, "<u8"),
        ("no such device", &["pool", &x, "-o", &y, "--kernel", "2,2", "--device", "9"], 1, "9"),
        ("no repetitions", &["pool3d", "-repeat", "0"], 2, "-repeat"),
        ("a window of 0", &["pool3d", "-Z", "0"], 2, "-Z"),
        ("a stride of 0", &["pool2d", "-Sx", "0"], 2, "at least 1"),
        ("no channels", &["pool2d", "-C", "0"], 2, "-C"),
        ("a window that is too long", &["pool2d", "-Y", "99"], 1, "height"),
        ("garbage for a number", &["pool2d", "-H", "tall"], 2, "-H"),
        ("a half for a number", &["pool2d", "-Sx", "1.5"], 2, "-Sx"),
        ("a check that is not 0 or 1", &["pool2d", "-v", "2"], 2, "-v"),
        ("a flag of the third axis", &["pool2d", "-Sz", "2"], 2, "-Sz"),
        ("more samples than memory", &["pool2d", "-N", "100000000000"], 1, "memory"),
        ("more samples than numbers", &["pool2d", "-N", &huge], 1, "elements"),
        ("an average of bytes", &["pool2d", "--op", "avg", "--dtype", "u8"], 1, "u8"),
        ("no such command", &["pool4d"], 2, "pool4d"),
    ];
    for (what, arguments, code, saying) in table {
        let ran = run(arguments);
        eprintln!("{what}: {}", ran.err.trim_end());
        ran.refused(*code, saying);
        assert!(!ran.out.contains("valid"), "{what}: {ran:?}");
        assert_eq!(folder.files(), before, "{what} left a file behind");
    }
}

#[test]
fn backends_that_are_not_there_are_refused() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 6, 1], &[0.5f32; 6]);
    let y = folder.name("y.npy");
    let pool = ["pool", &x, "-o", &y, "--kernel", "2"];
    for command in [&pool[..], &["pool2d"], &["devices"]] {
        run_with(command, &["--backend", "abacus"]).refused(2, "one of cuda");
        for backend in Backend::ALL.into_iter().filter(|backend| !backend.is_built()) {
            let ran = run_with(command, &["--backend", backend.name()]);
            ran.refused(1, &format!("--features {backend}"));
        }
        for backend in Backend::built() {
            let ran = run_with(command, &["--backend", backend.name(), "--device", "77"]);
            ran.refused(1, "device 77");
        }
    }
    assert!(!Path::new(&y).exists());
}

#[test]
fn types_that_a_device_lacks_are_refused() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 6, 1], &[0.5f32; 6]);
    let y = folder.name("y.npy");
    let mut lacking = 0;
    for device in Device::all() {
        for dtype in DType::ALL.into_iter().filter(|dtype| !device.supports(*dtype)) {
            let index = device.index().to_string();
            let on =
                ["--backend", device.backend().name(), "--device", &index, "--dtype", dtype.name()];
            let pool = ["pool", &x, "-o", &y, "--kernel", "2"];
            run_with(&pool, &on).refused(1, &format!("{device} has no {dtype}"));
            run_with(&["pool2d"], &on).refused(1, "use one of");
            lacking += 1;
        }
    }
    if lacking == 0 {
        eprintln!("nothing to test: every device here has every type");
    }
    assert!(!Path::new(&y).exists());
}

/// A file of cases, and the rows that a run of it prints.
mod bench {
    use serde_json::{Value, json};

    use super::*;

    /// A small case of this kind and pass.
    fn case(name: &str, kind: &str, pass: &str, dtype: &str, layout: &str) -> Value {
        json!({
            "name": name, "kind": kind, "pass": pass, "dtype": dtype, "layout": layout,
            "n": 2, "c": 8, "size": [12, 12], "k": [3, 3], "s": [2, 2], "p": [1, 1], "d": [1, 1],
            "indices": kind == "maxpool" && pass == "bwd",
        })
    }

    fn write(folder: &Folder, cases: &[Value]) -> String {
        let lines: String = cases.iter().map(|case| format!("{case}\n")).collect();
        fs::write(folder.path("cases.jsonl"), lines).expect("a file for the test");
        folder.name("cases.jsonl")
    }

    fn rows(ran: &Ran) -> Vec<Value> {
        ran.out.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    fn number(row: &Value, name: &str) -> f64 {
        row[name].as_f64().unwrap_or_else(|| panic!("{name} is no number in {row}"))
    }

    /// Asserts that a row has a time and everything that goes with it.
    /// The ceilings of a run, and its cases.
    fn split(lines: &[Value]) -> (&[Value], &[Value]) {
        let first = lines.iter().position(|line| line.get("ceiling").is_none());
        lines.split_at(first.unwrap_or(lines.len()))
    }

    #[track_caller]
    fn is_timed(row: &Value, bytes: f64, ceiling: f64) {
        let (ms, gbs) = (number(row, "ms"), number(row, "gbs"));
        assert!(ms > 0.0, "{row}");
        // All are rounded to five digits.
        assert!((gbs * ms * 1e6 / bytes - 1.0).abs() < 1e-3, "{row}");
        let fraction = number(row, "ceiling_fraction");
        assert!((fraction * ceiling / gbs - 1.0).abs() < 1e-3, "{row}");
        assert!(number(row, "spread") >= 0.0 && row["noisy"].is_boolean(), "{row}");
        assert!(number(row, "windows") >= 3.0 && number(row, "launches") >= 1.0, "{row}");
        assert!(row["algorithm"].is_string() && row["tflops"].is_null(), "{row}");
        assert!(row.get("error").is_none(), "{row}");
    }

    /// The rows of every device here, and what they say of it.
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
        // The first of each device is its largest copy.
        let ceilings: Vec<_> = backends
            .iter()
            .map(|backend| {
                let own: Vec<_> =
                    ceilings.iter().filter(|row| row["backend"] == *backend).collect();
                assert_eq!(own[0]["ceiling"], json!("copy"), "{own:?}");
                for copy in own.iter().filter(|row| row["ceiling"] == "copy") {
                    assert!(number(copy, "gbs") > 0.0 && copy["device"].is_string(), "{copy}");
                    assert!(number(copy, "bytes") <= number(own[0], "bytes"), "{own:?}");
                }
                let vector = own.iter().find(|row| row["ceiling"] == "vector");
                assert_eq!(vector.is_some(), *backend != "host", "{own:?}");
                assert!(vector.is_none_or(|row| number(row, "tflops") > 0.0), "{vector:?}");
                own[0].clone()
            })
            .collect();
        assert_eq!(rows.len(), cases.len() * backends.len());
        for (i, row) in rows.iter().enumerate() {
            let (case, backend) = (&cases[i / backends.len()], i % backends.len());
            for field in ["name", "kind", "pass", "dtype", "layout"] {
                assert_eq!(row[field], case[field], "{row}");
            }
            assert_eq!(row["backend"], json!(backends[backend]));
            assert_eq!(row["device"], ceilings[backend]["device"]);
            let device = Device::new(backends[backend].parse().expect("a backend"), 0);
            let clock = if device.expect("a device").has_clock() { "device" } else { "host" };
            assert_eq!(row["clock"], json!(clock), "{row}");
            // n·c·(12² + 6²) floats, or n·c·(12 + 6) and indices.
            let (input, output) = if case["name"] == "signal" { (12, 6) } else { (144, 36) };
            let indices = if case["indices"] == true { output } else { 0 };
            let bytes = 16 * 4 * (input + output + indices);
            is_timed(row, f64::from(bytes), number(&ceilings[backend], "gbs"));
        }
    }

    /// A small convolution of this pass.
    fn conv(pass: &str, dtype: &str, layout: &str) -> Value {
        let mut conv = case("small", "conv", pass, dtype, layout);
        (conv["cout"], conv["groups"]) = (json!(12), json!(2));
        conv
    }

    /// Convolutions are timed and verified on every device, and rows tell of their arithmetic.
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
        let mut backends: Vec<_> =
            Device::all().iter().map(|device| device.backend().name()).collect();
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
            // The nearer of two ceilings: the largest copy's, and the fastest arithmetic's.
            let own = ceilings.iter().filter(|line| line["backend"] == row["backend"]);
            let most =
                |name: &str| own.clone().filter_map(|line| line[name].as_f64()).reduce(f64::max);
            let computed = most("tflops").map_or(0.0, |most| number(row, "tflops") / most);
            let copy = own.clone().next().expect("a copy");
            let fraction = computed.max(gbs / number(copy, "gbs"));
            assert!((number(row, "ceiling_fraction") / fraction - 1.0).abs() < 1e-3, "{row}");
        }
    }

    /// Whether a processor stands for the GPU.
    fn emulated() -> bool {
        Device::all().iter().any(|device| device.name().contains("llvmpipe"))
    }

    /// Kernels and tiles are picked by measuring, kept in a file, and followed by what reads it.
    #[test]
    fn convolutions_are_tuned_and_the_table_is_followed() {
        let folder = Folder::new();
        let file = write(&folder, &[conv("fwd", "f32", "nhwc")]);
        let Some(device) = Device::all().into_iter().find(|it| it.backend().name() != "host")
        else {
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
        // Any other choice, to see that it is the table's that counts.
        let kept = text.lines().last().expect("a line");
        let problem = kept.split(" = ").next().expect("a problem");
        let direct = text.replace(kept, &format!("{problem} = direct splits=1"));
        fs::write(&table, direct).expect("a file for the test");
        let row = rows(&bench(&["--tuned", &table]).succeeded()).pop().expect("a row");
        assert_eq!((&row["algorithm"], row.get("tile")), (&json!("direct"), None), "{row}");
        let shapes = ["--shape", "2,12,12,8", "--weight-shape", "12,3,3,4", "--stride", "2,2"];
        let options = ["--padding", "1,1", "--groups", "2", "--tuned", &table];
        let plan = run_with(&[&["plan", "conv"], &shapes[..], &options].concat(), &on).succeeded();
        assert!(plan.out.contains("direct"), "{}", plan.out);
        fs::write(&table, "something else").expect("a file for the test");
        bench(&["--tuned", &table]).refused(1, "line 1");
    }

    /// A kernel and a tile are forced on all cases; those that have none say so.
    #[test]
    fn kernels_and_tiles_can_be_forced() {
        let folder = Folder::new();
        let cases = [conv("fwd", "f32", "nhwc"), case("x", "maxpool", "fwd", "f32", "nhwc")];
        let file = write(&folder, &cases);
        let bench = |flags: &[&str]| run(&[&["bench", "--cases", &file], flags].concat());
        let ran = bench(&["--algorithm", "direct"]).succeeded();
        assert!(rows(&ran).iter().skip(1).all(|row| row["algorithm"] == json!("direct")));
        bench(&["--algorithm", "fast"]).refused(2, "to convolve");
        let ran = bench(&["--algorithm", "sliding"]);
        ran.refused(1, "1 of 2 cases");
        assert!(rows(&ran)[1]["error"].as_str().expect("an error").contains("no way to convolve"));
        if let Some(device) = Device::all().into_iter().find(|it| it.backend().name() == "wgpu") {
            let on = ["--backend", device.backend().name(), "--filter", "conv"];
            let forced = ["--algorithm", "tiled", "--tile", "block_m=32,block_n=16,ratio_m=1"];
            let ran = run_with(&[&["bench", "--cases", &file], &forced[..]].concat(), &on);
            let row = rows(&ran.succeeded()).pop().expect("a row");
            assert_eq!(row["algorithm"], json!("tiled"), "{row}");
            let tile = row["tile"].as_str().expect("a tile");
            assert!(tile.contains("block_m=32,block_n=16") && tile.contains("ratio_m=1"), "{tile}");
        }
    }

    /// Rows of two such cases could not be told apart.
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

    /// A case that fails is a row that says why, and the others run all the same.
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
            (case("x", "avgpool", "fwd", "i32", "nhwc"), "i32"),
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

    /// What a launch finds in the caches is told, and cold ones are timed a launch a window.
    #[test]
    fn caches_are_warm_or_flushed() {
        let folder = Folder::new();
        let file = write(&folder, &[case("x", "maxpool", "fwd", "f32", "nhwc")]);
        let bench = |flag: &[&str]| {
            let ran = run(&[&["bench", "--cases", &file], flag].concat()).succeeded();
            rows(&ran).pop().expect("a row")
        };
        let (warm, cold) = (bench(&[]), bench(&["--flush-cache"]));
        assert_eq!((&warm["cache"], &cold["cache"]), (&json!("warm"), &json!("cold")));
        assert_eq!((number(&cold, "launches"), &cold["error_in_bounds"]), (1.0, &json!(0.0)));
        assert!(bench(&["--unchecked"])["error_in_bounds"].is_null());
    }

    /// The same run as tables and as a picture; a stored one as what is held against it.
    #[test]
    fn runs_are_tables_pictures_and_what_later_ones_are_held_against() {
        let folder = Folder::new();
        let file = write(&folder, &[case("stem", "avgpool", "fwd", "f32", "nhwc")]);
        let bench = |flags: &[&str]| run(&[&["bench", "--cases", &file], flags].concat());
        let table = bench(&["--format", "table"]).succeeded().out;
        assert!(table.contains("of the ceiling") && table.contains("stem avgpool fwd"), "{table}");
        let markdown = bench(&["--format", "markdown"]).succeeded().out;
        assert!(markdown.contains("| case") && markdown.contains("|---"), "{markdown}");

        let (svg, png) = (folder.name("run.svg"), folder.name("run.png"));
        let ran = bench(&["--plot", &svg]).succeeded();
        assert!(fs::read_to_string(&svg).expect("a picture").contains("stem"));
        let row = rows(&ran).pop().expect("a row");
        let keep = |name: &str, ms: f64| {
            let mut old = row.clone();
            (old["ms"], old["ms_fastest"], old["spread"]) = (json!(ms), json!(ms), json!(0.0));
            fs::write(folder.path(name), format!("{old}\n")).expect("a file for the test");
            folder.name(name)
        };
        let (slow, fast) = (keep("slow.jsonl", 1e6), keep("fast.jsonl", 1e-9));
        let ran = bench(&["--against", &slow]).succeeded();
        assert_eq!(rows(&ran).last().expect("a line")["verdict"], json!("faster"));
        let ran = bench(&["--against", &fast, "--threshold", "10"]);
        ran.refused(1, "1 of 1 cases are slower");
        let lines = rows(&ran);
        let [.., agreement, moved] = &lines[..] else { panic!("no lines: {}", ran.out) };
        assert_eq!(moved["moved"], json!("stem/avgpool/fwd/f32/nhwc"));
        assert_eq!((&agreement["agree"], &agreement["of"]), (&json!(0), &json!(1)));
        // Such a run is one that the next can be held against.
        let kept = folder.name("kept.jsonl");
        fs::write(&kept, &ran.out).expect("a file for the test");
        bench(&["--against", &kept, "--threshold", "1e6"]).succeeded();

        let report = |arguments: &[&str]| run_with(&[&["report"], arguments].concat(), &[]);
        let failed = folder.name("failed.jsonl");
        let mut line = row.clone();
        line.as_object_mut().expect("an object").remove("ms");
        line["error"] = json!("no time");
        fs::write(&failed, format!("{line}\n")).expect("a file for the test");
        report(&[&failed, "--plot", &png]).refused(1, "nothing to draw");
        let peer = folder.name("peer.jsonl");
        let mut line = row.clone();
        line["peer"] = json!("torch");
        line.as_object_mut().expect("an object").remove("backend");
        fs::write(&peer, format!("{line}\n")).expect("a file for the test");
        let ours = folder.name("ours.jsonl");
        fs::write(&ours, bench(&[]).succeeded().out).expect("a file for the test");
        let joined = report(&[&ours, &peer, "--format", "table", "--plot", &png]).succeeded().out;
        assert!(joined.contains("torch, ms") && joined.contains("peer / ours"), "{joined}");
        assert!(joined.contains("in the mean of 1 cases"), "{joined}");
        assert!(fs::read(&png).expect("a picture").starts_with(b"\x89PNG"));
        // A page and its pictures for the folder of the runs.
        let runs = folder.path("results").join("a-device");
        fs::create_dir_all(&runs).expect("a folder for the test");
        fs::copy(&ours, runs.join("day.jsonl")).expect("a file for the test");
        report(&[&folder.name("results"), "--into", &folder.name("pages")]).succeeded();
        let page = fs::read_to_string(folder.path("pages").join("a-device.md")).expect("a page");
        assert!(page.contains("a-device-roofline.svg") && page.contains("| case"), "{page}");
        assert!(folder.path("pages").join("a-device-bars.svg").is_file());
    }

    /// Whoever adds a run makes its page: the command is in benches/README.md.
    #[test]
    fn the_pages_of_recorded_runs_are_up_to_date() {
        let folder = Folder::new();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let results = root.join("benches/results");
        let results = results.to_str().expect("UTF-8");
        run_with(&["report", results, "--into", &folder.name("pages")], &[]).succeeded();
        let made = fs::read_dir(folder.path("pages")).expect("pages");
        let mut names: Vec<_> = made.map(|entry| entry.expect("a page").file_name()).collect();
        names.sort();
        assert!(!names.is_empty());
        for name in names {
            let read = |folder: &Path| fs::read_to_string(folder.join(&name)).ok();
            let kept = read(&root.join("docs/benchmarks"));
            assert!(
                kept == read(&folder.path("pages")),
                "docs/benchmarks/{} is not what the runs say; make it again",
                name.display()
            );
        }
    }

    /// Every device's results are the reference's, and the rows tell of how many samples.
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
        let mut backends: Vec<_> =
            Device::all().iter().map(|device| device.backend().name()).collect();
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

    /// What is wrong with all of it ends it before anything is measured.
    #[test]
    fn bad_files_and_flags_are_refused() {
        let folder = Folder::new();
        let file = write(&folder, &[case("x", "maxpool", "fwd", "f32", "nhwc")]);
        let keep = |name: &str, text: &str| {
            fs::write(folder.path(name), text).expect("a file for the test");
            folder.name(name)
        };
        let empty = keep("empty.jsonl", "\n\n");
        let text = keep("text.jsonl", "{\"name\": \"x\"}\n");
        let (missing, nothing) = (folder.name("missing.jsonl"), folder.name("nothing"));
        fs::create_dir(&nothing).expect("a folder for the test");
        let table: &[(&[&str], i32, &str)] = &[
            (&["bench"], 2, "--cases"),
            (&["bench", "--cases", &missing], 1, "missing.jsonl"),
            (&["bench", "--cases", &empty], 1, "no cases"),
            (&["bench", "--cases", &text], 1, "line 1"),
            (&["bench", "--cases", &file, "--format", "xml"], 2, "json"),
            (&["bench", "--cases", &file, "--plot", "run.gif"], 2, ".svg or .png"),
            (&["bench", "--cases", &file, "--threshold=-1"], 2, "0.05"),
            (&["bench", "--cases", &file, "--against", &missing], 1, "missing.jsonl"),
            (&["bench", "--cases", &file, "--against", &text], 1, "line 1"),
            (&["report", &missing], 1, "missing.jsonl"),
            (&["report", &nothing], 1, "no .jsonl files"),
            (&["bench", "--cases", &file, "--backend", "host,abacus"], 2, "one of cuda"),
            (&["bench", "--cases", &file, "--backend", "host,host"], 2, "host twice"),
            (&["bench", "--cases", &file, "--backend", "host", "--device", "7"], 1, "device 7"),
        ];
        for (arguments, code, saying) in table {
            let ran = run_with(arguments, &[]);
            ran.refused(*code, saying);
            assert_eq!(ran.out, "", "{arguments:?}");
        }
    }
}

/// A 3×3 image and a 2×2 filter by hand, and what follows the sums.
#[test]
fn a_convolution_by_hand() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 3, 3, 1], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
    let w = folder.write("w.npy", &[1, 2, 2, 1], &[1.0f32, 10.0, 100.0, 1000.0]);
    let b = folder.write("b.npy", &[1], &[-6000.0f32]);
    let r = folder.write("r.npy", &[1, 2, 2, 1], &[1.0f32, 1.0, 1.0, 1.0]);
    let y = folder.name("y.npy");
    let ran = run(&["conv", &x, &w, "-o", &y]).succeeded();
    assert!(ran.out.contains("[1, 2, 2, 1] on host:0, direct"), "{ran:?}");
    folder.holds("y.npy", &[1, 2, 2, 1], &[5421.0f32, 6532.0, 8754.0, 9865.0]);
    let more = ["--bias", &b, "--residual", &r, "--activation", "relu", "--quiet"];
    let ran = run(&[&["conv", &x, &w, "-o", &y], &more[..]].concat()).succeeded();
    assert_eq!(ran.out, "");
    folder.holds("y.npy", &[1, 2, 2, 1], &[0.0f32, 533.0, 2755.0, 3866.0]);
    run(&["conv", &x, &w, "-o", &y, "--padding", "same-upper"]).succeeded();
    let same = [5421.0f32, 6532.0, 603.0, 8754.0, 9865.0, 906.0, 87.0, 98.0, 9.0];
    folder.holds("y.npy", &[1, 3, 3, 1], &same);

    let g = folder.write("g.npy", &[1, 2, 2, 1], &[1.0f32, 0.0, 0.0, 2.0]);
    let dx = folder.name("dx.npy");
    run(&["conv-backward", "data", &g, &w, "--input-size", "3,3", "-o", &dx]).succeeded();
    let expected = [1.0f32, 10.0, 0.0, 100.0, 1002.0, 20.0, 0.0, 200.0, 2000.0];
    folder.holds("dx.npy", &[1, 3, 3, 1], &expected);
    let dw = folder.name("dw.npy");
    run(&["conv-backward", "weight", &g, &x, "--kernel", "2,2", "-o", &dw]).succeeded();
    folder.holds("dw.npy", &[1, 2, 2, 1], &[11.0f32, 14.0, 20.0, 23.0]);
}

/// Every backend writes what `host` does, whatever the layouts; on whole numbers bit for bit.
#[test]
fn convolutions_agree_across_backends_and_layouts() {
    let folder = Folder::new();
    let numbers = |n: u64| (0..n).map(|i| ((i * 37) % 11) as f32 - 5.0).collect::<Vec<f32>>();
    let x = folder.write("x.npy", &[2, 6, 6, 7], &numbers(504));
    let cases = [("ncw_wcf", [3, 3, 4]), ("nwc_fcw", [4, 3, 3])];
    let line = folder.write("line.npy", &[2, 6, 6], &numbers(72));
    for (layout, dims) in cases {
        let dims = dims.map(|n| n as u64);
        let w = folder.write("w.npy", &dims, &numbers(dims.iter().product()));
        let options = ["--layout", layout, "--groups", "2", "--stride", "2", "--padding", "1:2"];
        same_everywhere(&folder, &[&["conv", &line, &w], &options[..]].concat());
    }
    let w = folder.write("w4.npy", &[4, 3, 2, 3], &numbers(72));
    let options =
        ["--layout", "nchw_fchw", "--groups", "2", "--stride", "2,1", "--dilation", "1,2"];
    same_everywhere(&folder, &[&["conv", &x, &w], &options[..]].concat());
}

/// Runs a command on `host` and on every backend that is there, and compares their files.
fn same_everywhere(folder: &Folder, arguments: &[&str]) {
    let y = folder.name("y.npy");
    let arguments = [arguments, &["-o", &y]].concat();
    run(&arguments).succeeded();
    let expected = fs::read(&y).expect("the file was written");
    for backend in Backend::built().filter(|backend| Device::new(*backend, 0).is_ok()) {
        run_with(&arguments, &["--backend", backend.name()]).succeeded();
        let found = fs::read(&y).expect("the file was written");
        assert!(found == expected, "{backend} differs from host: {arguments:?}");
    }
}

#[test]
fn a_plan_of_a_convolution_prints_its_symbols() {
    let shapes = ["--shape", "2,9,8,6", "--weight-shape", "4,3,2,3", "--groups", "2"];
    let ran = run(&[&["plan", "conv"], &shapes[..]].concat()).succeeded();
    let rows: Vec<Vec<&str>> = ran
        .out
        .lines()
        .map(|line| line.split(['│', '┆']).map(str::trim).filter(|s| !s.is_empty()).collect())
        .collect();
    for (name, value) in [
        ("N", "2"),
        ("C", "6"),
        ("H", "9"),
        ("W", "8"),
        ("HF", "3"),
        ("WF", "2"),
        ("NF", "4"),
        ("H_OUT", "7"),
        ("W_OUT", "7"),
        ("SZ_OUT", "49"),
        ("M", "98"),
        ("K", "18"),
    ] {
        assert!(rows.contains(&vec![name, value]), "{name} {value} is not in {}", ran.out);
    }
    // A device with tiled kernels prints the tile, with the numbers that were asked for.
    for backend in ["wgpu", "cpu"] {
        let Ok(device) = Device::new(backend.parse().expect("a backend"), 0) else { continue };
        let plan = [&["plan", "conv"], &shapes[..]].concat();
        let ran = run_with(&plan, &["--backend", backend]).succeeded();
        assert!(ran.out.contains("BLOCK_M") && ran.out.contains("RATIO_N"), "{device}: {ran:?}");
        let bad = [&plan[..], &["--tile", "ratio_m=1000"]].concat();
        run_with(&bad, &["--backend", backend]).refused(1, "ratio_m");
    }
}

/// Bad input to a convolution: one clear line, exit 1 or 2, no output file, no panic.
#[test]
fn bad_convolutions_are_refused_in_one_line() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 6, 6, 2], &[0.5f32; 72]);
    let w = folder.write("w.npy", &[3, 2, 2, 2], &[0.5f32; 24]);
    let line = folder.write("line.npy", &[3, 2, 2], &[0.5f32; 12]);
    let flat = folder.write("flat.npy", &[24], &[0.5f32; 24]);
    let whole = folder.write("whole.npy", &[1, 6, 6, 2], &[7i32; 72]);
    let before = folder.files();
    let (y, missing) = (folder.name("y.npy"), folder.name("missing.npy"));
    let conv = |more: &[&str]| {
        let arguments = [&["conv", &x, &w, "-o", &y], more].concat();
        arguments.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let own = |arguments: &[&str]| arguments.iter().map(ToString::to_string).collect::<Vec<_>>();
    let table: &[(Vec<String>, i32, &str)] = &[
        (conv(&["--groups", "3"]), 1, "3 groups"),
        (conv(&["--groups", "0"]), 2, "at least 1"),
        (conv(&["--stride", "2"]), 2, "--stride"),
        (conv(&["--padding", "1,1,1"]), 2, "--padding"),
        (conv(&["--dilation", "9,9"]), 1, "height"),
        (conv(&["--layout", "nwc_fwc"]), 2, "--layout"),
        (conv(&["--layout", "nhcw_fhwc"]), 2, "nchw_fchw"),
        (conv(&["--activation", "tanh"]), 2, "relu6"),
        (conv(&["--precision", "tf32"]), 1, "strict"),
        (conv(&["--precision", "fast"]), 2, "tf32"),
        (conv(&["--tile", "block_m"]), 2, "block_k"),
        (conv(&["--tile", "block_m=32"]), 1, "tiled"),
        (conv(&["--algorithm", "best"]), 2, "direct"),
        (conv(&["--bias", &x]), 1, "bias"),
        (conv(&["--residual", &x]), 1, "residual"),
        (conv(&["--dtype", "i8"]), 1, "i8"),
        (own(&["conv", &missing, &w, "-o", &y]), 1, "missing.npy"),
        (own(&["conv", &x, &line, "-o", &y]), 1, "axes"),
        (own(&["conv", &x, &flat, "-o", &y]), 1, "flat.npy"),
        (own(&["conv", &flat, &w, "-o", &y]), 1, "flat.npy"),
        (own(&["conv", &whole, &w, "-o", &y]), 1, "i32"),
        (own(&["conv", &x, "-o", &y]), 2, "WEIGHT"),
        (own(&["conv-backward", "data", &x, &w, "-o", &y]), 2, "--input-size"),
        (own(&["conv-backward", "data", &x, &w, "--input-size", "9", "-o", &y]), 2, "--input-size"),
        (
            own(&["conv-backward", "data", &x, &w, "--input-size", "9,9", "-o", &y]),
            1,
            "belong together",
        ),
        (own(&["conv-backward", "weight", &x, &x, "--kernel", "3", "-o", &y]), 2, "--kernel"),
        (own(&["conv-backward", "weight", &x, &line, "--kernel", "3,3", "-o", &y]), 1, "axes"),
        (own(&["plan", "conv", "--shape", "1,6,6,2"]), 2, "--weight-shape"),
        (own(&["plan", "conv", "--shape", "1,6", "--weight-shape", "1,2,2,1"]), 1, "dimensions"),
    ];
    for (arguments, code, saying) in table {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        eprintln!("{arguments:?}");
        run(&arguments).refused(*code, saying);
        assert_eq!(folder.files(), before, "{arguments:?}");
    }
}

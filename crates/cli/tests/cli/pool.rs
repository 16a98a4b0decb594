//! `pool`: the files that it writes.

use std::fs;

use half::{bf16, f16};
use npyz::NpyFile;

use crate::support::{Folder, on_every_backend, run};

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

    // An existing file is replaced; with --quiet nothing is printed.
    let padded = ["pool", &x, "-o", &y, "--kernel", "3", "--stride", "3", "--padding", "0:3"];
    let ran = run(&[&padded[..], &["--op", "avg", "--quiet"]].concat()).succeeded();
    assert_eq!(ran.out, "");
    folder.holds("y.npy", &[1, 3, 1], &[8.0f32 / 3.0, f32::NEG_INFINITY, 0.0]);
}

#[test]
fn an_image_is_pooled_in_both_layouts() {
    let folder = Folder::new();
    // One sample of 2×4 with two channels; the second is the negated first.
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

/// Minima of bytes, whose order negation would not reverse, and of an empty window; sums.
#[test]
fn minima_and_sums_are_pooled() {
    let folder = Folder::new();
    let (y, at) = (folder.name("y.npy"), folder.name("at.npy"));
    let x = folder.write("x.npy", &[1, 4, 1], &[255u8, 0, 7, 7]);
    let min = ["pool", &x, "-o", &y, "--kernel", "2", "--op", "min", "--indices", &at];
    on_every_backend(&min, || {
        folder.holds("y.npy", &[1, 2, 1], &[0u8, 7]);
        folder.holds("at.npy", &[1, 2, 1], &[1i32, 2]);
    });
    let ran = run(&min).succeeded();
    assert!(ran.out.contains("min pooling with indices"), "{ran:?}");
    let x = folder.write("x.npy", &[1, 4, 1], &[i8::MIN, 0, 7, i8::MAX]);
    let min = ["pool", &x, "-o", &y, "--kernel", "1", "--op", "min", "--padding", "1:0"];
    on_every_backend(&min, || {
        folder.holds("y.npy", &[1, 5, 1], &[i8::MAX, i8::MIN, 0, 7, i8::MAX]);
    });
    let x = folder.write("x.npy", &[1, 4, 1], &[0.0f32, -0.0, f32::NEG_INFINITY, 3.0]);
    run(&["pool", &x, "-o", &y, "--global", "--op", "min"]).succeeded();
    folder.holds("y.npy", &[1, 1, 1], &[f32::NEG_INFINITY]);
    let x = folder.write("x.npy", &[1, 4, 1], &[1.0f32, 2.0, 3.0, 4.5]);
    let sum = ["pool", &x, "-o", &y, "--kernel", "3", "--stride", "1", "--op", "sum"];
    on_every_backend(&[&sum[..], &["--padding", "1"]].concat(), || {
        folder.holds("y.npy", &[1, 4, 1], &[3.0f32, 6.0, 9.5, 7.5]);
    });
    assert!(run(&sum).succeeded().out.contains("sum pooling f32"));
}

/// The most frequent numbers inside the input; the smallest one if several are equally frequent.
#[test]
fn modes_are_pooled() {
    let folder = Folder::new();
    let y = folder.name("y.npy");
    let x = folder.write("x.npy", &[1, 6, 1], &[9u8, 1, 9, 4, 4, 255]);
    let mode = ["pool", &x, "-o", &y, "--op", "mode"];
    let window = ["--kernel", "3", "--stride", "1", "--padding", "1"];
    on_every_backend(&[&mode[..], &window].concat(), || {
        folder.holds("y.npy", &[1, 6, 1], &[1u8, 9, 1, 4, 4, 4]);
    });
    on_every_backend(&[&mode[..], &["--global"]].concat(), || {
        folder.holds("y.npy", &[1, 1, 1], &[4u8]);
    });
    let ran = run(&[&mode[..], &["--adaptive", "2"]].concat()).succeeded();
    assert!(ran.out.contains("mode pooling u8"), "{ran:?}");
    folder.holds("y.npy", &[1, 2, 1], &[9u8, 4]);
}

/// Medians and other ranks, of the numbers inside the input.
#[test]
fn ranks_are_pooled() {
    let folder = Folder::new();
    let y = folder.name("y.npy");
    let x = folder.write("x.npy", &[1, 5, 1], &[9u8, 1, 255, 4, 3]);
    let window = ["pool", &x, "-o", &y, "--kernel", "3", "--stride", "1", "--padding", "1"];
    let pool = |more: &[&str], values: [u8; 5]| {
        on_every_backend(&[&window, more].concat(), || {
            folder.holds("y.npy", &[1, 5, 1], &values);
        });
    };
    pool(&["--op", "median"], [9, 9, 4, 4, 4]);
    pool(&["--op", "rank", "--rank", "0"], [1, 1, 1, 3, 3]);
    pool(&["--op", "rank", "--rank", "2"], [9, 255, 255, 255, 4]);
    pool(&["--op", "rank", "--rank", "1/3"], [1, 9, 4, 4, 3]);
    let x = folder.write("x.npy", &[1, 3, 1], &[1.0f32, f32::INFINITY, -3.0]);
    let median = ["pool", &x, "-o", &y, "--global", "--op", "median"];
    on_every_backend(&median, || folder.holds("y.npy", &[1, 1, 1], &[1.0f32]));
    let ran = run(&median).succeeded();
    assert!(ran.out.contains("median pooling f32"), "{ran:?}");
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

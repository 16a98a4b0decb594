//! `conv` and `conv-backward`.

use crate::support::{Folder, run, same_everywhere};

/// A 3×3 image and a 2×2 filter, computed by hand, and the epilogue.
#[test]
fn a_convolution_by_hand() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 3, 3, 1], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
    let w = folder.write("w.npy", &[1, 2, 2, 1], &[1.0f32, 10.0, 100.0, 1000.0]);
    let b = folder.write("b.npy", &[1], &[-6000.0f32]);
    let r = folder.write("r.npy", &[1, 2, 2, 1], &[1.0f32, 1.0, 1.0, 1.0]);
    let y = folder.name("y.npy");
    let ran = run(&["conv", &x, &w, "-o", &y]).succeeded();
    assert!(ran.out.contains("[1, 2, 2, 1] on host:0, depthwise"), "{ran:?}");
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

/// int8 files with a scale per filter, computed by hand in two types, and the same on every backend.
#[test]
fn a_quantized_convolution_by_hand() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 3, 1], &[100i8, -20, 127]);
    let w = folder.write("w.npy", &[2, 2, 1], &[1i8, 2, 127, 127]);
    let s = folder.write("s.npy", &[2], &[0.5f32, 0.25]);
    let b = folder.write("b.npy", &[2], &[1.0f32, 0.0]);
    let y = folder.name("y.npy");
    let conv = ["conv", &x, &w, "-o", &y, "--scale", &s, "--bias", &b];
    run(&conv).succeeded();
    folder.holds("y.npy", &[1, 2, 2], &[31.0f32, 2540.0, 118.0, 3397.25]);
    run(&[&conv[..], &["--output-dtype", "i8"]].concat()).succeeded();
    folder.holds("y.npy", &[1, 2, 2], &[31i8, 127, 118, 127]);
    for dtype in ["f32", "i8"] {
        let options = ["--scale", &s, "--padding", "1", "--output-dtype", dtype];
        same_everywhere(&folder, &[&["conv", &x, &w], &options[..]].concat());
    }
    let floats = folder.write("floats.npy", &[1, 3, 1], &[1.0f32; 3]);
    let refused = |arguments: &[&str], status, part| {
        let y = folder.name("refused.npy");
        run(&[&["conv"], arguments, &["-o", &y, "--scale", &s]].concat()).refused(status, part);
    };
    refused(&[&floats, &w], 1, "quantize");
    refused(&[&x, &w, "--bias", &x], 1, "bias");
    refused(&[&x, &w, "--residual", &x], 2, "--residual");
    refused(&[&x, &w, "--dtype", "i8"], 2, "--dtype");
    refused(&[&x, &w, "--output-dtype", "i32"], 1, "i32");
    refused(&[&x, &w, "--output-dtype", "i8", "--activation", "gelu"], 1, "relu or leaky");
}

/// Every backend writes the same file as `host` in every layout, bit for bit because the inputs are whole numbers.
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
        (conv(&["--tile", "block_m=32"]), 1, "a tile was given but host"),
        (conv(&["--tile", "block_m=32,block_q=8"]), 2, "part 2 of the tile has an unknown name"),
        (conv(&["--algorithm", "tiled"]), 1, "host:0 has no simt kernel"),
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
        (own(&["plan", "conv", "--shape", "1,6", "--weight-shape", "1,2,2,1"]), 2, "dimensions"),
        (
            own(&["plan", "conv", "--shape", "1,6,1", "--weight-shape", "0,2,1"]),
            2,
            "'--weight-shape <NF,…>': it has a dimension of 0",
        ),
    ];
    for (arguments, code, saying) in table {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        eprintln!("{arguments:?}");
        run(&arguments).refused(*code, saying);
        assert_eq!(folder.files(), before, "{arguments:?}");
    }
}

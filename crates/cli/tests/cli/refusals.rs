//! Errors of poolings on files and of the example.

use std::fs;

use npyz::Order;

use crate::support::{Folder, run};

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
    // A shape with more elements than the file has; its text is as long as the one that it replaces.
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
    let folder_name = &*folder.root();
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
        (
            "a negative kernel",
            &["pool", &x, "-o", &y, "--kernel", "-1,2"],
            2,
            "'-1,2' for '--kernel <K,…>': `-1` is not a whole number from 0",
        ),
        (
            "negative padding",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--padding", "-1,1"],
            2,
            "'-1,1' for '--padding <P,…>': `-1` is not a whole number from 0",
        ),
        (
            "a negative stride",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--stride", "-2"],
            2,
            "'-2' for '--stride <S,…>': `-2` is not a whole number from 0",
        ),
        (
            "a negative exponent",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--op", "lp", "--p", "-1.5"],
            2,
            "the exponent of a norm is -1.5",
        ),
        (
            "an exponent that is no number",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--op", "lp", "--p", "-NaN"],
            2,
            "the exponent of a norm is NaN",
        ),
        (
            "a negative device",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--device", "-1"],
            2,
            "'--device <N>': `-1` is not a whole number from 0",
        ),
        (
            "a negative shape",
            &["plan", "pool", "--shape", "-1,6,6,2", "--kernel", "2,2"],
            2,
            "'--shape <N,…>': `-1` is not a whole number from 0",
        ),
        (
            "a shape without an extent",
            &["plan", "pool", "--shape", "1,6,0,2", "--kernel", "2,2"],
            2,
            "'--shape <N,…>': it has a dimension of 0",
        ),
        (
            "a shape that is too large",
            &["plan", "pool", "--shape", &format!("1,{huge},2"), "--kernel", "2"],
            2,
            "'--shape <N,…>': it has more than",
        ),
        (
            "a shape of nothing",
            &["plan", "pool", "--shape", "1,6", "--kernel", "2,2"],
            2,
            "'--shape <N,…>': it has 2 dimensions",
        ),
        (
            "a negative number for what takes none",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--ceil", "-1"],
            2,
            "'-1' for '--ceil'",
        ),
        ("a negative number for nothing", &["pool", "-1", "-o", &y, "--kernel", "2,2"], 2, "'-1'"),
        ("k = nothing", &["pool", &x, "-o", &y, "--kernel", ""], 2, "--kernel"),
        ("no kernel", &["pool", &x, "-o", &y], 2, "--kernel"),
        ("no output", &["pool", &x, "--kernel", "2,2"], 2, "--output"),
        ("a long window", &["pool", &x, "-o", &y, "--kernel", "7,2"], 1, "height"),
        ("a huge window", &["pool", &x, "-o", &y, "--kernel", &huge_pair], 2, "height"),
        (
            "a huge stride",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--stride", &huge_pair],
            2,
            "stride",
        ),
        (
            "a huge dilation",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--dilation", &huge_pair],
            2,
            "height",
        ),
        (
            "huge padding",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--padding", &huge_pair],
            2,
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
            "--p applies only to --op lp",
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
            "a rank of a maximum",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--rank", "3"],
            2,
            "--rank applies only to --op rank",
        ),
        (
            "a rank above all numbers",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--op", "rank", "--rank", "3/2"],
            2,
            "a fraction from 0 to 1",
        ),
        (
            "a gradient of a rank",
            &[
                "pool-backward",
                &x,
                "-o",
                &y,
                "--kernel",
                "2,2",
                "--op",
                "rank",
                "--input-size",
                "9,9",
            ],
            2,
            "has no gradient",
        ),
        (
            "a gradient of a mode",
            &[
                "pool-backward",
                &x,
                "-o",
                &y,
                "--kernel",
                "2,2",
                "--op",
                "mode",
                "--input-size",
                "9,9",
            ],
            2,
            "has no gradient",
        ),
        (
            "a sliding norm",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--op", "lp", "--algorithm", "sliding"],
            1,
            "sliding",
        ),
        ("two windows", &["pool", &x, "-o", &y, "--kernel", "2,2", "--global"], 2, "--global"),
        ("no outputs", &["pool", &x, "-o", &y, "--adaptive", "2,0"], 2, "width"),
        (
            "huge outputs",
            &["pool", &x, "-o", &y, "--adaptive", &huge_pair],
            2,
            "at most 2147483647",
        ),
        ("too few outputs", &["pool", &x, "-o", &y, "--adaptive", "2"], 1, "--adaptive with 1"),
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
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--op", "modal"],
            2,
            "modal",
        ),
        (
            "an unknown type",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--dtype", "f8"],
            2,
            "one of f64",
        ),
        (
            "a layout of another rank",
            &["pool", &x, "-o", &y, "--global", "--layout", "ndhwc"],
            2,
            "3 spatial axes",
        ),
        (
            "an unknown layout",
            &["pool", &x, "-o", &y, "--kernel", "2,2", "--layout", "hwnc"],
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
            "an average of truth values",
            &["pool", &whole, "-o", &y, "--kernel", "2,2", "--op", "avg", "--dtype", "bool"],
            1,
            "not defined for bool",
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
        (
            "negative padding of the example",
            &["pool2d", "-LeftPy", "-1"],
            2,
            "'-1' for '-LeftPy <N>': `-1` is not a whole number from 0",
        ),
        ("negative samples", &["pool2d", "-N", "-2"], 2, "'-N <N>': `-2` is not a whole number"),
        ("negative repetitions", &["pool2d", "-repeat", "-1"], 2, "'-repeat <N>': `-1` is not"),
        ("negative warmth", &["pool3d", "-warmup", "-1"], 2, "'-warmup <N>': `-1` is not"),
        ("a negative check", &["pool3d", "-v", "-1"], 2, "'-v <0|1>': `-1` is neither 0 nor 1"),
        ("words for a check", &["pool3d", "-v", "yes"], 2, "`yes` is neither 0 nor 1"),
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
        ("an average of truth values", &["pool2d", "--op", "avg", "--dtype", "bool"], 1, "bool"),
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

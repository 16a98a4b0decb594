//! `plan pool` and `plan conv`: tables of the kernel that would run.

use windowpane::Device;

use crate::support::{Folder, run, run_with};

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

/// `--why` prints every kernel with a reason, on devices that have kernels.
#[test]
fn why_says_what_became_of_every_kernel() {
    let plan = ["plan", "pool", "--shape", "8,112,112,64", "--kernel", "3,3", "--why"];
    for backend in ["wgpu", "cpu"] {
        let Ok(device) = Device::new(backend.parse().expect("a backend"), 0) else { continue };
        let ran = run_with(&plan, &["--backend", backend]).succeeded();
        for row in ["register_tile", "chosen", "van_herk", "not chosen", "gather", "does not"] {
            assert!(ran.out.contains(row), "{device}: `{row}` is not in {}", ran.out);
        }
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
    // A device with tiled kernels prints the tile, with the requested numbers.
    for backend in ["wgpu", "cpu"] {
        let Ok(device) = Device::new(backend.parse().expect("a backend"), 0) else { continue };
        let plan = [&["plan", "conv"], &shapes[..]].concat();
        let ran = run_with(&plan, &["--backend", backend]).succeeded();
        assert!(ran.out.contains("BLOCK_M") && ran.out.contains("RATIO_N"), "{device}: {ran:?}");
        let bad = [&plan[..], &["--tile", "ratio_m=1000"]].concat();
        run_with(&bad, &["--backend", backend]).refused(1, "ratio_m");
    }
}

/// `--why` gives each kernel a line: one is chosen, and the others say why they are not.
#[test]
fn a_plan_of_a_convolution_says_why() {
    let plan = ["plan", "conv", "--shape", "2,9,8,6", "--weight-shape", "4,3,3,6", "--why"];
    let host = run(&plan).succeeded().out;
    assert!(host.contains("chosen: this device has no faster one"), "{host}");
    for backend in ["wgpu", "cpu"] {
        let Ok(device) = Device::new(backend.parse().expect("a backend"), 0) else { continue };
        let on = ["--backend", backend];
        let out = run_with(&plan, &on).succeeded().out;
        let others = out.matches("not chosen: estimated ").count();
        assert!(others > 0, "{device}: {out}");
        assert_eq!(out.matches("chosen: estimated ").count(), 1 + others, "{device}: {out}");
        let other = if backend == "cpu" { "it is for GPUs" } else { "it is for CPUs" };
        assert!(out.contains(&format!("does not apply: {other}")), "{device}: {out}");
        let forced = run_with(&[&plan[..], &["--algorithm", "direct"]].concat(), &on);
        let forced = forced.succeeded().out;
        let asked = "forced by the user or by tuning: estimated ";
        assert!(forced.contains(asked), "{device}: {forced}");
        assert!(!run_with(&plan[..plan.len() - 1], &on).succeeded().out.contains("chosen"));
    }
}

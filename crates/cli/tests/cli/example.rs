//! `pool2d` and `pool3d`: Composable Kernel's example.

use windowpane::{DType, Device};

use crate::support::{run, run_with};

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
            let drawn = ["stochastic", "stochastic-mean"];
            let ops = ["max", "min", "rank", "mode", "avg", "sum", "lp", drawn[0], drawn[1]];
            // SEMANTICS 3.5: only floats have norms and stochastic pooling, and a bool has no sums.
            let count = match dtype {
                DType::Bool => 4,
                dtype if dtype.is_float() => ops.len(),
                _ => 6,
            };
            for op in &ops[..count] {
                let ran =
                    run(&[command, "-C", "4", "--op", op, "--dtype", dtype.name(), "--quiet"]);
                assert!(ran.succeeded().out.ends_with("valid:y\n"));
            }
        }
    }
    assert!(run(&["pool2d", "-N", "0"]).succeeded().out.ends_with("valid:y\n"));
}

/// The example runs on every device of this machine.
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

//! `devices`, and devices and types that do not exist.

use std::path::Path;

use windowpane::{Backend, DType, Device};

use crate::support::{Folder, run, run_with};

#[test]
fn devices_are_listed() {
    let ran = run(&["devices"]).succeeded();
    let types = "f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8, bool";
    let parts = ["host:0", "this processor", types, "read+write GB/s", "│"];
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

//! `pool-backward`: gradients on files.

use windowpane::Device;

use crate::support::{Folder, on_every_backend, run, run_with};

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
    back(&["--input", &x, "--op", "min"], [0.0, 10.0, 20.0, 0.0, 30.0, 0.0]);
    back(&["--input-size", "6", "--op", "min", "--indices", &at], [0.0, 10.0, 0.0, 0.0, 30.0, 0.0]);
    back(&["--input-size", "6", "--op", "avg"], [5.0, 5.0, 10.0, 10.0, 15.0, 15.0]);
    back(&["--input-size", "6", "--op", "sum"], [10.0, 10.0, 20.0, 20.0, 30.0, 30.0]);
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

/// SEMANTICS 5.1: an index that names no element is refused, also on devices, which gather. A type is never narrowed
/// without `--dtype`.
#[test]
fn foreign_positions_and_mixed_types_are_refused() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 4, 1], &[1.0f64, 1.0 + 1e-12, 0.0, 0.0]);
    let grad = folder.write("grad.npy", &[1, 2, 1], &[10.0f32, 20.0]);
    let dx = folder.name("dx.npy");
    let back = ["pool-backward", &grad, "-o", &dx, "--kernel", "2"];
    for wrong in [[0, 4], [0, -2]] {
        let at = folder.write("at.npy", &[1, 2, 1], &wrong);
        for device in Device::all() {
            let (backend, index) = (device.backend().name(), device.index().to_string());
            let on = ["--backend", backend, "--device", &index, "--input-size", "4"];
            run_with(&back, &[&on[..], &["--indices", &at]].concat())
                .refused(1, &format!("index {} of element 1 is not a position", wrong[1]));
        }
    }
    run(&[&back[..], &["--input", &x]].concat()).refused(1, "--dtype");
    run(&[&back[..], &["--input", &x, "--dtype", "f64"]].concat()).succeeded();
    folder.holds("dx.npy", &[1, 4, 1], &[0.0f64, 10.0, 20.0, 0.0]);
}

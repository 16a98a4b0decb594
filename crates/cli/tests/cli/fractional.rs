//! `pool-fractional` and its gradient.

use crate::support::{Folder, on_every_backend, run};

/// The windows of two numbers start at 0, 1 and 3 where the random number is 0, and at 0, 2 and 3 where it is ½.
#[test]
fn windows_start_where_the_samples_say() {
    let folder = Folder::new();
    let x =
        folder.write("x.npy", &[1, 5, 2], &[5.0f32, 5.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]);
    let samples = folder.write("samples.npy", &[1, 2, 1], &[0.0f32, 0.5]);
    let dy = folder.write("dy.npy", &[1, 3, 2], &[1.0f32, 1.0, 10.0, 10.0, 100.0, 100.0]);
    let [y, at, dx] = ["y.npy", "at.npy", "dx.npy"].map(|name| folder.name(name));
    for base in ["plane", "tensor", "memory"] {
        let windows = ["--kernel", "2", "--samples", &samples, "--index-base", base];
        for size in [["--output-size", "3"], ["--ratio", "0.7"]] {
            let pool = ["pool-fractional", &x, "-o", &y, "--indices", &at];
            on_every_backend(&[&pool[..], &size, &windows].concat(), || {
                folder.holds("y.npy", &[1, 3, 2], &[5.0f32, 5.0, 2.0, 3.0, 4.0, 4.0]);
            });
        }
        let back = ["pool-fractional-backward", &dy, "-o", &dx, "--indices", &at];
        let back = [&back[..], &["--input-size", "5"], &windows].concat();
        on_every_backend(&back, || {
            let expected = [1.0f32, 1.0, 0.0, 0.0, 10.0, 0.0, 0.0, 10.0, 100.0, 100.0];
            folder.holds("dx.npy", &[1, 5, 2], &expected);
        });
    }
}

/// The same seed gives the same maxima on every device.
#[test]
fn a_seed_gives_the_same_windows_everywhere() {
    let folder = Folder::new();
    let numbers: Vec<f32> = (0..400u16).map(|i| f32::from(i * 37 % 101)).collect();
    let x = folder.write("x.npy", &[2, 1, 20, 10], &numbers);
    let [y, own] = ["y.npy", "own.npy"].map(|name| folder.name(name));
    let pool =
        ["pool-fractional", &x, "--kernel", "3,2", "--output-size", "7,6", "--layout", "nchw"];
    let seeded = |to, seed| [&pool[..], &["-o", to, "--seed", seed]].concat();
    run(&seeded(&own, "9")).succeeded();
    let expected = std::fs::read(folder.path("own.npy")).expect("it was written");
    on_every_backend(&seeded(&y, "9"), || {
        assert_eq!(std::fs::read(folder.path("y.npy")).expect("it was written"), expected);
    });
    run(&seeded(&y, "10")).succeeded();
    assert_ne!(std::fs::read(folder.path("y.npy")).expect("it was written"), expected);
}

#[test]
fn what_does_not_fit_is_refused() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 5, 1], &[5.0f32, 1.0, 2.0, 3.0, 4.0]);
    let at = folder.write("at.npy", &[1, 3, 1], &[0i32, 2, 9]);
    let dy = folder.write("dy.npy", &[1, 3, 1], &[1.0f32; 3]);
    let y = folder.name("y.npy");
    let files = folder.files();
    let pool = ["pool-fractional", &x, "-o", &y, "--kernel"];
    let refused = |rest: &[&str], code, saying: &str| {
        run(&[&pool[..], rest].concat()).refused(code, saying);
    };
    refused(&["2"], 2, "--ratio");
    refused(&["2", "--ratio", "0.5", "--output-size", "2"], 2, "cannot be used with");
    refused(&["2", "--ratio", "1.5"], 2, "not a number between 0 and 1");
    refused(&["2", "--output-size", "2,2"], 2, "--output-size has 2 numbers but --kernel has 1");
    refused(&["2,2", "--output-size", "2,2"], 1, "N,H,W,C");
    refused(&["2", "--output-size", "5"], 1, "5");
    refused(&["2", "--output-size", "3", "--seed", "1", "--samples", &x], 2, "cannot be used with");
    refused(&["2", "--output-size", "3", "--samples", &x], 1, "tensor of samples");
    refused(&["2", "--output-size", "3", "--dtype", "i32"], 1, "i32");
    let back = ["pool-fractional-backward", &dy, "--indices", &at, "-o", &y, "--kernel", "2"];
    let back = |rest: &[&str]| run(&[&back[..], rest].concat());
    back(&["--input-size", "5"]).refused(1, "index 9 of element 2");
    back(&["--input-size", "3"]).refused(1, "3");
    back(&["--input-size", "5,5"]).refused(2, "--input-size has 2 numbers");
    back(&[]).refused(2, "--input-size");
    assert_eq!(folder.files(), files);
}

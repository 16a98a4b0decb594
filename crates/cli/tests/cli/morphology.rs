//! `morphology`: erosion, dilation and what is made of them.

use crate::support::{Folder, on_every_backend, run};

#[test]
fn pictures_are_eroded_and_dilated() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 1, 8, 1], &[0u8, 9, 0, 0, 7, 7, 7, 7]);
    let ends = folder.write("ends.npy", &[1, 3], &[1u8, 0, 1]);
    let y = folder.name("y.npy");
    let base = ["morphology", &x, "-o", &y, "--op"];
    let three = ["--kernel", "1,3"];
    for (op, options, expected) in [
        ("erosion", &three[..], [0u8, 0, 0, 0, 0, 7, 7, 7]),
        ("dilation", &three, [9, 9, 9, 7, 7, 7, 7, 7]),
        ("opening", &three, [0, 0, 0, 0, 7, 7, 7, 7]),
        ("closing", &three, [9, 9, 7, 7, 7, 7, 7, 7]),
        ("gradient", &three, [9, 9, 9, 7, 7, 0, 0, 0]),
        ("white-top-hat", &three, [0, 9, 0, 0, 0, 0, 0, 0]),
        ("black-top-hat", &three, [9, 0, 7, 7, 0, 0, 0, 0]),
        ("dilation", &["--footprint", &ends], [9, 0, 9, 7, 7, 7, 7, 7]),
        ("erosion", &["--kernel", "1,3", "--origin", "0,-1"], [0, 0, 0, 0, 7, 7, 7, 7]),
        ("erosion", &["--kernel", "1,3", "--constant", "3"], [0, 0, 0, 0, 0, 7, 7, 3]),
        ("dilation", &["--disk", "1", "--padding-mode", "circular"], [9, 9, 9, 7, 7, 7, 7, 7]),
    ] {
        on_every_backend(&[&base[..], &[op], options].concat(), || {
            folder.holds("y.npy", &[1, 1, 8, 1], &expected);
        });
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 1, 8, 1], &[0u8; 8]);
    let none = folder.write("none.npy", &[1, 3], &[0u8; 3]);
    let y = folder.name("y.npy");
    let files = folder.files();
    let base = ["morphology", &x, "-o", &y, "--op", "erosion"];
    for (options, status, part) in [
        (&["--footprint", &none][..], 1, "no tap of the footprint counts"),
        (&["--kernel", "3"], 1, "the structuring element with 1 numbers needs 3"),
        (&["--ball", "1"], 1, "N,D,H,W,C"),
        (&["--disk", "100000"], 1, "number of taps"),
        (&["--kernel", "3,3", "--origin", "0,2"], 1, "the origin on the width axis is 2"),
        (&["--kernel", "3,3", "--disk", "1"], 2, "--disk"),
        (&["--kernel", "3,3", "--constant", "1", "--padding-mode", "reflect"], 2, "--padding-mode"),
        (&[], 2, "--kernel"),
    ] {
        run(&[&base[..], options].concat()).refused(status, part);
    }
    assert_eq!(folder.files(), files);
}

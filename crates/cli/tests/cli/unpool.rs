//! `unpool`: writes maxima back to their positions.

use std::fs;

use windowpane::Device;

use crate::support::{Folder, on_every_backend, run, run_with};

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
        run_with(&small, &on).refused(1, "index 6 of element 1");
    }
    let small = ["unpool", &y, "--output-size", "2,4", "-o", &back, "--indices"];
    run(&[&small[..], &[&x]].concat()).refused(1, "use the indices that pool wrote");
    let floats = folder.write("floats.npy", &[1, 1, 2, 1], &[0.0f32; 2]);
    run(&[&small[..], &[&floats]].concat()).refused(1, "indices must be int32");
    run(&["unpool", &y, "--indices", &at, "--output-size", "8", "-o", &back]).refused(1, "N,W,C");
    run(&small[..6]).refused(2, "--indices");
    fs::remove_file(floats).expect("it was written");
    assert_eq!(folder.files(), files);
}

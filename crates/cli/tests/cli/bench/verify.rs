//! `verify`: cases held to the reference.

use windowpane::Device;

use super::cases::{case, number, rows, write};
use crate::support::{Folder, run, run_with};

/// Every device's results are the reference's, and the rows tell of how many samples.
#[test]
fn cases_are_verified_on_every_backend() {
    let folder = Folder::new();
    let mut cases = Vec::new();
    for (kind, pass) in
        [("maxpool", "fwd"), ("maxpool", "bwd"), ("avgpool", "fwd"), ("avgpool", "bwd")]
    {
        cases.push(case("small", kind, pass, "f32", "nchw"));
    }
    let file = write(&folder, &cases);
    let mut backends: Vec<_> = Device::all().iter().map(|device| device.backend().name()).collect();
    backends.dedup();
    let verify = ["verify", "--cases", &file, "--taps", "1"];
    let ran = run_with(&verify, &["--backend", &backends.join(",")]).succeeded();
    let rows = rows(&ran);
    assert_eq!(rows.len(), cases.len() * backends.len());
    for row in rows {
        assert!((0.0..=1.0).contains(&number(&row, "error_in_bounds")), "{row}");
        let exact = row["kind"] == "maxpool" && row["pass"] == "fwd";
        assert!(!exact || number(&row, "error_in_bounds") == 0.0, "{row}");
        assert!(number(&row, "samples") == 1.0 && number(&row, "outputs") > 0.0, "{row}");
    }
    let failing = write(&folder, &[case("x", "lstm", "fwd", "f32", "nhwc")]);
    let ran = run(&["verify", "--cases", &failing]);
    ran.refused(1, "1 of 1 cases are wrong or did not run");
    assert!(ran.out.contains("`lstm`") && !ran.out.contains("error_in_bounds"), "{ran:?}");
}

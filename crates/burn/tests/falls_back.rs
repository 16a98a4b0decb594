//! What windowpane cannot compute is computed by Burn's own operator, and the counters say why.

use std::process::Command;

use burn::tensor::module::max_pool2d;
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{DType, Device, Tensor, TensorData};

#[test]
fn another_type_falls_back() {
    windowpane_burn::install().expect("this is the start");
    // A second call is no error.
    windowpane_burn::install().expect("it is installed");
    let device = Device::default();
    let numbers: Vec<f32> = (0..2 * 3 * 6 * 6).map(|at| (at * 37 % 101) as f32).collect();
    let x = Tensor::<4>::from_data(TensorData::new(numbers, [2, 3, 6, 6]), &device);
    let pool = |x| max_pool2d(x, MaxPoolOptions::new([2, 2]));
    let expected: Vec<f32> = pool(x.clone()).into_data().try_to_vec().expect("f32");
    let counters = windowpane_burn::counters();
    assert_eq!((counters.replaced(), counters.fell_back()), (1, 0), "{counters}");

    let y = pool(x.cast(DType::Flex32)).into_data().convert::<f32>();
    assert_eq!(y.try_to_vec::<f32>().expect("f32"), expected);
    let counters = windowpane_burn::counters();
    assert_eq!((counters.replaced(), counters.fell_back()), (1, 1), "{counters}");
    let count = counters.of("max_pool2d");
    assert_eq!(count.reason.as_deref(), Some("windowpane has no Flex32"));
    assert!(counters.to_string().ends_with("1          1  windowpane has no Flex32"), "{counters}");
}

/// The test above, in a process without a desktop, prints nothing of its own.
#[test]
fn nothing_is_printed() {
    let mut command = Command::new(std::env::current_exe().expect("the test has a path"));
    command.args(["--exact", "another_type_falls_back", "--nocapture"]);
    command.env_remove("XDG_RUNTIME_DIR").env_remove("NODEVICE_SELECT");
    let output = command.output().expect("the test runs");
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
    assert!(err.is_empty(), "{err}");
}

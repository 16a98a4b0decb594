//! Tests of every property that a device must have, on every device: one binary, so that it can be copied to a machine
//! with a GPU.

mod asynchronous;
mod conv;
#[cfg(feature = "kernels")]
mod conv_handles;
mod family;
mod faults;
mod fractional;
#[cfg(feature = "kernels")]
mod handles;
mod morphology;
#[cfg(feature = "kernels")]
mod overrides;
mod pad;
mod pool;
#[cfg(feature = "kernels")]
mod pool_handles;
mod quantized;
mod stochastic;
mod suite;
mod tensor;
mod transpose;
mod views;

/// Whether this process runs only this test, so that no other test adds to the count of launches. Otherwise the test
/// runs in a process of its own and must pass there.
#[cfg(feature = "kernels")]
fn is_alone(test: &str) -> bool {
    if std::env::var_os("WINDOWPANE_ALONE").is_some() {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let alone = command.args(["--exact", test, "--nocapture"]).env("WINDOWPANE_ALONE", "yes");
    let alone = alone.output().unwrap();
    let [out, err] = [&alone.stdout, &alone.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(alone.status.success(), "{test} alone: {}\n{out}\n{err}", alone.status);
    false
}

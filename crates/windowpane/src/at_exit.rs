//! The end of a program that has not waited for its last work on the CPU.
//!
//! CubeCL's CPU runtime compiles kernels with LLVM on a thread of its own. A process that ends destroys LLVM's static data
//! while that thread goes on, so a program that launched and returned from `main` without reading its results could
//! crash. Functions registered with `atexit` run before the destructors of data that existed when they were registered. LLVM
//! creates its data when it first compiles, so opening the device compiles a kernel and then registers a function that waits.

use core::ffi::c_int;
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::Duration;

use cubecl::client::Client;
use windowpane_kernels::{Capabilities, Target};

use crate::DType;

/// The longest time that opening the device and the end of a program wait, whatever the limit on other waits: far longer
/// than a compilation takes.
const LIMIT: Duration = Duration::from_secs(60);

/// The device, and the process that opened it.
static CPU: OnceLock<(Client, u32)> = OnceLock::new();

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

/// Makes the end of the program wait for launches on the CPU with compiled kernels.
pub(crate) fn waits_for(client: &Client, device: &Capabilities) {
    CPU.get_or_init(|| {
        let memory = client.empty(DType::F32.size());
        // An error here appears again at the program's own first launch.
        let target = Target { client, device };
        let _ = windowpane_kernels::fill_random(target, DType::F32, &memory, 1, 0);
        finish(client);
        // SAFETY: the function can be called at any time and does not unwind. If it can't be registered, the program
        // ends as it would without.
        unsafe { atexit(wait) };
        (client.clone(), std::process::id())
    });
}

extern "C" fn wait() {
    // A fork of the process has its functions, but not its threads.
    if let Some((client, process)) = CPU.get()
        && *process == std::process::id()
    {
        finish(client);
    }
}

/// Waits until everything launched is compiled, also where the program has given the device up. It waits on a new thread,
/// because CubeCL's thread-local variables of a thread that ends the program are already destroyed.
fn finish(client: &Client) {
    let (done, is_done) = channel();
    let client = client.clone();
    let work = move || {
        // The program did not ask for the result, so an error has nobody to report it to.
        let _ = cubecl::future::block_on(client.sync());
        let _ = done.send(());
    };
    if std::thread::Builder::new().spawn(work).is_ok() {
        let _ = is_done.recv_timeout(LIMIT);
    }
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use std::process::Command;

    use crate::{AvgPool, DType, Device, Tensor};

    /// The process of the next test, which ends while its kernels are compiled. By itself it only shows that they can be
    /// launched.
    #[test]
    fn kernels_are_launched() {
        let device = Device::cpu().expect("it is built");
        for size in 1..=3 {
            let x = Tensor::random(&device, DType::F32, [1, 8, 8, size], 1).expect("it fits");
            AvgPool::new([size, size]).forward(&x).expect("it is supported");
        }
        if let Some(how) = std::env::var_os("WINDOWPANE_ENDS") {
            if how == "given up" {
                device.wait().expect_err("its kernels are still compiled");
            }
            println!("launched");
            std::process::exit(0);
        }
    }

    #[test]
    fn a_program_may_end_before_its_work() {
        for (how, limit) in [("at once", "none"), ("given up", "1e-9")].repeat(8) {
            let mut command = Command::new(std::env::current_exe().expect("the test has a path"));
            command.args(["--exact", "at_exit::tests::kernels_are_launched", "--nocapture"]);
            command.env("WINDOWPANE_ENDS", how).env("WINDOWPANE_WAIT_LIMIT", limit);
            let output = command.output().expect("the test runs");
            let [out, err] =
                [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            let ended = output.status.success() && out.contains("launched");
            assert!(ended, "{how}: {}\n{out}\n{err}", output.status);
        }
    }
}

//! Keeps the desktop's window library from printing errors where there is no desktop.
//!
//! Mesa's Vulkan layer asks libwayland for a display each time devices are listed, and libwayland prints
//! `error: XDG_RUNTIME_DIR is invalid or not set in the environment.` on standard error. Setting the variable would need a
//! process with one thread. libwayland has a log handler instead: ours drops this line and prints all others.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::sync::Once;

/// The line that is not printed, as libwayland formats it.
const DROPPED: &[u8] = b"error: XDG_RUNTIME_DIR is invalid";

/// A C `va_list`, which every ABI of Linux passes as one pointer.
type Arguments = *mut c_void;
type Handler = unsafe extern "C" fn(*const c_char, Arguments);

unsafe extern "C" {
    fn vdprintf(file: c_int, format: *const c_char, arguments: Arguments) -> c_int;
}

/// What libwayland calls for each of its messages.
///
/// # Safety
/// The format is a C string, and the arguments are those that it names.
unsafe extern "C" fn print_others(format: *const c_char, arguments: Arguments) {
    // SAFETY: by the contract of this function.
    if unsafe { CStr::from_ptr(format) }.to_bytes().starts_with(DROPPED) {
        return;
    }
    // SAFETY: by the contract of this function; libwayland's own handler prints the same way.
    unsafe { vdprintf(libc::STDERR_FILENO, format, arguments) };
}

/// Sets the handler once, on a machine that has libwayland and in a process that has no desktop.
///
/// A program with windows of its own has a valid `XDG_RUNTIME_DIR`; its handler stays.
pub fn without_a_desktop() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let folder = std::env::var_os("XDG_RUNTIME_DIR");
        if !folder.is_some_and(|folder| Path::new(&folder).is_absolute()) {
            set_handler();
        }
    });
}

fn set_handler() {
    // SAFETY: the library has no initialization with preconditions. It is never closed, so the handler stays valid.
    let library = unsafe { libc::dlopen(c"libwayland-client.so.0".as_ptr(), libc::RTLD_LAZY) };
    if library.is_null() {
        return;
    }
    // SAFETY: the library is open, and the name is a C string.
    let found = unsafe { libc::dlsym(library, c"wl_log_set_handler_client".as_ptr()) };
    if found.is_null() {
        return;
    }
    // SAFETY: this is the function's type in wayland-client-core.h.
    let set = unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn(Handler)>(found) };
    // SAFETY: the function stores one aligned pointer, which the library reads for each message.
    unsafe { set(print_others) };
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use crate::Device;

    /// The process of the next test. By itself it only shows that devices can be opened from several threads.
    #[test]
    fn threads_list_devices() {
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(Device::all)).collect();
        for thread in threads {
            assert!(!thread.join().expect("no panic").is_empty(), "host is always there");
        }
    }

    #[test]
    fn a_machine_without_a_desktop_gets_no_errors_of_the_window_library() {
        let mut command = Command::new(std::env::current_exe().expect("the test has a path"));
        command.args(["--exact", "wayland_log::tests::threads_list_devices", "--nocapture"]);
        command.env_remove("XDG_RUNTIME_DIR").env_remove("NODEVICE_SELECT");
        let output = command.output().expect("the test runs");
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
        assert!(err.is_empty(), "{err}");
    }
}

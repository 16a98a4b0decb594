//! Shared by all tests: a run of the program, and a folder of arrays.

use std::fmt::Debug;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use npyz::{AutoSerialize, Deserialize, NpyFile, Order, WriterBuilder};
use tempfile::TempDir;
use windowpane::{Backend, Device};

/// The exit status and the output of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn run_with(arguments: &[&str], on: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_windowpane"))
        .args(arguments)
        .args(on)
        .output()
        .expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs on `host`.
pub(crate) fn run(arguments: &[&str]) -> Ran {
    run_with(arguments, &["--backend", "host"])
}

impl Ran {
    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        assert_eq!((self.code, &*self.err), (Some(0), ""), "{self:?}");
        self
    }

    /// Asserts the exit status, and one line on stderr that contains `saying`, without a panic.
    #[track_caller]
    pub(crate) fn refused(&self, code: i32, saying: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        assert!(self.err.starts_with("windowpane: "), "{self:?}");
        assert!(self.err.contains(saying), "`{saying}` is not in {}", self.err);
        assert!(!self.err.contains("panicked"), "{self:?}");
    }
}

/// A folder of arrays, removed at the end of the test.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder for the test"))
    }

    /// The folder's path.
    pub(crate) fn root(&self) -> String {
        self.0.path().to_str().expect("UTF-8").into()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn name(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").into()
    }

    pub(crate) fn write<T: AutoSerialize>(
        &self,
        name: &str,
        dims: &[u64],
        elements: &[T],
    ) -> String {
        self.write_in(name, Order::C, dims, elements)
    }

    pub(crate) fn write_in<T: AutoSerialize>(
        &self,
        name: &str,
        order: Order,
        dims: &[u64],
        elements: &[T],
    ) -> String {
        let file = fs::File::create(self.path(name)).expect("a file for the test");
        let options = npyz::WriteOptions::new().default_dtype().order(order).shape(dims);
        let mut writer = options.writer(file).begin_nd().expect("a header");
        writer.extend(elements).expect("elements");
        writer.finish().expect("a file for the test");
        self.name(name)
    }

    /// Asserts the dimensions and the elements of a file.
    #[track_caller]
    pub(crate) fn holds<T: Deserialize + PartialEq + Debug>(
        &self,
        name: &str,
        dims: &[u64],
        elements: &[T],
    ) {
        let bytes = fs::read(self.path(name)).expect("the file was written");
        let file = NpyFile::new(&bytes[..]).expect("a .npy file");
        assert_eq!(file.shape(), dims);
        assert_eq!(file.into_vec::<T>().expect("elements"), elements);
    }

    pub(crate) fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path())
            .expect("the test's folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

/// Runs on every device of this machine, `host` first; the closure checks the files that were written.
pub(crate) fn on_every_backend(arguments: &[&str], check: impl Fn()) {
    for device in Device::all().into_iter().rev() {
        let index = device.index().to_string();
        let on = ["--backend", device.backend().name(), "--device", &index, "--quiet"];
        run_with(arguments, &on).succeeded();
        check();
    }
}

/// Runs a command on `host` and on every backend that has a device, and compares their files.
pub(crate) fn same_everywhere(folder: &Folder, arguments: &[&str]) {
    let y = folder.name("y.npy");
    let arguments = [arguments, &["-o", &y]].concat();
    run(&arguments).succeeded();
    let expected = fs::read(&y).expect("the file was written");
    for backend in Backend::built().filter(|backend| Device::new(*backend, 0).is_ok()) {
        run_with(&arguments, &["--backend", backend.name()]).succeeded();
        let found = fs::read(&y).expect("the file was written");
        assert!(found == expected, "{backend} differs from host: {arguments:?}");
    }
}

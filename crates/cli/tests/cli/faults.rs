//! Faults on Unix: hostile files, special files, interrupts, full disks and little memory. Each ends
//! soon, with one line on stderr, and leaves no file behind. `docs/FAULTS.md` lists them.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use windowpane::{Backend, Device};

use crate::support::{Folder, Ran, run};

/// Longer than any of these commands takes on a busy machine.
const SOON: Duration = Duration::from_secs(120);

/// Starts the program on `host` in a shell that has set these limits.
fn start(limits: &str, arguments: &[&str]) -> Child {
    let mut shell = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_windowpane");
    shell.args(["-c", &format!("{limits}; exec \"$@\""), "sh", program]).args(arguments);
    // Otherwise the address space that threads reserve would depend on the machine.
    shell.env("RAYON_NUM_THREADS", "2").env("MALLOC_ARENA_MAX", "2");
    shell.args(["--backend", "host"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.spawn().expect("a shell")
}

/// Waits for a program; the test fails if it does not end soon.
#[track_caller]
fn wait(mut child: Child) -> (Ran, Option<i32>) {
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if start.elapsed() > SOON {
            child.kill().expect("a child");
            panic!("the program still runs after {SOON:?}");
        }
        thread::sleep(Duration::from_millis(2));
    };
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().expect("a pipe").read_to_string(&mut out).expect("UTF-8");
    child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("UTF-8");
    (Ran { code: status.code(), out, err }, status.signal())
}

#[track_caller]
fn run_in(limits: &str, arguments: &[&str]) -> Ran {
    wait(start(limits, arguments)).0
}

/// Keeps a program that reads endlessly from using all of the machine's memory.
const LITTLE_MEMORY: &str = "ulimit -v 4000000";

fn npy(header: &str, elements: &[u8]) -> Vec<u8> {
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), elements].concat()
}

#[test]
fn hostile_headers_are_refused_at_once() {
    let folder = Folder::new();
    let y = folder.name("y.npy");
    for (i, header) in ["{".repeat(24), "[".repeat(30), "{'descr': [".repeat(3)].iter().enumerate()
    {
        let x = folder.path(&format!("{i}.npy"));
        fs::write(&x, npy(header, &[])).expect("a file for the test");
        let x = x.to_str().expect("UTF-8");
        run_in(LITTLE_MEMORY, &["pool", x, "-o", &y, "--kernel", "2"]).refused(1, x);
    }
}

#[test]
fn special_files_are_read_no_further_than_their_header() {
    let folder = Folder::new();
    let y = folder.name("y.npy");
    let root = folder.root();
    for (file, saying) in [
        ("/dev/zero", "is no .npy file: it does not begin like one"),
        ("/dev/null", "is no .npy file: it ends before its header does"),
        (&*root, "cannot be read"),
    ] {
        run_in(LITTLE_MEMORY, &["pool", file, "-o", &y, "--kernel", "2"]).refused(1, saying);
    }
    assert_eq!(folder.files(), Vec::<String>::new());
}

/// Makes a pipe and a thread that writes `bytes` into it and then calls `then` with it.
fn pipe(folder: &Folder, name: &str, bytes: Vec<u8>, then: impl FnOnce(fs::File) + Send + 'static) {
    let made = Command::new("mkfifo").arg(folder.path(name)).status().expect("mkfifo");
    assert!(made.success());
    let path = folder.path(name);
    thread::spawn(move || {
        let mut file = fs::OpenOptions::new().write(true).open(path).expect("a pipe");
        // The reader may have closed the pipe.
        let _ = file.write_all(&bytes);
        then(file);
    });
}

#[test]
fn pipes_are_read_no_further_than_their_elements() {
    let folder = Folder::new();
    let y = folder.name("y.npy");
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4, 1)}";
    let elements: Vec<u8> = [1f32, 3.0, 2.0, 0.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let pool = |name: &str| {
        run_in(LITTLE_MEMORY, &["pool", &folder.name(name), "-o", &y, "--kernel", "2"])
    };
    // The bytes after the elements never end.
    pipe(
        &folder,
        "endless",
        npy(header, &elements),
        |mut file| {
            while file.write_all(&[7; 4096]).is_ok() {}
        },
    );
    pool("endless").succeeded();
    folder.holds("y.npy", &[1, 2, 1], &[3.0f32, 2.0]);
    fs::remove_file(&y).expect("it was written");
    // The header promises more elements than arrive, or than fit in memory.
    let vast = header.replace("4, 1", "2000000000, 1");
    pipe(&folder, "vast", npy(&vast, &elements), drop);
    pool("vast").refused(1, "vast: is cut short within its elements");
    pipe(
        &folder,
        "more",
        npy(&vast, &elements),
        |mut file| {
            while file.write_all(&[7; 4096]).is_ok() {}
        },
    );
    pool("more").refused(1, "for which there is no memory");
    assert_eq!(folder.files(), ["endless", "more", "vast"]);
}

/// The files of a program that was killed, or finished, while it wrote.
struct Interrupted {
    folder: Folder,
    /// The arguments of the program, which writes `y.npy`.
    arguments: Vec<String>,
    /// The files of the folder before, and what the output was.
    files: Vec<String>,
    old: Vec<u8>,
    pid: u32,
    ran: Ran,
    ended_by: Option<i32>,
}

/// Sends a signal to a program as soon as it writes; none if the program finished first.
fn interrupted(signal: &str, limits: &str) -> Option<Interrupted> {
    let folder = Folder::new();
    // The output has 64 MiB of zeros, from one number and its index.
    let x = folder.write("x.npy", &[1, 1, 1], &[1.0f64]);
    let at = folder.write("at.npy", &[1, 1, 1], &[0i32]);
    let y = folder.write("y.npy", &[1], &[7.0f32]);
    let old = fs::read(&y).expect("a file for the test");
    let files = folder.files();
    let arguments = ["unpool", &x, "--indices", &at, "--output-size", "8388608", "-o", &y];
    let mut child = start(limits, &arguments);
    let pid = child.id();
    // `Output::new` creates an empty file before the work, as a check; a file that is being written is not empty.
    let writes = || {
        let parts = folder.files().into_iter().filter(|name| !files.contains(name));
        parts.filter_map(|part| fs::metadata(folder.path(&part)).ok()).any(|part| part.len() > 0)
    };
    let begun = Instant::now();
    while !writes() {
        if child.try_wait().expect("a child").is_some() {
            return None;
        }
        assert!(begun.elapsed() < SOON, "the program still has not written");
    }
    let sent = Command::new("kill").args([signal, &pid.to_string()]).status();
    sent.expect("kill");
    let (ran, ended_by) = wait(child);
    let arguments = arguments.map(Into::into).into();
    Some(Interrupted { folder, arguments, files, old, pid, ran, ended_by })
}

/// Sends a signal to a program as soon as it writes; false if the program finished first.
fn interrupted_while_it_writes(signal: (&str, i32), limits: &str) -> bool {
    let Some(Interrupted { folder, files, old, ran, ended_by, .. }) = interrupted(signal.0, limits)
    else {
        return false;
    };
    let whole = ran.code == Some(0);
    assert!(whole || ended_by == Some(signal.1), "{ran:?}, {ended_by:?}");
    assert_eq!(folder.files(), files, "{ran:?}");
    assert_eq!(fs::read(folder.path("y.npy")).expect("it is there") == old, !whole);
    !whole
}

/// Nothing can be done on SIGKILL: the old output stays, and beside it the temporary file, by whose name one can tell
/// whose it was. It is in nobody's way, and a program with the same process id removes it.
#[test]
fn a_killed_program_leaves_only_its_temporary_file() {
    let killed = (0..20).filter_map(|_| interrupted("-KILL", "true"));
    let killed = killed.filter(|it| it.ended_by == Some(9)).take(1).last();
    let killed = killed.expect("SIGKILL never came while the file was written");
    let left = format!(".y.npy.{}.part", killed.pid);
    let files = [vec![left.clone()], killed.files.clone()].concat();
    assert_eq!(killed.folder.files(), files, "{:?}", killed.ran);
    assert!(fs::read(killed.folder.path("y.npy")).expect("it is there") == killed.old);

    let mut again: Vec<&str> = killed.arguments.iter().map(String::as_str).collect();
    again[5] = "4";
    run(&again).succeeded();
    killed.folder.holds("y.npy", &[1, 4, 1], &[1.0f64, 0.0, 0.0, 0.0]);
    assert_eq!(killed.folder.files(), files);

    // The shell's process id becomes the program's.
    let own = format!("touch '{}'/.y.npy.$$.part", killed.folder.root());
    assert_eq!(run_in(&own, &again).code, Some(0));
    assert_eq!(killed.folder.files(), files);
}

/// Whether this process ignores a signal, as one that a shell runs in the background does, and so do its children.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    ignored.unwrap_or(0) >> (signal - 1) & 1 == 1
}

#[test]
fn an_interrupted_program_leaves_its_files_as_they_were() {
    for signal in [("-INT", 2), ("-TERM", 15), ("-HUP", 1)] {
        if is_ignored(signal.1) {
            eprintln!("skipped {}: this process ignores it", signal.0);
            continue;
        }
        let tries = (0..20).filter(|_| interrupted_while_it_writes(signal, "true")).take(1).count();
        assert_eq!(tries, 1, "{signal:?} never came while the file was written");
    }
}

/// `nohup`, and shells that start a program in the background, make it ignore signals.
#[test]
fn a_signal_that_is_ignored_interrupts_nothing() {
    assert!(!interrupted_while_it_writes(("-HUP", 1), "trap '' HUP"));
}

/// A limit on the file size simulates a disk that is full after that many bytes.
#[test]
fn outputs_that_cannot_be_written_whole_change_nothing() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 20_000, 1], &[1u8; 20_000]);
    let (y, at) = (folder.write("y.npy", &[1], &[7u8]), folder.name("at.npy"));
    let files = folder.files();
    let pool = ["pool", &x, "-o", &y, "--kernel", "1", "--indices", &at];
    // There is room for the values, 20,000 bytes, but not for their indices.
    let room = "trap '' XFSZ; ulimit -f 100";
    run_in(room, &pool).refused(1, "at.npy: cannot be written: File too large");
    assert_eq!(folder.files(), files);
    folder.holds("y.npy", &[1], &[7u8]);
    run(&pool).succeeded();
    folder.holds("y.npy", &[1, 20_000, 1], &[1u8; 20_000]);
}

/// A disk of 64 KiB, if this user is allowed to mount one.
#[test]
fn a_full_disk_is_one_line() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 100_000, 1], &[1.0f64; 100_000]);
    let disk = folder.path("disk");
    fs::create_dir(&disk).expect("a folder for the test");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&disk);
    if !mount.output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this user cannot mount a small disk");
        return;
    }
    let y = folder.name("disk/y.npy");
    let ran = run(&["pool", &x, "-o", &y, "--kernel", "2"]);
    let left = fs::read_dir(&disk).expect("the disk").count();
    let unmounted = Command::new("umount").arg(&disk).status();
    ran.refused(1, "y.npy: cannot be written: No space left on device");
    assert_eq!(left, 0);
    assert!(unmounted.is_ok_and(|status| status.success()));
}

#[test]
fn a_full_standard_output_is_one_line() {
    let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") else {
        eprintln!("skipped: this system has no /dev/full");
        return;
    };
    let mut program = Command::new(env!("CARGO_BIN_EXE_windowpane"));
    program.args(["plan", "pool", "--shape", "1,8,8,1", "--kernel", "2,2", "--backend", "host"]);
    let output = program.stdout(full).output().expect("the binary starts");
    let err = String::from_utf8(output.stderr).expect("UTF-8");
    Ran { code: output.status.code(), out: String::new(), err }.refused(1, "standard output");
}

/// A sparse file of zeros, which takes no disk space.
fn zeros(folder: &Folder, name: &str, descr: &str, elements: usize, size: usize) -> String {
    let header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (1, {elements}, 1)}}");
    let bytes = npy(&header, &[]);
    let file = fs::File::create(folder.path(name)).expect("a file for the test");
    (&file).write_all(&bytes).expect("a header");
    file.set_len((bytes.len() + elements * size) as u64).expect("a sparse file");
    folder.name(name)
}

/// Rust aborts a program when an allocation fails, so `host` counts all the memory that it will need in advance.
#[test]
fn what_host_needs_on_the_way_is_counted() {
    let folder = Folder::new();
    let y = folder.name("y.npy");
    let one = folder.write("one.npy", &[1, 1, 1], &[1.0f32]);
    let line = zeros(&folder, "line.npy", "<f4", 20_000_000, 4);
    let (bytes, w) = (zeros(&folder, "bytes.npy", "|u1", 100_000_000, 1), folder.name("w.npy"));
    folder.write("w.npy", &[1, 1, 1], &[1.0f64]);
    let files = folder.files();
    // An average needs little more than its result.
    let average = ["pool", &line, "--op", "avg", "--kernel", "2000", "--stride", "1", "-o", &y];
    run_in("ulimit -v 1200000", &average).succeeded();
    std::fs::remove_file(&y).unwrap();
    let table: &[(&str, u64, &[&str])] = &[
        // The sums of a gradient, each eight times as large as an element.
        (
            "shares",
            1_600_000,
            &["pool-backward", &one, "--op", "avg", "--global", "--input-size", "50000000"],
        ),
        (
            "norms",
            1_000_000,
            &["pool", &line, "--op", "lp", "--p", "3", "--kernel", "2", "--stride", "1"],
        ),
        ("a conversion", 900_000, &["conv", &bytes, &w, "--dtype", "f64", "--stride", "1000000"]),
    ];
    for (what, kilobytes, arguments) in table {
        let arguments = [*arguments, &["-o", &y]].concat();
        let ran = run_in(&format!("ulimit -v {kilobytes}"), &arguments);
        eprintln!("{what}: {}", ran.err.trim_end());
        ran.refused(1, "there is no memory for");
        assert_eq!(folder.files(), files);
    }
}

/// The taps of a window are not all listed if there are many.
#[test]
fn a_global_window_needs_no_memory_for_its_taps() {
    let folder = Folder::new();
    let (line, y) = (zeros(&folder, "line.npy", "|u1", 50_000_000, 1), folder.name("y.npy"));
    run_in("ulimit -v 1200000", &["pool", &line, "--global", "-o", &y]).succeeded();
    folder.holds("y.npy", &[1, 1, 1], &[0u8]);
}

/// A device that does not answer in time ends the run at its case, which the message names. The limit on waiting is so
/// short that a device only seldom keeps it: one of the first cases is lost.
#[test]
fn a_lost_device_ends_a_run_and_names_the_case() {
    let folder = Folder::new();
    let file = folder.name("cases.jsonl");
    let line = |nth: usize| {
        format!(
            r#"{{"name": "case-{nth}", "kind": "maxpool", "pass": "fwd", "n": 1, "c": 8, "size": [64, 64], "k": [3, 3], "s": [1, 1], "p": [1, 1], "d": [1, 1], "dtype": "f32", "layout": "nhwc"}}"#
        )
    };
    let lines: Vec<_> = (0..20).map(line).collect();
    fs::write(&file, lines.join("\n")).expect("a file for the test");
    let mut backends: Vec<_> = Device::all().iter().map(|device| device.backend().name()).collect();
    backends.retain(|name| *name != "host");
    backends.dedup();
    for backend in backends {
        let run = |arguments: &[&str]| {
            let mut program = Command::new(env!("CARGO_BIN_EXE_windowpane"));
            program.args(arguments).args(["--backend", backend, "--format", "json"]);
            program.env("WINDOWPANE_WAIT_LIMIT", "1e-9");
            program.stdout(Stdio::piped()).stderr(Stdio::piped());
            wait(program.spawn().expect("the program")).0
        };
        for jobs in ["1", "3"] {
            let ran = run(&["verify", "--cases", &file, "--jobs", jobs]);
            ran.refused(1, "is lost since case-");
            assert!(ran.err.contains("did not answer for"), "{ran:?}");
            // A row for each case up to the lost one, of which only the last has an error.
            let errors: Vec<_> = ran.out.lines().map(|row| row.contains("is lost")).collect();
            let lost = errors.iter().position(|error| *error).expect("a row of the lost case");
            assert_eq!(lost + 1, errors.len(), "{ran:?}");
            assert!(
                ran.err.contains(&format!("since case-{lost}/maxpool/fwd/f32/nhwc")),
                "{ran:?}"
            );
            let ran = run(&["verify", "--random", "20", "--seed", "1", "--jobs", jobs]);
            ran.refused(1, "is lost since random-1-");
            // The last lines are the row of the lost case, and the case.
            let rows: Vec<_> = ran.out.lines().rev().take(2).collect();
            let name =
                ran.err.split("is lost since ").nth(1).and_then(|rest| rest.split('/').next());
            let name = format!("\"{}\"", name.expect("a name"));
            assert!(rows.iter().all(|row| row.contains(&name)), "{ran:?}");
            assert!(!rows[0].contains("is lost") && rows[1].contains("is lost"), "{ran:?}");
        }
    }
}

/// A process of `--jobs` that is ended, here by a limit on its time, ends the run at its case.
#[test]
fn a_process_that_ends_ends_a_run_and_names_the_case() {
    let folder = Folder::new();
    let file = folder.name("cases.jsonl");
    // Each takes the reference much longer than the limit.
    let line = |name: &str| {
        format!(
            r#"{{"name": "{name}", "kind": "conv", "pass": "fwd", "n": 4, "c": 64, "cout": 64, "size": [256, 256], "k": [3, 3], "s": [1, 1], "p": [1, 1], "d": [1, 1], "dtype": "f32", "layout": "nhwc"}}"#
        )
    };
    fs::write(&file, ["a", "b"].map(line).join("\n")).expect("a file for the test");
    let verify = ["verify", "--cases", &file, "--jobs", "2", "--taps", "100000000000"];
    let ran = run_in("ulimit -t 2", &verify);
    ran.refused(1, "is lost since a/conv/fwd/f32/nhwc: the process that computed it has ended");
    assert!(ran.err.contains("signal") && ran.out.lines().count() == 1, "{ran:?}");
}

/// The device chosen without a name is no other one because of the file.
#[test]
fn a_file_of_speeds_that_cannot_be_used_is_an_error() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 4, 1], &[1.0f32, 2.0, 4.0, 3.0]);
    let (y, speeds) = (folder.name("y.npy"), folder.name("gpu.speeds"));
    let run = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_windowpane"));
        program.args(arguments).env("WINDOWPANE_SPEEDS", &speeds);
        program.stdout(Stdio::piped()).stderr(Stdio::piped());
        wait(program.spawn().expect("the program")).0
    };
    let pool = ["pool", &*x, "-o", &y, "--kernel", "2"];
    let plan = ["plan", "pool", "--shape", "1,4,1", "--kernel", "2"];
    run(&["pool", &x, "-o", &y, "--kernel", "2", "--backend", "host"]).succeeded();
    if Device::best().backend() == Backend::Host {
        return;
    }
    for arguments in [&pool[..], &plan] {
        run(arguments).refused(1, "WINDOWPANE_SPEEDS names");
    }
    fs::write(&speeds, "something else").expect("a file for the test");
    for arguments in [&pool[..], &plan] {
        run(arguments).refused(1, "unset it");
    }
}

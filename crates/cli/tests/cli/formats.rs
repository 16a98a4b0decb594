//! Arrays from and to pipes and safetensors files, JSON, completions and manual pages.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
use windowpane::{DType, Device, Tensor};

use crate::support::{Folder, run, run_with};

/// Runs on `host` with bytes on standard input; returns standard output, and asserts that stderr is empty.
fn piped(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_windowpane"))
        .args(arguments)
        .args(["--backend", "host"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // A program that has what it needs may end before it has read everything.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    output.stdout
}

fn array(bytes: &[u8]) -> (Vec<usize>, Vec<f32>) {
    let x = Tensor::read_npy_from(&Device::host(), bytes).expect("an array");
    (x.dims().to_vec(), x.to_vec::<f32>().expect("f32"))
}

#[test]
fn arrays_come_and_go_through_pipes() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 4, 1], &[1.0f32, 5.0, 2.0, 4.0]);
    let w = folder.write("w.npy", &[1, 2, 1], &[1.0f32, 10.0]);
    let [x, w] = [x, w].map(|path| fs::read(path).expect("the file"));
    let pooled = piped(&["pool", "-", "-o", "-", "--kernel", "2"], &x);
    assert_eq!(array(&pooled), (vec![1, 2, 1], vec![5.0, 4.0]));
    // The output of one is the input of the next.
    let again = piped(&["pool", "-", "-o", "-", "--global"], &pooled);
    assert_eq!(array(&again), (vec![1, 1, 1], vec![5.0]));
    // Two arrays, one after the other.
    let both = [x.clone(), w].concat();
    assert_eq!(array(&piped(&["conv", "-", "-", "-o", "-"], &both)).1, [51.0, 25.0, 42.0]);

    // One result may go to a file, but not both to standard output.
    let at = folder.name("at.npy");
    let with_indices = ["pool", "-", "-o", "-", "--kernel", "2", "--indices"];
    assert_eq!(array(&piped(&[&with_indices[..], &[&at]].concat(), &x)).1, [5.0, 4.0]);
    folder.holds("at.npy", &[1, 2, 1], &[1, 3]);
    run(&["pool", "-", "-o", "-", "--kernel", "2", "--indices", "-"]).refused(2, "same file");
    run(&["pool", "-", "-o", "-", "--kernel", "2"]).refused(1, "standard input: is no .npy file");
    assert_eq!(folder.files(), ["at.npy", "w.npy", "x.npy"]);
}

#[test]
fn safetensors_are_files_of_arrays() {
    let folder = Folder::new();
    let host = Device::host();
    let tensor = |elements: &[f32], dims: &[usize]| {
        Tensor::from_slice(&host, elements, dims).expect("a tensor")
    };
    let weight = tensor(&[1.0, -1.0], &[1, 1, 2]);
    let bias = tensor(&[0.5], &[1]);
    let model = folder.name("model.safetensors");
    let named = [("conv.weight", &weight), ("conv.bias", &bias)];
    Tensor::write_safetensors(&model, named).expect("a file");
    let x = folder.write("x.npy", &[1, 1, 3], &[5.0f32, 3.0, 9.0]);
    let y = folder.name("y.safetensors");
    let (w, b) = (format!("{model}#conv.weight"), format!("{model}#conv.bias"));
    let conv = ["conv", &x, &w, "-o", &y, "--bias", &b, "--layout", "ncw_fcw"];
    run(&conv).succeeded();
    let read = Tensor::read_safetensors(&host, &y).expect("the output");
    assert_eq!(read["result"].to_vec::<f32>().expect("f32"), [2.5, -5.5]);
    // A file with one tensor needs no name. An output may have one, and then its file keeps what else it holds.
    let named = format!("{y}#y");
    run(&["pool", &y, "-o", &named, "--global", "--layout", "channels-first"]).succeeded();
    let read = Tensor::read_safetensors(&host, &y).expect("the output");
    assert_eq!(read["y"].to_vec::<f32>().expect("f32"), [2.5]);
    assert_eq!(read["result"].to_vec::<f32>().expect("f32"), [2.5, -5.5]);
    std::fs::write(folder.name("z.safetensors"), "no tensors").expect("a file");
    let broken = format!("{}#z", folder.name("z.safetensors"));
    run(&["pool", &x, "-o", &broken, "--global"]).refused(1, "z.safetensors");
    assert_eq!(std::fs::read(folder.name("z.safetensors")).expect("it is kept"), b"no tensors");
    std::fs::remove_file(folder.name("z.safetensors")).expect("it is there");

    run(&["conv", &x, &model, "-o", &y]).refused(1, "conv.bias, conv.weight; name one of them");
    let missing = format!("{model}#fc.weight");
    run(&["conv", &x, &missing, "-o", &y]).refused(1, "#fc.weight: the file holds conv.bias");
    assert_eq!(folder.files(), ["model.safetensors", "x.npy", "y.safetensors"]);
}

#[test]
fn paddings_and_transposes_are_on_the_command_line() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 3, 1], &[1.0f32, 2.0, 4.0]);
    let w = folder.write("w.npy", &[1, 3, 1], &[1.0f32, 10.0, 100.0]);
    let b = folder.write("b.npy", &[1], &[-100.0f32]);
    let y = folder.name("y.npy");
    let conv = ["conv", &x, &w, "-o", &y, "--padding", "1", "--padding-mode"];
    for (mode, expected) in [
        ("zeros", [210.0f32, 421.0, 42.0]),
        ("reflect", [212.0, 421.0, 242.0]),
        ("symmetric", [211.0, 421.0, 442.0]),
        ("replicate", [211.0, 421.0, 442.0]),
        ("circular", [214.0, 421.0, 142.0]),
    ] {
        run(&[&conv[..], &[mode]].concat()).succeeded();
        folder.holds("y.npy", &[1, 3, 1], &expected);
    }
    run(&[&conv[..], &["mirror"]].concat())
        .refused(2, "zeros, reflect, symmetric, replicate, circular");

    let up = ["conv-transpose", &x, &w, "-o", &y, "--stride", "2"];
    let ran = run(&up).succeeded();
    assert!(ran.out.contains("transposed convolution f32 → [1, 7, 1] on host:0"), "{ran:?}");
    folder.holds("y.npy", &[1, 7, 1], &[1.0f32, 10.0, 102.0, 20.0, 204.0, 40.0, 400.0]);
    let more = ["--padding", "1", "--output-padding", "1", "--bias", &b, "--activation", "relu"];
    run(&[&up[..], &more].concat()).succeeded();
    folder.holds("y.npy", &[1, 6, 1], &[0.0f32, 2.0, 0.0, 104.0, 0.0, 300.0]);
    run(&[&up[..], &["--output-padding", "2"]].concat()).refused(1, "less than 2, the stride");
    run(&[&up[..], &["--padding-mode", "reflect"]].concat()).refused(1, "cannot pad with reflect");
    run(&[&up[..], &["--bias", &x]].concat()).refused(1, "a bias of this output has [1]");
}

#[test]
fn plans_and_devices_are_json() {
    let json = |text: &str| -> Value { serde_json::from_str(text).expect("JSON") };
    let shapes = ["--shape", "2,9,8,6", "--weight-shape", "4,3,2,6", "--format", "json"];
    let plan = json(&run(&[&["plan", "conv"], &shapes[..]].concat()).succeeded().out);
    assert_eq!(
        (&plan["algorithm"], &plan["NF"], &plan["M"]),
        (&"gemm".into(), &4.into(), &98.into())
    );
    assert!(plan["why"].is_null());
    let why = [&["plan", "conv"], &shapes[..], &["--why"]].concat();
    let plan = json(&run(&why).succeeded().out);
    assert_eq!(plan["why"][0]["kernel"], "gemm", "{plan}");
    let pool = ["plan", "pool", "--shape", "1,8,1", "--kernel", "2", "--format", "json"];
    let plan = json(&run(&pool).succeeded().out);
    assert_eq!((&plan["operator"], &plan["W_OUT"]), (&"max pooling".into(), &4.into()));
    let devices = run(&["devices", "--format", "json"]).succeeded().out;
    let host = json(devices.lines().next().expect("a device"));
    assert_eq!((&host["backend"], &host["device"]), (&"host".into(), &0.into()));
    assert_eq!(host["dtypes"].as_array().map(Vec::len), Some(DType::ALL.len()));
    assert!(host["copy_bytes"].as_f64().is_some_and(|speed| speed > 0.0), "{host}");
    run(&["devices", "--format", "yaml"]).refused(2, "json");
}

#[test]
fn shells_and_man_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = run_with(&["completions", shell], &[]).succeeded().out;
        assert!(script.contains("conv-transpose") && script.contains("padding-mode"), "{shell}");
    }
    run_with(&["completions", "csh"], &[]).refused(2, "bash");
    let folder = Folder::new();
    let pages = folder.name("pages");
    assert_eq!(run_with(&["man", &pages], &[]).succeeded().out, "");
    let pool = fs::read_to_string(folder.path("pages/windowpane-pool.1")).expect("a page");
    assert!(pool.contains("stride") && pool.contains("windowpane pool images.npy"), "{pool}");
    assert!(folder.path("pages/windowpane.1").exists());
    let taken = folder.write("taken", &[1], &[0u8]);
    run_with(&["man", &taken], &[]).refused(1, "manual pages cannot be written");
}

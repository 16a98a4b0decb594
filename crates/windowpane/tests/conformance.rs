//! ONNX's own node tests on every device: each test of a single pooling, unpooling or convolution node, with the inputs
//! and expected outputs that the ONNX project publishes.
//!
//! `cargo xtask conformance` downloads the files and sets `WINDOWPANE_ONNX` to their folder; without it these tests are
//! skipped.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use windowpane::{
    AvgPool, Backend, Conv, DType, Device, Divisor, Extents, FilterLayout, IndexBase, Layout,
    LpPool, MaxPool, MaxUnpool, Padding, Rounding, Same, Tensor, Window,
};
use windowpane_testing::{Named, named_device};

/// The environment variable with the folder of ONNX's test data.
const FOLDER: &str = "WINDOWPANE_ONNX";
/// The subfolders with node tests.
const SETS: [&str; 3] = ["node", "pytorch-converted", "pytorch-operator"];
/// The number of tests in ONNX 1.22 that consist of one node with a supported operator.
const CASES: usize = 100;

/// Defines one test per backend.
macro_rules! on_each_backend {
    ($($test:ident $backend:ident),*) => {$(
        #[test]
        fn $test() {
            conforms(Backend::$backend);
        }
    )*};
}
on_each_backend!(host Host, cpu Cpu, wgpu Wgpu, vulkan Vulkan, metal Metal, cuda Cuda, hip Hip);

fn conforms(backend: Backend) {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return eprintln!(
            "skipped {backend}: {FOLDER} names no folder; use `cargo xtask conformance`"
        );
    };
    let device = match named_device(backend) {
        Named::Found(device) => device,
        Named::Skipped(reason) => return eprintln!("skipped {backend}: {reason}"),
    };
    let (mut passed, mut wrong) = (0, Vec::new());
    let cases = cases(Path::new(&folder));
    for (name, case) in &cases {
        match case.run(&device) {
            Ok(()) => passed += 1,
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    eprintln!("{passed} of {} ONNX cases pass on {device} ({})", cases.len(), device.name());
    assert!(wrong.is_empty(), "on {device}:\n{}", wrong.join("\n"));
    assert_eq!(cases.len(), CASES, "the folder holds another version of ONNX's tests");
}

/// All tests of a single node with a supported operator, by name.
fn cases(folder: &Path) -> BTreeMap<String, Case> {
    let mut cases = BTreeMap::new();
    for set in SETS.map(|set| folder.join(set)) {
        let tests = fs::read_dir(&set).unwrap_or_else(|error| panic!("{}: {error}", set.display()));
        for test in tests.map(|test| test.unwrap().path()) {
            if let Some(case) = Case::read(&test) {
                let name = test.file_name().unwrap().to_str().unwrap().to_owned();
                assert!(cases.insert(name.clone(), case).is_none(), "two tests are called {name}");
            }
        }
    }
    cases
}

/// One node with its inputs and expected outputs.
struct Case {
    operator: String,
    attributes: BTreeMap<String, Attribute>,
    inputs: Vec<Array>,
    outputs: Vec<Array>,
}

#[derive(Default)]
struct Attribute {
    number: i64,
    text: String,
    numbers: Vec<i64>,
}

/// A tensor from a file, channels first.
#[derive(Clone, Default)]
struct Array {
    name: String,
    dims: Vec<usize>,
    elements: Elements,
}

#[derive(Clone)]
enum Elements {
    F32(Vec<f32>),
    U8(Vec<u8>),
    I64(Vec<i64>),
}

impl Default for Elements {
    fn default() -> Self {
        Self::I64(Vec::new())
    }
}

impl Case {
    fn read(test: &Path) -> Option<Self> {
        let model = fs::read(test.join("model.onnx")).ok()?;
        let graph =
            fields(&model).find_map(|(field, value)| value.bytes().filter(|_| field == 7))?;
        let all = |number| {
            fields(graph).filter(move |(field, _)| *field == number).filter_map(|(_, v)| v.bytes())
        };
        let (node, None) = (all(1).next()?, all(1).nth(1)) else { return None };
        let texts = |number| {
            let fields = fields(node).filter(move |(field, _)| *field == number);
            fields.filter_map(|(_, value)| value.text()).collect::<Vec<_>>()
        };
        let operator = texts(4).pop()?;
        let ours = ["MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool"];
        if !ours.contains(&&*operator) && !["MaxUnpool", "Conv"].contains(&&*operator) {
            return None;
        }
        let attributes = fields(node).filter(|(field, _)| *field == 5);
        let attributes = attributes.filter_map(|(_, value)| value.bytes()).map(attribute).collect();
        // The graph's inputs are files, in the graph's order; constants are stored in the model.
        let data = test.join("test_data_set_0");
        let mut given: BTreeMap<String, Array> =
            all(5).map(array).map(|array| (array.name.clone(), array)).collect();
        let names = all(11).filter_map(|input| {
            fields(input).find(|(field, _)| *field == 1).and_then(|(_, name)| name.text())
        });
        for (i, name) in names.enumerate() {
            if let Ok(bytes) = fs::read(data.join(format!("input_{i}.pb"))) {
                given.insert(name, array(&bytes));
            }
        }
        let inputs = texts(1).iter().map(|name| given[name].clone()).collect();
        let file = |i: usize| -> PathBuf { data.join(format!("output_{i}.pb")) };
        let outputs = (0..texts(2).len()).map(|i| array(&fs::read(file(i)).unwrap())).collect();
        Some(Self { operator, attributes, inputs, outputs })
    }

    fn numbers(&self, name: &str) -> Option<Vec<usize>> {
        let numbers = &self.attributes.get(name)?.numbers;
        Some(numbers.iter().map(|n| usize::try_from(*n).unwrap()).collect())
    }

    fn number(&self, name: &str, default: i64) -> i64 {
        self.attributes.get(name).map_or(default, |attribute| attribute.number)
    }

    /// The window that the attributes describe.
    fn window(&self) -> Window {
        let space = self.inputs[0].dims.len() - 2;
        let extents = |numbers: &[usize]| Extents::try_from(numbers).unwrap();
        let kernel =
            self.numbers("kernel_shape").unwrap_or_else(|| self.inputs[1].dims[2..].into());
        let ones = vec![1; space];
        let pads = self.numbers("pads").unwrap_or(vec![0; 2 * space]);
        let padding = match self.attributes.get("auto_pad").map(|attribute| &*attribute.text) {
            None | Some("NOTSET") => Padding::Explicit {
                before: extents(&pads[..space]),
                after: extents(&pads[space..]),
            },
            Some("SAME_UPPER") => Same::Upper.into(),
            Some("SAME_LOWER") => Same::Lower.into(),
            Some(_) => Padding::Valid,
        };
        let ceil = self.number("ceil_mode", 0) == 1;
        Window::new(extents(&kernel))
            .stride(extents(&self.numbers("strides").unwrap_or(ones.clone())))
            .dilation(extents(&self.numbers("dilations").unwrap_or(ones)))
            .padding(padding)
            .rounding(if ceil { Rounding::Ceil } else { Rounding::Floor })
    }

    /// Runs the node and compares its results with the expected ones.
    fn run(&self, device: &Device) -> Result<(), String> {
        self.compute(device)
            .map_err(|error| error.to_string())?
            .iter()
            .zip(&self.outputs)
            .try_for_each(|(found, expected)| {
                let exact = ["MaxPool", "GlobalMaxPool", "MaxUnpool"].contains(&&*self.operator);
                expected.compare(found, exact)
            })
    }

    fn compute(&self, device: &Device) -> windowpane::Result<Vec<Array>> {
        let layout = Layout::ChannelsFirst;
        let x = self.inputs[0].tensor(device)?;
        let results = match &*self.operator {
            "MaxPool" if self.outputs.len() == 2 => {
                let pool = MaxPool::with_window(self.window())
                    .layout(layout)
                    .index_base(IndexBase::Tensor);
                let (y, winners) = pool.forward_with_indices(&x)?;
                let mut winners = Array::of(&winners)?;
                if self.number("storage_order", 0) == 1 {
                    winners.count_columns_first(&self.inputs[0].dims);
                }
                return Ok(vec![Array::of(&y)?, winners]);
            }
            "MaxPool" => MaxPool::with_window(self.window()).layout(layout).forward(&x)?,
            "AveragePool" => {
                let padded = self.number("count_include_pad", 0) == 1;
                let divisor = if padded { Divisor::Padded } else { Divisor::Valid };
                AvgPool::with_window(self.window()).layout(layout).divisor(divisor).forward(&x)?
            }
            "LpPool" => {
                let p = self.number("p", 2) as f64;
                LpPool::with_window(p, self.window()).layout(layout).forward(&x)?
            }
            "GlobalMaxPool" => MaxPool::global().layout(layout).forward(&x)?,
            "GlobalAveragePool" => AvgPool::global().layout(layout).forward(&x)?,
            "MaxUnpool" => return self.unpool(device, &x),
            "Conv" => {
                let groups = usize::try_from(self.number("group", 1)).unwrap();
                let conv = Conv::with_window(self.window()).layout(layout).groups(groups);
                let conv = conv.filter_layout(FilterLayout::Fchw);
                let w = self.inputs[1].tensor(device)?;
                let bias = self.inputs.get(2).map(|bias| bias.tensor(device)).transpose()?;
                conv.forward(&x, &w, bias.as_ref())?
            }
            other => unreachable!("{other} was not read"),
        };
        Ok(vec![Array::of(&results)?])
    }

    /// Unpools to the input extents of a pooling without padding. If `output_shape` is larger, zeros are added at the
    /// end of each axis.
    fn unpool(&self, device: &Device, y: &Tensor) -> windowpane::Result<Vec<Array>> {
        let [kernel, strides] = ["kernel_shape", "strides"].map(|name| self.numbers(name).unwrap());
        assert!(!self.attributes.contains_key("pads"), "no test of ONNX unpools with padding");
        let pooled = &self.inputs[0].dims;
        let space: Vec<usize> =
            (0..kernel.len()).map(|i| (pooled[2 + i] - 1) * strides[i] + kernel[i]).collect();
        let unpool = MaxUnpool::new(Extents::try_from(&space[..])?).layout(Layout::ChannelsFirst);
        let unpool = unpool.index_base(IndexBase::Tensor);
        let small = Array::of(&unpool.forward(y, &self.inputs[1].tensor(device)?)?)?;
        let Some(Elements::I64(dims)) = self.inputs.get(2).map(|shape| &shape.elements) else {
            return Ok(vec![small]);
        };
        let dims: Vec<usize> = dims.iter().map(|dim| *dim as usize).collect();
        let mut whole = vec![0.0; dims.iter().product()];
        let Elements::F32(values) = small.elements else { unreachable!("ONNX unpools f32") };
        for (i, value) in values.into_iter().enumerate() {
            let position = position(i, &small.dims);
            whole[position.iter().zip(&dims).fold(0, |at, (p, dim)| at * dim + p)] = value;
        }
        Ok(vec![Array { dims, elements: Elements::F32(whole), ..Array::default() }])
    }
}

/// The position of element `i` on each axis of an array.
fn position(mut i: usize, dims: &[usize]) -> Vec<usize> {
    let mut position = vec![0; dims.len()];
    for (p, dim) in position.iter_mut().zip(dims).rev() {
        (*p, i) = (i % dim, i / dim);
    }
    position
}

impl Array {
    fn tensor(&self, device: &Device) -> windowpane::Result<Tensor> {
        match &self.elements {
            Elements::F32(elements) => Tensor::from_slice(device, elements, &self.dims),
            Elements::U8(elements) => Tensor::from_slice(device, elements, &self.dims),
            Elements::I64(elements) => {
                let indices: Vec<i32> =
                    elements.iter().map(|i| i32::try_from(*i).unwrap()).collect();
                Tensor::from_slice(device, &indices, &self.dims)
            }
        }
    }

    fn of(tensor: &Tensor) -> windowpane::Result<Self> {
        let elements = match tensor.dtype() {
            DType::U8 => Elements::U8(tensor.to_vec()?),
            DType::I32 => {
                Elements::I64(tensor.to_vec::<i32>()?.into_iter().map(i64::from).collect())
            }
            _ => Elements::F32(tensor.to_vec()?),
        };
        Ok(Self { name: String::new(), dims: tensor.dims().to_vec(), elements })
    }

    /// Converts indices to column-major order within a plane (`storage_order` 1).
    fn count_columns_first(&mut self, dims: &[usize]) {
        let Elements::I64(indices) = &mut self.elements else { return };
        for index in indices {
            let position = position(*index as usize, dims);
            let (outer, plane) = position.split_at(2);
            let outer = outer.iter().zip(dims).fold(0, |at, (p, dim)| at * dim + p);
            let sizes = &dims[2..];
            let inner = plane.iter().zip(sizes).rev().fold(0, |at, (p, dim)| at * dim + p);
            *index = (outer * sizes.iter().product::<usize>() + inner) as i64;
        }
    }

    fn compare(&self, found: &Self, exact: bool) -> Result<(), String> {
        if self.dims != found.dims {
            return Err(format!("the dimensions are {:?}, not {:?}", found.dims, self.dims));
        }
        let numbers = |array: &Self| -> Vec<f64> {
            match &array.elements {
                Elements::F32(all) => all.iter().map(|x| f64::from(*x)).collect(),
                Elements::U8(all) => all.iter().map(|x| f64::from(*x)).collect(),
                Elements::I64(all) => all.iter().map(|x| *x as f64).collect(),
            }
        };
        for (i, (y, e)) in numbers(found).into_iter().zip(numbers(self)).enumerate() {
            // The relative part is ONNX's own tolerance, because some of its expected values have only four digits. The
            // absolute part allows for f32 sums of a few hundred terms near 0.
            let bound = if exact { 0.0 } else { 1e-3 * e.abs() + 1e-5 };
            let close = (y - e).abs() <= bound;
            if !close && y.to_bits() != e.to_bits() {
                return Err(format!("element {i} is {y}, not {e}"));
            }
        }
        Ok(())
    }
}

/// The value of a field in a Protocol Buffers message.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Number(_) => None,
        }
    }

    fn text(self) -> Option<String> {
        Some(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// The numbers of a repeated field, packed or not.
    fn numbers(self) -> Vec<i64> {
        match self {
            Self::Number(number) => vec![number as i64],
            Self::Bytes(mut bytes) => {
                let mut numbers = Vec::new();
                while !bytes.is_empty() {
                    numbers.push(varint(&mut bytes) as i64);
                }
                numbers
            }
        }
    }
}

/// The fields of a message: number and value.
fn fields(mut bytes: &[u8]) -> impl Iterator<Item = (u64, Value<'_>)> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => return Some((key >> 3, Value::Number(varint(&mut bytes)))),
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("no file of ONNX has wire type {other}"),
        };
        let (value, rest) = bytes.split_at(length);
        bytes = rest;
        Some((key >> 3, Value::Bytes(value)))
    })
}

/// Reads a varint: seven bits per byte, least significant first.
fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for i in 0.. {
        let byte = bytes[i];
        number |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *bytes = &bytes[i + 1..];
            break;
        }
    }
    number
}

/// Reads an `AttributeProto`.
fn attribute(bytes: &[u8]) -> (String, Attribute) {
    let (mut name, mut attribute) = (String::new(), Attribute::default());
    for (field, value) in fields(bytes) {
        match field {
            1 => name = value.text().unwrap(),
            3 => attribute.number = value.numbers()[0],
            4 => attribute.text = value.text().unwrap(),
            8 => attribute.numbers.extend(value.numbers()),
            _ => {}
        }
    }
    (name, attribute)
}

/// Reads a `TensorProto`.
fn array(bytes: &[u8]) -> Array {
    let (mut array, mut kind, mut raw) = (Array::default(), 0, Vec::new());
    let mut whole = Vec::new();
    for (field, value) in fields(bytes) {
        match field {
            1 => array.dims.extend(value.numbers().iter().map(|dim| *dim as usize)),
            2 => kind = value.numbers()[0],
            // Floats, packed or not, have the same byte layout as raw data.
            4 | 9 => raw.extend_from_slice(value.bytes().unwrap()),
            5 | 7 => whole.extend(value.numbers()),
            8 => array.name = value.text().unwrap(),
            _ => {}
        }
    }
    fn split<const N: usize>(raw: &[u8]) -> impl Iterator<Item = [u8; N]> {
        raw.chunks_exact(N).map(|bytes| bytes.try_into().unwrap())
    }
    array.elements = match kind {
        1 => Elements::F32(split(&raw).map(f32::from_le_bytes).collect()),
        2 if whole.is_empty() => Elements::U8(raw),
        2 => Elements::U8(whole.iter().map(|n| *n as u8).collect()),
        7 if whole.is_empty() => Elements::I64(split(&raw).map(i64::from_le_bytes).collect()),
        7 => Elements::I64(whole),
        other => panic!("no test of ours has ONNX's type {other}"),
    };
    array
}

//! Compares every device with PyTorch: values, indices and gradients in f64, which `make.py` in this folder computed
//! with PyTorch 2.15 on a CPU.

use serde_json::Value;
use windowpane::{
    AvgPool, Backend, Conv, DType, Device, Divisor, Element, Extents, FilterLayout, Layout, LpPool,
    MaxPool, MaxUnpool, Padding, Rounding, Same, Tensor, Window,
};
use windowpane_testing::{Named, named_device};

const CASES: &str = include_str!("golden.jsonl");
const LAYOUT: Layout = Layout::ChannelsFirst;

/// Defines one test per backend.
macro_rules! on_each_backend {
    ($($test:ident $backend:ident),*) => {$(
        #[test]
        fn $test() {
            agrees(Backend::$backend);
        }
    )*};
}
on_each_backend!(host Host, cpu Cpu, wgpu Wgpu, vulkan Vulkan, metal Metal, cuda Cuda, hip Hip);

fn agrees(backend: Backend) {
    let device = match named_device(backend) {
        Named::Found(device) => device,
        Named::Skipped(reason) => return eprintln!("skipped {backend}: {reason}"),
    };
    let (mut checked, mut wrong) = (0, Vec::new());
    for line in CASES.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        // Types with fewer digits run the same kernels; other tests compare them with the reference.
        for dtype in [DType::F64, DType::F32].into_iter().filter(|dtype| device.supports(*dtype)) {
            let result = match dtype {
                DType::F64 => Case::<f64>::new(&case, &device).check(1e-13),
                _ => Case::<f32>::new(&case, &device).check(1e-6),
            };
            match result {
                Ok(results) => checked += results,
                // Devices without a power function for f64 may refuse.
                Err(error) if error.contains("has no powers of f64") => {}
                Err(error) => wrong.push(format!("{} in {dtype}: {error}", case["name"])),
            }
        }
    }
    eprintln!("{checked} results of PyTorch agree on {device} ({})", device.name());
    assert!(wrong.is_empty(), "on {device}:\n{}", wrong.join("\n"));
    assert!(checked > CASES.lines().count(), "gradients are compared too");
}

/// A case with its numbers read as one type.
struct Case<'a, T> {
    value: &'a Value,
    device: &'a Device,
    element: std::marker::PhantomData<T>,
}

/// A tensor from the file, with the numbers from PyTorch.
struct Golden {
    dims: Vec<usize>,
    data: Vec<f64>,
}

impl<'a, T: Element> Case<'a, T> {
    fn new(value: &'a Value, device: &'a Device) -> Self {
        Self { value, device, element: std::marker::PhantomData }
    }

    fn has(&self, name: &str) -> bool {
        !self.value[name].is_null()
    }

    fn golden(&self, name: &str) -> Golden {
        let tensor = &self.value[name];
        let data = tensor["data"].as_array().unwrap_or_else(|| panic!("there is no `{name}`"));
        let number = |value: &Value| match value.as_str() {
            Some(text) => text.parse().unwrap(),
            None => value.as_f64().unwrap(),
        };
        Golden { dims: whole(&tensor["dims"]), data: data.iter().map(number).collect() }
    }

    fn tensor(&self, name: &str) -> windowpane::Result<Tensor> {
        let Golden { dims, data } = self.golden(name);
        let elements: Vec<T> = data.into_iter().map(T::from_f64).collect();
        Tensor::from_slice(self.device, &elements, dims)
    }

    fn indices(&self) -> windowpane::Result<Tensor> {
        let Golden { dims, data } = self.golden("indices");
        let elements: Vec<i32> = data.into_iter().map(|at| at as i32).collect();
        Tensor::from_slice(self.device, &elements, dims)
    }

    fn extents(&self, name: &str) -> Extents {
        Extents::try_from(&whole(&self.value[name])[..]).unwrap()
    }

    fn window(&self) -> Window {
        if self.has("adaptive") {
            return Window::adaptive(self.extents("adaptive"));
        }
        let padding: Padding = match self.value["same"].as_str() {
            Some("upper") => Same::Upper.into(),
            Some(_) => Same::Lower.into(),
            None => {
                let sides = self.value["padding"].as_array().unwrap().iter().map(whole);
                let (before, after): (Vec<_>, Vec<_>) =
                    sides.map(|side| (side[0], side[1])).unzip();
                let [before, after] =
                    [before, after].map(|side| Extents::try_from(&side[..]).unwrap());
                Padding::Explicit { before, after }
            }
        };
        let ceil = self.value["ceil"].as_bool().unwrap_or(false);
        Window::new(self.extents("kernel"))
            .stride(self.extents("stride"))
            .dilation(self.extents("dilation"))
            .padding(padding)
            .rounding(if ceil { Rounding::Ceil } else { Rounding::Floor })
    }

    /// Runs the case and returns how many of its results were compared. The error of a result may be up to `tolerance`
    /// times its absolute value, or times 8 if that is more: no sum here has more than 54 terms, of at most 9 each.
    fn check(&self, tolerance: f64) -> Result<usize, String> {
        let results = self.results().map_err(|error| error.to_string())?;
        for (name, tensor) in &results {
            let Golden { dims, data } = self.golden(name);
            if tensor.dims() != dims {
                return Err(format!("`{name}` has dimensions {:?}, not {dims:?}", tensor.dims()));
            }
            let found = tensor.to_device(&Device::host()).and_then(|y| y.to_dtype(DType::F64));
            let found = found.and_then(|y| y.to_vec::<f64>());
            let found = found.map_err(|error| format!("`{name}`: {error}"))?;
            let exact =
                matches!(self.value["op"].as_str(), Some("max" | "unpool")) && *name != "dx";
            for (i, (y, e)) in found.into_iter().zip(data).enumerate() {
                let bound = if exact { 0.0 } else { tolerance * e.abs().max(8.0) };
                // A NaN on only one side is an error.
                let close = (y - e).abs() <= bound || y == e || (y.is_nan() && e.is_nan());
                if !close {
                    return Err(format!("`{name}` {i} is {y}, not {e}"));
                }
            }
        }
        Ok(results.len())
    }

    /// All results that the case has expected values for, by name.
    fn results(&self) -> windowpane::Result<Vec<(&'static str, Tensor)>> {
        let x = self.tensor("x")?;
        let mut results = Vec::new();
        match self.value["op"].as_str().unwrap() {
            "max" => {
                let pool = MaxPool::with_window(self.window()).layout(LAYOUT);
                results.push(("y", pool.forward(&x)?));
                if self.has("indices") {
                    let (y, winners) = pool.forward_with_indices(&x)?;
                    let dx = pool.backward(&self.tensor("dy")?, &winners, x.dims())?;
                    results.extend([("y", y), ("indices", winners), ("dx", dx)]);
                }
            }
            "average" => {
                let divisor = match &self.value["divisor"] {
                    Value::String(text) if text == "padded" => Divisor::Padded,
                    Value::String(_) => Divisor::Valid,
                    number => Divisor::Fixed(number.as_u64().unwrap().try_into().unwrap()),
                };
                let pool = AvgPool::with_window(self.window()).layout(LAYOUT).divisor(divisor);
                results.push(("y", pool.forward(&x)?));
                if self.has("dy") {
                    results.push(("dx", pool.backward(&self.tensor("dy")?, x.dims())?));
                }
            }
            "norm" => {
                let p = self.value["p"].as_f64().unwrap();
                let pool = LpPool::with_window(p, self.window()).layout(LAYOUT);
                results.push(("y", pool.forward(&x)?));
                results.push(("dx", pool.backward(&self.tensor("dy")?, &x)?));
            }
            "unpool" => {
                let unpool = MaxUnpool::new(self.extents("output")).layout(LAYOUT);
                let indices = self.indices()?;
                results.push(("y", unpool.forward(&x, &indices)?));
                results.push(("dx", unpool.backward(&self.tensor("dy")?, &indices)?));
            }
            "conv" => {
                let groups = self.value["groups"].as_u64().unwrap() as usize;
                let conv = Conv::with_window(self.window()).layout(LAYOUT).groups(groups);
                let conv = conv.filter_layout(FilterLayout::Fchw);
                let w = self.tensor("w")?;
                let bias = self.has("bias").then(|| self.tensor("bias")).transpose()?;
                results.push(("y", conv.forward(&x, &w, bias.as_ref())?));
                if self.has("dy") {
                    let dy = self.tensor("dy")?;
                    results.push(("dx", conv.backward_data(&dy, &w, x.dims())?));
                    results.push(("dw", conv.backward_weight(&dy, &x)?));
                    if bias.is_some() {
                        results.push(("db", conv.backward_bias(&dy)?));
                    }
                }
            }
            other => panic!("there is no operator `{other}`"),
        }
        Ok(results)
    }
}

fn whole(value: &Value) -> Vec<usize> {
    let numbers = value.as_array().unwrap().iter();
    numbers.map(|number| number.as_u64().unwrap() as usize).collect()
}

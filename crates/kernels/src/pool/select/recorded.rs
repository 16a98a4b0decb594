//! What the choice among kernels costs, by recorded times of all kernels.
//!
//! `benches/choice` has a file for each device: a pooling per line with its times in milliseconds, made from
//! `windowpane bench --every-kernel`.

use serde_json::Value;
use windowpane_geometry::{DType, Divisor, Extents, IndexBase, Layout, Shape, Window};

use super::*;
use crate::device::profiles;

const H200: &str = include_str!("../../../../../benches/choice/nvidia-h200.jsonl");

/// A pooling, and the times of its kernels.
struct Row {
    line: Value,
    pooling: Pooling,
    reduction: Reduction,
    dtype: DType,
    gradient: bool,
}

impl Row {
    fn parse(line: &str) -> Self {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        let number = |field: &str| line[field].as_u64().expect("a number") as usize;
        let extents = |field: &str| {
            let numbers = line[field].as_array().expect("a list").iter();
            let axes: Vec<_> =
                numbers.map(|number| number.as_u64().expect("a number") as usize).collect();
            Extents::try_from(&*axes).expect("one to three axes")
        };
        let layout = match line["layout"].as_str() {
            Some("nchw") => Layout::ChannelsFirst,
            _ => Layout::ChannelsLast,
        };
        let gradient = line["pass"] == "bwd";
        let reduction = match (line["kind"] == "maxpool", line["indices"] == true) {
            (true, true) => Reduction::max(Output::ValuesAndIndices(IndexBase::Plane)),
            (true, false) => Reduction::max(Output::Values),
            (false, _) => Reduction::Average(Divisor::Valid),
        };
        let dtype = line["dtype"].as_str().expect("a type").parse().expect("a known type");
        let window = Window::new(extents("k")).stride(extents("s")).dilation(extents("d"));
        let window = window.padding(extents("p"));
        let shape = Shape::new(number("n"), number("c"), extents("size")).expect("a shape");
        let pooling = Pooling::new(shape, &window, layout).expect("a pooling");
        Self { line, pooling, reduction, dtype, gradient }
    }

    /// The chosen kernel's time relative to the fastest; none if the chosen one was not timed.
    fn regret(&self) -> Option<f64> {
        let device = &profiles::H200.capabilities;
        let plan = if self.gradient { Plan::gradient } else { Plan::new };
        let chosen = plan(&self.pooling, self.reduction, self.dtype, device).expect("a plan");
        let times = self.line["ms"].as_object().expect("times");
        let time = |name: &str| times.get(name).and_then(Value::as_f64);
        let fastest = times.values().filter_map(Value::as_f64).fold(f64::INFINITY, f64::min);
        Some(time(chosen.algorithm().name())? / fastest)
    }
}

/// On the H200, the chosen kernel is within 5 % of the fastest for 95 % of the poolings.
#[test]
fn the_choice_is_nearly_always_the_fastest() {
    let is_pooling = |line: &&str| line.contains("pool\",\"pass");
    let rows: Vec<Row> = H200.lines().filter(is_pooling).map(Row::parse).collect();
    let regrets: Vec<_> = rows.iter().filter_map(|row| Some((row.regret()?, row))).collect();
    assert!(10 * regrets.len() >= 9 * rows.len(), "{} of {}", regrets.len(), rows.len());
    let slower: Vec<_> = regrets.iter().filter(|(regret, _)| *regret > 1.05).collect();
    let told = || slower.iter().map(|(regret, row)| format!("{regret:.2} {}\n", row.line));
    let mean = regrets.iter().map(|(regret, _)| regret.ln()).sum::<f64>() / regrets.len() as f64;
    assert!(20 * slower.len() <= regrets.len(), "{}", told().collect::<String>());
    assert!(mean.exp() <= 1.02, "{}: {}", mean.exp(), told().collect::<String>());
}

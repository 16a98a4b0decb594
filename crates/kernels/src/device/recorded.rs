//! Recorded times of all kernels on known devices, by which the tests of the choice among them measure what a choice costs.
//!
//! `benches/choice` has a file for each device: a problem per line with its times in milliseconds, made from
//! `windowpane bench --every-kernel`.

use serde_json::Value;
use windowpane_geometry::{DType, Extents, Layout, Shape, Window};

use super::profiles::{self, Profile};

/// Convolutions and poolings on an H200, most of networks, and those of `benches/cases.jsonl` on an H100.
pub(crate) const RECORDED: [(&str, Profile); 2] = [
    (include_str!("../../../../benches/choice/nvidia-h200.jsonl"), profiles::H200),
    (include_str!("../../../../benches/choice/nvidia-h100.jsonl"), profiles::H100),
];

/// A problem, and its times.
pub(crate) struct Record(pub(crate) Value);

impl Record {
    pub(crate) fn parse(line: &str) -> Self {
        Self(serde_json::from_str(line).expect("a line of JSON"))
    }

    pub(crate) fn text(&self, field: &str) -> &str {
        self.0[field].as_str().expect("a text")
    }

    pub(crate) fn number(&self, field: &str) -> usize {
        self.0[field].as_u64().expect("a number") as usize
    }

    pub(crate) fn extents(&self, field: &str) -> Extents {
        let numbers = self.0[field].as_array().expect("a list").iter();
        let axes: Vec<_> =
            numbers.map(|number| number.as_u64().expect("a number") as usize).collect();
        Extents::try_from(&*axes).expect("one to three axes")
    }

    pub(crate) fn input(&self) -> Shape {
        Shape::new(self.number("n"), self.number("c"), self.extents("size")).expect("a shape")
    }

    pub(crate) fn window(&self) -> Window {
        let window = Window::new(self.extents("k")).stride(self.extents("s"));
        window.dilation(self.extents("d")).padding(self.extents("p"))
    }

    pub(crate) fn dtype(&self) -> DType {
        self.text("dtype").parse().expect("a known type")
    }

    pub(crate) fn layout(&self) -> Layout {
        match self.text("layout") {
            "nchw" => Layout::ChannelsFirst,
            _ => Layout::ChannelsLast,
        }
    }

    /// What was timed, kernels or tiles, with milliseconds.
    pub(crate) fn times(&self) -> impl Iterator<Item = (&str, f64)> {
        let times = self.0["ms"].as_object().expect("times");
        times.iter().map(|(name, time)| {
            // Recorded when there was a kernel for each layout.
            let name = if name.starts_with("stencil_") { "stencil" } else { name };
            (name, time.as_f64().expect("a time"))
        })
    }

    /// The chosen kernel's time relative to the fastest; none if the chosen one was not timed.
    pub(crate) fn regret(&self, chosen: &str) -> Option<f64> {
        let fastest = self.times().map(|(_, time)| time).fold(f64::INFINITY, f64::min);
        let own = self.times().find(|(name, _)| *name == chosen);
        own.map(|(_, time)| time / fastest)
    }
}

/// Holds these choices to within 5 % of the fastest kernel for 95 % of the problems, and 2 % in the geometric mean.
pub(crate) fn check_choices<'a>(choices: impl IntoIterator<Item = (&'a Record, &'static str)>) {
    let regrets = choices.into_iter().map(|(record, chosen)| (record.regret(chosen), record));
    let (timed, others): (Vec<_>, Vec<_>) = regrets.partition(|(regret, _)| regret.is_some());
    assert!(timed.len() >= 9 * others.len(), "{} without {}", timed.len(), others.len());
    let timed = timed.into_iter().map(|(regret, record)| (regret.unwrap_or_default(), record));
    let timed: Vec<_> = timed.collect();
    let slower: Vec<_> = timed.iter().filter(|(regret, _)| *regret > 1.05).collect();
    let told: String =
        slower.iter().map(|(regret, record)| format!("{regret:.2} {}\n", record.0)).collect();
    let mean = mean(timed.iter().map(|(regret, _)| *regret));
    assert!(20 * slower.len() <= timed.len(), "{told}");
    assert!(mean <= 1.02, "{mean}: {told}");
}

/// The geometric mean.
pub(crate) fn mean(regrets: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) =
        regrets.fold((0.0, 0.0), |(sum, count), regret| (sum + regret.ln(), count + 1.0));
    f64::exp(sum / count)
}

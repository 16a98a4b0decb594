//! What the choice among kernels costs, by recorded times of all kernels.
//!
//! `benches/choice` has a file for each device: a layer per line with its times in milliseconds, made from
//! `windowpane bench --every-kernel`.

use serde_json::Value;
use windowpane_geometry::{DType, Extents, Filter, FilterLayout, Layout, Precision, Shape, Window};

use super::*;
use crate::device::profiles;

const H200: &str = include_str!("../../../../../benches/choice/nvidia-h200.jsonl");
const TILES: &str = include_str!("../../../../../benches/choice/nvidia-h200-tiles.jsonl");

/// A layer, and the times of its kernels.
struct Layer {
    line: Value,
    conv: Convolution,
    request: Request,
}

impl Layer {
    fn parse(line: &str) -> Self {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        let number = |field: &str| line[field].as_u64().expect("a number") as usize;
        let axes = |field: &str| -> Vec<usize> {
            let numbers = line[field].as_array().expect("a list").iter();
            numbers.map(|number| number.as_u64().expect("a number") as usize).collect()
        };
        let extents = |field: &str| Extents::try_from(&*axes(field)).expect("one to three axes");
        let (layout, filter_layout) = match line["layout"].as_str() {
            Some("nchw") => (Layout::ChannelsFirst, FilterLayout::Fchw),
            _ => (Layout::ChannelsLast, FilterLayout::Fhwc),
        };
        let pass = match line["pass"].as_str() {
            Some("fwd") => Pass::Forward,
            Some("data") => Pass::Data,
            _ => Pass::Filter,
        };
        let dtype: DType = line["dtype"].as_str().expect("a type").parse().expect("a known type");
        let window = Window::new(extents("k")).stride(extents("s")).dilation(extents("d"));
        let window = window.padding(extents("p"));
        let (channels, groups) = (number("c"), number("groups"));
        let input = Shape::new(number("n"), channels, extents("size")).expect("a shape");
        let filter = Filter::new(number("cout"), channels / groups, extents("k")).expect("filters");
        let conv = Convolution::new(input, filter, &window, groups, layout, filter_layout);
        let request = Request { pass, dtype, precision: Precision::Strict };
        Self { conv: conv.expect("a convolution"), request, line }
    }

    /// Whether it is of a network to which no constant was fitted. The names of these layers end in `_s` and the stride,
    /// and `_g` and the groups.
    fn is_held_out(&self) -> bool {
        let name = self.line["name"].as_str().unwrap_or_default();
        let (rest, groups) = name.rsplit_once("_g").unwrap_or_default();
        let (_, stride) = rest.rsplit_once("_s").unwrap_or_default();
        let is_number = |text: &str| text.parse::<u32>().is_ok();
        is_number(groups) && is_number(stride)
    }

    /// The chosen kernel's time relative to the fastest; none if the chosen one was not timed.
    fn regret(&self) -> Option<f64> {
        let device = &profiles::H200.capabilities;
        let chosen = Plan::new(&self.conv, self.request, Wish::default(), device).expect("a plan");
        let times = self.line["ms"].as_object().expect("times");
        let time = |name: &str| times.get(name).and_then(Value::as_f64);
        let fastest = times.values().filter_map(Value::as_f64).fold(f64::INFINITY, f64::min);
        Some(time(chosen.algorithm().name())? / fastest)
    }
}

/// On the H200, the chosen kernel is within 5 % of the fastest for 95 % of the layers. This holds for the layers to which
/// the constants of the estimates were fitted, and for those of other networks.
#[test]
fn the_choice_is_nearly_always_the_fastest() {
    let is_conv = |line: &&str| line.contains("\"kind\":\"conv\"");
    let layers = H200.lines().filter(is_conv).map(Layer::parse);
    let (other, own): (Vec<Layer>, Vec<Layer>) = layers.partition(Layer::is_held_out);
    for layers in [own, other] {
        let regrets: Vec<_> =
            layers.iter().filter_map(|layer| Some((layer.regret()?, layer))).collect();
        assert!(10 * regrets.len() >= 9 * layers.len(), "{} of {}", regrets.len(), layers.len());
        let slower: Vec<_> = regrets.iter().filter(|(regret, _)| *regret > 1.05).collect();
        let told = || slower.iter().map(|(regret, layer)| format!("{regret:.2} {}\n", layer.line));
        let mean = regrets.iter().map(|(regret, _)| regret.ln()).sum::<f64>();
        let mean = (mean / regrets.len() as f64).exp();
        assert!(20 * slower.len() <= regrets.len(), "{}", told().collect::<String>());
        assert!(mean <= 1.02, "{mean}: {}", told().collect::<String>());
    }
}

/// Of the tiles of `wgmma` that were timed on the H200, the one with the lowest estimate is rarely much slower than the
/// fastest. The layers are those that were slower than PyTorch's before, so that most are hard.
#[test]
fn tiles_are_nearly_always_the_fastest() {
    let device = &profiles::H200.capabilities;
    let layers: Vec<Layer> = TILES.lines().map(Layer::parse).collect();
    let regrets = layers.iter().map(|layer| {
        let times = layer.line["ms"].as_object().expect("times");
        let timed = times.iter().map(|(tile, time)| {
            let wish = Wish {
                algorithm: Some(Algorithm::Wgmma),
                tiling: tile.parse().expect("a tile"),
                ..Wish::default()
            };
            let plan = Plan::new(&layer.conv, layer.request, wish, device).expect("a plan");
            let seconds = plan.seconds(&layer.conv, layer.request, device);
            (seconds, time.as_f64().expect("a time"))
        });
        let timed: Vec<_> = timed.collect();
        let chosen = timed.iter().min_by(|one, other| one.0.total_cmp(&other.0));
        let fastest = timed.iter().map(|(_, time)| *time).fold(f64::INFINITY, f64::min);
        chosen.expect("tiles").1 / fastest
    });
    let regrets: Vec<f64> = regrets.collect();
    let mean = regrets.iter().map(|regret| regret.ln()).sum::<f64>() / regrets.len() as f64;
    assert!(mean.exp() <= 1.05, "{}: {regrets:.2?}", mean.exp());
}

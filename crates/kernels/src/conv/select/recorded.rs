//! What the choice among kernels costs, by their recorded times.

use windowpane_geometry::{DType, Filter, FilterLayout, Layout, Precision};

use super::tests::check_limits;
use super::*;
use crate::device::profiles::{self, Profile};
use crate::device::recorded::{RECORDED, Record, check_choices, mean};

/// Tiles of `wgmma` on an H200, and of `simt` on an H100.
const WGMMA_TILES: &str =
    include_str!("../../../../../benches/choice/nvidia-h200-wgmma-tiles.jsonl");
const SIMT_TILES: &str = include_str!("../../../../../benches/choice/nvidia-h100-simt-tiles.jsonl");

impl Record {
    fn conv(&self) -> Convolution {
        let (input, layout) = (self.input(), self.layout());
        let filter_layout = match layout {
            Layout::ChannelsFirst => FilterLayout::Fchw,
            Layout::ChannelsLast => FilterLayout::Fhwc,
        };
        let groups = self.number("groups");
        let channels = self.number("c") / groups;
        let filter =
            Filter::new(self.number("cout"), channels, self.extents("k")).expect("filters");
        let conv = Convolution::new(input, filter, &self.window(), groups, layout, filter_layout);
        conv.expect("a convolution")
    }

    fn request(&self) -> Request {
        let pass = match self.text("pass") {
            "fwd" => Pass::Forward,
            "data" => Pass::Data,
            _ => Pass::Weight,
        };
        let precision = match self.0.get("precision") {
            Some(name) if name == "tf32" => Precision::Tf32,
            _ => Precision::Strict,
        };
        Request { pass, dtype: self.dtype(), precision }
    }

    /// Whether it is of a network to which no constant was fitted. The names of these layers end in `_s` and the stride,
    /// and `_g` and the groups.
    fn is_held_out(&self) -> bool {
        let (rest, groups) = self.text("name").rsplit_once("_g").unwrap_or_default();
        let (_, stride) = rest.rsplit_once("_s").unwrap_or_default();
        let is_number = |text: &str| text.parse::<u32>().is_ok();
        is_number(groups) && is_number(stride)
    }
}

/// The chosen kernel is nearly always the fastest: for the layers to which the constants of the estimates were fitted,
/// and for those of other networks.
#[test]
fn the_choice_is_nearly_always_the_fastest() {
    for (records, Profile { capabilities: device, .. }) in RECORDED {
        let is_conv = |record: &Record| record.text("kind") == "conv";
        let layers = records.lines().map(Record::parse).filter(is_conv);
        let (other, own): (Vec<Record>, Vec<Record>) = layers.partition(Record::is_held_out);
        for layers in [own, other].iter().filter(|layers| !layers.is_empty()) {
            check_choices(layers.iter().map(|layer| {
                let options = PlanOptions::default();
                let plan = Plan::new(&layer.conv(), layer.request(), options, &device);
                (layer, plan.expect("a plan").algorithm().name())
            }));
        }
    }
}

/// Every device with a profile has a plan within its limits for each recorded problem. It uses matrix units if the
/// device has them for the type, both sides of the product fill them, and there is enough work.
#[test]
fn known_devices_have_sensible_plans() {
    for Profile { name, capabilities: device } in profiles::PROFILES {
        let lines = RECORDED.iter().flat_map(|(records, _)| records.lines());
        for layer in lines.map(Record::parse).filter(|record| record.text("kind") == "conv") {
            let (conv, request) = (layer.conv(), layer.request());
            let plan = match Plan::new(&conv, request, PlanOptions::default(), &device) {
                Err(PlanError::NoTf32) if device.matrix.tf32.is_none() => continue,
                plan => plan.expect("a plan"),
            };
            check_limits(name, &plan, Task { conv: &conv, request, device: &device });
            let units = match request.dtype {
                DType::F16 => device.matrix.f16,
                DType::BF16 => device.matrix.bf16,
                _ => None,
            };
            let filter = conv.filter();
            let fills = filter.channels().min(filter.count()) >= 64;
            let flops = 2.0 * conv.output().elements() as f64 * filter.taps() as f64;
            if units.is_some() && conv.groups() == 1 && fills && flops > 1e9 {
                let algorithm = plan.algorithm();
                let on_units = [Algorithm::Mma, Algorithm::Wgmma].contains(&algorithm);
                assert!(on_units, "{name}: {algorithm}: {}", layer.0);
            }
        }
    }
}

/// How long the tile that a kernel has by its plan takes, relative to the fastest of those that were timed; if it was not
/// timed, the one of these with the lowest estimate.
fn regrets(tiles: &str, algorithm: Algorithm, device: &Capabilities) -> Vec<f64> {
    let regret = |line| {
        let layer = Record::parse(line);
        let (conv, request) = (layer.conv(), layer.request());
        let plan = |tile: Option<&str>| {
            let tile = tile.map(|tile| tile.parse().expect("a tile")).unwrap_or_default();
            let options =
                PlanOptions { algorithm: Some(algorithm), tile, ..PlanOptions::default() };
            Plan::new(&conv, request, options, device).ok()
        };
        let own = plan(None).expect("a plan");
        let seconds = |tile: &str| {
            let plan = plan(Some(tile))?;
            let estimate = plan.seconds(Task { conv: &conv, request, device });
            Some(if plan == own { 0.0 } else { estimate })
        };
        // Beside resident columns, which are newer than the times, fewer stages fit than some of the tiles had.
        let chosen = layer.times().filter_map(|(tile, _)| Some((seconds(tile)?, tile)));
        let chosen = chosen.min_by(|one, other| one.0.total_cmp(&other.0)).expect("tiles");
        layer.regret(chosen.1).expect("a time")
    };
    tiles.lines().map(regret).collect()
}

/// A kernel's own tile is rarely much slower than the fastest of those that were timed. The layers of `wgmma` were drawn from
/// those of `benches/networks.jsonl` and of 74 other networks.
#[test]
fn tiles_are_nearly_always_the_fastest() {
    for (tiles, algorithm, profile, most) in [
        (WGMMA_TILES, Algorithm::Wgmma, profiles::H200, 1.02),
        (SIMT_TILES, Algorithm::Simt, profiles::H100, 1.05),
    ] {
        let regrets = regrets(tiles, algorithm, &profile.capabilities);
        let mean = mean(regrets.iter().copied());
        assert!(mean <= most, "{algorithm}: {mean}: {regrets:.2?}");
    }
}

//! Compares the guide with the code: its pages with those that are compiled, its tables of types with the library.

use std::collections::BTreeMap;
use std::path::Path;

use windowpane::{
    AvgPool, Backend, Conv, ConvTranspose, DType, Device, FractionalMaxPool, LpPool, MaxPool,
    MaxUnpool, MedianPool, MinPool, ModePool, Morphology, Pad, RankPool, StochasticPool, SumPool,
    Tensor,
};

fn docs() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"))
}

/// Each page is in the summary and among those whose snippets are run.
#[test]
fn every_page_is_read() {
    let summary = std::fs::read_to_string(docs().join("SUMMARY.md")).expect("the summary");
    let mut pages: Vec<String> = std::fs::read_dir(docs().join("guide"))
        .expect("the guide")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    pages.sort();
    let mut compiled = windowpane_examples::PAGES.to_vec();
    compiled.sort_unstable();
    assert_eq!(pages, compiled, "docs/guide, and the pages in examples/src/lib.rs");
    for page in pages {
        assert!(summary.contains(&format!("(guide/{page})")), "SUMMARY.md lacks {page}");
    }
}

/// A table of the page about types: the cells of each row by type.
fn table(name: &str) -> BTreeMap<String, Vec<(DType, String)>> {
    let page = std::fs::read_to_string(docs().join("guide/types.md")).expect("the page");
    let (_, rest) = page.split_once(&format!("<!-- {name} -->")).expect("the table");
    let mut lines = rest.trim_start().lines().take_while(|line| line.starts_with('|'));
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let types = cells(lines.next().expect("a heading"));
    let types: Vec<DType> =
        types[1..].iter().map(|name| name.parse().expect("the name of a type")).collect();
    assert_eq!(types.len(), DType::ALL.len(), "the table has every type");
    let rows = lines.skip(1).map(cells);
    rows.map(|row| (row[0].clone(), types.iter().copied().zip(row[1..].iter().cloned()).collect()))
        .collect()
}

#[test]
fn operators_take_the_types_of_the_table() {
    let host = Device::host();
    let table = table("operators");
    let takes = |operator: &str, dtype: DType| {
        let image = [1, 4, 4, 2];
        let x = Tensor::random(&host, dtype, image, 1).expect("host has every type");
        let (w, plain) = ([2, 3, 3, 2], Conv::new(3));
        match operator {
            "`MaxPool`" => MaxPool::new(2).forward(&x).is_ok(),
            "`MinPool`" => MinPool::new(2).forward(&x).is_ok(),
            "`MedianPool`" => MedianPool::new(2).forward(&x).is_ok(),
            "`RankPool`" => RankPool::new(1, 2).forward(&x).is_ok(),
            "`ModePool`" => ModePool::new(2).forward(&x).is_ok(),
            "`Morphology`" => Morphology::disk(1).gradient(&x).is_ok(),
            "`MaxUnpool`" => MaxUnpool::new(8).plan(&host, dtype, &image).is_ok(),
            "`AvgPool`" => AvgPool::new(2).forward(&x).is_ok(),
            "`SumPool`" => SumPool::new(2).forward(&x).is_ok(),
            "`LpPool`" => LpPool::new(2, 2).forward(&x).is_ok(),
            "`StochasticPool`" => StochasticPool::new(2).forward(&x).is_ok(),
            "`FractionalMaxPool`" => FractionalMaxPool::new(2, 2).forward(&x).is_ok(),
            "`Pad`" => Pad::new(1).forward(&x).is_ok(),
            "`Conv`" => plain.plan(&host, dtype, &image, &w).is_ok(),
            "`QuantizedConv`" => {
                let scale = Tensor::from_slice(&host, &[1f32, 1.0], [2]).expect("two numbers");
                let w = Tensor::random(&host, dtype, w, 2).expect("host has every type");
                plain.quantized().forward(&x, &w, &scale, None).is_ok()
            }
            "`ConvTranspose`" => ConvTranspose::new(3).plan(&host, dtype, &image, &w).is_ok(),
            "gradients (all but `MedianPool`, `RankPool`, `ModePool` and `Morphology`)" => {
                let all = [
                    MaxPool::new(2).plan_backward(&host, dtype, &image).is_ok(),
                    MinPool::new(2).plan_backward(&host, dtype, &image).is_ok(),
                    MaxUnpool::new(8).plan_backward(&host, dtype, &image).is_ok(),
                    AvgPool::new(2).plan_backward(&host, dtype, &image).is_ok(),
                    SumPool::new(2).plan_backward(&host, dtype, &image).is_ok(),
                    LpPool::new(2, 2).plan_backward(&host, dtype, &image).is_ok(),
                    StochasticPool::new(2).plan_backward(&host, dtype, &image).is_ok(),
                    Pad::new(1).backward(&x, &[1, 2, 2, 2]).is_ok(),
                    plain.plan_backward_data(&host, dtype, &image, &w).is_ok(),
                    plain.plan_backward_weight(&host, dtype, &image, &w).is_ok(),
                    plain.plan_backward_bias(&host, dtype, &image).is_ok(),
                ];
                assert!(all.iter().all(|takes| *takes == all[0]), "{dtype}: {all:?}");
                all[0]
            }
            other => panic!("the table has the unknown operator {other}"),
        }
    };
    assert_eq!(table.len(), 17, "every operator has a row");
    for (operator, cells) in &table {
        for (dtype, cell) in cells {
            let expected = if takes(operator, *dtype) { "yes" } else { "–" };
            assert_eq!(cell, expected, "{operator} of {dtype}");
        }
    }
}

/// The devices of this machine have what the table says about their backends.
#[test]
fn backends_have_the_types_of_the_table() {
    let table = table("backends");
    assert_eq!(table.len(), Backend::ALL.len(), "every backend has a row");
    for device in Device::all() {
        let cells = &table[&format!("`{}`", device.backend())];
        for (dtype, cell) in cells {
            let has = device.supports(*dtype);
            match &**cell {
                "yes" => assert!(has, "{device} has no {dtype}"),
                "–" => assert!(!has, "{device} has {dtype}"),
                "some" => {}
                other => panic!("the table says `{other}`"),
            }
        }
    }
}

/// The kernels that plans choose on the devices with a profile, as rows of the table about devices.
#[cfg(feature = "cubecl")]
fn chosen() -> String {
    use windowpane::geometry::{Convolution, Filter, Pooling, Shape};
    use windowpane::kernels::conv::{Pass, Plan, PlanOptions, Request};
    use windowpane::kernels::device::profiles::{PROFILES, Profile};
    use windowpane::kernels::pool;
    use windowpane::{FilterLayout, Layout, Precision, Window};

    let image = |channels| Shape::new(32, channels, [56, 56].into()).expect("a small shape");
    let mut rows = vec![
        "| device, backend | max 3×3/2 | max 31×31 | f32 3×3 | f16 3×3 | its weight gradient | f16 depthwise 7×7 |"
            .to_owned(),
        "|---|---|---|---|---|---|---|".to_owned(),
    ];
    for Profile { name, capabilities } in &PROFILES {
        let max = |window: Window| {
            let pooling = Pooling::new(image(64), &window, Layout::ChannelsLast).expect("it fits");
            let reduction = pool::Reduction::max(pool::Output::Values);
            let plan =
                pool::Plan::new(pool::Problem::new(&pooling, reduction, DType::F32), capabilities);
            plan.expect("every device has a plan").algorithm().name()
        };
        let conv = |dtype, pass, size: usize, groups: usize| {
            let filter = Filter::new(64, 64 / groups, [size, size].into()).expect("a small filter");
            let window = Window::new([size, size]).padding([size / 2, size / 2]);
            let (layout, filters) = (Layout::ChannelsLast, FilterLayout::Fhwc);
            let conv = Convolution::new(image(64), filter, &window, groups, layout, filters);
            let request = Request { pass, dtype, precision: Precision::Strict };
            let plan =
                Plan::new(&conv.expect("it fits"), request, PlanOptions::default(), capabilities);
            plan.expect("every device has a plan").algorithm().name()
        };
        let cells = [
            name,
            max(Window::new([3, 3]).stride([2, 2]).padding([1, 1])),
            max(Window::new([31, 31]).padding([15, 15])),
            conv(DType::F32, Pass::Forward, 3, 1),
            conv(DType::F16, Pass::Forward, 3, 1),
            conv(DType::F16, Pass::Weight, 3, 1),
            conv(DType::F16, Pass::Forward, 7, 64),
        ];
        rows.push(format!("| {} |", cells.join(" | ")));
    }
    rows.join("\n")
}

#[cfg(feature = "cubecl")]
#[test]
fn devices_choose_the_kernels_of_the_table() {
    let page = std::fs::read_to_string(docs().join("guide/devices.md")).expect("the page");
    let (_, rest) = page.split_once("<!-- devices -->").expect("the table");
    let (table, _) = rest.split_once("<!-- end -->").expect("the table's end");
    let chosen = chosen();
    assert_eq!(table.trim(), chosen, "docs/guide/devices.md should have\n{chosen}");
}

//! Compares convolution and its gradients with products enumerated one by one, and with each other.

mod common;

use half::f16;
use proptest::prelude::*;
use windowpane_geometry::{
    Convolution, Extents, Filter, FilterLayout, Layout, Same, Shape, Window,
};
use windowpane_reference::conv::Epilogue;
use windowpane_reference::{Scalar, conv};

fn convolutions() -> impl Strategy<Value = Convolution> {
    let filter_layouts =
        prop::sample::select(vec![FilterLayout::Fhwc, FilterLayout::Hwcf, FilterLayout::Fchw]);
    let counts = (0usize..3, 1usize..4, 1usize..4, 1usize..4);
    (common::floored_windows(20), counts, common::layouts(), filter_layouts).prop_map(
        |((window, input), (batch, groups, channels, filters), layout, filter_layout)| {
            let shape = Shape::new(batch, groups * channels, input).unwrap();
            let filter = Filter::new(groups * filters, channels, window.kernel().unwrap()).unwrap();
            Convolution::new(shape, filter, &window, groups, layout, filter_layout).unwrap()
        },
    )
}

fn with_integers() -> impl Strategy<Value = (Convolution, [Vec<f64>; 4])> {
    convolutions().prop_flat_map(|conv| {
        let lengths = [
            conv.input().elements(),
            conv.filter().elements(),
            conv.filter().count(),
            conv.output().elements(),
        ];
        (Just(conv), lengths.map(common::integers))
    })
}

/// The offset of a weight in memory, by the definition of the layout.
fn weight(conv: &Convolution, f: usize, c: usize, [d, h, w]: common::Position) -> usize {
    let [_, height, width] = conv.filter().kernel().three(1);
    let (count, channels) = (conv.filter().count(), conv.filter().channels());
    let taps = conv.filter().taps();
    let tap = (d * height + h) * width + w;
    match conv.filter_layout() {
        FilterLayout::Fhwc => (f * taps + tap) * channels + c,
        FilterLayout::Hwcf => (tap * channels + c) * count + f,
        FilterLayout::Fchw => (f * channels + c) * taps + tap,
    }
}

/// Rule 6.1 literally: every product of the sum, as the offsets of output, input and weight.
fn products(conv: &Convolution) -> Vec<[usize; 3]> {
    let (input, output, layout) = (conv.input(), conv.output(), conv.layout());
    let filters_of_group = output.channels() / conv.groups();
    let mut products = vec![];
    for o in common::positions(output.space().three(1)) {
        for (tap, read) in common::taps(conv.grid(), o) {
            let Some(read) = read else { continue };
            for n in 0..output.batch() {
                for f in 0..output.channels() {
                    for c in 0..input.channels() {
                        // A filter sees only the channels of its own group.
                        let group = f / filters_of_group;
                        if c / conv.filter().channels() == group {
                            products.push([
                                common::memory(&output, layout, n, f, o),
                                common::memory(&input, layout, n, c, read),
                                weight(conv, f, c - group * conv.filter().channels(), tap),
                            ]);
                        }
                    }
                }
            }
        }
    }
    products
}

proptest! {
    /// All numbers are small integers, so every sum is exact and results are compared exactly.
    #[test]
    fn sums_have_the_contracts_products((conv, [x, w, bias, g]) in with_integers()) {
        let mut y = vec![0.0; conv.output().elements()];
        let mut terms = vec![0; y.len()];
        let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);
        for [at_y, at_x, at_w] in products(&conv) {
            y[at_y] += x[at_x] * w[at_w];
            terms[at_y] += 1;
            dx[at_x] += g[at_y] * w[at_w];
            dw[at_w] += g[at_y] * x[at_x];
        }
        prop_assert_eq!(&conv::forward(&conv, &x, &w, Epilogue::NONE), &y);
        let totals = conv::forward_totals(&conv, &x, &w, Epilogue::NONE);
        prop_assert_eq!(totals.iter().map(|t| t.value).collect::<Vec<_>>(), y.clone());
        prop_assert_eq!(totals.iter().map(|t| t.terms).collect::<Vec<_>>(), terms);
        prop_assert_eq!(&conv::data_gradient(&conv, &g, &w), &dx);
        prop_assert_eq!(&conv::weight_gradient(&conv, &g, &x), &dw);

        let filters = conv.filter().count();
        let filter_of = |at: usize| match conv.layout() {
            Layout::ChannelsLast => at % filters,
            Layout::ChannelsFirst => at / conv.output().plane() % filters,
        };
        let with_bias = conv::forward(&conv, &x, &w, Epilogue::bias(&bias));
        let mut db = vec![0.0; filters];
        for (at, y) in y.iter().enumerate() {
            prop_assert_eq!(with_bias[at], y + bias[filter_of(at)]);
            db[filter_of(at)] += g[at];
        }
        prop_assert_eq!(conv::bias_gradient(&conv, &g), db);
    }

    /// Rule 5.4: ⟨f(x, w), g⟩ = ⟨x, df/dx(g)⟩ = ⟨w, df/dw(g)⟩, exactly on integers.
    #[test]
    fn gradients_are_adjoint((conv, [x, w, _, g]) in with_integers()) {
        let inner = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let forward = inner(&conv::forward(&conv, &x, &w, Epilogue::NONE), &g);
        prop_assert_eq!(inner(&x, &conv::data_gradient(&conv, &g, &w)), forward);
        prop_assert_eq!(inner(&w, &conv::weight_gradient(&conv, &g, &x)), forward);
    }

    /// Results are the rounded totals, and the magnitudes of totals are the sums of absolute terms.
    #[test]
    fn totals_are_rounded_once((conv, [x, w, bias, g]) in with_integers()) {
        let halves = |values: &[f64]| -> Vec<f16> {
            values.iter().map(|&value| Scalar::from_f64(value * 1.37)).collect()
        };
        let (x, w, bias, g) = (halves(&x), halves(&w), halves(&bias), halves(&g));
        let absolute = |values: &[f16]| -> Vec<f64> {
            values.iter().map(|value| value.to_f64().abs()).collect()
        };
        let check = |values: Vec<f16>, totals: Vec<windowpane_reference::Total>, of: Vec<f64>| {
            for ((value, total), magnitude) in values.iter().zip(&totals).zip(&of) {
                prop_assert_eq!(*value, <f16 as Scalar>::from_f64(total.value));
                // Both are sums of products of f16, exact in f64.
                prop_assert_eq!(total.magnitude, *magnitude);
                prop_assert!(total.value.abs() <= total.magnitude);
            }
            Ok(())
        };
        let (ax, aw, ag) = (absolute(&x), absolute(&w), absolute(&g));
        check(
            conv::forward(&conv, &x, &w, Epilogue::bias(&bias)),
            conv::forward_totals(&conv, &x, &w, Epilogue::bias(&bias)),
            conv::forward(&conv, &ax, &aw, Epilogue::bias(&absolute(&bias))),
        )?;
        check(
            conv::data_gradient(&conv, &g, &w),
            conv::data_gradient_totals(&conv, &g, &w),
            conv::data_gradient(&conv, &ag, &aw),
        )?;
        check(
            conv::weight_gradient(&conv, &g, &x),
            conv::weight_gradient_totals(&conv, &g, &x),
            conv::weight_gradient(&conv, &ag, &ax),
        )?;
        check(
            conv::bias_gradient(&conv, &g),
            conv::bias_gradient_totals(&conv, &g),
            conv::bias_gradient(&conv, &ag),
        )?;
    }
}

/// A 3×3 image and a 2×2 filter. This is cross-correlation: the filter is not flipped.
#[test]
fn an_image_by_hand() {
    let shape = Shape::new(1, 1, Extents::from([3, 3])).unwrap();
    let filter = Filter::new(1, 1, Extents::from([2, 2])).unwrap();
    let new = |window: Window| {
        Convolution::new(shape, filter, &window, 1, Layout::ChannelsLast, FilterLayout::Fhwc)
            .unwrap()
    };
    let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
    let w = [1.0, 10.0, 100.0, 1000.0];
    let valid = new(Window::new([2, 2]));
    assert_eq!(conv::forward(&valid, &x, &w, Epilogue::NONE), [5421.0, 6532.0, 8754.0, 9865.0]);
    assert_eq!(conv::forward(&valid, &x, &w, Epilogue::bias(&[0.5]))[0], 5421.5);
    let g = [1.0, 0.0, 0.0, 2.0];
    let dx = conv::data_gradient(&valid, &g, &w);
    assert_eq!(dx, [1.0, 10.0, 0.0, 100.0, 1002.0, 20.0, 0.0, 200.0, 2000.0]);
    assert_eq!(conv::weight_gradient(&valid, &g, &x), [11.0, 14.0, 20.0, 23.0]);
    assert_eq!(conv::bias_gradient(&valid, &g), [3.0]);
    // The odd padding goes at the end.
    let same = new(Window::new([2, 2]).padding(Same::Upper));
    let y = conv::forward(&same, &x, &w, Epilogue::NONE);
    assert_eq!(y, [5421.0, 6532.0, 603.0, 8754.0, 9865.0, 906.0, 87.0, 98.0, 9.0]);
}

/// A batch of 0 has an empty output and weight gradients of 0.
#[test]
fn nothing_in_nothing_out() {
    let shape = Shape::new(0, 2, Extents::from([3])).unwrap();
    let filter = Filter::new(2, 2, Extents::from([3])).unwrap();
    for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
        let window = Window::new([3]);
        let conv = Convolution::new(shape, filter, &window, 1, layout, FilterLayout::Fhwc).unwrap();
        let w = [1.0f32; 12];
        assert!(conv::forward(&conv, &[], &w, Epilogue::NONE).is_empty());
        assert!(conv::data_gradient(&conv, &[], &w).is_empty());
        assert_eq!(conv::weight_gradient::<f32>(&conv, &[], &[]), [0.0; 12]);
        assert_eq!(conv::bias_gradient::<f32>(&conv, &[]), [0.0; 2]);
    }
}

//! Compares with the reference, within the bound that is derived from its unrounded sums.

mod common;

use common::{Numbers, activations, convolutions};
use half::{bf16, f16};
use proptest::prelude::*;
use windowpane_geometry::{
    Activation, Convolution, Extents, Filter, FilterLayout, Layout, Shape, Window,
};
use windowpane_host::{Element, bias_gradient, data_gradient, forward, weight_gradient};
use windowpane_reference::conv::{self as reference, Epilogue};
use windowpane_reference::{Scalar, Total};

/// What is added to the sums.
#[derive(Clone, Copy, Debug)]
struct Extras {
    bias: bool,
    residual: bool,
    activation: Activation,
}

fn extras() -> impl Strategy<Value = Extras> {
    (any::<bool>(), any::<bool>(), activations()).prop_map(|(bias, residual, activation)| Extras {
        bias,
        residual,
        activation,
    })
}

/// The results of all passes.
struct Results<T> {
    y: Vec<T>,
    dx: Vec<T>,
    dw: Vec<T>,
    db: Vec<T>,
}

/// The tensors of a problem.
struct Tensors<T> {
    x: Vec<T>,
    w: Vec<T>,
    dy: Vec<T>,
    bias: Vec<T>,
    residual: Vec<T>,
}

impl<T: Element> Tensors<T> {
    fn new(conv: &Convolution, numbers: Numbers) -> Self {
        let outputs = conv.output().elements();
        Self {
            x: numbers.of(1, conv.input().elements()),
            w: numbers.of(2, conv.filter().elements()),
            dy: numbers.of(3, outputs),
            bias: numbers.of(4, conv.filter().count()),
            residual: numbers.of(5, outputs),
        }
    }

    fn epilogue(&self, extras: Extras) -> Epilogue<'_, T> {
        Epilogue {
            bias: extras.bias.then_some(&self.bias),
            residual: extras.residual.then_some(&self.residual),
            activation: extras.activation,
        }
    }

    fn results(&self, conv: &Convolution, extras: Extras) -> Results<T> {
        Results {
            y: forward(conv, &self.x, &self.w, self.epilogue(extras)),
            dx: data_gradient(conv, &self.dy, &self.w),
            dw: weight_gradient(conv, &self.dy, &self.x),
            db: bias_gradient(conv, &self.dy),
        }
    }
}

fn within<T: Element>(what: &str, found: &[T], expected: &[Total]) -> Result<(), TestCaseError> {
    prop_assert_eq!(found.len(), expected.len());
    // Half of the smallest number, where results are subnormal.
    let subnormal = if T::ROUNDOFF == f16::ROUNDOFF { 2.0f64.powi(-25) } else { 2.0f64.powi(-140) };
    for (i, (found, total)) in found.iter().zip(expected).enumerate() {
        let bound = total.bound(T::ROUNDOFF, <T::Sum as Scalar>::ROUNDOFF) + subnormal;
        let error = (found.to_f64() - total.value).abs();
        prop_assert!(error <= bound, "{what} {i} is {found:?}, not {total:?} within {bound}");
    }
    Ok(())
}

fn check<T: Element>(
    conv: &Convolution,
    numbers: Numbers,
    extras: Extras,
) -> Result<(), TestCaseError> {
    let tensors = Tensors::<T>::new(conv, numbers);
    let Results { y, dx, dw, db } = tensors.results(conv, extras);
    let Tensors { x, w, dy, .. } = &tensors;
    within("output", &y, &reference::forward_totals(conv, x, w, tensors.epilogue(extras)))?;
    within("data gradient", &dx, &reference::data_gradient_totals(conv, dy, w))?;
    within("weight gradient", &dw, &reference::weight_gradient_totals(conv, dy, x))?;
    within("bias gradient", &db, &reference::bias_gradient_totals(conv, dy))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Small problems of every geometry, in every type.
    #[test]
    fn every_pass_is_the_reference(conv in convolutions(14), seed: u64, extras in extras()) {
        check::<f32>(&conv, Numbers(seed), extras)?;
        check::<f64>(&conv, Numbers(seed), extras)?;
        check::<f16>(&conv, Numbers(seed), extras)?;
        check::<bf16>(&conv, Numbers(seed), extras)?;
    }

    /// Infinities and NaN in the input give exactly the kinds of the reference, and in the weights or the output
    /// gradients too, because then it is the reference that runs.
    #[test]
    fn what_is_not_finite_is_as_in_the_reference(
        conv in convolutions(10),
        seed: u64,
        place in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![f32::INFINITY, f32::NEG_INFINITY, f32::NAN]),
        role in 0..3usize,
    ) {
        let mut tensors = Tensors::<f32>::new(&conv, Numbers(seed));
        let list = [&mut tensors.x, &mut tensors.w, &mut tensors.dy].into_iter().nth(role).unwrap();
        prop_assume!(!list.is_empty());
        *place.get_mut(list) = value;
        let Tensors { x, w, dy, .. } = &tensors;
        let kinds = |values: &[f32]| -> Vec<Option<bool>> {
            values.iter().map(|v| (!v.is_nan()).then(|| v.is_infinite())).collect()
        };
        let y = forward(&conv, x, w, Epilogue::NONE);
        prop_assert_eq!(kinds(&y), kinds(&reference::forward(&conv, x, w, Epilogue::NONE)));
        let dx = data_gradient(&conv, dy, w);
        prop_assert_eq!(kinds(&dx), kinds(&reference::data_gradient(&conv, dy, w)));
        let dw = weight_gradient(&conv, dy, x);
        prop_assert_eq!(kinds(&dw), kinds(&reference::weight_gradient(&conv, dy, x)));
    }
}

const LAYOUTS: [Layout; 2] = [Layout::ChannelsLast, Layout::ChannelsFirst];

fn problem(
    [batch, channels, filters, groups]: [usize; 4],
    space: &[usize],
    window: Window,
    layout: Layout,
) -> Convolution {
    let shape = Shape::new(batch, channels, Extents::try_from(space).unwrap()).unwrap();
    let filter = Filter::new(filters, channels / groups, window.kernel().unwrap()).unwrap();
    Convolution::new(shape, filter, &window, groups, layout, FilterLayout::Fchw).unwrap()
}

/// Problems that are cut into several blocks, chunks, tiles and parts.
fn large() -> Vec<Convolution> {
    let same = |k: usize| Window::new([k, k]).padding([k / 2, k / 2]);
    LAYOUTS
        .into_iter()
        .flat_map(|layout| {
            [
                problem([2, 24, 40, 1], &[33, 30], same(3), layout),
                problem([1, 160, 72, 1], &[9, 11], same(3), layout),
                problem([3, 20, 600, 1], &[12, 10], Window::new([1, 1]), layout),
                problem([9, 1100, 8, 1], &[3, 2], Window::new([1, 1]), layout),
                problem([2, 3, 16, 1], &[50, 47], same(7).stride([2, 2]), layout),
                problem([2, 32, 48, 4], &[20, 21], same(3).stride([1, 2]), layout),
                problem([2, 48, 48, 48], &[40, 37], same(7), layout),
                problem([2, 20, 20, 20], &[31, 30], same(3).stride([2, 3]), layout),
                problem([1, 17, 17, 17], &[700], Window::new([5]).dilation([40]), layout),
                problem([1, 3, 3, 3], &[40_000], Window::new([2]).dilation([39_000]), layout),
                problem(
                    [1, 8, 8, 1],
                    &[6, 20, 20],
                    Window::new([3, 3, 3]).stride([2, 1, 1]),
                    layout,
                ),
            ]
        })
        .collect()
}

#[test]
fn large_problems_are_the_reference() {
    for conv in large() {
        let extras = Extras { bias: true, residual: true, activation: Activation::Relu };
        check::<f32>(&conv, Numbers(7), extras).unwrap_or_else(|error| panic!("{conv:?}: {error}"));
        check::<bf16>(&conv, Numbers(8), extras)
            .unwrap_or_else(|error| panic!("{conv:?}: {error}"));
    }
}

/// The number of threads changes no bit.
#[test]
fn results_do_not_depend_on_the_threads() {
    let extras = Extras { bias: true, residual: false, activation: Activation::Silu };
    for conv in large() {
        let tensors = Tensors::<f32>::new(&conv, Numbers(3));
        let [one, five] = [1, 5].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| tensors.results(&conv, extras))
        });
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        for (a, b) in [(one.y, five.y), (one.dx, five.dx), (one.dw, five.dw), (one.db, five.db)] {
            assert_eq!(bits(&a), bits(&b), "{conv:?}");
        }
    }
}

/// Windows that only read padding leave the bias; what no window reads has no gradient; nothing gives nothing.
#[test]
fn windows_may_be_empty() {
    for layout in LAYOUTS {
        let conv = problem([1, 2, 2, 1], &[1], Window::new([1]).padding([2]).stride([2]), layout);
        let extras = Extras { bias: true, residual: false, activation: Activation::None };
        check::<f32>(&conv, Numbers(1), extras).unwrap();
        let conv = problem([1, 2, 2, 2], &[3], Window::new([1]).padding([5]).stride([4]), layout);
        check::<f32>(&conv, Numbers(2), extras).unwrap();
        let conv = problem([0, 2, 4, 1], &[3, 3], Window::new([2, 2]), layout);
        let Results { y, dx, dw, db } =
            Tensors::<f32>::new(&conv, Numbers(3)).results(&conv, extras);
        assert!(y.is_empty() && dx.is_empty());
        assert_eq!((dw, db), (vec![0.0; 32], vec![0.0; 4]));
    }
}

//! Buffers that a caller passes to the kernels of a convolution: those that kernels cannot access without bounds checks
//! are refused.

use cubecl::server::Handle;
use windowpane::kernels::conv::{
    Algorithm, Arrangement, Operands, Pass, Plan, PlanOptions, Request, launch,
};
use windowpane::kernels::{BufferError, Capabilities, PlanError, Target};
use windowpane::{Activation, DType, Extents, FilterLayout, Layout, Precision, Window};
use windowpane_geometry::{Convolution, Filter, Shape};

use crate::pool::devices;

/// The buffers of a pass, inputs and output, and the size of each in bytes.
#[derive(Clone)]
struct Buffers {
    x: Handle,
    w: Handle,
    residual: Handle,
    y: Handle,
    bytes: u64,
}

/// Launches each pass of a small layer with changed buffers, on every device with kernels, and checks the outcome.
fn on_every_pass(
    change: impl Fn(&mut Buffers, &mut dyn FnMut(u64) -> Handle),
    check: impl Fn(Pass, u64, Result<(), PlanError>),
) {
    let shape = Shape::new(1, 4, Extents::from([8, 8])).unwrap();
    let filter = Filter::new(4, 4, Extents::from([3, 3])).unwrap();
    let window = Window::new([3, 3]).padding([1, 1]);
    let (layout, filter_layout) = (Layout::ChannelsLast, FilterLayout::Fhwc);
    let conv = Convolution::new(shape, filter, &window, 1, layout, filter_layout).unwrap();
    let (dtype, precision) = (DType::F32, Precision::Strict);
    let bytes = (conv.input().elements() * dtype.size()) as u64;
    for device in devices() {
        let Some(client) = device.client() else { continue };
        let capabilities = Capabilities::of(client);
        let mut empty = |bytes: u64| client.empty(bytes as usize);
        for pass in [Pass::Forward, Pass::Data, Pass::Weight] {
            // All buffers have the size of the input, which is the largest tensor.
            let [x, w, residual, y] = [(); 4].map(|()| empty(bytes));
            let mut buffers = Buffers { x, w, residual, y, bytes };
            change(&mut buffers, &mut empty);
            let Buffers { x, w, residual, y, .. } = &buffers;
            let (bias, activation) = (None, Activation::None);
            let operands = match pass {
                Pass::Data => Operands::Data { dy: x, w, dx: y },
                Pass::Weight => Operands::Weight { dy: x, x: w, dw: y },
                _ => {
                    let residual = Some(residual);
                    Operands::Forward { x, w, bias, residual, activation, y }
                }
            };
            let request = Request { pass, dtype, precision };
            let plan = Plan::new(&conv, request, PlanOptions::default(), &capabilities).unwrap();
            let target = Target { client, device: &capabilities };
            let found = launch(target, &conv, dtype, precision, &plan, operands);
            check(pass, capabilities.offset_alignment, found);
        }
    }
}

/// The name of a pass's first tensor in errors.
fn first(pass: Pass) -> &'static str {
    match pass {
        Pass::Forward => "the input",
        _ => "the output's gradient",
    }
}

#[test]
fn whole_buffers_are_taken() {
    on_every_pass(|_, _| {}, |pass, _, found| assert_eq!(found, Ok(()), "{pass}"));
}

#[test]
fn slices_that_are_too_short_are_refused() {
    for (by, left) in [(4, -4), (1 << 20, i64::MIN)] {
        on_every_pass(
            |buffers, _| buffers.x = buffers.x.clone().offset_end(by),
            |pass, _, found| {
                let Err(PlanError::Buffer(BufferError::TooSmall { name, needed, found })) = found
                else {
                    panic!("{pass}: {found:?}")
                };
                let expected = needed.checked_add_signed(left).unwrap_or(0);
                assert_eq!((name, found), (first(pass), expected));
            },
        );
    }
}

#[test]
fn offsets_past_the_end_are_refused() {
    on_every_pass(
        |buffers, _| buffers.x = buffers.x.clone().offset_start(2 * buffers.bytes),
        |pass, _, found| {
            let expected = BufferError::TooSmall { name: first(pass), needed: 1024, found: 0 };
            assert_eq!(found, Err(PlanError::Buffer(expected)), "{pass}");
        },
    );
}

#[test]
fn misaligned_offsets_are_refused() {
    on_every_pass(
        |buffers, empty| buffers.x = empty(2 * buffers.bytes).offset_start(1),
        |pass, alignment, found| {
            let name = first(pass);
            let expected = BufferError::Misaligned { name, offset: 1, alignment };
            assert_eq!(found, Err(PlanError::Buffer(expected)), "{pass}");
        },
    );
}

/// A partial overlap is refused too.
#[test]
fn outputs_that_overlap_an_input_are_refused() {
    for apart in [0, 512] {
        on_every_pass(
            |buffers, empty| {
                let both = empty(2 * buffers.bytes);
                (buffers.x, buffers.y) = (both.clone(), both.offset_start(apart));
            },
            |pass, alignment, found| {
                let output = match pass {
                    Pass::Forward => "the output",
                    Pass::Data => "the input's gradient",
                    _ => "the filters' gradient",
                };
                let expected = match apart % alignment {
                    0 => BufferError::Overlap { output, other: first(pass) },
                    _ => BufferError::Misaligned { name: output, offset: apart, alignment },
                };
                assert_eq!(found, Err(PlanError::Buffer(expected)), "{pass}");
            },
        );
    }
}

/// A residual is read while the output is written.
#[test]
fn an_output_in_place_of_its_residual_is_refused() {
    on_every_pass(
        |buffers, _| buffers.residual = buffers.y.clone(),
        |pass, _, found| {
            let (output, other) = ("the output", "the residual");
            let expected = match pass {
                Pass::Forward => Err(PlanError::Buffer(BufferError::Overlap { output, other })),
                _ => Ok(()),
            };
            assert_eq!(found, expected, "{pass}");
        },
    );
}

/// A plan by a kernel that cannot compute the problem: the launch is an error, and does not return an output that no
/// kernel has written.
#[test]
fn a_plan_of_another_kind_is_refused_and_not_skipped() {
    let (dtype, precision) = (DType::F32, Precision::Strict);
    let of = |groups: usize, channels: usize, layout| {
        let shape = Shape::new(1, groups * channels, Extents::from([8, 8])).unwrap();
        let filter = Filter::new(groups * channels, channels, Extents::from([3, 3])).unwrap();
        let window = Window::new([3, 3]).padding([1, 1]);
        Convolution::new(shape, filter, &window, groups, layout, FilterLayout::Fhwc).unwrap()
    };
    let layouts = [Layout::ChannelsLast, Layout::ChannelsFirst];
    let problems = layouts.map(|layout| [of(1, 32, layout), of(4, 8, layout), of(32, 1, layout)]);
    let problems = problems.as_flattened();
    for device in devices() {
        let Some(client) = device.client() else { continue };
        let capabilities = Capabilities::of(client);
        let mut refused = 0;
        for (pass, kernel) in [Pass::Forward, Pass::Data, Pass::Weight]
            .into_iter()
            .flat_map(|pass| Algorithm::ALL.map(|kernel| (pass, kernel)))
        {
            let request = Request { pass, dtype, precision };
            let plan = |conv: &Convolution| {
                let arrangement = Some(Arrangement { layout: conv.layout(), change: None });
                let algorithm = Some(kernel);
                let options = PlanOptions { algorithm, arrangement, ..PlanOptions::default() };
                Plan::new(conv, request, options, &capabilities).ok()
            };
            let Some(made) = problems.iter().find_map(plan) else { continue };
            // In the layout that the plan computes in, so that there is nothing to transpose.
            let layout = made.arrangement.layout;
            for conv in problems.iter().filter(|conv| conv.layout() == layout) {
                if plan(conv).is_some() {
                    continue;
                }
                let bytes = conv.input().elements().max(conv.filter().elements()) * dtype.size();
                let [a, b, c] = [(); 3].map(|()| client.empty(bytes));
                let (bias, residual, activation) = (None, None, Activation::None);
                let operands = match pass {
                    Pass::Data => Operands::Data { dy: &a, w: &b, dx: &c },
                    Pass::Weight => Operands::Weight { dy: &a, x: &b, dw: &c },
                    _ => Operands::Forward { x: &a, w: &b, bias, residual, activation, y: &c },
                };
                let target = Target { client, device: &capabilities };
                let asked = launch(target, conv, dtype, precision, &made, operands);
                assert!(asked.is_err(), "{device}: {kernel} was made for another {pass} and ran");
                refused += 1;
            }
        }
        assert!(refused > 0, "{device}: every kernel computes every problem");
    }
}

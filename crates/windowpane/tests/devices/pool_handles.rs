//! Buffers that pooling kernels cannot access without bounds checks are refused, each with its own error.

use cubecl::client::Client;
use cubecl::server::Handle;
use windowpane::kernels::pool::{Output, Plan, Problem, Reduction, Settings, Tensors, launch};
use windowpane::kernels::{BufferError, Capabilities, PlanError, Target};
use windowpane::{DType, Device, Divisor, Extents, IndexBase, Layout, Window};
use windowpane_geometry::{Pooling, Shape};

/// The sizes in bytes of the tensors of [`pooling`].
const INPUT: u64 = 8 * 8 * 4 * 4;
const OUTPUT: u64 = INPUT / 4;

/// 2×2 windows that do not overlap.
fn pooling() -> Pooling {
    let shape = Shape::new(1, 4, Extents::from([8, 8])).unwrap();
    Pooling::new(shape, &Window::new([2, 2]).stride([2, 2]), Layout::ChannelsLast).unwrap()
}

/// Calls `test` with the client and the capabilities of every device that runs kernels.
fn on_kernel_devices(test: impl Fn(&Client, &Capabilities)) {
    for device in Device::all() {
        if let Some(client) = device.client() {
            test(client, &Capabilities::of(client));
        }
    }
}

fn max(
    client: &Client,
    device: &Capabilities,
    buffers: [&Handle; 2],
    indices: Option<&Handle>,
) -> Result<(), PlanError> {
    let output = match indices {
        Some(_) => Output::ValuesAndIndices(IndexBase::Plane),
        None => Output::Values,
    };
    let pooling = pooling();
    let problem = Problem::new(&pooling, Reduction::max(output), DType::F32);
    let plan = Plan::new(problem, device).unwrap();
    let tensors = Tensors { indices, ..Tensors::new(buffers[0], buffers[1]) };
    launch(Target { client, device }, problem, &plan, tensors)
}

/// A buffer needs at least as many bytes as its tensor.
#[test]
fn buffers_that_are_too_short_are_refused() {
    on_kernel_devices(|client, device| {
        let empty = |bytes: u64| client.empty(bytes as usize);
        let (input, output) = (empty(INPUT), empty(OUTPUT));
        assert_eq!(max(client, device, [&input, &output], None), Ok(()));
        let refused = |buffers, name, needed, found| {
            let error = BufferError::TooSmall { name, needed, found };
            assert_eq!(max(client, device, buffers, None), Err(PlanError::Buffer(error)));
        };
        let short = input.clone().offset_end(4);
        refused([&short, &output], "the input", INPUT, INPUT - 4);
        let short = output.clone().offset_start(device.offset_alignment);
        let found = OUTPUT.saturating_sub(device.offset_alignment);
        refused([&input, &short], "the output", OUTPUT, found);
        let past = input.clone().offset_start(4 * INPUT);
        refused([&past, &output], "the input", INPUT, 0);
        let crossed = input.clone().offset_start(INPUT / 2).offset_end(INPUT);
        refused([&crossed, &output], "the input", INPUT, 0);
        let (indices, short) = (empty(OUTPUT), empty(OUTPUT - 4));
        assert_eq!(max(client, device, [&input, &output], Some(&indices)), Ok(()));
        let (needed, found) = (OUTPUT, OUTPUT - 4);
        let error = BufferError::TooSmall { name: "the indices", needed, found };
        let asked = max(client, device, [&input, &output], Some(&short));
        assert_eq!(asked, Err(PlanError::Buffer(error)));
    });
}

#[test]
fn a_buffer_at_an_offset_that_vectors_cannot_be_loaded_from_is_refused() {
    on_kernel_devices(|client, device| {
        let (alignment, output) = (device.offset_alignment, client.empty(OUTPUT as usize));
        if alignment <= 4 {
            return;
        }
        let aside = client.empty(INPUT as usize + 4).offset_start(4);
        let error = BufferError::Misaligned { name: "the input", offset: 4, alignment };
        let asked = max(client, device, [&aside, &output], None);
        assert_eq!(asked, Err(PlanError::Buffer(error)));
    });
}

#[test]
fn a_result_that_shares_memory_is_refused() {
    on_kernel_devices(|client, device| {
        let (input, output) = (client.empty(INPUT as usize), client.empty(OUTPUT as usize));
        let overlap =
            |output, other| Err(PlanError::Buffer(BufferError::Overlap { output, other }));
        let asked = max(client, device, [&input, &input], None);
        assert_eq!(asked, overlap("the output", "the input"));
        let asked = max(client, device, [&input, &output], Some(&output));
        assert_eq!(asked, overlap("the output", "the indices"));
        let asked = max(client, device, [&input, &output], Some(&input));
        assert_eq!(asked, overlap("the indices", "the input"));
    });
}

#[test]
fn buffers_of_gradients_are_checked_too() {
    on_kernel_devices(|client, device| {
        let (pooling, reduction) = (pooling(), Reduction::Average(Divisor::Valid));
        let problem = Problem::new(&pooling, reduction, DType::F32).backward();
        let plan = Plan::new(problem, device).unwrap();
        let (dy, dx) = (client.empty(OUTPUT as usize), client.empty(INPUT as usize));
        let run = |read, written, indices| {
            let tensors = Tensors { indices, ..Tensors::new(read, written) };
            launch(Target { client, device }, problem, &plan, tensors)
        };
        assert_eq!(run(&dy, &dx, None), Ok(()));
        let (needed, found) = (OUTPUT, OUTPUT - 4);
        let error = BufferError::TooSmall { name: "the output's gradient", needed, found };
        let short = dy.clone().offset_end(4);
        assert_eq!(run(&short, &dx, None), Err(PlanError::Buffer(error)));
        let (output, other) = ("the input's gradient", "the output's gradient");
        let error = BufferError::Overlap { output, other };
        assert_eq!(run(&dx, &dx, None), Err(PlanError::Buffer(error)));
        assert_eq!(run(&dy, &dx, Some(&dy)), Err(PlanError::Indices { needed: false }));
        let tensors = Tensors { pooled: Some(&dy), ..Tensors::new(&dy, &dx) };
        let asked = launch(Target { client, device }, problem, &plan, tensors);
        assert_eq!(asked, Err(PlanError::Pooled { needed: false }));
        // Without the winners an extremum has no gradient.
        let values = Problem::new(&pooling, Reduction::max(Output::Values), DType::F32).backward();
        let plan = Plan::new(values, device).unwrap();
        let asked = launch(Target { client, device }, values, &plan, Tensors::new(&dy, &dx));
        assert_eq!(asked, Err(PlanError::Indices { needed: true }));
    });
}

/// A gradient kernel cannot run a forward pass: the launch is an error, and does not return an output that no kernel
/// has written.
#[test]
fn a_plan_of_another_kind_is_refused_and_not_skipped() {
    on_kernel_devices(|client, device| {
        let shape = Shape::new(2, 64, Extents::from([4, 8, 8])).unwrap();
        let window = Window::new([3; 3]).stride([2; 3]).padding([1; 3]);
        let pooling = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
        let reduction = Reduction::max(Output::ValuesAndIndices(IndexBase::Plane));
        let algorithm = windowpane::kernels::pool::Algorithm::GatherStaged;
        let forward = Problem::new(&pooling, reduction, DType::F32);
        let plan = Plan::with(algorithm, forward.backward(), device);
        let Ok(plan) = plan else { return };
        let bytes = |elements: usize| client.empty(elements * 4);
        let [input, output] = [pooling.input(), pooling.output()].map(|s| bytes(s.elements()));
        let indices = bytes(pooling.output().elements());
        let target = Target { client, device };
        let tensors = Tensors { indices: Some(&indices), ..Tensors::new(&input, &output) };
        let asked = launch(target, forward, &plan, tensors);
        assert!(matches!(asked, Err(PlanError::NotApplicable { .. })), "{asked:?}");
    });
}

/// A caller can change the settings of a plan; the launch refuses those that no kernel can run.
#[test]
fn settings_that_cannot_run_are_refused_by_the_launch() {
    on_kernel_devices(|client, device| {
        let (pooling, reduction) = (pooling(), Reduction::max(Output::Values));
        let problem = Problem::new(&pooling, reduction, DType::F32);
        let mut plan = Plan::new(problem, device).unwrap();
        let settings: &mut Settings = &mut plan.settings;
        settings.lanes = 3;
        let (input, output) = (client.empty(INPUT as usize), client.empty(OUTPUT as usize));
        let target = Target { client, device };
        let asked = launch(target, problem, &plan, Tensors::new(&input, &output));
        assert!(matches!(asked, Err(PlanError::Lanes { lanes: 3, .. })), "{asked:?}");
    });
}

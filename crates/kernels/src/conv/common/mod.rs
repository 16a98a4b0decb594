//! The parts that several kernels share: launch arguments, the index arithmetic that finds operands in memory,
//! the epilogue, the checks of a configuration, and what estimates of the time have in common.

mod arguments;
mod buffer;
pub(super) mod cost;
mod epilogue;
pub(super) mod gather;
mod kernel;
mod literal;
mod pack;
pub(super) mod rules;
mod run;
pub(super) mod split_k;
mod tensor;

pub(super) use {
    arguments::Arguments,
    buffer::buffer,
    epilogue::{Epilogue, EpilogueArgs, EpilogueForm, finish, finish_at, finish_with, optional},
    gather::{
        Gather, GatherArgs, GatherArgsLaunch, Phase, Phases, PhasesArgs, Point, Position, Read,
        Sweep, WeightSteps, columns, further, has_result, inner, load_if, moved, only_phase, phase,
        phases, reach, read, read_at, reads_inside, result, row_point, row_position, row_result,
        tap_point, term_point, weight_steps, with_offset,
    },
    kernel::Kernel,
    literal::{Problem, data_sum, problem_args, tap_offset},
    pack::Packing,
    rules::{
        MOST_BLOCK, MOST_CUBES, MOST_PHASES, MOST_ROWS, MOST_TOGETHER, check_block, check_divisor,
        check_lanes, check_neighbours, check_number, check_registers, check_shared, check_stages,
        check_sums, check_units, has_few_phases, has_few_taps, independent_units, register_tile,
        registers, widest_factor_load, widest_load, widest_register, widest_vector,
    },
    run::{Run, RunArgs, RunArgsLaunch, pixel_at, pixels_of},
    tensor::{Coordinates, Order, TensorArgs, offset, place, row, tensor_args},
};

//! The implicit product of matrices on matrix units: blocks in shared memory, multiplied in
//! fragments by whole planes.
//!
//! ```text
//! for each block of BLOCK_M rows by BLOCK_N columns:           one cube
//!     for each BLOCK_K terms:
//!         all units bring a[rows, terms] and b[terms, columns] to shared memory
//!         for each fragment's terms:                          one plane, RATIO_M by RATIO_N fragments
//!             fragments += a[its rows, terms] · b[terms, its columns]
//! ```
//!
//! The same product as that of [`simt`](super::simt), in every pass. What comes from memory along the terms
//! stays so in shared memory, and what comes along the lines too: matrix units take either, and each
//! line ends in a gap, so that neighbours in a fragment do not meet in one bank.
//!
//! Where the code departs from this, with 2 stages: blocks are on their way for two steps. In the midst
//! of a step, between the products of its first and its second half, what came in the step before is
//! stored beside the block that is multiplied, and the loads of the block after that begin; one barrier a
//! step does. No branch stands around them: a branch parts what a compiler may run side by side, and what
//! it keeps together it interleaves with the products. At the end a plane stores its fragments to shared
//! memory, a strip of neighbours after another, where its units pick up four columns each.
//!
//! How large a block is decides how fast it is multiplied. A fragment is two products of matrix units,
//! and for each a plane of 4 by 2 fragments reads 3/4 of a fragment from shared memory, of 4 by 4 half of
//! one. A block of 128 by 256, by 64 terms of 16 bits, is 128 KiB read a step, 48 stored and 48 loaded:
//! 1800 cycles of the pipe that all of it goes through, 128 bytes each, where an H200's matrix units, by
//! their counters, are busy for 1540. It runs at 370 TFLOP/s there, and 128 by 128 by 32 terms, of 4 by 2
//! fragments, at 235 (2026-11-21, `bench --algorithm matrix`, `big_3x3_1024_32` in bf16).
//!
//! Factors are 16 bits wide, or `f32` rounded to the 11 digits of tf32 on the way to shared memory, and
//! sums `f32`.

use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;
use windowpane_geometry::{Convolution, Precision, Tile};

use crate::conv::common::arguments::Arguments;
use crate::conv::common::buffer::buffer;
use crate::conv::common::kernel::Kernel;
use crate::conv::error::PlanError;
use crate::conv::implicit_gemm::blocks::{Product, launches};
use crate::conv::implicit_gemm::rules::check_cubes;
use crate::conv::implicit_gemm::split_k;
use crate::conv::problem::{Pass, Request, fragment, operands, results};
use crate::cube::convert::{accumulator, elem};
use crate::device::Capabilities;

pub(in crate::conv) mod config;
mod form;
mod kernel;

pub use config::Config;
use form::{Form, gap, strip};

impl Kernel for Config {
    fn tile(&self) -> Option<Tile> {
        Some(self.tile)
    }

    fn check(
        &self,
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        if fragment(request, device).is_some_and(|own| own != (self.fragment, self.plane)) {
            return Err(PlanError::Foreign);
        }
        config::check(&self.tile, request, device)?;
        check_cubes(&self.tile, conv, request.pass, device)
    }

    fn units(&self, _: &Convolution, _: Request, _: &Capabilities) -> u32 {
        form::units(&self.tile, self.fragment, self.plane)
    }

    fn fixes_units(&self) -> bool {
        true
    }

    fn splits(&self, conv: &Convolution, request: Request, _: &Capabilities) -> usize {
        split_k::splits(conv, request.pass, &self.tile)
    }

    fn most_splits(&self, conv: &Convolution, pass: Pass) -> usize {
        split_k::most(conv, pass)
    }

    fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError> {
        launch(arguments, *self);
        Ok(())
    }
}

/// Launches a pass, by fragments that the units of a plane multiply together.
fn launch(arguments: &Arguments<'_>, Config { tile, fragment, plane }: Config) {
    let Arguments { client, conv, splits, stored, epilogue, .. } = *arguments;
    let Request { pass, dtype, precision } = arguments.request;
    let ([a, b], out) = (arguments.operands, arguments.out);
    let load = tile.elems_per_thread;
    let form = Form {
        tile,
        fragment,
        plane,
        product: Product::new(conv, pass, &tile, [load, load], epilogue.form(stored)),
        tf32: precision == Precision::Tf32,
        gap: gap(dtype.size()),
        strip: strip(&tile, fragment, plane, dtype, arguments.device.shared_bytes),
    };
    let factor = match precision {
        Precision::Tf32 => ElemType::Float(FloatKind::TF32),
        Precision::Strict => elem(dtype),
    };
    let (results, [a_len, b_len]) = (results(conv, pass), operands(conv, pass));
    let [a_lanes, b_lanes] = [form.product.a, form.product.b].map(|side| side.lanes as usize);
    let out_lanes = form.product.stored_lanes();
    for launch in launches(conv, pass, splits, &tile, epilogue.slope()) {
        // SAFETY: lines and columns past the last are clamped for loads and stored nowhere, terms
        // past the last too, and reads outside are moved inside.
        unsafe {
            kernel::mma::launch_unchecked(
                client,
                launch.cubes,
                CubeDim::new_1d(form.units()),
                a_lanes,
                b_lanes,
                out_lanes,
                buffer(a, a_len / a_lanes),
                buffer(b, b_len / b_lanes),
                epilogue.bias(conv.filter().count(), out_lanes),
                epilogue.residual(results, out_lanes),
                buffer(out, results * splits / out_lanes),
                launch.gather,
                launch.block,
                form,
                elem(dtype),
                factor,
                elem(accumulator(dtype)),
                elem(stored),
            )
        }
    }
}

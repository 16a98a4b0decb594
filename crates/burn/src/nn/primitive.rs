//! Burn's tensors as those of its CubeCL backend, and back.

use core::marker::PhantomData;

use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, NoCheckpointing};
use burn::backend::{
    Autodiff, AutodiffBackend, Backend, BackendTensor, DispatchAutodiffContext,
    DispatchKindConversion, DispatchTensor, GradientCheckpointingStrategy,
};
use burn::tensor::{Int, IntDType, Tensor};
use burn_backend::tensor::FloatTensor;
use burn_cubecl::Cube;

use super::queue::Queued;
use super::refuse;

/// A tensor of floats that Burn differentiates.
pub(super) type Tracked = FloatTensor<Autodiff<Cube>>;

/// Which activations Burn keeps for the gradients of a tensor.
pub(super) type Strategy = GradientCheckpointingStrategy;

/// A tensor of floats on a CubeCL device.
pub(super) enum Floats {
    /// On a device without gradients.
    Plain(Queued),
    /// On a device with gradients.
    Tracked(Tracked, Strategy),
}

/// Burn's backend with gradients that computes cheap activations again.
type Balanced = Autodiff<Cube, BalancedCheckpointing>;
/// Burn's backend with gradients that keeps all activations.
type Complete = Autodiff<Cube, NoCheckpointing>;

impl Floats {
    /// It panics if the tensor is on another device.
    pub(super) fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        let tensor = tensor.into_dispatch();
        let floats = match tensor.autodiff {
            DispatchAutodiffContext::Disabled => {
                backed::<Cube>().open(tensor).map(|it| Self::Plain(it.float()))
            }
            DispatchAutodiffContext::Enabled(strategy) => match strategy {
                Strategy::Balanced => backed::<Balanced>().open(tensor).map(|it| it.float()),
                Strategy::Disabled => backed::<Complete>().open(tensor).map(|it| it.float()),
            }
            .map(|it| Self::Tracked(it, strategy)),
        };
        floats.unwrap_or_else(|reason| refuse(reason))
    }

    pub(super) fn into_tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_dispatch(match self {
            Self::Plain(plain) => backed::<Cube>().close(BackendTensor::Float(plain)),
            Self::Tracked(tracked, Strategy::Balanced) => {
                backed::<Balanced>().close(BackendTensor::Float(tracked))
            }
            Self::Tracked(tracked, Strategy::Disabled) => {
                backed::<Complete>().close(BackendTensor::Float(tracked))
            }
        })
    }

    /// A tensor that no gradient reaches, on a device with gradients.
    pub(super) fn detached(plain: Queued, strategy: Strategy) -> Self {
        Self::Tracked(<Autodiff<Cube> as AutodiffBackend>::from_inner(plain), strategy)
    }

    /// The device's setting for gradients, which its integers carry too.
    pub(super) fn context(&self) -> DispatchAutodiffContext {
        match self {
            Self::Plain(_) => DispatchAutodiffContext::Disabled,
            Self::Tracked(_, strategy) => DispatchAutodiffContext::Enabled(*strategy),
        }
    }
}

/// Indices of the type `i32`, which windowpane has; those of another type are converted.
///
/// It panics if they are on another device.
pub(super) fn integers_of<const D: usize>(tensor: Tensor<D, Int>) -> Queued {
    let tensor = tensor.cast(IntDType::I32).into_dispatch();
    // Integers have no gradient: their memory is the same in both contexts.
    let plain = DispatchTensor { autodiff: DispatchAutodiffContext::Disabled, ..tensor };
    let opened = backed::<Cube>().open(plain);
    opened.map(|it| it.int()).unwrap_or_else(|reason| refuse(reason))
}

pub(super) fn into_integers<const D: usize>(
    integers: Queued,
    context: DispatchAutodiffContext,
) -> Tensor<D, Int> {
    let tensor = backed::<Cube>().close(BackendTensor::Int(integers));
    Tensor::from_dispatch(DispatchTensor { autodiff: context, ..tensor })
}

/// The conversions of a backend, if this program's Burn has it.
///
/// Burn has its CubeCL backend only if the program turned on one of the runtimes, and this crate must compile also
/// without. So both traits below have the same methods, and the compiler takes those of `Present` if they apply:
/// methods of `Backed` come before those of `&Backed`.
struct Backed<B>(PhantomData<B>);

fn backed<B>() -> Backed<B> {
    Backed(PhantomData)
}

trait Present<B: Backend> {
    fn open(self, tensor: DispatchTensor) -> Result<BackendTensor<B>, String>;
    fn close(self, tensor: BackendTensor<B>) -> DispatchTensor;
}

impl<B: Backend> Present<B> for Backed<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn open(self, tensor: DispatchTensor) -> Result<BackendTensor<B>, String> {
        <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor)
    }

    fn close(self, tensor: BackendTensor<B>) -> DispatchTensor {
        DispatchTensor::from_backend(tensor)
    }
}

#[allow(dead_code, reason = "only called if Burn has no CubeCL runtime")]
trait Absent<B: Backend> {
    fn open(self, tensor: DispatchTensor) -> Result<BackendTensor<B>, String>;
    fn close(self, tensor: BackendTensor<B>) -> DispatchTensor;
}

impl<B: Backend> Absent<B> for &Backed<B> {
    fn open(self, _: DispatchTensor) -> Result<BackendTensor<B>, String> {
        Err("Burn was compiled without a CubeCL runtime; turn on one of its features, such as `wgpu`"
            .into())
    }

    fn close(self, _: BackendTensor<B>) -> DispatchTensor {
        unreachable!("no tensor of a backend that Burn lacks was opened")
    }
}

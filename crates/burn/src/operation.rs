//! Reads Burn's operations: the operators that windowpane replaces, in windowpane's words.

use burn_ir::{ModuleOperationIr, OperationIr, TensorIr};
use windowpane::{Divisor, Extents, Padding, Rounding, Window};

/// An operation of Burn that windowpane may compute.
pub(crate) struct Operation<'a> {
    /// Burn's name of the operator.
    pub(crate) name: &'static str,
    pub(crate) operator: Operator<'a>,
}

/// The operators, each with its tensors in Burn's representation.
pub(crate) enum Operator<'a> {
    Conv {
        options: ConvOptions,
        x: &'a TensorIr,
        weight: &'a TensorIr,
        bias: Option<&'a TensorIr>,
        out: &'a TensorIr,
    },
    ConvData {
        options: ConvOptions,
        grad: &'a TensorIr,
        weight: &'a TensorIr,
        out: &'a TensorIr,
    },
    ConvTranspose {
        options: ConvOptions,
        x: &'a TensorIr,
        weight: &'a TensorIr,
        bias: Option<&'a TensorIr>,
        out: &'a TensorIr,
    },
    ConvWeight {
        options: ConvOptions,
        grad: &'a TensorIr,
        x: &'a TensorIr,
        out: &'a TensorIr,
    },
    ConvBias {
        grad: &'a TensorIr,
        out: &'a TensorIr,
    },
    MaxPool {
        window: Window,
        x: &'a TensorIr,
        out: &'a TensorIr,
        indices: Option<&'a TensorIr>,
    },
    MaxPoolBackward {
        window: Window,
        grad: &'a TensorIr,
        indices: &'a TensorIr,
        out: &'a TensorIr,
    },
    AvgPool {
        windows: Windows,
        x: &'a TensorIr,
        out: &'a TensorIr,
    },
    AvgPoolBackward {
        windows: Windows,
        grad: &'a TensorIr,
        out: &'a TensorIr,
    },
}

/// The options of a convolution; its kernel size is that of the filters.
pub(crate) struct ConvOptions {
    pub(crate) stride: Extents,
    pub(crate) padding: Padding,
    pub(crate) dilation: Extents,
    pub(crate) groups: usize,
}

/// The windows of an average.
pub(crate) enum Windows {
    Given(Window, Divisor),
    /// As many as the output has elements.
    Adaptive,
}

/// A number per axis; Burn gives a plain number where there is one axis.
trait PerAxis {
    fn extents(self) -> Extents;
}

impl PerAxis for usize {
    fn extents(self) -> Extents {
        [self].into()
    }
}

impl<const N: usize> PerAxis for [usize; N]
where
    Extents: From<[usize; N]>,
{
    fn extents(self) -> Extents {
        self.into()
    }
}

/// The window of a pooling.
macro_rules! window {
    ($pool:expr) => {
        Window::new($pool.kernel_size.extents())
            .stride($pool.stride.extents())
            .padding($pool.padding.extents())
            .dilation($pool.dilation.extents())
            .rounding(if $pool.ceil_mode { Rounding::Ceil } else { Rounding::Floor })
    };
}

/// The windows of an average with its divisor.
macro_rules! averaged {
    ($pool:expr) => {
        Windows::Given(
            window!($pool),
            if $pool.count_include_pad { Divisor::Padded } else { Divisor::Valid },
        )
    };
}

macro_rules! options {
    ($options:expr) => {
        ConvOptions {
            stride: $options.stride.into(),
            padding: $options.padding.into(),
            dilation: $options.dilation.into(),
            groups: $options.groups,
        }
    };
}

/// The operation, if windowpane has its operator. Shapes and sizes are not looked at: before an operation runs, Burn
/// gives placeholders for them.
pub(crate) fn read(operation: &OperationIr) -> Option<Operation<'_>> {
    use ModuleOperationIr as Ir;
    let OperationIr::Module(operation) = operation else { return None };

    macro_rules! conv {
        ($name:literal, $d:ident) => {
            (
                $name,
                Operator::Conv {
                    options: options!($d.options),
                    x: &$d.x,
                    weight: &$d.weight,
                    bias: $d.bias.as_ref(),
                    out: &$d.out,
                },
            )
        };
    }
    macro_rules! conv_data {
        ($name:literal, $d:ident) => {
            (
                $name,
                Operator::ConvData {
                    options: options!($d.options),
                    grad: &$d.output_grad,
                    weight: &$d.weight,
                    out: &$d.out,
                },
            )
        };
    }
    macro_rules! conv_weight {
        ($name:literal, $d:ident) => {
            (
                $name,
                Operator::ConvWeight {
                    options: options!($d.options),
                    grad: &$d.output_grad,
                    x: &$d.x,
                    out: &$d.out,
                },
            )
        };
    }
    macro_rules! conv_transpose {
        ($name:literal, $d:ident) => {
            (
                $name,
                // The output's shape has the output padding.
                Operator::ConvTranspose {
                    options: options!($d.options),
                    x: &$d.x,
                    weight: &$d.weight,
                    bias: $d.bias.as_ref(),
                    out: &$d.out,
                },
            )
        };
    }
    macro_rules! conv_bias {
        ($name:literal, $d:ident) => {
            ($name, Operator::ConvBias { grad: &$d.output_grad, out: &$d.out })
        };
    }
    macro_rules! max {
        ($name:literal, $d:ident, $indices:expr) => {
            (
                $name,
                Operator::MaxPool {
                    window: window!($d),
                    x: &$d.x,
                    out: &$d.out,
                    indices: $indices,
                },
            )
        };
    }
    macro_rules! max_backward {
        ($name:literal, $d:ident) => {
            (
                $name,
                Operator::MaxPoolBackward {
                    window: window!($d),
                    grad: &$d.grad,
                    indices: &$d.indices,
                    out: &$d.out,
                },
            )
        };
    }
    macro_rules! average {
        ($name:literal, $d:ident, $windows:expr) => {
            ($name, Operator::AvgPool { windows: $windows, x: &$d.x, out: &$d.out })
        };
    }
    macro_rules! average_backward {
        ($name:literal, $d:ident, $windows:expr) => {
            ($name, Operator::AvgPoolBackward { windows: $windows, grad: &$d.grad, out: &$d.out })
        };
    }

    let (name, operator) = match operation {
        Ir::Conv1d(d) => conv!("conv1d", d),
        Ir::Conv2d(d) => conv!("conv2d", d),
        Ir::Conv3d(d) => conv!("conv3d", d),
        Ir::Conv1dXBackward(d) => conv_data!("conv1d_x_backward", d),
        Ir::Conv2dXBackward(d) => conv_data!("conv2d_x_backward", d),
        Ir::Conv3dXBackward(d) => conv_data!("conv3d_x_backward", d),
        Ir::Conv1dWeightBackward(d) => conv_weight!("conv1d_weight_backward", d),
        Ir::Conv2dWeightBackward(d) => conv_weight!("conv2d_weight_backward", d),
        Ir::Conv3dWeightBackward(d) => conv_weight!("conv3d_weight_backward", d),
        Ir::Conv1dBiasBackward(d) => conv_bias!("conv1d_bias_backward", d),
        Ir::Conv2dBiasBackward(d) => conv_bias!("conv2d_bias_backward", d),
        Ir::Conv3dBiasBackward(d) => conv_bias!("conv3d_bias_backward", d),
        Ir::ConvTranspose1d(d) => conv_transpose!("conv_transpose1d", d),
        Ir::ConvTranspose2d(d) => conv_transpose!("conv_transpose2d", d),
        Ir::ConvTranspose3d(d) => conv_transpose!("conv_transpose3d", d),
        Ir::MaxPool1d(d) => max!("max_pool1d", d, None),
        Ir::MaxPool2d(d) => max!("max_pool2d", d, None),
        Ir::MaxPool3d(d) => max!("max_pool3d", d, None),
        Ir::MaxPool1dWithIndices(d) => max!("max_pool1d_with_indices", d, Some(&d.out_indices)),
        Ir::MaxPool2dWithIndices(d) => max!("max_pool2d_with_indices", d, Some(&d.out_indices)),
        Ir::MaxPool3dWithIndices(d) => max!("max_pool3d_with_indices", d, Some(&d.out_indices)),
        Ir::MaxPool1dWithIndicesBackward(d) => max_backward!("max_pool1d_with_indices_backward", d),
        Ir::MaxPool2dWithIndicesBackward(d) => max_backward!("max_pool2d_with_indices_backward", d),
        Ir::MaxPool3dWithIndicesBackward(d) => max_backward!("max_pool3d_with_indices_backward", d),
        Ir::AvgPool1d(d) => average!("avg_pool1d", d, averaged!(d)),
        Ir::AvgPool2d(d) => average!("avg_pool2d", d, averaged!(d)),
        Ir::AvgPool3d(d) => average!("avg_pool3d", d, averaged!(d)),
        Ir::AvgPool1dBackward(d) => average_backward!("avg_pool1d_backward", d, averaged!(d)),
        Ir::AvgPool2dBackward(d) => average_backward!("avg_pool2d_backward", d, averaged!(d)),
        Ir::AvgPool3dBackward(d) => average_backward!("avg_pool3d_backward", d, averaged!(d)),
        Ir::AdaptiveAvgPool1d(d) => average!("adaptive_avg_pool1d", d, Windows::Adaptive),
        Ir::AdaptiveAvgPool2d(d) => average!("adaptive_avg_pool2d", d, Windows::Adaptive),
        Ir::AdaptiveAvgPool3d(d) => average!("adaptive_avg_pool3d", d, Windows::Adaptive),
        Ir::AdaptiveAvgPool1dBackward(d) => {
            average_backward!("adaptive_avg_pool1d_backward", d, Windows::Adaptive)
        }
        Ir::AdaptiveAvgPool2dBackward(d) => {
            average_backward!("adaptive_avg_pool2d_backward", d, Windows::Adaptive)
        }
        Ir::AdaptiveAvgPool3dBackward(d) => {
            average_backward!("adaptive_avg_pool3d_backward", d, Windows::Adaptive)
        }
        _ => return None,
    };
    Some(Operation { name, operator })
}

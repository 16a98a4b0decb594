//! The parts that the estimates of several kernels have in common.

use windowpane_geometry::Convolution;

use crate::conv::problem::{Pass, Request, operands, results, windows};
use crate::device::Capabilities;

/// The bandwidth of a plain copy relative to that of a kernel that does little else than move its tensors.
const COPIES: f64 = 1.2;

/// The cycles before the first and after the last product of a launch.
pub(crate) const START: f64 = 1000.0;

/// The number of elements of the two operands that a pass reads. Windows with large strides skip pixels.
pub(crate) fn read(conv: &Convolution, pass: Pass) -> [usize; 2] {
    let [first, second] = operands(conv, pass);
    let taken = windows(conv) * conv.filter().taps() * conv.input().channels();
    [if pass == Pass::Data { first } else { first.min(taken) }, second]
}

/// The bytes of the tensors that a pass reads and writes.
pub(crate) fn bytes(conv: &Convolution, Request { pass, dtype, .. }: Request) -> f64 {
    let [first, second] = read(conv, pass);
    ((first + second + results(conv, pass)) * dtype.size()) as f64
}

/// The seconds in which a kernel moves this many bytes, if nothing else takes longer.
pub(crate) fn moving(bytes: f64, device: &Capabilities) -> f64 {
    COPIES * device.copy_seconds(bytes)
}

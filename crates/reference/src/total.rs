use crate::Scalar;

/// An unrounded sum in `f64`, with the data for a bound on a kernel's error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Total {
    /// The sum.
    pub value: f64,
    /// The sum of the terms' magnitudes, `Σ|term|`.
    pub magnitude: f64,
    /// The number of terms, `n`.
    pub terms: usize,
}

impl Total {
    /// The sum of sums that are each rounded before they are added: to a type of unit roundoff `output` whose smallest
    /// positive number is `smallest`, and added in one of unit roundoff `accumulator`. SEMANTICS 6.7 and 6.8.
    pub fn of_rounded(
        sums: impl IntoIterator<Item = Self>,
        output: f64,
        smallest: f64,
        accumulator: f64,
    ) -> Self {
        let (mut all, mut roundings, mut longest) = (Self::default(), 0.0, 0);
        for sum in sums {
            all.value += sum.value;
            all.magnitude += sum.magnitude;
            all.terms += 1;
            longest = longest.max(sum.terms);
            roundings += output * sum.value.abs() + smallest / 2.0;
        }
        all.terms += longest;
        // Expressed as a larger magnitude of the terms; what is rounded is then added too.
        all.magnitude += 2.0 * roundings / accumulator / all.terms.max(1) as f64;
        all
    }

    /// The largest error of a result that was accumulated in a type of unit roundoff `accumulator` and
    /// rounded to one of `output`: `u_out·|value| + n·u_acc·Σ|term|`.
    ///
    /// Underflow is not included: for a subnormal result, the caller adds half of the smallest subnormal.
    pub fn bound(&self, output: f64, accumulator: f64) -> f64 {
        output * self.value.abs() + self.terms as f64 * accumulator * self.magnitude
    }
}

/// An accumulator: an `f64`, or a [`Total`] if the bound is needed too.
pub(crate) trait Accumulator: Copy + Default + Send + Sync {
    fn add(&mut self, term: f64);
    fn divided(self, by: f64) -> Self;
}

impl Accumulator for f64 {
    #[inline]
    fn add(&mut self, term: f64) {
        *self += term;
    }

    #[inline]
    fn divided(self, by: f64) -> Self {
        self / by
    }
}

impl Accumulator for Total {
    fn add(&mut self, term: f64) {
        self.value += term;
        self.magnitude += term.abs();
        self.terms += 1;
    }

    fn divided(self, by: f64) -> Self {
        Self { value: self.value / by, magnitude: self.magnitude / by, ..self }
    }
}

/// A sum of elements: an `f64` or a [`Total`], or an `i128`, which is exact for integers.
pub(crate) trait Sum: Copy + Default + Send + Sync {
    /// The sum of one element.
    fn of<T: Scalar>(element: T) -> Self;

    fn add_element<T: Scalar>(&mut self, element: T);
}

impl Sum for f64 {
    #[inline]
    fn of<T: Scalar>(element: T) -> Self {
        element.to_f64()
    }

    #[inline]
    fn add_element<T: Scalar>(&mut self, element: T) {
        *self += element.to_f64();
    }
}

impl Sum for Total {
    fn of<T: Scalar>(element: T) -> Self {
        let mut sum = Self::default();
        sum.add_element(element);
        sum
    }

    fn add_element<T: Scalar>(&mut self, element: T) {
        self.add(element.to_f64());
    }
}

impl Sum for i128 {
    #[inline]
    fn of<T: Scalar>(element: T) -> Self {
        element.to_integer().unwrap_or_default()
    }

    #[inline]
    fn add_element<T: Scalar>(&mut self, element: T) {
        *self += Self::of(element);
    }
}

/// A [`Total`] of quotients in doubled precision, rounded once at the end, because it is also compared with
/// results in `f64`, which have few roundings.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shares {
    sum: Total,
    /// The part of the sum that its own digits cannot hold.
    rest: f64,
}

impl Shares {
    /// Adds a quotient.
    pub(crate) fn add(&mut self, of: f64, by: f64) {
        let (before, share) = (self.sum.value, of / by);
        self.sum.add(share);
        let added = self.sum.value - before;
        self.rest += (before - (self.sum.value - added)) + (share - added);
        self.rest += (-share).mul_add(by, of) / by;
    }

    pub(crate) fn total(self) -> Total {
        let value = self.sum.value;
        // A sum that is not finite has no remainder.
        let value = if value.is_finite() { value + self.rest } else { value };
        Total { value, ..self.sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound of a sum of rounded sums has room for each of their roundings, and for not much more.
    #[test]
    fn rounded_sums_have_the_error_of_each_rounding() {
        let (half, single) = (1.0 / 2048.0, f64::EPSILON * f64::from(1u32 << 28));
        let of = |value: f64| Total { value, magnitude: value.abs(), terms: 1 };
        let all = Total::of_rounded([of(1000.0), of(-999.0)], half, 0.0, single);
        assert_eq!((all.value, all.terms), (1.0, 3));
        let (bound, roundings) = (all.bound(half, single), half * 1999.0);
        assert!(bound > roundings && bound < 2.1 * roundings, "{bound} {roundings}");
        assert_eq!(Total::of_rounded([], half, 1.0, single), Total::default());
    }

    /// Each quotient is rounded, and so is a plain sum of them.
    #[test]
    fn shares_are_rounded_once() {
        let mut shares = Shares::default();
        (0..27).for_each(|_| shares.add(1.0, 27.0));
        let total = shares.total();
        assert_eq!((total.value, total.terms), (1.0, 27));
        let plain: f64 = (0..27).map(|_| 1.0 / 27.0).sum();
        assert_ne!(plain, 1.0);
        shares.add(f64::INFINITY, 27.0);
        assert_eq!(shares.total().value, f64::INFINITY);
    }
}

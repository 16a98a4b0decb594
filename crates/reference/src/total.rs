/// A sum in `f64`, unrounded, with what the bound on a kernel's error is made of.
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
    /// How far a result may be from the sum that was rounded to a type of unit roundoff `output`
    /// and accumulated in one of `accumulator`: `u_out·|value| + n·u_acc·Σ|term|`.
    ///
    /// Underflow is not in it: for a result below the output type's smallest normal number, the
    /// caller adds half of the smallest subnormal.
    pub fn bound(&self, output: f64, accumulator: f64) -> f64 {
        output * self.value.abs() + self.terms as f64 * accumulator * self.magnitude
    }
}

/// What a sum is gathered in: an `f64`, or a [`Total`] where the bound is wanted too.
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

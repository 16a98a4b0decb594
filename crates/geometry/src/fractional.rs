use crate::{AXES, AxisName, Error, Extents, Layout, Pooling, Quantity, Shape, Window, uniform};

/// A fractional max pooling: windows of one size at pseudo-random positions, whose distances on an axis differ by at
/// most one.
///
/// ```text
/// step     = (L − k) / (O − 1)
/// start(i) = ⌊(i + u) · step⌋ − ⌊u · step⌋        the last window starts at L − k
/// ```
///
/// There is a random number `u` from 0 to 1 for each axis of each channel of each sample. Numbers are `f32`, and every
/// operation is rounded once, as in PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fractional {
    /// The shapes, the layout and the indices; its windows are not those of this pooling.
    pooling: Pooling,
    kernel: [usize; AXES],
}

impl Fractional {
    /// Applies windows of this size to an input, so that the output has the given extents, and checks every number.
    pub fn new(
        input: Shape,
        kernel: Extents,
        output: Extents,
        layout: Layout,
    ) -> Result<Self, Error> {
        let space = input.space();
        let (kernel, output) = (kernel.of_rank(space.rank())?, output.of_rank(space.rank())?);
        kernel.check_nonzero(Quantity::Kernel)?;
        let pooling = Pooling::new(input, &Window::adaptive(output), layout)?;
        let (kernel, extents) = (kernel.three(1), space.three(1).into_iter().zip(output.three(1)));
        for (axis, (kernel, (input, output))) in kernel.into_iter().zip(extents).enumerate() {
            if kernel > input || output > input - kernel + 1 {
                let axis = AxisName::of(axis);
                return Err(Error::TooManyWindows { axis, kernel, output, input });
            }
        }
        Ok(Self { pooling, kernel })
    }

    /// The shapes, the layout and the index strides. The windows of this value are those that divide the input evenly.
    pub fn pooling(&self) -> &Pooling {
        &self.pooling
    }

    /// The extents of a window, on three axes.
    pub fn kernel(&self) -> [usize; AXES] {
        self.kernel
    }

    /// The distance between windows on an axis, before rounding.
    pub fn step(&self, axis: usize) -> f32 {
        let (input, output) = self.extents(axis);
        if output == 1 { 0.0 } else { (input - self.kernel[axis]) as f32 / (output - 1) as f32 }
    }

    /// The first coordinates of the window at an output position, with the random numbers of its channel, one for each axis
    /// of the input.
    ///
    /// ```
    /// use windowpane_geometry::{Extents, Fractional, Layout, Shape};
    ///
    /// let line = Shape::new(1, 1, Extents::from([8]))?;
    /// let pooling = Fractional::new(line, Extents::from(2), Extents::from(5), Layout::ChannelsLast)?;
    /// let starts: Vec<usize> = (0..5).map(|i| pooling.starts([0, 0, i], &[0.5])[2]).collect();
    /// assert_eq!(starts, [0, 2, 3, 5, 6]);
    /// # Ok::<(), windowpane_geometry::Error>(())
    /// ```
    pub fn starts(&self, o: [usize; AXES], samples: &[f32]) -> [usize; AXES] {
        // A problem with fewer axes lacks the first ones, on which there is one window.
        let missing = AXES - samples.len();
        core::array::from_fn(|axis| match axis.checked_sub(missing) {
            Some(own) => self.start(axis, o[axis], samples[own]),
            None => 0,
        })
    }

    fn start(&self, axis: usize, i: usize, u: f32) -> usize {
        let (input, output) = self.extents(axis);
        let (step, last) = (self.step(axis), input - self.kernel[axis]);
        // Casts round down.
        let start = ((i as f32 + u) * step) as usize - (u * step) as usize;
        if i + 1 == output { last } else { start.min(last) }
    }

    /// The random numbers for a seed: those of the axes of the first channel of the first sample, then those of the next
    /// channel.
    pub fn samples(&self, seed: u32) -> impl Iterator<Item = f32> {
        (0..self.sample_count()).map(move |position| uniform(seed, position as u32))
    }

    /// The number of random numbers: one for each axis of each channel of each sample.
    pub fn sample_count(&self) -> usize {
        let input = self.pooling.input();
        input.batch() * input.channels() * input.space().rank()
    }

    fn extents(&self, axis: usize) -> (usize, usize) {
        let axis = &self.pooling.grid().axes()[axis];
        (axis.input(), axis.output())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the random number, windows start at 0, end at the end, and are one of two neighbouring integers apart.
    #[test]
    fn windows_cover_the_line() {
        for (input, kernel, output) in
            [(1, 1, 1), (5, 5, 1), (5, 2, 4), (8, 2, 5), (31, 3, 20), (1000, 7, 313)]
        {
            let line = Shape::new(1, 1, Extents::from([input])).unwrap();
            let (k, o) = (Extents::from(kernel), Extents::from(output));
            let pooling = Fractional::new(line, k, o, Layout::ChannelsLast).unwrap();
            for u in pooling.samples(3).chain([0.0, 0.25, 0.999_999_94]) {
                let starts = |i| pooling.starts([0, 0, i], &[u])[2];
                assert_eq!(starts(output - 1), input - kernel);
                if output == 1 {
                    continue;
                }
                assert_eq!(starts(0), 0, "{input} {kernel} {output} {u}");
                let step = (input - kernel) / (output - 1);
                for i in 1..output - 1 {
                    let apart = starts(i) - starts(i - 1);
                    assert!(
                        apart == step || apart == step + 1,
                        "{input} {kernel} {output} {u}: {i}"
                    );
                }
            }
        }
    }

    #[test]
    fn windows_have_a_place_each() {
        let line = Shape::new(2, 3, Extents::from([7, 6])).unwrap();
        let of = |kernel: [usize; 2], output: [usize; 2]| {
            Fractional::new(line, kernel.into(), output.into(), Layout::ChannelsFirst)
        };
        assert_eq!(of([3, 2], [5, 5]).unwrap().sample_count(), 2 * 3 * 2);
        let (axis, kernel, output) = (AxisName::Width, 3, 5);
        assert_eq!(
            of([3, 3], [5, 5]),
            Err(Error::TooManyWindows { axis, kernel, output, input: 6 })
        );
        assert!(of([8, 1], [1, 1]).is_err() && of([0, 1], [1, 1]).is_err());
        assert!(of([1, 1], [usize::MAX, 1]).is_err() && of([usize::MAX, 1], [1, 1]).is_err());
    }
}

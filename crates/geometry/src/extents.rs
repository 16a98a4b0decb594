use core::fmt;

use crate::{AXES, AxisName, Error, Quantity};

/// One number for each axis of a 1-D, 2-D or 3-D problem, depth before height before width.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extents {
    rank: usize,
    /// The numbers, with missing axes in front.
    values: [usize; AXES],
}

impl Extents {
    /// The same number on each of `rank` axes.
    pub(crate) fn filled(rank: usize, value: usize) -> Self {
        let mut values = [value; AXES];
        values[..AXES - rank].fill(0);
        Self { rank, values }
    }

    /// The last `rank` of three numbers.
    pub(crate) fn from_three(rank: usize, three: [usize; AXES]) -> Self {
        let mut values = three;
        values[..AXES - rank].fill(0);
        Self { rank, values }
    }

    /// The number of axes: 1, 2 or 3.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The numbers, one for each axis.
    pub fn as_slice(&self) -> &[usize] {
        &self.values[AXES - self.rank..]
    }

    /// Three numbers, with `missing` for the axes that this problem does not have.
    pub fn three(&self, missing: usize) -> [usize; AXES] {
        let mut three = self.values;
        three[..AXES - self.rank].fill(missing);
        three
    }

    /// Refuses a 0; `what` names the numbers in the error.
    pub(crate) fn check_nonzero(&self, what: Quantity) -> Result<(), Error> {
        match self.three(1).iter().position(|&value| value == 0) {
            Some(i) => Err(Error::Zero { axis: Some(AxisName::of(i)), what }),
            None => Ok(()),
        }
    }
}

impl From<[usize; 1]> for Extents {
    fn from([w]: [usize; 1]) -> Self {
        Self { rank: 1, values: [0, 0, w] }
    }
}

impl From<[usize; 2]> for Extents {
    fn from([h, w]: [usize; 2]) -> Self {
        Self { rank: 2, values: [0, h, w] }
    }
}

impl From<[usize; 3]> for Extents {
    fn from(values: [usize; 3]) -> Self {
        Self { rank: 3, values }
    }
}

impl TryFrom<&[usize]> for Extents {
    type Error = Error;

    fn try_from(slice: &[usize]) -> Result<Self, Error> {
        if slice.is_empty() || slice.len() > AXES {
            return Err(Error::RankUnsupported { found: slice.len() });
        }
        let mut values = [0; AXES];
        values[AXES - slice.len()..].copy_from_slice(slice);
        Ok(Self { rank: slice.len(), values })
    }
}

impl fmt::Debug for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_slice(), f)
    }
}

/// Prints `30×30×30`.
impl fmt::Display for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, value) in self.as_slice().iter().enumerate() {
            if i > 0 {
                f.write_str("×")?;
            }
            write!(f, "{value}")?;
        }
        Ok(())
    }
}

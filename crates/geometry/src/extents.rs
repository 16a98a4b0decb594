use core::fmt;

use crate::{AXES, AxisName, Error, Quantity};

/// One number for each axis of a 1-D, 2-D or 3-D problem, depth before height before width; or one number
/// for every axis, however many the problem has.
///
/// ```
/// use windowpane_geometry::{Extents, Window};
///
/// let window = Window::new(3).stride([2, 1]).padding(1);
/// assert_eq!(window, Window::new(3).stride([2, 1]).padding(Extents::from(1)));
/// assert_eq!(window.over(Extents::from([8, 8]))?.output(), Extents::from([4, 8]));
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extents {
    /// 0 for one number for every axis.
    rank: usize,
    /// The numbers, with missing axes in front.
    values: [usize; AXES],
}

impl Extents {
    /// The numbers of a problem with `rank` axes: these, or the one for every axis on each of them.
    ///
    /// ```
    /// use windowpane_geometry::Extents;
    ///
    /// assert_eq!(Extents::from(3).of_rank(2)?, Extents::from([3, 3]));
    /// assert!(Extents::from([3, 3]).of_rank(3).is_err());
    /// # Ok::<(), windowpane_geometry::Error>(())
    /// ```
    pub fn of_rank(self, rank: usize) -> Result<Self, Error> {
        match self.rank {
            _ if rank == 0 || rank > AXES => Err(Error::RankUnsupported { found: rank }),
            0 => Ok(Self::from_three(rank, self.values)),
            found if found == rank => Ok(self),
            found => Err(Error::Rank { expected: rank, found }),
        }
    }

    /// The last `rank` of three numbers; for rank 0 they are one number for every axis.
    pub(crate) fn from_three(rank: usize, three: [usize; AXES]) -> Self {
        let mut values = three;
        if rank > 0 {
            values[..AXES - rank].fill(0);
        }
        Self { rank, values }
    }

    /// The number of axes: 1, 2 or 3; 0 if it is one number for every axis.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The numbers, one for each axis, or the one for every axis.
    pub fn as_slice(&self) -> &[usize] {
        &self.values[AXES - self.rank.max(1)..]
    }

    /// Three numbers, with `missing` for the axes that this problem does not have.
    pub fn three(&self, missing: usize) -> [usize; AXES] {
        let mut three = self.values;
        if self.rank > 0 {
            three[..AXES - self.rank].fill(missing);
        }
        three
    }

    /// Refuses a 0, and one number for every axis where their number has to be known; `what` names the numbers in
    /// the error.
    pub(crate) fn check_nonzero(&self, what: Quantity) -> Result<(), Error> {
        if self.rank == 0 {
            return Err(Error::RankUnsupported { found: 0 });
        }
        match self.three(1).iter().position(|&value| value == 0) {
            Some(i) => Err(Error::Zero { axis: Some(AxisName::of(i)), what }),
            None => Ok(()),
        }
    }
}

impl From<usize> for Extents {
    fn from(every: usize) -> Self {
        Self { rank: 0, values: [every; AXES] }
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
        match self.rank {
            0 => fmt::Debug::fmt(&self.values[0], f),
            _ => fmt::Debug::fmt(self.as_slice(), f),
        }
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

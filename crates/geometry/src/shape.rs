use core::fmt;

use crate::{AXES, AxisName, Error, Extents, Quantity};

/// The memory layout of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `N[D]HWC`: the channels of a pixel are contiguous.
    #[default]
    ChannelsLast,
    /// `NC[D]HW`: the pixels of a channel are contiguous.
    ChannelsFirst,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ChannelsLast => "channels-last",
            Self::ChannelsFirst => "channels-first",
        })
    }
}

/// The shape of a batch of images, volumes or signals, in any layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    batch: usize,
    channels: usize,
    space: Extents,
}

impl Shape {
    /// A checked shape: channels and extents are at least 1, and the number of elements is not too
    /// large. A batch of 0 is valid.
    pub fn new(batch: usize, channels: usize, space: Extents) -> Result<Self, Error> {
        if channels == 0 {
            return Err(Error::Zero { axis: None, what: Quantity::Channels });
        }
        space.check_nonzero(Quantity::Input)?;
        let shape = Self { batch, channels, space };
        let elements = space
            .as_slice()
            .iter()
            .try_fold(channels, |product, &extent| product.checked_mul(extent))
            .and_then(|sample| sample.checked_mul(batch.max(1)));
        match elements {
            Some(elements) if elements <= isize::MAX as usize => Ok(shape),
            asked => Err(Error::TooLarge {
                axis: AxisName::of_largest(space.three(1), &[batch, channels]),
                what: Quantity::Elements,
                asked,
                limit: isize::MAX as usize,
            }),
        }
    }

    /// The shape of an array with these dimensions, in memory order, in a layout.
    pub fn from_dims(dims: &[usize], layout: Layout) -> Result<Self, Error> {
        let rank = dims.len().saturating_sub(2);
        if rank == 0 || rank > AXES {
            return Err(Error::RankUnsupported { found: rank });
        }
        let (channels, space) = match layout {
            Layout::ChannelsLast => (dims[dims.len() - 1], &dims[1..dims.len() - 1]),
            Layout::ChannelsFirst => (dims[1], &dims[2..]),
        };
        Self::new(dims[0], channels, Extents::try_from(space)?)
    }

    /// The dimensions in memory order, and their number: `dims[..rank + 2]`.
    fn dims_array(&self, layout: Layout) -> ([usize; AXES + 2], usize) {
        let rank = self.space.rank();
        let mut dims = [0; AXES + 2];
        dims[0] = self.batch;
        let (channels_at, space_at) = match layout {
            Layout::ChannelsLast => (rank + 1, 1),
            Layout::ChannelsFirst => (1, 2),
        };
        dims[channels_at] = self.channels;
        dims[space_at..space_at + rank].copy_from_slice(self.space.as_slice());
        (dims, rank + 2)
    }

    /// The dimensions in memory order.
    pub fn dims(&self, layout: Layout) -> impl ExactSizeIterator<Item = usize> + use<> {
        let (dims, len) = self.dims_array(layout);
        dims.into_iter().take(len)
    }

    /// The number of samples, `N`.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The number of channels, `C`.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// The spatial extents.
    pub fn space(&self) -> Extents {
        self.space
    }

    /// The number of elements of one channel of one sample.
    pub fn plane(&self) -> usize {
        self.space.as_slice().iter().product()
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.batch * self.channels * self.plane()
    }

    /// The shape with the same batch and channels and other spatial extents.
    pub fn with_space(&self, space: Extents) -> Result<Self, Error> {
        Self::new(self.batch, self.channels, space)
    }

    /// The strides in memory.
    pub fn strides(&self, layout: Layout) -> Strides {
        let [_, height, width] = self.space.three(1);
        let plane = self.plane();
        let (channel, pixel) = match layout {
            Layout::ChannelsLast => (1, self.channels),
            Layout::ChannelsFirst => (plane, 1),
        };
        Strides {
            batch: plane * self.channels,
            channel,
            space: [height * width * pixel, width * pixel, pixel],
        }
    }
}

/// Strides: the number of elements to the next neighbour along each dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    /// To the next sample.
    pub batch: usize,
    /// To the next channel.
    pub channel: usize,
    /// To the next coordinate in depth, height and width.
    pub space: [usize; AXES],
}

impl Strides {
    /// The offset of element (`n`, `c`, `position`).
    pub fn offset(&self, n: usize, c: usize, position: [usize; AXES]) -> usize {
        let space: usize = position.iter().zip(self.space).map(|(x, stride)| x * stride).sum();
        n * self.batch + c * self.channel + space
    }
}

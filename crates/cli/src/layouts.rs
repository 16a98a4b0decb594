//! How layouts are spelled: `channels-last`, the name of a layout of some rank such as `nhwc`, or a pair of data and
//! filters such as `nhwc_fhwc`. Every command takes all of them.

use windowpane::{FilterLayout, Layout};

use crate::failure::Failure;

/// The layouts that a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layouts {
    /// The number of spatial axes, if the name says it.
    rank: Option<usize>,
    pub(crate) data: Layout,
    pub(crate) filters: FilterLayout,
}

impl Layouts {
    /// Filters have their channels where the data has them.
    fn of(rank: Option<usize>, data: Layout) -> Self {
        let filters = match data {
            Layout::ChannelsLast => FilterLayout::Fhwc,
            Layout::ChannelsFirst => FilterLayout::Fchw,
        };
        Self { rank, data, filters }
    }

    /// Refuses a name of another number of axes.
    pub(crate) fn check(self, rank: usize) -> Result<Self, Failure> {
        match self.rank {
            Some(named) if named != rank => Err(Failure::Arguments(format!(
                "--layout names {named} spatial axes but the arrays have {rank}; choose a layout with {rank}"
            ))),
            _ => Ok(self),
        }
    }
}

/// Parses a name.
pub(crate) fn layouts(text: &str) -> Result<Layouts, String> {
    let (last, first) = (Layout::ChannelsLast, Layout::ChannelsFirst);
    let by_rank = ["w", "hw", "dhw"].into_iter().zip(1..).flat_map(|(axes, rank)| {
        let data = [(format!("n{axes}c"), last), (format!("nc{axes}"), first)];
        let filters = [
            (format!("f{axes}c"), FilterLayout::Fhwc),
            (format!("{axes}cf"), FilterLayout::Hwcf),
            (format!("fc{axes}"), FilterLayout::Fchw),
        ];
        data.into_iter().flat_map(move |(name, data)| {
            let own = Layouts::of(Some(rank), data);
            let pairs = filters
                .clone()
                .map(|(other, filters)| (format!("{name}_{other}"), Layouts { filters, ..own }));
            [(name, own)].into_iter().chain(pairs)
        })
    });
    let any = [("channels-last", last), ("channels-first", first)];
    let any = any.map(|(name, data)| (name.to_owned(), Layouts::of(None, data)));
    let mut known = any.into_iter().chain(by_rank);
    known.find(|(name, _)| name == text).map(|(_, layouts)| layouts).ok_or_else(|| {
        "unknown layout; use channels-last or channels-first, a name such as nhwc or ncdhw, or a pair of data and \
         filters such as nchw_fchw"
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_several_names() {
        let of = |text: &str| layouts(text).map(|found| (found.rank, found.data, found.filters));
        let (last, first) = (Layout::ChannelsLast, Layout::ChannelsFirst);
        assert_eq!(of("nhwc_fhwc"), Ok((Some(2), last, FilterLayout::Fhwc)));
        assert_eq!(of("nhwc_hwcf"), Ok((Some(2), last, FilterLayout::Hwcf)));
        assert_eq!(of("nchw_fchw"), Ok((Some(2), first, FilterLayout::Fchw)));
        assert_eq!(of("nwc_fwc"), Ok((Some(1), last, FilterLayout::Fhwc)));
        assert_eq!(of("ncdhw_dhwcf"), Ok((Some(3), first, FilterLayout::Hwcf)));
        assert_eq!(of("nchw"), Ok((Some(2), first, FilterLayout::Fchw)));
        assert_eq!(of("channels-last"), Ok((None, last, FilterLayout::Fhwc)));
        assert_eq!(of("channels-first"), Ok((None, first, FilterLayout::Fchw)));
        for bad in ["", "nhwcc", "nhwc_fwc", "NHWC", "NHWC_FHWC", "nhwc_fhwc_"] {
            assert!(layouts(bad).unwrap_err().contains("channels-first"), "{bad}");
        }
    }

    #[test]
    fn a_rank_that_is_named_must_be_the_arrays() {
        assert!(layouts("nhwc").unwrap().check(2).is_ok());
        assert!(layouts("nhwc").unwrap().check(3).is_err());
        assert!((1..=3).all(|rank| layouts("channels-first").unwrap().check(rank).is_ok()));
    }
}

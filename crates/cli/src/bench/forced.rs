//! The algorithm and tile that are forced on every case.

use windowpane::{ConvAlgorithm, ConvPlan, PoolAlgorithm, TileOverrides};

use crate::failure::Failure;

/// The requested algorithm and tile sizes, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forced {
    pub(super) algorithm: Option<Named>,
    pub(super) tile: Option<TileOverrides>,
}

/// The meaning of a name: a pooling algorithm, a convolution algorithm, or both, or the kernel of a padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Named {
    pool: Option<PoolAlgorithm>,
    conv: Option<ConvAlgorithm>,
    pad: bool,
}

/// The name of the only kernel of a padding.
pub(super) const PAD: &str = "pad";

/// An algorithm by name, or `None` for the automatic choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Auto(pub(super) Option<Named>);

/// Parses `auto` or the name of an algorithm.
pub(super) fn algorithm(text: &str) -> Result<Auto, String> {
    let named = Named { pool: text.parse().ok(), conv: text.parse().ok(), pad: text == PAD };
    if text == "auto" {
        return Ok(Auto(None));
    }
    if named.pool.is_some() || named.conv.is_some() || named.pad {
        return Ok(Auto(Some(named)));
    }
    let pools = PoolAlgorithm::ALL.iter().map(|algorithm| algorithm.name());
    let convs = ConvAlgorithm::ALL.iter().map(|algorithm| algorithm.name());
    let (pools, convs) = (pools.collect::<Vec<_>>(), convs.collect::<Vec<_>>());
    Err(format!(
        "use auto, for pooling {}, or for convolution {}",
        pools.join(", "),
        convs.join(", ")
    ))
}

impl Forced {
    /// A pooling algorithm.
    pub(super) fn pool(algorithm: PoolAlgorithm) -> Self {
        Self {
            algorithm: Some(Named { pool: Some(algorithm), conv: None, pad: false }),
            tile: None,
        }
    }

    /// A convolution algorithm.
    pub(super) fn conv(algorithm: ConvAlgorithm) -> Self {
        Self {
            algorithm: Some(Named { pool: None, conv: Some(algorithm), pad: false }),
            tile: None,
        }
    }

    /// The choice of a plan.
    pub(super) fn of_plan(plan: &ConvPlan) -> Self {
        Self { tile: plan.tile().map(TileOverrides::from), ..Self::conv(plan.algorithm()) }
    }

    /// Whether nothing is forced.
    pub(super) fn is_free(self) -> bool {
        self.algorithm.is_none() && self.tile.is_none()
    }

    /// Refuses an algorithm of anything but a padding, which has no choice.
    pub(super) fn of_padding(self) -> Result<(), Failure> {
        if self.tile.is_some() {
            return Err(Failure::Failed("a padding has no tile; leave `tile` out".into()));
        }
        match self.algorithm.filter(|named| !named.pad) {
            Some(named) => Err(named.is_not("padding")),
            None => Ok(()),
        }
    }

    /// The forced pooling algorithm.
    pub(super) fn of_pooling(self) -> Result<Option<PoolAlgorithm>, Failure> {
        if self.tile.is_some() {
            return Err(Failure::Failed("a pooling has no tile; leave `tile` out".into()));
        }
        let Some(named) = self.algorithm else { return Ok(None) };
        named.pool.map(Some).ok_or_else(|| named.is_not("pooling"))
    }

    /// The forced convolution algorithm.
    pub(super) fn of_convolution(self) -> Result<Option<ConvAlgorithm>, Failure> {
        let Some(named) = self.algorithm else { return Ok(None) };
        named.conv.map(Some).ok_or_else(|| named.is_not("convolution"))
    }
}

impl Named {
    fn is_not(self, what: &str) -> Failure {
        let pool = self.pool.map(|algorithm| algorithm.name());
        let name = pool.or(self.conv.map(|algorithm| algorithm.name())).unwrap_or(PAD);
        Failure::Failed(format!(
            "there is no {what} algorithm `{name}`; leave such cases out with --filter"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_pooling_or_of_convolution() {
        let of = |name: &str| Forced {
            algorithm: algorithm(name).expect("a name").0,
            ..Forced::default()
        };
        assert_eq!(of("auto").of_pooling().ok(), Some(None));
        assert_eq!(of("direct").of_pooling().ok(), Some(Some(PoolAlgorithm::Direct)));
        assert_eq!(of("direct").of_convolution().ok(), Some(Some(ConvAlgorithm::Direct)));
        assert_eq!(of("tiled").of_convolution().ok(), Some(Some(ConvAlgorithm::Simt)));
        assert!(of("tiled").of_pooling().is_err_and(|error| error.to_string().contains("`simt`")));
        assert!(of("sliding").of_convolution().is_err());
        assert!(of("pad").of_pooling().is_err_and(|error| error.to_string().contains("`pad`")));
        assert!(of("pad").of_padding().is_ok() && of("direct").of_padding().is_err());
        assert!(algorithm("fast").is_err_and(|error| error.contains("rank, or for convolution")));
    }
}

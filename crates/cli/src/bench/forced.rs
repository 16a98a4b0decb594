//! What is forced on every case in place of its plan's own choice.

use windowpane::{Algorithm, ConvAlgorithm, ConvPlan, Tiling};

use crate::failure::Failure;

/// An algorithm and the numbers of a tile, where they are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forced {
    pub(super) algorithm: Option<Named>,
    pub(super) tile: Option<Tiling>,
}

/// What a name stands for: a way to pool, a way to convolve, or both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Named {
    pool: Option<Algorithm>,
    conv: Option<ConvAlgorithm>,
}

/// An algorithm by its name, or the plan's own choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Auto(pub(super) Option<Named>);

/// `auto`, or a name that pooling or convolution has.
pub(super) fn algorithm(text: &str) -> Result<Auto, String> {
    let named = Named { pool: text.parse().ok(), conv: text.parse().ok() };
    if text == "auto" {
        return Ok(Auto(None));
    }
    if named.pool.is_some() || named.conv.is_some() {
        return Ok(Auto(Some(named)));
    }
    let pools = Algorithm::ALL.iter().map(|algorithm| algorithm.name());
    let convs = ConvAlgorithm::ALL.iter().map(|algorithm| algorithm.name());
    let (pools, convs) = (pools.collect::<Vec<_>>(), convs.collect::<Vec<_>>());
    Err(format!("use auto, to pool {}, or to convolve {}", pools.join(", "), convs.join(", ")))
}

impl Forced {
    /// What a plan has chosen.
    pub(super) fn of_plan(plan: &ConvPlan) -> Self {
        let named = Named { pool: None, conv: Some(plan.algorithm()) };
        Self { algorithm: Some(named), tile: plan.tile().map(Tiling::from) }
    }

    /// Whether nothing is.
    pub(super) fn is_free(self) -> bool {
        self.algorithm.is_none() && self.tile.is_none()
    }

    /// The way to pool.
    pub(super) fn of_pooling(self) -> Result<Option<Algorithm>, Failure> {
        if self.tile.is_some() {
            return Err(Failure::Failed("a pooling has no tile; leave --tile out".into()));
        }
        let Some(named) = self.algorithm else { return Ok(None) };
        named.pool.map(Some).ok_or_else(|| named.is_not("pool"))
    }

    /// The way to convolve.
    pub(super) fn of_convolution(self) -> Result<Option<ConvAlgorithm>, Failure> {
        let Some(named) = self.algorithm else { return Ok(None) };
        named.conv.map(Some).ok_or_else(|| named.is_not("convolve"))
    }
}

impl Named {
    fn is_not(self, what: &str) -> Failure {
        let pool = self.pool.map(|algorithm| algorithm.name());
        let name = pool.or(self.conv.map(|algorithm| algorithm.name())).unwrap_or_default();
        Failure::Failed(format!("`{name}` is no way to {what}; filter such cases out"))
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
        assert_eq!(of("direct").of_pooling().ok(), Some(Some(Algorithm::Direct)));
        assert_eq!(of("direct").of_convolution().ok(), Some(Some(ConvAlgorithm::Direct)));
        assert_eq!(of("tiled").of_convolution().ok(), Some(Some(ConvAlgorithm::Tiled)));
        assert!(of("tiled").of_pooling().is_err_and(|error| error.to_string().contains("`tiled`")));
        assert!(of("sliding").of_convolution().is_err());
        assert!(algorithm("fast").is_err_and(|error| error.contains("walk, or to convolve")));
    }
}

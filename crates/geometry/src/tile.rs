use core::fmt;
use core::str::FromStr;

/// The tile sizes of an implicit GEMM.
///
/// A block of threads computes `block_m` windows by `block_n` filters, `block_k` terms at a time. What `ratio_m` by
/// `ratio_n` counts depends on the kernel:
///
/// | kernel | `ratio_m` × `ratio_n` |
/// |---|---|
/// | `simt` | pieces of 4 by 4 sums, per thread |
/// | `mma` | fragments, usually of 16 by 16 sums, per warp |
/// | `wgmma` | blocks of 64 rows per warpgroup; `ratio_n` is 1 |
/// | `cpu`, `grouped` | rows × vectors, per thread |
/// | `depthwise` | rows × lines, per thread |
/// | `grouped_mma` | lines of windows × groups, per warp |
///
/// The block of `cpu`, `grouped` and `depthwise` is what one thread computes; in weight gradients of `depthwise`,
/// `block_n` is that of a block of threads: its channels, times the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Windows per block.
    pub block_m: u32,
    /// Filters per block.
    pub block_n: u32,
    /// Terms loaded at a time.
    pub block_k: u32,
    /// What a thread, warp or warpgroup computes along the windows, in the kernel's unit.
    pub ratio_m: u32,
    /// What a thread, warp or warpgroup computes along the filters, in the kernel's unit.
    pub ratio_n: u32,
    /// The largest number of elements per load.
    pub elems_per_thread: u32,
    /// Pipeline stages: with 2, the next terms load while the current ones are multiplied.
    pub stages: u32,
}

impl Tile {
    /// The names, as printed and as on the command line, and the numbers.
    pub fn fields(&self) -> [(&'static str, u32); 7] {
        [
            ("block_m", self.block_m),
            ("block_n", self.block_n),
            ("block_k", self.block_k),
            ("ratio_m", self.ratio_m),
            ("ratio_n", self.ratio_n),
            ("elems_per_thread", self.elems_per_thread),
            ("stages", self.stages),
        ]
    }
}

/// Prints `block_m=128,block_n=128,…`.
impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.fields().into_iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{name}={value}")?;
        }
        Ok(())
    }
}

/// The numbers of a [`Tile`] to override; the plan chooses the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of a tile")]
pub struct TileOverrides {
    pub block_m: Option<u32>,
    pub block_n: Option<u32>,
    pub block_k: Option<u32>,
    pub ratio_m: Option<u32>,
    pub ratio_n: Option<u32>,
    pub elems_per_thread: Option<u32>,
    pub stages: Option<u32>,
}

impl TileOverrides {
    /// The tile with these numbers overridden.
    pub fn over(&self, tile: Tile) -> Tile {
        Tile {
            block_m: self.block_m.unwrap_or(tile.block_m),
            block_n: self.block_n.unwrap_or(tile.block_n),
            block_k: self.block_k.unwrap_or(tile.block_k),
            ratio_m: self.ratio_m.unwrap_or(tile.ratio_m),
            ratio_n: self.ratio_n.unwrap_or(tile.ratio_n),
            elems_per_thread: self.elems_per_thread.unwrap_or(tile.elems_per_thread),
            stages: self.stages.unwrap_or(tile.stages),
        }
    }

    fn field(&mut self, name: &str) -> Option<&mut Option<u32>> {
        Some(match name {
            "block_m" => &mut self.block_m,
            "block_n" => &mut self.block_n,
            "block_k" => &mut self.block_k,
            "ratio_m" => &mut self.ratio_m,
            "ratio_n" => &mut self.ratio_n,
            "elems_per_thread" => &mut self.elems_per_thread,
            "stages" => &mut self.stages,
            _ => return None,
        })
    }
}

/// Overrides every number.
impl From<Tile> for TileOverrides {
    fn from(tile: Tile) -> Self {
        Self {
            block_m: Some(tile.block_m),
            block_n: Some(tile.block_n),
            block_k: Some(tile.block_k),
            ratio_m: Some(tile.ratio_m),
            ratio_n: Some(tile.ratio_n),
            elems_per_thread: Some(tile.elems_per_thread),
            stages: Some(tile.stages),
        }
    }
}

/// The error for an invalid list of tile sizes: which part, from 1, and what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTile {
    part: usize,
    wrong: Wrong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    NoPair,
    Name,
    Number,
    Again,
}

impl fmt::Display for UnknownTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part {} of the tile ", self.part)?;
        f.write_str(match self.wrong {
            Wrong::NoPair => "has no `=`; write",
            Wrong::Name => "has an unknown name; write",
            Wrong::Number => "needs a whole number from 1 to 4294967295; write",
            Wrong::Again => "repeats a name; write each once, as",
        })?;
        f.write_str(
            " NAME=NUMBER with a name of block_m, block_n, block_k, ratio_m, ratio_n, \
             elems_per_thread and stages",
        )
    }
}

impl core::error::Error for UnknownTile {}

impl FromStr for TileOverrides {
    type Err = UnknownTile;

    fn from_str(text: &str) -> Result<Self, UnknownTile> {
        let mut overrides = Self::default();
        for (part, pair) in (1..).zip(text.split(',')) {
            let refused = |wrong| UnknownTile { part, wrong };
            let (name, number) = pair.split_once('=').ok_or(refused(Wrong::NoPair))?;
            let field = overrides.field(name.trim()).ok_or(refused(Wrong::Name))?;
            let number = number.trim();
            let value = number.parse().ok().filter(|value| *value > 0 && !number.starts_with('+'));
            let value = value.ok_or(refused(Wrong::Number))?;
            if field.replace(value).is_some() {
                return Err(refused(Wrong::Again));
            }
        }
        Ok(overrides)
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::string::ToString;

    use super::*;

    const TILE: Tile = Tile {
        block_m: 128,
        block_n: 64,
        block_k: 16,
        ratio_m: 2,
        ratio_n: 3,
        elems_per_thread: 4,
        stages: 1,
    };

    #[test]
    fn what_is_printed_is_read() {
        assert_eq!(TILE.to_string().parse::<TileOverrides>().unwrap(), TileOverrides::from(TILE));
        let some: TileOverrides = "block_n=32, stages=2".parse().unwrap();
        assert_eq!(some.over(TILE), Tile { block_n: 32, stages: 2, ..TILE });
        for (bad, saying) in [
            ("", "part 1 of the tile has no `=`"),
            ("block_m", "part 1 of the tile has no `=`"),
            ("block_m=", "part 1 of the tile needs a whole number"),
            ("block_m=0", "part 1 of the tile needs a whole number"),
            ("stages=2,block_m=+1", "part 2 of the tile needs a whole number"),
            ("block_m=-1", "part 1 of the tile needs a whole number"),
            ("block_m=4294967296", "part 1 of the tile needs a whole number"),
            ("stages=1,m=1", "part 2 of the tile has an unknown name"),
            ("stages=1,block_m=8,stages=1", "part 3 of the tile repeats a name"),
        ] {
            let error = bad.parse::<TileOverrides>().unwrap_err().to_string();
            assert!(error.contains(saying) && error.contains("elems_per_thread"), "{bad}: {error}");
        }
    }
}

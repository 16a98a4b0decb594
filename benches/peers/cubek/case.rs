//! The cases, as `windowpane bench` reads them.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use windowpane::{DType, Extents, Window};

use crate::{Result, text};

/// A line of the file.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) pass: String,
    pub(crate) dtype: String,
    pub(crate) layout: String,
    pub(crate) precision: Option<String>,
    pub(crate) n: usize,
    pub(crate) c: usize,
    pub(crate) size: Vec<usize>,
    pub(crate) k: Vec<usize>,
    pub(crate) s: Vec<usize>,
    pub(crate) p: Vec<usize>,
    pub(crate) d: Vec<usize>,
    #[serde(default)]
    pub(crate) indices: bool,
    /// Fields of a convolution.
    #[serde(default)]
    pub(crate) cout: usize,
    #[serde(default = "one")]
    pub(crate) groups: usize,
}

fn one() -> usize {
    1
}

/// A path, or a part of one, with the short names of passes.
fn short(path: &str) -> String {
    let parts = path.split('/').map(|part| match part {
        "forward" => "fwd",
        "backward" => "bwd",
        _ => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

impl Case {
    /// The cases of a file whose path contains this text.
    pub(crate) fn read(path: &Path, filter: &str) -> Result<Vec<Self>> {
        let file = path.display();
        let lines = fs::read_to_string(path).map_err(|error| format!("{file}: {error}"))?;
        let mut cases = Vec::new();
        for (i, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let case = serde_json::from_str::<Self>(line);
            let case = case.map_err(|error| format!("{file}, line {}: {error}", i + 1))?;
            cases.push(Self { pass: short(&case.pass), ..case });
        }
        let (all, part) = (cases.len(), short(filter));
        cases.retain(|case| case.path().contains(&part));
        match cases.is_empty() {
            true => Err(format!("{file}: none of the {all} cases has `{filter}` in it")),
            false => Ok(cases),
        }
    }

    pub(crate) fn path(&self) -> String {
        [&*self.name, &self.kind, &self.pass, &self.dtype, &self.layout].join("/")
    }

    pub(crate) fn dtype(&self) -> Result<DType> {
        self.dtype.parse().map_err(text)
    }

    pub(crate) fn window(&self) -> Result<Window> {
        let extents = |numbers: &[usize]| Extents::try_from(numbers).map_err(text);
        Ok(Window::new(extents(&self.k)?)
            .stride(extents(&self.s)?)
            .padding(extents(&self.p)?)
            .dilation(extents(&self.d)?))
    }

    /// The dimensions of the input.
    pub(crate) fn input(&self) -> Vec<usize> {
        self.around(&self.size, self.c)
    }

    /// The dimensions of images with these extents, channels last.
    pub(crate) fn around(&self, space: &[usize], channels: usize) -> Vec<usize> {
        [&[self.n], space, &[channels]].concat()
    }

    /// The numbers of an option, one per axis.
    pub(crate) fn axes<const N: usize>(&self, numbers: &[usize]) -> Result<[usize; N]> {
        numbers.try_into().map_err(|_| format!("it has {} axes, not {N}", numbers.len()))
    }
}

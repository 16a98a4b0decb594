use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use windowpane::{Activation, DType, Layout, PaddingMode, Precision, Rank};

use super::forced::{self, Auto, Forced};
use super::{lines, row};
use crate::args::index_base;
use crate::failure::Failure;
use crate::layouts::layouts;

/// A line of the file: the fields of every case, and the rest, which its kind reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) kind: String,
    #[serde(deserialize_with = "short")]
    pub(super) pass: String,
    pub(super) dtype: String,
    pub(super) layout: String,
    /// The precision of f32 products, if not strict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) precision: Option<String>,
    /// The kernel to force; the plan chooses if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) algorithm: Option<String>,
    /// The tile sizes to force, as in `--tile`; the kernel chooses those that are not named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tile: Option<String>,
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

/// A pass; `forward` and `backward` are read as `fwd` and `bwd`.
fn short<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let pass = String::deserialize(deserializer)?;
    Ok(match row::pass_name(&pass) {
        name @ ("fwd" | "bwd") => name.into(),
        _ => pass,
    })
}

/// The fields that kinds read.
const FIELDS: [&str; 23] = [
    "n",
    "c",
    "size",
    "k",
    "s",
    "p",
    "d",
    "same",
    "adaptive",
    "ceil",
    "indices",
    "index_base",
    "divisor",
    "exponent",
    "rank",
    "cout",
    "groups",
    "filters",
    "bias",
    "residual",
    "activation",
    "padding_mode",
    "output_padding",
];

impl Case {
    /// Reads a file of cases. An invalid line refuses the file before anything runs. So does a second case
    /// with the same path, because rows of the two could not be distinguished.
    pub(super) fn read(path: &Path) -> Result<Vec<Self>, Failure> {
        Self::parse(&path.display().to_string(), &lines::text(path)?)
    }

    /// Reads the text of a file of this name.
    pub(super) fn parse(file: &str, text: &str) -> Result<Vec<Self>, Failure> {
        let mut cases: Vec<Self> = Vec::new();
        for (i, line) in lines::of(text) {
            let wrong = |what: String| Failure::Failed(format!("{file}, line {i}: {what}"));
            let case: Self = serde_json::from_str(line)
                .map_err(|error| wrong(format!("is not a case: {error}")))?;
            if cases.iter().any(|known| known.path() == case.path()) {
                let path = case.path();
                return Err(wrong(format!("there is a `{path}` already; rename one of the two")));
            }
            cases.push(case);
        }
        Ok(cases)
    }

    /// The path that identifies it.
    pub(super) fn path(&self) -> String {
        row::path(self.parts())
    }

    /// Whether its path contains a text.
    pub(super) fn path_contains(&self, text: &str) -> bool {
        row::path_contains(self.parts(), text)
    }

    fn parts(&self) -> [&str; 5] {
        [&self.name, &self.kind, &self.pass, &self.dtype, &self.layout]
    }

    /// The fields that its kind reads. A field that no kind has is refused: a misspelled option would be
    /// ignored.
    pub(super) fn fields<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        if let Some(unknown) = self.rest.keys().find(|field| !FIELDS.contains(&field.as_str())) {
            let known = FIELDS.join(", ");
            return Err(Failure::Failed(format!("there is no field `{unknown}`; use {known}")));
        }
        self.rest.iter().try_for_each(|(field, value)| check(field, value))?;
        serde_json::from_value(Value::Object(self.rest.clone()))
            .map_err(|error| Failure::Failed(format!("the case has a bad field: {error}")))
    }

    pub(super) fn dtype(&self) -> Result<DType, Failure> {
        self.dtype.parse().map_err(|error| Failure::Failed(format!("`{}`: {error}", self.dtype)))
    }

    pub(super) fn layout(&self) -> Result<Layout, Failure> {
        layouts(&self.layout)
            .map(|layouts| layouts.data)
            .map_err(|error| Failure::Failed(format!("`layout` is `{}`: {error}", self.layout)))
    }

    pub(super) fn precision(&self) -> Result<Precision, Failure> {
        let Some(name) = &self.precision else { return Ok(Precision::Strict) };
        name.parse().map_err(|error| Failure::Failed(format!("`{name}`: {error}")))
    }

    /// The kernel and tile that the case forces, or those forced on all cases if it names none.
    pub(super) fn forced(&self, all: Forced) -> Result<Forced, Failure> {
        let mut forced = all;
        if let Some(name) = &self.algorithm {
            let Auto(algorithm) = forced::algorithm(name)
                .map_err(|error| Failure::Failed(format!("`algorithm` is `{name}`: {error}")))?;
            forced.algorithm = algorithm;
        }
        if let Some(sizes) = &self.tile {
            let tile = sizes
                .parse()
                .map_err(|error| Failure::Failed(format!("`tile` is `{sizes}`: {error}")))?;
            forced.tile = Some(tile);
        }
        Ok(forced)
    }

    /// The error for a pass that the kind does not have.
    pub(super) fn unknown_pass(&self, known: &str) -> Failure {
        let (kind, pass) = (&self.kind, &self.pass);
        Failure::Failed(format!("{kind} has no pass `{pass}`; use one of {known}"))
    }
}

/// The most channels and filters: lists of them are made before anything is computed.
const MOST_CHANNELS: u64 = 1 << 20;

/// Refuses a value that its field cannot have; missing fields are reported when they are read.
fn check(field: &str, value: &Value) -> Result<(), Failure> {
    let whole = |value: &Value| value.as_u64().is_some();
    let pair = |value: &Value| {
        value.as_array().is_some_and(|sides| sides.len() == 2 && sides.iter().all(whole))
    };
    let (is_right, what) = match field {
        "size" | "k" | "s" | "d" | "adaptive" | "output_padding" => (
            value.as_array().is_some_and(|axes| axes.iter().all(whole)),
            "a list of whole numbers from 0, one per axis",
        ),
        "p" => (
            value.as_array().is_some_and(|axes| axes.iter().all(|axis| whole(axis) || pair(axis))),
            "a list of whole numbers from 0, or of pairs of them for before and after, one per axis",
        ),
        "same" => (value == "upper" || value == "lower", "upper or lower"),
        "c" | "cout" => (
            value.as_u64().is_some_and(|number| number <= MOST_CHANNELS),
            "a whole number from 0 to 1048576",
        ),
        "indices" | "ceil" | "bias" | "residual" => (value.is_boolean(), "true or false"),
        "index_base" => (
            value.as_str().is_some_and(|name| index_base(name).is_ok()),
            "one of plane, tensor, memory",
        ),
        "activation" => (
            value.as_str().is_some_and(|name| name.parse::<Activation>().is_ok()),
            "one of none, relu, relu6, gelu, silu, leaky or leaky:SLOPE",
        ),
        "padding_mode" => (
            value.as_str().is_some_and(|name| name.parse::<PaddingMode>().is_ok()),
            "one of zeros, reflect, symmetric, replicate, circular",
        ),
        "divisor" => (
            value == "padded" || value == "valid" || value.as_u64().is_some_and(|n| n > 0),
            "padded, valid or a whole number from 1",
        ),
        "exponent" => (value.as_f64().is_some_and(|p| p >= 1.0), "a number from 1"),
        "rank" => (
            value.as_u64().is_some_and(|k| k <= u32::MAX.into())
                || value.as_str().is_some_and(|text| text.parse::<Rank>().is_ok()),
            "a whole number from 0, or a fraction from 0 to 1 such as 1/2",
        ),
        "filters" => (
            ["fhwc", "hwcf", "fchw"].iter().any(|layout| value == layout),
            "one of fhwc, hwcf, fchw",
        ),
        _ => (whole(value), "a whole number from 0"),
    };
    match is_right {
        true => Ok(()),
        false => Err(Failure::Failed(format!(
            "the case has a bad field: `{field}` is {value}; give it {what}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A failure prints the case that failed with its kernel.
    #[test]
    fn cases_are_written_as_they_are_read() {
        let line = json!({
            "name": "x", "kind": "avgpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
            "n": 1, "c": 2, "size": [6], "k": [2], "s": [1], "p": [0], "d": [1], "ceil": true,
            "divisor": 3, "algorithm": "sliding", "tile": "block_m=64,stages=3",
        });
        let case: Case = serde_json::from_value(line.clone()).expect("a case");
        assert_eq!(serde_json::to_value(&case).expect("a line"), line);
        let forced = case.forced(Forced::default()).expect("a kernel and a tile");
        assert_eq!(forced.tile, "block_m=64,stages=3".parse().ok());
        let untiled = Case { tile: None, ..case.clone() };
        let forced = untiled.forced(Forced::default()).expect("a kernel");
        assert_eq!(forced.of_pooling().ok(), Some(Some(windowpane::PoolAlgorithm::Sliding)));
        for unknown in [
            Case { algorithm: Some("fast".into()), ..case.clone() },
            Case { tile: Some("large".into()), ..case },
        ] {
            assert!(unknown.forced(Forced::default()).is_err());
        }
    }

    /// Cases and filters may spell passes out.
    #[test]
    fn passes_have_long_names() {
        for (long, pass) in [("forward", "fwd"), ("backward", "bwd")] {
            let line = json!({
                "name": "x", "kind": "avgpool", "pass": long, "dtype": "f32", "layout": "nhwc",
            });
            let case: Case = serde_json::from_value(line).expect("a case");
            assert_eq!((&*case.pass, case.path()), (pass, format!("x/avgpool/{pass}/f32/nhwc")));
            assert!(case.path_contains(&format!("avgpool/{long}")) && case.path_contains(pass));
        }
    }

    #[test]
    fn bad_values_are_named() {
        for (field, value) in [
            ("k", json!("three")),
            ("k", json!(3)),
            ("p", json!([1, -1])),
            ("s", json!([1.5, 2])),
            ("n", json!(1e3)),
            ("c", json!("64")),
            ("cout", json!(MOST_CHANNELS + 1)),
            ("groups", json!(-1)),
            ("indices", json!(1)),
            ("index_base", json!("onnx")),
            ("ceil", json!(0)),
            ("divisor", json!("fixed")),
            ("divisor", json!(0)),
            ("exponent", json!(0.5)),
            ("rank", json!(-1)),
            ("rank", json!("3/2")),
            ("rank", json!(0.5)),
            ("filters", json!("nhwc")),
            ("p", json!([[1, 2, 3]])),
            ("p", json!([[1, -2]])),
            ("same", json!("both")),
            ("adaptive", json!(7)),
            ("bias", json!("yes")),
            ("residual", json!(1)),
            ("activation", json!("tanh")),
            ("padding_mode", json!("wrap")),
            ("output_padding", json!([-1])),
        ] {
            let error = check(field, &value).expect_err("it is bad").to_string();
            assert!(error.contains(&format!("`{field}` is {value}; give it")), "{error}");
        }
        for (field, value) in [
            ("k", json!([0, 3])),
            ("n", json!(0)),
            ("indices", json!(true)),
            ("index_base", json!("memory")),
            ("p", json!([1, [0, 2]])),
            ("activation", json!("leaky:0.25")),
            ("padding_mode", json!("reflect")),
        ] {
            check(field, &value).expect("it is right");
        }
    }
}

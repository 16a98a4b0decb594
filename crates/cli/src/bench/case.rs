use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use windowpane::{DType, Layout, Precision};

use super::lines;
use crate::failure::Failure;

/// A line of the file: what every case has, and the rest, which its kind reads.
#[derive(Debug, Deserialize)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) pass: String,
    pub(super) dtype: String,
    pub(super) layout: String,
    /// How exact the products of f32 are, where it is not strict.
    #[serde(default)]
    pub(super) precision: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The fields that some kind reads.
const FIELDS: [&str; 10] = ["n", "c", "size", "k", "s", "p", "d", "indices", "cout", "groups"];

impl Case {
    /// Reads a file of cases. A line that is none refuses the file before anything has run, and so does
    /// a case that is found by what another one is: rows of the two could not be told apart.
    pub(super) fn read(path: &Path) -> Result<Vec<Self>, Failure> {
        let (file, text) = (path.display(), lines::text(path)?);
        let mut cases: Vec<Self> = Vec::new();
        for (i, line) in lines::of(&text) {
            let wrong = |what: String| Failure::Failed(format!("{file}, line {i}: {what}"));
            let case: Self = serde_json::from_str(line)
                .map_err(|error| wrong(format!("is not a case: {error}")))?;
            if cases.iter().any(|known| known.path() == case.path()) {
                let path = case.path();
                return Err(wrong(format!("there is a `{path}` already; give one another name")));
            }
            cases.push(case);
        }
        Ok(cases)
    }

    /// What it is found by.
    pub(super) fn path(&self) -> String {
        [&*self.name, &self.kind, &self.pass, &self.dtype, &self.layout].join("/")
    }

    /// The fields that its kind reads. One that no kind has is refused, for the case would be another than
    /// was meant.
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
        match &*self.layout {
            "nhwc" => Ok(Layout::ChannelsLast),
            "nchw" => Ok(Layout::ChannelsFirst),
            other => {
                Err(Failure::Failed(format!("there is no layout `{other}`; use nhwc or nchw")))
            }
        }
    }

    pub(super) fn precision(&self) -> Result<Precision, Failure> {
        let Some(name) = &self.precision else { return Ok(Precision::Strict) };
        name.parse().map_err(|error| Failure::Failed(format!("`{name}`: {error}")))
    }

    /// A pass that the kind has not.
    pub(super) fn unknown_pass(&self, known: &str) -> Failure {
        let (kind, pass) = (&self.kind, &self.pass);
        Failure::Failed(format!("{kind} has no pass `{pass}`; use one of {known}"))
    }
}

/// Refuses a value that its field cannot have; what is missing is found when the fields are read.
fn check(field: &str, value: &Value) -> Result<(), Failure> {
    let whole = |value: &Value| value.as_u64().is_some();
    let (is_right, what) = match field {
        "size" | "k" | "s" | "p" | "d" => (
            value.as_array().is_some_and(|axes| axes.iter().all(whole)),
            "a list of whole numbers from 0, one an axis",
        ),
        "indices" => (value.is_boolean(), "true or false"),
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

    #[test]
    fn bad_values_are_named() {
        for (field, value) in [
            ("k", json!("three")),
            ("k", json!(3)),
            ("p", json!([1, -1])),
            ("s", json!([1.5, 2])),
            ("n", json!(1e3)),
            ("c", json!("64")),
            ("groups", json!(-1)),
            ("indices", json!(1)),
        ] {
            let error = check(field, &value).expect_err("it is bad").to_string();
            assert!(error.contains(&format!("`{field}` is {value}; give it")), "{error}");
        }
        for (field, value) in [("k", json!([0, 3])), ("n", json!(0)), ("indices", json!(true))] {
            check(field, &value).expect("it is right");
        }
    }
}

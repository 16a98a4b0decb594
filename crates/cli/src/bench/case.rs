use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use windowpane::{DType, Layout, Precision};

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
        let file = path.display();
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::Failed(format!("{file}: cannot be read: {error}")))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let case = |(i, line): (usize, &str)| {
            serde_json::from_str::<Self>(line).map_err(|error| {
                Failure::Failed(format!("{file}, line {}: is not a case: {error}", i + 1))
            })
        };
        let mut cases: Vec<Self> = Vec::new();
        for (i, line) in lines {
            let case = case((i, line))?;
            if cases.iter().any(|known| known.path() == case.path()) {
                let (line, path) = (i + 1, case.path());
                return Err(Failure::Failed(format!(
                    "{file}, line {line}: there is a `{path}` already; give one another name"
                )));
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

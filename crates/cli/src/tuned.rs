//! Files of tuned plans: which kernel and tile was fastest for each problem.

use std::fs;
use std::path::Path;

use windowpane::Tuned;

use crate::failure::Failure;
use crate::output::Output;

/// Makes later plans use the choices in a file.
pub(crate) fn follow(path: &Path) -> Result<(), Failure> {
    let file = path.display();
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::Failed(format!("{file}: cannot be read: {error}")))?;
    let tuned: Tuned = text.parse().map_err(|error| Failure::Failed(format!("{file}: {error}")))?;
    tuned.apply();
    Ok(())
}

/// Writes all remembered choices into a file.
pub(crate) fn keep(path: &Path) -> Result<(), Failure> {
    Output::new(path)?.place_bytes(Tuned::all().to_string().as_bytes())
}

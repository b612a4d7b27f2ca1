//! Texts as YAML or JSON, as somebody types them into a form of the console: whatever they are, they are read or refused, and what is
//! printed of a value is read back.

use outrigger_cases::yaml::PIECES;
use outrigger_core::bounds::Bounds;
use outrigger_core::yaml::{self, ReadError};

use crate::choice::Choice;
use crate::{Outcome, Report, kind_of};

/// Few values, so that some texts have too many.
const BOUNDS: Bounds = Bounds { bytes: 64 << 10, values: 12, depth: 4 };

pub(crate) fn run(c: &mut Choice<'_>) -> Result<Report, String> {
    let text = match c.below(4) {
        0 => c.list(60, |c| c.of(PIECES)).concat(),
        1 => yaml::to_string(&c.json(4)),
        2 => c.of(&["[", "{a: ", "- a\n", "- - a\n- ", "a", "&a [*a, "]).repeat(c.below(30)),
        // Nearly what is printed.
        _ => {
            let mut bytes = yaml::to_string(&c.json(4)).into_bytes();
            c.corrupt(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        }
    };
    check(&text).map_err(|why| format!("{why}\n{text:?}"))
}

fn check(text: &str) -> Result<Report, String> {
    let documents = match yaml::documents(text, BOUNDS) {
        Ok(documents) => documents,
        Err(ReadError::TooLarge(excess)) => {
            return Ok(Report::new(Outcome::Denied, kind_of(&excess.to_string())));
        }
        Err(error) => return Ok(Report::new(Outcome::Undecodable, kind_of(&error.to_string()))),
    };
    for value in &documents {
        let printed = yaml::to_string(value);
        match yaml::documents(&printed, BOUNDS)
            .map_err(|error| format!("what is printed is refused: {error}\n{printed}"))?
        {
            read if read.as_slice() == std::slice::from_ref(value) => {}
            read => return Err(format!("what is printed is read as {read:?}\n{printed}")),
        }
    }
    Ok(Report::new(Outcome::Accepted, documents.len().to_string()))
}

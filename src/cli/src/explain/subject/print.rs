//! The report for people.

use super::report::{Report, Wrong};
use crate::document::{Document, Item, Readable, bad, bold, good, item, odd};

impl Readable for Report {
    fn document(&self) -> Document {
        let mut document = Document::default();
        document.notes(&self.notes);
        let mut all = item![bold(format_args!("{} {}", self.kind, self.name))]
            .with(self.facts.iter().map(|fact| item![&fact.name, ": ", &fact.value]));
        if self.wrong.is_empty() {
            // What may not be read may be wrong.
            all.add(match self.notes.as_slice() {
                [] => item![good("nothing is wrong")],
                _ => item![odd("nothing is known to be wrong")],
            });
        }
        document.add(all.with(self.wrong.iter().map(one)));
        document
    }
}

fn one(wrong: &Wrong) -> Item {
    let Wrong { about, cause, message, meaning, tenant, platform, since } = wrong;
    let since = if since.is_empty() { String::new() } else { format!(", since {since}") };
    let message = Some(message).filter(|message| !message.is_empty()).map(|message| item![message]);
    item![bad(cause), format_args!(" ({about}{since}): {meaning}")]
        .with(message)
        .with([item!["tenant: ", tenant], item!["platform: ", platform]])
}

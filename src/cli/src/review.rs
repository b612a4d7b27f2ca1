//! `outrigger review`

use std::io::{BufWriter, Read, Write};
use std::process::ExitCode;

use clap::Args;
use outrigger_admission::review::{self, Request};
use serde_json::value::RawValue;

use crate::admission::{Admission, StateArgs};
use crate::files::InputError;
use crate::state::State;

/// Largest document.
const MAX_BODY: usize = review::BOUNDS.bytes;

#[derive(Debug, Args)]
pub(crate) struct ReviewArgs {
    #[command(flatten)]
    state: StateArgs,
}

impl ReviewArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let StateArgs { filename, admission } = self.state;
        if filename.iter().any(|file| file.as_os_str() == "-") {
            return Err(InputError::new("--filename -", "standard input has the reviews").into());
        }
        let admission = Admission::new(State::read(&filename)?, admission)?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        let answered = answer(&admission, std::io::stdin().lock(), &mut out);
        // Answers that have been written stay valid if a later document can't be read.
        out.flush()?;
        answered.map(|()| ExitCode::SUCCESS)
    }
}

/// Answers reviews until the input ends.
///
/// # Errors
/// At the first document that is no review, which is named by its number; when reading or writing fails.
fn answer(admission: &Admission, input: impl Read, out: &mut impl Write) -> anyhow::Result<()> {
    let mut documents = Documents::new(input);
    while let Some(mut request) = documents.next(out)? {
        let decision = admission.decide(&mut request);
        out.write_all(&review::write(&request.uid, &decision)?)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// A stream of JSON documents, of which one at a time is held in memory.
struct Documents<R> {
    input: R,
    buffer: Vec<u8>,
    /// Bytes of the buffer that have been consumed.
    taken: usize,
    ended: bool,
    /// Number of documents that have been read.
    number: usize,
}

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;

impl<R: Read> Documents<R> {
    fn new(input: R) -> Self {
        Self { input, buffer: Vec::new(), taken: 0, ended: false, number: 0 }
    }

    /// The next request; `None` at the end. `out` is flushed before it is waited for more input: whoever asks one by one
    /// sees each answer before the next question.
    fn next(&mut self, out: &mut impl Write) -> anyhow::Result<Option<Request>> {
        loop {
            let rest = self.buffer.get(self.taken..).unwrap_or_default();
            let mut stream = serde_json::Deserializer::from_slice(rest).into_iter::<&RawValue>();
            let wrong = |reason: &dyn std::fmt::Display| {
                InputError::new(format_args!("standard input: document {}", self.number + 1), reason)
            };
            match stream.next() {
                Some(Ok(document)) => {
                    let length = stream.byte_offset();
                    let request = review::read(document.get().as_bytes()).map_err(|error| wrong(&error))?;
                    self.taken += length;
                    self.number += 1;
                    return Ok(Some(request));
                }
                None if self.ended => return Ok(None),
                Some(Err(error)) if self.ended || !error.is_eof() => return Err(wrong(&error).into()),
                _ if rest.len() > MAX_BODY => {
                    return Err(wrong(&format_args!("has more than {MAX_BODY} bytes")).into());
                }
                _ => {
                    out.flush()?;
                    self.fill()?;
                }
            }
        }
    }

    fn fill(&mut self) -> std::io::Result<()> {
        self.buffer.drain(..std::mem::take(&mut self.taken));
        let length = self.buffer.len();
        self.buffer.resize(length + CHUNK, 0);
        let read = loop {
            match self.input.read(&mut self.buffer[length..]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.buffer.truncate(length + *read.as_ref().unwrap_or(&0));
        self.ended = read? == 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests;

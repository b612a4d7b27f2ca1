//! `outrigger review`

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::process::ExitCode;

use clap::Args;
use outrigger_admission::review;
use serde_json::Deserializer;
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
    let (out, start) = (RefCell::new(out), Cell::new(0));
    let input = BufReader::with_capacity(CHUNK, Prompt { input, out: &out, start: &start, taken: 0 });
    let mut documents = Deserializer::from_reader(input).into_iter::<Box<RawValue>>();
    for number in 1.. {
        let wrong =
            |reason: &dyn Display| InputError::new(format_args!("standard input: document {number}"), reason);
        let document = match documents.next() {
            None => break,
            Some(Ok(document)) => document,
            Some(Err(error)) if error.io_error_kind().is_some_and(|kind| kind != TOO_LARGE) => {
                return Err(error.into());
            }
            Some(Err(error)) => return Err(wrong(&error).into()),
        };
        start.set(documents.byte_offset());
        let mut request = review::read(document.get().as_bytes()).map_err(|error| wrong(&error))?;
        let decision = admission.decide(&mut request);
        let mut out = out.borrow_mut();
        out.write_all(&review::write(&request.uid, &decision)?)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;

/// How reading ends in a document that has more than [`MAX_BODY`] bytes.
const TOO_LARGE: ErrorKind = ErrorKind::FileTooLarge;

/// An input that flushes the answers before it waits for more: whoever asks one by one sees each answer before the next
/// question.
struct Prompt<'a, R, W> {
    input: R,
    out: &'a RefCell<W>,
    /// Where the document begins that is being read.
    start: &'a Cell<usize>,
    /// Bytes that have been read.
    taken: usize,
}

impl<R: Read, W: Write> Read for Prompt<'_, R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.taken - self.start.get() > MAX_BODY {
            return Err(std::io::Error::new(TOO_LARGE, format!("has more than {MAX_BODY} bytes")));
        }
        self.out.borrow_mut().flush()?;
        let read = self.input.read(buffer)?;
        self.taken += read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests;

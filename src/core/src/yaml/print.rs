//! YAML for people, which kubectl and readers of YAML 1.2 read back as the same value.

use libyaml_safer::{Emitter, Encoding, Error, Event, MappingStyle, ScalarStyle, SequenceStyle};
use serde_json::Value;

use super::scalar;

/// A value as a document of YAML in blocks, without a line `---`.
///
/// Texts that some reader takes for something else are quoted: numbers, booleans, null, times and merge keys of YAML 1.1 and 1.2.
pub fn to_string(value: &Value) -> String {
    let mut text = Vec::new();
    // JSON is YAML too, in case that the emitter refuses a value, for which there is no reason.
    let printed = write(value, &mut text).ok().and_then(|()| String::from_utf8(text).ok());
    printed.unwrap_or_else(|| format!("{value}\n"))
}

fn write(value: &Value, text: &mut Vec<u8>) -> Result<(), Error> {
    let mut emitter = Emitter::new();
    emitter.set_output(text);
    emitter.set_unicode(true);
    // Lines aren't folded.
    emitter.set_width(-1);
    emitter.emit(Event::stream_start(Encoding::Utf8))?;
    emitter.emit(Event::document_start(None, &[], true))?;
    emit(value, &mut emitter)?;
    emitter.emit(Event::document_end(true))?;
    emitter.emit(Event::stream_end())?;
    emitter.flush()
}

fn emit(value: &Value, emitter: &mut Emitter<'_>) -> Result<(), Error> {
    match value {
        Value::Null => plain("null", emitter),
        Value::Bool(boolean) => plain(if *boolean { "true" } else { "false" }, emitter),
        Value::Number(number) => plain(&number.to_string(), emitter),
        Value::String(text) => scalar(text, style(text), emitter),
        Value::Array(list) => {
            emitter.emit(Event::sequence_start(None, None, true, SequenceStyle::Block))?;
            list.iter().try_for_each(|value| emit(value, emitter))?;
            emitter.emit(Event::sequence_end())
        }
        Value::Object(object) => {
            emitter.emit(Event::mapping_start(None, None, true, MappingStyle::Block))?;
            for (key, value) in object {
                scalar(key, style(key), emitter)?;
                emit(value, emitter)?;
            }
            emitter.emit(Event::mapping_end())
        }
    }
}

fn plain(text: &str, emitter: &mut Emitter<'_>) -> Result<(), Error> {
    scalar(text, ScalarStyle::Plain, emitter)
}

fn scalar(text: &str, style: ScalarStyle, emitter: &mut Emitter<'_>) -> Result<(), Error> {
    emitter.emit(Event::scalar(None, None, text, true, true, style))
}

/// How a text is written; the emitter uses double quotes where it can't be written like this.
fn style(text: &str) -> ScalarStyle {
    let has_escapes =
        |character: char| character != '\n' && (character.is_control() || is_break_or_mark(character));
    if text.contains(has_escapes) {
        ScalarStyle::DoubleQuoted
    } else if text.contains('\n') {
        ScalarStyle::Literal
    } else if scalar::plain(text).is_some() || is_special(text) || looks_like_a_number(text) {
        ScalarStyle::SingleQuoted
    } else {
        ScalarStyle::Plain
    }
}

/// Line breaks of YAML 1.1, and what is skipped where a document begins.
fn is_break_or_mark(character: char) -> bool {
    matches!(character, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Merge keys and the default value of YAML 1.1.
fn is_special(text: &str) -> bool {
    matches!(text, "<<" | "=")
}

/// Some reader might take it for a number, also one of base 60 (`1:30`), or for a time: it begins with a digit, a sign or a point,
/// and has only characters of these.
fn looks_like_a_number(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first))
        && text.chars().all(|character| character.is_ascii_hexdigit() || "xXoO_+-.:TtZz ".contains(character))
}

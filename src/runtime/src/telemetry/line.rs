//! Makes each log message one line of bounded length: it may contain text from outside, such as the message of an API server or
//! the name of a user.

use std::borrow::Cow;
use std::io::{self, Write};

use serde_json::Value;

/// Longest line, in bytes. Container runtimes split lines at 16 KiB, which would make JSON invalid.
const MAX_LINE: usize = 16 << 10;

/// Longest string within a line that would be too long, in bytes.
const MAX_TEXT: usize = 1 << 10;

/// A writer whose every write is one line.
#[derive(Debug)]
pub(super) struct Bounded<W> {
    pub(super) json: bool,
    pub(super) to: W,
}

impl<W: Write> Write for Bounded<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let one = one_line(line);
        if one.len() <= MAX_LINE {
            self.to.write_all(&one)?;
        } else {
            self.to.write_all(&truncate(&one, self.json))?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Escapes line breaks within a line, so that text from outside can't look like another line. JSON has none.
fn one_line(line: &[u8]) -> Cow<'_, [u8]> {
    let (text, end) = line.strip_suffix(b"\n").map_or((line, &b""[..]), |text| (text, b"\n"));
    if !text.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return Cow::Borrowed(line);
    }
    let mut one = Vec::with_capacity(line.len() + 16);
    for byte in text {
        match byte {
            b'\n' => one.extend(b"\\n"),
            b'\r' => one.extend(b"\\r"),
            byte => one.push(*byte),
        }
    }
    one.extend(end);
    Cow::Owned(one)
}

/// Shortens a line: first its long strings, then its fields.
fn truncate(line: &[u8], json: bool) -> Vec<u8> {
    let mut short = None;
    if json && let Ok(mut object) = serde_json::from_slice::<Value>(line) {
        shorten(&mut object);
        short = serde_json::to_vec(&object).ok().filter(|short| short.len() < MAX_LINE);
        if short.is_none() {
            // There are too many fields: only those that every line has are kept.
            if let Value::Object(fields) = &mut object {
                fields
                    .retain(|name, _| matches!(name.as_str(), "timestamp" | "level" | "target" | "message"));
            }
            short = serde_json::to_vec(&object).ok();
        }
    }
    let mut short = short.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(line);
        let end = text.floor_char_boundary(MAX_LINE - 64);
        format!("{}... ({} bytes left out)", &text[..end], text.len() - end).into_bytes()
    });
    short.push(b'\n');
    short
}

fn shorten(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > MAX_TEXT => {
            let end = text.floor_char_boundary(MAX_TEXT);
            *text = format!("{}... ({} bytes left out)", &text[..end], text.len() - end);
        }
        Value::Array(all) => all.iter_mut().for_each(shorten),
        Value::Object(all) => all.values_mut().for_each(shorten),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(line: &str, json: bool) -> String {
        let mut to = Vec::new();
        Bounded { json, to: &mut to }.write_all(line.as_bytes()).unwrap();
        String::from_utf8(to).unwrap()
    }

    #[test]
    fn long_lines_are_shortened_and_stay_valid() {
        assert_eq!(written("a\n", false), "a\n");
        assert_eq!(
            written("denied reason=a\r\n2026 INFO ok\n", false),
            "denied reason=a\\r\\n2026 INFO ok\n"
        );
        let text = written(&"ä".repeat(MAX_LINE), false);
        assert!(text.len() <= MAX_LINE && text.ends_with("bytes left out)\n"), "{}", text.len());

        let long = json!({"timestamp": "t", "level": "INFO", "message": "x".repeat(MAX_LINE), "uid": "u"});
        let line = written(&format!("{long}\n"), true);
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["uid"], "u");
        assert!(line.len() < 2 * MAX_TEXT && line.ends_with("}\n"), "{line}");
        assert!(object["message"].as_str().unwrap().ends_with(" bytes left out)"));

        let mut many = json!({"timestamp": "t", "level": "INFO", "message": "m"});
        for i in 0..MAX_LINE {
            many[i.to_string()] = json!("x");
        }
        let line = written(&format!("{many}\n"), true);
        assert_eq!(line, "{\"level\":\"INFO\",\"message\":\"m\",\"timestamp\":\"t\"}\n");
    }
}

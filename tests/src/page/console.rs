//! Blocks of commands with what they print.

/// A command, and what it prints on both outputs.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    /// What is typed.
    pub command: String,
    /// What is printed: whole lines.
    pub output: String,
}

/// Reads a block: a line that begins with `$ ` is a command, also over several lines (a backslash at the end, an open
/// quotation, a here-document), and all others are printed by the one above.
pub(super) fn parse(block: &str) -> Result<Vec<Shown>, String> {
    let mut all: Vec<Shown> = Vec::new();
    let mut open = false;
    for line in block.lines() {
        if open {
            let last = all.last_mut().ok_or("a block begins with a command")?;
            last.command.push('\n');
            // What a shell asks for more lines with.
            last.command.push_str(line.strip_prefix("> ").unwrap_or(line));
            open = goes_on(&last.command);
        } else if let Some(command) = line.strip_prefix("$ ") {
            open = goes_on(command);
            all.push(Shown { command: command.to_owned(), output: String::new() });
        } else {
            let last =
                all.last_mut().ok_or_else(|| format!("a block begins with a command, not with {line:?}"))?;
            last.output.push_str(line);
            last.output.push('\n');
        }
    }
    match all.last() {
        Some(last) if open => Err(format!("this has no end: {:?}", last.command)),
        Some(_) => Ok(all),
        None => Err("a block begins with a command".to_owned()),
    }
}

/// Whether a command isn't complete yet.
fn goes_on(command: &str) -> bool {
    let mut shell = String::new();
    let mut lines = command.lines();
    while let Some(line) = lines.next() {
        shell.push_str(line);
        shell.push('\n');
        if let Some(end) = here_document(line)
            && !lines.by_ref().any(|line| line.trim_start_matches('\t') == end)
        {
            return true;
        }
    }
    // What has no words has a quotation or an escape that doesn't end. A new line at the end would end the latter.
    shlex::split(shell.trim_end_matches('\n')).is_none()
}

/// What ends the here-document that this line begins.
fn here_document(line: &str) -> Option<&str> {
    let (_, word) = line.split_once("<<")?;
    if word.starts_with('<') {
        return None;
    }
    let word = word.trim_start_matches('-').trim_start().trim_start_matches(['"', '\'', '\\']);
    let end = word.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(word.len());
    (end > 0).then(|| &word[..end])
}

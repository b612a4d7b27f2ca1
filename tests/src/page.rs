//! Pages of the documentation, and what in them can be run.
//!
//! The text of a page goes in; its steps come out: the blocks with commands and with objects in their order, and what
//! comments that no reader sees say of them. `tests/docs` runs them. CONTRIBUTING.md tells how such a page is written.

mod console;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::Path;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use serde_json::Value;
use walkdir::WalkDir;

pub use console::Shown;

use crate::shipped;

/// Programs whose commands are recognised wherever they are written.
pub const PROGRAMS: [&str; 12] = [
    "kubectl",
    "outrigger",
    "helm",
    "make",
    "cargo",
    "grpcurl",
    "promtool",
    "openssl",
    "docker",
    "curl",
    "cmctl",
    "mdbook",
];

/// Names of shells that would hide commands from the test.
const OTHER_SHELLS: [&str; 6] = ["shell", "zsh", "shell-session", "sh-session", "terminal", "cmd"];

/// Where the commands of a page are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Environment {
    /// Without a cluster.
    Files,
    /// On the infrastructure cluster of a running Outrigger.
    Infrastructure,
    /// On the tenant's cluster of the same.
    Tenant,
    /// On two clusters of its own, where nothing is installed but cert-manager.
    Empty,
}

/// A page.
#[derive(Debug, Default)]
pub struct Page {
    /// Its file, from the top of the work tree.
    pub path: String,
    /// Where it is run; pages that have nothing to run name nothing.
    pub environment: Option<Environment>,
    /// What is done, from top to bottom.
    pub steps: Vec<Step>,
    /// Commands that can't be run here.
    pub not_run: Vec<NotRun>,
    /// Commands in running text.
    pub spans: Vec<Span>,
}

/// A block of a page that something is done with.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// Where it begins.
    pub line: usize,
    /// The heading above it.
    pub heading: String,
    /// What is done.
    pub action: Action,
    /// Words that it has to be refused with.
    pub refused: Option<String>,
}

/// What is done with a block.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Commands that readers type; they have to succeed.
    Run(String),
    /// The same, of the test alone: what has to be there first, or has to be true now.
    Hidden(String),
    /// Commands with what they print.
    Show(Vec<Shown>),
    /// A file that later commands use.
    Write {
        /// Its path from the working directory.
        file: String,
        /// What is in it.
        text: String,
    },
    /// Objects that the API server has to take.
    Apply(String),
}

/// A block that isn't run.
#[derive(Debug, PartialEq, Eq)]
pub struct NotRun {
    /// Where it begins.
    pub line: usize,
    /// Its commands.
    pub script: String,
    /// Why.
    pub reason: String,
}

/// A command in running text.
#[derive(Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub line: usize,
    /// The command, on one line.
    pub command: String,
}

impl Page {
    /// Reads a page.
    pub fn parse(path: &str, text: &str) -> Result<Self, Vec<String>> {
        let mut reader = Reader { text, ..Reader::default() };
        reader.page.path = path.to_owned();
        let parser = Parser::new_ext(text, Options::ENABLE_TABLES);
        for (event, range) in parser.into_offset_iter() {
            reader.event(event, range);
        }
        reader.finish()
    }

    /// Reads a page of the work tree.
    pub fn read(path: &str) -> Result<Self, Vec<String>> {
        let text = std::fs::read_to_string(crate::root().join(path));
        Self::parse(path, &text.map_err(|error| vec![format!("{path}: {error}")])?)
    }

    /// The commands that readers type under a heading, block by block.
    pub fn commands(&self, heading: &str) -> Vec<&str> {
        let under = self.steps.iter().filter(|step| step.heading == heading);
        under
            .filter_map(|step| match &step.action {
                Action::Run(script) => Some(script.as_str()),
                _ => None,
            })
            .collect()
    }
}

/// All pages of the work tree, by name.
pub fn pages() -> std::io::Result<Vec<String>> {
    let root = crate::root();
    let mut found = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    for entry in WalkDir::new(root.join("docs")) {
        let entry = entry?;
        if entry.file_type().is_file() && entry.path().extension().is_some_and(|end| end == "md") {
            let path = entry.path().strip_prefix(&root).expect("it is below");
            found.push(path.to_string_lossy().into_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// The commands in a text that is no page.
pub fn spans(text: &str) -> Vec<Span> {
    Page::parse("", text).map(|page| page.spans).unwrap_or_default()
}

/// Whether a text begins as a command line of a program that we know.
pub fn is_command(text: &str) -> bool {
    let mut words = text.split_whitespace().skip_while(|word| *word == "$" || *word == "sudo");
    words.next().is_some_and(|word| PROGRAMS.contains(&word)) && words.next().is_some()
}

/// What a comment says of the block after it.
#[derive(Debug)]
enum About {
    NotRun(String),
    File(String),
    Refused(String),
}

/// Where the reader is.
#[derive(Default)]
struct Reader<'a> {
    text: &'a str,
    page: Page,
    /// Words of the page that stand for something else, and whether one was found.
    values: Vec<(String, String, bool)>,
    about: Vec<About>,
    heading: String,
    in_heading: bool,
    /// Language and content of the block that is being read.
    block: Option<(String, String)>,
    html: String,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn event(&mut self, event: Event<'_>, range: Range<usize>) {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let language = match kind {
                    CodeBlockKind::Fenced(info) => {
                        info.split([' ', ',', '{']).next().unwrap_or_default().to_owned()
                    }
                    CodeBlockKind::Indented => String::new(),
                };
                self.block = Some((language, String::new()));
            }
            Event::End(TagEnd::CodeBlock) => {
                if let Some((language, content)) = self.block.take() {
                    self.block_ends(&language, content, self.line(range.start));
                }
            }
            Event::Start(Tag::HtmlBlock) => self.html.clear(),
            Event::Html(html) => self.html.push_str(&html),
            Event::End(TagEnd::HtmlBlock) => {
                let html = std::mem::take(&mut self.html);
                let line = self.line(range.start);
                for comment in comments(&html) {
                    self.comment(comment, line);
                }
                if !html.trim_start().starts_with("<!--") && html.contains("```") {
                    self.problem(line, "a fence in HTML is no block: put an empty line above it");
                }
            }
            Event::InlineHtml(html) => {
                for comment in comments(&html) {
                    if directive(comment).is_some() {
                        self.problem(self.line(range.start), "the comment has to be on a line of its own");
                    }
                }
            }
            Event::Text(text) if self.block.is_some() => {
                if let Some((_, content)) = &mut self.block {
                    content.push_str(&text);
                }
            }
            Event::Code(code) => {
                let command = code.split_whitespace().collect::<Vec<_>>().join(" ");
                if is_command(&command) {
                    self.page.spans.push(Span { line: self.line(range.start), command });
                }
                if self.in_heading {
                    self.heading.push_str(&code);
                }
            }
            Event::Text(text) if self.in_heading => self.heading.push_str(&text),
            Event::Start(tag) => {
                self.nothing_is_pending(self.line(range.start));
                self.in_heading = matches!(tag, Tag::Heading { .. });
                if self.in_heading {
                    self.heading.clear();
                }
            }
            Event::End(TagEnd::Heading(_)) => self.in_heading = false,
            _ => {}
        }
    }

    fn line(&self, offset: usize) -> usize {
        self.text.get(..offset).unwrap_or_default().matches('\n').count() + 1
    }

    fn problem(&mut self, line: usize, words: impl std::fmt::Display) {
        self.problems.push(format!("{}:{line}: {words}", self.page.path));
    }

    /// What a comment says of the next block must be followed by it.
    fn nothing_is_pending(&mut self, line: usize) {
        for about in std::mem::take(&mut self.about) {
            self.problem(line, format!("there is no block directly after {about:?}"));
        }
    }

    fn comment(&mut self, comment: &str, line: usize) {
        let Some((name, value)) = directive(comment) else { return };
        if value.is_empty() {
            return self.problem(line, format!("{name}: says nothing"));
        }
        match name {
            "commands" => self.environment(value, line),
            "with" => match value.split_once('=') {
                Some((word, value)) => self.values.push((word.to_owned(), value.to_owned(), false)),
                None => self.problem(line, "with: needs WORD=VALUE"),
            },
            "run" => {
                self.nothing_is_pending(line);
                self.step(line, Action::Hidden(format!("{value}\n")), None);
            }
            "not run" => self.about.push(About::NotRun(value.to_owned())),
            "file" => self.about.push(About::File(value.to_owned())),
            "refused" => self.about.push(About::Refused(value.to_owned())),
            _ => {
                let known = "commands, with, run, not run, file and refused";
                self.problem(line, format!("{name}: unknown; there are {known}"));
            }
        }
    }

    fn environment(&mut self, name: &str, line: usize) {
        let environment = match name {
            "files" => Environment::Files,
            "infrastructure" => Environment::Infrastructure,
            "tenant" => Environment::Tenant,
            "empty" => Environment::Empty,
            _ => {
                let known = "files, infrastructure, tenant and empty";
                return self.problem(line, format!("commands: {name}: unknown; there are {known}"));
            }
        };
        if self.page.environment.replace(environment).is_some() {
            self.problem(line, "commands: is there twice; a page is run in one place");
        }
    }

    fn step(&mut self, line: usize, action: Action, refused: Option<String>) {
        let heading = self.heading.trim().to_owned();
        self.page.steps.push(Step { line, heading, action, refused });
    }

    fn block_ends(&mut self, language: &str, content: String, line: usize) {
        let (mut reason, mut file, mut refused) = (None, None, None);
        for about in std::mem::take(&mut self.about) {
            match about {
                About::NotRun(words) => reason = Some(words),
                About::File(name) => file = Some(name),
                About::Refused(words) => refused = Some(words),
            }
        }
        if let Some(reason) = reason {
            if file.is_some() || refused.is_some() {
                self.problem(line, "not run: leaves nothing else to say");
            }
            return self.page.not_run.push(NotRun { line, script: content, reason });
        }
        if let Some(file) = &file {
            self.step(line, Action::Write { file: file.clone(), text: content.clone() }, None);
        }
        match language {
            "sh" | "bash" if file.is_none() => self.step(line, Action::Run(content), refused),
            "console" if refused.is_some() => self.problem(line, "refused: what is shown says so already"),
            "console" => match console::parse(&content) {
                Ok(shown) => self.step(line, Action::Show(shown), None),
                Err(words) => self.problem(line, words),
            },
            "yaml" | "yml" | "json" => match are_objects(&content) {
                Ok(true) => self.step(line, Action::Apply(content), refused),
                Ok(false) if refused.is_some() => self.problem(line, "refused: this isn't an object"),
                Ok(false) => {}
                Err(words) => self.problem(line, words),
            },
            _ if file.is_some() => {}
            // How a page is written, not a page.
            "markdown" | "md" => {}
            _ if OTHER_SHELLS.contains(&language) => {
                self.problem(line, "call it sh, or console with its output");
            }
            // In a drawing, indented, it is a name.
            _ if content.lines().any(|line| !line.starts_with(' ') && is_command(line)) => {
                self.problem(line, "this is a command: call it sh, or console with its output");
            }
            _ if refused.is_some() => self.problem(line, "refused: this is no command and no object"),
            _ => {}
        }
    }

    fn finish(mut self) -> Result<Page, Vec<String>> {
        let end = self.line(self.text.len());
        self.nothing_is_pending(end);
        self.put_values_in();
        let unused: Vec<String> =
            self.values.iter().filter(|(_, _, used)| !used).map(|(word, _, _)| word.clone()).collect();
        for word in unused {
            self.problem(1, format!("with: {word} is nowhere in what is run"));
        }
        if let Some(first) = self.page.steps.first().map(|step| step.line) {
            match self.page.environment {
                None => {
                    self.problem(
                        first,
                        "name where this is run: <!-- commands: ... -->; or say why it isn't",
                    );
                }
                Some(Environment::Files) => {
                    let objects = self.page.steps.iter().find(|step| matches!(step.action, Action::Apply(_)));
                    if let Some(line) = objects.map(|step| step.line) {
                        self.problem(line, "objects need a cluster");
                    }
                }
                Some(_) => {}
            }
        } else if self.page.environment.is_some() {
            self.problem(1, "commands: there is nothing to run");
        }
        if self.problems.is_empty() { Ok(self.page) } else { Err(self.problems) }
    }

    fn put_values_in(&mut self) {
        let values = &mut self.values;
        let mut put = |text: &mut String| {
            for (word, value, used) in values.iter_mut() {
                let (with, found) = replaced(text, word, value);
                *text = with;
                *used |= found;
            }
        };
        for step in &mut self.page.steps {
            match &mut step.action {
                Action::Run(text) | Action::Apply(text) | Action::Write { text, .. } => put(text),
                Action::Hidden(_) => {}
                Action::Show(shown) => {
                    for one in shown {
                        put(&mut one.command);
                        put(&mut one.output);
                    }
                }
            }
        }
        self.page.not_run.iter_mut().for_each(|block| put(&mut block.script));
        self.page.spans.iter_mut().for_each(|span| put(&mut span.command));
    }
}

/// The comments in a piece of HTML.
fn comments(html: &str) -> Vec<&str> {
    html.split("<!--").skip(1).filter_map(|rest| rest.split_once("-->")).map(|(comment, _)| comment).collect()
}

/// Name and value of a comment that is for us; all others begin otherwise.
fn directive(comment: &str) -> Option<(&str, &str)> {
    let (name, value) = comment.trim().split_once(':')?;
    let ours = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == ' ');
    ours.then(|| (name, value.trim()))
}

/// Whether these documents are objects that an API server knows. What only a client reads, as a Kustomization, isn't.
fn are_objects(text: &str) -> Result<bool, String> {
    let documents: Vec<Value> =
        shipped::objects(text).map_err(|error| format!("can't be read: {error:#}"))?;
    let is_object = |document: &Value| {
        let group = document["apiVersion"].as_str().unwrap_or_default();
        document["kind"].is_string() && !group.is_empty() && !group.starts_with("kustomize.config.k8s.io/")
    };
    Ok(!documents.is_empty() && documents.iter().all(is_object))
}

/// A text with another word in the place of a whole word, and whether it was there.
fn replaced(text: &str, word: &str, value: &str) -> (String, bool) {
    let in_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    // A word that begins or ends with something else, as `<name>`, is delimited by that.
    let (first, last) = (word.starts_with(in_word), word.ends_with(in_word));
    let (mut out, mut rest, mut found) = (String::new(), text, false);
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        let whole = !(first && (before.ends_with(in_word) || (before.is_empty() && out.ends_with(in_word))))
            && !(last && after.starts_with(in_word));
        out.push_str(before);
        out.push_str(if whole { value } else { word });
        found |= whole;
        rest = after;
    }
    out.push_str(rest);
    (out, found)
}

/// The file of a page as a name of one directory.
pub fn slug(path: &str) -> String {
    Path::new(path).with_extension("").to_string_lossy().replace('/', "-")
}

//! A report as people read it. A command says once what it shows; the terminal gets it as text, the console as HTML.

use std::fmt::Display;
use std::io::{self, Write};

use anstyle::Style;
use clap::{Args, ValueEnum};
use maud::{Markup, html};
use outrigger_core::text::truncate;
use serde::Serialize;

use crate::files::print_json;
use crate::style::{BAD, BOLD, DIM, GOOD, ODD};

/// Most characters of a text. Node affinity can have a megabyte; JSON has all of it.
const MAX_TEXT: usize = 4096;

/// Most items of a list that HTML shows.
const MAX_ITEMS: usize = 50;

/// How something is. What is worst comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Grade {
    /// It is wrong.
    Bad,
    /// It deserves attention.
    Odd,
    /// It is as it should be.
    Good,
}

impl Grade {
    /// A row's state in a word, for those who see neither colour nor shape.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Bad => "wrong",
            Self::Odd => "look",
            Self::Good => "good",
        }
    }
}

/// How a text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Plain,
    /// A heading.
    Bold,
    /// It matters less.
    Dim,
    /// It has a colour, and in HTML a shape.
    Graded(Grade),
}

impl Look {
    fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Bold => BOLD,
            Self::Dim => DIM,
            Self::Graded(Grade::Bad) => BAD,
            Self::Graded(Grade::Odd) => ODD,
            Self::Graded(Grade::Good) => GOOD,
        }
    }
}

/// A part of a line.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    look: Look,
    text: String,
}

impl<T: Display> From<T> for Span {
    fn from(text: T) -> Self {
        look(Look::Plain, text)
    }
}

/// A text that looks like this.
pub(crate) fn look(look: Look, text: impl Display) -> Span {
    Span { look, text: plain(&text.to_string()) }
}

/// A heading.
pub(crate) fn bold(text: impl Display) -> Span {
    look(Look::Bold, text)
}

/// What matters less.
pub(crate) fn dim(text: impl Display) -> Span {
    look(Look::Dim, text)
}

/// A state.
pub(crate) fn graded(grade: Grade, text: impl Display) -> Span {
    look(Look::Graded(grade), text)
}

/// What is as it should be.
pub(crate) fn good(text: impl Display) -> Span {
    graded(Grade::Good, text)
}

/// What deserves attention.
pub(crate) fn odd(text: impl Display) -> Span {
    graded(Grade::Odd, text)
}

/// What is wrong.
pub(crate) fn bad(text: impl Display) -> Span {
    graded(Grade::Bad, text)
}

/// A line, with lines below it that are about the same.
#[derive(Debug, Default, Clone)]
pub(crate) struct Item {
    spans: Vec<Span>,
    below: Vec<Item>,
}

/// An [`Item`] of texts and spans, which stand beside each other.
macro_rules! item {
    ($($span:expr),+ $(,)?) => {
        $crate::document::Item::of(vec![$($crate::document::Span::from($span)),+])
    };
}
pub(crate) use item;

impl Item {
    pub(crate) fn of(spans: Vec<Span>) -> Self {
        Self { spans, below: Vec::new() }
    }

    /// With this in the line too.
    pub(crate) fn and(mut self, span: impl Into<Span>) -> Self {
        self.spans.push(span.into());
        self
    }

    /// With these lines below it.
    pub(crate) fn with(mut self, below: impl IntoIterator<Item = Item>) -> Self {
        self.below.extend(below);
        self
    }

    /// Adds a line below it.
    pub(crate) fn add(&mut self, below: Item) {
        self.below.push(below);
    }

    fn text(&self, depth: usize, out: &mut impl Write) -> io::Result<()> {
        let line = self.spans.iter().map(Span::text).collect::<String>();
        writeln!(out, "{:depth$}{}", "", line.trim_end())?;
        self.below.iter().try_for_each(|item| item.text(depth + 2, out))
    }

    fn line(&self) -> Markup {
        html! { @for span in &self.spans { (span.html()) } }
    }

    fn html(&self) -> Markup {
        html! { (self.line()) (list(&self.below)) }
    }
}

fn list(items: &[Item]) -> Markup {
    html! {
        @if !items.is_empty() {
            ul.plain {
                @for item in items.iter().take(MAX_ITEMS) { li { (item.html()) } }
                @if items.len() > MAX_ITEMS { li { "and " (items.len() - MAX_ITEMS) " more" } }
            }
        }
    }
}

impl Span {
    fn text(&self) -> String {
        let style = self.look.style();
        format!("{style}{}{style:#}", self.text)
    }

    fn html(&self) -> Markup {
        match self.look {
            Look::Graded(grade) => state(grade, &self.text),
            Look::Bold => html! { strong { (self.text) } },
            Look::Plain | Look::Dim => html! { (self.text) },
        }
    }
}

/// A row of a [`Table`].
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) grade: Grade,
    pub(crate) cells: Vec<String>,
    /// What else is said of it.
    pub(crate) below: Vec<Item>,
}

impl Row {
    pub(crate) fn new(grade: Grade, cells: impl IntoIterator<Item = impl Display>) -> Self {
        let cell = |cell: String| if cell.is_empty() { "-".to_owned() } else { plain(&cell) };
        let cells = cells.into_iter().map(|text| cell(text.to_string())).collect();
        Self { grade, cells, below: Vec::new() }
    }

    /// Its cells as HTML, the first with its state and the link.
    pub(crate) fn html(&self, link: Option<&str>) -> Markup {
        html! {
            @for (i, cell) in self.cells.iter().enumerate() {
                @if i > 0 { td { (cell) } }
                @else {
                    th scope="row" {
                        (state(self.grade, self.grade.word())) " "
                        @if let Some(link) = link { a href=(link) { (cell) } } @else { (cell) }
                    }
                }
            }
        }
    }
}

/// Columns as wide as their widest cell.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Its name, for those who don't see it.
    pub(crate) name: String,
    pub(crate) heads: Vec<&'static str>,
    pub(crate) rows: Vec<Row>,
    /// Most rows that are shown.
    pub(crate) most: Option<usize>,
}

impl Table {
    fn shown(&self) -> (&[Row], Option<String>) {
        let (shown, more) = self.rows.split_at(self.most.unwrap_or(usize::MAX).min(self.rows.len()));
        let problems = more.iter().filter(|row| row.grade != Grade::Good).count();
        let more = format!("and {} more, {problems} of them with problems", more.len());
        (shown, (shown.len() < self.rows.len()).then_some(more))
    }

    fn text(&self, out: &mut impl Write) -> io::Result<()> {
        let (rows, more) = self.shown();
        let mut widths: Vec<usize> = self.heads.iter().map(|head| head.chars().count()).collect();
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(&row.cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |row: &mut dyn Iterator<Item = &str>| {
            let cells = row.zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        if !rows.is_empty() {
            writeln!(out, "{}", line(&mut self.heads.iter().copied()))?;
        }
        for row in rows {
            let style = if row.grade == Grade::Good { Style::new() } else { Look::Graded(row.grade).style() };
            writeln!(out, "{style}{}{style:#}", line(&mut row.cells.iter().map(String::as_str)))?;
            row.below.iter().try_for_each(|item| item.text(4, out))?;
        }
        more.map_or(Ok(()), |more| writeln!(out, "{more}"))
    }

    pub(crate) fn html(&self) -> Markup {
        let (rows, more) = self.shown();
        html! {
            @if !rows.is_empty() {
                div.table role="region" aria-label=(plain(&self.name)) tabindex="0" {
                    table {
                        thead { tr { @for head in &self.heads { th scope="col" { (head) } } } }
                        tbody {
                            @for row in rows {
                                tr { (row.html(None)) }
                                @for item in &row.below { tr { td colspan=(self.heads.len()) { (item.html()) } } }
                            }
                        }
                    }
                }
            }
            @if let Some(more) = more { p { (more) } }
        }
    }
}

#[derive(Debug)]
enum Block {
    /// A line of its own, or the head of what follows.
    Item(Item),
    /// What the reader has to know before.
    Note(String),
    Table(Table),
    /// An empty line, where lines are all that there is.
    Gap,
}

/// What a report says, from top to bottom.
#[derive(Debug, Default)]
pub(crate) struct Document(Vec<Block>);

impl Document {
    pub(crate) fn add(&mut self, item: Item) {
        self.0.push(Block::Item(item));
    }

    pub(crate) fn gap(&mut self) {
        self.0.push(Block::Gap);
    }

    pub(crate) fn table(&mut self, table: Table) {
        self.0.push(Block::Table(table));
    }

    /// What another one says, after this.
    pub(crate) fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// What isn't known, or isn't right with what was read.
    pub(crate) fn notes(&mut self, notes: &[String]) {
        self.0.extend(notes.iter().map(|note| Block::Note(plain(note))));
    }

    /// Writes it for a terminal.
    pub(crate) fn text(&self, out: &mut impl Write) -> io::Result<()> {
        self.0.iter().try_for_each(|block| match block {
            Block::Item(item) => item.text(0, out),
            Block::Note(note) => writeln!(out, "{ODD}note:{ODD:#} {note}"),
            Block::Table(table) => table.text(out),
            Block::Gap => writeln!(out),
        })
    }

    /// The same for the console.
    pub(crate) fn html(&self) -> Markup {
        html! { @for block in &self.0 { (block.html()) } }
    }
}

impl Block {
    fn html(&self) -> Markup {
        match self {
            Self::Item(item) if item.spans.iter().any(|span| span.look == Look::Bold) => {
                html! { h2 { @for span in &item.spans { (span.text) } } (list(&item.below)) }
            }
            Self::Item(item) => html! { p { (item.line()) } (list(&item.below)) },
            Self::Note(note) => html! { p.notice { (note) } },
            Self::Table(table) => table.html(),
            Self::Gap => html! {},
        }
    }
}

/// A state as HTML: its shape, its colour and its word.
pub(crate) fn state(grade: Grade, word: &str) -> Markup {
    let (class, shape) = match grade {
        Grade::Bad => ("bad", "■"),
        Grade::Odd => ("odd", "▲"),
        Grade::Good => ("good", "●"),
    };
    html! { span class=(class) { span aria-hidden="true" { (shape) } " " (plain(word)) } }
}

/// Whether it is a control character, or a mark of direction.
pub(crate) fn changes_a_terminal(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text on one line, without control characters and marks of direction, because some of it is written by tenants.
pub(crate) fn plain(text: &str) -> String {
    let one = |c: char| match c {
        '\n' => " ".to_owned(),
        c if changes_a_terminal(c) => c.escape_default().to_string(),
        c => c.to_string(),
    };
    truncate(text, MAX_TEXT).chars().map(one).collect()
}

/// As [`plain`], with its lines.
pub(crate) fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// How a report is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text for people, in colour on a terminal.
    #[default]
    #[value(alias = "table")]
    Text,
    /// JSON; the command's page in docs describes it.
    Json,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OutputArgs {
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

impl OutputArgs {
    pub(crate) fn is_text(&self) -> bool {
        self.output == Format::Text
    }

    /// Prints a report to standard output.
    pub(crate) fn print(&self, report: &impl Readable) -> anyhow::Result<()> {
        match self.output {
            Format::Json => print_json(report),
            Format::Text => Ok(report.document().text(&mut anstream::stdout().lock())?),
        }
    }
}

/// What a command reports. As JSON it is what serialises.
pub(crate) trait Readable: Serialize {
    /// What people read of it.
    fn document(&self) -> Document;
}

#[cfg(test)]
impl Document {
    /// What a terminal without colours shows.
    pub(crate) fn uncoloured(&self) -> String {
        let mut text = Vec::new();
        self.text(&mut anstream::StripStream::new(&mut text)).unwrap();
        String::from_utf8(text).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        let mut document = Document::default();
        document.notes(&[text.to_owned()]);
        document
            .add(item![bold("rule"), " ", text].with([item![bad("error:"), " ", text].with([item![text]])]));
        document.gap();
        let rows = [Grade::Bad, Grade::Good, Grade::Odd].map(|grade| Row::new(grade, [text, ""]));
        let heads = vec!["HEAD", "OTHER"];
        document.table(Table { name: text.to_owned(), heads, rows: rows.into(), most: Some(2) });
        document
    }

    #[test]
    fn text_and_html_say_the_same() {
        let document = document("x");
        let text = "note: x\nrule x\n  error: x\n    x\n\nHEAD  OTHER\nx     -\nx     -\nand 1 more, 1 of them with problems\n";
        assert_eq!(document.uncoloured(), text);
        let html = document.html().into_string();
        let nested = "<h2>rule x</h2><ul class=\"plain\"><li><span class=\"bad\"><span aria-hidden=\"true\">■</span> error:</span> x\
                      <ul class=\"plain\"><li>x</li></ul></li></ul>";
        for part in [
            "<p class=\"notice\">x</p>",
            nested,
            "and 1 more, 1 of them with problems",
            "</span> wrong</span> x",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
    }

    #[test]
    fn no_text_changes_a_terminal_or_becomes_markup() {
        let document = document("<b>\u{1b}[2J\n\u{202e}");
        let text = document.uncoloured();
        assert!(text.contains(r"<b>\u{1b}[2J \u{202e}") && !text.contains(['\u{1b}', '\u{202e}']), "{text}");
        assert!(!document.html().into_string().contains("<b>"));
    }

    #[test]
    fn a_long_list_is_cut_in_html_and_not_on_a_terminal() {
        let mut document = Document::default();
        document.add(item!["all"].with((0..MAX_ITEMS + 3).map(|i| item![i])));
        assert_eq!(document.uncoloured().lines().count(), MAX_ITEMS + 4);
        let html = document.html().into_string();
        assert!(html.contains("<li>and 3 more</li>") && !html.contains("<li>52</li>"), "{html}");
    }
}

//! Tables in Markdown.

/// A text for a cell: on one line, with nothing in it that ends the cell or begins a tag.
pub(super) fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut out = String::with_capacity(line.len());
    let mut in_code = false;
    for c in line.chars() {
        match c {
            '`' => {
                in_code = !in_code;
                out.push(c);
            }
            '|' => out.push_str("\\|"),
            '<' if !in_code => out.push_str("&lt;"),
            _ => out.push(c),
        }
    }
    out
}

/// A text as code within a cell. Nothing for nothing.
pub(super) fn code(text: &str) -> String {
    match text {
        "" => String::new(),
        // A text with a backtick in it needs two around it.
        text if text.contains('`') => format!("`` {} ``", text.replace('|', "\\|")),
        text => cell(&format!("`{text}`")),
    }
}

/// A table. The cells are as they are to stand there.
pub(super) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
    let mut out = line(&head);
    out += &format!("|{}\n", "---|".repeat(N));
    for row in rows {
        out += &line(&row.each_ref().map(String::as_str));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_hold_any_text() {
        assert_eq!(cell("one\n  two"), "one two");
        assert_eq!(cell("a || b <c> `<d>`"), "a \\|\\| b &lt;c> `<d>`");
        assert_eq!(code("a|b"), "`a\\|b`");
        assert_eq!(code("<a>"), "`<a>`");
        assert_eq!(code("a `b`"), "`` a `b` ``");
        assert_eq!(code(""), "");
    }

    #[test]
    fn tables_have_a_head() {
        let rows = [["1".to_owned(), "2".to_owned()]];
        assert_eq!(table(["a", "b"], &rows), "| a | b |\n|---|---|\n| 1 | 2 |\n");
    }
}

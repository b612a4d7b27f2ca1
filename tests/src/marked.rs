//! Parts of pages that a program writes, between `<!-- NAME -->` and `<!-- end of NAME -->`.

use anyhow::Context;

/// A text in three: up to its mark, between the marks, and from the second mark on. An error if one of them is missing.
pub fn split<'a>(text: &'a str, name: &str) -> anyhow::Result<[&'a str; 3]> {
    let (begin, end) = (format!("<!-- {name} -->"), format!("<!-- end of {name} -->"));
    let from = text.find(&begin).with_context(|| format!("there is no {begin}"))? + begin.len();
    let to = from + text[from..].find(&end).with_context(|| format!("there is no {end} after {begin}"))?;
    Ok([&text[..from], &text[from..to], &text[to..]])
}

/// Puts other lines between the marks. An error if a mark is missing.
pub fn replaced(text: &str, name: &str, lines: &str) -> anyhow::Result<String> {
    let [before, _, after] = split(text, name)?;
    Ok(format!("{before}\n{lines}\n{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_between_the_marks_is_replaced_and_nothing_else() {
        let text = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n";
        assert_eq!(split(text, "x").unwrap()[1], "\nold\n");
        assert_eq!(replaced(text, "x", "new").unwrap(), "a\n<!-- x -->\nnew\n<!-- end of x -->\nb\n");
        assert!(replaced(text, "y", "new").is_err());
        assert!(replaced("<!-- end of x --><!-- x -->", "x", "new").is_err());
    }
}

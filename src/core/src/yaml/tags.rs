//! Tags at whose end the parser ends the program.

/// A text with a space before each comma that might follow a tag.
///
/// libyaml-safer panics at a comma right behind a tag in brackets, which kubectl takes for a part of the tag. It doesn't with the space,
/// and everything in the text begins and ends where it did: only the values of scalars with such a comma are others. So whoever
/// reads this text finds out whether the other one can be read.
pub(super) struct Spaced {
    pub(super) text: String,
    /// The bytes before each space, in their order.
    pub(super) spaces: Vec<usize>,
}

impl Spaced {
    /// `None`: no comma follows a tag.
    pub(super) fn new(text: &str) -> Option<Self> {
        let (mut spaced, mut spaces, mut written) = (String::new(), Vec::new(), 0);
        let (mut before, mut in_tag, mut in_angles) = (' ', false, false);
        for (at, character) in text.char_indices() {
            in_tag = match character {
                '!' => in_tag || before.is_whitespace() || "[]{},:?-'\"".contains(before),
                other => in_tag && !other.is_whitespace(),
            };
            // A tag in `!<` and `>` may have commas in it.
            in_angles = match character {
                '<' => before == '!',
                '!' | '>' => false,
                _ => in_angles,
            };
            if in_tag && !in_angles && character == ',' {
                spaced += &text[written..at];
                spaces.push(spaced.len());
                spaced.push(' ');
                written = at;
            }
            before = character;
        }
        spaced += &text[written..];
        (!spaces.is_empty()).then_some(Self { text: spaced, spaces })
    }
}

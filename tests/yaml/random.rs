//! Texts by chance, each by the same seed: pieces one after the other, whole trees, and trees with mistakes.

use outrigger_cases::yaml::PIECES;

use super::rules::compare;

/// Random numbers by a seed (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        for shift in [13, -7, 17] {
            self.0 ^= if shift > 0 { self.0 << shift } else { self.0 >> -shift };
        }
        usize::try_from(self.0 >> 11).unwrap() % limit
    }

    pub(crate) fn one_of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

/// `@` stands for the indentation.
const SCALARS: &[&str] = &[
    "a",
    "on",
    "0644",
    "1_000",
    "~",
    "",
    "1:30",
    "x y",
    "'it''s'",
    "\"q\\tq\"",
    "|\n@ x\n@ y\n",
    ">-\n@ x\n@\n@  y\n",
    "[1, a]",
    "{b: c}",
    "*a",
    "*b",
    "!!str 5",
    "!x y",
    "a#b",
    "a #c",
    "x: y",
    "-x",
    "- x",
    "?x",
    ":x",
    "x:",
    "\"a\n@ b\"",
    "'a\n\n@ b'",
    "a\n@ b",
    "&a v",
    "&b {q: 1}",
    "[a, [b]]",
    "[a: b]",
    "{a, b: }",
    "{a:1}",
    "{\"a\":1}",
    "[\"a\":1]",
    "a?b",
    "[a?b]",
    "[?a]",
    "{? a : b}",
    "<<",
    "0x1F",
    "1e3",
    "+5",
    "-0",
    "18446744073709551615",
    "9223372036854775808",
    "\t",
    "x\t",
    "|+\n@ x\n\n",
    "|1\n@ x\n",
    ">\n\n@ x\n",
];

const KEYS: &[&str] = &[
    "a",
    "b",
    "c",
    "<<",
    "\"<<\"",
    "on",
    "1",
    "0x10",
    "'k'",
    "~",
    "? d",
    "&a e",
    "*a ",
    "!!str 7",
    "1.5",
    "a b",
    "\"x\\ny\"",
    "[a]",
    "k:",
    "-k",
    "?k",
    "y",
];

/// Most lists and objects within each other.
const DEPTH: usize = 4;

fn soup(random: &mut Random) -> String {
    (0..=random.below(14)).map(|_| random.one_of(PIECES)).collect()
}

fn value(random: &mut Random, depth: usize, indentation: &str, text: &mut String) {
    match random.below(if depth < DEPTH { 4 } else { 1 }) {
        0 => *text += &format!(" {}\n", random.one_of(SCALARS).replace('@', indentation)),
        1 => {
            *text += random.one_of(&["\n", "\n", "\n", " &a\n"]);
            object(random, depth + 1, &format!("{indentation}  "), text);
        }
        2 => {
            *text += "\n";
            let deeper = random.one_of(&["", "  "]);
            list(random, depth + 1, &format!("{indentation}{deeper}"), text);
        }
        _ => {
            *text += random.one_of(&["\n", "\n", " # c\n"]);
            object(random, depth + 1, &format!("{indentation} "), text);
        }
    }
}

fn object(random: &mut Random, depth: usize, indentation: &str, text: &mut String) {
    for _ in 0..=random.below(3) {
        if random.below(20) == 0 {
            *text += random.one_of(&["# c\n", "\n"]);
        }
        let keys = if random.below(2) == 0 { &KEYS[..4] } else { KEYS };
        *text += &format!("{indentation}{}:", random.one_of(keys));
        value(random, depth, indentation, text);
    }
}

fn list(random: &mut Random, depth: usize, indentation: &str, text: &mut String) {
    for _ in 0..=random.below(3) {
        *text += &format!("{indentation}-");
        value(random, depth, &format!("{indentation}  "), text);
    }
}

fn tree(random: &mut Random) -> String {
    let mut text = String::new();
    for i in 0..=random.below(2) {
        if i > 0 || random.below(5) == 0 {
            text += random.one_of(&["---\n", "--- # c\n", "...\n---\n", "---\r\n"]);
        }
        if random.below(3) == 0 { list(random, 0, "", &mut text) } else { object(random, 0, "", &mut text) }
    }
    match random.below(8) {
        0 => text.replace('\n', "\r\n"),
        1 => format!("\u{feff}{text}"),
        2 => text.trim_end().to_owned(),
        _ => text,
    }
}

fn with_mistakes(random: &mut Random) -> String {
    let mut characters: Vec<char> = tree(random).chars().collect();
    for _ in 0..random.below(3) {
        let (at, other) = (random.below(characters.len()), random.below(characters.len()));
        match random.below(3) {
            0 => characters[at] = ' ',
            1 => drop(characters.splice(at..at, random.one_of(PIECES).chars())),
            _ => characters.swap(at, other),
        }
    }
    characters.into_iter().collect()
}

#[test]
fn texts_by_chance_are_read_as_by_kubectl_or_refused() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let texts: Vec<String> =
        (0..4_000).flat_map(|_| [soup, tree, with_mistakes].map(|text| text(&mut random))).collect();
    let (count, _) = compare(&texts);
    println!("{} texts: {count:?}", texts.len());
    assert!(count.alike > 1_000 && count.refused_alone * 10 < texts.len(), "{count:?}");
}

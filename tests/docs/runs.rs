//! How pages are run: what is reported about those that are wrong.

use outrigger_tests::page::Page;

use crate::docs::environment::Place;
use crate::docs::run::{Comparison, page, plain};

/// What goes wrong on a page without a cluster.
fn failures(name: &str, blocks: &str) -> Vec<String> {
    let read = Page::parse("page.md", &format!("<!-- commands: files -->\n\n{blocks}")).unwrap();
    page(&read, &Place::without_cluster(name), Comparison::Exact)
}

fn passes(name: &str, blocks: &str) {
    assert_eq!(failures(name, blocks), Vec::<String>::new());
}

fn fails(name: &str, blocks: &str, words: &str) {
    let said = failures(name, blocks).join("\n");
    assert!(said.contains(words), "{said:?}");
}

#[test]
fn a_page_is_one_shell_from_top_to_bottom() {
    let blocks = "```sh\nf() { echo \"$1 $A\"; }\nA=1\n```\n<!-- run: B=$(f 2) -->\n\n```console\n$ f 3; echo $B\n3 1\n2 1\n$ cd docs\n```\n\n```sh\n[ \"$A\" = 1 ]\n[ -f rules.md ]\n```\n";
    passes("one-shell", blocks);
}

#[test]
fn what_fails_is_reported_with_its_line() {
    fails(
        "fails",
        "```sh\ntrue\n```\n\n```sh\necho why >&2; false; true\n```\n",
        "page.md:7: exit status: 1\nwhy\n",
    );
    fails("pipe", "```sh\nfalse | true\n```\n", "page.md:3: exit status: 1");
    fails("early", "```sh\nexit 0\n```\n\n```sh\nfalse\n```\n", "page.md:3: exit status: 0");
    fails("unset", "```sh\necho $nobody\n```\n", "nobody: unbound variable");
    fails("hidden", "<!-- run: [ 1 = 2 ] -->\n", "page.md:3: exit status: 1");
    fails("syntax", "```sh\nif true\n```\n", "syntax error");
    // It would take the rest of the page with it.
    fails("open", "```sh\ncat << EOM\n```\n\n```sh\nfalse\n```\n", "page.md:3: ");
}

#[test]
fn what_is_printed_is_what_is_shown() {
    passes("printed", "```console\n$ echo a; echo b >&2\na\nb\n$ false\n$ true\n```\n");
    for (name, block) in
        [("more", "$ echo a; echo b\na\n"), ("less", "$ echo a\na\nb\n"), ("other", "$ echo 5s\n6s\n")]
    {
        fails(name, &format!("```console\n{block}```\n"), "page.md:3: $ echo");
    }
}

#[test]
fn what_is_refused_fails_and_says_why() {
    let block = "```sh\necho no such thing; exit 3\n```\n";
    passes("refused", &format!("<!-- refused: no such -->\n{block}\n```sh\ntrue\n```\n"));
    fails(
        "refused-otherwise",
        &format!("<!-- refused: forbidden -->\n{block}"),
        "should have been refused with: forbidden",
    );
    fails("not-refused", "<!-- refused: no such -->\n```sh\necho no such\n```\n", "should have been refused");
}

#[test]
fn files_are_there_for_later_commands() {
    let blocks = "<!-- file: ../a/b.yaml -->\n```yaml\nx: |\n  `1` $y\n```\n\n```console\n$ cat ../a/b.yaml\nx: |\n  `1` $y\n```\n";
    passes("files", blocks);
}

#[test]
fn what_clusters_never_have_in_common_is_the_same() {
    let one = "NAME   READY   AGE\nweb-1  1/1     45s\nuid: 8f14e45f-ceea-467f-a8ae-0242ac120002\n";
    let two = "NAME   READY   AGE\nweb-1  1/1     3m2s\nuid: 0f14e45f-ceea-467f-a8ae-0242ac120003\n";
    assert_eq!(plain(one), plain(two));
    assert_eq!(plain("at 2026-01-01T00:00:00Z"), plain("at 2027-02-03T04:05:06.7Z"));
    assert_eq!(plain("https://127.0.0.1:1/a x"), plain("https://127.0.0.1:22/a x"));
    for (one, two) in [
        ("web-1  1/1", "web-1 1/1"),
        ("ages 5x", "ages 6x"),
        ("replicas 3", "replicas 4"),
        ("web-1 1/1 5s", "web-2 1/1 5s"),
        ("10.0.0.1:80", "10.0.0.1:81"),
        ("a\n", "a\n\nb\n"),
    ] {
        assert_ne!(plain(one), plain(two));
    }
}

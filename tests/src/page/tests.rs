//! What is found in a page.

use super::{Action, Environment, NotRun, Page, Shown, Span};

fn page(text: &str) -> Page {
    Page::parse("page.md", text).unwrap()
}

/// What is done, without what is around it.
fn actions(text: &str) -> Vec<Action> {
    page(text).steps.into_iter().map(|step| step.action).collect()
}

fn rejects(text: &str, words: &str) {
    let problems = Page::parse("page.md", text).unwrap_err().join("\n");
    assert!(problems.contains(words), "{problems}");
}

fn shown(command: &str, output: &str) -> Shown {
    Shown { command: command.to_owned(), output: output.to_owned() }
}

const FILES: &str = "<!-- commands: files -->\n\n";

#[test]
fn commands_are_found_with_their_lines_and_headings() {
    let page =
        page("<!-- commands: tenant -->\n# One `two`\n\n```sh\na\nb\n```\n\n## Three\n```bash\nc\n```\n");
    assert_eq!(page.environment, Some(Environment::Tenant));
    let found: Vec<_> =
        page.steps.iter().map(|step| (step.line, step.heading.as_str(), &step.action)).collect();
    let run = |script: &str| Action::Run(script.to_owned());
    assert_eq!(found, [(4, "One two", &run("a\nb\n")), (10, "Three", &run("c\n"))]);
    assert_eq!(page.commands("Three"), ["c\n"]);
}

#[test]
fn fences_in_lists_lose_their_indentation() {
    let text = format!(
        "{FILES}1. first\n\n   ```sh\n   if true; then\n     a\n   fi\n   ```\n2. second\n   <!-- not run: far -->\n   ```sh\n   b\n   ```\n"
    );
    let page = page(&text);
    assert_eq!(page.steps[0].action, Action::Run("if true; then\n  a\nfi\n".to_owned()));
    assert_eq!(page.not_run, [NotRun { line: 12, script: "b\n".to_owned(), reason: "far".to_owned() }]);
}

#[test]
fn a_fence_in_a_fence_is_text() {
    let text = "````markdown\n<!-- commands: nowhere -->\n```sh\nkubectl get pods\n```\n````\n\n~~~text\n```sh\n~~~\n";
    assert_eq!(page(text).steps, []);
}

#[test]
fn scripts_stay_as_they_are() {
    let script = "x=$(cat << EOM\n# no heading\n  `y` <!-- run: no -->\nEOM\n)\nA=1 b \\\n  --c\n";
    assert_eq!(actions(&format!("{FILES}```sh\n{script}```\n")), [Action::Run(script.to_owned())]);
}

#[test]
fn sessions_have_commands_and_what_they_print() {
    let text = format!(
        "{FILES}```console\n$ A=1 a | b\n1\n\n  $ 2\n$ c \\\n>   --d\n3\n$ e 'x\ny' z\n$ f <<EOM\n$ it's\nEOM\n4\n$ g <<< it\n```\n"
    );
    let expected = vec![
        shown("A=1 a | b", "1\n\n  $ 2\n"),
        shown("c \\\n  --d", "3\n"),
        shown("e 'x\ny' z", ""),
        shown("f <<EOM\n$ it's\nEOM", "4\n"),
        shown("g <<< it", ""),
    ];
    assert_eq!(actions(&text), [Action::Show(expected)]);
    rejects(&format!("{FILES}```console\nout\n```\n"), "begins with a command, not with \"out\"");
    rejects(&format!("{FILES}```console\n```\n"), "begins with a command");
    rejects(&format!("{FILES}```console\n$ a <<EOM\nb\n```\n"), "this has no end");
}

#[test]
fn hidden_commands_are_steps_of_their_own() {
    let text = format!(
        "{FILES}<!-- run: a -->\n<!-- run:\nb --c\n\nd\n-->\n\n```sh\ne\n```\n<!-- run: f --><!-- run: g -->\n"
    );
    let hidden = |script: &str| Action::Hidden(script.to_owned());
    let run = Action::Run("e\n".to_owned());
    assert_eq!(actions(&text), [hidden("a\n"), hidden("b --c\n\nd\n"), run, hidden("f\n"), hidden("g\n")]);
}

#[test]
fn whole_objects_are_applied_and_parts_of_them_are_not() {
    let object = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n";
    let place = "<!-- commands: empty -->\n\n";
    let text = format!("{place}```yaml\n{object}---\n{object}```\n\n```yaml\nspec: {{}}\n```\n");
    assert_eq!(actions(&text), [Action::Apply(format!("{object}---\n{object}"))]);
    rejects(&format!("{FILES}```yaml\n{object}```\n"), "objects need a cluster");
    rejects("```yaml\n{\n```\n", "can't be read");
    let refused = page(&format!("{place}<!-- refused: no such -->\n```yaml\n{object}```\n"));
    assert_eq!(refused.steps[0].refused.as_deref(), Some("no such"));
}

#[test]
fn blocks_become_files() {
    let file = |text: &str| Action::Write { file: "a/b".to_owned(), text: text.to_owned() };
    let client = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n";
    assert_eq!(actions(&format!("{FILES}<!-- file: a/b -->\n```yaml\n{client}```\n")), [file(client)]);
    // A script that is a file isn't run here.
    assert_eq!(actions(&format!("{FILES}<!-- file: a/b -->\n```sh\nc\n```\n")), [file("c\n")]);
    let object = "apiVersion: v1\nkind: Namespace\n";
    let text = format!("<!-- commands: empty -->\n<!-- file: a/b -->\n```yaml\n{object}```\n");
    assert_eq!(actions(&text), [file(object), Action::Apply(object.to_owned())]);
}

#[test]
fn words_stand_for_values() {
    let text = format!(
        "{FILES}<!-- with: POD=web-1 -->\n<!-- with: <node>=n -->\n<!-- run: echo POD -->\n\n```sh\na POD POD_NAME $POD <node>\n```\n\n`kubectl logs POD`\n"
    );
    let page = page(&text);
    assert_eq!(page.steps[0].action, Action::Hidden("echo POD\n".to_owned()));
    assert_eq!(page.steps[1].action, Action::Run("a web-1 POD_NAME $web-1 n\n".to_owned()));
    assert_eq!(page.spans[0].command, "kubectl logs web-1");
    rejects(&format!("{FILES}<!-- with: X=1 -->\n```sh\na\n```\n"), "with: X is nowhere");
    rejects("<!-- with: X -->\n", "needs WORD=VALUE");
}

#[test]
fn commands_in_running_text_are_found() {
    let text = "Look: `kubectl get\npods`, `kubectl`, `x y`.\n\n| a |\n|---|\n| `helm list` |\n";
    let spans = page(text).spans;
    let span = |line: usize, command: &str| Span { line, command: command.to_owned() };
    assert_eq!(spans, [span(1, "kubectl get pods"), span(6, "helm list")]);
}

#[test]
fn what_has_no_place_and_no_reason_is_an_error() {
    rejects("text\n\n```sh\na\n```\n", "page.md:3: name where this is run");
    rejects("```console\n$ a\n```\n", "name where this is run");
    rejects("```yaml\napiVersion: v1\nkind: Pod\n```\n", "name where this is run");
    assert_eq!(page("<!-- not run: a reason -->\n```sh\na\n```\n").steps, []);
    for disguise in ["```text\nkubectl get pods\n```\n", "```\n$ kubectl get pods\n```\n", "    helm list\n"]
    {
        rejects(disguise, "this is a command");
    }
    rejects("```fish\nkubectl get pods\n```\n", "this is a command");
    rejects("<details>\n```sh\na\n```\n</details>\n", "a fence in HTML");
    rejects("<details>\n\n```sh\na\n```\n</details>\n", "name where this is run");
    // In a drawing it is a name.
    assert_eq!(page("```\n  outrigger agent\n```\n").steps, []);
    rejects("```shell\na\n```\n", "call it sh");
}

#[test]
fn directives_are_known_complete_and_where_they_belong() {
    rejects("<!-- commands: moon -->\n", "commands: moon: unknown");
    rejects("<!-- comands: files -->\n", "comands: unknown");
    rejects("<!-- commands: files -->\n<!-- commands: tenant -->\n```sh\na\n```\n", "is there twice");
    rejects("<!-- commands: files -->\n", "there is nothing to run");
    rejects("<!-- not run: -->\n```sh\na\n```\n", "says nothing");
    rejects("<!-- not run: x -->\n\ntext\n\n```sh\na\n```\n", "no block directly after");
    rejects("<!-- file: x -->\n", "no block directly after");
    rejects(&format!("{FILES}text <!-- run: a --> text\n"), "on a line of its own");
    rejects(&format!("{FILES}<!-- refused: x -->\n```console\n$ a\n```\n"), "says so already");
    rejects(
        &format!("{FILES}<!-- refused: x -->\n<!-- not run: y -->\n```sh\na\n```\n"),
        "nothing else to say",
    );
    // Comments of other kinds are ignored.
    assert_eq!(page("<!-- TODO: x -->\n<!-- prettier-ignore -->\n<b>x: y</b>\n").steps, []);
}

//! The view "What if": rules that somebody types, and what `outrigger diff` predicts of them.

use maud::{Markup, html};
use outrigger_core::bounds::Bounds;

use super::page::{View, notice};
use super::query::FILTER;
use crate::diff::report::Report;

/// Names the text in errors.
pub(super) const PLACE: &str = "the text";

/// Most bytes of the rules: as many as a rule's template may have.
pub(super) const RULES: usize = 512 << 10;

/// What the rules may hold: about as much as three templates of the largest size, or 500 usual rules.
pub(super) const BOUNDS: Bounds = Bounds { bytes: RULES, values: 50_000, depth: 64 };

/// Most companions that are shown.
pub(super) const SHOWN: usize = 500;

/// What somebody has typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Form {
    /// Whose rules they are; empty: those of the tenant that the command line names, or of the only one.
    pub(super) tenant: String,
    /// YAML or JSON.
    pub(super) rules: String,
}

impl Form {
    /// An empty form.
    pub(super) fn of_tenant(tenant: &str) -> Self {
        Self { tenant: tenant.to_owned(), rules: String::new() }
    }

    /// Reads a form as browsers send it. Unknown fields are ignored.
    ///
    /// # Errors
    /// If the rules are too long.
    pub(super) fn read(body: &[u8]) -> Result<Self, String> {
        let mut this = Self::default();
        for (name, value) in form_urlencoded::parse(body) {
            match &*name {
                "tenant" => this.tenant = value.trim().chars().take(FILTER).collect(),
                "rules" => this.rules = value.into_owned(),
                _ => {}
            }
        }
        let bytes = this.rules.len();
        if bytes > RULES {
            return Err(format!(
                "the rules have {bytes} bytes; at most {RULES} are allowed: use `outrigger diff`\n"
            ));
        }
        Ok(this)
    }
}

pub(super) fn form(form: &Form) -> Markup {
    html! {
        p {
            "WorkloadRules and AdminWorkloadRules as YAML or JSON. The page shows which companions would be created, replaced, annotated, "
            "deleted or refused if they were applied now. Nothing is applied."
        }
        form method="post" action=(View::WhatIf.path()) {
            label { "Tenant" input name="tenant" value=(form.tenant) maxlength=(FILTER) autocomplete="off"; }
            label.wide {
                "Rules"
                // A browser drops the first line break.
                textarea name="rules" rows="18" spellcheck="false" required { "\n" (form.rules) }
            }
            button { "Predict" }
        }
    }
}

/// The prediction, or why there is none.
pub(super) fn answer(report: &Result<Report, String>) -> Markup {
    match report {
        Err(why) => html! { section #answer { h2 { "No prediction" } (notice(why)) } },
        Ok(report) => html! {
            section #answer {
                h2 { "What would happen" }
                (report.with_companions(Some(SHOWN)).html())
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use outrigger_core::field::FieldError;
    use proptest::prelude::*;

    use super::*;
    use crate::diff::report::{Change, CompanionChange, RuleChange, RuleVerdict};
    use crate::rules::RuleKind;

    fn change(i: usize) -> CompanionChange {
        CompanionChange {
            tenant: "blue".into(),
            rule_kind: RuleKind::WorkloadRule,
            rule: "r".into(),
            workload: format!("shop/<b>{i}"),
            namespace: "tenant-blue".into(),
            companion: format!("r-{i}"),
            change: Change::Created,
            reason: String::new(),
            annotations: Vec::new(),
            nodes: None,
            slot: None,
            problem: None,
        }
    }

    fn report(companions: usize) -> Report {
        let mut report = Report::new(&[], vec!["a <note>".into()], Vec::new());
        report.companions = (0..companions).map(change).collect();
        report
    }

    #[test]
    fn a_form_is_read_and_bounded() {
        let form = Form::read(b"rules=a%3A+b&tenant=+blue+&other=x").unwrap();
        assert_eq!(form, Form { tenant: "blue".into(), rules: "a: b".into() });
        let long = |bytes: usize| format!("rules={}", "x".repeat(bytes));
        assert_eq!(Form::read(long(RULES).as_bytes()).unwrap().rules.len(), RULES);
        let error = Form::read(long(RULES + 1).as_bytes()).unwrap_err();
        assert!(error.contains(&format!("{} bytes; at most {RULES}", RULES + 1)), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_becomes_markup(text in "\\PC{0,40}<script>\\PC{0,40}") {
            let typed = Form { tenant: text.clone(), rules: text.clone() };
            let mut refused = report(0);
            refused.rules.push(RuleVerdict {
                kind: RuleKind::WorkloadRule,
                namespace: text.clone(),
                name: text.clone(),
                change: RuleChange::Refused,
                errors: vec![FieldError::new(&text, &text)],
                warnings: vec![text.clone()],
            });
            for html in [form(&typed), answer(&Err(text)), answer(&Ok(refused))] {
                prop_assert!(!html.into_string().contains("<script>"));
            }
        }
    }

    #[test]
    fn a_refused_rule_has_its_errors_and_the_counts_are_those_of_all_companions() {
        let shown = answer(&Ok(report(SHOWN + 1))).into_string();
        assert!(shown.contains("501 created") && shown.contains("and 1 more"), "{shown}");
        assert_eq!(shown.matches("<tr>").count(), SHOWN + 1, "the head, and the companions that are shown");
        assert!(shown.contains("shop/&lt;b&gt;0") && shown.contains("a &lt;note&gt;"), "{shown}");
        let none = answer(&Ok(report(0))).into_string();
        assert!(none.contains("no companion changes"), "{none}");
    }
}

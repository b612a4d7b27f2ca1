//! What of a tenant's workloads is asked for.

use outrigger_core::field::FieldError;
use outrigger_core::reason::Cause;
use outrigger_core::syntax::is_label_name;

/// Most workloads of a page.
pub(super) const MOST: usize = 500;

/// Workloads of a page that names no limit.
const USUAL: usize = 100;

/// Longest text that is looked for, in bytes: a name of a namespace and one of a Pod.
const TEXT: usize = 2 * 253 + 1;

/// The query of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ask {
    /// Most workloads of the page.
    pub(super) limit: usize,
    /// The label value of the last workload of the page before.
    pub(super) after: Option<String>,
    /// Only workloads with this text in `NAMESPACE/NAME`.
    pub(super) text: String,
    /// Only workloads with a companion that has this cause.
    pub(super) cause: Option<Cause>,
}

impl Ask {
    /// Reads the query of a URL.
    pub(super) fn read(query: &str) -> Result<Self, FieldError> {
        let mut this = Self { limit: USUAL, after: None, text: String::new(), cause: None };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "limit" => {
                    let limit = value.parse::<usize>().ok().filter(|limit| (1..=MOST).contains(limit));
                    this.limit = limit.ok_or_else(|| {
                        FieldError::new("limit", format_args!("is {value:?}; use a number from 1 to {MOST}"))
                    })?;
                }
                "continue" => {
                    let is_one = is_label_name(&value);
                    this.after = Some(value.into_owned()).filter(|_| is_one);
                    if this.after.is_none() {
                        let why = "is none; use the field continue of the page before, or leave it out";
                        return Err(FieldError::new("continue", why));
                    }
                }
                "text" if value.len() <= TEXT => this.text = value.into_owned(),
                "text" => {
                    let why = format!("has {} bytes; use at most {TEXT}", value.len());
                    return Err(FieldError::new("text", why));
                }
                "cause" => {
                    this.cause = Some(value.parse().map_err(|_| {
                        let why =
                            format_args!("is {value:?}; use one of the reasons in docs/reference/reasons.md");
                        FieldError::new("cause", why)
                    })?);
                }
                _ => {
                    let why = "is unknown; use limit, continue, text or cause";
                    return Err(FieldError::new(name, why));
                }
            }
        }
        Ok(this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read() {
        let usual = Ask { limit: USUAL, after: None, text: String::new(), cause: None };
        assert_eq!(Ask::read("").unwrap(), usual);
        let all = "limit=500&continue=ab-1&text=shop%2Fweb&cause=NoDPU";
        let expected = Ask {
            limit: MOST,
            after: Some("ab-1".into()),
            text: "shop/web".into(),
            cause: Some(Cause::NoDpu),
        };
        assert_eq!(Ask::read(all).unwrap(), expected);
    }

    #[test]
    fn a_mistake_is_named_with_its_field() {
        let long = format!("text={}", "x".repeat(TEXT + 1));
        for (query, says) in [
            ("limit=0", r#"limit: is "0"; use a number from 1 to 500"#),
            ("limit=501", "from 1 to 500"),
            ("limit=x", "from 1 to 500"),
            ("continue=", "continue: is none; use the field continue of the page before"),
            ("continue=a/b", "continue: is none"),
            ("cause=Bad", r#"cause: is "Bad"; use one of the reasons"#),
            ("labels=x", "labels: is unknown; use limit, continue, text or cause"),
            (&long, "text: has 508 bytes; use at most 507"),
        ] {
            let said = Ask::read(query).unwrap_err().to_string();
            assert!(said.contains(says), "{query}: {said}");
        }
        assert!(Ask::read(&format!("text={}", "x".repeat(TEXT))).is_ok(), "the control case");
    }
}

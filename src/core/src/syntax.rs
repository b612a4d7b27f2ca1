//! What the API server takes as the key or the value of a label, as a name, a resource or a port: the functions of apimachinery's
//! `util/validation` and of Kubernetes' `pkg/apis/core/validation`, for whatever becomes part of an object that somebody else writes.
//!
//! A text is checked where it enters, so that its author reads the refusal, with the path of the field. `tests/e2e/strings.rs` compares
//! all of this with a real API server.

use std::fmt;

use crate::field::FieldError;
use crate::text::quoted;

/// Longest value of a label, and longest part of a label's key after its prefix, in bytes.
pub const MAX_LABEL: usize = 63;

/// What a text has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Key of a label, a taint or a scheduling gate (`IsQualifiedName`).
    LabelKey,
    /// Value of a label or a taint; may be empty (`IsValidLabelValue`).
    LabelValue,
    /// Key of an annotation: as a label's, with a prefix in any case (`ValidateAnnotations`).
    AnnotationKey,
    /// Name of a namespace, a container or a volume (`IsDNS1123Label`).
    DnsLabel,
    /// Name of most objects (`IsDNS1123Subdomain`).
    DnsSubdomain,
    /// Name of a Service (`IsDNS1035Label`).
    ServiceName,
    /// Name of a container's port (`IsValidPortName`).
    PortName,
    /// A resource that a container may ask for (`validateContainerResourceName`).
    Resource,
}

impl Form {
    /// Whether a text has this form.
    pub fn accepts(self, text: &str) -> bool {
        match self {
            Self::LabelKey => is_label_key(text),
            Self::LabelValue => text.is_empty() || is_label_name(text),
            Self::AnnotationKey => is_label_key(&text.to_ascii_lowercase()),
            Self::DnsLabel => is_short_dns_label(text),
            Self::DnsSubdomain => is_dns_subdomain(text),
            Self::ServiceName => {
                is_short_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
            }
            Self::PortName => is_port_name(text),
            Self::Resource => is_container_resource(text),
        }
    }

    /// What is wrong with the field at `path`, which holds `text`; `None` where nothing is.
    pub fn fault(self, path: impl fmt::Display, text: &str) -> Option<FieldError> {
        if self.accepts(text) {
            return None;
        }
        let is = match text.len() {
            0 => "is missing".to_owned(),
            _ => format!("is {:?}", quoted(text)),
        };
        Some(FieldError::new(path, format_args!("{is}; use {self}")))
    }
}

/// The form in words, as they follow "use".
impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LabelKey => {
                "a label's key: 1 to 63 letters, digits, '-', '_' and '.', a letter or digit first and last, perhaps after a DNS \
                 subdomain and '/'"
            }
            Self::LabelValue => {
                "a label's value: at most 63 letters, digits, '-', '_' and '.', a letter or digit first and last"
            }
            Self::AnnotationKey => {
                "an annotation's key: 1 to 63 letters, digits, '-', '_' and '.', a letter or digit first and last, perhaps after a \
                 DNS subdomain and '/'"
            }
            Self::DnsLabel => {
                "a DNS label: 1 to 63 lower-case letters, digits and '-', a letter or digit first and last"
            }
            Self::DnsSubdomain => {
                "a DNS subdomain: at most 253 lower-case letters, digits, '-' and '.', a letter or digit first and last, also \
                 between dots"
            }
            Self::ServiceName => {
                "the name of a Service: at most 63 lower-case letters, digits and '-', a letter first, no '-' last"
            }
            Self::PortName => {
                "the name of a port: 1 to 15 lower-case letters, digits and single '-' between them, with a letter"
            }
            Self::Resource => {
                "the name of a resource: cpu, memory, ephemeral-storage, hugepages-SIZE, or DOMAIN/NAME of at most 63 characters \
                 after the domain, which doesn't begin with \"requests.\""
            }
        })
    }
}

/// Whether a text is a DNS label (RFC 1123), of any length.
pub fn is_dns_label(s: &str) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    match s.as_bytes() {
        [] => false,
        [one] => edge(*one),
        [first, middle @ .., last] => {
            edge(*first) && edge(*last) && middle.iter().all(|&b| edge(b) || b == b'-')
        }
    }
}

/// Whether a text is a DNS label of at most 63 characters (RFC 1123), as names of namespaces, containers and volumes are.
pub fn is_short_dns_label(s: &str) -> bool {
    s.len() <= 63 && is_dns_label(s)
}

/// Whether a text is a DNS subdomain (RFC 1123) of at most 253 characters, as names of most objects are.
pub fn is_dns_subdomain(s: &str) -> bool {
    s.len() <= 253 && s.split('.').all(is_dns_label)
}

/// Whether a text is what a label's key is without its prefix, and a label's value unless that is empty: 1 to 63 letters,
/// digits, '-', '_' and '.', beginning and ending with a letter or digit.
pub fn is_label_name(s: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    s.len() <= 63
        && s.starts_with(edge)
        && s.ends_with(edge)
        && s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Whether a text is a label's key: a name, perhaps after a DNS subdomain and '/'.
pub fn is_label_key(s: &str) -> bool {
    match s.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_label_name(name),
        None => is_label_name(s),
    }
}

fn is_port_name(s: &str) -> bool {
    s.len() <= 15 && is_dns_label(s) && s.bytes().any(|b| b.is_ascii_lowercase()) && !s.contains("--")
}

fn is_container_resource(s: &str) -> bool {
    match s.contains('/') {
        false => {
            matches!(s, "cpu" | "memory" | "ephemeral-storage")
                || s.starts_with("hugepages-") && is_label_name(s)
        }
        true if is_native(s) => is_label_key(s),
        true => is_extended_resource(s),
    }
}

/// Whether a text is the name of a resource that a container can ask for in whole numbers only (`IsExtendedResourceName`).
pub fn is_extended_resource(s: &str) -> bool {
    // Quotas count it under this prefix, which has to fit too.
    !is_native(s) && !s.starts_with("requests.") && is_label_key(&format!("requests.{s}"))
}

/// Whether a resource is one of Kubernetes' own.
fn is_native(s: &str) -> bool {
    !s.contains('/') || s.contains("kubernetes.io/")
}

/// Whether a port has a number that a container can listen on.
pub fn is_port(number: i64) -> bool {
    (1..=65_535).contains(&number)
}

/// Why no Node can be labelled with the name of a host, in words; `None` where one can. A Node's name may have 253 characters, a label's
/// value has 63, and the host's name is the value of the label by which its DPUs are found.
pub fn unlabelable(host: &str) -> Option<String> {
    (!Form::LabelValue.accepts(host)).then(|| {
        format!(
            "no Node can be labelled with it: it has {} characters, a label's value at most {MAX_LABEL} letters, digits, '-', '_' and '.'",
            host.len()
        )
    })
}

/// Reads a setting that is the key of a label. Fails in words for who sets it.
pub fn label_key(text: &str) -> Result<String, String> {
    if Form::LabelKey.accepts(text) { Ok(text.to_owned()) } else { Err(format!("use {}", Form::LabelKey)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_keys() {
        for good in ["a", "A_b.c-d", "example.com/tier", &"x".repeat(63)] {
            assert!(is_label_key(good), "{good}");
        }
        for bad in ["", "-a", "a ", "Example.com/x", "a/b/c", "/x", "x/", &"x".repeat(64)] {
            assert!(!is_label_key(bad), "{bad}");
        }
        assert!(Form::AnnotationKey.accepts("Example.com/X"));
    }

    #[test]
    fn each_form_has_its_own_limits() {
        let (x63, x64) = ("x".repeat(63), "x".repeat(64));
        let domain = |length: usize| format!("{}/n", &"xxxxxxxxx.".repeat(26)[..length]);
        let (fits, long) = (domain(244), domain(245));
        for (form, good, bad) in [
            (Form::LabelValue, &["", "a", "A_b.c", &x63][..], &["-5", "eu west", "a/b", "x-", &x64][..]),
            (Form::DnsLabel, &["a", "7", &x63], &["", "A", "a.b", &x64]),
            (Form::DnsSubdomain, &["a.b", &x64], &["", "a..b", "A"]),
            (Form::ServiceName, &["a7", &x63], &["", "7a", "a-", "a.b", &x64]),
            (Form::PortName, &["http", "a-1", &x63[..15]], &["", "80", "a--b", "-a", "A", &x63[..16]]),
            (
                Form::Resource,
                &["cpu", "hugepages-2Mi", "nvidia.com/gpu", "x.kubernetes.io/y", &fits],
                &["", "gpu", "pods", "a b/c", "requests.nvidia.com/gpu", "a/b/c", "hugepages-2 Mi", &long],
            ),
        ] {
            for text in good {
                assert!(form.accepts(text), "{form:?} {text}");
                assert_eq!(form.fault("p", text), None);
            }
            for text in bad {
                let fault = form.fault("p", text).unwrap().to_string();
                assert!(
                    fault.starts_with("p: is ") && fault.ends_with(&form.to_string()),
                    "{form:?} {fault}"
                );
            }
        }
        let prefix = |length: usize| "xxxxxxxxx.".repeat(26)[..length].to_owned();
        assert!(is_dns_subdomain(&prefix(253)) && !is_dns_subdomain(&prefix(254)));
        assert!(is_extended_resource("nvidia.com/gpu") && !is_extended_resource("x.kubernetes.io/y"));
        assert_eq!([0, 1, 65_535, 65_536].map(is_port), [false, true, true, false]);
    }

    #[test]
    fn a_host_is_the_value_of_a_label() {
        assert_eq!(unlabelable(&"x".repeat(63)), None);
        let why = unlabelable(&"x".repeat(64)).unwrap();
        assert!(why.contains("it has 64 characters"), "{why}");
    }

    #[test]
    fn a_setting_names_a_label() {
        assert_eq!(label_key("a/b").unwrap(), "a/b");
        assert!(label_key("a/b/c").unwrap_err().starts_with("use a label's key: "));
    }
}

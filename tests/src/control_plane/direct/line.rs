//! The part of kubectl's command line that tests use to read and to change objects.

/// What a command line says. Words come in the order in which they are written.
#[derive(Debug, Default)]
pub(super) struct Line {
    words: Vec<String>,
    /// The one that it names.
    pub(super) namespace: Option<String>,
    all_namespaces: bool,
    query: Vec<(&'static str, String)>,
    pub(super) subresource: Option<String>,
    kind_of_patch: Option<String>,
}

impl Line {
    /// Reads a command line. There is none if it has something else than what is known here.
    pub(super) fn read(args: &[&str]) -> Option<Self> {
        let mut line = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().map(|value| (*value).to_owned());
            match arg.split_once('=').unwrap_or((arg, "")) {
                ("-n", "") => line.namespace = Some(value()?),
                ("-A", "") => line.all_namespaces = true,
                ("-l", "") => line.query.push(("labelSelector", value()?)),
                ("--field-selector", fields) => line.query.push(("fieldSelector", fields.to_owned())),
                ("--dry-run", "server") => line.query.push(("dryRun", "All".to_owned())),
                ("--subresource", name) => line.subresource = Some(name.to_owned()),
                ("--type", kind) => line.kind_of_patch = Some(kind.to_owned()),
                (flag, _) if flag.starts_with('-') => return None,
                _ => line.words.push((*arg).to_owned()),
            }
        }
        Some(line)
    }

    /// The resource that it names, and the object's name: `pod`, `pod NAME` and `pod/NAME`. There is none if it names several.
    pub(super) fn object(&self) -> Option<(&str, Option<&str>)> {
        let object = match self.words.as_slice() {
            [one] => one.split_once('/').map_or((one.as_str(), None), |(kind, name)| (kind, Some(name))),
            [kind, name] => (kind.as_str(), Some(name.as_str())),
            _ => return None,
        };
        (!self.words.iter().any(|word| word.contains(','))).then_some(object)
    }

    /// The namespace that is meant, if resources have one: none for all.
    pub(super) fn namespace(&self) -> Option<&str> {
        (!self.all_namespaces).then(|| self.namespace.as_deref().unwrap_or("default"))
    }

    /// The rest of a path behind the object's name: the subresource and the query.
    pub(super) fn rest(&self) -> String {
        let subresource = self.subresource.iter().map(|name| format!("/{name}")).collect::<String>();
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(&self.query);
        format!("{subresource}?{}", query.finish())
    }

    /// The media type of a patch that is an object.
    pub(super) fn media_type(&self) -> String {
        let kind = self.kind_of_patch.as_deref().unwrap_or("merge");
        format!("application/{}patch+json", if kind == "strategic" { "strategic-merge-" } else { "merge-" })
    }
}

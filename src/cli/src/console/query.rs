//! What of a view is wanted, and one page of it.

/// Rows of a page.
pub(super) const PAGE: usize = 100;

/// Most characters of a filter.
pub(super) const FILTER: usize = 253;

/// The query of a URL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// Only rows with this text in a name.
    pub(super) text: String,
    /// Only rows of this tenant.
    pub(super) tenant: String,
    /// Only rows with this cause.
    pub(super) cause: String,
    /// The workload that is asked about, as `NAMESPACE/NAME`.
    pub(super) workload: String,
    /// The number of the page, from 0.
    pub(super) page: usize,
    /// Where a page of workloads begins, as the manager says; empty: at the first.
    pub(super) after: String,
}

impl Query {
    /// Only what is this tenant's.
    pub(super) fn of_tenant(tenant: &str) -> Self {
        Self { tenant: tenant.to_owned(), ..Self::default() }
    }

    /// Reads the query of a URL. Unknown names are ignored, and texts are cut.
    pub(super) fn read(query: &str) -> Self {
        let mut this = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            // A name of a Pod and one of a namespace.
            let text = || value.trim().chars().take(2 * FILTER).collect::<String>();
            match &*name {
                "text" => this.text = text(),
                "tenant" => this.tenant = text(),
                "cause" => this.cause = text(),
                "workload" => this.workload = text(),
                "continue" => this.after = text(),
                "page" => this.page = value.parse().unwrap_or_default(),
                _ => {}
            }
        }
        this
    }

    /// A URL whose query reads as this again.
    pub(super) fn url(&self, path: &str) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let page = if self.page > 0 { self.page.to_string() } else { String::new() };
        let fields = [
            ("text", &self.text),
            ("tenant", &self.tenant),
            ("cause", &self.cause),
            ("workload", &self.workload),
            ("page", &page),
            ("continue", &self.after),
        ];
        query.extend_pairs(fields.into_iter().filter(|(_, value)| !value.is_empty()));
        match query.finish() {
            query if query.is_empty() => path.to_owned(),
            query => format!("{path}?{query}"),
        }
    }

    /// Whether a row with these names, of this tenant and with this cause is wanted.
    pub(super) fn takes(&self, names: &[&str], tenant: &str, cause: &str) -> bool {
        (self.text.is_empty() || names.iter().any(|name| name.contains(&self.text)))
            && (self.tenant.is_empty() || tenant == self.tenant)
            && (self.cause.is_empty() || cause == self.cause)
    }
}

/// One page of rows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page<T> {
    pub(super) rows: Vec<T>,
    /// The number of rows of all pages.
    pub(super) all: usize,
    /// The number of this page: that of the query, or the last one.
    pub(super) number: usize,
}

impl<T> Page<T> {
    /// The page that the query asks for.
    pub(super) fn of(rows: impl IntoIterator<Item = T>, query: &Query) -> Self {
        let all: Vec<T> = rows.into_iter().collect();
        let (count, last) = (all.len(), all.len().saturating_sub(1) / PAGE);
        let number = query.page.min(last);
        Self { rows: all.into_iter().skip(number * PAGE).take(PAGE).collect(), all: count, number }
    }

    /// The number of pages, at least 1.
    pub(super) fn pages(&self) -> usize {
        self.all.div_ceil(PAGE).max(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_query_is_read_as_it_was_written(texts in prop::array::uniform5("\\PC{0,20}"), page in 0..1000usize) {
            let [text, tenant, cause, workload, after] = texts.map(|text| text.trim().to_owned());
            let query = Query { text, tenant, cause, workload, page, after };
            let url = query.url("/x");
            prop_assert_eq!(Query::read(url.strip_prefix("/x").unwrap().trim_start_matches('?')), query);
            prop_assert!(url.bytes().all(|byte| byte.is_ascii_graphic()));
        }

        #[test]
        fn the_pages_together_have_every_row_once_and_in_order(count in 0..450usize) {
            let page = |page| Page::of(0..count, &Query { page, ..Query::default() });
            let pages = page(0).pages();
            let shown: Vec<usize> = (0..pages).flat_map(|number| page(number).rows).collect();
            prop_assert_eq!(shown, (0..count).collect::<Vec<_>>());
            prop_assert_eq!(page(pages + 7), page(pages - 1), "beyond the last page is the last");
            prop_assert!((0..pages).all(|number| page(number).rows.len() <= PAGE && page(number).all == count));
        }
    }

    #[test]
    fn a_filter_is_cut_and_a_wrong_page_is_the_first() {
        let query = Query::read(&format!("text={}&page=-1&other=x", "y".repeat(3 * FILTER)));
        assert_eq!((query.text.len(), query.page), (2 * FILTER, 0));
    }

    #[test]
    fn all_filters_have_to_hold() {
        let query =
            Query { text: "eb".into(), tenant: "blue".into(), cause: "NoDPU".into(), ..Query::default() };
        assert!(query.takes(&["shop", "web"], "blue", "NoDPU"));
        assert!(!query.takes(&["shop"], "blue", "NoDPU"));
        assert!(!query.takes(&["web"], "red", "NoDPU"));
        assert!(!query.takes(&["web"], "blue", "Starting"));
        assert!(Query::default().takes(&[], "", ""));
    }
}

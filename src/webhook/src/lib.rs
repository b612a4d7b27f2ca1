//! The admission webhook: AdmissionReview in, verdict and JSON patch out, from watch caches only.

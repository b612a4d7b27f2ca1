// The CRDs of OpenReports, which the reports of `outrigger check` are written as.
module outrigger.dev/tests/openreports

go 1.26.0

require github.com/openreports/reports-api v0.2.1

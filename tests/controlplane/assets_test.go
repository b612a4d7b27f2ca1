package main

import "testing"

func TestParseMinor(t *testing.T) {
	for version, want := range map[string]int{"Kubernetes v1.36.3\n": 36, "Kubernetes v1.34.0-rc.1": 34} {
		if got, err := parseMinor(version); err != nil || got != want {
			t.Errorf("parseMinor(%q) = %d, %v; want %d", version, got, err, want)
		}
	}
	for _, version := range []string{"", "Kubernetes v2.0.0", "v1.x.1"} {
		if _, err := parseMinor(version); err == nil {
			t.Errorf("parseMinor(%q) is taken for a version", version)
		}
	}
}

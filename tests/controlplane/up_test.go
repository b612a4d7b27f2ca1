package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCheckClusters(t *testing.T) {
	for _, names := range [][]string{{"infra"}, {"infra", "tenant"}, {"t-1"}} {
		if err := (&up{dir: "x", names: names}).check(nil); err != nil {
			t.Errorf("%q are refused: %v", names, err)
		}
	}
	for _, names := range [][]string{{""}, {"a", "a"}, {"a/b"}, {"logs"}, {".."}, {"A"}} {
		if err := (&up{dir: "x", names: names}).check(nil); err == nil {
			t.Errorf("%q are taken", names)
		}
	}
	if err := (&up{dir: "x", names: []string{"tenant"}, certManager: true}).check(nil); err == nil {
		t.Error("cert-manager without a cluster for it is taken")
	}
}

func TestTakeDir(t *testing.T) {
	dir := t.TempDir()
	if err := takeDir(dir); err != nil {
		t.Errorf("an empty directory is refused: %v", err)
	}
	if err := takeDir(dir); err == nil {
		t.Error("a directory in use is taken again")
	}
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := takeDir(dir); err == nil {
		t.Error("somebody else's logs would be removed")
	}
}

func TestFreePorts(t *testing.T) {
	ports, err := freePorts(20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range ports {
		if seen[port] {
			t.Fatalf("ports %v: %d can't be used twice", ports, port)
		}
		if port < lowestPort || port >= firstDynamicPort() {
			t.Fatalf("port %d may become that of a connection", port)
		}
		seen[port] = true
	}
}

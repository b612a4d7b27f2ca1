package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestPauseAndResume(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	p := &process{name: "counter", log: log, args: []string{"sh", "-c", "while :; do echo; sleep 0.01; done"}}
	if err := newStarter().start(p); err != nil {
		t.Fatal(err)
	}
	defer p.kill()
	lines := func() int {
		data, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(data, []byte("\n"))
	}
	grows := func(from int) error {
		if now := lines(); now <= from {
			return fmt.Errorf("%d lines", now)
		}
		return nil
	}
	if err := poll(t.Context(), func() error { return grows(0) }); err != nil {
		t.Fatal(err)
	}
	if err := p.pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := lines()
	time.Sleep(100 * time.Millisecond)
	if after := lines(); after != before || !p.running() {
		t.Errorf("%d lines became %d; running: %t", before, after, p.running())
	}
	if err := p.resume(); err != nil {
		t.Fatal(err)
	}
	if err := poll(t.Context(), func() error { return grows(before) }); err != nil {
		t.Error(err)
	}

	// A suspended process can be ended, and then there is nothing to suspend.
	if err := p.pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.kill()
	if p.pause(t.Context()) == nil || p.resume() == nil {
		t.Error("a process that has ended is suspended")
	}
}

func TestKillAll(t *testing.T) {
	starter := newStarter()
	var all []*process
	for range 3 {
		p := &process{name: "sleeper", log: filepath.Join(t.TempDir(), "log"), args: []string{"sleep", "600"}}
		if err := starter.start(p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	killAll(append(all, &process{name: "never started"}))
	for _, p := range all {
		if p.running() || p.failure() != nil {
			t.Errorf("running: %t, failure: %v", p.running(), p.failure())
		}
	}
}

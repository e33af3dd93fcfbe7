package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// verdict is the result of a mutant.
type verdict struct {
	mutant *mutant
	killed bool
	by     string // the first test that failed, or another end of the run
	took   time.Duration
	err    error // the mutant could not be tried
}

var (
	failed   = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	noTests  = regexp.MustCompile(`\[no tests to run\]|\[no test files\]`)
	noBuild  = regexp.MustCompile(`\[(build|setup) failed\]`)
	timedOut = regexp.MustCompile(`panic: test timed out`)
	crashed  = regexp.MustCompile(`(?m)^(panic:|fatal error:|unexpected fault)`)
)

// try runs the tests that should notice m, with the changed file laid over the tree.
func (m *mutant) try(ctx context.Context, root string, timeout time.Duration) (v verdict) {
	v.mutant = m
	defer func(start time.Time) { v.took = time.Since(start) }(time.Now())
	changed, err := m.apply(root)
	if err != nil {
		return verdict{mutant: m, err: err}
	}
	overlay, remove, err := layOver(changed)
	if err != nil {
		return verdict{mutant: m, err: err}
	}
	defer remove()
	out, err := goTest(ctx, root, timeout, m, "-count=1", "-failfast", "-overlay="+overlay)
	switch {
	case ctx.Err() != nil:
		v.err = context.Cause(ctx)
	case noBuild.Match(out):
		v.err = fmt.Errorf("mutants: %q does not compile:\n%s", m.name, out)
	case err == nil && noTests.Match(out):
		v.err = fmt.Errorf("mutants: %q: no test of %s matches -run %q", m.name, m.test, m.run)
	case err != nil:
		v.killed, v.by = true, killer(out)
	}
	return v
}

// killer returns the test or event that ended a failed run.
func killer(out []byte) string {
	by := "exit status"
	if found := failed.FindSubmatch(out); found != nil {
		by = string(found[1])
	} else if timedOut.Match(out) {
		by = "timeout"
	} else if crashed.Match(out) {
		by = "crash"
	}
	if strings.Contains(string(out), "WARNING: DATA RACE") {
		by += " (race)"
	}
	return by
}

// layOver writes the changed text to a file, and the JSON with which the go command reads it
// instead of the original.
func layOver(c change) (overlay string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "", nil, fmt.Errorf("mutants: %w", err)
	}
	remove = func() { os.RemoveAll(dir) }
	file := filepath.Join(dir, filepath.Base(c.file))
	overlay = filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {c.file: file}})
	err = errors.Join(err, os.WriteFile(file, []byte(c.text), 0o600), os.WriteFile(overlay, replace, 0o600))
	if err != nil {
		remove()
		return "", nil, fmt.Errorf("mutants: %w", err)
	}
	return overlay, remove, nil
}

// goTest runs the tests of m. It returns an error if they failed, or could not run.
func goTest(ctx context.Context, root string, timeout time.Duration, m *mutant, args ...string) ([]byte, error) {
	// Without debug information a test binary links in half of the time.
	args = append([]string{"test", "-vet=off", "-ldflags=-w", "-timeout=" + timeout.String()}, args...)
	if m.race {
		args = append(args, "-race")
	}
	if m.tags != "" {
		args = append(args, "-tags="+m.tags)
	}
	if m.run != "" {
		args = append(args, "-run="+m.run)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, m.test)...)
	cmd.Dir = root
	if m.race {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd.CombinedOutput()
}

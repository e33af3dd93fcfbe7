package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

var failed = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// tryAll tries the output of buildAll in dir, and prints a table.
func tryAll(ctx context.Context, dir string, workers int) error {
	text, err := os.ReadFile(filepath.Join(dir, "operators.json"))
	if err != nil {
		return fmt.Errorf("operators: %w", err)
	}
	var suites []suite
	if err := json.Unmarshal(text, &suites); err != nil {
		return fmt.Errorf("operators: %s: %w", dir, err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("operators: %w", err)
	}
	var table strings.Builder
	for _, s := range suites {
		r := &runs{suite: s, binary: filepath.Join(dir, s.binary())}
		if err := r.clean(ctx, workers); err != nil {
			return err
		}
		lived, err := r.try(ctx, workers)
		if err != nil {
			return err
		}
		fmt.Fprintf(&table, "| %s | %d | %d | %d | %d | %d |\n", s.Package, s.All, len(s.Operators), len(s.Operators)-len(r.reached), len(r.reached)-lived, lived)
	}
	fmt.Printf("\n| package | operators | drawn | not covered | killed | lived |\n|---|---|---|---|---|---|\n%s", &table)
	return nil
}

// runs are the runs of a package's tests.
type runs struct {
	suite
	binary  string
	skip    []string // tests that fail without a wrong operator
	reached []int
	took    time.Duration
}

// clean runs the tests without a wrong operator, with the same concurrency as later. It finds the
// operators that they reach, their time, and tests that fail because of the slower code or the
// load.
func (r *runs) clean(ctx context.Context, workers int) error {
	file, err := os.CreateTemp("", "reached")
	if err != nil {
		return fmt.Errorf("operators: %w", err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	for range 5 {
		start := time.Now()
		var group sync.WaitGroup
		outs := make([][]byte, workers)
		errs := make([]error, workers)
		for i := range workers {
			group.Go(func() { outs[i], errs[i] = r.tests(ctx, 10*time.Minute, reachedEnv+"="+file.Name()) })
		}
		group.Wait()
		if r.took = time.Since(start); errors.Join(errs...) == nil {
			return r.readReached(file.Name())
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		known := len(r.skip)
		for _, m := range failed.FindAllSubmatch(bytes.Join(outs, []byte("\n")), -1) {
			if name := "^" + string(m[1]) + "$"; !slices.Contains(r.skip, name) {
				fmt.Printf("skipped: %s of %s fails though nothing is wrong\n", m[1], r.Package)
				r.skip = append(r.skip, name)
			}
		}
		if len(r.skip) == known {
			return fmt.Errorf("operators: the tests of %s fail: %w\n%s", r.Package, errors.Join(errs...), outs[0])
		}
	}
	return fmt.Errorf("operators: other tests of %s fail each time", r.Package)
}

func (r *runs) readReached(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("operators: %w", err)
	}
	for word := range strings.FieldsSeq(string(text)) {
		id, err := strconv.Atoi(word)
		if err != nil {
			return fmt.Errorf("operators: %w", err)
		}
		r.reached = append(r.reached, id)
	}
	slices.Sort(r.reached)
	r.reached = slices.Compact(r.reached)
	return nil
}

// try makes each reached operator wrong in turn, and prints the survivors.
func (r *runs) try(ctx context.Context, workers int) (lived int, err error) {
	for id := range r.Operators {
		if _, reached := slices.BinarySearch(r.reached, id+1); !reached {
			fmt.Printf("not covered  %s: %s\n", r.Operators[id].At, r.Operators[id].Change)
		}
	}
	ids := make(chan int)
	var mu sync.Mutex
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for id := range ids {
				by := r.kill(ctx, id)
				verdict := "killed      " + by
				if by == "" {
					verdict = "lived     "
				}
				mu.Lock()
				if by == "" {
					lived++
				}
				fmt.Printf("%s  %s: %s\n", verdict, r.Operators[id-1].At, r.Operators[id-1].Change)
				mu.Unlock()
			}
		})
	}
	for _, id := range r.reached {
		ids <- id
	}
	close(ids)
	group.Wait()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return lived, nil
}

// kill returns the test or event that notices a wrong operator, or "". A test that fails and then
// passes alone may be flaky, so all tests run a second time.
func (r *runs) kill(ctx context.Context, id int) (by string) {
	for range 2 {
		out, err := r.run(ctx, id, "")
		found := failed.FindSubmatch(out)
		switch {
		case err == nil:
			return ""
		case found == nil && bytes.Contains(out, []byte("test timed out")):
			return "timeout"
		case found == nil:
			return "crash"
		}
		by = string(found[1])
		if _, err := r.run(ctx, id, by); err != nil {
			return by
		}
	}
	return by
}

// run runs the tests in their short form with an operator wrong until one fails, or only the given
// test.
func (r *runs) run(ctx context.Context, id int, test string) ([]byte, error) {
	args := []string{"-test.failfast"}
	if test != "" {
		args = append(args, "-test.run=^"+test+"$")
	}
	return r.tests(ctx, 3*r.took+10*time.Second, chosenEnv+"="+strconv.Itoa(id), args...)
}

// tests runs the tests in their short form, except those in skip.
func (r *runs) tests(ctx context.Context, timeout time.Duration, env string, args ...string) ([]byte, error) {
	args = append(args, "-test.short", "-test.timeout="+timeout.String())
	if len(r.skip) > 0 {
		args = append(args, "-test.skip="+strings.Join(r.skip, "|"))
	}
	// a test binary that does not even time out
	ctx, cancel := context.WithTimeout(ctx, timeout+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.binary, args...)
	cmd.Dir = r.Package
	cmd.Env = append(os.Environ(), env)
	cmd.WaitDelay = time.Second
	return cmd.CombinedOutput()
}

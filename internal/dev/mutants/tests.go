package main

import (
	"fmt"
	"go/build"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)

// suite is a package's tests in one build.
type suite struct {
	pkg, tags string
	race      bool
}

// testNames caches the names of the suites' tests.
type testNames map[suite][]string

// find returns an error if go test would run no test for m. It reads the tests' names without
// compiling, so all lists are checked even if only a sample is tried.
func (known testNames) find(root string, m *mutant) error {
	// As in go test, a slash separates the names of subtests.
	top, _, _ := strings.Cut(m.run, "/")
	run, err := regexp.Compile(top)
	if err != nil {
		return fmt.Errorf("mutants: %s:%d: run: %w", listOf(root, m.pkg), m.line, err)
	}
	s := suite{pkg: m.test, tags: m.tags, race: m.race}
	names, ok := known[s]
	if !ok {
		if names, err = s.read(root); err != nil {
			return err
		}
		known[s] = names
	}
	if !slices.ContainsFunc(names, run.MatchString) {
		return fmt.Errorf("mutants: %s:%d: no test of %s matches %q, which should notice %q", listOf(root, m.pkg), m.line, m.test, m.run, m.name)
	}
	return nil
}

func (s suite) read(root string) (names []string, err error) {
	in := build.Default
	in.BuildTags = strings.FieldsFunc(s.tags, func(r rune) bool { return r == ',' || r == ' ' })
	if s.race {
		in.CgoEnabled, in.BuildTags = true, append(in.BuildTags, "race")
	}
	dir := filepath.Join(root, s.pkg)
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, fmt.Errorf("mutants: %w", err)
	}
	for _, path := range files {
		if built, err := in.MatchFile(dir, filepath.Base(path)); err != nil {
			return nil, fmt.Errorf("mutants: %s: %w", path, err)
		} else if !built {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("mutants: %w", err)
		}
		for _, f := range testFunction.FindAllSubmatch(text, -1) {
			names = append(names, string(f[1]))
		}
	}
	return names, nil
}

package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutant is one small wrong change of a source file, and what must notice it.
type mutant struct {
	name     string
	pkg      string // the folder whose list this is, relative to the module's root: ./memcache
	file     string // relative to pkg
	test     string // the package whose tests notice; pkg unless the list says otherwise
	run      string // go test's -run; "" runs everything
	race     bool   // noticed by the race detector only
	tags     string // build tags
	survives string // why nothing notices, if that is so
	old, new string
	line     int // in the list
}

// listOf is where the mutants of a package stand.
func listOf(root, pkg string) string { return filepath.Join(root, pkg, "testdata", "mutants.txt") }

// readList reads the mutants of pkg, a folder relative to root.
func readList(root, pkg string) ([]*mutant, error) {
	name := listOf(root, pkg)
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("mutants: %w", err)
	}
	defer f.Close()
	var (
		list []*mutant
		m    *mutant
		text *string // being read: m.old or m.new
		line int
	)
	fail := func(format string, args ...any) ([]*mutant, error) {
		return nil, fmt.Errorf("mutants: %s:%d: %s", name, line, fmt.Sprintf(format, args...))
	}
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		line++
		s := scan.Text()
		if text == nil && (s == "" || strings.HasPrefix(s, "#")) {
			continue
		}
		key, value, _ := strings.Cut(s, ":")
		value = strings.TrimSpace(value)
		switch {
		case s == "--- old" && m != nil:
			text = &m.old
		case s == "--- new" && m != nil && text == &m.old:
			text = &m.new
		case s == "--- end" && m != nil && text == &m.new:
			if m.file == "" || m.old == "" || m.old == m.new {
				return fail("mutant %q needs a file, an old text and another new one", m.name)
			}
			list = append(list, m)
			m, text = nil, nil
		case text != nil:
			*text += s + "\n"
		case key == "mutant" && m == nil && value != "":
			for _, other := range list {
				if other.name == value {
					return fail("mutant %q stands at line %d too", value, other.line)
				}
			}
			m = &mutant{name: value, pkg: pkg, test: pkg, line: line}
		case m == nil:
			return fail("%q outside of a mutant, which begins with \"mutant: <name>\"", s)
		case key == "file":
			m.file = value
		case key == "test":
			m.test = value
		case key == "run":
			m.run = value
		case key == "tags":
			m.tags = value
		case key == "survives":
			m.survives = value
		case key == "killer" && (value == "race" || value == "test"):
			m.race = value == "race"
		default:
			return fail("%q is no line of a mutant: file, test, run, killer (test or race), tags, survives, --- old, --- new, --- end", s)
		}
	}
	if err := scan.Err(); err != nil {
		return fail("behind this line: %v", err)
	}
	if m != nil {
		return fail("mutant %q has no end", m.name)
	}
	return list, nil
}

// source is the path of the file that m changes.
func (m *mutant) source(root string) string { return filepath.Join(root, m.pkg, m.file) }

// apply gives the changed file.
func (m *mutant) apply(root string) (string, error) {
	b, err := os.ReadFile(m.source(root))
	if err != nil {
		return "", fmt.Errorf("mutants: %s:%d: %w", listOf(root, m.pkg), m.line, err)
	}
	if n := strings.Count(string(b), m.old); n != 1 {
		return "", fmt.Errorf("mutants: %s:%d: the old text of %q stands %d times in %s: it must stand there once", listOf(root, m.pkg), m.line, m.name, n, m.file)
	}
	return strings.Replace(string(b), m.old, m.new, 1), nil
}

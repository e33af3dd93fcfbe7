package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutant is one small wrong change of a function, and the test that must notice it.
type mutant struct {
	name string
	// the folder of the list, relative to the module's root: ./memcache
	pkg string
	in  string // the folder of the function, relative to pkg; "" is pkg itself
	fn  string // function, or Type.method
	// the package whose tests notice; pkg unless the list names another
	test  string
	run   string // go test's -run; "" runs everything
	race  bool   // only the race detector notices
	tags  string // build tags
	edits []edit
	line  int // in the list
}

// edit is one change of the function's text.
type edit struct {
	// one or two lines, or a part of one, without indentation
	at  string
	how string // the action: drop, instead or to
	to  string
}

// listOf returns the path of a package's list.
func listOf(root, pkg string) string { return filepath.Join(root, pkg, "testdata", "mutants.txt") }

// readList reads the mutants of pkg, a folder relative to root.
func readList(root, pkg string) ([]*mutant, error) {
	name := listOf(root, pkg)
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("mutants: %w", err)
	}
	defer f.Close()
	r := listReader{pkg: pkg, names: map[string]int{}}
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		r.line++
		if err := r.read(scan.Text()); err != nil {
			return nil, fmt.Errorf("mutants: %s:%d: %w", name, r.line, err)
		}
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("mutants: %s: after line %d: %w", name, r.line, err)
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("mutants: %s:%d: %w", name, r.line, err)
	}
	return r.list, nil
}

// listReader reads a list line by line.
type listReader struct {
	pkg   string
	line  int
	list  []*mutant
	m     *mutant // being read
	last  string  // the key of the previous line
	names map[string]int
}

func (r *listReader) read(s string) error {
	if s == "" || strings.HasPrefix(s, "#") {
		return nil
	}
	key, value, _ := strings.Cut(s, ":")
	value = strings.TrimSpace(value)
	last := r.last
	r.last = key
	if key == "mutant" {
		if err := r.end(); err != nil {
			return err
		}
		if at := r.names[value]; at > 0 || value == "" {
			return fmt.Errorf("a mutant needs a name of its own; that of %q is on line %d", value, at)
		}
		r.names[value] = r.line
		r.m = &mutant{name: value, pkg: r.pkg, test: r.pkg, line: r.line}
		r.list = append(r.list, r.m)
		return nil
	}
	if r.m == nil {
		return fmt.Errorf("%q is outside of a mutant, which begins with \"mutant: <name>\"", s)
	}
	switch key {
	case "in":
		r.m.in = value
	case "func":
		r.m.fn = value
	case "test":
		r.m.test = value
	case "run":
		r.m.run = value
	case "tags":
		r.m.tags = value
	case "killer":
		r.m.race = value == "race"
		if !r.m.race && value != "test" {
			return fmt.Errorf("the killer is %q; want race or test", value)
		}
	default:
		return r.change(last, key, value)
	}
	return nil
}

// change handles a line of an edit. Consecutive lines of the same key are one text.
func (r *listReader) change(last, key, value string) error {
	if key == "at" && last != "at" {
		r.m.edits = append(r.m.edits, edit{at: value})
		return nil
	}
	if len(r.m.edits) == 0 {
		return fmt.Errorf("%q: want func, in, test, run, killer, tags, or at before a change", key)
	}
	e := &r.m.edits[len(r.m.edits)-1]
	switch {
	case key == "at":
		e.at += "\n" + value
		if strings.Count(e.at, "\n") > 1 {
			return fmt.Errorf("the text after at has more than two lines: anchor the mutant by fewer")
		}
	case last == "at" && (key == "to" || key == "instead" || key == "drop" && value == ""):
		e.how, e.to = key, value
	case (key == "to" || key == "instead") && last == key:
		e.to += "\n" + value
	default:
		return fmt.Errorf("%q after %q: want at, followed by to, instead or drop", key, last)
	}
	return nil
}

// end checks the mutant that was read.
func (r *listReader) end() error {
	if r.m == nil {
		return nil
	}
	if r.m.fn == "" || len(r.m.edits) == 0 {
		return fmt.Errorf("mutant %q needs a func and an edit", r.m.name)
	}
	for _, e := range r.m.edits {
		if e.at == "" || e.how == "" || e.how == "to" && e.at == e.to {
			return fmt.Errorf("mutant %q changes nothing: want a text after at, and then to, instead or drop", r.m.name)
		}
	}
	return nil
}

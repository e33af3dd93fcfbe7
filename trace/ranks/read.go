package ranks

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/trace/internal/steplines"
)

// File is a file of profiles, usually of one rank.
type File struct {
	Name string // for errors and notes
	io.Reader
}

// source is a file that is being read.
type source struct {
	name string
	*steplines.Reader
}

// ReadFiles reads the named files, as [Read] does.
func ReadFiles(o Options, names ...string) (*Report, error) {
	var files []File
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("ranks: %w", err)
		}
		defer f.Close()
		files = append(files, File{filepath.Base(name), f})
	}
	return Read(o, files...)
}

// Read reads the profiles of all ranks' steps, each a line of JSON. It reads a line of each file in
// turn, so that few operations are open at a time. A file may contain several ranks. A line that is
// not a profile, or is of another training, is an error that wraps [ErrInvalid] and names file and
// line. Files that exceed the options' limits are an error that names the limit.
func Read(o Options, files ...File) (*Report, error) {
	limits := budget.Limits{MaxMemory: o.MaxMemory, MaxWork: o.MaxWork}
	if err := limits.Check(); err != nil {
		return nil, fmt.Errorf("ranks: %w: %w", ErrInvalid, err)
	}
	if err := o.checkTraceURL(); err != nil {
		return nil, err
	}
	m := Merger{budget: budget.New(limits), traceURL: o.TraceURL}
	var sources []source
	for _, f := range files {
		if f.Reader == nil {
			return nil, fmt.Errorf("ranks: %s: %w: the reader is nil", f.Name, ErrInvalid)
		}
		lines, err := steplines.New(f, m.budget)
		if err != nil {
			return nil, fmt.Errorf("ranks: %s: %w", f.Name, err)
		}
		sources = append(sources, source{f.Name, lines})
	}
	var notes []string
	for len(sources) > 0 {
		left := sources[:0]
		for _, s := range sources {
			more, err := s.Next(m.add)
			if err != nil {
				return nil, fmt.Errorf("ranks: %s, line %d: %w", s.name, s.Line(), err)
			}
			if more {
				left = append(left, s)
			} else if s.Cut() {
				notes = append(notes, fmt.Sprintf("%s ends in the middle of line %d", s.name, s.Line()))
			}
		}
		sources = left
	}
	r, err := m.Report()
	if err != nil {
		return nil, err
	}
	if err := m.budget.Work(r.pageWork()); err != nil {
		return nil, fmt.Errorf("ranks: the page of %d ranks: %w", r.WorldSize, err)
	}
	r.Notes = append(notes, r.Notes...)
	return r, nil
}

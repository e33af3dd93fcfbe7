package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/trace/profiledir"
)

// rankFiles are the files in the folder of -rankprofile.
var rankFiles = []string{"ranks.html", "rank-*.jsonl"}

// written is a file that a flag makes the program write.
type written struct {
	flag, name string
	pattern    bool // name stands for all files in its folder that it matches
}

// writable returns an error if an output can't be written, or is also an input or another output.
// It is called before the training, so that no result of it is lost.
func (o options) writable(ctx context.Context) error {
	outputs, err := o.outputs()
	if err != nil {
		return err
	}
	if on := o.onStdout(); len(on) > 1 {
		return fmt.Errorf("mnist: %s go to the standard output: want files for all except one", strings.Join(on, " and "))
	}
	inputs := o.inputs(ctx)
	for i, out := range outputs {
		for _, other := range outputs[:i] {
			if other.flag != out.flag && other.clashes(out) {
				return fmt.Errorf("mnist: -%s %s is -%s %s too: want a file of its own for each", other.flag, other.name, out.flag, out.name)
			}
		}
		if out.pattern {
			continue
		}
		if err := output.Check(out.name, inputs...); err != nil {
			return fmt.Errorf("mnist: -%s: %w", out.flag, err)
		}
	}
	for _, c := range [][2]string{{"save", o.save}, {"resume", o.resume}} {
		if info, err := os.Lstat(c[1]); c[1] != "" && err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("mnist: -%s: %s is not a regular file, which it must be to be replaced as a whole", c[0], c[1])
		}
	}
	return nil
}

// outputs returns the files of all flags. It makes their folders.
func (o options) outputs() (all []written, err error) {
	for _, c := range [][2]string{{"json", o.json}, {"save", o.save}, {"resume", o.resume}, {"steps", o.steps}} {
		if c[1] == "-" && c[0] != "json" {
			return nil, fmt.Errorf("mnist: -%s -: want the name of a file; only -json writes to the standard output", c[0])
		}
		if c[1] != "" && c[1] != "-" {
			all = append(all, written{c[0], c[1], false})
		}
	}
	for _, c := range []struct {
		flag, folder string
		names        []string
	}{{"memprofile", o.memprofile, profiledir.Files}, {"rankprofile", o.rankprofile, rankFiles}} {
		if c.folder == "" {
			continue
		}
		if err := os.MkdirAll(c.folder, 0o777); err != nil {
			return nil, fmt.Errorf("mnist: -%s: %w", c.flag, err)
		}
		for _, name := range c.names {
			file := written{c.flag, filepath.Join(c.folder, name), strings.Contains(name, "*")}
			if _, err := os.Stat(filepath.Dir(file.name)); err != nil {
				continue // the folder oom, which is made when memory runs out
			}
			all = append(all, file)
			if file.pattern {
				there, _ := fs.Glob(os.DirFS(c.folder), name)
				for _, name := range there {
					all = append(all, written{c.flag, filepath.Join(c.folder, name), false})
				}
			}
		}
	}
	return all, nil
}

func (w written) clashes(other written) bool {
	if !other.pattern {
		return output.Same(w.name, other.name)
	}
	matches, _ := filepath.Match(filepath.Base(other.name), filepath.Base(w.name))
	return matches && output.Same(w.name, filepath.Join(filepath.Dir(other.name), filepath.Base(w.name)))
}

// inputs returns the files that the training reads, except that of -resume, which it replaces.
func (o options) inputs(ctx context.Context) (all []string) {
	if o.load != "" {
		all = append(all, o.load)
	}
	if o.data != "" {
		for _, s := range []digits.Split{digits.Train, digits.Test} {
			if files, err := digits.Find(ctx, o.data, s); err == nil { // else an error later
				all = append(all, files.Images, files.Labels)
			}
		}
	}
	return all
}

// onStdout returns the flags whose machine-readable output goes to the standard output.
func (o *options) onStdout() (flags []string) {
	for _, c := range [][2]string{{"json", o.json}, {"steps", o.steps}} {
		if c[1] == "-" || output.IsStandard(c[1]) {
			flags = append(flags, "-"+c[0]+" "+c[1])
		}
	}
	if o.trace == "stdout" || o.trace == "otlp" && toConsole() {
		flags = append(flags, "-trace "+o.trace)
	}
	return flags
}

// toConsole reports whether the environment sends an OpenTelemetry signal to the standard output.
func toConsole() bool {
	for _, signal := range []string{"TRACES", "METRICS", "LOGS"} {
		if strings.Contains(os.Getenv("OTEL_"+signal+"_EXPORTER"), "console") {
			return true
		}
	}
	return false
}

// text returns the stream of tables and messages: stderr if a machine-readable output goes to
// stdout, so that nothing else is mixed into it.
func (o *options) text(stdout, stderr io.Writer) io.Writer {
	if len(o.onStdout()) > 0 {
		return stderr
	}
	return stdout
}

// shared is the standard output for several goroutines. It keeps its first error and writes nothing
// after it.
type shared struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

// Write writes p as a whole.
func (s *shared) Write(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		if n, s.err = s.w.Write(p); s.err != nil {
			s.err = fmt.Errorf("the standard output: %w", s.err)
		}
	}
	return n, s.err
}

func (s *shared) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

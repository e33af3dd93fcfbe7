package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/internal/output"
)

// The files in the folders of -memprofile and -rankprofile.
var (
	memoryFiles = []string{"heap.pb.gz", "peak.pb.gz", "snapshot.pickle", "report.html", "recording.jsonl.gz", "trace.json", "step-*.pb.gz",
		"oom/heap.pb.gz", "oom/peak.pb.gz", "oom/snapshot.pickle", "oom/report.html"}
	rankFiles = []string{"ranks.html", "rank-*.jsonl"}
)

// written is a file that a flag makes the program write.
type written struct {
	flag, name string
	pattern    bool // name stands for all files in its folder that it matches
}

// writable returns an error if an output can't be written, or is an input or another output. It is called
// before the training, so that no result is lost after it.
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

// outputs are the files of all flags. It makes the folders.
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
	}{{"memprofile", o.memprofile, memoryFiles}, {"rankprofile", o.rankprofile, rankFiles}} {
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

// inputs are the files that the training begins with, except that of -resume, which is replaced.
func (o options) inputs(ctx context.Context) (all []string) {
	if o.load != "" {
		all = append(all, o.load)
	}
	if o.data != "" {
		for _, s := range []digits.Split{digits.Train, digits.Test} {
			if files, err := digits.Find(ctx, o.data, s); err == nil { // what is missing is an error later
				all = append(all, files.Images, files.Labels)
			}
		}
	}
	return all
}

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/trace/ranks"
)

// rankFileOf is the file of a rank's steps.
func rankFileOf(dir string, rank int) string {
	return filepath.Join(dir, fmt.Sprintf("rank-%d.jsonl", rank))
}

// newRankFile begins the file of a rank's steps, or goes on with it.
func newRankFile(dir string, p *party, goesOn bool) (*stepsFile, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("mnist: -rankprofile: %w", err)
	}
	return newStepsFile("rankprofile", rankFileOf(dir, p.number()), goesOn)
}

// reportRanks makes the page of all ranks, if all are of this process, and have taken a step.
func (o options) reportRanks(parties []*party) error {
	if o.rankprofile == "" || len(parties) < parties[0].ranks() {
		return nil
	}
	var files []string
	for _, p := range parties {
		if info, err := os.Stat(rankFileOf(o.rankprofile, p.number())); err == nil && info.Size() > 0 {
			files = append(files, rankFileOf(o.rankprofile, p.number()))
		}
	}
	if len(files) == 0 {
		return nil
	}
	r, err := ranks.ReadFiles(ranks.Options{}, files...)
	if err == nil {
		err = output.Write(filepath.Join(o.rankprofile, "ranks.html"), func(w io.Writer) error { return r.HTML(w, "mnist, "+o.model) })
	}
	if err != nil {
		return fmt.Errorf("mnist: -rankprofile: %w", err)
	}
	return nil
}

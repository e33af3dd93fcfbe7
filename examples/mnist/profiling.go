package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/examples/mnist/internal/pages"
	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/profiledir"
	"github.com/cistern-ml/cistern/trace/ranks"
	"github.com/cistern-ml/cistern/transfer"
)

// profiling is the output of -memprofile, -steps, -rankprofile, -http and -busy. A part without its
// flag is nil and does nothing.
type profiling struct {
	folder  *profiledir.Dir
	steps   *profiledir.StepLog
	rank    *profiledir.StepLog // of -rankprofile
	pages   *pages.Pages
	kernels *trace.KernelTimer
}

// historyEntries limits the history of the pages.
const historyEntries = 1 << 17

// newProfiling makes the files and the listener, so that their errors come before the training.
func newProfiling(o options, out io.Writer) (p *profiling, err error) {
	p = &profiling{}
	if o.busy {
		p.kernels = new(trace.KernelTimer)
	}
	if o.memprofile != "" {
		if p.folder, err = profiledir.New(o.memprofile, profiledir.Options{Name: "mnist", Steps: o.profileSteps}); err != nil {
			return nil, ofFlag("memprofile", err)
		}
	}
	if o.steps != "" {
		if p.steps, err = profiledir.NewStepLog(o.steps, o.resumes()); err != nil {
			return nil, errors.Join(ofFlag("steps", err), p.end())
		}
	}
	if o.http != "" {
		if p.pages, err = pages.Listen(o.http, out); err != nil {
			return nil, errors.Join(ofFlag("http", err), p.end())
		}
	}
	return p, nil
}

func ofFlag(flag string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("mnist: -%s: %w", flag, err)
}

// options returns the observers of the runtime: the tracer and the profiles.
func (p *profiling) options(tracer *trace.Tracer) []tensor.Option {
	memory, copies := p.folder.Observers()
	var stream device.StreamOptions
	if p.folder != nil {
		stream.Launching = p.folder.Launching
	}
	if p.kernels != nil {
		stream.Launching = device.LaunchingHooks(stream.Launching, p.kernels.Launching)
	}
	all := []tensor.Option{
		tensor.CacheConfig(memcache.Config{Observer: memcache.Observers(tracer.Memory(), memory)}),
		tensor.PoolConfig(transfer.Config{Observer: transfer.Observers(tracer.Transfer(), copies)}),
		tensor.StreamOptions(stream),
	}
	if p.folder != nil {
		all = append(all, tensor.OnOperation(p.folder.Operation))
	}
	return all
}

// begin starts the profiles of a runtime that has no allocation yet.
func (p *profiling) begin(env *tensor.Runtime) error {
	if p.pages != nil && p.folder == nil {
		if err := env.Cache().RecordHistory(memcache.HistoryOptions{Entries: historyEntries}); err != nil {
			return err
		}
	}
	return errors.Join(p.folder.Watch(env.Cache()), p.pages.Begin(env))
}

// holders reports whether the profile of a step includes the holders of its peak.
func (p *profiling) holders() bool {
	return p.steps != nil || p.rank != nil || p.folder != nil || p.pages != nil
}

// onProfile takes the profile of a step.
func (p *profiling) onProfile(s trace.StepProfile) {
	p.steps.Write(s)
	p.rank.Write(s)
	p.pages.Step(s)
	p.folder.OnProfile(s)
}

// end writes and closes the files, before the cache is closed. A second call does nothing.
func (p *profiling) end() error {
	return errors.Join(ofFlag("memprofile", p.folder.Close()), ofFlag("steps", p.steps.Close()),
		ofFlag("rankprofile", p.rank.Close()), ofFlag("http", p.pages.Close()))
}

// rankFileOf returns the name of the file of a rank's steps.
func rankFileOf(dir string, rank int) string {
	return filepath.Join(dir, fmt.Sprintf("rank-%d.jsonl", rank))
}

// beginRank begins the file of a rank's steps or appends to it.
func (p *profiling) beginRank(o options) (err error) {
	if o.rankprofile == "" {
		return nil
	}
	if err = os.MkdirAll(o.rankprofile, 0o777); err == nil {
		p.rank, err = profiledir.NewStepLog(rankFileOf(o.rankprofile, o.party.number()), o.resumes())
	}
	return ofFlag("rankprofile", err)
}

// reportRanks makes the page of all ranks, if all are of this process and have taken a step.
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
	return ofFlag("rankprofile", err)
}

package main

import (
	"errors"
	"io"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/transfer"
)

// profiling is what the flags -memprofile, -steps, -http and -busy ask for. What is not asked for is nil, and does nothing.
type profiling struct {
	folder  *profileFolder
	steps   *stepsFile
	rank    *stepsFile // of -rankprofile
	pages   *pages
	kernels *trace.KernelTimer
	seen    []trace.StepProfile // for the report
	ended   bool
}

const (
	// historyEntries are what snapshots and reports of a running program go back to: some 2,500 steps of the mlp.
	historyEntries = 1 << 17
	// mostSeen bounds the steps that a report has: the latest.
	mostSeen = 10_000
)

// newProfiling makes files and the listener, so that what is wrong with them is told before the training.
func newProfiling(o options, out io.Writer) (p *profiling, err error) {
	p = &profiling{}
	if o.busy {
		p.kernels = new(trace.KernelTimer)
	}
	if p.folder, err = newProfileFolder(o.memprofile, o.profileSteps); err != nil {
		return nil, err
	}
	if p.steps, err = newStepsFile("steps", o.steps, o.resumes()); err != nil {
		return nil, errors.Join(err, p.close())
	}
	if p.pages, err = listen(o.http, out); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// options are those of the runtime: who sees what, beside the tracer.
func (p *profiling) options(tracer *trace.Tracer) []tensor.Option {
	memory, copies, stream, operations := p.folder.observers()
	if p.kernels != nil {
		stream.Launching = device.LaunchingHooks(stream.Launching, p.kernels.Launching)
	}
	return []tensor.Option{
		tensor.CacheConfig(memcache.Config{Observer: memcache.Observers(tracer.Memory(), memory)}),
		tensor.PoolConfig(transfer.Config{Observer: transfer.Observers(tracer.Transfer(), copies)}),
		tensor.StreamOptions(stream),
		operations,
	}
}

// begin begins with a runtime that nothing was allocated from.
func (p *profiling) begin(env *tensor.Runtime) error {
	if p.folder != nil || p.pages != nil {
		o := memcache.HistoryOptions{Entries: historyEntries}
		if p.folder != nil {
			o.Stacks = stacks
		}
		if err := env.Cache().RecordHistory(o); err != nil {
			return err
		}
	}
	return errors.Join(p.folder.begin(env.Cache()), p.pages.begin(env))
}

// holders reports whether each step is to tell who held its peak.
func (p *profiling) holders() bool {
	return p.steps != nil || p.rank != nil || p.folder != nil || p.pages != nil
}

// onProfile takes the profile of a step.
func (p *profiling) onProfile(s trace.StepProfile) {
	p.steps.write(s)
	p.rank.write(s)
	p.pages.step(s)
	if p.folder != nil {
		if len(p.seen) == 2*mostSeen {
			p.seen = p.seen[:copy(p.seen, p.seen[mostSeen:])]
		}
		p.seen = append(p.seen, s)
	}
	p.folder.onProfile(s)
}

// latest are the steps that a report has.
func (p *profiling) latest() []trace.StepProfile { return p.seen[max(0, len(p.seen)-mostSeen):] }

// end writes what there is, while the cache is as the training left it. The second call does nothing.
func (p *profiling) end() error {
	if p.ended {
		return nil
	}
	p.ended = true
	return errors.Join(p.folder.write(p.latest()), p.close())
}

func (p *profiling) close() error {
	return errors.Join(p.folder.close(), p.steps.close(), p.rank.close(), p.pages.close())
}

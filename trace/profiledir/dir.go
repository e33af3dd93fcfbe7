package profiledir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/heap"
	"github.com/cistern-ml/cistern/trace/record"
	"github.com/cistern-ml/cistern/trace/timeline"
	"github.com/cistern-ml/cistern/transfer"
)

const (
	// stacks are kept of all allocations, because a step mostly uses memory that was allocated
	// before it.
	stacks = memcache.StacksAlloc
	// historyEntries limits the history of snapshots and reports, to some 2,500 steps of a small
	// model.
	historyEntries = 1 << 17
	// mostSteps limits the steps of a report to the latest.
	mostSteps = 10_000
	// mostErrors limits the errors that Close returns.
	mostErrors = 10
)

// Options are the options of New. The zero value is valid.
type Options struct {
	// Name is the title of the report.
	Name string
	// Steps are recorded with the call stacks of their frees, a file of their peak, and events in
	// the timeline. Empty: steps 1 to 3.
	Steps StepSet
}

// Dir is the folder of one training. Its methods may be called from several goroutines; the
// functions that observe a cache, a pool or a stream are called where those say.
type Dir struct {
	dir       string
	options   Options
	cache     *memcache.Cache
	counter   heap.Counter
	recording io.WriteCloser
	recorder  *record.Recorder
	trace     io.WriteCloser
	timeline  *timeline.Timeline
	memory    *timeline.Memory

	oom sync.Once

	mu     sync.Mutex
	steps  []trace.StepProfile
	errs   []error // of files that were written while the program ran
	closed bool
}

// New makes the folder, removes the files of an earlier training from it, and begins those that are
// written while the program runs. Other files in the folder stay.
func New(dir string, o Options) (d *Dir, err error) {
	if len(o.Steps) == 0 {
		o.Steps = StepSet{{1, 3}}
	}
	d = &Dir{dir: dir, options: o}
	err = os.MkdirAll(dir, 0o777)
	if err == nil {
		err = removeEarlier(dir)
	}
	if err == nil {
		d.recording, err = output.Stream(filepath.Join(dir, "recording.jsonl.gz"), false)
	}
	if err == nil {
		d.trace, err = output.Stream(filepath.Join(dir, "trace.json"), false)
	}
	if err == nil {
		d.timeline, err = timeline.New(d.trace)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("profiledir: %w", err), d.end())
	}
	d.memory = d.timeline.Memory()
	d.timeline.SetEnabled(false)
	return d, nil
}

// Observers returns the observers for memcache.Config and transfer.Config. The cache must have its
// observer before the first allocation.
func (d *Dir) Observers() (memcache.Observer, transfer.Observer) {
	if d == nil {
		return nil, nil
	}
	return memcache.Observers(&d.counter, d.memory, outOfMemory{d}), d.timeline.Transfer()
}

// Launching is for device.StreamOptions.
func (d *Dir) Launching(s device.Stream, name string) (launched func(error)) {
	if d == nil {
		return nil
	}
	return d.timeline.Launching(s, name)
}

// Operation is for tensor.OnOperation.
func (d *Dir) Operation(ctx context.Context, s device.Stream, name string, about fmt.Stringer) (queued func()) {
	if d == nil {
		return nil
	}
	return d.timeline.Operation(ctx, s, name, about)
}

// Starting is for trace.ProfilerConfig.
func (d *Dir) Starting(s device.Stream, number int64) (ending func()) {
	if d == nil {
		return nil
	}
	return d.timeline.Starting(s, number)
}

// Watch records the history and the requests of a cache from now on. The cache has the observer of
// Observers and no allocation yet.
func (d *Dir) Watch(cache *memcache.Cache) (err error) {
	if d == nil {
		return nil
	}
	if cache == nil {
		return fmt.Errorf("profiledir: Watch: %w: the cache is nil", memcache.ErrInvalid)
	}
	if err := cache.RecordHistory(memcache.HistoryOptions{Entries: historyEntries, Stacks: stacks}); err != nil {
		return fmt.Errorf("profiledir: %w", err)
	}
	d.memory.Watch(cache)
	if d.recorder, err = record.Start(d.recording, cache, record.Options{Gzip: true, Stacks: stacks}); err != nil {
		return fmt.Errorf("profiledir: %w", err)
	}
	d.cache = cache
	return nil
}

// OnProfile is for trace.ProfilerConfig.
func (d *Dir) OnProfile(p trace.StepProfile) {
	if d == nil {
		return
	}
	d.mu.Lock()
	if len(d.steps) == 2*mostSteps {
		d.steps = d.steps[:copy(d.steps, d.steps[mostSteps:])]
	}
	d.steps = append(d.steps, p)
	d.mu.Unlock()
	if d.options.Steps.Has(p.Step) {
		d.timeline.Step(p)
	}
}

// latest returns the steps of a report.
func (d *Dir) latest() []trace.StepProfile {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.steps[max(0, len(d.steps)-mostSteps):]
}

// failed keeps an error for Close, because profiling must not stop a training.
func (d *Dir) failed(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil && len(d.errs) < mostErrors {
		d.errs = append(d.errs, err)
	}
}

// Close writes the files of the program's end and ends the recording and the timeline. It is called
// before the cache is closed, after the last step. Its error includes those of files that were
// written before. A second call does nothing.
func (d *Dir) Close() error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	closed := d.closed
	d.closed = true
	d.mu.Unlock()
	if closed {
		return nil
	}
	var err error
	if d.cache != nil {
		err = d.state("", d.latest(), nil)
	}
	if err = errors.Join(err, d.end()); err != nil {
		return fmt.Errorf("profiledir: %w", err)
	}
	return nil
}

// end ends the recording and the timeline.
func (d *Dir) end() error {
	d.mu.Lock()
	errs := d.errs
	d.mu.Unlock()
	errs = append(errs, d.recorder.Close())
	if d.timeline != nil {
		d.memory.Watch(nil)
		errs = append(errs, d.timeline.Close())
	}
	for _, file := range []io.Closer{d.recording, d.trace} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	return errors.Join(errs...)
}

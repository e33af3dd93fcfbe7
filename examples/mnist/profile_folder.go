package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/heap"
	"github.com/cistern-ml/cistern/trace/record"
	"github.com/cistern-ml/cistern/trace/report"
	"github.com/cistern-ml/cistern/trace/timeline"
	"github.com/cistern-ml/cistern/trace/torchsnapshot"
	"github.com/cistern-ml/cistern/transfer"
)

// profileFolder is the folder of -memprofile. The recording and the trace are written while the program runs; what is in
// use, the peak, the snapshot and the report at the end, and into the folder "oom" when memory runs out for the first time.
type profileFolder struct {
	dir       string
	closely   stepSet
	cache     *memcache.Cache
	counter   heap.Counter
	recording io.WriteCloser
	recorder  *record.Recorder
	trace     io.WriteCloser
	timeline  *timeline.Timeline
	memory    *timeline.Memory

	oom sync.Once

	mu   sync.Mutex
	errs []error // of what was written while the program ran
}

// stacks are kept of all allocations: what a step uses was mostly allocated before it.
const stacks = memcache.StacksAlloc

// newProfileFolder begins the files of the folder, which must be there, and removes those of an
// earlier run.
func newProfileFolder(dir string, closely stepSet) (f *profileFolder, err error) {
	if dir == "" {
		return nil, nil
	}
	if len(closely) == 0 {
		closely = stepSet{{1, 3}}
	}
	f = &profileFolder{dir: dir, closely: closely}
	err = removeEarlier(dir)
	if err == nil {
		f.recording, err = output.Stream(filepath.Join(dir, "recording.jsonl.gz"), false)
	}
	if err == nil {
		f.trace, err = output.Stream(filepath.Join(dir, "trace.json"), false)
	}
	if err == nil {
		f.timeline, err = timeline.New(f.trace)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mnist: -memprofile: %w", err), f.close())
	}
	f.memory = f.timeline.Memory()
	f.timeline.SetEnabled(false)
	return f, nil
}

// observers see the cache, the pool, the stream and the operations. Without a folder the option is nil.
func (f *profileFolder) observers() (memcache.Observer, transfer.Observer, device.StreamOptions, tensor.Option) {
	if f == nil {
		return nil, nil, device.StreamOptions{}, nil
	}
	return memcache.Observers(&f.counter, f.memory, outOfMemory{f}), f.timeline.Transfer(), device.StreamOptions{Launching: f.timeline.Launching},
		tensor.OnOperation(f.timeline.Operation)
}

// starting sees the steps on the stream, as trace.ProfilerConfig.Starting.
func (f *profileFolder) starting(s device.Stream, number int64) (ending func()) {
	if f == nil {
		return nil
	}
	return f.timeline.Starting(s, number)
}

func (f *profileFolder) begin(cache *memcache.Cache) (err error) {
	if f == nil {
		return nil
	}
	f.cache = cache
	f.memory.Watch(cache)
	f.recorder, err = record.Start(f.recording, cache, record.Options{Gzip: true, Stacks: stacks})
	return err
}

// closeLook is what the folder does during a step; nil does nothing.
type closeLook struct {
	folder *profileFolder
	number int64
	mark   *record.Mark
	scope  *memcache.Scope // nil: it is none of -profile-steps
	peak   memcache.Holders
}

// look is for a step that is about to begin. The trace sees all of one that is looked at closely.
func (f *profileFolder) look(n int64) *closeLook {
	if f == nil {
		return nil
	}
	f.timeline.SetEnabled(f.closely.has(n))
	return &closeLook{folder: f, number: n}
}

// begin marks the step in the recording. Those of -profile-steps have stacks of their frees, too, a file of their peak, and
// events in the trace.
func (l *closeLook) begin(ctx context.Context) context.Context {
	if l == nil {
		return ctx
	}
	f := l.folder
	l.mark = f.recorder.Step(l.number)
	if !f.closely.has(l.number) {
		return ctx
	}
	f.failed(f.cache.SetHistoryStacks(memcache.StacksAll))
	ctx, l.scope = f.cache.Scope(ctx, "profiled step")
	return ctx
}

// end ends the step, before its profile does.
func (l *closeLook) end() {
	if l == nil {
		return
	}
	if f := l.folder; l.scope != nil {
		_, l.peak = l.scope.EndWindow(-1)
		f.failed(f.cache.SetHistoryStacks(stacks))
		f.timeline.SetEnabled(false)
	}
	l.mark.End()
}

// write writes the file of the step's peak, after the step.
func (l *closeLook) write() {
	if l != nil && l.scope != nil {
		l.folder.failed(l.folder.file(fmt.Sprintf("step-%d.pb.gz", l.number), l.folder.heapAt(l.peak.Profile()).Write))
	}
}

// onProfile puts a step that is looked at closely into the trace.
func (f *profileFolder) onProfile(p trace.StepProfile) {
	if f != nil && f.closely.has(p.Step) {
		f.timeline.Step(p)
	}
}

func (f *profileFolder) heapAt(p memcache.Profile) heap.Heap {
	return heap.Heap{Device: f.cache.Device().Name(), Time: time.Now(), Peak: &p}
}

// outOfMemory sees a request fail for good, and writes down the holders of the memory before the
// program frees it.
type outOfMemory struct{ *profileFolder }

func (o outOfMemory) Start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	if op != memcache.OpAllocFailed {
		return ctx, nil
	}
	return ctx, o
}

func (o outOfMemory) End(e memcache.OpInfo) {
	var oom *memcache.OutOfMemoryError
	if !errors.As(e.Err, &oom) {
		return
	}
	o.oom.Do(func() {
		if o.cache != nil {
			o.failed(o.state("oom", nil, oom))
		}
	})
}

// failed keeps an error for the end: profiling stops no training.
func (f *profileFolder) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil && len(f.errs) < 10 {
		f.errs = append(f.errs, err)
	}
}

// write writes what is told at the end.
func (f *profileFolder) write(steps []trace.StepProfile) error {
	if f == nil || f.cache == nil {
		return nil
	}
	if err := f.state("", steps, nil); err != nil {
		return fmt.Errorf("mnist: -memprofile: %w", err)
	}
	return nil
}

// state writes the holders of the memory now, and at the peak, to a folder of the folder, and the
// request that failed, if it is about one.
func (f *profileFolder) state(sub string, steps []trace.StepProfile, oom *memcache.OutOfMemoryError) error {
	if err := os.MkdirAll(filepath.Join(f.dir, sub), 0o777); err != nil {
		return err
	}
	now := heap.Of(f.cache)
	now.Allocated = f.counter.Holdings()
	page, err := report.FromCache(f.cache, steps, report.Options{Name: "mnist", OutOfMemory: oom})
	if err != nil {
		return err
	}
	snapshot := torchsnapshot.State{Snapshot: f.cache.Snapshot(), Config: f.cache.Config()}
	return errors.Join(
		f.file(filepath.Join(sub, "heap.pb.gz"), now.Write),
		f.file(filepath.Join(sub, "peak.pb.gz"), f.heapAt(*now.Peak).Write),
		f.file(filepath.Join(sub, "snapshot.pickle"), func(w io.Writer) error { return torchsnapshot.Write(w, snapshot) }),
		f.file(filepath.Join(sub, "report.html"), func(w io.Writer) error { return report.Write(w, page) }),
	)
}

// file writes a file of the folder.
func (f *profileFolder) file(name string, write func(io.Writer) error) error {
	return output.Write(filepath.Join(f.dir, name), write)
}

// close ends the recording and the trace.
func (f *profileFolder) close() error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	errs := f.errs
	f.mu.Unlock()
	errs = append(errs, f.recorder.Close())
	if f.timeline != nil {
		f.memory.Watch(nil)
		errs = append(errs, f.timeline.Close())
	}
	for _, file := range []io.Closer{f.recording, f.trace} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("mnist: -memprofile: %w", err)
	}
	return nil
}

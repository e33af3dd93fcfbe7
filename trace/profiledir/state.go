package profiledir

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/heap"
	"github.com/cistern-ml/cistern/trace/report"
	"github.com/cistern-ml/cistern/trace/torchsnapshot"
)

// state writes the holders of memory, now and at the peak, to the folder sub of the Dir. oom is the
// request that failed, or nil.
func (d *Dir) state(sub string, steps []trace.StepProfile, oom *memcache.OutOfMemoryError) error {
	if err := os.MkdirAll(filepath.Join(d.dir, sub), 0o777); err != nil {
		return err
	}
	now := heap.Of(d.cache)
	now.Allocated = d.counter.Holdings()
	page, err := report.FromCache(d.cache, steps, report.Options{Name: d.options.Name, OutOfMemory: oom})
	if err != nil {
		return err
	}
	snapshot := torchsnapshot.State{Snapshot: d.cache.Snapshot(), Config: d.cache.Config()}
	return errors.Join(
		d.file(filepath.Join(sub, "heap.pb.gz"), now.Write),
		d.file(filepath.Join(sub, "peak.pb.gz"), d.heapAt(*now.Peak).Write),
		d.file(filepath.Join(sub, "snapshot.pickle"), func(w io.Writer) error { return torchsnapshot.Write(w, snapshot) }),
		d.file(filepath.Join(sub, "report.html"), func(w io.Writer) error { return report.Write(w, page) }),
	)
}

func (d *Dir) heapAt(p memcache.Profile) heap.Heap {
	return heap.Heap{Device: d.cache.Device().Name(), Time: time.Now(), Peak: &p}
}

func (d *Dir) file(name string, write func(io.Writer) error) error {
	return output.Write(filepath.Join(d.dir, name), write)
}

// outOfMemory writes the holders of memory at the first request that fails for good, before the
// program frees them.
type outOfMemory struct{ *Dir }

// Start observes requests that fail.
func (o outOfMemory) Start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	if op != memcache.OpAllocFailed {
		return ctx, nil
	}
	return ctx, o
}

// End writes the folder oom.
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

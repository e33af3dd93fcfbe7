package forecast

import (
	"context"
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/report"
)

// Report is [Step] and writes a page of the run to w: that of package report, with the model by
// layers and the memory with other allocator options. If the training does not fit, the page is
// that of a device with unlimited memory, with the capacity as its limit. If a run has more than
// 1,048,576 events of the cache, the page has the last ones.
func Report(ctx context.Context, w io.Writer, name string, program Program, options ...tensor.Option) (*Forecast, error) {
	if w == nil {
		return nil, fmt.Errorf("forecast: Report: %w: the writer is nil", device.ErrInvalid)
	}
	p := &page{}
	f, err := trial{name: name, program: program, options: options, page: p}.forecast(ctx, trial.advise)
	if err != nil {
		return nil, err
	}
	if err := report.Write(w, p.report); err != nil {
		return nil, fmt.Errorf("forecast: %w", err)
	}
	return f, nil
}

// page is the page of a run. The methods of a nil page do nothing.
type page struct {
	limit  int64 // limit that the training exceeds; 0: none
	steps  []trace.StepProfile
	report *report.Report
}

// begin starts a page of an unused cache.
func (p *page) begin(cache *memcache.Cache) error {
	if p == nil {
		return nil
	}
	return cache.RecordHistory(memcache.HistoryOptions{Entries: 1 << 20, Stacks: memcache.StacksAlloc})
}

func (p *page) add(s trace.StepProfile) {
	if p != nil {
		p.steps = append(p.steps, s)
	}
}

// end makes the report.
func (p *page) end(cache *memcache.Cache, layers []report.Layer) (err error) {
	if p == nil {
		return nil
	}
	fits, capacity := "fits", cache.Device().Properties().TotalMemory
	if p.limit > 0 {
		fits, capacity = "does not fit", p.limit
	}
	p.report, err = report.FromCache(cache, p.steps, report.Options{Name: fmt.Sprintf("%s: %s in %s", cache.Device().Name(), fits, sizes.Format(capacity)),
		Layers: layers, Limit: p.limit, Suggest: true})
	return err
}

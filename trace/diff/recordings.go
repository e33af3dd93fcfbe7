package diff

import (
	"io"

	"github.com/cistern-ml/cistern/trace/report"
)

// recordings reduces a recording or snapshot to a run of each device.
func (o Options) recordings(in io.Reader, name string) ([]*run, error) {
	reports, err := report.Read(in, name, report.Options{MaxMemory: o.MaxMemory, MaxWork: o.MaxWork})
	if err != nil {
		return nil, err
	}
	runs := make([]*run, len(reports))
	for i, r := range reports {
		p := r.Peak()
		reports[i] = nil // it may be large
		if runs[i], err = ofPeak(p); err != nil {
			return nil, err
		}
		runs[i].place = i
	}
	return runs, nil
}

// ofPeak returns the run of a report.
func ofPeak(p report.Peak) (*run, error) {
	r := &run{name: p.Name, allocated: p.Allocated, reserved: p.Reserved}
	held := len(p.Holdings) > 0 // an empty peak lacks nothing
	if held && !p.Labelled {
		r.lacks[byCategory] = p.Name + " has no labels"
		r.lacks[byModule] = r.lacks[byCategory]
	}
	if held && !p.Stacked {
		r.lacks[byLine] = p.Name + " has no call stacks"
	}
	if len(p.Steps) == 0 {
		r.lacks[byStep] = p.Name + " has no steps"
	}
	for _, n := range p.Notes {
		r.notes = append(r.notes, p.Name+": "+n)
	}
	for _, h := range p.Holdings {
		for d, k := range map[dimension]key{byCategory: {name: h.Category}, byModule: {name: h.Module}, byLine: {h.Function, h.File, int64(h.Line)}} {
			if err := r.add(d, k, h.Bytes, h.Blocks); err != nil {
				return nil, err
			}
		}
	}
	for _, s := range p.Steps {
		if err := r.step(s.Step, s.Allocated); err != nil {
			return nil, err
		}
	}
	return r, nil
}

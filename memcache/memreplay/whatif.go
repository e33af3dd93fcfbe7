package main

import (
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/replay"
)

// estimated is what -json prints of a replay under a configuration.
type estimated struct {
	Trace         string   `json:"trace"`
	Config        string   `json:"config"`
	Allocs        int      `json:"allocs"`
	PeakAllocated int64    `json:"peak_allocated"`
	PeakReserved  int64    `json:"peak_reserved"`
	Ratio         float64  `json:"ratio"`
	DriverCalls   int64    `json:"driver_calls"`
	Retries       int64    `json:"retries"`
	OOMs          int64    `json:"ooms"`
	NsPerOp       float64  `json:"ns_per_op"`
	Notes         []string `json:"notes,omitempty"`
}

// whatIf is memreplay -config OPTIONS FILE...
func (o *options) whatIf(stdout, stderr io.Writer) int {
	status := exitOK
	fail := func(err error) {
		fmt.Fprintln(stderr, err)
		status = exitFailed
	}
	table := newTable(stdout, "trace\tconfig\tpeak allocated\tpeak reserved\tratio\tdriver calls\tretries\tooms\tns/op")
	var panels []panel
	var remarks []string
	for _, file := range o.files {
		programs, err := o.programs(file)
		if err != nil {
			fail(err)
			continue
		}
		for _, p := range programs {
			panel := panel{title: p.Name, calls: len(p.Steps)}
			said := make(map[string]bool)
			advice, err := o.estimates(p, func(c string, e *replay.Estimate) {
				panel.lines = append(panel.lines, line{c, e.PeakReserved, e.PeakAllocated, e.Samples})
				if o.json {
					printJSON(stdout, estimated{p.Name, c, e.Allocs, e.PeakAllocated, e.PeakReserved, e.Ratio(), e.DriverCalls,
						e.Retries, e.OOMs, e.NsPerOp(), e.Notes})
					return
				}
				table.row("%s\t%s\t%s\t%s\t%.3f\t%d\t%d\t%d\t%.0f\n", p.Name, label(c), formatBytes(e.PeakAllocated),
					formatBytes(e.PeakReserved), e.Ratio(), e.DriverCalls, e.Retries, e.OOMs, e.NsPerOp())
				for _, n := range e.Notes {
					if !said[n] {
						said[n] = true
						remarks = append(remarks, p.Name+": "+n)
					}
				}
			})
			if err != nil {
				fail(err)
			}
			if advice != "" && !o.json {
				remarks = append(remarks, p.Name+": "+advice)
			}
			panels = append(panels, panel)
		}
	}
	if err := table.out.Flush(); err != nil {
		fail(err)
	}
	for _, r := range remarks {
		fmt.Fprintln(stdout, r)
	}
	if o.plot != "" {
		if err := writePlot(o.plot, panels); err != nil {
			fail(err)
		}
	}
	return status
}

// samples is the number of points of a line of a plot.
const samples = 800

// estimates replays a program under each configuration. advice compares the suggested ones, if -whatif
// is set.
func (o *options) estimates(p *recording.Program, yield func(config string, e *replay.Estimate)) (advice string, err error) {
	s, err := replay.NewScenario(p)
	if err != nil {
		return "", err
	}
	try := func(c string) (*replay.Estimate, error) {
		config, text, err := replay.RecordedOptions(p)
		if c != recorded {
			config, text, err = replay.OptionsFor(p, c)
		}
		if err != nil {
			return nil, err
		}
		n := 0
		if o.plot != "" {
			n = samples
		}
		e, err := s.Estimate(config, n)
		if err == nil {
			yield(text, e)
		}
		return e, err
	}
	for _, c := range o.configs {
		if _, err := try(c); err != nil {
			return "", err
		}
	}
	if !o.suggest {
		return "", nil
	}
	base, err := try(recorded)
	if err != nil {
		return "", err
	}
	suggested := replay.Suggestions(base.PeakReserved)
	tried := make([]*replay.Estimate, len(suggested))
	for i, c := range suggested {
		if tried[i], err = try(c); err != nil {
			return "", err
		}
	}
	return replay.Advice(base, suggested, tried), nil
}

// label is an option string in a table.
func label(config string) string {
	if config == "" {
		return "default"
	}
	return config
}

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
	for _, file := range o.files {
		programs, err := o.programs(file)
		if err != nil {
			fail(err)
			continue
		}
		for _, p := range programs {
			panel := panel{title: p.Name, calls: len(p.Steps)}
			if err := o.estimates(p, func(c string, e *replay.Estimate) {
				panel.lines = append(panel.lines, line{c, e.PeakReserved, e.PeakAllocated, e.Samples})
				if o.json {
					printJSON(stdout, estimated{p.Name, c, e.Allocs, e.PeakAllocated, e.PeakReserved, e.Ratio(), e.DriverCalls,
						e.Retries, e.OOMs, e.NsPerOp(), e.Notes})
					return
				}
				table.row("%s\t%s\t%s\t%s\t%.3f\t%d\t%d\t%d\t%.0f\n", p.Name, label(c), formatBytes(e.PeakAllocated),
					formatBytes(e.PeakReserved), e.Ratio(), e.DriverCalls, e.Retries, e.OOMs, e.NsPerOp())
			}); err != nil {
				fail(err)
			}
			panels = append(panels, panel)
		}
	}
	if err := table.out.Flush(); err != nil {
		fail(err)
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

// estimates replays a program under each configuration.
func (o *options) estimates(p *recording.Program, yield func(config string, e *replay.Estimate)) error {
	s, err := replay.NewScenario(p)
	if err != nil {
		return err
	}
	for _, c := range o.configs {
		config, text, err := replay.RecordedOptions(p)
		if c != recorded {
			config, text, err = replay.OptionsFor(p, c)
		}
		if err != nil {
			return err
		}
		n := 0
		if o.plot != "" {
			n = samples
		}
		e, err := s.Estimate(config, n)
		if err != nil {
			return err
		}
		yield(text, e)
	}
	return nil
}

// label is an option string in a table.
func label(config string) string {
	if config == "" {
		return "default"
	}
	return config
}

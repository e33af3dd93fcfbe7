package report

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/replay"
	"github.com/cistern-ml/cistern/memcache"
)

// maxSuggested is the most calls that are replayed for all suggested options together: some
// seconds.
const maxSuggested = 1 << 20

// estimate is the cost of a program under other options. Sizes are bytes.
type estimate struct {
	Options     string  `json:"options"`
	Recorded    bool    `json:"recorded"`
	Allocated   int64   `json:"allocated"` // at the peak
	Reserved    int64   `json:"reserved"`  // at the peak
	Ratio       float64 `json:"ratio"`
	DriverCalls int64   `json:"driverCalls"`
	Retries     int64   `json:"retries"`
	OOMs        int64   `json:"ooms"`
	Error       string  `json:"error,omitempty"`
}

// estimate replays the recording under its own options, and under those of o.
func (r *Report) estimate(rec *recording.Recording, o Options) {
	if len(o.WhatIf) == 0 && !o.Suggest {
		return
	}
	p, err := recording.NewProgram(rec)
	var s *replay.Scenario
	if err == nil {
		s, err = replay.NewScenario(p)
	}
	if err != nil {
		r.account.note("other options can't be tried: %v", err)
		return
	}
	try := func(options string, recorded bool, config memcache.Config, err error) {
		e := estimate{Options: options, Recorded: recorded}
		var cost *replay.Estimate
		if err == nil {
			cost, err = s.Estimate(config)
		}
		if err != nil {
			e.Error = err.Error()
		} else {
			e.Allocated, e.Reserved, e.Ratio = cost.PeakAllocated, cost.PeakReserved, cost.Ratio()
			e.DriverCalls, e.Retries, e.OOMs = cost.DriverCalls, cost.Retries, cost.OOMs
			for _, n := range cost.Notes {
				if !slices.Contains(r.account.notes, n) {
					r.account.notes = append(r.account.notes, n)
				}
			}
		}
		r.whatIf = append(r.whatIf, e)
	}
	config, label, err := replay.RecordedOptions(p)
	try(label, true, config, err)
	tried := []memcache.Config{config}
	list := o.WhatIf
	if len(list) == 0 && err == nil && r.whatIf[0].Error == "" {
		list = replay.Suggestions(p, r.whatIf[0].Reserved)
		if room := maxSuggested/max(len(p.Steps), 1) - 1; room < len(list) {
			r.account.note("%d sets of options were not tried: a replay of this recording takes %d calls", len(list)-max(room, 0), len(p.Steps))
			list = list[:max(room, 0)]
		}
	}
	for _, options := range list {
		config, options, err := replay.OptionsFor(p, options)
		if options == label || slices.Contains(tried, config) && err == nil {
			continue
		}
		tried = append(tried, config)
		try(options, false, config, err)
	}
}

// CheckWhatIf returns an error about the first of the option strings that can't be tried, or nil.
func CheckWhatIf(list []string) error {
	for _, options := range list {
		if _, err := replay.ParseOptions(options); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}

package report

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/replay"
	"github.com/cistern-ml/cistern/memcache"
)

// DefaultWhatIf are the option strings that memreport tries: what people turn on against fragmentation, the most
// useful first. Against a recording of trace/record they are as exact as it was, unless they say, and those that come to what
// was tried before are left out: exact:True is PyTorch's default.
func DefaultWhatIf() []string {
	return []string{"", "exact:True", "expandable_segments:True", "roundup_power2_divisions:4", "max_split_size_mb:128", "garbage_collection_threshold:0.8",
		"exact:False,expandable_segments:True,expandable_granule_mb:2,expandable_remap:True", "no_caching:True"}
}

// estimate is what a program would have cost under other options. Sizes are bytes.
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

// estimate replays the recording under the options it was recorded with, and those that the reader asks for.
func (r *Report) estimate(rec *recording.Recording, o Options) {
	if len(o.WhatIf) == 0 {
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
			cost, err = s.Estimate(config, 0)
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
	calls := len(p.Steps)
	for i, options := range o.WhatIf {
		config, options, err := replay.OptionsFor(p, options)
		if options == label || slices.Contains(tried, config) && err == nil {
			continue
		}
		tried = append(tried, config)
		if calls += len(p.Steps); o.MaxReplay > 0 && calls > o.MaxReplay {
			r.account.note("%d sets of options were not tried: a replay of this recording takes %d calls", len(o.WhatIf)-i, len(p.Steps))
			break
		}
		try(options, false, config, err)
	}
}

// CheckWhatIf says what is wrong with the first of the option strings that can't be tried; nil if there is none.
func CheckWhatIf(list []string) error {
	for _, options := range list {
		if _, err := replay.ParseOptions(options); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}

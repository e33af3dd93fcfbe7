package report

import (
	"fmt"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/replay"
	"github.com/cistern-ml/cistern/memcache"
)

// DefaultWhatIf are the option strings that memreport tries: what people turn on against fragmentation, the most
// useful first.
func DefaultWhatIf() []string {
	return []string{"", "expandable_segments:True", "roundup_power2_divisions:4", "max_split_size_mb:128", "garbage_collection_threshold:0.8",
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
		}
		r.whatIf = append(r.whatIf, e)
	}
	config, err := replay.Config(p)
	try(p.Conf, true, config, err)
	calls := len(p.Steps)
	for i, options := range o.WhatIf {
		if options == p.Conf {
			continue
		}
		if calls += len(p.Steps); o.MaxReplay > 0 && calls > o.MaxReplay {
			r.account.note("%d sets of options were not tried: a replay of this recording takes %d calls", len(o.WhatIf)-i, len(p.Steps))
			break
		}
		config, err := replay.ParseOptions(options)
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

package replay

import (
	"fmt"
	"math"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/internal/recording"
)

// Suggestions returns option strings that may reduce fragmentation. reserved is the recorded peak
// in bytes, which becomes the limit of the option string with garbage collection. Options of
// memcache alone are suggested only for its own recordings.
func Suggestions(p *recording.Program, reserved int64) []string {
	list := []string{"", "expandable_segments:True", "max_split_size_mb:64", "max_split_size_mb:256", "roundup_power2_divisions:4",
		fmt.Sprintf("garbage_collection_threshold:0.8,memory_limit:%d", max(reserved, 1))}
	if p.Own {
		list = append(list, "exact:True", "exact:False,expandable_segments:True,expandable_granule_mb:2,expandable_remap:True", "no_caching:True")
	}
	return list
}

// Advice compares the tried options with the recorded ones in a sentence. The best options reserve
// least without more failed requests. tried[i] is the estimate of options[i].
func Advice(recorded *Estimate, options []string, tried []*Estimate) string {
	if recorded.PeakReserved == 0 {
		return "the recording reserves no memory"
	}
	best := -1
	for i, e := range tried {
		if e.OOMs <= recorded.OOMs && (best < 0 || e.PeakReserved < tried[best].PeakReserved) {
			best = i
		}
	}
	if best < 0 {
		return "none of the options that were tried serves all requests that the recorded ones do"
	}
	e, name := tried[best], options[best]
	if name == "" {
		name = "PyTorch's default"
	}
	retries := ""
	if recorded.Retries > e.Retries {
		retries = fmt.Sprintf(" and avoided %d of %d retries", recorded.Retries-e.Retries, recorded.Retries)
	}
	percent := 100 * (1 - float64(e.PeakReserved)/float64(recorded.PeakReserved))
	if percent < 1 {
		if retries != "" {
			return name + " would have reserved about as much" + retries
		}
		return "no options that were tried would have reserved at least 1 % less than the recorded ones"
	}
	return fmt.Sprintf("%s would have reserved %.0f %% less (%s → %s MiB)%s", name, percent, mebibytes(recorded.PeakReserved), mebibytes(e.PeakReserved), retries)
}

// mebibytes formats n bytes in MiB with thousands separators.
func mebibytes(n int64) string { return humanize.Comma(int64(math.Round(float64(n) / (1 << 20)))) }

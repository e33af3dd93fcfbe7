package ranks

import (
	"slices"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// Rank is the sum of one rank's steps.
type Rank struct {
	Steps    int64 `json:"steps"`
	Failed   int64 `json:"failed"` // of these
	LastStep int64 `json:"last_step"`

	HostTime   time.Duration `json:"host_time_ns"`
	DeviceTime time.Duration `json:"device_time_ns"` // of the steps with a device time

	Collectives    int64         `json:"collectives"`
	Bytes          int64         `json:"bytes"`          // of Collectives
	Replayed       int64         `json:"replayed"`       // operations of replayed graphs
	ReplayedBytes  int64         `json:"replayed_bytes"` // of Replayed
	CollectiveTime time.Duration `json:"collective_time_ns"`
	Waited         time.Duration `json:"waited_ns"`     // for ranks that came last
	WaitedFor      time.Duration `json:"waited_for_ns"` // by all other ranks, for this one
	Last           int64         `json:"last"`          // operations in which this rank came last
	// HeldUp is the time in Last between the arrivals of the rank before this one and of this one.
	HeldUp    time.Duration `json:"held_up_ns"`
	LastSteps int64         `json:"last_steps"` // of Report.Steps: this rank came last
	// P is the probability, at most, that one of WorldSize ranks that are alike comes last in
	// LastSteps steps or more.
	P float64 `json:"p"`

	AllocatedPeak int64 `json:"allocated_peak"` // bytes
	PeakStep      int64 `json:"peak_step"`
	ReservedPeak  int64 `json:"reserved_peak"` // bytes
	// Categories are those of the allocated peak, with trace.ProfilerConfig.Holders.
	Categories []memcache.Share `json:"categories"`
}

// add adds a step. It returns the number of bytes by which the rank has grown.
func (r *Rank) add(p *trace.StepProfile) (grown int64) {
	r.Steps++
	r.LastStep = p.Step
	if p.Failed {
		r.Failed++
	}
	r.HostTime += p.HostTime
	if p.DeviceTimed {
		r.DeviceTime += p.DeviceTime
	}
	for _, x := range p.Collectives {
		r.Collectives++
		r.CollectiveTime += x.Time
		r.Bytes += x.Bytes
	}
	for _, x := range p.ReplayedCollectives {
		r.Replayed += x.Count
		r.ReplayedBytes += x.Bytes
	}
	r.ReservedPeak = max(r.ReservedPeak, p.ReservedPeak)
	if r.Steps > 1 && p.AllocatedPeak <= r.AllocatedPeak {
		return 0
	}
	grown = -sizeOf(r.Categories)
	r.AllocatedPeak, r.PeakStep, r.Categories = p.AllocatedPeak, p.Step, nil
	if p.Peak != nil {
		r.Categories = slices.Clone(p.Peak.Categories)
	}
	return grown + sizeOf(r.Categories)
}

// sizeOf returns the bytes of a list and its names.
func sizeOf(list []memcache.Share) (bytes int64) {
	for _, x := range list {
		bytes += int64(unsafe.Sizeof(x)) + int64(len(x.Name)+16) // a string's size is rounded up
	}
	return bytes
}

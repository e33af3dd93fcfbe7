package trace

import (
	"math"
	"time"
)

// Summary sums up the complete profiles of a Profiler. A failed step counts only in Steps, Failed,
// OutOfMemory, Retries, LastFailed and LastReplayed.
type Summary struct {
	Rank      int `json:"rank"` // as in StepProfile
	WorldSize int `json:"world_size"`

	Steps       int64 `json:"steps"`         // complete profiles
	Failed      int64 `json:"failed"`        // of these
	Pending     int64 `json:"pending"`       // steps that ended, not complete: Flush completes them
	OutOfMemory int64 `json:"out_of_memory"` // requests that failed, in all steps
	Retries     int64 `json:"retries"`       // driver allocations after a flush, in all steps

	First   StepProfile `json:"first"`
	Second  StepProfile `json:"second"`  // zero if there are fewer steps than 2
	Slowest StepProfile `json:"slowest"` // by the longer of host and device time
	Largest StepProfile `json:"largest"` // by the peak of bytes allocated
	// Mean has the mean of each figure, rounded. Device and busy times are the means of the steps
	// that have one.
	Mean StepProfile `json:"mean"`
	// HitRate is the share of the steps' requests that the cache served; 0 if there were none.
	HitRate float64 `json:"hit_rate"`

	LastFailed   StepProfile `json:"last_failed"`   // zero if none failed
	LastReplayed StepProfile `json:"last_replayed"` // that replayed a graph; zero if none did
}

// succeeded returns the number of steps in the means.
func (s *Summary) succeeded() int64 { return s.Steps - s.Failed }

// figures is the number of figures of a profile that have a mean. Device and busy times are
// separate, because not every step has one.
const figures = 21

func (p *StepProfile) figures() [figures]*int64 {
	return [figures]*int64{
		&p.AllocatedStart, &p.AllocatedEnd, &p.AllocatedPeak, &p.RequestedPeak, &p.Reserved, &p.ReservedPeak, &p.GraphBytes,
		&p.Allocations, &p.Frees, &p.Hits, &p.Misses, &p.DriverAllocs, &p.Retries, &p.OutOfMemory,
		&p.OwnPeak, &p.OwnLive, &p.OwnAllocations, &p.H2DBytes, &p.D2HBytes,
		(*int64)(&p.HostTime), (*int64)(&p.CollectiveTime),
	}
}

// collector sums profiles up in constant memory. Its sums are floats, because integers might
// overflow in a long run.
type collector struct {
	kept         Summary
	sums         [figures]float64
	hits, misses float64
	timed        float64 // steps with a device time
	deviceTime   float64 // sum over timed
	busyTimed    float64 // steps with a busy time
	good         int64   // steps that had not failed when they were added
	busyTime     float64 // sum over busyTimed
}

func (c *collector) add(p *StepProfile) {
	k := &c.kept
	k.Steps++
	k.OutOfMemory += p.OutOfMemory
	k.Retries += p.Retries
	if len(p.Replays) > 0 {
		k.LastReplayed = *p
	}
	if p.Failed {
		k.Failed++
		k.LastFailed = *p
		return
	}
	c.good++
	switch c.good {
	case 1:
		k.First, k.Slowest, k.Largest = *p, *p, *p
	case 2:
		k.Second = *p
	}
	if p.duration() > k.Slowest.duration() {
		k.Slowest = *p
	}
	if p.AllocatedPeak > k.Largest.AllocatedPeak {
		k.Largest = *p
	}
	c.sum(p, 1)
}

// fail removes a step that failed late from the means. It remains the first, second, slowest or
// largest if it was.
func (c *collector) fail(p *StepProfile) {
	c.kept.Failed++
	c.kept.LastFailed = *p
	c.sum(p, -1)
}

// sum adds a profile's figures times times.
func (c *collector) sum(p *StepProfile, times float64) {
	for i, f := range p.figures() {
		c.sums[i] += times * float64(*f)
	}
	c.hits += times * float64(p.Hits)
	c.misses += times * float64(p.Misses)
	if p.DeviceTimed {
		c.timed += times
		c.deviceTime += times * float64(p.DeviceTime)
	}
	if p.BusyTimed {
		c.busyTimed += times
		c.busyTime += times * float64(p.BusyTime)
	}
}

func (c *collector) summary() Summary {
	s := c.kept
	if s.succeeded() == 0 {
		return s
	}
	for i, f := range s.Mean.figures() {
		*f = int64(math.Round(c.sums[i] / float64(s.succeeded())))
	}
	if c.timed > 0 {
		s.Mean.DeviceTime, s.Mean.DeviceTimed = time.Duration(math.Round(c.deviceTime/c.timed)), true
	}
	if c.busyTimed > 0 {
		s.Mean.BusyTime, s.Mean.BusyTimed = time.Duration(math.Round(c.busyTime/c.busyTimed)), true
	}
	s.HitRate = rate(c.hits, c.misses)
	return s
}

package trace

import (
	"math"
	"time"
)

// Summary sums up the complete profiles of a Profiler.
type Summary struct {
	Steps   int64 `json:"steps"`   // complete profiles
	Pending int64 `json:"pending"` // steps that ended and wait for the device; Flush completes them

	First   StepProfile `json:"first"`
	Second  StepProfile `json:"second"`  // zero if there are fewer steps than 2
	Slowest StepProfile `json:"slowest"` // by the longer of host and device time
	Largest StepProfile `json:"largest"` // by the peak of bytes allocated
	// Mean has the mean of each figure, rounded; the device time is that of the steps that have one.
	Mean StepProfile `json:"mean"`
	// HitRate is the share of all requests that the cache served; 0 if there were none.
	HitRate float64 `json:"hit_rate"`
}

// Summary returns the sum of the steps completed so far.
func (p *Profiler) Summary() Summary {
	if p.off() {
		return Summary{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.summary.summary()
	s.Pending = int64(len(p.open))
	return s
}

// figures are the figures of a profile that have a mean. The device time is apart: not every step has one.
const figures = 19

func (p *StepProfile) figures() [figures]*int64 {
	return [figures]*int64{
		&p.AllocatedStart, &p.AllocatedEnd, &p.AllocatedPeak, &p.RequestedPeak, &p.Reserved, &p.ReservedPeak,
		&p.Allocations, &p.Frees, &p.Hits, &p.Misses, &p.DriverAllocs, &p.Retries, &p.OutOfMemory,
		&p.OwnPeak, &p.OwnLive, &p.OwnAllocations, &p.H2DBytes, &p.D2HBytes,
		(*int64)(&p.HostTime),
	}
}

// collector sums profiles up in constant memory. Its sums are floats: they don't overflow, however long a
// program runs.
type collector struct {
	kept         Summary
	sums         [figures]float64
	hits, misses float64
	timed        float64 // steps with a device time
	deviceTime   float64 // their sum
}

func (c *collector) add(p *StepProfile) {
	k := &c.kept
	k.Steps++
	switch k.Steps {
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
	for i, f := range p.figures() {
		c.sums[i] += float64(*f)
	}
	c.hits += float64(p.Hits)
	c.misses += float64(p.Misses)
	if p.DeviceTimed {
		c.timed++
		c.deviceTime += float64(p.DeviceTime)
	}
}

func (c *collector) summary() Summary {
	s := c.kept
	if s.Steps == 0 {
		return s
	}
	for i, f := range s.Mean.figures() {
		*f = int64(math.Round(c.sums[i] / float64(s.Steps)))
	}
	if c.timed > 0 {
		s.Mean.DeviceTime, s.Mean.DeviceTimed = time.Duration(math.Round(c.deviceTime/c.timed)), true
	}
	s.HitRate = rate(c.hits, c.misses)
	return s
}

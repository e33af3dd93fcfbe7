// Package shortage explains in at most five lines why a request found no memory, and which option
// or call would have served it. Errors, pages and forecasts share it. It works on figures alone.
package shortage

import (
	"fmt"
	"strings"

	"github.com/cistern-ml/cistern/internal/sizes"
)

// Shortage describes a request that found no memory, and where the memory was at that moment. Sizes
// are bytes.
type Shortage struct {
	Device    string
	Label     string // of the request: module and category; "": unknown
	Requested int64
	Segment   int64 // the size requested from the driver
	Total     int64 // the device's memory
	Free      int64 // the free part of Total; -1: unknown
	Limit     int64 // what the cache may reserve; -1: no limit
	Reserved  int64 // reserved by the cache
	Allocated int64 // the allocated part of Reserved
	Pending   int64 // the part of Reserved that was freed and is in use by a recorded stream

	// The rest of Reserved is free, but did not serve this request.
	Largest      int64 // the largest free block of the request's stream, pool and sizes
	OtherStreams int64 // free in the same pool and sizes, on other streams
	// OtherSizes is free in the same pool, for small requests if this one is large, or the reverse.
	OtherSizes int64
	OtherPools int64
	Graphs     int64 // the part of OtherPools that graphs use

	Advice  string // see Advise
	Holders []string
	Waited  string // how long the request waited, and why it stopped; "": it did not wait
}

// Lines returns the explanation: the request, the device, the cache, the advice and the largest
// holders.
func (s *Shortage) Lines() []string {
	lines := []string{s.request(), s.device(), s.cache()}
	if s.Advice != "" {
		lines = append(lines, s.Advice)
	}
	if len(s.Holders) > 0 {
		lines = append(lines, "largest holders: "+strings.Join(s.Holders, ", "))
	}
	return lines
}

func (s *Shortage) request() string {
	text := "out of memory on " + s.Device + ": "
	if s.Label != "" {
		text += s.Label + " "
	} else {
		text += "a request "
	}
	text += fmt.Sprintf("asked for %s", sizes.Format(s.Requested))
	if s.Segment != s.Requested {
		text += fmt.Sprintf(", which needs a segment of %s", sizes.Format(s.Segment))
	}
	if s.Waited != "" {
		text += ", and waited for " + s.Waited
	}
	return text
}

func (s *Shortage) device() string {
	text := fmt.Sprintf("the device has %s, ", sizes.Format(s.Total))
	if s.Free < 0 {
		text += "and does not report how much is free"
	} else {
		text += sizes.Format(s.Free) + " free"
		if other := s.Total - s.Free - s.Reserved; other > 0 {
			text += fmt.Sprintf(" and %s in use outside of the cache", sizes.Format(other))
		}
	}
	if s.Limit >= 0 {
		text += fmt.Sprintf("; the cache may reserve %s", sizes.Format(s.Limit))
	}
	return text
}

func (s *Shortage) cache() string {
	free := s.Reserved - s.Allocated - s.Pending
	text := fmt.Sprintf("the cache reserves %s: %s allocated", sizes.Format(s.Reserved), sizes.Format(s.Allocated))
	if s.Pending > 0 {
		text += fmt.Sprintf(", %s freed but in use by a recorded stream", sizes.Format(s.Pending))
	}
	text += fmt.Sprintf(", %s free", sizes.Format(free))
	var parts []string
	add := func(bytes int64, what string) {
		if bytes > 0 {
			parts = append(parts, sizes.Format(bytes)+what)
		}
	}
	switch own := free - s.OtherStreams - s.OtherSizes - s.OtherPools; {
	case s.Largest == 0:
		add(own, " that it can't use")
	case own > s.Largest:
		parts = append(parts, fmt.Sprintf("%s in pieces of at most %s", sizes.Format(own), sizes.Format(s.Largest)))
	case own > 0:
		add(own, " in one piece")
	}
	add(s.OtherStreams, " of other streams")
	add(s.OtherSizes, map[bool]string{true: " for requests over 1 MiB", false: " for requests up to 1 MiB"}[s.Segment <= sizes.SmallSegment])
	add(s.OtherPools-s.Graphs, " of other pools")
	add(s.Graphs, " of graphs")
	if len(parts) > 0 {
		text += " (" + strings.Join(parts, ", ") + ")"
	}
	return text
}

package replay

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/recording"
)

// verifyOwn verifies a recording that memcache made.
func verifyOwn(p *recording.Program) (*Verification, error) {
	config, err := Config(p)
	if err != nil {
		return nil, err
	}
	reason := p.Jumbled
	if config.NoCaching {
		reason = "each call is one of the driver's (no_caching)"
	}
	b, err := checkBooks(p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	v := b.verification()
	if reason == "" {
		s := newSearch(p, config, p.Limit, p.Budget)
		if s.best, err = s.replay(nil, false); err != nil {
			return nil, err
		}
		if s.best.mismatches() > 0 && p.Overlap >= 0 && s.best.departed > p.Overlap {
			reason = "calls of several goroutines overlapped; the first that made a difference: " + s.best.first
		} else if v, err = s.verification(); err != nil {
			return nil, err
		} else {
			v.CallMismatches += b.calls
			v.BlockMismatches += b.outcome.blocks
			v.StatMismatches += b.stats
			if v.First == "" {
				v.First = b.first
			}
		}
	}
	if reason != "" {
		v.Notes = append(v.Notes, "its books were checked, and its calls not made again: "+reason)
	}
	if p.Unfinished {
		v.Notes = append(v.Notes, "it was not closed: it ends where its file does")
	}
	return v, nil
}

// refused reports whether the driver refused memory in a call.
func refused(inside []recording.Entry) bool {
	return slices.ContainsFunc(inside, func(e recording.Entry) bool { return e.Action == recording.Refused })
}

// closeStreams closes the streams that the cache found closed in the call of step i, except a
// stream with a later request, because that request had already started.
func (m *machine) closeStreams(i int, inside []recording.Entry) {
	for _, e := range inside {
		if e.Action != recording.StreamClosed {
			continue
		}
		m.work(len(m.p.Streams) / 8)
		if k := slices.Index(m.p.Streams, e.Stream); k >= 0 && m.lastUse[k] < i {
			_ = m.byIndex[k].Close()
		}
	}
}

// reserve makes the driver reserve the recorded addresses, and no others.
func (m *machine) reserve(c *null.Call) {
	if len(m.ranges) == 0 || m.ranges[0].Size != c.Bytes {
		c.Err = m.outOfMemory("Reserve", c.Bytes)
		return
	}
	c.Ptr = m.ranges[0].Addr
	m.ranges = m.ranges[1:]
	if c.Ptr == 0 || !m.dev.Vacant(c.Ptr, c.Bytes) {
		c.Err = m.outOfMemory("Reserve", c.Bytes)
	}
}

// hostDevice is a null device that presents itself as host memory.
type hostDevice struct{ *null.Device }

// Bytes returns an error, because the device has no contents.
func (hostDevice) Bytes(device.Ptr, int64) ([]byte, error) { return nil, device.ErrInvalid }

// hostStream is a stream of a hostDevice.
type hostStream struct {
	*null.Stream
	dev device.Device
}

// Device returns the hostDevice, which the cache uses.
func (s hostStream) Device() device.Device { return s.dev }

// taken returns a stream as the cache sees it.
func (m *machine) taken(s *null.Stream) device.Stream {
	if _, host := m.of.(hostDevice); host {
		return hostStream{s, m.of}
	}
	if m.p.Calls {
		return capturedStream{s, m}
	}
	return s
}

// reset resets statistics.
func (r *run) reset(a recording.Action) {
	if a == recording.ResetPeaks {
		r.cache.ResetPeakStats()
	} else {
		r.cache.ResetAccumulatedStats()
	}
}

// empty repeats the call that returned memory according to entries, inside or before the call of
// step s.
func (m *machine) empty(s *recording.Step, entries []recording.Entry) error {
	m.walk(m.p.MostLive)
	switch e := m.p.Entries[min(int(s.To), len(m.p.Entries)-1)]; {
	case m.p.Own && e.Action == recording.Trim:
		_, err := m.cache.TrimTo(context.Background(), e.Size)
		return err
	case s.Kind == recording.StepEmpty && s.Pool != 0 || m.p.Calls:
		return m.pools.emptyCache(s.Pool)
	}
	if !m.p.Own && !m.cache.Config().Exact && !shapeOf(entries).releases {
		// no memory was left to release
		m.completeAll(entries)
		return m.cache.PollFrees()
	}
	return m.pools.emptyCache(m.emptied(entries))
}

// emptied returns the private pool that alone was emptied, or 0, and releases that pool. Emptying a
// pool releases only its memory and, if the cache is Exact, completes only its frees.
func (m *machine) emptied(entries []recording.Entry) (pool uint64) {
	m.pools.release(0, entries)
	exact, first := m.cache.Config().Exact, true
	for i := range entries {
		e := &entries[i]
		of := uint64(e.Pool)
		switch {
		case e.Action.Releases():
		case exact && e.Action == recording.FreeCompleted:
			of = m.p.Home(e.Block)
		default:
			continue
		}
		if !first && of != pool {
			return 0
		}
		pool, first = of, false
	}
	if p := m.pools.byNumber[pool]; p != nil {
		_ = p.Release()
	}
	return pool
}

// allocations returns the number of requests in a program.
func allocations(p *recording.Program) (n int) {
	for i := range p.Steps {
		if k := p.Steps[i].Kind; k == recording.StepAlloc || k == recording.StepOOM {
			n++
		}
	}
	return n
}

package memcache

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
)

// scripted is a null device whose addresses, failures and completions of events the test controls.
type scripted struct {
	*null.Device
	total    int64                                        // the reported memory; no call fails because of it
	next     []device.Ptr                                 // addresses to hand out; then made up
	bases    []device.Ptr                                 // of reservations, the same
	failures int                                          // allocations and mappings still to fail
	hang     func()                                       // called by every allocation and mapping, if set
	gate     func(ctx context.Context, call string) error // called by every driver call, if set
	peers    bool

	mu       sync.Mutex // of what follows
	calls    []string   // the driver calls
	live     map[device.Ptr]int64
	reserved map[device.Ptr]int64
	mapped   map[device.Ptr]int64
	held     map[uint64]func() // what lets the streams go on that are held, by ID
}

func newScripted(total int64) *scripted {
	dev, err := null.New(null.Config{Capacity: 1 << 60})
	if err != nil {
		panic(err)
	}
	d := &scripted{Device: dev, total: total, live: make(map[device.Ptr]int64), reserved: make(map[device.Ptr]int64),
		mapped: make(map[device.Ptr]int64), held: make(map[uint64]func())}
	dev.SetScript(null.Script{Before: d.before, After: d.after})
	leaktest.Excuse(dev) // Close does nothing
	return d
}

func (d *scripted) Name() string { return "scripted" }
func (d *scripted) Close() error { return nil }
func (d *scripted) Properties() device.Properties {
	return device.Properties{Backend: "scripted", TotalMemory: d.total, Alignment: 512, Peers: d.peers}
}

func (d *scripted) MemInfo() (free, total int64, err error) {
	free, all, err := d.Device.MemInfo()
	return d.total - (all - free), d.total, err
}

var gates = map[null.Op]string{null.OpAlloc: "Alloc", null.OpFree: "Free", null.OpReserve: "Reserve", null.OpMap: "Map",
	null.OpUnmap: "Unmap", null.OpSynchronize: "Synchronize"}

func (d *scripted) before(c *null.Call) {
	grows := c.Op == null.OpAlloc || c.Op == null.OpMap
	if grows && d.hang != nil {
		d.hang()
	}
	if call := gates[c.Op]; call != "" && d.gate != nil {
		ctx := c.Context
		if ctx == nil {
			ctx = context.Background()
		}
		if c.Err = d.gate(ctx, call); c.Err != nil {
			return
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case grows && d.failures > 0:
		d.failures--
		c.Err = &device.Error{Op: gates[c.Op], Device: "scripted", Bytes: c.Bytes, Code: 2, Err: device.ErrOutOfMemory}
	case c.Op == null.OpAlloc && len(d.next) > 0:
		c.Ptr, d.next = d.next[0], d.next[1:]
	case c.Op == null.OpReserve && len(d.bases) > 0:
		c.Ptr, d.bases = d.bases[0], d.bases[1:]
	case c.Op == null.OpSynchronize:
		d.letGo(c.Stream)
	}
}

func (d *scripted) after(c null.Call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch c.Op {
	case null.OpAlloc:
		d.live[c.Ptr] = c.Bytes
		d.calls = append(d.calls, fmt.Sprintf("segment_alloc %d %d", c.Ptr, c.Bytes))
	case null.OpFree:
		delete(d.live, c.Ptr)
		d.calls = append(d.calls, fmt.Sprintf("segment_free %d %d", c.Ptr, c.Bytes))
	case null.OpReserve:
		d.reserved[c.Ptr] = c.Bytes
	case null.OpUnreserve:
		delete(d.reserved, c.Ptr)
	case null.OpMap:
		d.mapped[c.Ptr] = c.Bytes
		d.log("segment_map", c.Ptr, c.Bytes)
	case null.OpUnmap:
		delete(d.mapped, c.Ptr)
		d.log("segment_unmap", c.Ptr, c.Bytes)
	}
}

// log records a driver call; a call that continues where the previous one ended is merged with it.
func (d *scripted) log(call string, p device.Ptr, bytes int64) {
	if n := len(d.calls); n > 0 {
		if from, size, ok := rangeOf(d.calls[n-1], call); ok && from+device.Ptr(size) == p {
			d.calls[n-1] = fmt.Sprintf("%s %d %d", call, from, size+bytes)
			return
		}
	}
	d.calls = append(d.calls, fmt.Sprintf("%s %d %d", call, p, bytes))
}

// rangeOf returns the range in a line of calls, if the line is that driver call.
func rangeOf(line, call string) (from device.Ptr, size int64, ok bool) {
	line, ok = strings.CutPrefix(line, call+" ")
	address, bytes, _ := strings.Cut(line, " ")
	p, err1 := strconv.ParseUint(address, 10, 64)
	size, err2 := strconv.ParseInt(bytes, 10, 64)
	return device.Ptr(p), size, ok && err1 == nil && err2 == nil
}

// letGo releases a held stream. d.mu is held.
func (d *scripted) letGo(stream uint64) {
	if release := d.held[stream]; release != nil {
		delete(d.held, stream)
		release()
	}
}

func (d *scripted) NewStream(device.StreamOptions) (device.Stream, error) {
	return d.stream(device.NewID()), nil
}

func (d *scripted) stream(id uint64) *scriptedStream {
	s, err := d.NewStreamWithID(id)
	if err != nil {
		panic(err)
	}
	return &scriptedStream{Stream: s, dev: d, id: id}
}

// scriptedStream is held while it is busy, until a call waits for an event recorded on it.
type scriptedStream struct {
	*null.Stream
	dev    *scripted
	id     uint64
	busy   bool
	closed atomic.Bool
}

func (s *scriptedStream) Device() device.Device             { return s.dev }
func (s *scriptedStream) Closed() bool                      { return s.closed.Load() || s.Stream.Closed() }
func (s *scriptedStream) Synchronize(context.Context) error { s.finish(); return nil }

func (s *scriptedStream) Record(e device.Event) error {
	if s.closed.Load() {
		return device.ErrClosed
	}
	var err error
	s.dev.mu.Lock()
	if s.busy && s.dev.held[s.id] == nil {
		s.dev.held[s.id], err = s.Hold()
	}
	s.dev.mu.Unlock()
	return errors.Join(err, s.Stream.Record(e))
}

func (s *scriptedStream) finish() {
	s.busy = false
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	s.dev.letGo(s.id)
}

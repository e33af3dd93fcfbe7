package memcache

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// scripted is a device without memory: addresses, failures and the completion of events are the test's.
type scripted struct {
	mu sync.Mutex // of what the driver calls change
	device.PinnedMemory
	total    int64
	next     []device.Ptr // addresses to hand out; then made up
	bump     device.Ptr
	live     map[device.Ptr]int64
	calls    []string // the driver calls
	failures int      // allocations and mappings still to fail
	bases    []device.Ptr
	reserved map[device.Ptr]int64
	mapped   map[device.Ptr]int64
	hang     func()                                       // called by Alloc, if set
	gate     func(ctx context.Context, call string) error // called by every driver call, if set
	streams  uint64
}

func newScripted(total int64) *scripted {
	return &scripted{total: total, bump: 1 << 40, live: make(map[device.Ptr]int64),
		reserved: make(map[device.Ptr]int64), mapped: make(map[device.Ptr]int64)}
}

func (d *scripted) Open(string, url.Values) (device.Device, error) { return d, nil }
func (d *scripted) Name() string                                   { return "scripted" }
func (d *scripted) ID() uint64                                     { return 1 }
func (d *scripted) Properties() device.Properties {
	return device.Properties{Backend: "scripted", TotalMemory: d.total, Alignment: 512}
}

func (d *scripted) Alloc(bytes int64) (device.Ptr, error) {
	if d.hang != nil {
		d.hang()
	}
	if err := d.pass(context.Background(), "Alloc"); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failures > 0 {
		d.failures--
		return 0, &device.Error{Op: "Alloc", Device: "scripted", Bytes: bytes, Code: 2, Err: device.ErrOutOfMemory}
	}
	p := d.bump
	if len(d.next) > 0 {
		p, d.next = d.next[0], d.next[1:]
	} else {
		d.bump += device.Ptr(bytes)
	}
	d.live[p] = bytes
	d.calls = append(d.calls, fmt.Sprintf("segment_alloc %d %d", p, bytes))
	return p, nil
}

// pass goes through the gate.
func (d *scripted) pass(ctx context.Context, call string) error {
	if d == nil || d.gate == nil {
		return nil
	}
	return d.gate(ctx, call)
}

func (d *scripted) Free(p device.Ptr) error {
	if err := d.pass(context.Background(), "Free"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, fmt.Sprintf("segment_free %d %d", p, d.live[p]))
	delete(d.live, p)
	return nil
}

// log notes a driver call; one that goes on where the call before ended becomes a part of it.
func (d *scripted) log(call string, p device.Ptr, bytes int64) {
	if n := len(d.calls); n > 0 {
		var before string
		var from device.Ptr
		var size int64
		if _, err := fmt.Sscan(d.calls[n-1], &before, &from, &size); err == nil && before == call && from+device.Ptr(size) == p {
			d.calls[n-1] = fmt.Sprintf("%s %d %d", call, from, size+bytes)
			return
		}
	}
	d.calls = append(d.calls, fmt.Sprintf("%s %d %d", call, p, bytes))
}

func (d *scripted) Granularity() int64 { return 2 << 20 }

func (d *scripted) Reserve(bytes int64) (device.Ptr, error) {
	if err := d.pass(context.Background(), "Reserve"); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.bump
	if len(d.bases) > 0 {
		p, d.bases = d.bases[0], d.bases[1:]
	} else {
		d.bump += device.Ptr(bytes)
	}
	d.reserved[p] = bytes
	return p, nil
}

func (d *scripted) Unreserve(p device.Ptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reserved[p] == 0 {
		return fmt.Errorf("unreserve of %d", p)
	}
	delete(d.reserved, p)
	return nil
}

func (d *scripted) Map(p device.Ptr, bytes int64) error {
	if d.hang != nil {
		d.hang()
	}
	if err := d.pass(context.Background(), "Map"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mapped[p] != 0 {
		return fmt.Errorf("%d is mapped twice", p)
	}
	if d.failures > 0 {
		d.failures--
		return &device.Error{Op: "Map", Device: "scripted", Bytes: bytes, Code: 2, Err: device.ErrOutOfMemory}
	}
	d.mapped[p] = bytes
	d.log("segment_map", p, bytes)
	return nil
}

func (d *scripted) Unmap(p device.Ptr, bytes int64) error {
	if err := d.pass(context.Background(), "Unmap"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mapped[p] != bytes {
		return fmt.Errorf("unmap of %d: %d bytes, and %d are mapped", p, bytes, d.mapped[p])
	}
	delete(d.mapped, p)
	d.log("segment_unmap", p, bytes)
	return nil
}

func (d *scripted) MemInfo() (int64, int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	free := d.total
	for _, n := range d.mapped {
		free -= n
	}
	for _, n := range d.live {
		free -= n
	}
	return free, d.total, nil
}

func (d *scripted) NewStream(device.StreamOptions) (device.Stream, error) {
	d.streams++
	return d.stream(d.streams), nil
}
func (d *scripted) NewEvent(device.EventOptions) (device.Event, error) {
	return &scriptedEvent{dev: d}, nil
}
func (d *scripted) Elapsed(device.Event, device.Event) (time.Duration, error) {
	return 0, nil
}
func (d *scripted) Synchronize(context.Context) error { return nil }
func (d *scripted) Close() error                      { return nil }

func (d *scripted) stream(id uint64) *scriptedStream { return &scriptedStream{dev: d, id: id} }

// scriptedStream leaves an event unready while busy.
type scriptedStream struct {
	device.Stream // panics where a test goes beyond the script
	dev           *scripted
	id            uint64
	busy          bool
	closed        atomic.Bool
	records       []*scriptedEvent
}

func (s *scriptedStream) ID() uint64                        { return s.id }
func (s *scriptedStream) Device() device.Device             { return s.dev }
func (s *scriptedStream) Closed() bool                      { return s.closed.Load() }
func (s *scriptedStream) Synchronize(context.Context) error { s.finish(); return nil }
func (s *scriptedStream) Record(e device.Event) error {
	if s.closed.Load() {
		return device.ErrClosed
	}
	ev := e.(*scriptedEvent)
	ev.ready = !s.busy
	s.records = append(s.records, ev)
	return nil
}

func (s *scriptedStream) finish() {
	s.busy = false
	for _, e := range s.records {
		e.ready = true
	}
	s.records = nil
}

type scriptedEvent struct {
	dev   *scripted
	ready bool
	err   error
}

func (e *scriptedEvent) Query() (bool, error) { return e.ready, e.err }
func (e *scriptedEvent) Timed() bool          { return false }
func (e *scriptedEvent) Close() error         { return nil }
func (e *scriptedEvent) Synchronize(ctx context.Context) error {
	if err := e.dev.pass(ctx, "Synchronize"); err != nil {
		return err
	}
	e.ready = true
	return e.err
}

//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
)

// capture is this package's state of a capture. The driver keeps the captured operations.
//
// The driver invalidates a capture if one of its streams or events, or the whole context, is waited
// for or queried. So such calls are refused before they reach the driver, and calls that wait for
// the whole device wait for its streams instead (drain). Captures use the relaxed mode. In the
// other modes the driver would refuse calls on every goroutine's thread that are unrelated to the
// capture, such as the allocations and event queries of a cache, and a capture would have to end on
// the thread on which it began.
type capture struct {
	origin *stream

	mu      sync.Mutex
	streams []*stream
	ended   bool
	holds   holds
	comms   []*communicator // communicators with captured operations
	told    []func()        // called for each replay
	waited  map[*stream]clock
}

// holds is the set of hold counters that a graph has incremented, each once, of memory in the
// table, modules and communicators. They keep these from being freed.
type holds map[*atomic.Int64]struct{}

func (h holds) add(n *atomic.Int64) {
	if _, ok := h[n]; !ok {
		h[n] = struct{}{}
		n.Add(1)
	}
}

func (h holds) release() {
	for n := range h {
		n.Add(-1)
	}
	clear(h)
}

func (s *stream) Capturing() bool { return s.capture.Load() != nil }

func (s *stream) BeginCapture() error {
	if err := s.enter("BeginCapture"); err != nil {
		return err
	}
	defer s.gate.Leave()
	c := &capture{origin: s, holds: holds{}, waited: make(map[*stream]clock)}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.dev.captured.Store(true)
	if err := s.member(c, "BeginCapture"); err != nil {
		return err
	}
	if err := s.dev.check("BeginCapture", 0, C.cistern_capture_begin(s.dev.c, s.handle)); err != nil {
		c.leave()
		return err
	}
	return nil
}

// member adds s to the capture's streams. The event s.before covers the work queued until then, for
// drain. The caller holds the capture's lock.
func (s *stream) member(c *capture, op string) error {
	s.capturing.Lock()
	defer s.capturing.Unlock()
	switch {
	case s.ending:
		return s.dev.self.StreamClosed(op, s.id)
	case s.Capturing():
		return s.dev.self.Capturing(op, s.id)
	}
	if s.before == 0 {
		h, err := s.dev.pool(false).get(s.dev)
		if err != nil {
			return err
		}
		s.before = h
	}
	if err := s.dev.check(op, 0, C.cistern_event_record(s.dev.c, s.before, s.handle)); err != nil {
		return err
	}
	c.streams = append(c.streams, s)
	s.capture.Store(c)
	return nil
}

// OnReplay adds f to the capture that the stream is in.
func (s *stream) OnReplay(f func()) bool {
	c := s.capture.Load()
	if c == nil || f == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || s.capture.Load() != c {
		return false
	}
	c.told = append(c.told, f)
	return true
}

// leave lets the streams queue work again, and keeps the holds. The caller holds the lock.
func (c *capture) leave() {
	c.ended = true
	for _, s := range c.streams {
		s.capture.Store(nil)
	}
}

// join adds s to the capture by a wait for an event that was recorded in c, at m.
func (c *capture) join(s *stream, ev *event, m *captureMark) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return s.dev.self.CapturedEvent("Wait")
	}
	if err := s.member(c, "Wait"); err != nil {
		return err
	}
	err := s.dev.check("Wait", 0, C.cistern_stream_wait(s.dev.c, s.handle, ev.handle))
	if err != nil {
		c.streams = c.streams[:len(c.streams)-1]
		s.capture.Store(nil)
		return err
	}
	c.waits(s, m)
	return nil
}

// wait is join for a stream that is in c already.
func (c *capture) wait(s *stream, ev *event, m *captureMark) error {
	if err := s.dev.check("Wait", 0, C.cistern_stream_wait(s.dev.c, s.handle, ev.handle)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits(s, m)
	return nil
}

// waitCaptured is Wait if the event was captured in of, the stream is in the capture c, or both.
func (s *stream) waitCaptured(ev *event, of, c *capture) error {
	// Load the mark before the driver gets the wait, because a later record may be on another
	// stream.
	m := ev.mark.Load()
	switch {
	case of == nil:
		return s.dev.self.Isolated(s.id)
	case of.over():
		return s.dev.self.CapturedEvent("Wait")
	case of == c:
		return c.wait(s, ev, m)
	case c != nil:
		return s.dev.self.Merged(s.id)
	case ev.dev != s.dev:
		return s.dev.self.OtherDevices(s.id)
	}
	return of.join(s, ev, m)
}

func (c *capture) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// end ends the capture that began on s.
func (s *stream) end(c *capture) (*program, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, s.dev.self.NotCapturing(s.id)
	}
	p := &program{dev: s.dev, holds: c.holds, comms: c.comms, told: c.told}
	p.graphs.Store(1)
	err := s.dev.check("EndCapture", 0, C.cistern_capture_end(s.dev.c, s.handle, &p.handle))
	c.leave()
	if err != nil {
		p.release()
		return nil, err
	}
	return p, nil
}

// abandon ends the capture that s is in, if it began there.
func (s *stream) abandon() {
	if c := s.capture.Load(); c != nil && c.origin == s {
		if p, err := s.end(c); err == nil {
			p.release()
		}
	}
}

// named checks a range of an operation, and holds it for the graph if the operation is captured.
func (s *stream) named(op string, addr uint64, bytes int64, onHost bool) error {
	_, err := s.locate(op, addr, bytes, onHost)
	return err
}

func (s *stream) locate(op string, addr uint64, bytes int64, onHost bool) (uint64, error) {
	at, err := s.dev.locate(op, addr, bytes, onHost)
	c := s.capture.Load()
	switch {
	case c == nil:
		return at, err
	case err != nil:
		return 0, s.dev.self.InCapture(err)
	case bytes > 0 && !c.hold(s.dev, addr, uint64(bytes)):
		_, err = s.dev.locate(op, addr, bytes, onHost) // it has just been freed
		return 0, err
	}
	return at, nil
}

// hold keeps memory from being freed. It returns false if the memory is not live.
func (c *capture) hold(d *Device, addr, bytes uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.table.hold(addr, bytes, c.holds) {
		return true
	}
	for _, o := range drivers.others(d) {
		if o.table.hold(addr, bytes, c.holds) {
			return true
		}
	}
	return false
}

// holdCommunicator keeps NCCL from freeing a communicator's memory while a graph uses it.
func (c *capture) holdCommunicator(comm *communicator) {
	c.mu.Lock()
	c.holds.add(&comm.holds)
	if !slices.Contains(c.comms, comm) {
		c.comms = append(c.comms, comm)
	}
	c.mu.Unlock()
}

// holdKernel holds a kernel's module, and the ranges that were checked.
func (c *capture) holdKernel(d *Device, k *kernel, l *device.Launch) {
	c.mu.Lock()
	c.holds.add(&k.module.holds)
	c.mu.Unlock()
	for _, ranges := range [2][]device.Range{l.Reads, l.Writes} {
		for _, r := range ranges {
			if r.Bytes > 0 {
				c.hold(d, uint64(r.Ptr), uint64(r.Bytes))
			}
		}
	}
}

// drain waits until everything queued on the device is done. Once a capture has begun it waits for
// each stream instead, because the driver can't wait for a context while one of its streams is
// captured.
func (d *Device) drain(op string) error {
	if !d.captured.Load() {
		return d.check(op, 0, C.cistern_synchronize(d.c))
	}
	for _, s := range d.streams.all() {
		if err := s.drain(op); err != nil {
			return err
		}
	}
	return nil
}

// drain waits until everything queued on s is done. If s is captured it waits for the work queued
// before the capture.
func (s *stream) drain(op string) error {
	if !s.gate.Enter() {
		s.closing.Do(func() {}) // waits for the Close that has shut the gate
		return s.dev.stuckError()
	}
	defer s.gate.Leave()
	d := s.dev
	h, err := d.pool(false).get(d)
	if err != nil {
		return err
	}
	defer d.pool(false).Put(h)
	wait := h
	if !s.Capturing() {
		if err := d.check(op, 0, C.cistern_event_record(d.c, h, s.handle)); err != nil {
			return err
		}
	}
	if s.Capturing() { // if only since the first check, h may be captured
		wait = s.before
	}
	return d.check(op, 0, C.cistern_event_synchronize(d.c, wait))
}

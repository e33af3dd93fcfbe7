package host

import (
	"fmt"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/opened"
)

// graph is a program with its replays.
type graph struct {
	dev *Device
	replays
}

var (
	_ device.GraphCapturer = (*stream)(nil)
	_ device.CaptureOrder  = (*stream)(nil)
	_ device.Graph         = (*graph)(nil)
)

func (s *stream) BeginCapture() error {
	if err := s.usable("BeginCapture"); err != nil {
		return err
	}
	if new(capture).begin(s) {
		return nil
	}
	if s.member.closes() {
		return self.StreamClosed("BeginCapture", s.id)
	}
	return self.Capturing("BeginCapture", s.id)
}

func (s *stream) Capturing() bool { return s.member.capture() != nil }

// CaptureMark returns a mark with the lane's clock.
func (s *stream) CaptureMark() device.CaptureMark {
	if c := s.member.capture(); c != nil {
		if clock := c.clockOf(s); clock != nil {
			return &mark{capture: c, clock: clock}
		}
	}
	return nil
}

// Before compares the mark's clock with the present clock of other's lane.
func (m *mark) Before(other device.Stream) bool {
	s, _ := other.(*stream)
	if s == nil || s.member.capture() != m.capture {
		return false
	}
	now := m.capture.clockOf(s)
	for i, n := range m.clock {
		if n > 0 && (i >= len(now) || now[i] < n) {
			return false
		}
	}
	return now != nil
}

// EndCapture ends the capture even if the device is unusable.
func (s *stream) EndCapture() (device.Graph, error) {
	if err := s.open("EndCapture"); err != nil {
		return nil, err
	}
	c := s.member.capture()
	if c == nil {
		return nil, self.NotCapturing(s.id)
	}
	if c.origin != s {
		return nil, self.Unmatched(s.id, c.origin.id)
	}
	p, unjoined, left, ok := c.end()
	if !ok {
		return nil, self.NotCapturing(s.id)
	}
	err := s.dev.stuckError()
	if err == nil && unjoined != nil {
		err = self.Unjoined(unjoined.stream.id, s.id, left)
	}
	var g *graph
	if err == nil {
		g, err = s.dev.newGraph(p)
	}
	if err != nil {
		s.dev.mem.release(p)
		return nil, err
	}
	s.dev.opened.Add(opened.Graph, unsafe.Pointer(g))
	return g, nil
}

// newGraph makes the graph of a program, with a stream for each lane except the first.
func (d *Device) newGraph(p *program) (*graph, error) {
	g := &graph{dev: d, replays: replays{program: p}}
	for range p.lanes[1:] {
		b, err := d.newStream(device.StreamOptions{})
		if err != nil {
			g.close()
			return nil, err
		}
		g.branches = append(g.branches, b)
	}
	return g, nil
}

func (g *graph) Device() device.Device { return g.dev.front }

func (g *graph) Nodes() int {
	return g.work()
}

func (g *graph) Replay(on device.Stream) error {
	s, _ := on.(*stream)
	if s == nil || s.dev != g.dev {
		return self.NotOurs("Replay", "stream")
	}
	if s.launching == nil || s.Capturing() {
		told, err := g.replayOn(s)
		told.tell()
		return err
	}
	launched := s.launching.Begin(s, "graph")
	told, err := g.replayOn(s)
	launched(err)
	told.tell()
	return err
}

// replayOn queues a replay. It returns the functions to notify once the replay is queued.
func (g *graph) replayOn(s *stream) (*notice, error) {
	if err := s.usable("Replay"); err != nil {
		return nil, err
	}
	if s.Capturing() {
		return nil, self.Capturing("Replay", s.id)
	}
	told, open, queued := g.queue(s)
	switch {
	case !open:
		return nil, self.GraphClosed("Replay")
	case !queued:
		return nil, self.StreamClosed("Replay", s.id)
	}
	return told, nil
}

func (g *graph) Update(with device.Graph) error {
	if err := g.dev.usable("Update"); err != nil {
		return err
	}
	other, _ := with.(*graph)
	if other == nil || other.dev != g.dev {
		return self.NotOurs("Update", "graph")
	}
	next := other.share(&g.dev.mem)
	if next == nil {
		return self.GraphClosed("Update")
	}
	open, differs, rest := g.swap(next)
	g.dev.mem.release(rest)
	switch {
	case !open:
		return self.GraphClosed("Update")
	case differs != "":
		return self.GraphDiffers("%s", differs)
	}
	return nil
}

func (g *graph) Close() error {
	g.dev.opened.Remove(unsafe.Pointer(g))
	if p := g.close(); p != nil {
		g.dev.mem.release(p)
	}
	return nil
}

func (g *graph) String() string {
	return fmt.Sprintf("graph of %d nodes of host device %d", g.Nodes(), g.dev.id)
}

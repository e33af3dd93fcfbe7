package failtest

import (
	"errors"

	"github.com/cistern-ml/cistern/device"
)

func (s *hostStream) BeginCapture() error {
	if err := s.faults.call("BeginCapture"); err != nil {
		return err
	}
	return s.hostOnly.BeginCapture()
}

// EndCapture ends the capture below, even if it fails.
func (s *hostStream) EndCapture() (device.Graph, error) {
	failed := s.faults.call("EndCapture")
	g, err := s.hostOnly.EndCapture()
	if err == nil && failed != nil {
		return nil, errors.Join(failed, g.Close())
	}
	if err != nil {
		return nil, err
	}
	return &graph{g, s}, nil
}

func (s *hostStream) CaptureMark() device.CaptureMark {
	if m := s.hostOnly.CaptureMark(); m != nil {
		return mark{m}
	}
	return nil
}

// mark is a mark that maps streams to those below.
type mark struct{ device.CaptureMark }

func (m mark) Before(s device.Stream) bool { return m.CaptureMark.Before(below(s)) }

// graph is a graph of a stream whose driver calls may fail.
type graph struct {
	device.Graph
	of *hostStream
}

func (g *graph) Device() device.Device { return g.of.dev }

func (g *graph) Replay(s device.Stream) error {
	if err := g.of.faults.call("Graph.Replay"); err != nil {
		return err
	}
	return g.Graph.Replay(below(s))
}

func (g *graph) Update(with device.Graph) error {
	if err := g.of.faults.call("Graph.Update"); err != nil {
		return err
	}
	if w, ok := with.(*graph); ok {
		with = w.Graph
	}
	return g.Graph.Update(with)
}

//go:build emulator

package emulator

import "github.com/cistern-ml/cistern/device"

// graph is a graph of the host device that accepts the emulated device's streams.
type graph struct {
	device.Graph
	dev *emulated
}

func (s *stream) capturer() device.GraphCapturer { return s.Stream.(device.GraphCapturer) }

func (s *stream) BeginCapture() error { return s.capturer().BeginCapture() }

func (s *stream) Capturing() bool { return s.capturer().Capturing() }

func (s *stream) OnReplay(f func()) bool { return s.Stream.(device.ReplayNotifier).OnReplay(f) }

func (s *stream) EndCapture() (device.Graph, error) {
	g, err := s.capturer().EndCapture()
	if err != nil {
		return nil, err
	}
	return &graph{g, s.dev}, nil
}

func (g *graph) Device() device.Device { return g.dev }

func (g *graph) Replay(on device.Stream) error {
	if s, ok := on.(*stream); ok {
		on = s.Stream
	}
	return g.Graph.Replay(on)
}

func (g *graph) Update(with device.Graph) error {
	if w, ok := with.(*graph); ok {
		with = w.Graph
	}
	return g.Graph.Update(with)
}

//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/opened"
)

// program is a CUgraph and the resources that it holds. After updates several graphs share it.
type program struct {
	dev    *Device
	handle C.uint64_t
	holds  holds
	comms  []*communicator
	told   []func() // called for each replay; it does not change
	graphs atomic.Int32
}

// release subtracts a graph from the count of p. The last one destroys the CUgraph.
func (p *program) release() {
	if p.graphs.Add(-1) == 0 {
		C.cistern_graph_destroy(p.dev.c, p.handle, 0)
		p.holds.release()
	}
}

// graph is a CUgraphExec and the program from which it was made, which updates of other graphs may
// use.
//
// The driver orders the replays of one CUgraphExec, so waiting for the last replay's stream is
// enough. gate keeps both alive while calls use them.
type graph struct {
	dev     *Device
	nodes   int
	gate    backend.Gate
	closing sync.Once

	mu      sync.Mutex // the driver allows one call at a time on each
	program *program
	exec    C.uint64_t
	replays int     // number of queued replays
	last    *stream // the last replay's stream
}

var (
	_ device.GraphCapturer  = (*stream)(nil)
	_ device.ReplayNotifier = (*stream)(nil)
	_ device.Graph          = (*graph)(nil)
)

// EndCapture ends the capture even if the device is unusable.
func (s *stream) EndCapture() (device.Graph, error) {
	if !s.gate.Enter() {
		return nil, s.dev.self.StreamClosed("EndCapture", s.id)
	}
	defer s.gate.Leave()
	c := s.capture.Load()
	if c == nil {
		return nil, s.dev.self.NotCapturing(s.id)
	}
	if c.origin != s {
		return nil, s.dev.self.Unmatched(s.id, c.origin.id)
	}
	p, err := s.end(c)
	if err != nil {
		return nil, err
	}
	g := &graph{dev: s.dev, program: p}
	var nodes C.size_t
	if err := s.dev.check("EndCapture", 0, C.cistern_graph_instantiate(s.dev.c, p.handle, &g.exec, &nodes)); err != nil {
		p.release()
		return nil, err
	}
	g.nodes = int(nodes)
	s.dev.graphs.Add(g)
	s.dev.opened.Add(opened.Graph, unsafe.Pointer(g))
	return g, nil
}

func (g *graph) Device() device.Device { return g.dev }
func (g *graph) Nodes() int            { return g.nodes }

func (g *graph) Replay(on device.Stream) error {
	s, ok := on.(*stream)
	if !ok || s == nil || s.dev != g.dev {
		return g.dev.self.NotOurs("Replay", "stream")
	}
	var told []func()
	var err error
	if s.launching == nil || s.Capturing() {
		told, err = g.replay(s)
	} else {
		launched := s.launching.Begin(s, "graph")
		told, err = g.replay(s)
		launched(err)
	}
	for _, f := range told {
		f()
	}
	return err
}

// replay queues a replay. It returns the functions to call once the replay is queued.
func (g *graph) replay(s *stream) (told []func(), err error) {
	if err := s.enter("Replay"); err != nil {
		return nil, err
	}
	defer s.leaveQueued()
	if s.Capturing() {
		return nil, g.dev.self.Capturing("Replay", s.id)
	}
	if !g.gate.Enter() {
		return nil, g.dev.self.GraphClosed("Replay")
	}
	defer g.gate.Leave()
	g.mu.Lock()
	comms := g.program.comms
	g.mu.Unlock()
	err = s.watched(comms, func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		err := g.dev.check("Replay", 0, C.cistern_graph_launch(g.dev.c, g.exec, s.handle))
		if err == nil {
			g.last = s
			g.replays++
			told = g.program.told
		}
		return err
	})
	return told, err
}

// idle waits for the pending replays, without the lock. It returns their number.
func (g *graph) idle(op string) (replays int, err error) {
	g.mu.Lock()
	last, replays := g.last, g.replays
	g.mu.Unlock()
	if last == nil {
		return replays, nil
	}
	return replays, last.drain(op)
}

func (g *graph) Update(with device.Graph) error {
	d := g.dev
	if err := d.enter("Update"); err != nil {
		return err
	}
	defer d.gate.Leave()
	other, ok := with.(*graph)
	if !ok || other == nil || other.dev != d {
		return d.self.NotOurs("Update", "graph")
	}
	for _, x := range [2]*graph{g, other} {
		if !x.gate.Enter() {
			return d.self.GraphClosed("Update")
		}
		defer x.gate.Leave()
	}
	next := other.share()
	rest, err := g.swap(next)
	rest.release()
	return err
}

// share returns the graph's program, and counts one more graph that uses it.
func (g *graph) share() *program {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.program.graphs.Add(1)
	return g.program
}

// swap replaces the program by next after the pending replays. It returns the program that the
// graph does not use then.
func (g *graph) swap(next *program) (rest *program, err error) {
	for {
		done, err := g.idle("Update")
		if err != nil {
			return next, err
		}
		g.mu.Lock()
		if g.replays == done {
			break
		}
		g.mu.Unlock() // more were queued meanwhile
	}
	defer g.mu.Unlock()
	var result C.int
	code := C.cistern_graph_update(g.dev.c, g.exec, next.handle, &result)
	if code == backend.CodeGraphUpdateFailed {
		return next, g.dev.self.GraphDiffers("%s", updateResult(int(result)))
	}
	if err := g.dev.check("Update", 0, code); err != nil {
		return next, err
	}
	rest, g.program = g.program, next
	return rest, nil
}

// updateResult describes why the driver refuses an update (CUgraphExecUpdateResult).
func updateResult(result int) string {
	reasons := [...]string{2: "the graphs have different operations, or a different order", 3: "an operation is of another kind",
		4: "a kernel's function changed", 5: "a parameter changed that can't be updated", 6: "something can't be changed", 7: "a kernel is a function of another context",
		8: "the attributes of an operation changed"}
	if result < len(reasons) && reasons[result] != "" {
		return reasons[result]
	}
	return "the driver gives no reason"
}

func (g *graph) Close() error {
	if !g.dev.gate.Enter() {
		return nil // the device's Close closes it
	}
	defer g.dev.gate.Leave()
	return g.end()
}

func (g *graph) end() error {
	g.closing.Do(func() {
		g.gate.ShutAndWait()
		_, _ = g.idle("Close") // if the context is lost, so is the graph
		C.cistern_graph_destroy(g.dev.c, 0, g.exec)
		g.program.release()
		g.dev.graphs.Remove(g)
		g.dev.opened.Remove(unsafe.Pointer(g))
	})
	return nil
}

func (g *graph) String() string { return fmt.Sprintf("graph of %d nodes of %s", g.nodes, g.dev.name) }

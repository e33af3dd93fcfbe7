package tensor

import (
	"fmt"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// delayer is kernels that can let a stream pause.
type delayer interface {
	delay(s device.Stream, d time.Duration) error
}

// headStart is longer than two launches of a GPU take, the wait for another stream's event included: 8 µs on an H100.
const headStart = 10 * time.Microsecond

// GoFirst lets what is queued next on the runtime's stream have the multiprocessors before what is queued next on s, where both could begin in the same moment, behind one
// event: s pauses for some microseconds of the device's time. A kernel that has the GPU to itself may take twice as long if a few blocks of another one came first. In a captured step
// the order of the graph's nodes does this, and on the host device kernels don't share processors: there it does nothing.
func (rt *Runtime) GoFirst(s device.Stream) error {
	if s == nil {
		return fmt.Errorf("tensor: GoFirst: %w: the stream is nil", ErrInvalid)
	}
	if g, ok := rt.kernels.(delayer); ok && rt.Capturing() == nil {
		return g.delay(s, headStart)
	}
	return nil
}

func (g *gpuKernels) delay(s device.Stream, d time.Duration) error {
	l := g.newLaunch("delay", Float32, 0)
	l.suffix, l.Block[0] = "", 1
	l.word(int(d))
	return g.queue(s, l, kernelKey{"delay", ""})
}

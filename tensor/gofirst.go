package tensor

import (
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/headstart"
)

func init() {
	headstart.GoFirst = func(rt any, s device.Stream) error { return rt.(*Runtime).goFirst(s) }
}

// headStart is longer than two launches of a GPU take, the wait for another stream's event included: 8 µs on an H100.
const headStart = 10 * time.Microsecond

// goFirst lets what is queued next on the runtime's stream have the multiprocessors before what is
// queued next on s, where both could begin in the same moment, behind one event: s pauses for some
// microseconds of the device's time. A kernel that has the GPU to itself may take twice as long if
// a few blocks of another one came first. In a captured step the order of the graph's nodes does
// this, and on the host device kernels don't share processors: there it does nothing.
func (rt *Runtime) goFirst(s device.Stream) error {
	if rt.pause == nil || rt.Capturing() != nil {
		return nil
	}
	return rt.pause(s, headStart)
}

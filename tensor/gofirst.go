package tensor

import (
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/headstart"
)

func init() {
	headstart.GoFirst = func(rt any, s device.Stream) error { return rt.(*Runtime).goFirst(s) }
}

// headStart is longer than two launches of a GPU, including the wait for another stream's event: 8
// µs on an H100.
const headStart = 10 * time.Microsecond

// goFirst lets work that is queued next on the runtime's stream take the multiprocessors before
// work that is queued next on s, if both could begin at the same moment, after one event: s pauses
// for some microseconds of device time. Otherwise a kernel that would have the GPU to itself may
// take twice as long, because a few blocks of another kernel came first. In a captured step the
// order of the graph's nodes has this effect, and kernels on the host device don't share
// processors; in both cases goFirst does nothing.
func (rt *Runtime) goFirst(s device.Stream) error {
	if rt.pause == nil || rt.Capturing() != nil {
		return nil
	}
	return rt.pause(s, headStart)
}

package replay

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/recording"
)

var driverActions = map[null.Op]recording.Action{
	null.OpAlloc: recording.SegmentAlloc, null.OpFree: recording.SegmentFree,
	null.OpMap: recording.SegmentMap, null.OpUnmap: recording.SegmentUnmap,
}

// undo detects mappings that fail half-way. Unmapping their beginning is not a driver call of the
// recording, because PyTorch maps after it has all memory.
type undo struct{ failed bool }

// before is called before each driver call.
func (u *undo) before(c *null.Call) {
	// Unless after is called, the mapping failed, and the next unmapping removes its beginning.
	u.failed = c.Op == null.OpMap || u.failed && c.Op == null.OpUnmap
}

// append adds a completed call of the device to a list of driver calls, if it is one of these.
func (u *undo) append(list []recording.Entry, c null.Call) []recording.Entry {
	action, ok := driverActions[c.Op]
	if !ok {
		return list
	}
	if c.Op == null.OpMap {
		u.failed = false
	}
	if n := len(list); u.failed && n > 0 {
		last := &list[n-1]
		if last.Action == recording.SegmentMap && last.Addr+device.Ptr(last.Size) == c.Ptr+device.Ptr(c.Bytes) {
			if last.Size -= c.Bytes; last.Size == 0 {
				list = list[:n-1]
			}
			return list
		}
		u.failed = false
	}
	return join(list, recording.Entry{Action: action, Addr: c.Ptr, Size: c.Bytes, Block: -1})
}

// join adds e to a list of driver calls. A mapping that continues the previous one extends it.
func join(list []recording.Entry, e recording.Entry) []recording.Entry {
	if n := len(list); n > 0 && (e.Action == recording.SegmentMap || e.Action == recording.SegmentUnmap) {
		last := &list[n-1]
		if last.Action == e.Action && last.Addr+device.Ptr(last.Size) == e.Addr {
			last.Size += e.Size
			return list
		}
	}
	return append(list, e)
}

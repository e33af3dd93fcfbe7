package tensor

import (
	"log/slog"
	"sync"
)

// readsZeros logs once that the values of a dry device are zeros.
func (rt *Runtime) readsZeros() {
	if rt.dry != nil {
		rt.dry.Do(func() {
			slog.Warn("tensor: a value was read from a dry device, whose values are zeros: what the program decides by it is not what it would decide", "device", rt.Device().Name())
		})
	}
}

// newDry returns what readsZeros needs; nil: the device is not dry.
func newDry(dry bool) *sync.Once {
	if !dry {
		return nil
	}
	return new(sync.Once)
}

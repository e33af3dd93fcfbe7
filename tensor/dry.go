package tensor

import (
	"log/slog"
	"sync"
)

// readsZeros logs once that values read from a dry device are zeros.
func (rt *Runtime) readsZeros() {
	if rt.dry != nil {
		rt.dry.Do(func() {
			slog.Warn("tensor: a value was read from a dry device, whose values are zeros: decisions that depend on it differ from those on a real device", "device", rt.Device().Name())
		})
	}
}

// newDry returns the state of readsZeros, or nil if the device is not dry.
func newDry(dry bool) *sync.Once {
	if !dry {
		return nil
	}
	return new(sync.Once)
}

package gpuop

import (
	"fmt"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
)

var delay = named("delay")

// Pause queues a kernel on a stream of the device that runs for d.
func (b *Backend) Pause(s device.Stream, d time.Duration) error {
	k, err := b.kernel(delay, backend.NoDtype)
	if err == nil {
		err = s.Launch(&device.Launch{Name: texts[delay], Kernel: k, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Args: []uint64{uint64(d)}})
	}
	if err != nil {
		return fmt.Errorf("tensor: %s: %w", texts[delay], err)
	}
	return nil
}

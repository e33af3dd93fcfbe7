//go:build !cuda

package cuda

import (
	"net/url"

	"github.com/cistern-ml/cistern/device"
)

func init() { device.Register("cuda", driver{}) }

type driver struct{}

// Open returns an error that describes how to build a program with GPUs.
func (driver) Open(name string, _ url.Values) (device.Device, error) {
	return nil, &device.Error{Op: "Open", Device: name, Err: device.ErrNoBackend,
		Detail: "this program was built without GPUs; build it with -tags cuda (see `make cuda`)"}
}

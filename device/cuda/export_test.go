//go:build cuda

package cuda

import (
	"errors"

	"github.com/cistern-ml/cistern/device"
)

// HasAddress is the check of what the driver gives, for a device that is none.
func HasAddress(name, op string, bytes int64, p uint64) error {
	return (&Device{name: name}).hasAddress(op, bytes, p)
}

// Flag is a word of mapped memory, zero, that the device does not know of.
func Flag(on device.Device) ([]byte, device.Ptr, error) {
	d := on.(*Device)
	b, code := d.pin(4)
	if err := errors.Join(d.check("Flag", 4, code), d.hasAddress("Flag", 4, address(b))); err != nil {
		return nil, 0, err
	}
	clear(b)
	p, err := d.mappedAddress("Flag", address(b))
	return b, device.Ptr(p), err
}

// DriverBatch is CopyD2HBatch without its kernel: cuMemcpyBatchAsync, or single copies where the driver lacks it.
func DriverBatch(s device.Stream, dst [][]byte, src []device.Ptr) error {
	return s.(*stream).batch("CopyD2HBatch", dst, src, true, 0)
}

// Dependent is PTX whose kernels may come early.
func Dependent(image []byte) []byte { return dependent(image) }

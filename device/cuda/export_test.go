//go:build cuda

package cuda

import (
	"errors"

	"github.com/cistern-ml/cistern/device"
)

// HasAddress checks an address of a driver, without a device.
func HasAddress(name, op string, bytes int64, p uint64) error {
	return (&Device{name: name}).hasAddress(op, bytes, p)
}

// Flag returns a word of mapped memory, set to zero, that is not in the device's table.
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

// DriverBatch is CopyD2HBatch without the kernel: cuMemcpyBatchAsync, or single copies if the
// driver lacks it.
func DriverBatch(s device.Stream, dst [][]byte, src []device.Ptr) error {
	return s.(*stream).batch("CopyD2HBatch", dst, src, true, 0)
}

// Dependent returns PTX whose kernels may begin early.
func Dependent(image []byte) []byte { return dependent(image) }

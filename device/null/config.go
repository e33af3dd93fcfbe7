package null

import (
	"math"
	"net/url"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
)

// Config configures a null device.
type Config struct {
	// Capacity is the device's memory in bytes, at most 1 EiB. 0 means 80 GiB.
	Capacity int64
	// Base is the first address that the device chooses, a multiple of 2 MiB. 0 means 1 TiB.
	Base device.Ptr
}

// self makes the errors that all backends share.
const self = backend.Self("null")

const (
	defaultCapacity = 80 << 30
	maxCapacity     = 1 << 60
	defaultBase     = 1 << 40
)

func init() { device.Register("null", driver{}) }

type driver struct{}

// Open opens "null" with the option capacity, such as "140GiB" or a number of bytes.
func (driver) Open(name string, options url.Values) (device.Device, error) {
	if name != "null" {
		return nil, self.Invalid("Open", 0, "there is no device %q; the null device is %q, with options as in %q",
			name, "null", "null?capacity=140GiB")
	}
	var cfg Config
	for key, values := range options {
		if key != "capacity" || len(values) != 1 {
			return nil, self.Invalid("Open", 0, "the option %s is given %d times; the null device has the option capacity, once",
				key, len(values))
		}
		n, err := humanize.ParseBytes(values[0])
		if err != nil || n == 0 || n > math.MaxInt64 {
			return nil, self.Invalid("Open", 0, "capacity=%q is not a size; use a positive one such as 140GiB or 1048576", values[0])
		}
		cfg.Capacity = int64(n)
	}
	d, err := New(cfg)
	if err != nil {
		return nil, err // not d, because a nil *Device in the interface would not be nil
	}
	return d, nil
}

func (c Config) withDefaults() (Config, error) {
	if c.Capacity == 0 {
		c.Capacity = defaultCapacity
	}
	if c.Base == 0 {
		c.Base = defaultBase
	}
	if c.Capacity < 0 || c.Capacity > maxCapacity {
		return c, self.Invalid("New", 0, "Config.Capacity is %d bytes; it is 1 to %d, or 0 for the default", c.Capacity, int64(maxCapacity))
	}
	if c.Base%granularity != 0 {
		return c, self.Invalid("New", 0, "Config.Base is %#x; it is a multiple of %d", c.Base, granularity)
	}
	return c, nil
}

package host

import (
	"bytes"
	"math"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
)

// Config configures a host device.
type Config struct {
	// Capacity is the device's memory in bytes. 0 means the smaller of 4 GiB and half of the
	// machine's RAM.
	Capacity int64
	// Inaccessible gives device memory addresses at which the process has no memory, as on a GPU.
	// Go code that accesses one crashes with a fault; copies and kernels work as always. It is for
	// tests, and needs a 64-bit machine.
	Inaccessible bool
}

// self makes the errors that all backends share.
const self = backend.Self("host")

const defaultCapacity = min(4<<30, math.MaxInt/2)

func init() { device.Register("host", driver{}) }

type driver struct{}

// Open opens "host" with the options capacity, such as "2GiB" or a number of bytes, and accessible,
// true or false.
func (driver) Open(name string, options url.Values) (device.Device, error) {
	if name != "host" {
		return nil, self.Invalid("Open", 0, "there is no device %q; the host device is %q, with options as in %q",
			name, "host", "host?capacity=2GiB")
	}
	cfg, err := parse(options)
	if err != nil {
		return nil, err
	}
	d, err := New(cfg)
	if err != nil {
		return nil, err // not d, because a nil *Device in the interface would not be nil
	}
	return d, nil
}

func parse(options url.Values) (Config, error) {
	var cfg Config
	for key, values := range options {
		if key != "capacity" && key != "accessible" {
			return cfg, self.Invalid("Open", 0, "unknown option %q; the host device has the options capacity and accessible", key)
		}
		if len(values) != 1 {
			return cfg, self.Invalid("Open", 0, "the option %s is given %d times; give it once", key, len(values))
		}
		if key == "accessible" {
			yes, err := strconv.ParseBool(values[0])
			if err != nil {
				return cfg, self.Invalid("Open", 0, "accessible=%q is neither true nor false", values[0])
			}
			cfg.Inaccessible = !yes
			continue
		}
		n, err := humanize.ParseBytes(values[0])
		if err != nil || n == 0 || n > math.MaxInt64 {
			return cfg, self.Invalid("Open", 0, "capacity=%q is not a size; use a positive one such as 2GiB or 1048576",
				values[0])
		}
		cfg.Capacity = int64(n)
	}
	return cfg, nil
}

func (c Config) capacity() (int64, error) {
	switch {
	case c.Capacity < 0:
		return 0, self.Invalid("New", 0, "Config.Capacity is %d bytes; use a positive size, or 0 for the default", c.Capacity)
	case c.Capacity > maxCapacity:
		return 0, self.Invalid("New", 0, "Config.Capacity is %d bytes; the largest is %d", c.Capacity, int64(maxCapacity))
	case c.Capacity > 0:
		return c.Capacity, nil
	}
	return defaultFor(ramBytes()), nil
}

// defaultFor returns the default capacity on a machine with ram bytes of memory; 0 means unknown.
func defaultFor(ram int64) int64 {
	if ram > 0 {
		return min(int64(defaultCapacity), ram/2)
	}
	return defaultCapacity
}

// maxCapacity is less than the address space of any 64-bit machine.
const maxCapacity = 1 << 46

// maxPiece is the largest slice, including the bytes that align it. On 32-bit machines it is just
// below 2 GiB.
const maxPiece = min(2*maxCapacity, math.MaxInt-granularity)

// ramBytes returns the machine's memory in bytes, or 0 if it is unknown.
func ramBytes() int64 {
	if runtime.GOOS != "linux" {
		return 0
	}
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	return parseMeminfo(text)
}

func parseMeminfo(text []byte) int64 {
	for line := range bytes.Lines(text) {
		rest, ok := strings.CutPrefix(string(line), "MemTotal:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil || kib < 0 || kib > math.MaxInt64/1024 {
			return 0
		}
		return kib * 1024
	}
	return 0
}

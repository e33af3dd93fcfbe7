package dry

import (
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host" // implements dry devices, too
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/device/internal/dryhost"
)

const self = backend.Self("dry")

func init() { device.Register("dry", driver{}) }

type driver struct{}

// Open opens "dry:host" with the option capacity, or "dry:cuda" with the options gpu, capacity and
// capability.
func (driver) Open(name string, options url.Values) (device.Device, error) {
	cfg, gpu, err := parse(name, options)
	if err != nil {
		return nil, err
	}
	switch name {
	case "dry:host":
		cfg.Front = func(below device.Device) device.Device { return newVisible(below) }
	case "dry:cuda":
		offerKernels()
		cfg.Front = func(below device.Device) device.Device { return newGPU(below, gpu) }
	default:
		return nil, self.Invalid("Open", 0, "there is no device %q; the dry devices are %q and %q, with options as in %q",
			name, "dry:host", "dry:cuda", "dry:cuda?gpu=H100&capacity=80GiB")
	}
	return dryhost.New(cfg)
}

// addresses exceeds the reservations of any program, because a GPU does not run out of addresses
// either.
const addresses = 1 << 53

func parse(name string, options url.Values) (cfg dryhost.Config, gpu model, err error) {
	gpu = gpus["H100"]
	known := []string{"capacity"}
	if name == "dry:cuda" {
		known = []string{"capability", "capacity", "cublas", "gpu"}
	}
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if !slices.Contains(known, key) || len(options[key]) != 1 {
			return cfg, gpu, self.Invalid("Open", 0, "the option %s is given %d times; %s has the options %s, each once",
				key, len(options[key]), name, strings.Join(known, ", "))
		}
	}
	if text := options.Get("gpu"); options.Has("gpu") {
		m, ok := gpus[text]
		if !ok {
			return cfg, gpu, self.Invalid("Open", 0, "gpu=%q is not in the table, which has %s; for others give capacity and capability",
				text, strings.Join(slices.Sorted(maps.Keys(gpus)), ", "))
		}
		gpu = m
	}
	if text := options.Get("capability"); options.Has("capability") {
		major, minor, _ := strings.Cut(text, ".")
		a, err1 := strconv.ParseUint(major, 10, 8)
		b, err2 := strconv.ParseUint(minor, 10, 8)
		if err1 != nil || err2 != nil || a < 7 || b > 9 {
			return cfg, gpu, self.Invalid("Open", 0, "capability=%q is not a compute capability from 7.0 on, such as 9.0", text)
		}
		gpu.capability = int(10*a + b)
	}
	if text := options.Get("cublas"); options.Has("cublas") {
		if text != "none" {
			return cfg, gpu, self.Invalid("Open", 0, "cublas=%q; the only value is none, for a GPU without the library", text)
		}
		gpu.bare = true
	}
	if name == "dry:cuda" {
		cfg.Capacity, cfg.Addresses = gpu.memory<<20, addresses
	}
	if text := options.Get("capacity"); options.Has("capacity") {
		n, err := humanize.ParseBytes(text)
		if err != nil || n == 0 || n > math.MaxInt64 {
			return cfg, gpu, self.Invalid("Open", 0, "capacity=%q is not a size; use a positive one such as 80GiB or 1048576", text)
		}
		cfg.Capacity = int64(n)
	}
	return cfg, gpu, nil
}

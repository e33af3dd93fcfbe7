package device

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// Driver opens the devices of one backend.
type Driver interface {
	// Open opens the device named name, which starts with the driver's own name: "host", "cuda:0".
	// options are the parameters after "?"; an unknown option is an error.
	Open(name string, options url.Values) (Device, error)
}

var drivers = struct {
	sync.RWMutex
	m map[string]Driver
}{m: make(map[string]Driver)}

// Register makes a backend available to [Open] under name, which must not be empty or contain ":"
// or "?". Backends call it from init. Like sql.Register it panics if the driver is nil, or if the
// name is invalid or taken.
func Register(name string, d Driver) {
	if d == nil {
		panic("device: Register driver is nil")
	}
	if name == "" || strings.ContainsAny(name, ":?") {
		panic("device: Register with the name " + fmt.Sprintf("%q", name))
	}
	drivers.Lock()
	defer drivers.Unlock()
	if _, dup := drivers.m[name]; dup {
		panic("device: Register called twice for driver " + name)
	}
	drivers.m[name] = d
}

// Drivers returns the sorted names of the registered backends.
func Drivers() []string {
	drivers.RLock()
	defer drivers.RUnlock()
	return slices.Sorted(maps.Keys(drivers.m))
}

// Open opens a device: "host", "host?capacity=2GiB", "cuda:0". Options follow the name as in a URL.
// If a GPU is already open, Open returns the same device, which must then be closed once for each
// Open. Each Open of "host" makes a new device. If the backend is not built into the program, the
// error wraps [ErrNoBackend] and describes how to add it. Invalid options are an error that wraps
// [ErrInvalid].
func Open(name string) (Device, error) {
	base, query, _ := strings.Cut(name, "?")
	options, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("device: Open(%q): %w: its options: %w", name, ErrInvalid, err)
	}
	backend, _, _ := strings.Cut(base, ":")
	drivers.RLock()
	d := drivers.m[backend]
	drivers.RUnlock()
	if d != nil {
		return d.Open(base, options)
	}
	return nil, fmt.Errorf("device: Open(%q): %w: %s", name, ErrNoBackend, hint(backend))
}

// hint lists the program's backends and describes how to add the missing one.
func hint(backend string) string {
	have := "this program has none"
	if names := Drivers(); len(names) > 0 {
		have = "this program has " + strings.Join(names, ", ")
	}
	have += "; a backend is there when its package is imported"
	switch backend {
	case "host", "null", "dry":
		return fmt.Sprintf("%s: import _ \"github.com/cistern-ml/cistern/device/%s\"", have, backend)
	case "cuda":
		return have + ": import _ \"github.com/cistern-ml/cistern/device/cuda\", and build with -tags cuda"
	}
	return have
}

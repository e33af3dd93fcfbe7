package backend

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ErrOther is wrapped by the error of a backend that is opened for a device that it does not
// support.
var ErrOther = errors.New("the device is of another backend")

// Open opens a backend on the environment's stream. It returns an error that wraps [ErrOther] if
// the backend does not support the stream's device.
type Open func(env Env) (Backend, error)

type registration struct {
	name string
	open Open
}

var registry struct {
	sync.Mutex
	all []registration // the newest first, and those of package tensor last
}

// builtin are the names of package tensor's own backends.
var builtin = []string{"host", "ptx"}

// Register registers a backend under a name. It is for init functions. Like database/sql.Register
// it panics if open is nil, or if the name is empty or taken. The backends host and ptx belong to
// package tensor, and come last in the order of [For].
func Register(name string, open Open) {
	registry.Lock()
	defer registry.Unlock()
	switch {
	case open == nil:
		panic(fmt.Sprintf("backend: Register: %q has no function that opens it", name))
	case name == "":
		panic("backend: Register: the name is empty")
	case slices.ContainsFunc(registry.all, func(r registration) bool { return r.name == name }):
		panic(fmt.Sprintf("backend: Register: %q is registered twice", name))
	}
	at := 0
	if slices.Contains(builtin, name) {
		at = len(registry.all)
	}
	registry.all = slices.Insert(registry.all, at, registration{name, open})
}

// Names returns the names of the registered backends, the newest first.
func Names() []string {
	registry.Lock()
	defer registry.Unlock()
	names := make([]string, len(registry.all))
	for i, r := range registry.all {
		names[i] = r.name
	}
	return names
}

// For opens the backend with this name or, if name is empty, the newest registered backend that
// supports the environment's device. If there is none, the error wraps [ErrOther].
func For(env Env, name string) (Backend, error) {
	registry.Lock()
	all := slices.Clone(registry.all)
	registry.Unlock()
	for _, r := range all {
		if name != "" && r.name != name {
			continue
		}
		b, err := r.open(env)
		switch {
		case err == nil && b == nil:
			return nil, fmt.Errorf("the backend %s returned none, and no error", r.name)
		case err == nil:
			return b, nil
		case name != "" || !errors.Is(err, ErrOther):
			return nil, fmt.Errorf("the backend %s: %w", r.name, err)
		}
	}
	if name != "" {
		return nil, fmt.Errorf("%w: no backend %q is registered", ErrOther, name)
	}
	return nil, ErrOther
}

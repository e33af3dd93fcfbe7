//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"gorgonia.org/cu"

	"github.com/cistern-ml/cistern/device"
)

func init() { device.Register("cuda", &drivers) }

// driver holds the open devices.
//
// A process has one primary context for each GPU, shared with CUDA's runtime and PyTorch. So
// opening a GPU again returns the same device, and counts. mu is held while a context is made. An
// Open during the last Close of its GPU waits, without mu, until the context is released. A lost
// context is lost for the process, so its error is kept for later Opens.
type driver struct {
	mu   sync.Mutex
	open map[int]*Device
	lost map[int]*device.Error // the sticky errors of closed GPUs
}

var drivers = driver{open: make(map[int]*Device), lost: make(map[int]*device.Error)}

// Open opens a GPU by its number in the driver's order, or returns the device that is open.
func (v *driver) Open(name string, options url.Values) (device.Device, error) {
	ordinal, paths, err := parse(name, options)
	if err != nil {
		return nil, err
	}
	if err := available(name); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for v.closing(ordinal) {
		gone := v.open[ordinal].gone
		v.mu.Unlock()
		<-gone
		v.mu.Lock()
	}
	if d := v.open[ordinal]; d != nil {
		for _, x := range []struct{ option, want, have string }{{"cublas", paths.blas, d.blas.path}, {"nccl", paths.nccl, d.nccl}} {
			if x.want != "" && x.want != x.have {
				return nil, &device.Error{Op: "Open", Device: name, Code: device.CodeInvalidValue, Err: device.ErrInvalid,
					Detail: fmt.Sprintf("the device is open with %s=%q; close it first", x.option, x.have)}
			}
		}
		d.refs++
		return d, nil
	}
	if e := v.lost[ordinal]; e != nil {
		again := *e
		again.Op, again.Detail = "Open", "this process can't use the GPU any more, start it again: "+e.Op+": "+e.Detail
		return nil, &again
	}
	n, err := cu.NumDevices()
	if err != nil {
		return nil, &device.Error{Op: "Open", Device: name, Err: device.ErrNoDevice, Detail: err.Error()}
	}
	if ordinal >= n {
		return nil, &device.Error{Op: "Open", Device: name, Code: codeInvalidDevice, Err: device.ErrNoDevice,
			Detail: fmt.Sprintf("the machine has %d: cuda:0 to cuda:%d", n, n-1)}
	}
	d, err := newDevice(ordinal, paths)
	if err != nil {
		return nil, err // not d, because a nil *Device in the interface would not be nil
	}
	for _, peer := range v.open {
		d.enablePeers(peer)
	}
	v.open[ordinal] = d
	return d, nil
}

// closing reports whether the last Close of a GPU is in progress. The caller holds v.mu.
func (v *driver) closing(ordinal int) bool {
	d := v.open[ordinal]
	return d != nil && d.refs == 0
}

// libraries holds the paths of libraries: absolute, without, or empty to let the dynamic linker
// find them.
type libraries struct{ blas, nccl string }

func parse(name string, options url.Values) (ordinal int, paths libraries, err error) {
	invalid := func(format string, args ...any) error {
		return &device.Error{Op: "Open", Device: name, Code: device.CodeInvalidValue, Err: device.ErrInvalid,
			Detail: fmt.Sprintf(format, args...)}
	}
	_, number, given := strings.Cut(name, ":")
	if given {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return 0, paths, invalid("%q is not the number of a GPU; the first one is cuda:0", number)
		}
		ordinal = int(n)
	}
	for key, values := range options {
		path, ok := map[string]*string{"cublas": &paths.blas, "nccl": &paths.nccl}[key]
		if !ok {
			return 0, paths, invalid("unknown option %q; a GPU has the options cublas and nccl", key)
		}
		if len(values) != 1 || values[0] != without && !filepath.IsAbs(values[0]) {
			return 0, paths, invalid("%s=%q: give one absolute path of the library, or none", key, strings.Join(values, ","))
		}
		*path = values[0]
	}
	return ordinal, paths, nil
}

// without is the value of the option for a device without the library.
const without = "none"

// available returns an error with the reason if there is no GPU.
func available(name string) error {
	var loaded C.int
	var reason [256]C.char
	code := C.cistern_init(&loaded, &reason[0], C.int(len(reason)))
	if code == codeSuccess {
		return nil
	}
	e := &device.Error{Op: "Open", Device: name, Code: int(code), Err: device.ErrNoDevice}
	if loaded == 0 {
		e.Detail = "NVIDIA's driver is not installed: " + C.GoString(&reason[0])
	} else {
		e.Detail = "NVIDIA's driver finds no GPU: " + nameOf(int(code))
	}
	return e
}

// release undoes one Open, and reports whether it was the last.
func (v *driver) release(d *Device) (last bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d.refs == 0 {
		return false
	}
	d.refs--
	return d.refs == 0
}

// forget removes d, whose context is released, so that the GPU can be opened again.
func (v *driver) forget(d *Device) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.open, d.ordinal)
	if e := d.stuck.Load(); e != nil {
		v.lost[d.ordinal] = e
	}
	close(d.gone)
}

// others returns the open devices except d.
func (v *driver) others(d *Device) (all []*Device) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range v.open {
		if o != d {
			all = append(all, o)
		}
	}
	return all
}

package leaktest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"runtime"
	rtrace "runtime/trace"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func needsLedgers(t *testing.T) {
	if race.Enabled {
		t.Skip("race builds record no handles")
	}
}

// recorded is a test that keeps its errors.
type recorded struct {
	testing.TB
	end    func()
	errors []string
}

func (r *recorded) Cleanup(f func())  { r.end = f }
func (r *recorded) Error(args ...any) { r.errors = append(r.errors, fmt.Sprint(args...)) }
func (r *recorded) Failed() bool      { return false }

// reports are the errors of a test that uses a device and closes it.
func reports(t *testing.T, dev device.Device, use plant) []string {
	t.Helper()
	r := &recorded{TB: t}
	leaktest.Device(r, dev)
	require.NoError(t, use(dev))
	_ = dev.Close() // an error, where memory is left
	r.end()
	return r.errors
}

// plant leaves something open. Its code is on one line.
type plant func(d device.Device) error

func (p plant) line() string {
	f := runtime.FuncForPC(reflect.ValueOf(p).Pointer())
	file, line := f.FileLine(f.Entry())
	return fmt.Sprintf("/%s:%d", filepath.Base(file), line)
}

const unit = 2 << 20

var onEachDevice = map[string]plant{
	"device memory":    func(d device.Device) error { return second(d.Alloc(1)) },
	"pinned memory":    func(d device.Device) error { return second(d.AllocPinned(1)) },
	"registered slice": func(d device.Device) error { return d.Register(make([]byte, 64)) },
	"reservation":      func(d device.Device) error { return second(d.(device.VirtualMemory).Reserve(unit)) },
	"mapping":          func(d device.Device) error { return d.(device.VirtualMemory).Map(reserved(d), unit) },
	"event":            func(d device.Device) error { return second(d.NewEvent(device.EventOptions{})) },
	"timed event":      func(d device.Device) error { return second(d.NewEvent(device.EventOptions{Timed: true})) },
	"reclaimer":        func(d device.Device) error { c := cache(d); c.OnPressure(nil); return c.Close() },
	"observer":         func(d device.Device) error { c := cache(d); c.OnOutOfMemory(nil); return c.Close() },
}

var onHost = map[string]plant{
	"graph":        func(d device.Device) error { return second(captured(d).EndCapture()) },
	"communicator": func(d device.Device) error { return second(ranks(d).NewCommunicator(background, id(d), 0, 1, alone)) },
	"stream":       func(d device.Device) error { return second(loader.New(background, pool(d), ring(d))) },
}

func second[T any](_ T, err error) error { return err }

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

func reserved(d device.Device) device.Ptr { return must(d.(device.VirtualMemory).Reserve(unit)) }
func newStream(d device.Device) device.Stream {
	return must(d.NewStream(device.StreamOptions{}))
}
func cache(d device.Device) *memcache.Cache { return must(memcache.New(d, memcache.Config{})) }
func pool(d device.Device) *transfer.Pool   { return must(transfer.New(d, transfer.Config{})) }
func ring(d device.Device) loader.Config {
	return loader.Config{Cache: cache(d), Compute: newStream(d), Fields: []int64{1}}
}

func captured(d device.Device) device.GraphCapturer {
	c := newStream(d).(device.GraphCapturer)
	if err := c.BeginCapture(); err != nil {
		panic(err)
	}
	return c
}

var (
	background = context.Background()
	alone      device.CommunicatorOptions
)

func ranks(d device.Device) device.Collectives { return d.(device.Collectives) }
func id(d device.Device) device.CommunicatorID { return must(ranks(d).NewCommunicatorID()) }

// TestPlantedHandles: an open handle is reported once, with the line that opened it.
func TestPlantedHandles(t *testing.T) {
	needsLedgers(t)
	for kind, p := range onEachDevice {
		t.Run("null/"+kind, func(t *testing.T) { found(t, must(null.New(null.Config{})), kind, p) })
		t.Run("host/"+kind, func(t *testing.T) { found(t, must(host.New(host.Config{})), kind, p) })
	}
	for kind, p := range onHost {
		t.Run("host/"+kind, func(t *testing.T) { found(t, must(host.New(host.Config{})), kind, p) })
	}
}

func found(t *testing.T, dev device.Device, kind string, p plant) {
	var of []string
	for _, r := range reports(t, dev, p) {
		if strings.HasPrefix(r, kind+" of the ") && strings.Contains(r, p.line()) {
			of = append(of, r)
		}
	}
	require.Len(t, of, 1)
	if kind == "stream" {
		require.Contains(t, of[0], "/transfer/loader/loader.go:")
	}
}

// TestDeviceLeftOpen: only the device is reported.
func TestDeviceLeftOpen(t *testing.T) {
	needsLedgers(t)
	dev := must(host.New(host.Config{}))
	r := &recorded{TB: t}
	leaktest.Device(r, dev)
	newStream(dev)
	r.end()
	require.Len(t, r.errors, 1)
	require.Contains(t, r.errors[0], "host device was never closed; it was opened at ")
	require.Contains(t, r.errors[0], "/planted_test.go:")
	require.NoError(t, dev.Close())
}

// TestStepLeftOpen reports the step's task with the line that started the step, while Go's tracer
// runs.
func TestStepLeftOpen(t *testing.T) {
	needsLedgers(t)
	if rtrace.IsEnabled() {
		t.Skip("the tests run with -trace")
	}
	require.NoError(t, rtrace.Start(io.Discard))
	defer rtrace.Stop()
	start := plant(func(d device.Device) error { profiler(d).StartStep(background, 1); return nil })
	got := reports(t, must(host.New(host.Config{})), start)
	require.Len(t, got, 1)
	require.Contains(t, got[0], "task of a step was never closed; it was opened at ")
	require.Contains(t, got[0], start.line())
}

func profiler(d device.Device) *trace.Profiler {
	return must(trace.NewProfiler(trace.ProfilerConfig{Cache: cache(d)}))
}

// TestNothingLeft: closed handles, a test's own stream, and all handles of an excused device are no
// leaks.
func TestNothingLeft(t *testing.T) {
	needsLedgers(t)
	require.Empty(t, reports(t, must(host.New(host.Config{})), everythingClosed))
	require.Empty(t, reports(t, must(host.New(host.Config{})), func(d device.Device) error {
		leaktest.Excuse(d)
		return second(d.NewEvent(device.EventOptions{}))
	}))
}

// everythingClosed is a plant without a leak.
func everythingClosed(d device.Device) error {
	newStream(d)
	c, m, comm := cache(d), must(d.AllocPinned(1)), must(ranks(d).NewCommunicator(background, id(d), 0, 1, alone))
	c.OnPressure(nil)()
	c.OnOutOfMemory(nil)()
	v := d.(device.VirtualMemory)
	p := reserved(d)
	e, g, b := must(d.NewEvent(device.EventOptions{})), must(captured(d).EndCapture()), make([]byte, 64)
	return errors.Join(v.Map(p, unit), v.Unmap(p, unit), v.Unreserve(p), d.Register(b),
		d.Unregister(b), d.FreePinned(m), d.Free(must(d.Alloc(1))), e.Close(), e.Close(),
		g.Close(), comm.Close(), c.Close(), loaderClosed(d))
}

// loaderClosed closes a stream that is not the test's own.
func loaderClosed(d device.Device) error {
	p, cfg := pool(d), ring(d)
	l := must(loader.New(background, p, cfg))
	return errors.Join(l.Close(), p.Close(), cfg.Cache.Close())
}

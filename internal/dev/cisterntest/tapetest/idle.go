package tapetest

import (
	"context"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/tensor"
)

// IdleGPU is a device that accepts launches as a GPU does, with a library of matrix products, and
// runs none. So the Go objects of a step on it are made above the device.
type IdleGPU struct{ device.Device }

// IdleStream is a stream of an IdleGPU.
type IdleStream struct {
	device.Stream
	Dev *IdleGPU
}

// idleDriver opens IdleGPUs as the device "idle", for benchmarks with CISTERN_TEST_DEVICE=idle.
type idleDriver struct{}

func init() { device.Register("idle", idleDriver{}) }

// Open ignores its arguments.
func (idleDriver) Open(string, url.Values) (device.Device, error) {
	below, err := null.New(null.Config{})
	if err != nil {
		return nil, err
	}
	return &IdleGPU{below}, nil
}

// OpenIdle is Open on an IdleGPU.
func OpenIdle(t testing.TB) *Bench {
	t.Helper()
	below, err := null.New(null.Config{})
	require.NoError(t, err)
	s := stacktest.New(t, stacktest.Config{Device: &IdleGPU{below}})
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, rt.Close()) })
	return &Bench{T: t, Ctx: context.Background(), Dev: s.Dev, Cache: s.Cache, RT: rt}
}

// NewStream makes an IdleStream.
func (d *IdleGPU) NewStream(o device.StreamOptions) (device.Stream, error) {
	s, err := d.Device.NewStream(o)
	return &IdleStream{s, d}, err
}

// LoadModule makes a module that has all kernels.
func (d *IdleGPU) LoadModule([]byte) (device.Module, error) { return idleModule{}, nil }

// MatMulWorkspace returns the workspace that a GPU's library of products might take.
func (d *IdleGPU) MatMulWorkspace() (int64, error) { return 1 << 20, nil }

// MatMulEpilogues reports that products include epilogues.
func (d *IdleGPU) MatMulEpilogues() bool { return true }

// MatMulBFloat16 reports that there are products of bfloat16.
func (d *IdleGPU) MatMulBFloat16() bool { return true }

// MatMul checks the addresses, and computes nothing.
func (d *IdleGPU) MatMul(_ device.Stream, g *device.Gemm) error {
	if g.A == 0 || g.B == 0 || g.C == 0 {
		return device.ErrInvalid
	}
	return nil
}

type idleModule struct{}

func (idleModule) Kernel(name string) (any, error) { return name, nil }

func (idleModule) Close() error { return nil }

// Device returns the IdleGPU.
func (s *IdleStream) Device() device.Device { return s.Dev }

// Memset checks the address, and writes nothing.
func (s *IdleStream) Memset(dst device.Ptr, _ byte, _ int64) error {
	if dst == 0 {
		return device.ErrInvalid
	}
	return nil
}

// Launch checks the kernel and the grid, and runs nothing.
func (s *IdleStream) Launch(l *device.Launch) error {
	if l.Kernel == nil || l.Grid[0] == 0 {
		return device.ErrInvalid
	}
	return nil
}

// CopyD2H writes zeros, so that no test finds a fault in memory that the device has not written.
func (s *IdleStream) CopyD2H(dst []byte, src device.Ptr) error {
	clear(dst)
	return s.Stream.CopyD2H(dst, src)
}

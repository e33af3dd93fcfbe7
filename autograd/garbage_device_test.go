package autograd_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/tensor"
)

// idleGPU is a device that takes launches as a GPU does, with a library of matrix products, and
// runs none: what a step on it makes on the Go heap is made above the device.
type idleGPU struct{ device.Device }

type idleStream struct {
	device.Stream
	dev *idleGPU
}

// openIdle is open on an idleGPU.
func openIdle(t testing.TB) *bench {
	t.Helper()
	below, err := null.New(null.Config{})
	require.NoError(t, err)
	s := stacktest.New(t, stacktest.Config{Device: &idleGPU{below}})
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, rt.Close()) })
	return &bench{t: t, ctx: context.Background(), dev: s.Dev, cache: s.Cache, rt: rt}
}

func (d *idleGPU) NewStream(o device.StreamOptions) (device.Stream, error) {
	s, err := d.Device.NewStream(o)
	return &idleStream{s, d}, err
}

func (d *idleGPU) LoadModule([]byte) (device.Module, error) { return idleModule{}, nil }
func (d *idleGPU) MatMulWorkspace() (int64, error)          { return 1 << 20, nil }
func (d *idleGPU) MatMulEpilogues() bool                    { return true }
func (d *idleGPU) MatMulBFloat16() bool                     { return true }

func (d *idleGPU) MatMul(_ device.Stream, g *device.Gemm) error {
	if g.A == 0 || g.B == 0 || g.C == 0 {
		return device.ErrInvalid
	}
	return nil
}

type idleModule struct{}

func (idleModule) Kernel(name string) (any, error) { return name, nil }
func (idleModule) Close() error                    { return nil }

func (s *idleStream) Device() device.Device { return s.dev }

func (s *idleStream) Memset(dst device.Ptr, _ byte, _ int64) error {
	if dst == 0 {
		return device.ErrInvalid
	}
	return nil
}

func (s *idleStream) Launch(l *device.Launch) error {
	if l.Kernel == nil || l.Grid[0] == 0 {
		return device.ErrInvalid
	}
	return nil
}

// CopyD2H leaves zeros, so that no fault is found in what the device has not written.
func (s *idleStream) CopyD2H(dst []byte, src device.Ptr) error {
	clear(dst)
	return s.Stream.CopyD2H(dst, src)
}

// BenchmarkAboveTheDevice is a called step of models of [BenchmarkModel] on a device that runs
// nothing: what the host does for it above the driver.
func BenchmarkAboveTheDevice(b *testing.B) {
	for _, m := range []struct {
		name   string
		model  func(in *autograd.Initializer) runModel
		input  []int
		tokens bool
	}{
		{"mlp", garbageMLP(512, 512), []int{128, 784}, false},
		{"cnn", garbageCNN(32), []int{64, 1, 28, 28}, false},
		{"gpt", garbageGPT(64), []int{4, 32}, true},
	} {
		for _, how := range []string{"called", "reset"} {
			b.Run(m.name+"/"+how, func(b *testing.B) {
				bn := openIdle(b)
				in := autograd.Init(bn.ctx, bn.rt, autograd.Seed(1))
				model := m.model(in)
				opt := autograd.Own(in, autograd.NewAdamW(autograd.ParametersOf(model), autograd.AdamConfig{LR: new(1e-3)}))
				require.NoError(b, in.Err())
				defer func() { require.NoError(b, in.Close()) }()
				benchmarkSteps(b, bn, model, opt, m.input, m.tokens, how)
			})
		}
	}
}

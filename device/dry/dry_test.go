package dry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/dry"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

func TestMain(m *testing.M) {
	if bits.UintSize < 64 {
		fmt.Println("dry devices need addresses of 64 bits")
		return
	}
	cisterntest.Main(m)
}

func open(t *testing.T, name string) (device.Device, device.Stream) {
	t.Helper()
	dev, err := device.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	require.Same(t, dev, s.Device())
	return dev, s
}

var both = []string{"dry:host?capacity=32TiB", "dry:cuda?capacity=32TiB"}

// TestAddressesWithoutMemory: more memory than any machine has can be allocated, copied and freed.
func TestAddressesWithoutMemory(t *testing.T) {
	for _, name := range both {
		dev, s := open(t, name)
		const huge = 15 << 40
		p, err := dev.Alloc(huge)
		require.NoError(t, err)
		q, err := dev.Alloc(huge)
		require.NoError(t, err)
		require.NoError(t, s.Memset(p, 1, huge))
		require.NoError(t, s.CopyD2D(q, p, huge))
		require.ErrorIs(t, s.CopyD2D(q, p, huge+1), device.ErrInvalid)
		_, err = dev.Alloc(huge)
		require.ErrorIs(t, err, device.ErrOutOfMemory)
		require.ErrorContains(t, err, dev.Name())
		_, err = dev.AllocPinned(1 << 62)
		require.ErrorIs(t, err, device.ErrOutOfMemory)
		require.ErrorContains(t, err, dev.Name())
		require.NoError(t, dev.Free(p))
		require.ErrorIs(t, s.Memset(p, 1, 1), device.ErrInvalid)
		again, err := dev.Alloc(huge)
		require.NoError(t, err)
		require.Greater(t, again, q, "no address is used twice")
		require.NoError(t, dev.Free(q))
		require.NoError(t, dev.Free(again))
		props := dev.Properties()
		require.True(t, props.Dry)
		require.False(t, props.Accessible)
		require.Equal(t, int64(32<<40), props.TotalMemory)
		_, visible := dev.(device.HostVisible)
		require.Equal(t, dev.Name() == "dry:host", visible)
	}
}

// TestZerosAreRead: copies to the host write zeros over old contents, and nothing outside of the
// range.
func TestZerosAreRead(t *testing.T) {
	for _, name := range both {
		dev, s := open(t, name)
		p, err := dev.Alloc(1 << 20)
		require.NoError(t, err)
		b, err := dev.AllocPinned(1 << 20)
		require.NoError(t, err)
		mine := make([]byte, 100)
		require.NoError(t, dev.Register(mine))
		for _, part := range [][]byte{b[3:70], b[5 : 1<<20-9], b, b[1<<12 : 1<<19], mine[1:99]} {
			fill(b, mine)
			require.NoError(t, s.CopyD2H(part, p))
			require.Contains(t, string(part), "\x07", "the device is late")
			require.NoError(t, s.Synchronize(context.Background()))
			require.Equal(t, len(b)+len(mine)-len(part), count(b)+count(mine))
			require.Zero(t, count(part))
		}
		fill(b)
		require.NoError(t, s.Copy2D(&device.Copy2D{Width: 3, Height: 4, DstHost: b[1:], DstPitch: 10, Src: p, SrcPitch: 5}))
		require.NoError(t, dev.Synchronize(context.Background()))
		require.Equal(t, len(b)-12, count(b))
		require.Equal(t, []byte{7, 0, 0, 0, 7}, b[10:15])
		require.NoError(t, dev.Unregister(mine))
		require.NoError(t, dev.FreePinned(b))
		require.ErrorIs(t, dev.FreePinned(b), device.ErrInvalid)
		require.NoError(t, dev.Free(p))
	}
}

func fill(all ...[]byte) {
	for _, b := range all {
		for i := range b {
			b[i] = 7
		}
	}
}

func count(b []byte) int { return bytes.Count(b, []byte{7}) }

// TestLate: an event completes when the host waits for it, frees memory, or fills the queue.
func TestLate(t *testing.T) {
	ctx := context.Background()
	for _, name := range both {
		dev, s := open(t, name)
		other, err := dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		e, err := dev.NewEvent(device.EventOptions{Timed: true})
		require.NoError(t, err)
		p, err := dev.Alloc(512)
		require.NoError(t, err)
		done := func() bool {
			done, err := e.Query()
			require.NoError(t, err)
			idle, err := s.Query()
			require.NoError(t, err)
			require.Equal(t, done, idle)
			return done
		}
		for _, wait := range []func() error{
			func() error { return e.Synchronize(ctx) },
			func() error { return s.Synchronize(ctx) },
			func() error { return other.Synchronize(ctx) },
			func() error { return dev.Synchronize(ctx) },
			func() error { return dev.Free(p) },
			func() error {
				for range 1024 {
					if err := s.Record(e); err != nil || done() {
						return err
					}
				}
				return s.Synchronize(ctx)
			},
		} {
			require.True(t, done())
			require.NoError(t, s.Record(e))
			require.False(t, done())
			require.NoError(t, other.Wait(e))
			require.NoError(t, wait())
			require.True(t, done())
		}
		took, err := dev.Elapsed(e, e)
		require.NoError(t, err)
		require.Zero(t, took)
		called := make(chan error, 1)
		require.NoError(t, s.OnDone(func(err error) { called <- err }))
		require.NoError(t, <-called)
		require.NoError(t, e.Close())
		require.NoError(t, other.Close())
		require.ErrorIs(t, other.Memset(0, 0, 0), device.ErrClosed)
	}
}

// TestQueueIsBounded: a stream is at most as far behind the host as a real one.
func TestQueueIsBounded(t *testing.T) {
	dev, s := open(t, "dry:host")
	e, err := dev.NewEvent(device.EventOptions{})
	require.NoError(t, err)
	require.NoError(t, s.Record(e))
	for i := range 1024 {
		done, err := e.Query()
		require.NoError(t, err)
		require.False(t, done, i)
		require.NoError(t, s.Launch(&device.Launch{Func: func() { panic("it must not run") }}))
	}
	done, err := e.Query()
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, e.Close())
}

// TestRealStreamWaits: a stream of a real device can wait for an event of a dry one.
func TestRealStreamWaits(t *testing.T) {
	dev, s := open(t, "dry:host")
	e, err := dev.NewEvent(device.EventOptions{})
	require.NoError(t, err)
	require.NoError(t, s.Record(e))
	real, err := host.New(host.Config{Capacity: 1 << 20})
	require.NoError(t, err)
	on, err := real.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	require.NoError(t, on.Wait(e))
	require.NoError(t, on.Synchronize(context.Background()))
	theirs, err := real.NewEvent(device.EventOptions{})
	require.NoError(t, err)
	require.NoError(t, on.Record(theirs))
	require.ErrorIs(t, s.Wait(theirs), device.ErrInvalid, "each could wait for the other")
	require.NoError(t, errors.Join(theirs.Close(), e.Close()))
	require.NoError(t, real.Close())
}

// TestFreePinnedTwice: of concurrent frees of one buffer exactly one succeeds.
func TestFreePinnedTwice(t *testing.T) {
	dev, _ := open(t, "dry:host")
	for range 200 {
		b, err := dev.AllocPinned(1 << 16)
		require.NoError(t, err)
		var all sync.WaitGroup
		var freed atomic.Int64
		for range 4 {
			all.Go(func() {
				if dev.FreePinned(b) == nil {
					freed.Add(1)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, freed.Load())
	}
}

// TestCapture: a replay writes the zeros of its copies, and runs late like other operations.
func TestCapture(t *testing.T) {
	ctx := context.Background()
	for _, name := range both {
		dev, s := open(t, name)
		p, err := dev.Alloc(512)
		require.NoError(t, err)
		b, err := dev.AllocPinned(512)
		require.NoError(t, err)
		fill(b)
		c := s.(device.GraphCapturer)
		require.NoError(t, c.BeginCapture())
		require.NoError(t, s.Memset(p, 1, 512))
		require.NoError(t, s.CopyD2H(b, p))
		require.ErrorIs(t, s.Synchronize(ctx), device.ErrCapturing)
		g, err := c.EndCapture()
		require.NoError(t, err)
		require.Same(t, dev, g.Device())
		require.Equal(t, 2, g.Nodes())
		require.Error(t, dev.Free(p), "the graph has it")
		require.NoError(t, s.Synchronize(ctx))
		require.Equal(t, 512, count(b))
		for range 2 {
			fill(b)
			require.NoError(t, g.Replay(s))
			require.Equal(t, 512, count(b))
			require.NoError(t, s.Synchronize(ctx))
			require.Zero(t, count(b))
		}
		require.NoError(t, g.Replay(s))
		require.NoError(t, g.Close())
		require.NoError(t, dev.FreePinned(b))
		require.NoError(t, dev.Free(p))
	}
}

// TestOneRankOfMany: a communicator does not wait for other ranks.
func TestOneRankOfMany(t *testing.T) {
	ctx := context.Background()
	for _, name := range both {
		dev, s := open(t, name)
		all := dev.(device.Collectives)
		id, err := all.NewCommunicatorID()
		require.NoError(t, err)
		comm, err := all.NewCommunicator(ctx, id, 3, 8, device.CommunicatorOptions{})
		require.NoError(t, err)
		require.Same(t, dev, comm.Device())
		p, err := dev.Alloc(8 << 20)
		require.NoError(t, err)
		require.NoError(t, comm.AllReduce(s, p, p, 1<<20, device.Float32, device.ReduceAvg))
		require.ErrorIs(t, comm.AllGather(s, p, p, 1<<20, device.Float32), device.ErrInvalid, "8 ranks have 32 MiB")
		require.NoError(t, s.Synchronize(ctx))
		require.NoError(t, comm.AsyncError())
		require.NoError(t, comm.Close())
		require.NoError(t, dev.Free(p))
	}
}

func TestGPUs(t *testing.T) {
	for _, c := range []struct {
		name      string
		workspace int64
		bfloat16  bool
		refuses   string
		total     int64
	}{
		{"dry:cuda", 32 << 20, true, "100", 81089 << 20},
		{"dry:cuda?gpu=A100-40GB", 4 << 20, true, "90", 40339 << 20},
		{"dry:cuda?gpu=T4", 4 << 20, false, "80", 15102 << 20},
		{"dry:cuda?capability=7.5&capacity=3MiB", 4 << 20, false, "80", 3 << 20},
	} {
		dev, s := open(t, c.name)
		blas := dev.(device.MatrixMultiplier)
		n, err := blas.MatMulWorkspace()
		require.NoError(t, err)
		require.Equal(t, c.workspace, n, c.name)
		require.Equal(t, c.bfloat16, blas.MatMulBFloat16(), c.name)
		require.Equal(t, c.total, dev.Properties().TotalMemory, c.name)
		loader := dev.(device.ModuleLoader)
		_, err = loader.LoadModule([]byte("//\n.target sm_70\n"))
		require.NoError(t, err)
		_, err = loader.LoadModule([]byte("//\n.target sm_" + c.refuses + "\n"))
		require.ErrorIs(t, err, device.ErrInvalid, c.name)
		_, err = loader.LoadModule([]byte("\x50\xed\x55\xba\x01"))
		require.ErrorIs(t, err, device.ErrUnsupported, c.name)
		require.True(t, blas.MatMulEpilogues())
		require.NoError(t, blas.MatMul(s, &device.Gemm{M: 1, N: 1, K: 1}))
		require.ErrorIs(t, blas.MatMul(nil, &device.Gemm{}), device.ErrInvalid)
		require.ErrorIs(t, blas.MatMul(s, nil), device.ErrInvalid)
		require.ErrorIs(t, s.Launch(&device.Launch{}), device.ErrInvalid)
	}
	dev, s := open(t, "dry:cuda?cublas=none")
	blas := dev.(device.MatrixMultiplier)
	_, err := blas.MatMulWorkspace()
	require.ErrorIs(t, err, device.ErrUnsupported)
	require.ErrorIs(t, blas.MatMul(s, &device.Gemm{M: 1, N: 1, K: 1}), device.ErrUnsupported)
	require.False(t, blas.MatMulEpilogues() || blas.MatMulBFloat16())
}

// TestAddressesOfGPU: reservations may exceed its memory, unlike on a host device.
func TestAddressesOfGPU(t *testing.T) {
	for name, all := range map[string]bool{"dry:cuda?capacity=1GiB": true, "dry:host?capacity=1GiB": false} {
		dev, _ := open(t, name)
		v := dev.(device.VirtualMemory)
		var ranges []device.Ptr
		for range 5 {
			p, err := v.Reserve(1 << 30)
			if err != nil {
				require.ErrorIs(t, err, device.ErrOutOfMemory)
				break
			}
			ranges = append(ranges, p)
		}
		require.Equal(t, all, len(ranges) == 5, name)
		for _, p := range ranges {
			require.NoError(t, v.Unreserve(p))
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, says := range map[string]string{
		"dry":                                   "dry:cuda?gpu=H100",
		"dry:cuda:0":                            "dry:cuda?gpu=H100",
		"dry:host?gpu=T4":                       "dry:host has the options capacity",
		"dry:cuda?gpu=T5":                       "A100, A100-40GB, H100, H200, L4, RTX4090, T4",
		"dry:cuda?gpu=T4&gpu=L4":                "2 times",
		"dry:cuda?capability=6.1":               "7.0",
		"dry:cuda?capability=9":                 "9.0",
		"dry:cuda?cublas=/lib":                  "the only value is none",
		"dry:cuda?capacity=0":                   "capacity=\"0\"",
		"dry:host?capacity=9007199254740992000": "largest",
	} {
		_, err := device.Open(name)
		require.ErrorIs(t, err, device.ErrInvalid, name)
		require.ErrorContains(t, err, says, name)
	}
}

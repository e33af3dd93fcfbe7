package compose

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/transfer"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

// machine is a device with the runtime of a training. Trials that succeed leave it unchanged.
type machine struct {
	dev    device.Device
	cache  *memcache.Cache
	pool   *transfer.Pool
	stream device.Stream
	rt     *tensor.Runtime
	held   *held

	launched func() // is called before each launch of the stream's
}

// newMachines are two ranks, or one machine on the device that CISTERN_TEST_DEVICE names.
func newMachines(t testing.TB, cfg memcache.Config) []*machine {
	t.Helper()
	if cisterntest.Named() != "" {
		return []*machine{newMachine(t, cisterntest.Open(t, 0), cfg)}
	}
	return []*machine{newMachine(t, cisterntest.OpenRank(t, 0, 16<<20), cfg), newMachine(t, cisterntest.OpenRank(t, 1, 16<<20), cfg)}
}

// hostMachines are two ranks on host devices, which fail on demand.
func hostMachines(t testing.TB, cfg memcache.Config) []*machine {
	t.Helper()
	return []*machine{newMachine(t, cisterntest.Host(t, 16<<20), cfg), newMachine(t, cisterntest.Host(t, 16<<20), cfg)}
}

func newMachine(t testing.TB, dev device.Device, cfg memcache.Config) *machine {
	t.Helper()
	m := &machine{dev: dev, launched: func() {}, held: &held{blocks: map[uint64]int64{}}}
	cfg.Observer = m.held
	var err error
	m.cache, err = memcache.New(m.dev, cfg)
	require.NoError(t, err)
	m.pool, err = transfer.New(m.dev, transfer.Config{})
	require.NoError(t, err)
	m.stream, err = m.dev.NewStream(device.StreamOptions{Launching: func(device.Stream, string) func(error) { m.launched(); return nil }})
	require.NoError(t, err)
	m.rt, err = tensor.NewRuntime(m.cache, m.pool, m.stream)
	require.NoError(t, err)
	return m
}

// left returns an error if a training has leaked.
func (m *machine) left() error {
	var errs []error
	if n, bytes := m.rt.Live(); n != 0 {
		errs = append(errs, fmt.Errorf("%d tensors of %d bytes are left", n, bytes))
	}
	if n := m.pool.Stats().ActiveRequests.Current; n != 0 {
		errs = append(errs, fmt.Errorf("%d pinned buffers are left", n))
	}
	return errors.Join(errs...)
}

// close closes the machine, and returns an error for leaks. A device with a sticky error returns
// that error from each of these calls.
func (m *machine) close(sticky bool) error {
	err := m.left()
	closing := m.rt.Close()
	if n := m.cache.Stats().Allocation.All.Current; n != 0 {
		err = errors.Join(err, fmt.Errorf("%d blocks are left", n))
	}
	closing = errors.Join(closing, m.stream.Close(), m.pool.Close(), m.cache.Close(), m.dev.Close())
	if sticky && errors.Is(closing, device.ErrSticky) {
		closing = nil
	}
	return errors.Join(err, closing)
}

// together runs f on machines at a time, as ranks of one communicator; a machine alone has none.
func together(machines []*machine, f func(i int, comm device.Communicator) error) error {
	if len(machines) == 1 {
		return f(0, nil)
	}
	id, err := machines[0].dev.(device.Collectives).NewCommunicatorID()
	if err != nil {
		return err
	}
	errs := make([]error, len(machines))
	var wait sync.WaitGroup
	for n, m := range machines {
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			comm, err := m.dev.(device.Collectives).NewCommunicator(ctx, id, n, len(machines), device.CommunicatorOptions{Timeout: time.Minute, Overlapped: true})
			if err == nil {
				err = f(n, comm)
				_ = comm.Close() // the training returns its error
			}
			errs[n] = err
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

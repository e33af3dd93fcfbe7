package host

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

func brief(f func()) *device.Launch { return &device.Launch{Name: "brief", Func: f, Brief: true} }

// startedStream returns a stream of a new device, whose worker has been started.
func startedStream(t *testing.T) (*Device, *stream) {
	d := deviceOf(t)
	s := streamOf(t, d).(*stream)
	require.NoError(t, s.Launch(&device.Launch{Func: func() {}}))
	require.NoError(t, s.Synchronize(t.Context()))
	return d, s
}

// TestBriefLaunches: a brief launch is done when Launch returns if the stream is idle; otherwise it
// waits for its turn.
func TestBriefLaunches(t *testing.T) {
	_, s := startedStream(t)
	ran := 0
	for range 100 {
		require.NoError(t, s.Launch(brief(func() { ran++ })))
		if !race.Enabled {
			done, err := s.Query()
			require.NoError(t, err)
			require.True(t, done)
		}
	}
	require.NoError(t, s.Synchronize(t.Context()))
	require.Equal(t, 100, ran)
	if !race.Enabled {
		require.EqualValues(t, 101, s.queue.done.Load())
	}

	hold := make(chan struct{})
	require.NoError(t, s.Launch(&device.Launch{Func: func() { <-hold; ran *= 2 }}))
	require.NoError(t, s.Launch(brief(func() { ran++ })))
	done, err := s.Query()
	require.NoError(t, err)
	require.False(t, done)
	close(hold)
	require.NoError(t, s.Synchronize(t.Context()))
	require.Equal(t, 201, ran)
}

// TestFirstLaunchIsTheWorkers: the worker runs a stream's first launch, even if it is brief.
func TestFirstLaunchIsTheWorkers(t *testing.T) {
	s := streamOf(t, deviceOf(t)).(*stream)
	begun, hold := make(chan struct{}), make(chan struct{})
	require.NoError(t, s.Launch(brief(func() { close(begun); <-hold })))
	<-begun
	close(hold)
	require.NoError(t, s.Synchronize(t.Context()))
}

// TestBriefLaunchesConcurrentSafe: however many goroutines launch, copy, record and wait, a stream
// runs one operation at a time, in an order that is consistent for each goroutine.
func TestBriefLaunchesConcurrentSafe(t *testing.T) {
	_, s := startedStream(t)
	var inside, total atomic.Int64
	sum := 0 // of the stream
	const goroutines, launches = 4, 5000
	var group sync.WaitGroup
	for g := range goroutines {
		group.Go(func() {
			r := rand.New(rand.NewPCG(9, uint64(g)))
			mine, last := 0, 0
			for i := range launches {
				l := brief(func() {
					if inside.Add(1) != 1 {
						t.Error("two at once")
					}
					sum++
					mine++
					if mine != i+1 {
						t.Errorf("launch %d of goroutine %d ran as number %d", i, g, mine)
					}
					inside.Add(-1)
					total.Add(1)
				})
				l.Brief = r.IntN(4) > 0
				assert.NoError(t, s.Launch(l))
				switch r.IntN(20) {
				case 0:
					assert.NoError(t, s.Synchronize(t.Context()))
					if n := int(total.Load()); n < last+1 {
						t.Errorf("%d launches after %d and one more", n, last)
					} else {
						last = n
					}
				case 1:
					runtime.Gosched()
				}
			}
		})
	}
	group.Wait()
	require.NoError(t, s.Synchronize(t.Context()))
	require.Equal(t, goroutines*launches, sum)
}

// TestCloseWaitsForABriefLaunch: Close and later operations wait for a brief launch that another
// goroutine runs.
func TestCloseWaitsForABriefLaunch(t *testing.T) {
	for range 20 {
		_, s := startedStream(t)
		begun, hold, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var ended, after atomic.Bool
		go func() {
			defer close(left)
			assert.NoError(t, s.Launch(brief(func() { close(begun); <-hold; ended.Store(true) })))
		}()
		<-begun
		require.NoError(t, s.Launch(&device.Launch{Func: func() { after.Store(ended.Load()) }}))
		go func() {
			time.Sleep(time.Millisecond)
			close(hold)
		}()
		require.NoError(t, s.Close())
		require.True(t, ended.Load())
		require.True(t, after.Load())
		<-left
	}
	_, s := startedStream(t)
	begun, hold, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var ended atomic.Bool
	go func() {
		defer close(left)
		assert.NoError(t, s.Launch(brief(func() { close(begun); <-hold; ended.Store(true) })))
	}()
	<-begun
	go func() {
		time.Sleep(5 * time.Millisecond)
		close(hold)
	}()
	require.NoError(t, s.Close())
	require.True(t, ended.Load(), "with nothing behind it")
	<-left
}

// TestBriefKernelsThatDontReturn: a brief kernel that panics or ends its goroutine becomes the
// device's error, and the stream continues.
func TestBriefKernelsThatDontReturn(t *testing.T) {
	for want, kernel := range map[string]func(){"the kernel panicked: boom": func() { panic("boom") }, "the kernel called runtime.Goexit": runtime.Goexit} {
		d, err := New(Config{Capacity: 1 << 20})
		require.NoError(t, err)
		s := streamOf(t, d)
		require.NoError(t, s.Launch(&device.Launch{Func: func() {}}))
		require.NoError(t, s.Synchronize(t.Context()))
		done := make(chan struct{})
		go func() {
			defer close(done)
			assert.NoError(t, s.Launch(brief(kernel)))
		}()
		<-done
		require.ErrorContains(t, s.Synchronize(t.Context()), want)
		require.ErrorIs(t, s.Launch(brief(func() { t.Error("it ran") })), device.ErrSticky)
		require.ErrorIs(t, s.Close(), device.ErrSticky)
		require.ErrorIs(t, d.Close(), device.ErrSticky)
	}
}

// TestBriefLaunchesHoldTheirMemory: the memory of a brief launch can be freed when the launch is
// over. A launch that names a range that is not live is refused, and the queue stays usable.
func TestBriefLaunchesHoldTheirMemory(t *testing.T) {
	d, s := startedStream(t)
	p, err := d.Alloc(1 << 10)
	require.NoError(t, err)
	l := brief(func() {})
	l.Writes = []device.Range{{Ptr: p, Bytes: 1 << 10}}
	for range 10 {
		require.NoError(t, s.Launch(l))
	}
	require.NoError(t, s.Synchronize(t.Context()))
	require.NoError(t, d.Free(p))
	require.ErrorIs(t, s.Launch(l), device.ErrInvalid)
	done, err := s.Query()
	require.NoError(t, err)
	require.True(t, done, "the refused launch has ended")
}

// TestBusyTimeOfBriefLaunches: the time of brief launches is busy time, on whichever goroutine they
// run.
func TestBusyTimeOfBriefLaunches(t *testing.T) {
	d, s := startedStream(t)
	from, to := timedEvent(t, d), timedEvent(t, d)
	require.NoError(t, s.Record(from))
	require.NoError(t, s.Synchronize(t.Context()))
	var worked time.Duration
	for range 5 {
		require.NoError(t, s.Launch(brief(func() {
			began := time.Now()
			time.Sleep(time.Millisecond)
			worked += time.Since(began)
		})))
		time.Sleep(time.Millisecond)
	}
	require.NoError(t, s.Record(to))
	require.NoError(t, s.Synchronize(t.Context()))
	busy, err := d.BusyTime(from, to)
	require.NoError(t, err)
	all, err := d.Elapsed(from, to)
	require.NoError(t, err)
	require.GreaterOrEqual(t, busy, worked)
	if !race.Enabled {
		require.GreaterOrEqual(t, all-busy, 4*time.Millisecond)
	}
}

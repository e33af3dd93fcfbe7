package devicetest

import (
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var onDoneTests = []test{
	{"runs once, with nil, when the work before it is done", func(f *fixture) {
		const n = 256
		s, p, host := f.stream(), f.alloc(n), f.pinned(n)
		release := f.block(s)
		f.fill(s, p, n, 6)
		require.NoError(f, s.CopyD2H(host, p))
		var runs atomic.Int32
		seen := make(chan []byte, 2)
		require.NoError(f, s.OnDone(func(err error) {
			runs.Add(1)
			if err == nil {
				seen <- append([]byte(nil), host...)
			}
		}))
		require.Zero(f, runs.Load())
		release()
		f.same(filled(n, 6), <-seen)
		f.synchronize(s)
		require.EqualValues(f, 1, runs.Load())
	}},
	{"doesn't block the stream", func(f *fixture) {
		s, p := f.stream(), f.alloc(64)
		stop, stopped := make(chan struct{}), make(chan struct{})
		require.NoError(f, s.OnDone(func(error) { <-stop; close(stopped) }))
		f.fill(s, p, 64, 5)
		f.same(filled(64, 5), f.read(s, p, 64))
		close(stop)
		<-stopped
	}},
	{"runs one at a time, in the stream's order", func(f *fixture) {
		a, b := f.stream(), f.stream()
		var mu sync.Mutex
		var order []int
		var running, most int
		var all sync.WaitGroup
		for i := range 200 {
			s := a
			if i%2 == 1 {
				s = b
			}
			all.Add(1)
			require.NoError(f, s.OnDone(func(error) {
				defer all.Done()
				mu.Lock()
				running++
				most = max(most, running)
				order = append(order, i)
				mu.Unlock()
				mu.Lock()
				running--
				mu.Unlock()
			}))
		}
		all.Wait()
		require.Equal(f, 1, most)
		last := [2]int{-1, -1}
		for _, i := range order {
			require.Greater(f, i, last[i%2])
			last[i%2] = i
		}
		require.Len(f, order, 200)
	}},
	{"may queue more", func(f *fixture) {
		s, p := f.stream(), f.alloc(64)
		done := make(chan error, 1)
		launch := f.Fill(f, f.dev, p, 64, 8)
		require.NoError(f, s.OnDone(func(error) { done <- s.Launch(launch) }))
		require.NoError(f, <-done)
		f.same(filled(64, 8), f.read(s, p, 64))
	}},
	{"nil is refused", func(f *fixture) {
		f.refused(f.stream().OnDone(nil), device.ErrInvalid)
	}},
	{"the device's Close waits for pending callbacks", func(f *fixture) {
		s := f.stream()
		gate := make(chan struct{})
		runs := 0
		require.NoError(f, s.OnDone(func(error) { <-gate }))
		var mu sync.Mutex
		for range 100 {
			require.NoError(f, s.OnDone(func(error) {
				mu.Lock()
				runs++
				mu.Unlock()
			}))
		}
		f.stuck = true
		f.waits(func() { close(gate) }, func() { require.NoError(f, f.dev.Close()) })
		mu.Lock()
		defer mu.Unlock()
		require.Equal(f, 100, runs)
	}},
}

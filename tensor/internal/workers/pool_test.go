package workers

import (
	"bytes"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/stretchr/testify/require"
)

// wishes returns the number of tasks that want workers.
func wishes() int {
	idle.mu.Lock()
	defer idle.mu.Unlock()
	return len(idle.wanting)
}

// newPool waits until earlier tests' workers have stopped, and sets the number of processors for
// the test.
func newPool(t *testing.T, procs int) {
	t.Helper()
	if race.Enabled {
		t.Skip("in race builds each job has goroutines of its own")
	}
	require.Eventually(t, func() bool {
		idle.mu.Lock()
		defer idle.mu.Unlock()
		return idle.started == 0
	}, 10*time.Second, time.Millisecond)
	before := runtime.GOMAXPROCS(procs)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// occupy runs a job with a unit for each processor, all of which run until they are released one by
// one. wait waits for the end of the job.
func occupy(t *testing.T, procs int) (release, wait func()) {
	c, leave := newCounting(procs), make(chan struct{})
	var inside, all sync.WaitGroup
	inside.Add(procs)
	c.slow = func(int, int) { inside.Done(); <-leave }
	all.Go(func() { Do(c, 1, procs-1) })
	inside.Wait()
	return func() { leave <- struct{}{} }, func() { all.Wait(); c.check(t) }
}

// pair returns a job of two units that run at the same time.
func pair() *counting {
	c := newCounting(2)
	var begun atomic.Int32
	c.slow = func(int, int) {
		begun.Add(1)
		await(c, func() bool { return begun.Load() >= 2 })
	}
	return c
}

// await lets a unit of c wait for a condition; c fails if that takes 10 s.
func await(c *counting, ok func() bool) {
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Microsecond) {
		if time.Now().After(end) {
			c.early.Store(true)
			return
		}
	}
}

// TestWorkersAreNoMoreThanProcessors: short jobs in a row start no worker in place of one that is
// about to become idle.
func TestWorkersAreNoMoreThanProcessors(t *testing.T) {
	const procs = 4
	newPool(t, procs)
	for range 2000 {
		c := newCounting(64)
		c.slow = func(int, int) { time.Sleep(time.Nanosecond) }
		Do(c, 1, procs-1)
	}
	idle.mu.Lock()
	defer idle.mu.Unlock()
	require.Less(t, idle.started, procs)
}

// TestAWorkerJoinsAJobLater: a job that found the only worker busy gets it when that is idle.
func TestAWorkerJoinsAJobLater(t *testing.T) {
	newPool(t, 2)
	release, wait := occupy(t, 2)
	c := pair()
	var all sync.WaitGroup
	all.Go(func() { Do(c, 1, 1) })
	require.Eventually(t, func() bool { return wishes() == 1 }, 10*time.Second, time.Millisecond)
	release()
	release()
	all.Wait()
	wait()
	c.check(t)
	require.Zero(t, wishes())
}

// TestAJobGetsNoMoreWorkersThanItWants, though three become idle.
func TestAJobGetsNoMoreWorkersThanItWants(t *testing.T) {
	newPool(t, 4)
	release, wait := occupy(t, 4)
	c := newCounting(20)
	var running, most atomic.Int32
	c.slow = func(int, int) {
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		await(c, func() bool { return most.Load() >= 2 })
		time.Sleep(time.Millisecond)
		running.Add(-1)
	}
	var all sync.WaitGroup
	all.Go(func() { Do(c, 1, 1) })
	require.Eventually(t, func() bool { return wishes() == 1 }, 10*time.Second, time.Millisecond)
	for range 4 {
		release()
	}
	all.Wait()
	wait()
	c.check(t)
	require.EqualValues(t, 2, most.Load())
}

// TestAWorkerWithoutUnitsIsIdle: a worker does not wait for the last units of its job. Of three
// goroutines one is still busy, so at least one of two workers can join another job.
func TestAWorkerWithoutUnitsIsIdle(t *testing.T) {
	newPool(t, 3)
	release, wait := occupy(t, 3)
	release()
	release()
	c := pair()
	Do(c, 1, 2)
	c.check(t)
	release()
	wait()
}

// TestAUnitThatPanics ends its job: no unit begins afterwards, and those of others have ended.
func TestAUnitThatPanics(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	c := newCounting(10, 10)
	var begun, ended atomic.Int32
	var panics atomic.Bool
	c.slow = func(int, int) {
		begun.Add(1)
		if bytes.Contains(debug.Stack(), []byte("workers.Do(")) {
			panics.Store(true)
			await(c, func() bool { return begun.Load() >= 2 })
			panic("a unit")
		}
		await(c, panics.Load)
		time.Sleep(20 * time.Millisecond)
		ended.Add(1)
	}
	require.PanicsWithValue(t, "a unit", func() { Do(c, 2, 1) })
	require.EqualValues(t, 2, begun.Load())
	require.EqualValues(t, 1, ended.Load())
	require.False(t, c.early.Load())
}

// TestAJobThatPanickedWantsNoWorker: the next job gets it.
func TestAJobThatPanickedWantsNoWorker(t *testing.T) {
	newPool(t, 2)
	release, wait := occupy(t, 2)
	c := newCounting(10)
	c.slow = func(int, int) { panic("a unit") }
	require.PanicsWithValue(t, "a unit", func() { Do(c, 1, 1) })
	require.Zero(t, wishes())
	release()
	release()
	wait()
	next := pair()
	Do(next, 1, 1)
	next.check(t)
}

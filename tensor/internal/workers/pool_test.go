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

// newPool waits until earlier tests' workers have stopped, and sets the number of processors for
// the test.
func newPool(t *testing.T, procs int) {
	t.Helper()
	if race.Enabled {
		t.Skip("in race builds each job has goroutines of its own")
	}
	require.Eventually(t, func() bool {
		shared.mu.Lock()
		defer shared.mu.Unlock()
		return shared.started == 0
	}, 10*time.Second, time.Millisecond)
	before := runtime.GOMAXPROCS(procs)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// requireNoTasks fails if a task is still in the pool.
func requireNoTasks(t *testing.T) {
	t.Helper()
	for i := range shared.slots {
		require.Nil(t, shared.slots[i].Load())
	}
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
	shared.mu.Lock()
	defer shared.mu.Unlock()
	require.Less(t, shared.started, procs)
}

// TestAWorkerJoinsAJobLater: a job that found the only worker busy gets it when that is idle.
func TestAWorkerJoinsAJobLater(t *testing.T) {
	newPool(t, 2)
	release, wait := occupy(t, 2)
	c := pair()
	var all sync.WaitGroup
	all.Go(func() { Do(c, 1, 1) })
	require.Eventually(t, shared.wants, 10*time.Second, time.Millisecond)
	release()
	release()
	all.Wait()
	wait()
	c.check(t)
	requireNoTasks(t)
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
	require.Eventually(t, shared.wants, 10*time.Second, time.Millisecond)
	for range 4 {
		release()
	}
	all.Wait()
	wait()
	c.check(t)
	require.EqualValues(t, 2, most.Load())
}

// TestAWorkerWithoutUnitsIsIdle: workers do not wait for the last units of their job, nor enter it
// again. While its own goroutine is busy, both workers can join another job.
func TestAWorkerWithoutUnitsIsIdle(t *testing.T) {
	newPool(t, 3)
	c, leave := newCounting(3), make(chan struct{})
	var begun atomic.Int32
	c.slow = func(int, int) {
		begun.Add(1)
		await(c, func() bool { return begun.Load() == 3 })
		if bytes.Contains(debug.Stack(), []byte("workers.Do(")) {
			<-leave
		}
	}
	var all sync.WaitGroup
	all.Go(func() { Do(c, 1, 2) })
	require.Eventually(t, func() bool { return c.done[0].Load() == 2 }, 10*time.Second, time.Microsecond)
	next := newCounting(3)
	var together atomic.Int32
	next.slow = func(int, int) {
		together.Add(1)
		await(next, func() bool { return together.Load() == 3 })
	}
	Do(next, 1, 2)
	next.check(t)
	close(leave)
	all.Wait()
	c.check(t)
	requireNoTasks(t)
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
	release()
	release()
	wait()
	requireNoTasks(t)
	next := pair()
	Do(next, 1, 1)
	next.check(t)
}

// TestNoWorkerOversleeps: between jobs that need a worker there is more or less time than it polls,
// so that some are offered while it falls asleep.
func TestNoWorkerOversleeps(t *testing.T) {
	newPool(t, 2)
	for i := range 1000 {
		c := pair()
		Do(c, 1, 1)
		c.check(t)
		if t.Failed() {
			return
		}
		for pause := time.Now(); time.Since(pause) < spinTime*time.Duration(i%100)/50; {
			runtime.Gosched()
		}
	}
}

// TestMoreJobsThanSlots: those without a slot are run by their own goroutines, and the others keep
// theirs.
func TestMoreJobsThanSlots(t *testing.T) {
	newPool(t, 4)
	callers := 2 * len(shared.slots)
	var begun, all sync.WaitGroup
	begun.Add(callers)
	seen := make(map[*task]bool)
	look := sync.OnceFunc(func() {
		for i := range shared.slots {
			seen[shared.slots[i].Load()] = true
		}
	})
	for range callers {
		all.Go(func() {
			c := newCounting(2, 3)
			hold := sync.OnceFunc(func() { begun.Done(); begun.Wait(); look() })
			c.slow = func(int, int) { hold() }
			Do(c, 2, 3)
			c.check(t)
		})
	}
	all.Wait()
	require.Len(t, seen, len(shared.slots))
	require.NotContains(t, seen, (*task)(nil))
	requireNoTasks(t)
}

// TestAWorkerLooksBeforeItSleeps: a task that was offered while a worker was neither polling nor
// asleep keeps it from sleeping.
func TestAWorkerLooksBeforeItSleeps(t *testing.T) {
	var p pool
	task := takeTask()
	task.begin(newCounting(1), 1, 1)
	at := p.claim(task)
	require.NotNil(t, at)
	w := &worker{wake: make(chan struct{}, 1)}
	woken := make(chan bool, 1)
	go func() { woken <- w.wait(&p) }()
	select {
	case ok := <-woken:
		require.True(t, ok)
	case <-time.After(10 * time.Second):
		close(w.wake)
		t.Fatal("the worker sleeps")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Empty(t, p.asleep)
	got, from := p.join()
	require.Same(t, task, got)
	require.Same(t, at, from)
}

// TestPollingWorkersServeOneTask: of two tasks with a vacancy each, the first is for the worker that
// polls, and the second wakes the one that sleeps.
func TestPollingWorkersServeOneTask(t *testing.T) {
	var p pool
	p.polling.Store(1)
	w := &worker{wake: make(chan struct{}, 1)}
	p.asleep = append(p.asleep, w)
	for sleeping := 1; sleeping >= 0; sleeping-- {
		task := takeTask()
		task.begin(newCounting(1), 1, 1)
		require.NotNil(t, p.offer(task, 0))
		require.Len(t, p.asleep, sleeping)
	}
	require.Len(t, w.wake, 1)
}

// TestTasksKeepTheirSlots: a full pool takes no task, and only its own slot is free after a task is
// withdrawn.
func TestTasksKeepTheirSlots(t *testing.T) {
	var p pool
	var first *slot
	for range p.slots {
		task := takeTask()
		at := p.claim(task)
		require.Same(t, task, at.Load())
		if first == nil {
			first = at
		}
	}
	last, held := takeTask(), first.Load()
	none := p.claim(last)
	require.Nil(t, none)
	none.withdraw(last)
	first.withdraw(last)
	require.Same(t, held, first.Load())
	first.withdraw(held)
	require.Same(t, first, p.claim(last))
	first.withdraw(held)
	require.Same(t, last, first.Load())
}

// TestWorkersStopAfterTwoTicks in which no task came.
func TestWorkersStopAfterTwoTicks(t *testing.T) {
	p := pool{tick: 5, started: 2, ticking: true, timer: time.NewTimer(time.Hour)}
	defer p.timer.Stop()
	w := &worker{wake: make(chan struct{}, 1)}
	p.sleep(w)
	p.reap()
	require.Len(t, p.asleep, 1)
	p.sleep(&worker{})
	p.reap()
	_, ok := <-w.wake
	require.False(t, ok)
	require.Len(t, p.asleep, 1)
	require.Equal(t, 1, p.started)
	require.True(t, p.ticking)
}

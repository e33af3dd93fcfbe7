package workers

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// counting is a job that counts its units, and records whether a phase began before the end of the
// one before it.
type counting struct {
	units []int
	done  []atomic.Int32 // of each phase
	seen  [][]atomic.Int32
	early atomic.Bool
	slow  func(phase, unit int)
}

func newCounting(units ...int) *counting {
	c := &counting{units: units, done: make([]atomic.Int32, len(units))}
	for _, n := range units {
		c.seen = append(c.seen, make([]atomic.Int32, n))
	}
	return c
}

func (c *counting) Units(phase int) int { return c.units[phase] }

func (c *counting) Run(phase, unit int) {
	for i := range phase {
		if int(c.done[i].Load()) != c.units[i] {
			c.early.Store(true)
		}
	}
	if c.slow != nil {
		c.slow(phase, unit)
	}
	c.seen[phase][unit].Add(1)
	c.done[phase].Add(1)
}

func (c *counting) check(t *testing.T) {
	t.Helper()
	require.False(t, c.early.Load(), "a phase began before the one before it was over")
	for phase := range c.seen {
		for unit := range c.seen[phase] {
			require.EqualValues(t, 1, c.seen[phase][unit].Load(), "phase %d, unit %d of %v", phase, unit, c.units)
		}
	}
}

func TestEveryUnitIsDoneOnceInItsPhase(t *testing.T) {
	for _, procs := range []int{1, 2, 4, 8} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		for _, units := range [][]int{{0}, {1}, {5}, {100}, {3, 0, 4}, {0, 0, 2, 1}, {7, 1, 0}, {1, 30, 1, 30}} {
			for range 50 {
				c := newCounting(units...)
				Do(c, len(units), 7)
				c.check(t)
			}
		}
	}
}

// TestWaitingForAPhase: slow units make the other goroutines sleep until the phase ends.
func TestWaitingForAPhase(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	c := newCounting(4, 4, 4)
	c.slow = func(_, unit int) {
		if unit == 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	Do(c, 3, 3)
	c.check(t)
}

// TestDoWaitsForUnitsOfOthers: of two concurrent units one takes longer. Mostly it is the one that
// begins last, which is the worker's.
func TestDoWaitsForUnitsOfOthers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	for range 20 {
		c := newCounting(2)
		var begun, over atomic.Int32
		c.slow = func(int, int) {
			begun.Add(1)
			for begun.Load() < 2 {
				runtime.Gosched()
			}
			if over.Add(1) == 1 {
				time.Sleep(2 * time.Millisecond)
			}
		}
		Do(c, 1, 1)
		c.check(t)
	}
}

// TestACallerNeedsNobody: while one job occupies all workers, the caller of another runs it alone.
func TestACallerNeedsNobody(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	held, leave := newCounting(2), make(chan struct{})
	var inside sync.WaitGroup
	inside.Add(2)
	held.slow = func(int, int) { inside.Done(); <-leave }
	var all sync.WaitGroup
	all.Go(func() { Do(held, 1, 1) })
	inside.Wait()
	for range 20 {
		c := newCounting(10, 10)
		Do(c, 2, 1)
		c.check(t)
	}
	close(leave)
	all.Wait()
	held.check(t)
	requireNoTasks(t)
}

// TestManyCallers runs jobs from many goroutines at once, and from jobs' own units.
func TestManyCallers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				c := newCounting(3, 5)
				c.slow = func(phase, unit int) {
					if phase == 1 && unit == 2 {
						inner := newCounting(4)
						Do(inner, 1, 3)
						if inner.done[0].Load() != 4 {
							c.early.Store(true)
						}
					}
				}
				Do(c, 2, 3)
				c.check(t)
			}
		})
	}
	all.Wait()
}

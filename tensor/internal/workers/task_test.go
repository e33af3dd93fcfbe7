package workers

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWorkersThatCompete for a vacancy: one enters, and the others leave no trace.
func TestWorkersThatCompete(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	task := takeTask()
	task.begin(newCounting(1), 1, 1)
	var inside, most atomic.Int32
	var begun, all sync.WaitGroup
	begun.Add(4)
	for range 4 {
		all.Go(func() {
			begun.Done()
			begun.Wait()
			for range 200000 {
				if !task.enter() {
					continue
				}
				most.Store(max(most.Load(), inside.Add(1)))
				inside.Add(-1)
				task.leave()
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, most.Load())
	require.EqualValues(t, 1, task.vacancies.Load())
}

// TestALateWorker tries to enter a task while it ends and begins again.
func TestALateWorker(t *testing.T) {
	task := takeTask()
	for range 2 {
		task.begin(newCounting(1), 1, 1)
		require.True(t, task.enter())
		task.take()
		task.leave()
		task.finish()
		require.False(t, task.enter())
		task.vacancies.Add(-1) // the first half of enter
		task.begin(newCounting(1), 1, 1)
		require.False(t, task.enter())
		task.leave()
		require.EqualValues(t, 1, task.vacancies.Load())
		task.take()
		task.finish()
	}
}

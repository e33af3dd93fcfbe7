package failtest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Trial is one use of an operation, on its own machine.
type Trial struct {
	// Do is the operation. If it returns an error, it has changed nothing that See shows.
	Do func(ctx context.Context) error
	// See returns the operation's effect for a caller: values, states, counts. nil: nothing.
	See func() any
	// Undo frees what Do has made. nil: nothing.
	Undo func() error
	// Left checks the changes of a Do that returned err, if the row is Partly done. before is See's
	// result before it. Do is not called again then.
	Left func(before any, err error) error
}

// Row is a small program.
type Row[M any] struct {
	// Of lists the exported operations that the program tests, such as "Cache.Alloc Block.Free".
	Of string
	// Make prepares the trial, without failures.
	Make func(t testing.TB, m M) Trial
	// Tolerates lists kinds of failures after which the operation may succeed, or return an error
	// with another cause, with the reason.
	Tolerates map[Kind]string
	// Partly lists kinds of failures that may leave a part done, as the operation's documentation
	// allows, with the reason.
	Partly map[Kind]string
	// Ends lists driver calls whose failure the operation cannot undo, with the reason. See may
	// then show a part, and the operation is not repeated. The error still names the cause, and
	// nothing leaks.
	Ends map[string]string
}

// Suite has the rows of a package.
type Suite[M any] struct {
	// Open makes a machine whose calls fail according to faults. The test's clean-up closes it, and
	// finds leaks.
	Open func(t testing.TB, faults *Faults) M
	// Live returns what is live on a machine: blocks, bytes, events, handles. It must be the same
	// before and after a trial.
	Live func(m M) any
	Rows []Row[M]
	// Bubble runs each trial in a bubble of package synctest, where waiting takes no time and a
	// program that hangs panics.
	Bubble bool
}

// within wraps the test of one trial.
func (s Suite[M]) within(trial func(t *testing.T)) func(t *testing.T) {
	if s.Bubble {
		return func(t *testing.T) { synctest.Test(t, trial) }
	}
	return trial
}

// sample is the number of calls of a kind that fail in a trial with -short.
const sample = 3

// Run runs each row without a failure, and then with failures: of each call in turn or, with
// -short, of a few calls drawn by a seed. CISTERN_FAIL_SEED repeats a run.
func (s Suite[M]) Run(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("CISTERN_FAIL_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		seed = n
	}
	for _, row := range s.Rows {
		t.Run(row.Of, func(t *testing.T) {
			calls, want := s.truth(t, row)
			h := fnv.New64()
			fmt.Fprint(h, row.Of)
			random := rand.New(rand.NewPCG(seed, h.Sum64()))
			for kind := range kinds {
				for _, k := range chosen(random, calls[kind]) {
					if !t.Run(fmt.Sprintf("%v/%d", kind, k), s.within(func(t *testing.T) { s.fail(t, row, kind, k, want) })) {
						t.Logf("CISTERN_FAIL_SEED=%d repeats it", seed)
					}
				}
			}
		})
	}
}

// chosen returns the calls of n that fail.
func chosen(random *rand.Rand, n int) (ks []int) {
	if !testing.Short() || n <= sample {
		for k := range n {
			ks = append(ks, k+1)
		}
		return ks
	}
	for _, k := range random.Perm(n)[:sample] {
		ks = append(ks, k+1)
	}
	return ks
}

// truth runs a row without a failure, and returns the number of calls that could have failed, and
// what See shows.
func (s Suite[M]) truth(t *testing.T, row Row[M]) (calls [kinds]int, want any) {
	t.Run("succeeds", s.within(func(t *testing.T) {
		f := new(Faults)
		m := s.Open(t, f)
		live := s.Live(m)
		trial := row.Make(t, m)
		trial.see() // as fail does
		err := trial.Do(f.Arm(Failed, 0))
		_, calls = f.Disarm()
		require.NoError(t, err)
		want = trial.see()
		require.NoError(t, trial.undo())
		require.Equal(t, live, s.Live(m), "live after the program")
	}))
	return calls, want
}

// fail runs a row with the k-th call of a kind failing.
func (s Suite[M]) fail(t *testing.T, row Row[M], kind Kind, k int, want any) {
	f := new(Faults)
	m := s.Open(t, f)
	live := s.Live(m)
	trial := row.Make(t, m)
	before := trial.see()
	err := trial.Do(f.Arm(kind, k))
	failed, calls := f.Disarm()
	// fewer calls than in truth: the number of polls depends on the time that copies take
	if failed == "" {
		require.NoError(t, err)
		require.NotEqual(t, [kinds]int{}, calls, "the program makes no calls the second time")
	}
	if err != nil {
		if cause := kind.cause(); row.Tolerates[kind] == "" && (cause == nil || !errors.Is(err, cause)) {
			require.Failf(t, "another cause", "%s: the error is %v, want one that wraps %v", failed, err, cause)
		}
		if row.Ends[failed] != "" {
			assert.NoError(t, trial.undo(), failed)
			assert.Equal(t, live, s.Live(m), "%s: live after the program", failed)
			return
		}
		after := trial.see() // once: a goroutine may complete the part meanwhile
		if row.Partly[kind] != "" && !assert.ObjectsAreEqual(before, after) {
			require.NoError(t, trial.Left(before, err), "%s: the part that is done", failed)
			assert.NoError(t, trial.undo(), failed)
			assert.Equal(t, live, s.Live(m), "%s: live after the program", failed)
			return
		}
		require.Equal(t, before, after, "%s: the operation has returned %v, and done a part", failed, err)
		require.NoError(t, trial.Do(context.Background()), "%s: the same operation afterwards", failed)
	}
	require.Equal(t, want, trial.see(), "%s: after the failure (%v)", failed, err)
	assert.NoError(t, trial.undo(), failed)
	assert.Equal(t, live, s.Live(m), "%s: live after the program", failed)
}

func (t Trial) see() any {
	if t.See == nil {
		return nil
	}
	return t.See()
}

func (t Trial) undo() error {
	if t.Undo == nil {
		return nil
	}
	return t.Undo()
}

package tapetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
)

// FailingCrew has ranks on host devices of their own; the calls of one rank may fail.
type FailingCrew struct {
	*Crew
	Benches []*Failing // of the ranks
	Victim  int        // the rank whose calls may fail
}

// OpenFailingCrew makes two ranks with a common communicator.
func OpenFailingCrew(t testing.TB, f *failtest.Faults, victim int) *FailingCrew {
	t.Helper()
	c := &FailingCrew{Crew: &Crew{T: t}, Victim: victim}
	for n := range 2 {
		faults := new(failtest.Faults)
		if n == victim {
			faults = f
		}
		b := OpenFailing(t, faults)
		b.takeMemory()
		c.Benches = append(c.Benches, b)
		c.Ranks = append(c.Ranks, &Rank{Bench: b.Bench, N: n, Size: 2})
	}
	c.Meet(patience)
	return c
}

// takeMemory makes the runtime allocate its memory for captures.
func (m *Failing) takeMemory() {
	m.T.Helper()
	g, err := m.RT.Capture(m.Ctx, func(context.Context) error { return nil })
	require.NoError(m.T, errors.Join(err, g.Close(), m.RT.Synchronize(m.Ctx), m.Cache.EmptyCache(m.Ctx)))
}

// FailingCrewSuite runs rows with failing calls of rank 0, and of rank 1.
func FailingCrewSuite(t *testing.T, rows []failtest.Row[*FailingCrew]) {
	live := func(c *FailingCrew) any {
		var all []any
		for _, b := range c.Benches {
			all = append(all, b.live())
		}
		return all
	}
	for victim := range 2 {
		t.Run(fmt.Sprint("rank", victim), func(t *testing.T) {
			failtest.Suite[*FailingCrew]{Open: func(t testing.TB, f *failtest.Faults) *FailingCrew {
				return OpenFailingCrew(t, f, victim)
			}, Live: live, Rows: rows}.Run(t)
		})
	}
}

// patience is the timeout of a failing crew's communicators, which must not expire.
const patience = 10 * time.Second

// Together runs f on all ranks concurrently. A rank with an error closes its communicator, after
// the others have returned if f itself notifies them. It returns the errors, or an error if ranks
// have waited for the timeout.
func (c *FailingCrew) Together(tells bool, f func(r *Rank) error) (errs []error, late error) {
	began := time.Now()
	var others sync.WaitGroup
	others.Add(len(c.Ranks))
	errs = c.All(func(r *Rank) error {
		err := f(r)
		others.Done()
		if err != nil {
			if tells {
				others.Wait()
			}
			_ = r.Comm.Close() // it returns the error that ended the communicator
		}
		return err
	})
	if took := time.Since(began); took > patience/2 {
		late = fmt.Errorf("ranks have waited for %v: %w", took, errors.Join(errs...))
	}
	return errs, late
}

package compose

import (
	"errors"
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

var (
	programs = flag.Int("compose.programs", 0, "how many random trainings TestFeaturesCompose compares")
	replay   = flag.String("compose.replay", "", "a training that a failure printed")
)

// opens makes the machines of a worker.
type opens func(testing.TB, memcache.Config) []*machine

// workers starts one worker for each processor, with machines of its own. They try the trials of
// the seeds from 1 to n until one fails, and report its shortest version that fails on new
// machines.
func workers(t *testing.T, n int, open opens, cfg memcache.Config, draw func(seed uint64) *trial, fails func([]*machine, *trial) error) {
	t.Helper()
	var next atomic.Uint64
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		machines := open(t, cfg)
		wait.Go(func() {
			for seed := next.Add(1); seed <= uint64(n) && !t.Failed(); seed = next.Add(1) {
				tr := draw(seed)
				err := fails(machines, tr)
				if err == nil {
					continue
				}
				tr, err = tr.shrink(err, func(tr *trial) error {
					machines := open(t, cfg)
					err := fails(machines, tr)
					for _, m := range machines {
						_ = m.close(false)
					}
					return err
				})
				t.Errorf("%v\n%sgo test ./autograd/internal/compose -run Replay -compose.replay '%v'", err, tr.text(), tr)
			}
			for _, m := range machines {
				if err := m.close(false); err != nil && !t.Failed() {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
}

// TestFeaturesCompose: losses, gradients, parameters and running statistics of random trainings
// under random subsets of features are bit-identical to those without features, and nothing leaks.
//
//	go test ./autograd/internal/compose -run FeaturesCompose -compose.programs 10000
func TestFeaturesCompose(t *testing.T) {
	var moved [4]atomic.Int64
	loops := make([]atomic.Int64, len(loopUnder))
	draw := func(seed uint64) *trial { return randomTrial(seed).made() }
	workers(t, rounds(300, 60), newMachines, memcache.Config{}, draw, func(machines []*machine, tr *trial) error {
		err := check(machines, tr)
		for i, n := range []int64{tr.moved.Fetched, tr.moved.Prefetched, tr.moved.Stayed, tr.moved.Unchanged} {
			moved[i].Add(n)
		}
		for i, under := range loopUnder {
			if tr.has(loop | under) {
				loops[i].Add(1)
			}
		}
		return err
	})
	for i, what := range []string{"fetched", "prefetched", "stayed", "left without a copy"} {
		require.Positive(t, moved[i].Load(), what)
	}
	for i, under := range loopUnder {
		if under != ranks || cisterntest.Named() == "" {
			require.Positive(t, loops[i].Load(), "the loop under %v", under)
		}
	}
}

// TestExamplesUnderEachFeature trains with the layer, the optimiser and the loop of the Examples.
// Under each feature alone the training is bit-identical to the plain one. Each part of the loop
// changes the training, and launches and copies show that the feature acts.
func TestExamplesUnderEachFeature(t *testing.T) {
	machines := newMachines(t, memcache.Config{})
	launches := 0
	machines[0].launched = func() { launches++ }
	tr := trial{seed: 1, options: loop, steps: 6, example: true}.made()
	want, err := tr.plain(machines)
	require.NoError(t, err)
	plainLaunches := launches
	seen := want[0].seen
	require.NotEqual(t, seen[0].bits, seen[1].bits, "the losses of both parts")
	last := func(r *run) []byte { return r.seen[len(r.seen)-1].bits } // the evaluation after the last step
	for o := options(1); o < end; o <<= 1 {
		if loop.has(o) {
			without, err := tr.with(loop &^ o).plain(machines)
			require.NoError(t, err)
			require.NotEqual(t, last(want[0]), last(without[0]), "without %v", o)
		}
	}
	for _, under := range loopUnder {
		t.Run(under.String(), func(t *testing.T) {
			if under == ranks && len(machines) == 1 {
				t.Skip("one machine")
			}
			launches = 0
			tr := tr.with(loop | under | evaluate) // the plain training evaluates, too
			require.NoError(t, tr.against(want, machines))
			switch under {
			case capture: // a replay launches no kernels
				require.Less(t, launches, plainLaunches)
			case checkpoints: // the backward pass computes again
				require.Greater(t, launches, plainLaunches)
			case offloadActivations, offloadParameters, offloadState:
				require.Positive(t, tr.moved.Fetched)
			}
		})
	}
	for _, m := range machines {
		require.NoError(t, m.close(false))
	}
}

// rounds returns the number of trainings that a test runs.
func rounds(full, short int) int {
	switch {
	case *programs > 0:
		return *programs
	case testing.Short() || race.Enabled:
		return short
	}
	return full
}

// TestFeaturesFail lets the same trainings fail somewhere.
func TestFeaturesFail(t *testing.T) {
	var reached, failed [faults]atomic.Int64
	for _, cfg := range []memcache.Config{{}, {NoCaching: true}} { // each tensor is an allocation of the driver's
		draw := func(seed uint64) *trial {
			r := rand.New(rand.NewPCG(seed, 2))
			tr := randomTrial(seed)
			if tr.fault = pinnedFault + fault(r.IntN(int(faults-pinnedFault))); cfg.NoCaching {
				tr.fault, tr.options = allocFault, tr.options&^capture // whose memory stays
			}
			if tr.at = 1 + r.IntN(1+r.IntN(600)); tr.fault == pinnedFault { // few calls need the driver
				tr.at = 1 + tr.at%3
			}
			return tr.made()
		}
		workers(t, rounds(100, 20), hostMachines, cfg, draw, func(machines []*machine, tr *trial) error {
			if tr.fault.sticky() {
				machines = hostMachines(t, cfg)
			}
			yes, err := checkFault(machines, tr)
			if failed[tr.fault].Add(1); yes {
				reached[tr.fault].Add(1)
			}
			if tr.fault.sticky() {
				err = errors.Join(err, machines[0].close(true), machines[1].close(true))
			}
			return err
		})
	}
	for f := allocFault; f < faults; f++ {
		require.Positive(t, reached[f].Load(), "of %d programs, failures that were reached: %v", failed[f].Load(), f)
	}
}

// TestRefusedPairs: each pair is refused and leaks nothing, and the training runs without the
// second one.
func TestRefusedPairs(t *testing.T) {
	machines := hostMachines(t, memcache.Config{})
	for _, p := range refused {
		times := 0
		for seed := range uint64(4) {
			tr := trial{seed: seed, options: p.stays | penalty, steps: 2}.made()
			both := *tr
			both.options |= p.goes
			if err := check(machines, &both); err != nil { // otherwise no part of this program is offloaded
				times++
				require.True(t, errors.Is(err, autograd.ErrInvalid) || errors.Is(err, tensor.ErrCapturing), "%v: %v", both.options, err)
			}
			require.NoError(t, errors.Join(machines[0].left(), machines[1].left()), "%v", both.options)
			require.NoError(t, check(machines, tr))
		}
		require.Positive(t, times, "%v beside %v", p.goes, p.stays)
	}
	for _, m := range machines {
		require.NoError(t, m.close(false))
	}
}

// TestReplay runs a training that a failure printed.
func TestReplay(t *testing.T) {
	if *replay == "" {
		t.Skip("without -compose.replay")
	}
	tr, err := parseTrial(*replay)
	require.NoError(t, err)
	t.Log(tr.text())
	machines := newMachines(t, memcache.Config{NoCaching: tr.fault == allocFault})
	if tr.fault == noFault {
		err = check(machines, tr)
	} else {
		_, err = checkFault(machines, tr)
	}
	require.NoError(t, err)
	for _, m := range machines {
		require.NoError(t, m.close(tr.fault.sticky()))
	}
}

package compose

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

var (
	programs = flag.Int("compose.programs", 0, "how many random trainings TestFeaturesCompose compares")
	replay   = flag.String("compose.replay", "", "a training that a failure printed")
)

// check compares a trial with its plain training.
func check(machines []*machine, tr *trial) error {
	want, err := tr.plain(machines)
	if err != nil {
		return err
	}
	return tr.against(want, machines)
}

// plain is the training without features, of each rank if these have batches of their own.
func (tr *trial) plain(machines []*machine) ([]*run, error) {
	o := tr.options & training
	if o.has(batches) {
		o |= ranks
	}
	runs, err := tr.with(o).on(machines)
	if err != nil {
		err = fmt.Errorf("the plain training: %w", err)
	}
	return runs, err
}

// against compares the trial with its plain training.
func (tr *trial) against(want []*run, machines []*machine) error {
	got, err := tr.on(machines)
	if err != nil {
		return err
	}
	tr.moved = got[0].statistics
	for i, r := range got {
		if err := errors.Join(differ(want[min(i, len(want)-1)], r), r.machine.left()); err != nil {
			return fmt.Errorf("rank %d: %w", i, err)
		}
	}
	return tr.excess(want[0], got[0])
}

// on trains on one machine, or on two.
func (tr *trial) on(machines []*machine) ([]*run, error) {
	if !tr.has(ranks) {
		machines = machines[:1]
	}
	runs := make([]*run, len(machines))
	err := together(machines, func(i int, comm device.Communicator) (err error) {
		runs[i], err = tr.train(context.Background(), machines[i], comm, func(error) bool { return false })
		return err
	})
	return runs, err
}

// excess is an error if the features have raised the peak. A graph has memory of its own, Prepare makes state for parameters that never train, and two tapes at a time hold more than one;
// what moves values may hold two more for a moment, or what it brings back early.
func (tr *trial) excess(want, got *run) error {
	slack := int64(0)
	switch {
	case tr.options&(capture|prepare|interleave|ranks) != 0:
		return nil
	case tr.options&(checkpoints|offload|offloadState|offloadParameters) != 0:
		slack = 4 * 512
	}
	if got.peak > want.peak+slack {
		return fmt.Errorf("the peak is %d bytes, and %d without features", got.peak, want.peak)
	}
	return nil
}

// differ is an error if what both trainings show is not the same.
func differ(want, got *run) error {
	i := 0
	for _, w := range want.seen {
		if i < len(got.seen) && got.seen[i].what == w.what {
			g := got.seen[i].bits
			if len(g) != len(w.bits) {
				return fmt.Errorf("%s has %d bytes, want %d", w.what, len(g), len(w.bits))
			}
			for j := 0; j+4 <= len(g); j += 4 {
				if was, is := binary.NativeEndian.Uint32(w.bits[j:]), binary.NativeEndian.Uint32(g[j:]); is != was {
					return fmt.Errorf("%s: number %d is %v, want %v (bits %x, want %x)", w.what, j/4, math.Float32frombits(is), math.Float32frombits(was), is, was)
				}
			}
			i++
		}
	}
	if i < len(got.seen) {
		return fmt.Errorf("%s is not there in the plain training", got.seen[i].what)
	}
	return nil
}

// workers is one for each processor, with machines of its own, that tries seeds from 1 to n until one fails.
func workers(t *testing.T, n int, open func(testing.TB, memcache.Config) []*machine, cfg memcache.Config, try func(machines []*machine, seed uint64)) {
	t.Helper()
	var next atomic.Uint64
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		machines := open(t, cfg)
		wait.Go(func() {
			for seed := next.Add(1); seed <= uint64(n) && !t.Failed(); seed = next.Add(1) {
				try(machines, seed)
			}
			for _, m := range machines {
				if err := m.close(false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
}

// TestFeaturesCompose: random trainings under random subsets of features give what they give without, to the bit: losses, gradients,
// parameters, running statistics; and nothing is left.
//
//	go test ./autograd/internal/compose -run FeaturesCompose -compose.programs 10000
func TestFeaturesCompose(t *testing.T) {
	var moved [4]atomic.Int64
	workers(t, rounds(300, 60), newMachines, memcache.Config{}, func(machines []*machine, seed uint64) {
		report(t, randomTrial(seed).made(), func(tr *trial) error {
			err := check(machines, tr)
			for i, n := range []int64{tr.moved.Fetched, tr.moved.Prefetched, tr.moved.Stayed, tr.moved.Unchanged} {
				moved[i].Add(n)
			}
			return err
		})
	})
	for i, what := range []string{"fetched", "prefetched", "stayed", "left without a copy"} {
		require.Positive(t, moved[i].Load(), what)
	}
}

// rounds is how many trainings a test runs.
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
	for _, cfg := range []memcache.Config{{}, {NoCaching: true}} { // where each tensor is an allocation of the driver's
		workers(t, rounds(100, 20), hostMachines, cfg, func(machines []*machine, seed uint64) {
			r := rand.New(rand.NewPCG(seed, 2))
			tr := randomTrial(seed)
			tr.at = 1 + r.IntN(1+r.IntN(600))
			if cfg.NoCaching {
				tr.fault, tr.options = allocFault, tr.options&^capture // whose memory stays
			} else {
				tr.fault = pinnedFault + fault(r.IntN(int(faults-pinnedFault)))
			}
			if tr.fault == pinnedFault { // there are few
				tr.at = 1 + tr.at%8
			}
			failed[tr.fault].Add(1)
			report(t, tr.made(), func(tr *trial) error {
				on := machines
				if tr.fault.sticky() {
					on = hostMachines(t, cfg)
				}
				yes, err := checkFault(on, tr)
				if yes {
					reached[tr.fault].Add(1)
				}
				if tr.fault.sticky() {
					err = errors.Join(err, on[0].close(true), on[1].close(true))
				}
				return err
			})
		})
	}
	for f := allocFault; f < faults; f++ {
		t.Logf("%v: %d of %d programs failed", f, reached[f].Load(), failed[f].Load())
	}
}

// TestRefusedPairs are refused, leave nothing, and the training runs without the second.
func TestRefusedPairs(t *testing.T) {
	machines := hostMachines(t, memcache.Config{})
	for _, p := range refused {
		times := 0
		for seed := range uint64(4) {
			tr := trial{seed: seed, options: p.stays | penalty, steps: 2}.made()
			both := *tr
			both.options |= p.goes
			if err := check(machines, &both); err != nil { // else no part of this program is offloaded
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

// report reports a trial that fails as the shortest one that does.
func report(t *testing.T, tr *trial, fails func(*trial) error) {
	if err := fails(tr); err != nil {
		tr, err = tr.shrink(err, fails)
		t.Errorf("%v\n%sgo test ./autograd/internal/compose -run Replay -compose.replay '%v'", err, tr.text(), tr)
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

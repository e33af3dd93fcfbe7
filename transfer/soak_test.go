package transfer_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
)

var (
	soakTime    = flag.Duration("soak", 0, "how long TestSoak runs")
	soakCalls   = flag.Int64("soak.calls", 0, "how many calls of the pool TestSoak makes, if it has the time")
	soakSeed    = flag.Uint64("soak.seed", 1, "the first of TestSoak's seeds")
	soakProgram = flag.String("soak.program", "", "a program, as TestSoak prints it, to run in its place")
)

// soakPrograms makes the program of a seed. Most have one goroutine on the simulated device, where
// all state is known at every call; the others have several goroutines. In race builds all run on
// the host device, whose streams the detector checks.
func soakPrograms(seed uint64) *program {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := &program{seed: seed, device: "sim", steps: make([][]step, 1)}
	n := 1000
	switch kind := rng.IntN(8); {
	case kind < 2 && !race.Enabled:
		p.steps = make([][]step, 2+rng.IntN(7))
		n = 400
	case kind == 2 || race.Enabled:
		p.device, n = "host", 200
		p.steps = make([][]step, 1+rng.IntN(4))
		if name := os.Getenv("CISTERN_TEST_DEVICE"); name != "" {
			p.device = name
		}
	}
	for i := range p.steps {
		p.steps[i] = randomSteps(rng, 1+rng.IntN(2*n))
	}
	return p
}

// Random programs on pools with random options: contents, states, statistics and remaining memory
// are those of simple models. It takes a moment, or the time of -soak:
//
//	go test ./transfer -run Soak -soak 1h -timeout 0
//
// A program that fails is shortened and printed in the format of -soak.program.
func TestSoak(t *testing.T) {
	var calls atomic.Int64
	if *soakProgram != "" {
		p, err := parseProgram(*soakProgram)
		if err == nil {
			err = p.run(&calls)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	limit, most := *soakTime, *soakCalls
	switch {
	case limit > 0 || most > 0:
	case testing.Short() || race.Enabled:
		most = 20_000
	default:
		most = 200_000
	}
	begin := time.Now()
	seeds := soak(t, &calls, func() bool {
		return (most > 0 && calls.Load() >= most) || (limit > 0 && time.Since(begin) > limit)
	})
	took := time.Since(begin)
	t.Logf("%d calls, seeds %d to %d, in %v: %v a call on each of %d processors", calls.Load(), *soakSeed, *soakSeed+seeds-1,
		took.Round(time.Millisecond), took*time.Duration(runtime.GOMAXPROCS(0))/time.Duration(calls.Load()), runtime.GOMAXPROCS(0))
}

// Programs that failed once, as short as they were made.
func TestProgramsThatFailed(t *testing.T) {
	if race.Enabled {
		t.Skip("the detector does not see the locks of the simulated device")
	}
	var calls atomic.Int64
	for name, text := range map[string]string{
		// The last Get finds nothing and frees a tainted buffer. The driver waits for all copies
		// first, and memory that one of them used serves the Get.
		"a free that waits for what the Get needs": `sim 5019 | upload 0 3 0 0, run 0 3 0 0, fault 1887833661 3 1 0,
			upload 0 0 1362649892 0, get 0 0 0 0, run 0 37 0 0, get 3 0 0 0, d2h 0 0 0 0, get 0 0 0 0, d2h 2 0 0 0,
			release 52 0 0 0, d2h 0 0 0 0, release 0 0 0 0, release 0 0 0 0, run 0 3 0 0, upload 0 0 0 0`,
		// The same in a pool that caches nothing: the copies' memory stays active until the next
		// poll.
		"a free that waits for what has no place": `sim 2603 | get 0 0 0 0, get 0 0 0 0, get 0 0 0 0, get 0 0 0 0, get 0 0 0 0,
			get 0 0 0 0, get 0 0 0 0, register 0 0 0 0, get 0 0 0 0, get 0 0 0 0, get 0 0 0 0, get 0 0 0 0, get 0 0 0 0,
			get 0 0 0 0, get 0 0 0 0, get 0 0 0 0, get 0 0 0 0, batch 0 0 0 0, batch 0 0 0 0, register 0 0 0 0, get 0 0 0 0,
			get 0 0 0 0, get 0 0 0 0, batch 1730674319 0 872860760 0, batch 0 0 0 0, get 0 0 0 0, get 0 0 0 0, get 0 0 0 0,
			get 0 0 0 0, batch 0 0 0 818998064, register 0 0 0 0, release 0 0 0 0, release 0 0 0 0, release 0 0 0 0,
			release 0 0 0 0, batch 0 0 0 1, release 0 0 0 0, release 0 0 0 0, release 0 0 0 0, release 0 0 0 0, release 0 0 0 0,
			get 0 0 0 0, batch 0 0 0 2, release 0 0 0 0, release 0 0 0 0, get 0 0 0 0, release 0 0 0 0, fault 0 0 0 0,
			get 0 0 0 0, release 0 0 0 0, add 0 0 0 0, h2d 39 0 0 0, fault 2977679374 2 0 0, d2h 0 2 0 0, release 61 0 0 0,
			d2h 0 0 2 0, d2h 4073353762 0 0 0, peaks 0 0 0 0, release 3462337854 0 0 0, release 3645720321 0 0 0,
			h2d-rows 1235797722 0 0 0, run 1576565264 53 0 0, release 3 0 0 0, get 0 0 0 0, release 57 0 0 0,
			cancel 0 0 0 3665895090`,
	} {
		t.Run(name, func(t *testing.T) {
			p, err := parseProgram(text)
			require.NoError(t, err)
			require.NoError(t, p.run(&calls))
		})
	}
}

// The statistics, including peaks and driver calls, are those of a simple model, with any shard and
// any options of the pool.
func TestStatsAreExact(t *testing.T) {
	if race.Enabled {
		t.Skip("the detector does not see the locks of the simulated device")
	}
	var calls atomic.Int64
	rng := rand.New(rand.NewPCG(3, 4))
	for seed := range uint64(60) {
		p := &program{seed: seed, device: "sim", steps: [][]step{randomSteps(rng, 1000)}}
		p.steps[0] = slices.DeleteFunc(p.steps[0], func(s step) bool {
			return !slices.Contains([]string{"get", "release", "shard", "peaks", "empty", "h2d", "run"}, s.op)
		})
		if err := p.run(&calls); err != nil {
			t.Fatalf("%v\n\n%s", err, shortest(p, &calls))
		}
	}
}

// soak runs the programs of one seed after another on every processor, until ended returns true,
// and returns their number.
func soak(t *testing.T, calls *atomic.Int64, ended func() bool) uint64 {
	var next atomic.Uint64
	var failed atomic.Bool
	stop := watchdog(calls)
	defer stop()
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for !ended() && !failed.Load() {
				seed := *soakSeed + next.Add(1) - 1
				p := soakPrograms(seed)
				if err := p.run(calls); err != nil && failed.CompareAndSwap(false, true) {
					t.Errorf("seed %d on %s: %v\n\n%s", seed, p.device, err, shortest(p, calls))
				}
			}
		})
	}
	group.Wait()
	return next.Load()
}

// shortest returns a text for reproducing the failure.
func shortest(p *program, calls *atomic.Int64) string {
	until := time.Now().Add(max(time.Second, min(*soakTime, 20*time.Second)))
	var last error
	short := p.shrink(func(p *program) bool {
		if time.Now().After(until) {
			return false
		}
		tries := 1
		if len(p.steps) > 1 || p.device != "sim" {
			tries = 20
		}
		for range tries {
			if err := p.run(calls); err != nil {
				last = err
				return true
			}
		}
		return false
	})
	return fmt.Sprintf("As short as it was made:\n%v\n\ngo test ./transfer -run Soak -soak.program '%v'", last, short)
}

// watchdog prints all goroutines, and ends the process, when no call has been made for a minute.
func watchdog(calls *atomic.Int64) (stop func()) {
	done := make(chan struct{})
	go func() {
		for last := int64(-1); ; {
			select {
			case <-done:
				return
			case <-time.After(time.Minute):
			}
			now := calls.Load()
			if now == last {
				fmt.Fprintln(os.Stderr, "no call for a minute: a deadlock")
				_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
				os.Exit(2)
			}
			last = now
		}
	}()
	return func() { close(done) }
}

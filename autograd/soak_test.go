package autograd_test

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
)

var (
	soakFor    = flag.Duration("soak", 0, "how long TestSoak runs")
	soakCalls  = flag.Int64("soak.calls", 0, "how many calls of package tensor TestSoak makes, over all goroutines")
	soakSeed   = flag.Uint64("soak.seed", 1, "the first seed of TestSoak")
	soakReplay = flag.String("soak.replay", "", "a program that a failure printed")
)

// soaker is a goroutine that runs programs, each with a fixture of its own.
type soaker struct {
	seed  atomic.Uint64
	moved atomic.Int64 // when it last ended a command, in nanoseconds since 1970
	every int          // commands from one look at the books to the next
}

// run runs a program and returns the number of its calls of package tensor.
func (s *soaker) run(p []command) (calls int64, err error) {
	w, err := newSoakFixture()
	if err != nil {
		return 0, err
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("a panic: %v\n%s", r, debug.Stack())
		}
		calls = w.calls
	}()
	for i, c := range p {
		s.moved.Store(time.Now().UnixNano())
		op := soakOps[int(c.op)%len(soakOps)]
		err := op.do(w, c)
		if err == nil && i%s.every == 0 && !w.broken {
			err = w.books()
		}
		if err != nil {
			_ = w.end()
			return 0, fmt.Errorf("command %d, %s: %w", i, op.name, err)
		}
	}
	s.moved.Store(time.Now().UnixNano())
	return 0, w.end()
}

// shrink leaves out commands as long as the program still fails, for at most a minute.
func (s *soaker) shrink(p []command, err error) ([]command, error) {
	until := time.Now().Add(time.Minute)
	s.every = 1
	defer func() { s.every = 8 }()
	for size := len(p) / 2; size > 0; size /= 2 {
		for from := 0; from+size <= len(p) && time.Now().Before(until); {
			shorter := slices.Delete(slices.Clone(p), from, from+size)
			if _, e := s.run(shorter); e != nil {
				p, err = shorter, e
			} else {
				from += size
			}
		}
	}
	return p, err
}

// TestSoak runs random programs of tensors and tapes on GOMAXPROCS goroutines: handles are
// released, dropped, shared and raced, scopes end, memory runs out, contexts end, streams and
// runtimes close, and faults occur. Values are those of a plain model, counts add up, and nothing
// leaks.
//
//	go test ./autograd -run Soak -soak 1h -timeout 0
func TestSoak(t *testing.T) {
	if *soakReplay != "" {
		replaySoak(t)
		return
	}
	calls, commands := int64(20_000), 400
	switch {
	case *soakCalls > 0 || *soakFor > 0:
		calls = *soakCalls
	case testing.Short() || race.Enabled:
		calls = 2_000
	}
	start := time.Now()
	var made, programs, failures atomic.Int64
	var seeds atomic.Uint64
	over := func() bool {
		return failures.Load() > 0 || calls > 0 && made.Load() >= calls || *soakFor > 0 && time.Since(start) >= *soakFor
	}
	soakers := make([]*soaker, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i := range soakers {
		s := &soaker{every: 8}
		s.moved.Store(start.UnixNano())
		soakers[i] = s
		wg.Go(func() {
			for !over() {
				seed := *soakSeed + seeds.Add(1) - 1
				s.seed.Store(seed)
				p := randomProgramOf(seed, commands)
				n, err := s.run(p)
				made.Add(n)
				programs.Add(1)
				if err != nil && failures.Add(1) == 1 {
					p, err = s.shrink(p, err)
					t.Errorf("seed %d: %v\nshrunk to %d commands: go test ./autograd -run Soak -soak.replay %s", seed, err, len(p), text(p))
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	report := func(state string) {
		s := fmt.Sprintf("TestSoak: %s: %d calls in %d programs, seeds %d to %d, %v on %d processors, %d failures", state, made.Load(), programs.Load(),
			*soakSeed, *soakSeed+seeds.Load()-1, time.Since(start).Round(time.Millisecond), len(soakers), failures.Load())
		if *soakFor > 0 || *soakCalls > 0 {
			fmt.Println(s)
		} else {
			t.Log(s)
		}
	}
	defer report("done")
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if n%60 == 0 {
			report("running")
		}
		for _, s := range soakers {
			if still := time.Since(time.Unix(0, s.moved.Load())); still > 2*time.Minute {
				stacks := make([]byte, 1<<20)
				fmt.Fprintf(os.Stderr, "%s\n", stacks[:runtime.Stack(stacks, true)])
				t.Fatalf("the program of seed %d stands still for %v", s.seed.Load(), still)
			}
		}
	}
}

func replaySoak(t *testing.T) {
	code, err := hex.DecodeString(*soakReplay)
	require.NoError(t, err)
	var p []command
	for c := range slices.Chunk(code, 4) {
		require.Len(t, c, 4)
		p = append(p, command{c[0], c[1], c[2], c[3]})
	}
	calls, err := (&soaker{every: 1}).run(p)
	require.NoError(t, err, "%s", text(p))
	t.Logf("%d calls, no failure", calls)
}

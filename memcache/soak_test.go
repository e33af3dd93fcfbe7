package memcache

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/race"
)

var (
	soakFor    = flag.Duration("soak", 0, "how long each soak runs")
	soakCalls  = flag.Int64("soak.calls", 0, "how many calls each soak makes, over all goroutines")
	soakShrink = flag.Duration("soak.shrink", 2*time.Second, "how long a program that fails is shrunk")
	soakSeed   = flag.Uint64("soak.seed", 1, "the first seed of the soaks")
)

// soakLength is not 0 if the command line asks for a soak.
func soakLength() int64 { return int64(*soakFor) + *soakCalls }

// soak runs rounds with ascending seeds on GOMAXPROCS goroutines, until the time or the number of calls of the command
// line is over or, without them, for about calls. A round returns the number of its calls. The first failure ends it.
func soak(t *testing.T, calls int64, round func(seed uint64) (calls int64, err error)) {
	if math.MaxInt == math.MaxInt32 {
		t.Skip("the devices' addresses have 64 bits")
	}
	if soakLength() > 0 {
		t.Parallel() // all soaks have the same time
		calls = *soakCalls
	} else if testing.Short() || race.Enabled || invariants.Enabled {
		calls /= 20
	}
	start := time.Now()
	var made, rounds atomic.Int64
	var seed atomic.Uint64
	var failures atomic.Int64
	over := func() bool {
		return failures.Load() > 0 || calls > 0 && made.Load() >= calls || *soakFor > 0 && time.Since(start) >= *soakFor
	}
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !over() {
				n, err := round(*soakSeed + seed.Add(1) - 1)
				made.Add(n)
				rounds.Add(1)
				if err != nil && failures.Add(1) == 1 {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	report := func(state string) {
		took := time.Since(start)
		text := fmt.Sprintf("%s: %s: %d calls in %d rounds, seeds %d to %d, %v (%.0f ns a call on each of %d processors), %d failures",
			t.Name(), state, made.Load(), rounds.Load(), *soakSeed, *soakSeed+seed.Load()-1, took.Round(time.Millisecond),
			float64(took.Nanoseconds())*float64(runtime.GOMAXPROCS(0))/float64(max(made.Load(), 1)), runtime.GOMAXPROCS(0), failures.Load())
		if soakLength() > 0 {
			fmt.Println(text)
		} else {
			t.Log(text)
		}
	}
	for tick := time.NewTicker(time.Minute); ; {
		select {
		case <-tick.C:
			report("running")
			continue
		case <-done:
		}
		tick.Stop()
		report("done")
		return
	}
}

// lengths are those of programs; after 65,536 hand-outs a shard has used up its first serials.
var lengths = [...]int{500, 2000, 5000, 10_000, 10_000, 20_000, 20_000, 40_000, 40_000, 200_000}

// randomProgram is the program of a seed.
func randomProgram(seed uint64, n int) []uint32 {
	r := rand.New(rand.NewPCG(seed, 2))
	words := make([]uint32, n+int(seed%2))
	for i := 0; i < len(words); i += 2 {
		w := r.Uint64()
		words[i] = uint32(w)
		if i+1 < len(words) {
			words[i+1] = uint32(w >> 32)
		}
	}
	return words
}

// modes are what is required besides what the caller itself requires.
const (
	plain   = iota
	twinned // the model agrees at every call
	modes
)

// settingOf is the setting of a seed: one in eight is tight, where calls take some ten times as long.
func settingOf(seed uint64) int {
	half := uint64(len(settings) / 2)
	if seed%8 == 7 {
		return int(half + seed/8%half)
	}
	return int((seed - seed/8) % half)
}

// attempt runs a program under a setting. A panic is an error.
func attempt(setting, mode int, every int64, words []uint32) (p *caller, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	if p, err = newCaller(settings[setting]); err != nil {
		return p, err
	}
	p.every = every
	if mode == twinned && settings[setting].model {
		p.pair()
	}
	return p, p.run(words)
}

// failure shrinks a program that fails, and says how to make it a test. Every call is checked now, so that it fails
// early.
func failure(seed uint64, setting, mode int, words []uint32, err error) error {
	fails := func(words []uint32) bool {
		_, err := attempt(setting, mode, 1, words)
		return err != nil
	}
	if !fails(words) {
		return fmt.Errorf("seed %d, %s, checked every 1,000 calls only: %w", seed, settings[setting].name, err)
	}
	words = shrink(words, fails)
	_, err = attempt(setting, mode, 1, words)
	var text strings.Builder
	for _, w := range words {
		fmt.Fprintf(&text, "\t%08x  %s\n", w, describe(w))
	}
	return fmt.Errorf("seed %d, %s: a program of %d calls fails:\n%sIt is replayed by FuzzSoak with this file in testdata/fuzz/FuzzSoak:\n"+
		"go test fuzz v1\n[]byte(%q)\nThe error: %w", seed, settings[setting].name, len(words), text.String(), encode(setting, mode, words), err)
}

// encode makes a program the input of FuzzSoak.
func encode(setting, mode int, words []uint32) []byte {
	data := []byte{byte(setting), byte(mode)}
	for _, w := range words {
		data = binary.LittleEndian.AppendUint32(data, w)
	}
	return data
}

// decode undoes encode, for any bytes.
func decode(data []byte) (setting, mode int, words []uint32) {
	if len(data) < 2 {
		return 0, 0, nil
	}
	setting, mode = int(data[0])%len(settings), int(data[1])%modes
	for data = data[2:]; len(data) >= 4 && len(words) < 5000; data = data[4:] {
		words = append(words, binary.LittleEndian.Uint32(data))
	}
	return setting, mode, words
}

// shrink returns a part of the words that still fails, from which no word can be left out: larger and smaller pieces
// are left out as long as that works (delta debugging).
func shrink(words []uint32, fails func([]uint32) bool) []uint32 {
	until := time.Now().Add(*soakShrink)
	for size := len(words) / 2; size > 0; {
		left := false
		for from := 0; from < len(words) && time.Now().Before(until); {
			to := min(from+size, len(words))
			less := append(append([]uint32(nil), words[:from]...), words[to:]...)
			if fails(less) {
				words, left = less, true
			} else {
				from = to
			}
		}
		if time.Now().After(until) || size == 1 && !left {
			break
		}
		if size > 1 {
			size = (size + 1) / 2
		}
	}
	return words
}

// TestSoakPrograms runs random programs under all settings. Those with memory enough must agree in what they share.
//
//	go test ./memcache -run SoakPrograms -soak.calls 1000000000 -timeout 0
func TestSoakPrograms(t *testing.T) {
	soak(t, 400_000, func(seed uint64) (calls int64, err error) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := lengths[r.IntN(len(lengths))]
		if soakLength() == 0 {
			n = min(n, 20_000)
		}
		words := randomProgram(seed, n)
		setting := settingOf(seed)
		p, err := attempt(setting, plain, 1000, words)
		if err != nil {
			return p.calls, failure(seed, setting, plain, words, err)
		}
		calls = p.calls
		if settings[setting].tight || setting == 0 {
			return calls, nil
		}
		q, err := attempt(0, plain, 1000, words)
		if err != nil {
			return calls, failure(seed, 0, plain, words, err)
		}
		if calls += q.calls; p.digest != q.digest && settings[setting].config.NoCaching == settings[0].config.NoCaching {
			differ := func(words []uint32) bool {
				p, errP := attempt(setting, plain, 1, words)
				q, errQ := attempt(0, plain, 1, words)
				return errP == nil && errQ == nil && p.digest != q.digest
			}
			words = shrink(words, differ)
			return calls, fmt.Errorf("seed %d: %s and %s differ in what they share, with the program %q", seed, settings[setting].name,
				settings[0].name, encode(setting, plain, words))
		}
		return calls, nil
	})
}

// TestSoakModel runs random programs under all settings, and compares the cache with the model at every call.
//
//	go test ./memcache -run SoakModel -soak.calls 10000000 -timeout 0
func TestSoakModel(t *testing.T) {
	soak(t, 50_000, func(seed uint64) (calls int64, err error) {
		r := rand.New(rand.NewPCG(seed, 3))
		words := randomProgram(seed, lengths[r.IntN(3)])
		setting := int(seed) % len(settings)
		p, err := attempt(setting, twinned, 1000, words)
		if err != nil {
			err = failure(seed, setting, twinned, words, err)
		}
		return p.calls, err
	})
}

// FuzzSoak runs a program of bytes: the setting, the mode, and the words.
func FuzzSoak(f *testing.F) {
	f.Add(encode(0, plain, randomProgram(1, 100)))
	f.Fuzz(func(t *testing.T, data []byte) {
		setting, mode, words := decode(data)
		if _, err := attempt(setting, mode, 1, words); err != nil {
			t.Fatal(err)
		}
	})
}

package memcache

import (
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/race"
)

var (
	soakFor    = flag.Duration("soak", 0, "how long each soak runs")
	soakCalls  = flag.Int64("soak.calls", 0, "how many calls each soak makes, over all goroutines")
	soakShrink = flag.Duration("soak.shrink", 2*time.Second, "how long a program that fails is shrunk")
	soakReplay = flag.String("soak.replay", "", "a program that a failure printed")
	soakSeed   = flag.Uint64("soak.seed", 1, "the first seed of the soaks")
)

// soakLength is not 0 if the command line requests a soak.
func soakLength() int64 { return int64(*soakFor) + *soakCalls }

// soak runs rounds with ascending seeds on GOMAXPROCS goroutines, until the command line's time or
// number of calls is reached, or about calls calls without them. A round returns its number of
// calls. The first failure ends the soak.
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

// program is a caller's behaviour: a choice of options, excluded features, and calls.
type program struct {
	choices choices
	without feature
	words   []uint32
}

// lengths are the lengths of programs; after 65,536 allocations a shard has used up its first
// serial numbers.
var lengths = [...]int{500, 2000, 5000, 10_000, 10_000, 20_000, 20_000, 40_000, 40_000, 200_000}

// randomProgram returns the program of a seed.
func randomProgram(r *rand.Rand, most int) program {
	p := program{choices: randomChoices(r), words: make([]uint32, min(lengths[r.IntN(len(lengths))], most)+r.IntN(2))}
	p.without = feature(r.Uint32()&r.Uint32()&r.Uint32()) | feature(r.Uint32())&(manySlots|seldom)
	favourites := []uint32{205, 221, 225, 231, 237, 242, 244, 245, 247, 248, 249, 250, 252, 253, 254, 255}
	r.Shuffle(len(favourites), func(i, j int) { favourites[i], favourites[j] = favourites[j], favourites[i] })
	for i := range p.words {
		p.words[i] = r.Uint32()
		if p.without&seldom != 0 && r.IntN(2) == 0 {
			p.words[i] = p.words[i]&^0xff | favourites[r.IntN(6)]
		}
		if byte(p.words[i]) == opFault {
			p.words[i]++
		}
	}
	return p
}

// attempt runs a program, together with the model if it covers the options. A panic is an error.
func (q program) attempt(twinned bool, every int64) (p *caller, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	o := q.choices.setting()
	if p, err = newCaller(o); err != nil {
		return p, err
	}
	p.every, p.without = every, q.without
	if twinned && o.modelled() {
		p.pair()
	}
	return p, p.run(q.words)
}

// failure shrinks a failing program, and prints how to run it again. Here every call is checked, so
// that it fails early.
func (q program) failure(seed uint64, err error) error {
	q = q.shrink(func(q program) bool {
		_, err := q.attempt(true, 1)
		return err != nil
	})
	if _, again := q.attempt(true, 1); again != nil {
		err = again
	}
	var text strings.Builder
	for _, w := range q.words {
		fmt.Fprintf(&text, "\t%08x  %s\n", w, describe(w))
	}
	return fmt.Errorf("seed %d, %v, without %v: a program of %d calls fails:\n%sgo test ./memcache -run SoakModel -soak.replay %x\nThe error: %w",
		seed, q.choices, q.without, len(q.words), text.String(), q.encode(), err)
}

// encode converts a program to input of FuzzSoak.
func (q program) encode() []byte {
	data := binary.LittleEndian.AppendUint32(q.choices[:], uint32(q.without))
	for _, w := range q.words {
		data = binary.LittleEndian.AppendUint32(data, w)
	}
	return data
}

// decode undoes encode, for any bytes.
func decode(data []byte) (q program) {
	data = data[copy(q.choices[:], data):]
	var words []uint32
	for ; len(data) >= 4 && len(words) < 5001; data = data[4:] {
		words = append(words, binary.LittleEndian.Uint32(data))
	}
	if len(words) >= 1 {
		q.without, q.words = feature(words[0]), words[1:]
	}
	return q
}

// shrink returns a part of the program that still fails: first without options and features, then
// without calls.
func (q program) shrink(fails func(program) bool) program {
	if !fails(q) {
		return q
	}
	for i := range q.choices {
		less := q
		if less.choices[i] = 0; fails(less) {
			q = less
		}
	}
	for f := feature(1); f < allFeatures; f <<= 1 {
		less := q
		if less.without |= f; fails(less) {
			q = less
		}
	}
	q.words = shrink(q.words, func(words []uint32) bool {
		less := q
		less.words = words
		return fails(less)
	})
	return q
}

// shrink returns a part of the words that still fails, and from which no word can be removed. It
// removes larger and then smaller pieces as long as that works (delta debugging).
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

// TestSoakPrograms runs long random programs without the model. Programs with enough memory must
// agree in all common figures.
//
//	go test ./memcache -run SoakPrograms -soak.calls 1000000000 -timeout 0
func TestSoakPrograms(t *testing.T) {
	soak(t, 400_000, func(seed uint64) (calls int64, err error) {
		most := 200_001
		if soakLength() == 0 {
			most = 20_000
		}
		q := randomProgram(rand.New(rand.NewPCG(seed, 1)), most)
		p, err := q.attempt(false, 1000)
		if err != nil {
			return p.calls, q.failure(seed, err)
		}
		calls = p.calls
		usual := func(q program) program {
			q.choices = choices{noCaching: q.choices[noCaching]}
			return q
		}
		if p.o.tight {
			return calls, nil
		}
		other, err := usual(q).attempt(false, 1000)
		if err != nil {
			return calls, usual(q).failure(seed, err)
		}
		if calls += other.calls; p.digest != other.digest {
			q = q.shrink(func(q program) bool {
				p, errP := q.attempt(false, 1)
				other, errO := usual(q).attempt(false, 1)
				return errP == nil && errO == nil && p.digest != other.digest
			})
			return calls, fmt.Errorf("seed %d: with %v and without them the program %x differs in what it shares", seed, q.choices, q.encode())
		}
		return calls, nil
	})
}

// TestSoakModel runs random programs under random options, and compares the cache with the model at
// every call. Then each runs again with a failure of a driver call or of a context. The caller must
// receive the error of the driver call. A failure must change nothing, and the program continues.
//
//	go test ./memcache -run SoakModel -soak.calls 10000000 -timeout 0
func TestSoakModel(t *testing.T) {
	if *soakReplay != "" {
		data, err := hex.DecodeString(*soakReplay)
		require.NoError(t, err)
		_, err = decode(data).attempt(true, 1)
		require.NoError(t, err)
		return
	}
	soak(t, 50_000, func(seed uint64) (calls int64, err error) {
		r := rand.New(rand.NewPCG(seed, 3))
		q := randomProgram(r, []int{100, 200, 400, 1000}[r.IntN(4)])
		p, err := q.attempt(true, 1000)
		calls = p.calls
		if err == nil {
			q.words = slices.Insert(q.words, r.IntN(len(q.words)), r.Uint32()&^0xff|opFault)
			p, err = q.attempt(true, 1)
			calls += p.calls
		}
		if err != nil {
			err = q.failure(seed, err)
		}
		return calls, err
	})
}

// FuzzSoak runs a program given as bytes.
func FuzzSoak(f *testing.F) {
	f.Add(randomProgram(rand.New(rand.NewPCG(1, 3)), 100).encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := decode(data).attempt(true, 1); err != nil {
			t.Fatal(err)
		}
	})
}

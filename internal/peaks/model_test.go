package peaks

import (
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// naive is the ledger's sequential model: two gauges without shards and quotas, whose peaks are
// their largest values.
type naive struct {
	now, peak, added, limit [2]int64
	windows                 [][2]int64 // peaks
	rose                    [][2]int
}

func (m *naive) add(d [2]int64) bool {
	for g, n := range d {
		if n > 0 && m.now[g]+n > m.limit[g] {
			return false
		}
	}
	for g, n := range d {
		m.now[g] += n
		m.added[g] += max(n, 0)
		m.peak[g] = max(m.peak[g], m.now[g])
		for w := range m.windows {
			if m.now[g] > m.windows[w][g] {
				m.windows[w][g] = m.now[g]
				m.rose[w][g]++
			}
		}
	}
	return true
}

// changes returns d as the ledger takes it; zero changes are sometimes omitted.
func changes(d [2]int64, whole bool) (c []Change) {
	for g, n := range d {
		if n != 0 || whole {
			c = append(c, Change{g, n})
		}
	}
	return c
}

func (s *Shard) lockedAdd(c ...Change) bool {
	s.Lock()
	defer s.Unlock()
	return s.Add(c...)
}

// One goroutine that uses several shards in turn sees the same as a program without shards, after
// every call.
func TestAgainstTheModel(t *testing.T) {
	programs := 400
	if testing.Short() {
		programs = 60
	}
	for seed := range programs {
		rng := rand.New(rand.NewPCG(uint64(seed), 1))
		m := &naive{limit: [2]int64{NoLimit, int64(rng.IntN(200))}}
		l := New(m.limit[:]...)
		shards := []*Shard{l.Join()}
		var open []*Window
		rose := map[*Window]*[2]int{}
		for range 300 {
			switch k := rng.IntN(100); {
			case k < 80:
				s, d := shards[rng.IntN(len(shards))], [2]int64{rng.Int64N(41) - 20, rng.Int64N(41) - 20}
				for g := range d {
					d[g] = max(d[g], -m.now[g]) * rng.Int64N(2)
				}
				require.Equal(t, m.add(d), s.lockedAdd(changes(d, k%2 == 0)...))
			case k < 84:
				shards = append(shards, l.Join())
			case k < 88 && len(shards) > 1:
				l.Remove(shards[0])
				shards = shards[1:]
			case k < 92:
				n := new([2]int)
				w := l.Open(func(gauge int) { n[gauge]++ })
				rose[w] = n
				open, m.windows, m.rose = append(open, w), append(m.windows, m.now), append(m.rose, [2]int{})
			case k < 96 && len(open) > 0:
				i := rng.IntN(len(open))
				w := open[i]
				w.Close()
				w.Close()
				require.Equal(t, m.windows[i], [2]int64{w.Peak(0), w.Peak(1)})
				open, m.windows, m.rose = slices.Delete(open, i, i+1), slices.Delete(m.windows, i, i+1), slices.Delete(m.rose, i, i+1)
			case k >= 98:
				l.LockAll()
				l.ResetPeaks()
				l.UnlockAll()
				m.peak = m.now
			}
			l.LockAll()
			require.NoError(t, l.Audit())
			require.Zero(t, l.Delayed())
			for g := range 2 {
				require.Equal(t, Total{m.now[g], m.peak[g], m.added[g]}, l.Total(g))
			}
			for i, w := range open {
				require.Equal(t, m.windows[i], [2]int64{w.Peak(0), w.Peak(1)})
				require.Equal(t, m.rose[i], *rose[w])
			}
			l.UnlockAll()
		}
	}
}

// call is one Add of a goroutine, and its result.
type call struct {
	d  [2]int64
	ok bool
}

// outcome has the peaks of an order of calls: the ledger's and a window's.
type outcome struct{ peak, window [2]int64 }

// orders returns the outcomes of every order of the goroutines' calls that keeps each goroutine's
// own order and the result of each call. It iterates over the goroutines' progress, because the use
// at some progress does not depend on the order.
func orders(before map[outcome]bool, now, limit [2]int64, did [][]call) map[outcome]bool {
	type place [3]int
	reached := map[place]map[outcome]bool{{}: before}
	end := place{len(did[0]), len(did[1]), len(did[2])}
	for a := 0; a <= end[0]; a++ {
		for b := 0; b <= end[1]; b++ {
			for c := 0; c <= end[2]; c++ {
				at := place{a, b, c}
				sum := now
				for i := range at {
					for _, x := range did[i][:at[i]] {
						if x.ok {
							sum = [2]int64{sum[0] + x.d[0], sum[1] + x.d[1]}
						}
					}
				}
				for i := range at {
					if at[i] == end[i] {
						continue
					}
					x, next := did[i][at[i]], at
					next[i]++
					if reached[next] == nil {
						reached[next] = map[outcome]bool{}
					}
					for o := range reached[at] {
						m := naive{now: sum, peak: o.peak, limit: limit, windows: [][2]int64{o.window}, rose: make([][2]int, 1)}
						if m.add(x.d) == x.ok {
							reached[next][outcome{m.peak, m.windows[0]}] = true
						}
					}
				}
			}
		}
	}
	return reached[end]
}

// The results of several goroutines are those of some order of their calls, which keeps the order
// of each goroutine and the moments at which all of them meet.
func TestSomeOrderGivesThePeaks(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	programs := 1500
	if testing.Short() {
		programs = 150
	}
	several := 0
	for seed := range programs {
		rng := rand.New(rand.NewPCG(uint64(seed), 2))
		limit := [2]int64{NoLimit, 6 + rng.Int64N(20)}
		l := New(limit[:]...)
		// Fewer shards than goroutines, too.
		shards := []*Shard{l.Join(), l.Join(), l.Join()}[:1+rng.IntN(3)]
		var now [2]int64
		possible := map[outcome]bool{{}: true}
		for range 4 {
			w := l.Open(nil)
			// The window begins with what is in use.
			possible = maps.Collect(func(yield func(outcome, bool) bool) {
				for o := range possible {
					if !yield(outcome{o.peak, now}, true) {
						return
					}
				}
			})
			did := make([][]call, 3)
			var group sync.WaitGroup
			for i := range did {
				s := shards[i%len(shards)]
				rng := rand.New(rand.NewPCG(rng.Uint64(), 3))
				group.Go(func() {
					var mine [2]int64
					for range 5 {
						d := [2]int64{rng.Int64N(9), rng.Int64N(9)}
						if rng.IntN(2) == 0 {
							d = [2]int64{-rng.Int64N(mine[0] + 1), -rng.Int64N(mine[1] + 1)}
						}
						ok := s.lockedAdd(changes(d, true)...)
						if ok {
							mine[0] += d[0]
							mine[1] += d[1]
						}
						did[i] = append(did[i], call{d, ok})
						if rng.IntN(2) == 0 {
							runtime.Gosched()
						}
					}
				})
			}
			group.Wait()
			possible = orders(possible, now, limit, did)
			w.Close()
			l.LockAll()
			require.NoError(t, l.Audit())
			got := outcome{[2]int64{l.Total(0).Peak, l.Total(1).Peak}, [2]int64{w.Peak(0), w.Peak(1)}}
			now = [2]int64{l.Total(0).Current, l.Total(1).Current}
			l.UnlockAll()
			require.Contains(t, possible, got, "program %d: %v", seed, did)
			if len(possible) > 1 {
				several++
			}
			possible = map[outcome]bool{got: true}
		}
	}
	require.Positive(t, several, "every program had one order only")
}

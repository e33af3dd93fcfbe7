package trace

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRandomKernels compares the steps' busy times with a reference that marks busy ticks on a
// line. Launches overlap and fail, steps overlap, and events fail.
func TestRandomKernels(t *testing.T) {
	known, seeds := 0, 200
	if testing.Short() {
		seeds = 80
	}
	for seed := range uint64(seeds) {
		w := newClockwork(t)
		random := rand.New(rand.NewPCG(seed, 0))
		type launch struct {
			launched func(error)
			at       time.Duration
			steps    map[*Step]bool // that were open all the time
		}
		var launches []*launch
		open, unknown := map[*Step]bool{}, map[*Step]bool{}
		painted := map[*Step]map[time.Duration]bool{}
		order := []*Step{}
		began := false
		edge := func(s *Step) { unknown[s] = unknown[s] || len(launches) > 0 }
		fails := func() {
			if random.IntN(20) == 0 {
				w.dev.fail([]string{"new", "record"}[random.IntN(2)], errEvent)
				for s := range open {
					unknown[s] = true
				}
			}
		}
		end := func(i int) {
			l := launches[i]
			launches = append(launches[:i], launches[i+1:]...)
			if random.IntN(10) == 0 {
				l.launched(errEvent)
				return
			}
			fails()
			l.launched(nil)
			w.dev.fail("", nil)
			for s := range l.steps {
				for at := l.at; open[s] && at < w.dev.now; at++ {
					painted[s][at] = true
				}
			}
		}
		for range 60 {
			w.dev.now += time.Duration(random.IntN(4))
			switch n := random.IntN(20); {
			case n < 2 && len(open) < 3:
				s := w.start()
				order, open[s], painted[s] = append(order, s), true, map[time.Duration]bool{}
				edge(s)
			case n < 4:
				for _, s := range order {
					if open[s] {
						unknown[s] = unknown[s] || !began
						edge(s)
						s.End()
						delete(open, s)
						break
					}
				}
			case n < 12 && len(launches) < 1+int(seed%3):
				began = true
				l := &launch{at: w.dev.now, steps: map[*Step]bool{}}
				fails()
				l.launched = w.begin()
				w.dev.fail("", nil)
				for s := range open {
					l.steps[s] = true
				}
				launches = append(launches, l)
			case len(launches) > 0:
				end(random.IntN(len(launches)))
			}
		}
		for len(launches) > 0 {
			end(0)
		}
		for s := range open {
			unknown[s] = unknown[s] || !began
			s.End()
		}
		_ = w.Flush(t.Context())
		for i, s := range order {
			r := s.Profile()
			require.True(t, r.DeviceTimed)
			require.Equal(t, !unknown[s], r.BusyTimed, "seed %d, step %d", seed, i)
			if r.BusyTimed {
				known++
				require.Equal(t, time.Duration(len(painted[s])), r.BusyTime, "seed %d, step %d", seed, i)
			}
		}
		require.Zero(t, w.dev.left(), "seed %d", seed)
	}
	require.Greater(t, known, seeds)
}

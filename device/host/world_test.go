package host

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/matching"
)

// reach returns the ranks for which p waits, directly or through others.
func (w *world) reach(p *post) map[int]bool {
	reached, next := map[int]bool{}, []*post{p}
	for len(next) > 0 {
		q := next[0]
		next = next[1:]
		for r := range w.ranks {
			if w.waits(q, r) && !reached[r] {
				reached[r] = true
				if o := w.ranks[r].post; o != nil && o.open > 0 {
					next = append(next, o)
				}
			}
		}
	}
	return reached
}

// TestWorldSeesWhoWaits: ranks enter calls in random order, and leave. The call that completes a
// circle, or a wait for a rank that has left, reports it, and no other call does. The missing ranks
// are those that could end the wait.
func TestWorldSeesWhoWaits(t *testing.T) {
	found := map[troubles]int{}
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 1))
		const ranks = 4
		w := newWorld(ranks)
		var tickets [ranks]int64
		for range 40 {
			rank := r.IntN(ranks)
			m := &w.ranks[rank]
			if m.left || m.post != nil {
				continue
			}
			if r.IntN(40) == 0 {
				var waiting []int
				for o := range w.ranks {
					if q := w.ranks[o].post; q != nil && q.open > 0 && w.waits(q, rank) {
						waiting = append(waiting, o)
					}
				}
				got := w.part(rank)
				if len(waiting) > 0 {
					require.Contains(t, waiting, got)
					break // the communicator fails
				}
				require.Equal(t, -1, got)
				continue
			}
			c := matching.Call{Kind: matching.Recv, Count: 1, Peer: (rank + 1 + r.IntN(ranks-1)) % ranks}
			switch r.IntN(4) {
			case 0:
				c.Kind = matching.Send
			case 1:
				c = matching.Call{Kind: matching.Barrier}
			}
			p := newPost(rank, ranks, []matching.Call{c}, make([]memory, 1))
			tickets[rank]++
			tr := w.enter(p, tickets[rank])
			found[tr.kind]++
			reached := w.reach(p)
			missing := make([]int, ranks)
			missing = missing[:w.missing(p, missing)]
			slices.Sort(missing)
			lost := map[int]bool{}
			absent := map[int]bool{}
			for o := range reached {
				lost[o] = w.ranks[o].left
				absent[o] = w.ranks[o].post == nil
			}
			maps.DeleteFunc(lost, func(_ int, yes bool) bool { return !yes })
			maps.DeleteFunc(absent, func(_ int, yes bool) bool { return !yes })
			require.ElementsMatch(t, slices.Collect(maps.Keys(absent)), missing)
			switch tr.kind {
			case noTrouble:
				require.Empty(t, lost)
				require.False(t, p.open > 0 && reached[rank], "a circle")
			case circle:
				require.True(t, reached[rank])
			case deserted:
				require.True(t, lost[tr.rank])
			default:
				require.Fail(t, "trouble", "%d", tr.kind)
			}
			if tr.kind != noTrouble {
				break // the communicator fails
			}
			for o := range w.ranks {
				if q := w.ranks[o].post; q != nil && q.open == 0 {
					w.leave(q)
				}
			}
		}
	}
	require.Greater(t, found[noTrouble], 1000)
	require.Greater(t, found[circle], 100)
	require.Greater(t, found[deserted], 100)
}

// TestFailedRanksWaitForWorkers: after a failure no rank leaves its operation while another rank
// accesses memory, and no rank begins to. Without a failure a rank leaves at once.
func TestFailedRanksWaitForWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ranks = 4
		w := newWorld(ranks)
		posts := make([]*post, ranks)
		for r := range posts {
			posts[r] = newPost(r, ranks, []matching.Call{{Kind: matching.AllReduce, Count: 1}}, make([]memory, 1))
			require.Zero(t, w.enter(posts[r], 1))
		}
		left := make(chan int, ranks)
		leave := func(r int) {
			go func() {
				w.leave(posts[r])
				left <- r
			}()
			synctest.Wait()
		}
		gone := func() (list []int) {
			synctest.Wait()
			for len(left) > 0 {
				list = append(list, <-left)
			}
			slices.Sort(list)
			return list
		}
		require.True(t, w.begin())
		require.True(t, w.begin())
		leave(3)
		require.Equal(t, []int{3}, gone())
		w.fail(&device.CollectiveError{})
		require.False(t, w.begin())
		leave(0)
		require.Empty(t, gone(), "two work")
		w.worked(posts[2])
		leave(1)
		require.Empty(t, gone(), "one works")
		w.worked(posts[3])
		require.Equal(t, []int{0, 1}, gone())
		leave(2)
		require.Equal(t, []int{2}, gone())
		for _, m := range w.ranks {
			require.Nil(t, m.post)
		}
	})
}

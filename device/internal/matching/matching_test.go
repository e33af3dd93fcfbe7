package matching

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
)

const self = backend.Self("it")

// worldOf returns a world of the given size, in which the given ranks have joined.
func worldOf(size int, here ...int) *World {
	w := NewWorld(size)
	for _, r := range here {
		w.Join(r, fmt.Sprint("gpu ", r))
	}
	return w
}

func all(size int) (ranks []int) {
	for r := range size {
		ranks = append(ranks, r)
	}
	return ranks
}

// program is the posts of each rank: collectives, groups that exchange data, and sends from lower
// to higher ranks, so that no ranks wait in a circle.
func program(r *rand.Rand, size int) [][][]Call {
	posts := make([][][]Call, size)
	for range 30 {
		switch r.IntN(3) {
		case 0:
			c := Call{Kind: Kind(r.IntN(5)), Count: int64(r.IntN(9)), Peer: r.IntN(size)}
			for me := range posts {
				posts[me] = append(posts[me], []Call{c})
			}
		case 1:
			for me := range posts {
				next, previous := (me+1)%size, (me+size-1)%size
				group := []Call{{Kind: Send, Count: 3, Peer: next}, {Kind: Recv, Count: 3, Peer: previous}, {Kind: Barrier}}
				r.Shuffle(len(group), func(i, j int) { group[i], group[j] = group[j], group[i] })
				posts[me] = append(posts[me], group)
			}
		case 2:
			if from := r.IntN(size); from+1 < size {
				to := from + 1 + r.IntN(size-from-1)
				posts[from] = append(posts[from], []Call{{Kind: Send, Count: 5, Peer: to}})
				posts[to] = append(posts[to], []Call{{Kind: Recv, Count: 5, Peer: from}})
			}
		}
	}
	return posts
}

// queue queues the posts of the ranks in random order until all are queued or the world has ended.
func queue(r *rand.Rand, w *World, posts [][][]Call) {
	at := make([]int, len(posts))
	for w.Failure() == nil {
		var can []int
		for me := range posts {
			if w.ranks[me].here && at[me] < len(posts[me]) {
				can = append(can, me)
			}
		}
		if len(can) == 0 {
			return
		}
		me := can[r.IntN(len(can))]
		w.Queue(me, posts[me][at[me]])
		at[me]++
	}
}

// TestProgramsMatch: programs that match cause no error in any order of queuing, and leave nothing
// behind.
func TestProgramsMatch(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		size := 1 + r.IntN(5)
		here := r.Perm(size)[:1+r.IntN(size)]
		w := worldOf(size, here...)
		queue(r, w, program(r, size))
		require.NoError(t, errorOf(w), "seed %d", seed)
		for _, me := range here {
			require.Empty(t, w.ranks[me].posts, "seed %d", seed)
		}
	}
}

func errorOf(w *World) error {
	if err := w.Failure(); err != nil {
		return err
	}
	return nil
}

// TestProgramsDiffer: a call of one rank with a different count is found, and the error names the
// rank.
func TestProgramsDiffer(t *testing.T) {
	found := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		size := 2 + r.IntN(4)
		posts := program(r, size)
		me := r.IntN(size)
		if len(posts[me]) == 0 {
			continue
		}
		group := posts[me][r.IntN(len(posts[me]))]
		group[r.IntN(len(group))].Count += 100
		w := worldOf(size, all(size)...)
		queue(r, w, posts)
		require.ErrorIs(t, errorOf(w), device.ErrMismatch, "seed %d", seed)
		require.Contains(t, w.Failure().Ranks, me, "seed %d: %v", seed, w.Failure())
		found++
	}
	require.Greater(t, found, 250)
}

func TestMissing(t *testing.T) {
	w := worldOf(3, 0, 1, 2)
	p, ok := w.Queue(0, []Call{{Kind: AllReduce}})
	require.True(t, ok)
	require.Equal(t, []int{1, 2}, w.Missing(p))
	_, ok = w.Queue(2, []Call{{Kind: Recv, Peer: 1}})
	require.True(t, ok)
	require.Equal(t, []int{1}, w.Missing(p), "rank 2 waits for rank 1 itself")

	w = worldOf(3, 0, 1)
	p, _ = w.Queue(0, []Call{{Kind: Barrier}})
	require.Equal(t, []int{1}, w.Missing(p))
	w.Queue(1, []Call{{Kind: Barrier}})
	require.Equal(t, []int{2}, w.Missing(p), "of ranks elsewhere nothing is known")
	require.Equal(t, []int{0}, worldOf(1, 0).Elsewhere(0))
}

func TestCircle(t *testing.T) {
	w := worldOf(3, 0, 1, 2)
	for me := range 3 {
		_, ok := w.Queue(me, []Call{{Kind: Send, Peer: (me + 1) % 3}})
		require.Equal(t, me < 2, ok)
	}
	require.ErrorIs(t, w.Failure(), device.ErrMismatch)
	require.ErrorContains(t, w.Failure(), "wait for each other")
}

func TestLeave(t *testing.T) {
	w := worldOf(3, 0, 1, 2)
	w.Leave(2)
	_, ok := w.Queue(0, []Call{{Kind: Send, Peer: 1}})
	require.True(t, ok, "rank 2 is not needed")
	_, ok = w.Queue(1, []Call{{Kind: Recv, Peer: 0}})
	require.True(t, ok)
	_, ok = w.Queue(1, []Call{{Kind: Barrier}})
	require.False(t, ok)
	require.ErrorIs(t, w.Failure(), device.ErrAborted)
	require.ErrorContains(t, w.Failure(), "rank 2 has closed")

	w = worldOf(2, 0, 1)
	w.Queue(0, []Call{{Kind: Barrier}})
	w.Leave(1)
	require.ErrorContains(t, w.Failure(), "rank 0 waits for it")
}

func TestJoin(t *testing.T) {
	w := NewWorld(2)
	require.Equal(t, -1, w.On("gpu"))
	require.True(t, w.Join(1, "gpu"))
	require.False(t, w.Join(1, "other"))
	require.Equal(t, 1, w.On("gpu"))
}

// TestCheck compares the check for overlaps with a check of every element.
func TestCheck(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	for range 20000 {
		size := 1 + r.IntN(3)
		rank := r.IntN(size)
		c := Call{Kind: Kind(r.IntN(7)), Type: device.DataType(r.IntN(5)), Count: int64(r.IntN(5)), Peer: r.IntN(size)}
		bytes := device.Ptr(c.Type.Bytes())
		c.Dst, c.Src = 1024+bytes*device.Ptr(r.IntN(20)), 1024+bytes*device.Ptr(r.IntN(20))
		dst, src, inPlace := c.Ranges(rank, size)
		overlap := false
		for i := range dst {
			for j := range src {
				overlap = overlap || c.Dst/bytes+device.Ptr(i) == c.Src/bytes+device.Ptr(j)
			}
		}
		refused := overlap && int64(c.Src/bytes)-int64(c.Dst/bytes) != inPlace
		require.Equal(t, refused, c.Check(self, rank, size) != nil, "%+v on rank %d of %d", c, rank, size)
	}
}

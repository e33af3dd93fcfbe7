package placement

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// strides are distances of blocks: some of real programs, multiples of 512 near the Fibonacci
// fractions of powers of two, and those at which one multiplication by the golden ratio, or by
// another common constant, grows evenly.
var strides = []int64{
	512, 1024, 1536, 2048, 4096, 12_288, 65_536, 499_712, 1 << 20, 2 << 20, 20 << 20, 3 << 20, 512 * 987, 512 * 1597,
	512 * 46_368, 512 * 121_393, 512 * 6_765, 512 * 10_946, 512 * 17_711, 999_424, 1_499_136, 1 << 32, 1<<32 + 512, 1 << 40,
}

// depth returns the height of the tree, and the mean depth of its blocks.
func depth(m *Chunk) (height int, mean float64) {
	blocks, sum := 0, 0
	var visit func(m *Chunk, d int)
	visit = func(m *Chunk, d int) {
		if m == nil {
			return
		}
		blocks, sum, height = blocks+1, sum+d, max(height, d)
		visit(m.left, d+1)
		visit(m.right, d+1)
	}
	visit(m, 1)
	return height, float64(sum) / float64(blocks)
}

// TestTreeIsLogarithmicAtEveryStride: a tree of random priorities has a height of about 3·log2 n
// and a mean depth of about 1.4·log2 n, for every pattern of blocks and every order of insertion.
func TestTreeIsLogarithmicAtEveryStride(t *testing.T) {
	const n = 20_000
	all := strides
	for stride := int64(0); len(all) < len(strides)+5; {
		stride += 7919 * 512 * int64(len(all))
		all = append(all, stride)
	}
	chunks := make([]Chunk, n)
	for i, stride := range all {
		var x tree
		for k := range chunks {
			at := k
			switch i % 3 {
			case 1:
				at = n - 1 - k
			case 2:
				at = k * 7919 % n
			}
			chunks[at] = Chunk{ptr: 1<<20 + device.Ptr(int64(at)*stride), size: 1024, unmapped: i%2 == 0}
			x.insert(&chunks[at])
		}
		height, mean := depth(x.root)
		log := math.Log2(n)
		require.LessOrEqual(t, height, int(4.5*log), fmt.Sprintf("stride %d", stride))
		require.LessOrEqual(t, mean, 2*log, fmt.Sprintf("stride %d", stride))
	}
}

// TestTreeKeepsItsOrders: insertions and removals keep the order of the priorities, besides that of
// the blocks, which TestIndex checks. The depth stays that of a random tree.
func TestTreeKeepsItsOrders(t *testing.T) {
	const n = 4000
	r := rand.New(rand.NewPCG(6, 7))
	var x tree
	chunks := make([]Chunk, n)
	for i := range chunks {
		chunks[i] = Chunk{ptr: 1<<20 + device.Ptr(i*4096), size: int64(512 * (1 + i%5))}
	}
	ordered := func() {
		walk(x.root, func(m *Chunk) {
			for _, child := range [2]*Chunk{m.left, m.right} {
				if child != nil {
					require.LessOrEqual(t, child.priority, m.priority)
				}
			}
		})
	}
	for i := range 40_000 {
		if m := &chunks[r.IntN(n)]; m.indexed() {
			x.remove(m)
		} else {
			x.insert(m)
		}
		if i%1000 == 0 {
			ordered()
		}
	}
	ordered()
	height, mean := depth(x.root)
	log := math.Log2(n / 2)
	require.LessOrEqual(t, height, int(4.5*log))
	require.LessOrEqual(t, mean, 2*log)
}

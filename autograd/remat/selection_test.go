package remat

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlanAgainstAllChoices: compared with all choices of random layers, the plan misses no choice
// that fits, and chooses no layer that it does not need.
func TestPlanAgainstAllChoices(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	costs, plans := 0.0, 0.0
	for range 400 {
		n := 1 + random.IntN(7)
		c := &selection{chosen: make([]bool, n), fixed: random.Int64N(1000)}
		for range n {
			held := random.Int64N(1000)
			c.held, c.results, c.grads = append(c.held, held), append(c.results, random.Int64N(held+1)), append(c.grads, random.Int64N(300))
			c.copies = append(c.copies, random.Int64N(300))
		}
		// The bytes held in the backward pass of each layer, computed independently.
		most := func(chosen int) (bytes int64) {
			for i := range n {
				now := c.fixed + c.held[i]
				for j := range n {
					if j <= i {
						now += c.copies[j]
					}
					switch {
					case j >= i:
						now += c.grads[j]
					case chosen&(1<<j) != 0:
						now += c.results[j]
					default:
						now += c.held[j]
					}
				}
				bytes = max(bytes, now)
			}
			return bytes
		}
		cost := func(chosen int) (bytes int64) {
			for i := range n {
				if chosen&(1<<i) != 0 {
					bytes += c.held[i]
				}
			}
			return bytes
		}
		require.Equal(t, most(0), c.most())
		all := 1<<n - 1
		budget := most(all) + random.Int64N(most(0)-most(all)+1)
		for c.most() > budget && c.add(budget) {
		}
		mask := func() (chosen int) {
			for i, yes := range c.chosen {
				if yes {
					chosen |= 1 << i
				}
			}
			return chosen
		}
		c.prune(budget)
		mine := mask()
		require.Equal(t, most(mine), c.most())
		require.LessOrEqual(t, c.most(), budget)
		best := int64(1 << 60)
		for chosen := range all + 1 {
			if most(chosen) <= budget {
				best = min(best, cost(chosen))
			}
		}
		for i := range n {
			if mine&(1<<i) != 0 {
				require.Greater(t, most(mine&^(1<<i)), budget, "layer %d is computed again for nothing", i)
			}
		}
		// Of all layers, the largest one that is not needed is left out first.
		for i := range c.chosen {
			c.chosen[i] = true
		}
		c.prune(budget)
		left := all
		for rest := all; rest != 0; {
			i := -1
			for k := range n {
				if rest&(1<<k) != 0 && (i < 0 || c.held[k] > c.held[i]) {
					i = k
				}
			}
			rest &^= 1 << i
			if most(left&^(1<<i)) <= budget {
				left &^= 1 << i
			}
		}
		require.Equal(t, left, mask())
		if best > 0 {
			costs += float64(cost(mine)) / float64(best)
			plans++
		}
	}
	require.Less(t, costs/plans, 1.2, "what is computed again, by the least that would do")
	t.Logf("%.3f of the least", costs/plans)
}

package report

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStacksBeginAtTheProgram: a stack and its call site are the same for calls of this module,
// however they get to the cache.
func TestStacksBeginAtTheProgram(t *testing.T) {
	const module = "github.com/cistern-ml/cistern/"
	user, library := frame{"main.(*Net).Forward", "net.go", 7}, frame{module + "tensor.(*Runtime).New", "tensor.go", 3}
	o := newOwners()
	direct := o.stack([]frame{{module + "memcache.(*Cache).Alloc", "alloc.go", 1}, user})
	require.Equal(t, direct, o.stack([]frame{{module + "memcache.(*Cache).Alloc", "alloc.go", 1}, {module + "tensor.(*Runtime).alloc", "alloc.go", 2}, library, user}))
	require.Equal(t, []frame{user}, o.frames)
	require.Equal(t, [][]int32{{0}}, o.stacks)
	require.Equal(t, []int32{0}, o.sites)

	python := []frame{{"empty", "/site-packages/torch/_tensor.py", 5}, {"forward", "net.py", 6}}
	n := o.stack(python)
	require.Len(t, o.stacks[n], 2)
	require.Equal(t, python[1], o.frames[o.sites[n]])
}

package null

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRemoveOfWhatIsGone: Close drops ranges during calls that free them, and the addresses may be
// in use again by then.
func TestRemoveOfWhatIsGone(t *testing.T) {
	gone := &span{ptr: 64, bytes: 64}
	require.Empty(t, remove(nil, gone))
	for _, other := range []*span{{ptr: 64, bytes: 64}, {ptr: 0, bytes: 128}, {ptr: 128, bytes: 64}} {
		require.Equal(t, []*span{other}, remove([]*span{other}, gone))
	}
	require.Empty(t, remove([]*span{gone}, gone))
}

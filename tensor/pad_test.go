package tensor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestPadOfOneDimensionIsOneLaunch on a GPU, and so is the gradient of a range of rows: no separate
// launch zeroes memory.
func TestPadOfOneDimensionIsOneLaunch(t *testing.T) {
	launches := map[string]int{}
	r := newRig(t, 64<<20).counting(launches).scoped()
	_, onHost := r.dev.(device.HostVisible)
	x := put(r, []int32{1, 2, 3, 4}, 2, 2)
	for _, c := range []struct {
		before, after []int
		want          []int32
		one           bool
	}{
		{[]int{1, 0}, []int{1, 0}, []int32{7, 7, 1, 2, 3, 4, 7, 7}, true},
		{[]int{0, 0}, []int{0, 1}, []int32{1, 2, 7, 3, 4, 7}, true},
		{[]int{0, 1}, []int{0, 0}, []int32{7, 1, 2, 7, 3, 4}, true},
		{[]int{1, 0}, []int{0, 1}, []int32{7, 7, 7, 1, 2, 7, 3, 4, 7}, false},
		{[]int{1, 0}, []int{-1, 0}, []int32{7, 7, 1, 2}, false},
		{[]int{0, 1}, []int{-2, 0}, nil, true},
	} {
		clear(launches)
		y, err := r.Pad(r.ctx, x, 7, c.before, c.after)
		require.NoError(t, err)
		if c.one && !onHost && len(c.want) > 0 {
			require.Equal(t, map[string]int{"pad": 1}, launches, c)
		}
		require.Equal(t, c.want, get[int32](r, y, nil), c)
	}
}

func TestOnlyPadded(t *testing.T) {
	for _, c := range []struct {
		before, after []int
		want          int
	}{
		{nil, nil, -1}, {[]int{0, 0}, []int{0, 0}, -1}, {[]int{1, 0}, []int{0, 0}, 0}, {[]int{0, 0}, []int{0, 2}, 1}, {[]int{3, 0}, []int{2, 0}, 0},
		{[]int{1, 0}, []int{0, 1}, -1}, {[]int{1, 1}, []int{0, 0}, -1}, {[]int{1, 0}, []int{-1, 0}, -1}, {[]int{1, -1}, []int{0, 0}, -1}, {[]int{0, 0}, []int{-1, 1}, -1},
	} {
		require.Equal(t, c.want, onlyPadded(c.before, c.after), c)
	}
}

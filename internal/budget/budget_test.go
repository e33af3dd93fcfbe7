package budget

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDefaults: the limits are the floor, and 8 per byte of a larger file.
func TestDefaults(t *testing.T) {
	for _, input := range []int64{0, 1000, Floor / PerByte, Floor/PerByte + 1, 1 << 30} {
		limit := max(Floor, PerByte*input)
		b := New(Limits{})
		b.Grow(input / 2)
		b.Grow(input - input/2)
		require.NoError(t, b.Memory(limit))
		require.ErrorIs(t, b.Memory(1), ErrExceeded)
		require.NoError(t, b.Memory(-1), "a refund")
		require.Equal(t, limit, b.Left())
		require.NoError(t, b.Work(limit))
		require.Zero(t, b.Left())
		require.ErrorIs(t, b.Work(1), ErrExceeded)
		require.ErrorIs(t, b.Work(0), ErrExceeded, "what was exceeded stays so")
		memory, work := b.Spent()
		require.Equal(t, []int64{limit, limit + 1}, []int64{memory, work})
	}
}

// TestLimits: set limits apply to files of any size, and the error names the flag.
func TestLimits(t *testing.T) {
	b := New(Limits{MaxMemory: 3 << 20, MaxWork: 1234567})
	b.Grow(1 << 30)
	require.NoError(t, b.Memory(3<<20))
	require.EqualError(t, b.Memory(1), "the file costs too much: more than 3.0 MiB of memory; raise --max-memory if you trust it")
	require.NoError(t, b.Work(1234567))
	require.EqualError(t, b.Work(math.MaxInt64), "the file costs too much: more than 1,234,567 units of work; raise --max-work if you trust it")
	require.ErrorIs(t, b.Work(math.MaxInt64), ErrExceeded, "no sum wraps")
	require.ErrorContains(t, Limits{MaxMemory: -1}.Check(), "max-memory is -1")
	require.ErrorContains(t, Limits{MaxWork: -2}.Check(), "max-work is -2")
	require.NoError(t, Limits{}.Check())
}

// TestShares: a share ends by itself or with the whole, and its work and memory count for the
// whole.
func TestShares(t *testing.T) {
	b := New(Limits{MaxWork: 100, MaxMemory: 100})
	s := b.Share(60)
	require.NoError(t, s.Work(60))
	require.EqualValues(t, 40, b.Left())
	require.ErrorIs(t, s.Work(1), ErrExceeded)
	require.NoError(t, b.Work(9))
	s = b.Share(1000).Share(50)
	require.EqualValues(t, 30, s.Left())
	require.NoError(t, s.Work(30))
	require.ErrorIs(t, s.Work(1), ErrExceeded)
	require.ErrorIs(t, b.Work(0), ErrExceeded)
	require.NoError(t, s.Memory(100))
	require.ErrorIs(t, b.Memory(1), ErrExceeded)
	require.Zero(t, b.Share(0).Left())
	var none *Budget
	s = none.Share(5)
	require.NoError(t, s.Work(5))
	require.ErrorIs(t, s.Work(1), ErrExceeded)
	require.NoError(t, s.Memory(math.MaxInt64))
}

// TestParts: parts begin with the charged memory and without work. Together they may do the minimum
// work of a file, or each of them the work of a larger file.
func TestParts(t *testing.T) {
	b := New(Limits{})
	require.NoError(t, b.Memory(77))
	require.NoError(t, b.Work(Floor))
	p := b.Part(4)
	memory, work := p.Spent()
	require.Equal(t, []int64{77, 0}, []int64{memory, work})
	require.EqualValues(t, Floor/4, p.Left())
	require.NoError(t, p.Memory(-77))
	memory, _ = b.Spent()
	require.EqualValues(t, 77, memory)
	b.Grow(Floor)
	require.Equal(t, int64(PerByte*Floor), b.Part(4).Left())
	require.EqualValues(t, 5, New(Limits{MaxWork: 5}).Part(4).Left())
	require.Nil(t, (*Budget)(nil).Part(2))

	b.Divide(10)
	require.EqualValues(t, PerByte*int64(Floor)/10, b.Part(4).Left(), "the recordings share it")
	b = New(Limits{MaxWork: 1000})
	b.Divide(10)
	require.EqualValues(t, 100, b.Part(4).Left())
	b = New(Limits{})
	b.Divide(0)
	b.Divide(5)
	require.EqualValues(t, Floor/20, b.Part(4).Left())
}

// TestNone: a nil budget has no limits.
func TestNone(t *testing.T) {
	var b *Budget
	b.Grow(1)
	require.NoError(t, b.Memory(math.MaxInt64))
	require.NoError(t, b.Work(math.MaxInt64))
	require.NoError(t, b.Move(math.MaxInt64))
	require.NoError(t, b.Scan(math.MaxInt))
	require.Equal(t, int64(math.MaxInt64), b.Left())
	memory, work := b.Spent()
	require.Zero(t, memory+work)
}

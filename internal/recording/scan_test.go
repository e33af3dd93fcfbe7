package recording

import (
	"bufio"
	"bytes"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/nlpodyssey/gopickle/pickle"
	"github.com/stretchr/testify/require"
)

// TestWideNumbers: numbers of up to 64 bits are read exactly, also if an int has 32 bits.
func TestWideNumbers(t *testing.T) {
	read := func(data []byte, narrow bool) []*Recording {
		s := newSnapshotReader(bufio.NewReader(bytes.NewReader(data)), Options{}, nil)
		s.narrow = s.narrow || narrow
		value, err := s.unpickle()
		require.NoError(t, err)
		list, err := s.recordings(value)
		require.NoError(t, err)
		return list
	}
	random := rand.New(rand.NewPCG(1, 2))
	rounds := 1000
	if testing.Short() {
		rounds = 250
	}
	for range rounds {
		at := random.Int64N(1<<62) >> random.IntN(50) &^ 511
		size := random.Int64N(1<<60)>>random.IntN(60) | 1
		e := entry("alloc", max(512, at), size)
		stream := int64(random.Uint64()) >> random.IntN(64)
		for i := 0; i < len(e); i += 2 {
			if e[i] == "stream" {
				e[i+1] = stream
			}
		}
		data := pickled(snapshot(e))
		list := read(data, true)
		require.Equal(t, read(data, false), list)
		got := list[0].Entries[0]
		require.EqualValues(t, max(512, at), got.Addr)
		require.Equal(t, size, got.Size)
		require.Equal(t, uint64(stream), got.Stream)
	}
}

// TestWiden changes only numbers that an int of 32 bits does not hold, and keeps their values.
func TestWiden(t *testing.T) {
	for _, v := range []int64{0, 1, -1, math.MaxInt32, math.MinInt32, math.MaxInt32 + 1, math.MinInt32 - 1, 1 << 32, -1 << 32, 1 << 40, -1<<40 - 5, math.MaxInt64, math.MinInt64} {
		op := pickled(v)[2 : 2+10] // all have 8 bytes
		wide := widen(bytes.Clone(op))
		if v >= math.MinInt32 && v <= math.MaxInt32 {
			require.Equal(t, op, wide, v)
			continue
		}
		u := pickle.NewUnpickler(strings.NewReader("\x80\x02" + string(wide) + "."))
		n, err := u.Load()
		require.NoError(t, err)
		require.IsType(t, new(big.Int), n, v)
		require.Zero(t, n.(*big.Int).Cmp(big.NewInt(v)), "%v", n)
	}
	require.Equal(t, []byte{0x8a, 3, 1, 2, 3}, widen([]byte{0x8a, 3, 1, 2, 3}))
	require.Equal(t, []byte{0x8a, 9, 0, 0, 0, 0, 1, 0, 0, 0, 0}, widen([]byte{0x8a, 5, 0, 0, 0, 0, 1}))
}

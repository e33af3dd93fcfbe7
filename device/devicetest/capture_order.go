package devicetest

import (
	"math/rand/v2"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// captureOrder needs streams that implement device.CaptureOrder.
func captureOrder(f *fixture) {
	if _, ok := f.stream().(device.CaptureOrder); !ok {
		f.Skip("the streams are no device.CaptureOrder")
	}
	for seed := range uint64(20) {
		f.randomOrder(rand.New(rand.NewPCG(seed, 16)))
	}
}

// randomOrder captures a random program and compares its marks with a walk over its operations,
// each of which records its direct predecessors.
func (f *fixture) randomOrder(r *rand.Rand) {
	const n = 64
	type record struct {
		event  device.Event
		behind map[int]bool // all operations before it
	}
	type mark struct {
		device.CaptureMark
		behind map[int]bool
	}
	streams := []device.Stream{f.stream(), f.stream(), f.stream(), f.stream()}
	memory := make([]device.Ptr, len(streams))
	// For each stream, the operations that precede its next one.
	before := make([]map[int]bool, len(streams))
	inside := []bool{true, false, false, false}
	for i := range streams {
		memory[i], before[i] = f.alloc(n), make(map[int]bool)
	}
	copied := func(m map[int]bool) map[int]bool {
		c := make(map[int]bool)
		for k := range m {
			c[k] = true
		}
		return c
	}
	wait := func(i int, e record) {
		require.NoError(f, streams[i].Wait(e.event))
		inside[i] = true
		for k := range e.behind {
			before[i][k] = true
		}
	}
	recorded := func(i int) record { return record{f.recorded(streams[i]), copied(before[i])} }
	order := func(i int) device.CaptureOrder { return streams[i].(device.CaptureOrder) }
	require.Nil(f, order(0).CaptureMark(), "outside of captures")
	c := f.begin(streams[0])
	var records []record
	var marks []mark
	operations := 0
	for range 60 {
		i := r.IntN(len(streams))
		if !inside[i] {
			require.Nil(f, order(i).CaptureMark())
			if len(records) > 0 {
				wait(i, records[r.IntN(len(records))])
			}
			continue
		}
		switch r.IntN(5) {
		case 0, 1:
			require.NoError(f, streams[i].Memset(memory[i], 1, n))
			before[i][operations] = true
			operations++
		case 2:
			records = append(records, recorded(i))
		case 3:
			if len(records) > 0 {
				wait(i, records[r.IntN(len(records))])
			}
		case 4:
			marks = append(marks, mark{order(i).CaptureMark(), copied(before[i])})
		}
		for _, m := range marks {
			for j, s := range streams {
				want := inside[j]
				for k := range m.behind {
					want = want && before[j][k]
				}
				require.Equal(f, want, m.Before(s), "the mark is behind %v, and the stream behind %v", m.behind, before[j])
			}
		}
	}
	for i := range streams[1:] {
		if inside[i+1] {
			wait(0, recorded(i+1))
		}
	}
	g, err := c.EndCapture()
	require.NoError(f, err)
	require.NoError(f, g.Close())
	f.begin(streams[0])
	for _, m := range marks {
		require.False(f, m.Before(streams[0]), "of a capture that has ended, in another one")
	}
	g, err = c.EndCapture()
	require.NoError(f, err)
	require.NoError(f, g.Close())
}

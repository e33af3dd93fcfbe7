package loader_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// half is a number of a named type, like tensor.F16.
type half uint16

// everything is a sample with a part of each kind.
type everything struct {
	Slice  []float32
	Label  int64
	Half   half
	Array  [2][3]int8
	Pairs  [][2]complex64
	Number float64
	name   string
}

// TestStack: a field of a batch equals encoding/binary's output for that part of all samples.
func TestStack(t *testing.T) {
	r := newRig(t, transfer.Config{})
	for range 20 {
		n, width, pairs := 1+rand.IntN(20), 1+rand.IntN(50), 1+rand.IntN(5)
		samples := make([]everything, n)
		var want [6]bytes.Buffer
		for i := range samples {
			s := everything{make([]float32, width, width+3), rand.Int64(), half(rand.Uint32()), [2][3]int8{{int8(i), 2, 3}, {4, 5, -6}}, make([][2]complex64, pairs), rand.NormFloat64(), "not stacked"}
			for k := range s.Slice {
				s.Slice[k] = rand.Float32()
			}
			for k := range s.Pairs {
				s.Pairs[k] = [2]complex64{complex(rand.Float32(), 1), complex(2, rand.Float32())}
			}
			samples[i] = s
			for k, part := range []any{s.Slice, s.Label, s.Half, s.Array, s.Pairs, s.Number} {
				require.NoError(t, binary.Write(&want[k], binary.NativeEndian, part))
			}
		}
		b, l := open(t, r, numbered[everything]{n, func(i int) (everything, error) { return samples[i], nil }},
			loader.BatcherConfig[everything]{Sampler: loader.Sampler{Batch: 7}})
		require.Equal(t, []int64{4 * int64(width), 8, 2, 6, 16 * int64(pairs), 8}, b.Fields)
		var got [6][]byte
		for batch, err := range b.From(t.Context(), l, loader.Position{}) {
			require.NoError(t, err)
			require.Equal(t, len(got), batch.Fields())
			for k := range got {
				got[k] = append(got[k], read[byte](t, r, batch, k)...)
			}
		}
		for k := range got {
			require.Equal(t, want[k].Bytes(), got[k], "field %d", k)
		}
		require.NoError(t, l.Close())
	}
}

// refused returns the error of a batcher of one sample.
func refused[T any](sample T) error {
	_, err := loader.NewBatcher(numbered[T]{1, func(int) (T, error) { return sample, nil }}, loader.BatcherConfig[T]{Sampler: loader.Sampler{Batch: 1}})
	return err
}

// TestStackRefuses: samples without numbers of a fixed size are refused with the name of the part.
func TestStackRefuses(t *testing.T) {
	type labelled struct {
		Pixels []float32
		Label  int
	}
	for want, err := range map[string]error{
		"Label, of type int":                          refused(labelled{}),
		"the sample, of type string":                  refused("text"),
		"the sample, of type []bool":                  refused([]bool{true}),
		"the sample, of type []uint":                  refused([]uint{1}),
		"the sample, of type [][]float32":             refused([][]float32{{1}}),
		"the sample, of type *loader_test.everything": refused(new(everything)),
		"the sample, of type error":                   refused[error](nil),
		"the sample, of type map[int]int":             refused(map[int]int{}),
		"struct { name string } has no exported":      refused(struct{ name string }{"x"}),
	} {
		require.ErrorContains(t, err, want)
		require.ErrorIs(t, err, transfer.ErrInvalid, want)
	}
	require.ErrorIs(t, refused([]float32{}), transfer.ErrRange)
	require.ErrorIs(t, refused([0]float32{}), transfer.ErrRange)
}

// TestStackSizes: a sample of another size is an error with its number.
func TestStackSizes(t *testing.T) {
	r := newRig(t, transfer.Config{})
	for _, wrong := range []int{2, 4} {
		b, l := open(t, r, numbered[[]int16]{9, func(i int) ([]int16, error) {
			if i == 5 {
				return make([]int16, wrong), nil
			}
			return make([]int16, 3), nil
		}}, loader.BatcherConfig[[]int16]{Sampler: loader.Sampler{Batch: 3}})
		var end error
		for _, end = range b.From(t.Context(), l, loader.Position{}) {
		}
		require.ErrorIs(t, end, transfer.ErrRange)
		require.ErrorContains(t, end, "sample 5: the sample has")
	}
	b, l := open(t, r, labels(4), loader.BatcherConfig[int32]{Sampler: loader.Sampler{Batch: 2, Fields: []int64{4, 4}}})
	for _, err := range b.From(t.Context(), l, loader.Position{}) {
		require.ErrorIs(t, err, transfer.ErrRange)
		require.ErrorContains(t, err, "1 parts, and the sampler 2 fields")
	}
}

// TestCollate: sequences are padded to the longest of their batch, in memory with older contents. A
// panic is an error.
func TestCollate(t *testing.T) {
	const n = 25
	r := newRig(t, transfer.Config{})
	sequences := make([][]int32, n)
	for i := range sequences {
		sequences[i] = make([]int32, 1+rand.IntN(longest))
		for k := range sequences[i] {
			sequences[i][k] = 1 + rand.Int32N(99)
		}
	}
	config := loader.BatcherConfig[[]int32]{Sampler: loader.Sampler{Batch: 4, Fields: []int64{4 * longest}, Shuffle: true}, Workers: 3, Collate: pad}
	b, l := open(t, r, texts(sequences), config)
	order := slices.Collect(slices.Chunk(b.Order(0), 4))
	for k, got := range epoch[int32](t, r, b, l, loader.Position{}) {
		width := len(got) / len(order[k])
		for row, i := range order[k] {
			want := append(slices.Clone(sequences[i]), make([]int32, width-len(sequences[i]))...)
			require.Equal(t, want, got[row*width:(row+1)*width])
		}
		require.True(t, slices.ContainsFunc(order[k], func(i int) bool { return len(sequences[i]) == width }), "not wider")
	}
	sequences[order[2][1]] = make([]int32, 4*longest+1)
	for batch, err := range b.From(t.Context(), l, loader.Position{}) {
		if batch == nil {
			require.ErrorContains(t, err, "batch 2: panic: runtime error: slice bounds out of range")
			var p *loader.PanicError
			require.True(t, errors.As(err, &p))
		}
	}
}

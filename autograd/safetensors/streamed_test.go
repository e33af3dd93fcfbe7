package safetensors

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// TestStreamed: tensors that are made while they are written, one after the other, give the same
// file as complete ones.
func TestStreamed(t *testing.T) {
	rt := open(t)
	all := []Named{}
	for i, name := range []string{"c", "a", "d", "b"} {
		x, err := tensor.FromSlice(t.Context(), rt, []float32{float32(i), 1, 2, 3, 4, 5}, 2, 3)
		require.NoError(t, err)
		defer func() { require.NoError(t, x.Release()) }()
		all = append(all, Named{name, x})
	}
	wide, err := tensor.FromSlice(t.Context(), rt, []float64{7})
	require.NoError(t, err)
	defer func() { require.NoError(t, wide.Release()) }()
	all = append(all, Named{"z", wide})
	metadata := map[string]string{"k": "v"}
	var want, got bytes.Buffer
	require.NoError(t, Write(t.Context(), &want, all, metadata))
	var streamed []Streamed
	var order, sorted []string
	for _, i := range []int{0, 1, 4} {
		streamed = append(streamed, Streamed{all[i].Name, all[i].Dtype(), all[i].Shape(), func(ctx context.Context, w io.Writer) error {
			order = append(order, all[i].Name)
			return tensor.WriteBytes(ctx, all[i].Tensor, w)
		}})
	}
	require.NoError(t, Write(t.Context(), &got, all[2:4], metadata, streamed...))
	require.Equal(t, want.Bytes(), got.Bytes())
	SortStreamed(streamed)
	for _, s := range streamed {
		sorted = append(sorted, s.Name)
	}
	require.Equal(t, []string{"z", "a", "c"}, order)
	require.Equal(t, order, sorted)
}

// TestStreamedBadInput is an error, and never a file of another size than its header has.
func TestStreamedBadInput(t *testing.T) {
	own := errors.New("its own")
	write := func(n int, err error) func(context.Context, io.Writer) error {
		return func(_ context.Context, w io.Writer) error {
			if _, err := w.Write(make([]byte, n)); err != nil {
				return err
			}
			return err
		}
	}
	good := Streamed{"x", tensor.Float32, tensor.Shape{2}, write(8, nil)}
	require.NoError(t, Write(t.Context(), io.Discard, nil, nil, good))
	for _, c := range []struct {
		streamed []Streamed
		class    error
		words    string
	}{
		{[]Streamed{{"x", tensor.Float32, tensor.Shape{2}, nil}}, ErrInvalid, "Write is nil"},
		{[]Streamed{{"x", tensor.Float32, tensor.Shape{-1}, good.Write}}, ErrInvalid, "a shape of"},
		{[]Streamed{{"x", tensor.Float32, tensor.Shape{1 << 30, 1 << 30, 1 << 10}, good.Write}}, ErrInvalid, "a shape of"},
		{[]Streamed{{"x", 0, tensor.Shape{2}, good.Write}}, tensor.ErrDtype, "has no"},
		{[]Streamed{good, good}, ErrInvalid, `two tensors are named "x"`},
		{[]Streamed{{"x", tensor.Float32, tensor.Shape{2}, write(7, nil)}}, ErrInvalid, "has written 7 bytes"},
		{[]Streamed{{"x", tensor.Float32, tensor.Shape{2}, write(9, nil)}}, ErrInvalid, "more bytes than"},
		{[]Streamed{{"x", tensor.Float32, tensor.Shape{2}, write(8, own)}}, own, `"x"`},
	} {
		err := Write(t.Context(), io.Discard, nil, nil, c.streamed...)
		require.ErrorIs(t, err, c.class)
		require.ErrorContains(t, err, c.words)
	}
}
